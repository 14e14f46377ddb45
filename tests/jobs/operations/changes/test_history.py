"""Alone in showing that the history of rows is what the ordered history of their events leaves."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.depth import WHOLE
from tests.helpers.jobs import application, committed, error_of, live_files, run
from tests.helpers.racing import killed, winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = pa.schema(
    [("id", pa.int64()), ("at", pa.int32()), ("name", pa.string()), ("note", pa.float64()), ("op", pa.string())]
)
ROWS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("note", pa.float64()),
        ("__START_AT", pa.int32()),
        ("__END_AT", pa.int32()),
        ("current", pa.bool_()),
    ]
)
ARGUMENTS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op", "at"],
    "stored_as_scd_type": 2,
    "current_column": "current",
}

Event = tuple[int, int, str | None, float | None, str]
Row = tuple[Any, ...]


def empty(path: Path, **more: Any) -> Table:
    return make_table(path, ROWS.empty_table(), **more)


def apply(table: Table, rows: list[Event], spark: SparkSession | None = None, **more: Any) -> Any:
    path = Path(table.uri.removeprefix("file://")).parent / "events.parquet"
    pq.write_table(pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], EVENTS), path)
    return run(spark, "apply_changes", table, source={"format": "parquet", "path": str(path)}, **{**ARGUMENTS, **more})


def rows_of(table: Table) -> list[Row]:
    found = [tuple(row[name] for name in ROWS.names) for row in table.to_arrow().to_pylist()]
    return sorted(found, key=lambda row: (row[0], row[3]))


def wanted(history: list[Event], tracked: tuple[int, ...] = (2, 3)) -> list[Row]:
    """The plain reference: the events of each key one by one, in their order."""
    rows: list[list[Any]] = []
    for key in sorted({event[0] for event in history}):
        before: Event | None = None
        for event in sorted({event for event in history if event[0] == key}, key=lambda each: each[1]):
            is_open = before is not None and before[4] != "d"
            if event[4] == "d":
                if is_open:
                    rows[-1][4:6] = [event[1], False]
            elif is_open and before is not None and all(before[place] == event[place] for place in tracked):
                rows[-1][1:3] = [event[2], event[3]]
            else:
                if is_open:
                    rows[-1][4:6] = [event[1], False]
                rows.append([key, event[2], event[3], event[1], None, True])
            before = event
    return [tuple(row) for row in rows]


def drawn(rng: random.Random, num_keys: int) -> list[list[Event]]:
    """The batches in which a history of each key comes: in any order, late, and more than once."""
    batches: list[list[Event]] = [[] for _ in range(4)]
    for key in range(num_keys):
        history = [
            (key, at, rng.choice([None, "a", "b"]), rng.choice([None, 1.5]), rng.choice("uuuud")) for at in range(7)
        ]
        history = rng.sample(history, rng.randint(1, len(history)))
        for event in (*history, *rng.choices(history, k=rng.randint(0, 3))):
            rng.choice(batches).append(event)
    for batch in batches:
        rng.shuffle(batch)
    return batches


def check_histories(
    table: Table, batches: list[list[Event]], spark: SparkSession | None = None, *, is_tracked_by_name: bool = False
) -> None:
    more = {"track_history_column_list": ["name"]} if is_tracked_by_name else {}
    before: list[Event] = []
    for batch in batches:
        before += batch
        result = apply(table, batch, spark, **more)
        assert result.status in ("committed", "nothing_to_do"), result.error
        assert rows_of(table) == wanted(before, (2,) if is_tracked_by_name else (2, 3))


LAYOUTS: list[dict[str, Any]] = [
    {"properties": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}},
    {"partition_by": ["name"]},
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_the_history_is_that_of_the_ordered_events(number: int, tmp_path: Path) -> None:
    table = empty(tmp_path / "t", **LAYOUTS[number])
    batches = drawn(random.Random(number), 60)
    check_histories(table, batches, is_tracked_by_name=number == 1)
    version = table.latest_version()
    more = {"track_history_column_list": ["name"]} if number == 1 else {}
    assert apply(table, batches[0], **more).status == "nothing_to_do"
    assert table.latest_version() == version


@pytest.mark.long("ten thousand histories")
@pytest.mark.parametrize("is_tracked_by_name", [False, True])
def test_ten_thousand_histories_are_ordered(is_tracked_by_name: bool, tmp_path: Path) -> None:
    batches = drawn(random.Random(3), 5000 if WHOLE else 1000)
    check_histories(empty(tmp_path / "t"), batches, is_tracked_by_name=is_tracked_by_name)


@pytest.mark.spark
@pytest.mark.long("ten thousand histories by Spark")
def test_spark_orders_ten_thousand_histories(tmp_path: Path, spark: SparkSession) -> None:
    check_histories(empty(tmp_path / "t"), drawn(random.Random(5), 10_000 if WHOLE else 500), spark)


def test_a_late_event_splits_a_time_of_equal_values(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", None, "u"), (1, 5, "a", None, "u"), (1, 9, None, None, "d")]))
    assert rows_of(table) == [(1, "a", None, 1, 9, False)]
    committed(apply(table, [(1, 3, "b", None, "u")]))
    assert rows_of(table) == [
        (1, "a", None, 1, 3, False),
        (1, "b", None, 3, 5, False),
        (1, "a", None, 5, 9, False),
    ]


def test_only_the_rows_of_the_events_keys_are_read_into_the_history(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(key, 1, "a", None, "u") for key in range(5)]))
    result = committed(apply(table, [(2, 2, "b", None, "u")]))
    assert (result.metrics["numTargetRowsUpdated"], result.metrics["numTargetRowsInserted"]) == (1, 1)


def test_rows_of_other_keys_are_neither_read_nor_a_conflict(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(key, 1, "a", None, "u") for key in range(5)]))
    first = live_files(table)
    committed(apply(table, [(key, 1, "a", None, "u") for key in range(100, 105)]))
    (path,) = live_files(table) - first
    (tmp_path / "t" / path).write_bytes(b"damaged")
    other = {"id": 200, "name": "c", "note": None, "__START_AT": 1, "__END_AT": None, "current": True}
    log = winning("staged", lambda: append(table, pa.Table.from_pylist([other], ROWS)))
    result = committed(apply(table, [(2, 2, "b", None, "u"), (7, 1, "b", None, "u")], log=log))
    assert (result.attempts, result.files["pruned"]) == (1, 1)


def test_columns_may_come_later_and_rows_without_a_start_stay(tmp_path: Path) -> None:
    foreign = {"id": 1, "name": "foreign", "note": None, "__START_AT": None, "__END_AT": None, "current": None}
    table = make_table(tmp_path / "t", pa.Table.from_pylist([foreign], ROWS))
    few = {"except_column_list": ["op", "at", "note"]}
    committed(apply(table, [(1, 1, "a", 1.5, "u"), (1, 5, "a", 2.5, "u")], **few))
    committed(apply(table, [(1, 3, "b", 3.5, "u")]))
    found = [row for row in table.to_arrow().to_pylist() if row["__START_AT"] is not None]
    assert sorted((row["__START_AT"], row["name"], row["note"]) for row in found) == [
        (1, "a", None),
        (3, "b", 3.5),
        (5, "a", None),
    ]
    assert [row for row in table.to_arrow().to_pylist() if row["__START_AT"] is None] == [foreign]


def test_a_concurrent_history_of_the_same_key_is_brought_together(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", None, "u")]))
    other = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist([dict(zip(EVENTS.names, (1, 7, "c", None, "u"), strict=True))], EVENTS), other)
    source = {"format": "parquet", "path": str(other)}
    log = winning("staged", lambda: committed(run(None, "apply_changes", table, source=source, **ARGUMENTS)))
    work = application()
    result = committed(apply(table, [(1, 4, "b", None, "u")], log=log, application=work))
    assert result.attempts == 2
    assert rows_of(table) == wanted([(1, 1, "a", None, "u"), (1, 4, "b", None, "u"), (1, 7, "c", None, "u")])
    assert apply(table, [(1, 4, "b", None, "u")], application=work).status == "already_done"


@pytest.mark.parametrize(
    ("change", "more", "error_type", "says"),
    [
        (lambda schema: schema.remove(4), {}, "UnknownColumn", "no column '__END_AT', which end_column names"),
        (lambda schema: schema.remove(3), {}, "UnknownColumn", "no column '__START_AT', which start_column names"),
        (
            lambda schema: schema.set(4, pa.field("__END_AT", pa.int64())),
            {},
            "SchemaMismatch",
            "the columns __END_AT of",
        ),
        (lambda schema: schema.set(1, pa.field("name", pa.int64())), {}, "SchemaMismatch", "the columns name of"),
        (lambda schema: schema, {"track_history_column_list": ["op"]}, "UnknownColumn", "track_history_column_list"),
    ],
    ids=["no end", "no start", "end", "value", "tracked"],
)
def test_a_table_without_columns_of_times_is_refused(
    change: Any, more: dict[str, Any], error_type: str, says: str, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "t", change(ROWS).empty_table())
    error = error_of(apply(table, [(1, 1, "a", None, "u")], **more))
    assert (error["type"], says in error["message"]) == (error_type, True), error


def test_an_empty_text_that_a_partition_stores_as_null_begins_no_row_again(tmp_path: Path) -> None:
    table = empty(tmp_path / "t", partition_by=["name"])
    for at in (1, 2, 3):
        apply(table, [(1, at, "", 1.5, "u")])
    assert rows_of(table) == [(1, None, 1.5, 1, None, True)]


@pytest.mark.long("killed after each change of a store")
def test_a_history_that_is_killed_anywhere_is_kept_once(tmp_path: Path) -> None:
    first: list[Event] = [(1, 1, "a", None, "u"), (2, 1, "b", None, "u")]
    second: list[Event] = [(1, 5, "a", None, "u"), (1, 9, None, None, "d"), (2, 3, "c", None, "u")]
    late: list[Event] = [(1, 3, "x", None, "u"), (2, 2, "y", None, "u")]
    at, is_killed = 1, True
    while is_killed:
        table, work = empty(tmp_path / f"{at}" / "t"), application()
        committed(apply(table, first))
        is_killed = killed(partial(apply, table, second, application=work), at, after=True)
        is_done = table.latest_version() == 2
        committed(apply(table, late[:1]))
        assert rows_of(table) == wanted([*first, *(second if is_done else []), late[0]]), at
        again = apply(table, second, application=work)
        assert again.status == ("already_done" if is_done else "committed"), again.error
        committed(apply(table, late[1:]))
        assert rows_of(table) == wanted([*first, *second, *late]), at
        at += 1
    assert at > 6
