"""Parquet files: how they are read, written, copied, and what their statistics say."""
