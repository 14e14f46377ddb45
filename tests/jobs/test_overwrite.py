"""What an overwrite replaces: the partitions that its rows lie in, or the rows that a predicate accepts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.jobs.tables import (
    append,
    application,
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    make_table,
    rows,
    run,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def day_of(k: int) -> dt.date:
    return dt.date(2024, 1, 1 + k)


def numbers(count: int, day: int | None, start: int = 0) -> dict[str, Any]:
    """A source of rows with ids from `start` on."""
    when = "CAST(NULL AS DATE)" if day is None else f"date'{day_of(day)}'"
    return {
        "sql": f"SELECT id + {start} AS id, {when} AS day, concat('n', id) AS name, 0D AS amount FROM range({count})"
    }


def partitioned(folder: Path) -> Table:
    """Days 0 to 2 with five rows each, ids from ten times the day on."""
    days = [rows(5, start=10 * k, day=day_of(k)) for k in range(3)]
    return make_table(folder, *days, partition_by=["day"])


def landing(table: Table, *rows: pa.Table) -> Any:
    """A log function that commits these rows once, after the job staged its own."""
    left = list(rows)

    def log(line: str) -> None:
        if "new file" in line and left:
            append(table, left.pop())

    return log


# --- the partitions of the new rows ---------------------------------------------------------------------------------


def test_an_overwrite_of_partitions_replaces_those_it_has_rows_of(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    append(table, rows(2, start=40, day=None))
    both = {"sql": f"{numbers(2, 1, 70)['sql']} UNION ALL {numbers(1, None, 80)['sql']}"}
    result = committed(run(spark, "write", table, source=both, mode="overwrite_partitions"))
    assert ids(table) == [*range(5), *range(20, 25), 70, 71, 80]
    assert (result.metrics["numDeletedRows"], result.files["removed"], result.files["pruned"]) == (7, 2, 2)
    parameters = table.history(1)[0]["operationParameters"]
    assert (parameters["mode"], parameters["isDynamicPartitionOverwrite"]) == ("Overwrite", "true")


def test_an_overwrite_of_partitions_by_no_row_replaces_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    assert run(spark, "write", table, source=numbers(0, 1), mode="overwrite_partitions").status == "nothing_to_do"
    assert len(ids(table)) == 15


def test_an_overwrite_of_partitions_compares_typed_values(tmp_path: Path, spark: SparkSession) -> None:
    """Every type that partitions, with null, the empty string, NaN and negative zero among the values."""
    query = """SELECT id, p, f, s, CAST(t AS TIMESTAMP) AS t FROM VALUES
        (1L, 1, 0.0D, 'a', '2024-01-01 00:00:00'), (2L, NULL, double('NaN'), 'b/=% ', '2024-01-01 00:00:00.5'),
        (3L, 1, -0.0D, 'a', '2024-01-01 00:00:00'), (4L, 7, 1.5D, '', NULL) AS v(id, p, f, s, t)"""
    news = """SELECT id + 10 AS id, p, f, s, CAST(t AS TIMESTAMP) AS t FROM VALUES
        (1L, 1, 0.0D, 'a', '2024-01-01 00:00:00'), (2L, NULL, double('NaN'), 'b/=% ', '2024-01-01 00:00:00.5'),
        (5L, 9, 1.5D, NULL, NULL) AS v(id, p, f, s, t)"""
    by = ["p", "f", "s", "t"]
    committed(run(spark, "write", tmp_path / "t", source={"sql": query}, partition_by=by))
    result = committed(run(spark, "write", tmp_path / "t", source={"sql": news}, mode="overwrite_partitions"))
    # As Spark groups them: 0.0 and -0.0 are one partition, NaN is one, null is one; the others stay.
    assert sorted(ids(Table.open(str(tmp_path / "t")))) == [4, 11, 12, 15]
    assert result.metrics["numDeletedRows"] == 3


def test_an_overwrite_of_partitions_conflicts_with_their_rows_only(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    other, same = rows(1, start=900, day=day_of(0)), rows(1, start=800, day=day_of(1))
    first = run(spark, "write", table, source=numbers(1, 1, 70), mode="overwrite_partitions", log=landing(table, other))
    assert committed(first).rounds == 1
    second = run(spark, "write", table, source=numbers(1, 1, 71), mode="overwrite_partitions", log=landing(table, same))
    assert committed(second).rounds == 2
    assert ids(table) == [*range(5), *range(20, 25), 71, 900]


def test_an_overwrite_of_partitions_needs_partitions_and_stays_in_its_scope(
    tmp_path: Path, spark: SparkSession
) -> None:
    plain = make_table(tmp_path / "plain", rows(3))
    error = error_of(run(spark, "write", plain, source=numbers(1, 0), mode="overwrite_partitions"))
    assert (error["type"], files_on_disk(plain)) == ("PartitionMismatch", live_files(plain))
    table = partitioned(tmp_path / "t")
    outside = {"mode": "overwrite_partitions", "partition_predicate": "day < date'2024-01-02'"}
    error = error_of(run(spark, "write", table, source=numbers(1, 1), **outside))
    assert (error["type"], error["facts"]["partition"]) == ("PartitionMismatch", {"day": "2024-01-02"})
    made = committed(
        run(spark, "write", tmp_path / "new", source=numbers(2, 1), mode="overwrite_partitions", partition_by=["day"])
    )
    assert made.version == 0


# --- replace_where over partitions ----------------------------------------------------------------------------------


def test_replace_where_over_partitions_reads_no_file(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    for path in live_files(table):
        (tmp_path / "t" / path).write_bytes(b"not a data file")
    arguments = {"mode": "overwrite", "replace_where": "day >= :from", "parameters": {"from": day_of(1)}}
    result = committed(run(spark, "write", table, source=numbers(2, 1, 70), **arguments))
    assert (result.files["removed"], result.metrics["numDeletedRows"]) == (2, 10)
    assert table.history(1)[0]["operationParameters"]["predicate"] == "day >= :from"
    error = error_of(run(spark, "write", table, source=numbers(2, 0, 70), **arguments))
    assert error["type"] == "PartitionMismatch"


def test_replace_where_and_a_scope_bind_together(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    arguments = {
        "mode": "overwrite",
        "replace_where": "day >= date'2024-01-02'",
        "partition_predicate": "day < date'2024-01-03'",
    }
    committed(run(spark, "write", table, source=numbers(1, 1, 70), **arguments))
    assert ids(table) == [*range(5), *range(20, 25), 70]
    assert error_of(run(spark, "write", table, source=numbers(1, 2, 70), **arguments))["type"] == "PartitionMismatch"


# --- what lands meanwhile -------------------------------------------------------------------------------------------


def test_b11_on_conflict_fail_never_replaces_rows_that_its_author_never_saw(
    tmp_path: Path, spark: SparkSession
) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    arguments = {"source": numbers(2, 0, 7), "mode": "overwrite", "on_conflict": "fail", "application": identity}
    error = error_of(run(spark, "write", table, log=landing(table, rows(5, start=50)), **arguments))
    assert (error["type"], error["retryable"]) == ("ConcurrentAppend", False)
    assert "on_conflict" in error["message"]
    assert ids(table) == [*range(10), *range(50, 55)]
    assert files_on_disk(table) == live_files(table)
    assert committed(run(spark, "write", table, **arguments)).rounds == 1
    assert ids(table) == [7, 8]
