"""The private folder of a process, and its Arrow memory."""
