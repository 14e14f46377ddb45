"""How rows are found, and how they leave and enter files: shared by DELETE, UPDATE, MERGE and replace_where."""
