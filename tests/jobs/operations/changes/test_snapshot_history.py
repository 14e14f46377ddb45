"""Alone in showing that a table keeps each version of the rows of its snapshots, against lists in Python."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from tests.helpers.depth import in_long
from tests.helpers.jobs import application, committed, error_of, run
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = pa.int64()
DATA = [("k", KEY), ("p", pa.string()), ("v", pa.string())]
MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([*DATA, ("__START_AT", MOMENT), ("__END_AT", MOMENT), ("is_current", pa.bool_())])
Row = tuple[Any, ...]
Versions = list[list[Any]]
KINDS: list[dict[str, Any]] = [
    {},
    {"partition_by": ["p"], "properties": {"delta.enableChangeDataFeed": "true"}},
    {"properties": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}},
    {"properties": {"delta.columnMapping.mode": "name"}, "partition_by": ["is_current"]},
]


def day(number: int) -> dt.datetime:
    return dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(days=number)


def history_of(rows: Versions | list[Row], key: pa.DataType = KEY) -> pa.Table:
    columns, schema = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA], SCHEMA.set(0, pa.field("k", key))
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def source_of(folder: Path, rows: list[Row], key: pa.DataType = KEY) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    names, schema = [name for name, _ in DATA], pa.schema([("k", key), *DATA[1:]])
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema), path)
    return {"format": "parquet", "path": str(path)}


def apply(spark: SparkSession | None, table: Table, source: dict[str, Any], at: int, **more: Any) -> JobResult:
    more = {
        "keys": ["k"],
        "max_deleted_fraction": 1,
        "current_column": "is_current",
        "snapshot_at": day(at).isoformat(),
        **more,
    }
    return run(spark, "apply_snapshot", table, source=source, stored_as_scd_type=2, **more)


def after(versions: Versions, snapshot: dict[int, Row], at: dt.datetime, *, ends_gone: bool) -> Versions:
    """The history after a snapshot, by the definition of a slowly changing dimension."""
    found: Versions = []
    current = {row[0]: row for row in versions if row[4] is None}
    for row in versions:
        new = snapshot.get(row[0])
        ends = row[4] is None and (ends_gone if new is None else tuple(row[:3]) != new)
        found.append([*row[:4], at, False] if ends else row)
    for key, new in snapshot.items():
        if key not in current or tuple(current[key][:3]) != new:
            found.append([*new, at, None, True])
    return found


def check_history(spark: SparkSession | None, folder: Path, seed: int, steps: int, key: pa.DataType = KEY) -> None:
    rng = random.Random(seed)
    hard_deletes = rng.choice(["invalidate", "invalidate", "ignore"])
    table = make_table(folder / "t", history_of([], key), **KINDS[seed % len(KINDS)])
    versions: Versions = []
    snapshot: dict[int, Row] = {}
    for step in range(steps):
        kept = {key: row for key, row in snapshot.items() if rng.random() < 0.7}
        new = {key: (key, rng.choice([None, "x", "y"]), rng.choice([None, "", "a"])) for key in range(20)}
        snapshot = kept | {key: row for key, row in new.items() if rng.random() < 0.4}
        wanted = after(versions, snapshot, day(step), ends_gone=hard_deletes == "invalidate")
        result = apply(
            spark, table, source_of(folder / "in", list(snapshot.values()), key), step, hard_deletes=hard_deletes
        )
        assert result.status == ("committed" if wanted != versions else "nothing_to_do"), result.error
        assert bag(table.to_arrow()) == bag(history_of(wanted, key))
        if wanted != versions:
            ended = sum(old != new for old, new in zip(versions, wanted, strict=False))
            assert result.metrics["numTargetRowsUpdated"] == ended
            assert result.metrics["numTargetRowsInserted"] == len(wanted) - len(versions)
            assert result.metrics["numTargetRowsDeleted"] == 0
        versions = wanted
    again = source_of(folder / "in", list(snapshot.values()), key)
    assert apply(spark, table, again, steps, hard_deletes=hard_deletes).status == "nothing_to_do"


@pytest.mark.parametrize("seed", [0, 1, *in_long("more histories", 2, 3)])
def test_the_table_keeps_each_version_of_a_row(tmp_path: Path, seed: int) -> None:
    check_history(None, tmp_path, seed, 4)


@pytest.mark.spark
@pytest.mark.long("the same with Spark: two histories")
@pytest.mark.parametrize("seed", [1, 3])
def test_the_table_keeps_each_version_of_a_row_with_spark(tmp_path: Path, spark: SparkSession, seed: int) -> None:
    # Of such keys only Spark joins the rows.
    check_history(spark, tmp_path, seed, 3, pa.decimal128(10, 0))


ROWS: list[Row] = [(key, "x", "old") for key in range(10)]
OLD: list[Row] = [*((*row, day(0), None, True) for row in ROWS), (3, "x", "older", day(-9), day(0), False)]


def test_only_current_rows_count_for_the_limit(tmp_path: Path) -> None:
    past = [(key, "x", "old", day(-9), day(-8), False) for key in range(100, 200)]
    table = make_table(tmp_path / "t", history_of([*OLD, *past]))
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS[3:]), 1, max_deleted_fraction=0.29))
    assert (error["type"], "would end 3 of 10 current rows (30 %)" in error["message"]) == ("ExpectationFailed", True)
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS[3:]), 1, max_deleted_rows=2))
    assert (error["type"], error["facts"]["name"]) == ("ExpectationFailed", "max_deleted_rows")
    error = error_of(apply(None, table, source_of(tmp_path / "in", []), 1))
    assert "the snapshot has no rows" in error["message"]
    committed(apply(None, table, source_of(tmp_path / "in", ROWS[3:]), 1, max_deleted_fraction=0.3))


def test_a_file_of_past_versions_alone_is_not_read(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", history_of(OLD))
    append(table, history_of([(key, "x", "old", day(-9), day(-8), False) for key in range(5)]))
    result = committed(apply(None, table, source_of(tmp_path / "in", ROWS[:-1]), 1))
    assert (result.files["considered"], result.files["pruned"]) == (2, 1)


def test_a_snapshot_that_is_older_than_a_row_it_would_end_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", history_of(OLD))
    version = table.latest_version()
    for at, rows in ((0, [*ROWS[:9], (9, "x", "new")]), (-1, ROWS[:9])):
        error = error_of(apply(None, table, source_of(tmp_path / "in", rows), at))
        assert (error["type"], "1 row would end, and began at the time" in error["message"]) == ("InvalidInput", True)
    assert table.latest_version() == version
    assert apply(None, table, source_of(tmp_path / "in", ROWS), -1).status == "nothing_to_do"


def test_a_row_of_which_another_writer_ends_the_version_is_looked_at_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", history_of(OLD))
    new = source_of(tmp_path / "in", [*ROWS[:9], (9, "x", "new")])

    def land(_: object) -> None:
        committed(apply(None, table, source_of(tmp_path / "in", [*ROWS[:9], (9, "x", "theirs")]), 1))

    with before_commit(land):
        committed(apply(None, table, new, 2))
    of_key = sorted(
        (row["v"], row["__START_AT"], row["__END_AT"]) for row in table.to_arrow().to_pylist() if row["k"] == 9
    )
    assert of_key == [("new", day(2), None), ("old", day(0), day(1)), ("theirs", day(1), day(2))]


def test_a_try_that_is_killed_is_continued_with_its_time(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", history_of(OLD))
    work, new = application(), source_of(tmp_path / "in", [*ROWS[:8], (9, "x", "new"), (20, "x", "new")])
    more: dict[str, Any] = {"application": work, "snapshot_at": None}
    began = dt.datetime.now(dt.UTC)
    with killed_before_commit():
        apply(None, table, new, 0, **more)
    killed = dt.datetime.now(dt.UTC)
    committed(apply(None, table, new, 0, **more))
    found = [row for row in table.to_arrow().to_pylist() if row["__START_AT"] > day(0)]
    assert sorted((row["k"], row["v"]) for row in found) == [(9, "new"), (20, "new")]
    (at,) = {row["__START_AT"] for row in found}
    assert began <= at <= killed
    ended = [row for row in table.to_arrow().to_pylist() if row["__END_AT"] == at]
    assert sorted(row["k"] for row in ended) == [8, 9]
    assert apply(None, table, new, 0, **more).status == "already_done"


@pytest.mark.parametrize(
    ("columns", "more", "type_", "said"),
    [
        (["k", "p", "v"], {}, "UnknownColumn", "no column '__START_AT', which start_column names"),
        ([*SCHEMA.names[:5]], {}, "UnknownColumn", "no column 'is_current'"),
        ([*SCHEMA.names, "w"], {}, "SchemaMismatch", "w: the snapshot has no such column"),
        ([*SCHEMA.names[:2], *SCHEMA.names[3:]], {}, "SchemaMismatch", "v: the table has no such column"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_columns_that_do_not_fit_a_history_are_refused(
    tmp_path: Path, columns: list[str], more: dict[str, Any], type_: str, said: str
) -> None:
    rows = history_of(OLD)
    table = make_table(
        tmp_path / "t", pa.table({n: rows.column(n if n in rows.column_names else "v") for n in columns})
    )
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS), 1, **more))
    assert (error["type"], said in error["message"]) == (type_, True), error["message"]


def test_an_empty_text_that_a_partition_stores_as_null_is_no_change(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", SCHEMA.empty_table(), partition_by=["p"])
    source = source_of(tmp_path / "in", [(1, "", "a"), (2, "x", "")])
    committed(apply(None, table, source, 1))
    assert apply(None, table, source, 2).status == "nothing_to_do"
    committed(apply(None, table, source_of(tmp_path / "in", [(1, "y", "a"), (2, "", "")]), 3))
    assert len(table.to_arrow()) == 4


MARKED = SCHEMA.append(pa.field("__IS_DELETED", pa.bool_()))


def marked_after(versions: Versions, snapshot: dict[int, Row], at: dt.datetime, tracked: list[int]) -> Versions:
    """The history after a snapshot in which gone rows are inserted again with a mark."""
    found: Versions = []
    for row in versions:
        new, is_gone = snapshot.get(row[0]), row[6]
        if row[4] is not None or (new is None and is_gone):
            found.append(row)
        elif new is not None and not is_gone and all(row[place] == new[place] for place in tracked):
            found.append([*new, *row[3:]])
        else:
            found.append([*row[:4], at, False, is_gone])
            found.append([*(row[:3] if new is None else new), at, None, True, new is None])
    known = {row[0] for row in versions}
    return found + [[*new, at, None, True, False] for key, new in snapshot.items() if key not in known]


def as_marked(rows: Versions) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in MARKED]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, MARKED, strict=True)], MARKED)


def check_marks(spark: SparkSession | None, folder: Path, seed: int, steps: int, num_keys: int = 20) -> None:
    rng = random.Random(seed)
    tracked = [1] if seed % 2 else [1, 2]
    more: dict[str, Any] = {"hard_deletes": "new_record"}
    more |= {"track_history_column_list": ["P"]} if seed % 2 else {}
    table = make_table(folder / "t", MARKED.empty_table(), **KINDS[seed % len(KINDS)])
    versions: Versions = []
    for step in range(steps):
        drawn = {key: (key, rng.choice([None, "x", "y"]), rng.choice([None, "", "a"])) for key in range(num_keys)}
        snapshot: dict[int, Row] = {key: row for key, row in drawn.items() if rng.random() < 0.6}
        wanted = marked_after(versions, snapshot, day(step), tracked)
        result = committed(apply(spark, table, source_of(folder / "in", list(snapshot.values())), step, **more))
        assert bag(table.to_arrow()) == bag(as_marked(wanted))
        assert result.metrics["numTargetRowsInserted"] == len(wanted) - len(versions)
        versions = wanted
        again = apply(spark, table, source_of(folder / "in", list(snapshot.values())), step + 1, **more)
        assert again.status == "nothing_to_do", again.error


@pytest.mark.parametrize("seed", [0, 1, *in_long("more histories", 2, 3)])
def test_rows_that_are_gone_are_inserted_again_with_a_mark(tmp_path: Path, seed: int) -> None:
    check_marks(None, tmp_path, seed, 4)


@pytest.mark.spark
@pytest.mark.long("the same with Spark")
def test_spark_marks_rows_that_are_gone(tmp_path: Path, spark: SparkSession) -> None:
    check_marks(spark, tmp_path, 1, 3)


def test_marked_rows_count_neither_as_current_nor_as_gone_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", as_marked([[*row, day(0), None, True, None] for row in ROWS]))
    more: dict[str, Any] = {"hard_deletes": "new_record"}
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS[3:]), 1, max_deleted_fraction=0.29, **more))
    assert (error["type"], "would end 3 of 10 current rows (30 %)" in error["message"]) == ("ExpectationFailed", True)
    error = error_of(apply(None, table, source_of(tmp_path / "in", []), 1, **more))
    assert "the snapshot has no rows" in error["message"]
    committed(apply(None, table, source_of(tmp_path / "in", ROWS[3:]), 1, **more))
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS[4:]), 0, **more))
    assert (error["type"], "1 row would end, and began" in error["message"]) == ("InvalidInput", True)
    # One of the seven rows that are not marked is gone, and a marked one returns.
    new = source_of(tmp_path / "in", [*ROWS[:1], *ROWS[4:]])
    error = error_of(apply(None, table, new, 2, max_deleted_fraction=0.14, **more))
    assert "would end 1 of 7 current rows" in error["message"]
    committed(apply(None, table, new, 2, **more))
    current = {row["k"]: row["__IS_DELETED"] for row in table.to_arrow().to_pylist() if row["__END_AT"] is None}
    assert current == {0: False, 1: True, 2: True, 3: True, **dict.fromkeys(range(4, 10))}


def test_a_row_that_another_writer_adds_is_looked_at_before_it_is_marked(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", as_marked([[*row, day(0), None, True, False] for row in ROWS]))
    late = as_marked([[50, "x", "theirs", day(0), None, True, False]])
    with before_commit(lambda _: append(table, late)):
        committed(apply(None, table, source_of(tmp_path / "in", ROWS[1:]), 1, hard_deletes="new_record"))
    marked = [row["k"] for row in table.to_arrow().to_pylist() if row["__IS_DELETED"]]
    assert sorted(marked) == [0, 50]


def test_a_try_that_is_killed_marks_rows_once(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", as_marked([[*row, day(0), None, True, False] for row in ROWS]))
    new = source_of(tmp_path / "in", ROWS[2:])
    more: dict[str, Any] = {"application": application(), "hard_deletes": "new_record"}
    with killed_before_commit():
        apply(None, table, new, 1, **more)
    # Another row comes before the work is continued.
    append(table, as_marked([[50, "x", "theirs", day(0), None, True, False]]))
    committed(apply(None, table, new, 1, **more))
    current = sorted((row["k"], row["__IS_DELETED"]) for row in table.to_arrow().to_pylist() if row["__END_AT"] is None)
    assert current == [(0, True), (1, True), *((key, False) for key in range(2, 10)), (50, True)]
    assert apply(None, table, new, 1, **more).status == "already_done"


def test_a_mark_needs_a_column_and_the_types_of_the_table(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", history_of(OLD))
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS), 1, hard_deletes="new_record"))
    assert (error["type"], "which deleted_column names" in error["message"]) == ("UnknownColumn", True)
    table = make_table(tmp_path / "u", as_marked([]))
    narrow = source_of(tmp_path / "in", ROWS, pa.int32())
    error = error_of(apply(None, table, narrow, 1, hard_deletes="new_record"))
    assert (error["type"], "k: int is not bigint" in error["message"]) == ("SchemaMismatch", True), error
    table = make_table(tmp_path / "w", history_of(OLD).append_column("__IS_DELETED", pa.array(["no"] * len(OLD))))
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS), 1, hard_deletes="new_record"))
    assert (error["type"], "deleted_column must be boolean" in error["message"]) == ("SchemaMismatch", True), error
    real = pa.float64()
    table = make_table(tmp_path / "v", MARKED.set(0, pa.field("k", real)).empty_table())
    error = error_of(apply(None, table, source_of(tmp_path / "in", ROWS, real), 1, hard_deletes="new_record"))
    assert (error["type"], "find the rows that are gone" in error["message"]) == ("UnsupportedFeature", True), error
