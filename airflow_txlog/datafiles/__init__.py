"""What is done to data files, on a driver or on an executor: names, values as text, statistics, reading, writing.

This package travels to executors in a zip: it imports pyarrow, `storage` and what stands below it, and the standard
library only, and nothing at this level.
"""
