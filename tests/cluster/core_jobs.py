"""The core of the job suite, on a cluster and beside it on a local Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.storage.limits import SMALL_JOB
from tests.helpers.jobs import committed, run
from tests.helpers.rows import bag
from tests.jobs.rows.test_change_feed import changes
from tests.jobs.stores.test_jobs_on_s3 import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORE = JOBS[:5] + JOBS[6:7]
"""Write, delete, delete by keys, update, merge, optimize."""


def leave_equal_rows(
    do: Callable[[str, dict[str, Any]], JobResult],
    there: Table,
    here: Table,
    spark: SparkSession,
    jobs: list[tuple[str, dict[str, Any]]],
) -> None:
    """`do` each job on the table there: the rows, and the change feed if it has one, are those of the table here."""
    for operation, arguments in jobs:
        with pytest.MonkeyPatch.context() as patched:
            # So that the cluster gets also what would need no Spark.
            patched.setenv(SMALL_JOB.setting, "1")
            result = do(operation, arguments)
        expected = committed(run(spark, operation, here, **arguments))
        assert (result.status, result.version) == ("committed", expected.version)
        assert bag(there) == bag(here), operation
        if there.snapshot().table_properties.change_data_feed and operation != "optimize":
            assert result.version is not None
            assert changes(there, result.version) == changes(here, result.version)
