"""The meaning of the texts of an author and of a table, and the functions that they may call."""
