"""Alone in showing that a table gets the rows of a snapshot, against dictionaries, and what a snapshot must not do."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from tests.helpers.jobs import application, committed, error_of, live_files, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = pa.int64()
SCHEMA = pa.schema([("k", KEY), ("p", pa.string()), ("v", pa.string()), ("n", pa.int32()), ("f", pa.float64())])
Row = tuple[Any, ...]
KINDS: list[dict[str, Any]] = [
    {},
    {"partition_by": ["p"]},
    {"properties": {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}, "partition_by": ["p"]},
    {"properties": {"delta.enableRowTracking": "true"}},
]


def table_of(rows: list[Row], key: pa.DataType = KEY) -> pa.Table:
    columns, schema = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA], SCHEMA.set(0, pa.field("k", key))
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def source_of(folder: Path, rows: list[Row] | pa.Table, key: pa.DataType = KEY) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(rows if isinstance(rows, pa.Table) else table_of(rows, key), path)
    return {"format": "parquet", "path": str(path)}


def apply(spark: SparkSession | None, table: Table, source: dict[str, Any], **more: Any) -> JobResult:
    more = {"keys": ["k"], "max_deleted_fraction": 1, **more}
    return run(spark, "apply_snapshot", table, source=source, **more)


def drawn(rng: random.Random, before: dict[int, Row]) -> dict[int, Row]:
    """A snapshot with rows that are new, that stay, that have changed in one column, and without some."""
    found = {}
    for key in range(24):
        row = before.get(key)
        if row is None or rng.random() < 0.3:
            value = rng.choice([None, "", "a", "é"])
            number = rng.choice([None, 0.0, 1.5, float("nan"), float("inf")])
            row = (key, rng.choice([None, "x", "y"]), value, rng.choice([None, 1, 2]), number)
        if rng.random() < 0.8:
            found[key] = row
    return found


def same(one: Row, other: Row) -> bool:
    return repr(one) == repr(other)


def changed_rows(table: Table, version: int) -> Counter[str]:
    found = table.changes(version, version)
    columns = [*SCHEMA.names, "_change_type"]
    rows = found.select(columns).to_pylist()
    return Counter(repr((int(row["k"]), *(row[name] for name in columns[1:]))) for row in rows)


def check_history(spark: SparkSession | None, folder: Path, seed: int, steps: int, key: pa.DataType = KEY) -> None:
    rng = random.Random(seed)
    kind, hard_deletes = KINDS[seed % len(KINDS)], rng.choice(["delete", "delete", "ignore"])
    table = make_table(folder / "t", table_of([], key), **kind)
    rows: dict[int, Row] = {}
    for _ in range(steps):
        snapshot = drawn(rng, rows)
        wanted = snapshot if hard_deletes == "delete" else {**rows, **snapshot}
        updated = [key for key, row in snapshot.items() if key in rows and not same(row, rows[key])]
        counts = (len(wanted.keys() - rows.keys()), len(updated), len(rows.keys() - wanted.keys()))
        version = table.latest_version()
        source = source_of(folder / "in", list(snapshot.values()), key)
        result = apply(spark, table, source, hard_deletes=hard_deletes)
        if not any(counts):
            assert (result.status, table.latest_version()) == ("nothing_to_do", version), result.error
            continue
        committed(result)
        names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
        assert tuple(result.metrics[name] for name in names) == counts
        assert bag(table.to_arrow()) == bag(table_of(list(wanted.values()), key))
        if "delta.enableChangeDataFeed" in kind.get("properties", {}):
            assert changed_rows(table, version + 1) == Counter(
                repr((*row, change))
                for change, of_kind in {
                    "insert": [row for key, row in wanted.items() if key not in rows],
                    "delete": [row for key, row in rows.items() if key not in wanted],
                    "update_preimage": [rows[key] for key in updated],
                    "update_postimage": [wanted[key] for key in updated],
                }.items()
                for row in of_kind
            )
        rows = wanted


@pytest.mark.parametrize("seed", range(5))
def test_the_table_follows_its_snapshots(tmp_path: Path, seed: int) -> None:
    check_history(None, tmp_path, seed, 3)


@pytest.mark.spark
@pytest.mark.long("the same with Spark: two histories")
@pytest.mark.parametrize("seed", [2, 3])
def test_the_table_follows_its_snapshots_with_spark(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    # Of such keys only Spark joins the rows.
    check_history(spark, tmp_path, seed, 3, pa.decimal128(10, 0))


OLD = [(key, "x", "old", 1, 0.5) for key in range(10)]


def test_a_snapshot_without_a_change_makes_no_version(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    assert apply(None, table, source_of(tmp_path / "in", OLD[::-1])).status == "nothing_to_do"
    assert table.latest_version() == 1


def test_a_file_without_a_change_stays(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    append(table, table_of([(20, "x", "old", 1, 0.5)]))
    files = live_files(table)
    committed(apply(None, table, source_of(tmp_path / "in", [*OLD, (20, "x", "new", 1, 0.5)])))
    assert len(files & live_files(table)) == 1


@pytest.mark.parametrize(("share", "fails"), [(0.3, False), (0.29, True), (0, True)])
def test_half_a_snapshot_does_not_delete_half_a_table(tmp_path: Path, share: float, *, fails: bool) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    result = apply(None, table, source_of(tmp_path / "in", OLD[3:]), max_deleted_fraction=share)
    if fails:
        error = error_of(result)
        assert (error["type"], error["facts"]["name"]) == ("ExpectationFailed", "max_deleted_fraction")
        assert "would delete 3 of the 10 rows" in error["message"]
        assert table.latest_version() == 1
    else:
        committed(result)
        assert bag(table.to_arrow()) == bag(table_of(OLD[3:]))


def test_a_snapshot_without_rows_deletes_none(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    error = error_of(apply(None, table, source_of(tmp_path / "in", [])))
    assert (error["type"], "the snapshot has no rows, and would delete 10 rows" in error["message"]) == (
        "ExpectationFailed",
        True,
    ), error
    assert table.latest_version() == 1
    assert apply(None, table, source_of(tmp_path / "in", []), hard_deletes="ignore").status == "nothing_to_do"
    empty = make_table(tmp_path / "empty", table_of([]))
    assert apply(None, empty, source_of(tmp_path / "in", [])).status == "nothing_to_do"


def test_a_snapshot_of_a_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of([*OLD, (50, "y", "kept", 1, 0.5)]), partition_by=["p"])
    more = {"partition_predicate": "p = 'x'", "max_deleted_fraction": 0.5}
    committed(apply(None, table, source_of(tmp_path / "in", OLD[:5]), **more))
    assert bag(table.to_arrow()) == bag(table_of([*OLD[:5], (50, "y", "kept", 1, 0.5)]))
    error = error_of(apply(None, table, source_of(tmp_path / "in", [(51, "y", "out", 1, 0.5)]), **more))
    assert error["type"] in ("PartitionMismatch", "ExpectationFailed"), error


def test_keys_that_identify_no_single_row_are_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    twice = [*OLD, (3, "x", "again", 7, 0.5)]
    error = error_of(apply(None, table, source_of(tmp_path / "in", twice)))
    assert (error["type"], "1 key (k)" in error["message"]) == ("AmbiguousMerge", True)
    error = error_of(apply(None, table, source_of(tmp_path / "in", [*OLD, (None, "x", "no key", 7, 0.5)])))
    assert (error["type"], "1 of 11 source rows have NULL" in error["message"]) == ("SchemaMismatch", True)
    choice = {"deduplicate_by": ["k"], "deduplicate_order_by": ["n DESC"]}
    committed(apply(None, table, source_of(tmp_path / "in", twice), **choice))
    assert bag(table.to_arrow()) == bag(table_of([*OLD[:3], twice[-1], *OLD[4:]]))
    error = error_of(apply(None, table, source_of(tmp_path / "in", OLD), keys=["gone"]))
    assert error["type"] == "UnknownColumn"


def test_a_row_that_an_expectation_drops_counts_as_deleted(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    snapshot = source_of(tmp_path / "in", [*OLD[:9], (9, "x", "bad", 1, 0.5)])
    more: dict[str, Any] = {"expect_or_drop": {"good": "v <> 'bad'"}}
    error = error_of(apply(None, table, snapshot, max_deleted_fraction=0.05, **more))
    assert error["facts"]["name"] == "max_deleted_fraction"
    committed(apply(None, table, snapshot, max_deleted_fraction=0.1, **more))
    assert bag(table.to_arrow()) == bag(table_of(OLD[:9]))


def test_a_table_of_keys_alone_gets_and_loses_rows(tmp_path: Path) -> None:
    def keys(*values: int) -> pa.Table:
        return pa.table({"k": pa.array(values, pa.int64())})

    table = make_table(tmp_path / "t", keys(1, 2, 3))
    committed(apply(None, table, source_of(tmp_path / "in", keys(2, 3, 4))))
    assert sorted(table.to_arrow().column("k").to_pylist()) == [2, 3, 4]


def test_rows_that_land_meanwhile_are_not_in_the_snapshot(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    snapshot = source_of(tmp_path / "in", [*OLD[:9], (30, "x", "new", 1, 0.5)])
    with before_commit(lambda _: append(table, table_of([(30, "x", "theirs", 1, 0.5), (31, "x", "theirs", 1, 0.5)]))):
        result = committed(apply(None, table, snapshot))
    assert result.attempts == 2
    assert bag(table.to_arrow()) == bag(table_of([*OLD[:9], (30, "x", "new", 1, 0.5)]))


def test_a_try_that_is_killed_is_continued_and_done_once(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", table_of(OLD))
    snapshot = source_of(tmp_path / "in", [*OLD[:8], (30, "x", "new", 1, 0.5)])
    work = application()
    with killed_before_commit():
        apply(None, table, snapshot, application=work)
    assert bag(table.to_arrow()) == bag(table_of(OLD))
    lines: list[str] = []
    committed(apply(None, table, snapshot, application=work, log=lines.append))
    assert any(line.startswith("resuming an earlier try") for line in lines)
    assert bag(table.to_arrow()) == bag(table_of([*OLD[:8], (30, "x", "new", 1, 0.5)]))
    assert apply(None, table, snapshot, application=work).status == "already_done"


@pytest.mark.spark
@pytest.mark.long("seven Spark jobs")
def test_with_spark_values_of_all_types_are_compared_as_the_table_stores_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    rows = (
        "SELECT * FROM VALUES (1L, '07', map('a', 1), named_struct('a', 1, 'b', array('x', NULL)), double('NaN')), "
        "(2L, '8', NULL, NULL, NULL), (3L, '9', map('a', 1, 'b', NULL), named_struct('a', 1, 'b', array()), 0D) "
        "AS rows(id, s, m, st, d)"
    )
    folder = tmp_path / "t"
    committed(run(spark, "write", folder, source={"sql": rows}))
    table = Table.open(folder)
    assert apply(spark, table, {"sql": rows}, keys=["id"]).status == "nothing_to_do"
    # Of other types: texts are compared with what would be stored.
    other = f"SELECT CAST(id AS INT) AS id, CAST(s AS INT) AS s, m, st, d, id > 2 AS seen FROM ({rows})"
    result = committed(apply(spark, table, {"sql": other}, keys=["id"], schema_evolution=True))
    assert result.metrics["numTargetRowsUpdated"] == 3
    assert result.metrics["numTargetRowsDeleted"] == 0
    found = {row["id"]: (row["s"], row["seen"]) for row in table.to_arrow().to_pylist()}
    assert found == {1: ("7", False), 2: ("8", False), 3: ("9", True)}
    changed = other.replace("map('a', 1)", "map('a', 2)").replace("array()", "array('y')")
    result = committed(apply(spark, table, {"sql": changed}, keys=["id"]))
    assert result.metrics["numTargetRowsUpdated"] == 2
    assert apply(spark, table, {"sql": changed}, keys=["id"]).status == "nothing_to_do"


def test_a_snapshot_of_a_table_with_partitions_of_bytes_needs_no_spark(tmp_path: Path) -> None:
    # Partitions store an empty value as NULL.
    rows = pa.table({"k": [1, 2, 3], "p": [b"x", b"", None], "v": ["a", "b", "c"]})
    table = make_table(tmp_path / "t", rows.schema.empty_table(), partition_by=["p"])
    source = source_of(tmp_path / "in", rows)
    committed(apply(None, table, source))
    assert apply(None, table, source).status == "nothing_to_do"
