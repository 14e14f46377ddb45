"""Alone in showing what an overwrite replaces: the partitions that its rows lie in, or the rows of a predicate."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import (
    application,
    by_id,
    committed,
    error_of,
    ever_live,
    files_on_disk,
    ids,
    live_files,
    rows,
    run,
    set_property,
)
from tests.helpers.racing import killed_before_commit, winning
from tests.helpers.rows import append, make_table

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
    for landed, start, attempts in ((other, 70, 1), (same, 71, 2)):
        log = winning("new file", lambda landed=landed: append(table, landed))
        result = run(spark, "write", table, source=numbers(1, 1, start), mode="overwrite_partitions", log=log)
        assert committed(result).attempts == attempts
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


# --- replace_where over data columns --------------------------------------------------------------------------------


def test_replace_where_replaces_the_rows_for_which_it_is_true(tmp_path: Path, spark: SparkSession) -> None:
    """A row for which it is null stays, a file without a matching row is not rewritten, copies keep the other rows."""
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50), rows(3, start=90))
    append(table, pa.table({"id": [None], "day": [None], "name": ["null"], "amount": [None]}, schema=rows(1).schema))
    arguments = {"mode": "overwrite", "replace_where": "id % 10 >= :low AND id < 90", "parameters": {"low": 8}}
    source = {"sql": f"{numbers(2, 0, 108)['sql']} WHERE id < 0 UNION ALL SELECT 8L, NULL, 'new', 1D"}
    result = committed(run(spark, "write", table, source=source, **arguments))
    assert ids(table) == [*range(8), 8, *range(50, 58), 90, 91, 92, None]
    metrics = result.metrics
    told = [metrics[name] for name in ("numDeletedRows", "numCopiedRows", "numOutputRows", "numRemovedFiles")]
    assert told == [4, 16, 1, 2]
    (entry, *_) = table.history(1)
    assert (entry["operation"], entry["operationParameters"]["predicate"]) == ("WRITE", arguments["replace_where"])
    assert files_on_disk(table) >= live_files(table)
    assert "8" not in [row["name"] for row in table.to_arrow().to_pylist()]


def test_replace_where_masks_rows_where_the_table_has_deletion_vectors(tmp_path: Path, spark: SparkSession) -> None:
    """And keeps the rules of the table on the new rows, which are told before what replace_where says."""
    properties = {"delta.enableDeletionVectors": "true", "delta.constraints.small": "id < 1000"}
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50), properties=properties)
    arguments = {"mode": "overwrite", "replace_where": "id % 10 = 9"}
    result = committed(run(spark, "write", table, source=numbers(1, 0, 99), **arguments))
    assert (ids(table), result.metrics["numDeletionVectorsAdded"]) == ([*range(9), *range(50, 59), 99], 2)
    told = [result.metrics[name] for name in ("numDeletedRows", "numCopiedRows", "numOutputRows", "numRemovedFiles")]
    assert told == [2, 0, 1, 0]
    error = error_of(run(spark, "write", table, source=numbers(1, 0, 1009), **arguments))
    assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", "small")


def test_rows_staged_for_a_table_that_another_made_first_leave_with_it(tmp_path: Path, spark: SparkSession) -> None:
    log = winning("new file", lambda: make_table(tmp_path / "t", rows(10)))
    arguments = {"mode": "overwrite", "replace_where": "id >= 8"}
    result = committed(run(spark, "write", tmp_path / "t", source=numbers(1, 0, 20), log=log, **arguments))
    table = Table.open(str(tmp_path / "t"))
    assert (result.attempts, ids(table)) == (2, [*range(8), 20])
    # The file that was rewritten is still there, for readers of the version before.
    assert len(files_on_disk(table)) == len(live_files(table)) + 1


def test_a_new_row_that_replace_where_does_not_accept_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    before = files_on_disk(table)
    # False of one row, null of another.
    for outside in ("id < 100", "id > 100 OR CAST(NULL AS BOOLEAN)"):
        arguments = {"source": numbers(3, 0, 99), "mode": "overwrite", "replace_where": outside}
        error = error_of(run(spark, "write", table, **arguments))
        assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", "replace_where"), outside
        assert files_on_disk(table) == before
    arguments = {"mode": "overwrite", "replace_where": "id < 2"}
    made = run(spark, "write", tmp_path / "new", source=numbers(3, 0), **arguments)
    assert error_of(made)["type"] == "ConstraintViolation"
    assert not Table.exists(str(tmp_path / "new"))
    committed(run(spark, "write", tmp_path / "new", source=numbers(2, 0), **arguments))


def test_replace_where_scans_again_only_what_landed_and_stages_its_rows_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50), partition_by=["day"])
    log = winning("staged", lambda: append(table, rows(10, start=20)))
    source = {"sql": "SELECT CAST(9 AS BIGINT) AS id, date'2024-01-05' AS day, uuid() AS name, 0D AS amount"}
    arguments = {"mode": "overwrite", "replace_where": "id % 10 = 9", "log": log, "application": application()}
    result = committed(run(spark, "write", table, source=source, **arguments))
    assert (result.attempts, ids(table)) == (2, [*range(10), *range(20, 29), *range(50, 59)])
    assert "2 files remembered, 1 to look at" in log.lines
    # Two copies and the new row in the first attempt, the copy of the file that landed in the second.
    assert [line.split(";")[0] for line in log.lines if line.startswith("staged")] == [
        "staged 3 files with 19 rows",
        "staged 1 file with 9 rows",
    ]
    assert files_on_disk(table) >= live_files(table)
    assert result.metrics["numDeletedRows"] == 3


def test_replace_where_over_rows_of_the_table_itself_sees_each_version_whole(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("staged", lambda: append(table, rows(2, start=20)))
    source: dict[str, Any] = {"views": {"me": {"table": table.uri}}}
    source["sql"] = "SELECT id, day, 'again' AS name, amount FROM me WHERE id >= 8"
    result = committed(run(spark, "write", table, source=source, mode="overwrite", replace_where="id >= 8", log=log))
    assert (result.attempts, ids(table)) == (2, [*range(10), 20, 21])
    names = by_id(table)
    assert [names[k] for k in (7, 8, 9, 20, 21)] == ["n7", *["again"] * 4]


# --- what lands meanwhile -------------------------------------------------------------------------------------------


def test_b11_an_overwrite_also_removes_what_landed_meanwhile_and_stages_nothing_again(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    source = {"sql": "SELECT id, date'2024-01-01' AS day, uuid() AS name, 0D AS amount FROM range(3)"}
    log = winning("new file", lambda: append(table, rows(5, start=50)))
    result = committed(run(spark, "write", table, source=source, mode="overwrite", log=log))
    assert (result.attempts, ids(table)) == (2, [0, 1, 2])
    assert [step["name"] for step in result.steps].count("write") == 1
    assert any(line.startswith("reused what was staged before: ") for line in log.lines)


def test_a_table_with_other_rules_gets_no_row_that_was_staged_under_the_old_ones(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(10))
    log = winning("new file", lambda: set_property(table, "delta.targetFileSize", "64mb"))
    result = committed(run(spark, "write", table, source=numbers(3, 0), mode="append", log=log))
    assert (result.attempts, len(ids(table))) == (2, 13)
    assert [step["name"] for step in result.steps].count("write") == 2
    assert files_on_disk(table) == live_files(table)


def test_a_killed_write_goes_on_with_the_files_that_it_had_staged(tmp_path: Path, spark: SparkSession) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    source = {"sql": "SELECT id, date'2024-01-01' AS day, uuid() AS name, 0D AS amount FROM range(3)"}
    arguments = {"source": source, "mode": "overwrite", "application": identity}

    with killed_before_commit():
        run(spark, "write", table, **arguments)
    staged = {path for path in files_on_disk(table) - live_files(table) if path.startswith("part-")}
    assert len(staged) >= 1
    result = committed(run(spark, "write", table, **arguments))
    assert ids(table) == [0, 1, 2]
    assert live_files(table) == staged
    assert "write" not in [step["name"] for step in result.steps]
    assert files_on_disk(table) == ever_live(table)


def test_b11_on_conflict_fail_never_replaces_rows_that_its_author_never_saw(
    tmp_path: Path, spark: SparkSession
) -> None:
    table, identity = make_table(tmp_path / "t", rows(10)), application()
    arguments = {"source": numbers(2, 0, 7), "mode": "overwrite", "on_conflict": "fail", "application": identity}
    log = winning("new file", lambda: append(table, rows(5, start=50)))
    error = error_of(run(spark, "write", table, log=log, **arguments))
    assert (error["type"], error["retryable"]) == ("ConcurrentAppend", False)
    assert "on_conflict" in error["message"]
    # Without a clear it is the same work, whose author has not seen them yet.
    assert error_of(run(spark, "write", table, **arguments))["type"] == "ConcurrentAppend"
    assert ids(table) == [*range(10), *range(50, 55)]
    assert committed(run(spark, "write", table, **arguments | {"application": application()})).attempts == 1
    assert ids(table) == [7, 8]


@pytest.mark.parametrize("scope", ["id < 10", "day = date'2024-01-01'"])
def test_b11_a_retry_of_replace_where_replaces_no_row_that_landed_after_its_first_try(
    tmp_path: Path, spark: SparkSession, scope: str
) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    arguments = {"source": numbers(2, 0, 7), "mode": "overwrite", "replace_where": scope, "on_conflict": "fail"}
    for landed, is_in_scope in ((rows(1, start=20, day=day_of(1)), False), (rows(1, start=-5), True)):
        identity = application()
        with killed_before_commit():
            run(spark, "write", table, application=identity, **arguments)
        append(table, landed)
        result = run(spark, "write", table, application=identity, **arguments)
        assert (result.status == "failed") == is_in_scope, result
    assert (error_of(result)["type"], error_of(result)["retryable"]) == ("ConcurrentAppend", False)
    assert ids(table) == [-5, 7, 8, 20]
