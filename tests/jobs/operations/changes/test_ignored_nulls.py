"""Alone in showing that NULL in an event keeps the value that the ordered history gives, whatever the order."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.remembered_deletions import FOLDER
from airflow_txlog.storage.limits import USUAL, Limits
from tests.helpers.depth import WHOLE
from tests.helpers.jobs import application, committed, error_of, run
from tests.helpers.racing import killed, winning
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("a", "b", "c")
EVENTS = pa.schema(
    [("id", pa.int64()), ("at", pa.int32()), *((name, pa.string()) for name in NAMES), ("op", pa.string())]
)
CURRENT = EVENTS.remove(5)
HISTORY = pa.schema([*EVENTS.remove(5).remove(1), ("__START_AT", pa.int32()), ("__END_AT", pa.int32())])
EXCEPT = {1: ["op"], 2: ["op", "at"]}

Event = tuple[int, int, str | None, str | None, str | None, str]
IGNORING: list[tuple[dict[str, Any], set[int]]] = [
    ({"ignore_null_updates": True}, {0, 1, 2}),
    ({"ignore_null_updates_column_list": ["a", "B"]}, {0, 1}),
    ({"ignore_null_updates_except_column_list": ["a"]}, {1, 2}),
]


def empty(path: Path, scd_type: int, **more: Any) -> Table:
    return make_table(path, (CURRENT if scd_type == 1 else HISTORY).empty_table(), **more)


def apply(table: Table, rows: list[Event], scd_type: int, spark: SparkSession | None = None, **more: Any) -> Any:
    path = Path(table.uri.removeprefix("file://")).parent / "events.parquet"
    pq.write_table(pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], EVENTS), path)
    given: dict[str, Any] = {"keys": ["id"], "sequence_by": "at", "apply_as_deletes": "op = 'd'"}
    given |= {"except_column_list": EXCEPT[scd_type], "stored_as_scd_type": scd_type, "ignore_null_updates": True}
    if any(name.startswith("ignore_null_updates_") for name in more):
        del given["ignore_null_updates"]
    source = {"format": "parquet", "path": str(path)}
    return run(spark, "apply_changes", table, source=source, **{**given, **more})


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    found = table.to_arrow()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


def wanted(history: list[Event], scd_type: int, kept: set[int], tracked: set[int]) -> list[tuple[Any, ...]]:
    """The plain reference: the events of each key one by one, in their order."""
    rows: list[tuple[Any, ...]] = []
    for key in {event[0] for event in history}:
        periods: list[list[Any]] = []
        for event in sorted({event for event in history if event[0] == key}, key=lambda each: each[1]):
            at, values = event[1], event[2:5]
            before = periods[-1] if periods and periods[-1][2] is None else None
            if event[5] == "d":
                if before is not None:
                    before[2] = at
                continue
            if before is not None:
                values = tuple(
                    old if new is None and number in kept else new
                    for number, (old, new) in enumerate(zip(before[0], values, strict=True))
                )
            if before is not None and all(before[0][number] == values[number] for number in tracked):
                before[0], before[3] = values, at
            else:
                if before is not None:
                    before[2] = at
                periods.append([values, at, None, at])
        if scd_type == 1:
            rows += [(key, last, *values) for values, _, end, last in periods if end is None]
        else:
            rows += [(key, *values, start, end) for values, start, end, _ in periods]
    return sorted(rows, key=str)


def drawn(rng: random.Random, num_keys: int) -> list[list[Event]]:
    """The batches in which a history of each key comes: in any order, late, and more than once."""
    batches: list[list[Event]] = [[] for _ in range(4)]
    for key in range(num_keys):
        history = [
            (key, at, *(rng.choice([None, None, f"{name}{at}", name]) for name in NAMES), rng.choice("uuuuuud"))
            for at in range(7)
        ]
        history = rng.sample(history, rng.randint(1, len(history)))
        for event in (*history, *rng.choices(history, k=rng.randint(0, 3))):
            rng.choice(batches).append(event)
    for batch in batches:
        rng.shuffle(batch)
    return batches


def check_histories(
    table: Table,
    batches: list[list[Event]],
    scd_type: int,
    which: int,
    spark: SparkSession | None = None,
    limits: Limits = USUAL,
) -> None:
    arguments, kept = IGNORING[which]
    tracked = {0, 1} if scd_type == 2 and which == 0 else {0, 1, 2}
    more = {**arguments, **({"track_history_column_list": ["a", "b"]} if len(tracked) == 2 else {})}
    before: list[Event] = []
    for batch in batches:
        before += batch
        result = apply(table, batch, scd_type, spark, limits=limits, **more)
        assert result.status in ("committed", "nothing_to_do"), result.error
        assert rows_of(table) == wanted(before, scd_type, kept, tracked)
    assert apply(table, batches[0], scd_type, spark, **more).status == "nothing_to_do"


LAYOUTS: list[dict[str, Any]] = [
    {"properties": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}},
    {"partition_by": ["a"]},
]


@pytest.mark.parametrize("which", range(len(IGNORING)))
@pytest.mark.parametrize("scd_type", [1, 2])
def test_null_keeps_the_value_of_the_ordered_history(scd_type: int, which: int, tmp_path: Path) -> None:
    batches = drawn(random.Random(which), 60)
    # One part of the keys a task, and all in one.
    limits = replace(USUAL, held_source_bytes=1500 if which else USUAL.held_source_bytes)
    check_histories(empty(tmp_path / "t", scd_type, **LAYOUTS[which]), batches, scd_type, which, limits=limits)


def test_the_parts_of_several_keys_make_one_table(tmp_path: Path) -> None:
    rng, table = random.Random(1), empty(tmp_path / "t", 2)
    events: list[Event] = [
        (rng.randrange(-9, 9), at, rng.choice("xyz"), rng.choice([None, "b"]), None, rng.choice("uuud"))
        for at in range(200)
    ]
    more: dict[str, Any] = {"keys": ["id", "a"], "limits": replace(USUAL, held_source_bytes=500)}
    for start in (100, 0):
        committed(apply(table, events[start : start + 100], 2, **more))
    found: list[tuple[Any, ...]] = []
    for key in {event[2] for event in events}:
        of_key = [(event[0], event[1], "", *event[3:]) for event in events if event[2] == key]
        rows = wanted(of_key, 2, {1}, {1})
        found += [(number, key, *values) for number, _, *values in rows]
    assert rows_of(table) == sorted(found, key=str)


@pytest.mark.long("ten thousand histories")
@pytest.mark.parametrize("scd_type", [1, 2])
def test_ten_thousand_histories_keep_their_values(scd_type: int, tmp_path: Path) -> None:
    check_histories(empty(tmp_path / "t", scd_type), drawn(random.Random(7), 5000 if WHOLE else 1000), scd_type, 0)


@pytest.mark.spark
@pytest.mark.long("the same by Spark")
@pytest.mark.parametrize("scd_type", [1, 2])
def test_spark_keeps_the_values_of_histories(scd_type: int, tmp_path: Path, spark: SparkSession) -> None:
    batches = drawn(random.Random(9), 10_000 if WHOLE else 300)
    check_histories(empty(tmp_path / "t", scd_type), batches, scd_type, 1, spark)


def test_a_late_event_gives_a_value_that_no_newer_event_has_given(tmp_path: Path) -> None:
    table = empty(tmp_path / "t", 1)
    committed(apply(table, [(1, 10, "a10", "b10", None, "u"), (1, 20, "a20", None, None, "u")], 1))
    # Only `c` has no newer value.
    committed(apply(table, [(1, 15, "a15", None, "c15", "u")], 1))
    assert rows_of(table) == [(1, 20, "a20", "b10", "c15")]
    # A late deletion takes what was given before it.
    committed(apply(table, [(1, 12, None, None, None, "d")], 1))
    assert rows_of(table) == [(1, 20, "a20", None, "c15")]
    assert apply(table, [(1, 11, "a11", "b11", "c11", "u")], 1).status == "nothing_to_do"


def test_a_row_without_a_sequence_is_older_than_every_event(tmp_path: Path) -> None:
    loaded = {"id": 1, "at": None, "a": "loaded", "b": "loaded", "c": None}
    table = make_table(tmp_path / "t", pa.Table.from_pylist([loaded], CURRENT))
    committed(apply(table, [(1, 5, None, "b5", None, "u")], 1))
    committed(apply(table, [(1, 3, None, "b3", "c3", "u")], 1))
    assert rows_of(table) == [(1, 5, "loaded", "b5", "c3")]
    committed(apply(table, [(1, 2, None, None, None, "d")], 1))
    assert rows_of(table) == [(1, 5, None, "b5", "c3")]


def test_the_sequence_may_be_kept_in_a_column_of_its_own(tmp_path: Path) -> None:
    own = CURRENT.remove(1).append(pa.field("__SEQUENCE", pa.int32()))
    table = make_table(tmp_path / "t", own.empty_table())
    more = {"except_column_list": ["op", "at"]}
    committed(apply(table, [(1, 5, "a", None, None, "u")], 1, **more))
    committed(apply(table, [(1, 4, "late", "b", None, "u")], 1, **more))
    assert rows_of(table) == [(1, "a", "b", None, 5)]


@pytest.mark.parametrize("change", ["delete", "update"])
def test_events_before_the_change_of_another_operation_bring_no_value_back(change: str, tmp_path: Path) -> None:
    table = empty(tmp_path / "t", 1)
    committed(apply(table, [(1, 1, "a1", "b1", "c1", "u"), (1, 2, None, "b2", None, "u")], 1))
    more = {"set": {"a": "'changed'"}} if change == "update" else {}
    committed(run(None, change, table, predicate="id = 1", **more))
    committed(apply(table, [(1, 3, None, "b3", None, "u")], 1))
    assert rows_of(table) == [(1, 3, *(("changed", "b3", "c1") if change == "update" else (None, "b3", None)))]


def test_a_row_keeps_its_values_if_only_some_of_their_events_are_forgotten(tmp_path: Path) -> None:
    table = empty(tmp_path / "t", 1)
    committed(apply(table, [(1, 1, "a1", "b1", None, "u")], 1))
    committed(apply(table, [(1, 2, None, "b2", None, "u")], 1))
    committed(apply(table, [(1, 3, None, "b3", None, "u")], 1))
    (*_, manifest) = sorted((tmp_path / "t" / FOLDER).glob("*/*.json"))
    listed = json.loads(manifest.read_text())
    newest = max(listed["files"], key=lambda file: file["recorded_ms"])
    manifest.write_text(json.dumps({**listed, "files": [newest]}))
    committed(apply(table, [(1, 4, None, None, "c4", "u")], 1))
    assert rows_of(table) == [(1, 4, "a1", "b3", "c4")]


def test_two_jobs_that_give_values_of_one_row_are_brought_together(tmp_path: Path) -> None:
    table = empty(tmp_path / "t", 1)
    committed(apply(table, [(1, 1, "a1", None, None, "u")], 1))
    other = empty(tmp_path / "other" / "t", 1)

    def theirs() -> None:
        path = Path(other.uri.removeprefix("file://")).parent / "events.parquet"
        rows = [dict(zip(EVENTS.names, (1, 9, None, "b9", None, "u"), strict=True))]
        pq.write_table(pa.Table.from_pylist(rows, EVENTS), path)
        more = {"keys": ["id"], "sequence_by": "at", "ignore_null_updates": True, "except_column_list": ["op"]}
        committed(run(None, "apply_changes", table, source={"format": "parquet", "path": str(path)}, **more))

    work = application()
    more: dict[str, Any] = {"application": work}
    result = committed(apply(table, [(1, 5, None, "b5", "c5", "u")], 1, log=winning("staged", theirs), **more))
    assert (result.attempts, rows_of(table)) == (2, [(1, 9, "a1", "b9", "c5")])
    assert apply(table, [(1, 5, None, "b5", "c5", "u")], 1, **more).status == "already_done"


@pytest.mark.long("killed after each change of a store")
def test_values_are_kept_once_by_a_job_that_is_killed_anywhere(tmp_path: Path) -> None:
    first: list[Event] = [(1, 1, "a1", "b1", None, "u"), (2, 1, "a1", None, None, "u")]
    second: list[Event] = [(1, 5, None, None, "c5", "u"), (2, 9, None, None, None, "d"), (3, 2, None, "b2", None, "u")]
    late: list[Event] = [(1, 3, "a3", None, "c3", "u"), (2, 7, "a7", None, None, "u"), (3, 1, "a1", "b1", None, "u")]
    at, is_killed = 1, True
    while is_killed:
        table, work = empty(tmp_path / f"{at}" / "t", 1), application()
        committed(apply(table, first, 1))
        is_killed = killed(partial(apply, table, second, 1, application=work), at, after=True)
        is_done = table.latest_version() == 2
        again = apply(table, second, 1, application=work)
        assert again.status == ("already_done" if is_done else "committed"), again.error
        committed(apply(table, late, 1))
        assert rows_of(table) == wanted([*first, *second, *late], 1, {0, 1, 2}, {0, 1, 2}), at
        at += 1
    assert at > 6


@pytest.mark.parametrize(
    ("change", "more", "error_type", "says"),
    [
        (lambda schema: schema, {"ignore_null_updates_column_list": ["d"]}, "UnknownColumn", "'d', which ignore_null_"),
        (lambda schema: schema.set(2, pa.field("a", pa.int64())), {}, "SchemaMismatch", "the columns a of the table"),
    ],
    ids=["column", "type"],
)
def test_a_table_that_cannot_hold_the_values_is_refused(
    change: Any, more: dict[str, Any], error_type: str, says: str, tmp_path: Path
) -> None:
    table = make_table(tmp_path / "t", change(CURRENT).empty_table())
    error = error_of(apply(table, [(1, 1, "a", None, None, "u")], 1, **more))
    assert (error["type"], says in error["message"]) == (error_type, True), error
