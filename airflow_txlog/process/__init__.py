"""The private folder of a process, its Arrow memory and cores, and turns to start Spark."""
