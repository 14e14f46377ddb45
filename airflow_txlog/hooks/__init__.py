"""The connection type `txlog`."""
