"""How data files are read and written: planned, cut into tasks, staged."""
