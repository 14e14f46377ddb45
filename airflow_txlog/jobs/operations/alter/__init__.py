"""ALTER: the change of a table's metadata, and the comparison of its rows with new rules."""
