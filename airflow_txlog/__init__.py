"""Transactional pipelines for Airflow on the Delta Lake transaction log.

This module imports nothing: Airflow loads it before its configuration is ready, and Spark's executors load it from a
zip that holds pyarrow-only code.
"""

__version__ = "0.1.0"
