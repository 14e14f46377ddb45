"""A2: every text of every operation may name the current time, and has the job's."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.parameters import encode_parameter
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.resume import attempts
from airflow_txlog.jobs.sql.current_time import NOW, TODAY, WALL, CurrentTime, with_literal_clocks
from tests.helpers.jobs import SCHEMA, application, committed, error_of, ids, live_files, rows, run
from tests.helpers.rows import append, make_table
from tests.jobs.sql.test_table_rules import table_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINCE_YESTERDAY = "day > date_sub(current_date(), 2) AND day < now() + INTERVAL 2 DAYS"
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
        committed(run(spark, operation, table, partition_predicate=SINCE_YESTERDAY, **arguments))
        assert (ids(table), old in live_files(table)) == (left, True), operation


@pytest.mark.spark
def test_a2_a_retry_fills_in_the_current_time_of_the_first_try(tmp_path: Path, spark: SparkSession) -> None:
    """A default, a generated column and a CHECK of the table, as the author's own texts."""
    schema = pa.schema(
        [("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("also", pa.timestamp("us", tz="UTC"))]
    )
    marks = {"at": {"CURRENT_DEFAULT": "now()"}, "also": {"delta.generationExpression": "current_timestamp"}}
    properties = {"delta.constraints.same": "at = localtimestamp() AND unix_timestamp() = unix_timestamp(also)"}
    table, who = table_with(tmp_path / "t", schema, marks, properties), application()
    job: dict[str, Any] = {
        "source": {"sql": "SELECT id FROM range(10)"},
        "on": "t.id = s.id",
        "clauses": [{"when": "not_matched", "then": "insert", "values": {"id": "s.id"}}],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "commit_change", fail)
        assert error_of(run(spark, "merge", table, application=who, **job))["type"] == "JobError"
    between = dt.datetime.now(dt.UTC)
    # What the first try has staged cannot be kept: a row that it inserts is there now.
    old = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    append(table, pa.table({"id": [0], "at": [old], "also": [old]}, schema))
    committed(run(spark, "merge", table, application=who, **job))
    found = table.to_arrow().sort_by("id")
    assert found.column("id").to_pylist() == list(range(10))
    (at,) = set(found.column("at").to_pylist()[1:])
    assert old < at < between
    assert set(found.column("also").to_pylist()[1:]) == {at}


def fail(*arguments: Any) -> bool:
    raise JobError("the store does not answer")


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("now()", (), "TIMESTAMP_LTZ '2024-02-29T12:00:00.000001+00:00'"),
        ("current_date", (), "DATE '2024-02-29'"),
        ("current_date", ("Current_Date",), "current_date"),
        ("current_date()", ("current_date",), "DATE '2024-02-29'"),
        ("localtimestamp()", (), "CAST('2024-02-29 13:00:00.000001' AS TIMESTAMP_NTZ)"),
        ("unix_timestamp( /* now() */ )", (), "unix_timestamp(TIMESTAMP_LTZ '2024-02-29T12:00:00.000001+00:00')"),
        ("'now()' || `now`", (), "'now()' || `now`"),
        ("'it", (), "'it"),
    ],
)
def test_a_clock_in_a_rule_of_the_table_becomes_a_literal(text: str, columns: tuple[str, ...], expected: str) -> None:
    clocks = {
        NOW: dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC),
        TODAY: dt.date(2024, 2, 29),
        WALL: "2024-02-29 13:00:00.000001",
    }
    saved = {name: encode_parameter(value) for name, value in clocks.items()}
    assert with_literal_clocks(text, CurrentTime(dict, saved), columns) == expected
