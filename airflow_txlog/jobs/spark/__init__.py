"""Starting and driving Spark, and reporting its failures."""
