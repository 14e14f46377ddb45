"""Work on data files, on a driver or on an executor: names, values as text, statistics, reading, writing.

This package travels to executors in a zip. It imports pyarrow, `storage` and the packages below it, and the standard
library only, and nothing at this level.
"""
