"""Spark's daemon of Python workers, as the tests start it: what every task imports of other packages is loaded once.

A worker is a fork of the daemon. Spark starts a new one after each task that failed, and after a minute without tasks;
each would import pyarrow and pandas again, a second or more. Our own package is left to the workers: they must find it
in the zip that a job ships.
"""

from __future__ import annotations

import gc

import fsspec.implementations.local
import fsspec.implementations.memory  # noqa: F401
import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet  # noqa: F401
import pyspark.daemon
import pyspark.sql.conversion
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.worker

if __name__ == "__main__":
    # Spark collects garbage after each task, which takes 40 ms where it looks through all these modules.
    gc.freeze()
    pyspark.daemon.manager()
