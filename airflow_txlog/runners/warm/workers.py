"""Spark's daemon of Python workers as a warm server starts it: a worker is a fork of it and need not import again.

Spark ends workers that were idle for a minute, and each new one would import pyarrow and pandas for half a second or
more.
"""

from __future__ import annotations

import gc
import importlib

LOADED = (
    *("pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "pyspark.worker"),
    *("pyspark.sql.conversion", "pyspark.sql.pandas.serializers", "pyspark.sql.pandas.types"),
    *("airflow_txlog.datafiles.tasks.scan_and_write", "airflow_txlog.datafiles.tasks.compaction"),
)


def main() -> None:
    """Import what every task needs, and serve."""
    for name in LOADED:
        importlib.import_module(name)
    daemon = importlib.import_module("pyspark.daemon")
    # A worker collects garbage after each task, and would look through all these modules.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
