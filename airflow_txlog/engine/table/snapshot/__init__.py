"""Which files are live: a version of the table, replayed from its log."""
