"""OPTIMIZE: the files that become one, their sorting, and the commits that replace them without changing a row."""
