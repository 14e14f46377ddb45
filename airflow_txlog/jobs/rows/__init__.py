"""Finding rows, and moving them out of and into files: shared by DELETE, UPDATE, MERGE and replace_where."""
