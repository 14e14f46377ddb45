"""Changes between versions: the commits, and the rows of the change data feed."""
