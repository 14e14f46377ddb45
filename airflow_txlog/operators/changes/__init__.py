"""Operators that apply changes from another table or another system to a table."""
