"""How Spark reads and writes data files: the table's, and those of a source."""
