"""Operators that bring to a table what has changed elsewhere: in another table, or in another system."""
