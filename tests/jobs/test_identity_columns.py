"""Alone in showing that jobs number the rows of identity columns, each value once, and move the mark with the rows."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.identities import identity_column
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.storage.limits import USUAL
from tests.helpers.depth import depth
from tests.helpers.jobs import (
    application,
    committed,
    delete,
    error_of,
    files_on_disk,
    insert,
    live_files,
    merge,
    run,
    set_property,
    update,
)
from tests.helpers.racing import Killed, before_commit, killed_before_commit, winning
from tests.helpers.rows import append as add_rows
from tests.helpers.staged import discard, publish, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "delta.identity.highWaterMark"
TAG = "delta.identity.schemaUpdate"


def table_in(
    folder: Path, *identities: StructField, partition_by: str | None = None, properties: dict[str, str] | None = None
) -> Table:
    """A table with the columns `day` and `n`, and identity columns: `id` if none is given."""
    columns = [
        *(identities or [identity_column("id")]),
        StructField("day", Primitive.STRING),
        StructField("n", Primitive.LONG),
    ]
    partitions = [] if partition_by is None else [partition_by]
    return Table.create(str(folder), StructType(tuple(columns)), partitions, properties)


def rows(*numbers: int, day: str = "a", **more: list[Any]) -> pa.Table:
    return pa.table({"day": pa.array([day] * len(numbers), pa.string()), "n": pa.array(numbers, pa.int64()), **more})


def file_of(folder: Path, data: pa.Table) -> dict[str, str]:
    """A source of Parquet, which no job needs Spark for."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(data, path)
    return {"format": "parquet", "path": str(path)}


def append(table: Table, *numbers: int, **more: Any) -> JobResult:
    """Append rows without Spark."""
    source = file_of(Path(table.uri.removeprefix("file://")).parent / "sources", rows(*numbers))
    return committed(run(None, "write", table, source=source, **more))


def marks(table: Table, version: int | None = None) -> dict[str, int]:
    schema = table.snapshot(version).delta_schema
    return {field.name: field.metadata[MARK] for field in schema if MARK in field.metadata}


def by_n(table: Table, column: str = "id") -> dict[int, int]:
    """The values of an identity column by `n`, which no two rows share."""
    found = table.to_arrow().to_pylist()
    values = {row["n"]: row[column] for row in found}
    assert len(values) == len(found)
    return dict(sorted(values.items()))


def actions(table: Table, version: int | None = None) -> list[dict[str, Any]]:
    number = table.snapshot().version if version is None else version
    path = Path(table.uri.removeprefix("file://")) / "_delta_log" / f"{number:020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- values ---------------------------------------------------------------------------------------------------------


def test_an_append_numbers_its_rows_and_moves_the_mark_in_the_same_commit(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    append(table, 10, 11, 12)
    assert (by_n(table), marks(table)) == ({10: 1, 11: 2, 12: 3}, {"id": 3})
    found = actions(table)
    assert sorted(key for action in found for key in action) == ["add", "commitInfo", "metaData"]
    assert found[0]["commitInfo"]["tags"][TAG] == "true"
    assert found[0]["commitInfo"]["isBlindAppend"] is True
    append(table, 20)
    assert (by_n(table)[20], marks(table), marks(table, 1)) == (4, {"id": 4}, {"id": 3})


def test_start_and_step_may_be_any_and_each_column_has_its_own(tmp_path: Path) -> None:
    identities = [
        identity_column("down", start=0, step=-7),
        identity_column("up", start=-3, step=5),
        identity_column("edge", start=2**63 - 3),
    ]
    table = table_in(tmp_path / "t", *identities)
    append(table, 1, 2)
    append(table, 3)
    assert by_n(table, "down") == {1: 0, 2: -7, 3: -14}
    assert by_n(table, "up") == {1: -3, 2: 2, 3: 7}
    assert marks(table) == {"down": -14, "up": 7, "edge": 2**63 - 1}
    source = file_of(tmp_path / "sources", rows(4))
    error = error_of(run(None, "write", table, source=source))
    assert (error["type"], error["facts"]["constraint"], error["facts"]["column"]) == (
        "ConstraintViolation",
        "IDENTITY",
        "edge",
    )
    assert table.snapshot().version == 2


def test_a_mark_that_is_no_value_of_the_column_is_passed(tmp_path: Path) -> None:
    for mark, step, first in ((5, 2, 6), (6, 2, 8), (-9, 2, 0), (-4, -3, -6), (9, -3, 0)):
        column = identity_column("id", start=0, step=step)
        table = table_in(tmp_path / f"{mark}", StructField("id", column.type, metadata={**column.metadata, MARK: mark}))
        append(table, 1)
        assert by_n(table) == {1: first}
        assert marks(table) == {"id": first}


def test_only_the_table_chooses_values_generated_always(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    source = file_of(tmp_path / "sources", rows(1, id=[7]))
    error = error_of(run(None, "write", table, source=source))
    assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", "GENERATED ALWAYS AS IDENTITY")
    for clause in (insert(), insert({"id": "s.id", "n": "s.n"})):
        error = error_of(run(None, "merge", table, source=source, on="t.n = s.n", clauses=[clause]))
        assert error["facts"]["constraint"] == "GENERATED ALWAYS AS IDENTITY"
    assert files_on_disk(table) == set()


@pytest.mark.spark
def test_values_that_rows_bring_do_not_move_the_mark(tmp_path: Path, spark: SparkSession) -> None:
    table = table_in(tmp_path / "t", identity_column("id", takes_values=True))
    append(table, 1)
    committed(run(spark, "write", table, source={"sql": "SELECT 100L AS id, 'a' AS day, 2L AS n"}))
    assert (by_n(table), marks(table)) == ({1: 1, 2: 100}, {"id": 1})
    append(table, 3)
    assert by_n(table)[3] == 2
    # A clause that brings a value, and one that leaves it to the table.
    clauses = [insert({"id": "s.k", "n": "s.k"}, "s.k = 50"), insert({"n": "s.k"})]
    committed(merge(spark, table, "SELECT explode(array(50L, 60L)) AS k", *clauses, on="t.n = s.k"))
    found = by_n(table)
    assert found[50] == 50
    assert found[60] in (3, 4)
    assert marks(table)["id"] >= found[60]


def test_no_update_assigns_an_identity_column(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t", identity_column("id", takes_values=True))
    append(table, 1)
    assert error_of(run(None, "update", table, set={"id": "5"}))["facts"]["feature"] == "identityColumns"
    source = file_of(tmp_path / "sources", rows(1, id=[7]))
    for assigned in ("*", {"id": "s.id"}):
        error = error_of(run(None, "merge", table, source=source, on="t.n = s.n", clauses=[update(assigned)]))
        assert error["facts"]["feature"] == "identityColumns"
    committed(run(None, "update", table, set={"n": "n + 1"}))
    assert (by_n(table), marks(table)) == ({2: 1}, {"id": 1})


@pytest.mark.parametrize("mark", ["7", 7.5, True, None, [7], 2**63, -(2**63) - 1], ids=str)
def test_a_mark_that_is_no_bigint_is_an_error_and_no_first_value(tmp_path: Path, mark: Any) -> None:
    column = identity_column("id")
    table = table_in(tmp_path / "t", StructField("id", column.type, metadata={**column.metadata, MARK: mark}))
    source = file_of(tmp_path / "sources", rows(1))
    works: tuple[dict[str, Any], ...] = (
        {"operation": "write"},
        {"operation": "merge", "on": "t.n = s.n", "clauses": [insert()]},
    )
    for work in works:
        error = error_of(run(None, work.pop("operation"), table, source=source, **work))
        assert error["type"] == "CorruptTable"
        assert "mark" in error["message"].partition(".")[0]
    assert table.snapshot().version == 0


# --- every operation that adds rows ---------------------------------------------------------------------------------

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableRowTracking": "true",
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"partition_by": "day"},
    "mapped": {"properties": {"delta.columnMapping.mode": "name"}},
    "vectors, feed and row ids": {"properties": PROPERTIES},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_merge_upsert_and_overwrites_number_the_rows_that_they_add(tmp_path: Path, layout: dict[str, Any]) -> None:
    table = table_in(tmp_path / "t", **layout)
    sources = tmp_path / "sources"
    append(table, 1, 2, 3)
    assert by_n(table) == {1: 1, 2: 2, 3: 3}
    both = file_of(sources, rows(2, 3, 40, 41))
    clauses = [update({"day": "s.day"}), insert()]
    committed(run(None, "merge", table, source=both, on="t.n = s.n", clauses=clauses))
    assert (by_n(table), marks(table)) == ({1: 1, 2: 2, 3: 3, 40: 4, 41: 5}, {"id": 5})
    committed(run(None, "upsert", table, source=file_of(sources, rows(41, 50)), keys=["n"]))
    assert (by_n(table), marks(table)) == ({1: 1, 2: 2, 3: 3, 40: 4, 41: 5, 50: 6}, {"id": 6})
    replacing = file_of(sources, rows(50, 51))
    committed(run(None, "write", table, source=replacing, mode="overwrite", replace_using=["n"]))
    assert by_n(table) == {1: 1, 2: 2, 3: 3, 40: 4, 41: 5, 50: 7, 51: 8}
    committed(run(None, "merge", table, source=both, on="t.n = s.n", clauses=[delete(), insert()]))
    assert by_n(table) == {1: 1, 50: 7, 51: 8}
    assert marks(table) == {"id": 8}, "no row was inserted"
    committed(run(None, "write", table, source=file_of(sources, rows(60)), mode="overwrite"))
    assert (by_n(table), marks(table)) == ({60: 9}, {"id": 9})
    if "properties" in layout and "delta.enableChangeDataFeed" in layout["properties"]:
        changes = table.changes(1).to_pylist()
        values = {(row["n"], row["id"]) for row in changes if row["_change_type"] == "insert"}
        assert values == {(1, 1), (2, 2), (3, 3), (40, 4), (41, 5), (50, 6), (50, 7), (51, 8), (60, 9)}


def test_rows_that_only_spark_writes_are_not_read_without_it(tmp_path: Path) -> None:
    """A stream of a hook's caller can be read once: the try without Spark must leave it alone."""
    table = table_in(tmp_path / "t", identity_column("id"), identity_column("own", takes_values=True))
    result = run(None, "write", table, source=file_of(tmp_path / "sources", rows(1, own=[7])))
    assert error_of(result)["facts"]["needs_spark"]
    assert "materialize" not in [step["name"] for step in result.steps]


@pytest.mark.parametrize("layout", [{}, {"partition_by": "day"}], ids=["plain", "partitioned"])
def test_a_source_without_rows_moves_no_mark(tmp_path: Path, layout: dict[str, Any]) -> None:
    table = table_in(tmp_path / "t", **layout)
    append(table, 1)
    nothing = file_of(tmp_path / "sources", rows())
    run(None, "write", table, source=nothing)
    run(None, "merge", table, source=nothing, on="t.n = s.n", clauses=[insert()])
    assert (by_n(table), marks(table)) == ({1: 1}, {"id": 1})
    committed(run(None, "write", table, source=nothing, mode="overwrite"))
    assert (by_n(table), marks(table)) == ({}, {"id": 1})


def test_rows_that_an_expectation_drops_leave_gaps_that_the_mark_is_past(tmp_path: Path) -> None:
    table, task = table_in(tmp_path / "t"), application()
    append(table, 1, 2, 3, 10, 11, expect_or_drop={"large": "n >= 10"})
    assert (by_n(table), marks(table)) == ({10: 4, 11: 5}, {"id": 5})
    # A retry knows the number of all rows from the saved work.
    source = file_of(tmp_path / "sources", rows(4, 20))
    work: dict[str, Any] = {"source": source, "application": task, "expect_or_drop": {"large": "n >= 10"}}
    with killed_before_commit():
        run(None, "write", table, **work)
    log = winning("never", lambda: None)
    committed(run(None, "write", table, log=log, **work))
    assert any("reused what was staged before" in line for line in log.lines)
    assert (by_n(table), marks(table)) == ({10: 4, 11: 5, 20: 7}, {"id": 7})


def test_an_overwrite_of_partitions_numbers_its_rows(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t", partition_by="day")
    append(table, 1)
    source = file_of(tmp_path / "sources", pa.concat_tables([rows(2), rows(3, 4, day="b")]))
    committed(run(None, "write", table, source=source, mode="overwrite_partitions"))
    assert (by_n(table), marks(table)) == ({2: 2, 3: 3, 4: 4}, {"id": 4})


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_many_tasks_of_spark_number_their_rows_without_a_value_twice(tmp_path: Path, spark: SparkSession) -> None:
    table = table_in(tmp_path / "t", partition_by="day", properties={"delta.constraints.positive": "id > 0"})
    source = {"sql": "SELECT concat('d', id % 3) AS day, id AS n FROM range(0, 1000, 1, 16)"}
    committed(run(spark, "write", table, source=source))
    assert sorted(by_n(table).values()) == list(range(1, 1001))
    assert marks(table) == {"id": 1000}
    more = "SELECT concat('d', id % 3) AS day, id AS n FROM range(500, 1500, 1, 16)"
    committed(merge(spark, table, more, update({"day": "s.day"}), insert(), on="t.n = s.n"))
    assert sorted(by_n(table).values()) == list(range(1, 1501))
    committed(run(spark, "write", table, source=source, mode="overwrite", replace_where="n < 1000"))
    found = by_n(table)
    assert (len(set(found.values())), marks(table)) == (1500, {"id": 2500})
    assert all((n < 1000) == (1500 < value <= 2500) for n, value in found.items())


@pytest.mark.spark
def test_an_insert_may_take_a_value_of_the_table_by_default(tmp_path: Path, spark: SparkSession) -> None:
    table = table_in(tmp_path / "t")
    committed(merge(spark, table, "SELECT 5L AS k", insert({"id": "DEFAULT", "n": "s.k"}), on="t.n = s.k"))
    assert by_n(table) == {5: 1}


# --- lost races -----------------------------------------------------------------------------------------------------


def take_values(table: Table, count: int) -> None:
    """Another writer hands out so many values."""
    tx = table.begin()
    tx.move_marks({"id": marks(table).get("id", 0) + count})
    tx.commit("CHANGE COLUMN")


WORKS: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
    "append": lambda source: {"operation": "write", "source": source},
    "overwrite": lambda source: {"operation": "write", "source": source, "mode": "overwrite"},
    "merge": lambda source: {"operation": "merge", "source": source, "on": "t.n = s.n", "clauses": [insert()]},
    "upsert": lambda source: {"operation": "upsert", "source": source, "keys": ["n"]},
}


@pytest.mark.parametrize("name", WORKS)
def test_a_race_for_the_values_is_lost_and_the_rows_are_numbered_again(tmp_path: Path, name: str) -> None:
    table = table_in(tmp_path / "t")
    append(table, 1)
    source = file_of(tmp_path / "mine", rows(10, 11))
    work, log = WORKS[name](source), winning("never", lambda: None)
    with before_commit(lambda tx: append(table, 20, 21)):
        result = committed(run(None, work.pop("operation"), table, log=log, **work))
    assert result.attempts == 2
    found = by_n(table)
    assert (found[10], found[11]) == (4, 5)
    assert marks(table) == {"id": 5}
    assert len(set(found.values())) == len(found)
    # The files with the lost values are gone.
    assert {path for path in files_on_disk(table) if "/" not in path} >= live_files(table)
    assert sum("part-" in path for path in files_on_disk(table)) == len(live_files(table)) + 2 * (name == "overwrite")


@pytest.mark.parametrize("name", WORKS)
def test_a_job_that_has_lost_its_values_reserves_the_next_ones(tmp_path: Path, name: str) -> None:
    """Other writers number rows before each of its commits: it loses to the first of them only."""
    table = table_in(tmp_path / "t")
    work = WORKS[name](file_of(tmp_path / "mine", rows(10, 11)))
    with before_commit(lambda tx: take_values(table, 100), times=3):
        result = committed(run(None, work.pop("operation"), table, **work))
    assert result.attempts == 2
    assert (by_n(table), marks(table)) == ({10: 101, 11: 102}, {"id": 202})
    operations = [action["commitInfo"]["operation"] for n in range(1, 5) for action in actions(table, n)[:1]]
    assert operations[:3] == ["CHANGE COLUMN", "RESERVE IDENTITY", "CHANGE COLUMN"]


@pytest.mark.parametrize("name", WORKS)
def test_a_job_that_is_killed_after_it_reserved_values_leaves_a_gap_at_most(tmp_path: Path, name: str) -> None:
    table, task = table_in(tmp_path / "t"), application()
    work, log = WORKS[name](file_of(tmp_path / "mine", rows(10, 11))), winning("never", lambda: None)
    operation = work.pop("operation")

    def die() -> None:
        raise Killed

    landing = [lambda: take_values(table, 7), die]
    with before_commit(lambda tx: landing.pop(0)(), times=2), pytest.raises(Killed):
        run(None, operation, table, application=task, **work)
    assert marks(table) == {"id": 9}
    committed(run(None, operation, table, application=task, log=log, **work))
    found = by_n(table)
    assert sorted(found) == [10, 11]
    assert sorted(found.values()) in ([8, 9], [10, 11])
    assert marks(table)["id"] == max(9, *found.values())


def test_reserved_values_are_not_those_of_a_column_that_takes_its_place(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t", properties={"delta.columnMapping.mode": "name"})

    def replace_column() -> None:
        tx = table.begin()
        assert tx.metadata is not None
        schema = json.loads(tx.metadata.schema_string or "")
        [column] = [field for field in schema["fields"] if field["name"] == "id"]
        del column["metadata"][MARK]
        column["metadata"] |= {"delta.columnMapping.physicalName": "col-new", "delta.columnMapping.id": 9}
        configuration = {**tx.metadata.configuration, "delta.columnMapping.maxColumnId": "9"}
        changed = {"schema_string": json.dumps(schema), "configuration": configuration}
        tx.set_metadata(msgspec.structs.replace(tx.metadata, **changed), is_checked=True)
        tx.commit("CHANGE COLUMNS")

    landing = [lambda: take_values(table, 7), replace_column]
    with before_commit(lambda tx: landing.pop(0)(), times=2):
        result = committed(run(None, "write", table, source=file_of(tmp_path / "mine", rows(10, 11))))
    assert result.attempts == 3
    assert (by_n(table), marks(table)) == ({10: 1, 11: 2}, {"id": 2})


def test_rows_are_not_numbered_once_the_table_has_lost_the_column(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t", properties={"delta.columnMapping.mode": "name"})
    source = file_of(tmp_path / "mine", rows(10, 11))
    with before_commit(lambda tx: committed(run(None, "alter", table, drop_columns=["id"]))):
        committed(run(None, "write", table, source=source))
    assert table.to_arrow().sort_by("n").to_pylist() == [{"day": "a", "n": 10}, {"day": "a", "n": 11}]


def test_the_rows_are_materialized_once_and_the_source_is_not_read_again(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    source = file_of(tmp_path / "mine", rows(10, 11))

    def land(tx: object) -> None:
        append(table, 20)
        Path(source["path"]).unlink()

    with before_commit(land):
        committed(run(None, "write", table, source=source))
    assert by_n(table) == {10: 2, 11: 3, 20: 1}


@pytest.mark.parametrize("name", WORKS)
def test_a_race_that_leaves_the_mark_keeps_the_staged_files(tmp_path: Path, name: str) -> None:
    table = table_in(tmp_path / "t")
    work, log = WORKS[name](file_of(tmp_path / "mine", rows(10, 11))), winning("never", lambda: None)
    with before_commit(lambda tx: set_property(table, "delta.checkpointPolicy", "classic")):
        result = committed(run(None, work.pop("operation"), table, log=log, **work))
    assert result.attempts == 2
    assert any("reused what was staged before" in line for line in log.lines), log.lines
    assert (by_n(table), marks(table)) == ({10: 1, 11: 2}, {"id": 2})


@pytest.mark.parametrize("moved", [False, True], ids=["the mark stayed", "the mark moved"])
@pytest.mark.parametrize("name", WORKS)
def test_a_killed_try_leaves_values_that_the_next_one_takes_if_they_are_free(
    tmp_path: Path, name: str, moved: bool
) -> None:
    table, task = table_in(tmp_path / "t"), application()
    work, log = WORKS[name](file_of(tmp_path / "mine", rows(10, 11))), winning("never", lambda: None)
    operation = work.pop("operation")
    with killed_before_commit():
        run(None, operation, table, application=task, **work)
    if moved:
        append(table, 20)
    committed(run(None, operation, table, application=task, log=log, **work))
    assert any("resuming an earlier try" in line for line in log.lines)
    assert any("reused what was staged before" in line for line in log.lines) is not moved
    found = by_n(table)
    assert (found[10], found[11]) == ((2, 3) if moved else (1, 2))
    assert marks(table) == {"id": 3 if moved else 2}
    again = run(None, operation, table, application=task, **work)
    assert (again.status, by_n(table)) == ("already_done", found)


@pytest.mark.spark
def test_a_bucket_that_inserts_less_moves_the_values_of_the_next_ones(tmp_path: Path, spark: SparkSession) -> None:
    """The winner hands out no value, so the mark stays, and the first buckets keep their files."""
    table = table_in(tmp_path / "t", identity_column("id", takes_values=True))
    source = "SELECT 'a' AS day, id AS n FROM range(0, 100, 1, 4)"
    log = winning("never", lambda: None)
    with before_commit(lambda tx: add_rows(table, [{"id": 1000, "day": "a", "n": 60}])):
        limits = dataclasses.replace(USUAL, bucket_bytes=1)
        merged = merge(spark, table, source, insert(), on="t.n = s.n", limits=limits, log=log)
    assert committed(merged).attempts == 2
    assert any("reused what was staged before" in line for line in log.lines), log.lines
    assert any("not used of what was staged before" in line for line in log.lines), log.lines
    found = by_n(table)
    assert found.pop(60) == 1000
    assert sorted(found.values()) == list(range(1, 100))
    assert marks(table) == {"id": 99}


@pytest.mark.seeded
def test_eight_racing_writers_never_hand_out_a_value_twice(tmp_path: Path) -> None:
    table, writers, appends = table_in(tmp_path / "t", identity_column("id", start=5, step=3)), 8, depth(2, 12)
    start = threading.Barrier(writers)

    def write(writer: int) -> None:
        start.wait()
        for number in range(appends):
            first = (writer * appends + number) * 10
            source = file_of(tmp_path / f"writer-{writer}", rows(*range(first, first + 1 + number % 3)))
            operation, more = "write", {}
            if writer % 2:
                operation, more = "merge", {"on": "t.n = s.n", "clauses": [insert()]}
            committed(run(None, operation, table, source=source, **more))

    with ThreadPoolExecutor(writers) as pool:
        for done in [pool.submit(write, writer) for writer in range(writers)]:
            done.result()
    values = sorted(by_n(table).values())
    assert values == list(range(5, 5 + 3 * len(values), 3))
    assert marks(table) == {"id": values[-1]}
    for version in range(1, table.snapshot().version + 1):
        held = table.to_arrow(version=version).column("id").to_pylist()
        assert marks(table, version)["id"] >= max(held, default=0)


def test_a_staged_change_has_values_of_its_own_and_meets_no_writer_that_numbers_rows(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    append(table, 10)
    source = file_of(tmp_path / "sources", rows(20, 21))
    first, second = (stage(name, table, source=source, **more) for name, more in WAITING.items())
    append(table, 30, 31)
    assert sorted(by_n(table)) == [10, 30, 31]
    discard(second)
    committed(publish(first))
    append(table, 40)
    values = by_n(table)
    assert sorted(values) == [10, 20, 21, 30, 31, 40]
    assert len(set(values.values())) == 6
    assert [entry["operation"] for entry in table.history()].count("RESERVE IDENTITY") == 2


def test_a_staged_change_that_adds_a_column_is_made_on_the_version_after_its_reservation(tmp_path: Path) -> None:
    table = table_in(tmp_path / "t")
    append(table, 10)
    source = file_of(tmp_path / "sources", rows(20, 21, more=[1, 2]))
    committed(publish(stage("write", table, source=source, schema_evolution=True)))
    assert (by_n(table), marks(table)) == ({10: 1, 20: 2, 21: 3}, {"id": 3})
    assert table.to_arrow().column("more").to_pylist().count(None) == 1


WAITING: dict[str, dict[str, Any]] = {"write": {}, "upsert": {"keys": ["n"]}}
