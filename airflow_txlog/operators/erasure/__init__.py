"""Operators that erase subjects from tables, and prove it."""
