"""Parquet files: reading, writing and copying them, and their statistics."""
