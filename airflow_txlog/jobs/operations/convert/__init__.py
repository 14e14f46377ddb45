"""CONVERT: a folder of Parquet files, and the columns and statistics in their footers."""
