"""What is done to data files, on a driver or on an executor: names, values as text, statistics, reading, writing.

This package travels to executors in a zip: it imports pyarrow, fsspec, the standard library and `airflow_txlog.errors`
only, and nothing at this level.
"""
