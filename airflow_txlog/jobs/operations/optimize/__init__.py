"""OPTIMIZE: which files become one, how they are sorted, and the commits that replace them without changing a row."""
