"""Tables that we and `deltalake` (delta-rs) write and read in turn, and at once."""
