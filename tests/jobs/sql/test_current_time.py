"""A2: every text of every operation may name the current time, and has the job's."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.jobs import SCHEMA, committed, ids, live_files, rows, run
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TODAY = "day > date_sub(current_date(), 2) AND day < now() + INTERVAL 2 DAYS"
MERGE: dict[str, Any] = {
    "source": {"sql": "SELECT 1L AS id, 'm' AS name"},
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name", "day": "current_date"}}],
}
WRITE: dict[str, Any] = {
    "source": {"sql": "SELECT 5L AS id, current_date() AS day, 'w' AS name, 0.5D AS amount"},
    "mode": "overwrite",
}
# Operation by operation: its other arguments, and the ids that it leaves.
OPERATIONS: list[tuple[str, dict[str, Any], list[int]]] = [
    ("optimize", {}, [0, 1, 2, 3]),
    ("optimize", {"zorder_by": ["id"]}, [0, 1, 2, 3]),
    ("merge", MERGE, [0, 1, 2, 3]),
    ("update", {"set": {"amount": "unix_timestamp()"}, "predicate": "id = 2"}, [0, 1, 2, 3]),
    ("delete", {"predicate": "id = 3 AND day <= current_date"}, [0, 1, 2]),
    ("write", WRITE, [0, 5]),
]


@pytest.mark.spark
def test_a2_every_operation_takes_a_scope_that_names_the_current_time(tmp_path: Path, spark: SparkSession) -> None:
    today = dt.datetime.now(dt.UTC).date()
    table = make_table(tmp_path / "t", rows(1, day=dt.date(2000, 1, 1)), schema=SCHEMA, partition_by=["day"])
    for key in (1, 2, 3):
        append(table, rows(1, start=key, day=today))
    (old,) = (path for path in live_files(table) if "2000-01-01" in path)
    for operation, arguments, left in OPERATIONS:
        committed(run(spark, operation, table, partition_predicate=TODAY, **arguments))
        assert (ids(table), old in live_files(table)) == (left, True), operation
