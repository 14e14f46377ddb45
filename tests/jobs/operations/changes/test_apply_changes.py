"""Alone in showing that a table to which changes are applied is what the ordered history of its events leaves."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import itertools
import json
import os
import random
import re
import time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.remembered_deletions import FOLDER
from airflow_txlog.storage.limits import USUAL
from tests.helpers.depth import WHOLE
from tests.helpers.jobs import application, committed, error_of, run
from tests.helpers.paths import ROOT
from tests.helpers.racing import killed, winning
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = pa.schema([("id", pa.int64()), ("at", pa.int32()), ("name", pa.string()), ("op", pa.string())])
ROWS = pa.schema([("id", pa.int64()), ("at", pa.int32()), ("name", pa.string())])
ARGUMENTS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "at",
    "apply_as_deletes": "op = 'd'",
    "except_column_list": ["op"],
}
# A life of tombstones, in hours, that is over after a tenth of a second.
BRIEFLY = 0.00001

Event = tuple[int, int, str | None, str]


def events(path: Path, rows: list[Event]) -> dict[str, Any]:
    columns = zip(*rows, strict=True) if rows else [[]] * 4
    arrays = [pa.array(values, field.type) for values, field in zip(columns, EVENTS, strict=True)]
    pq.write_table(pa.table(arrays, EVENTS), path)
    return {"format": "parquet", "path": str(path)}


def empty(path: Path, **more: Any) -> Table:
    return make_table(path, ROWS.empty_table(), **more)


def apply(table: Table, rows: list[Event], spark: SparkSession | None = None, **more: Any) -> Any:
    source = events(Path(table.uri.removeprefix("file://")).parent / "events.parquet", rows)
    return run(spark, "apply_changes", table, **{**ARGUMENTS, "source": source, **more})


def rows_of(table: Table) -> set[tuple[int, int, str | None]]:
    found = [(row["id"], row["at"], row["name"]) for row in table.to_arrow().to_pylist()]
    assert len(set(found)) == len(found)
    return set(found)


def wanted(history: list[Event]) -> set[tuple[int, int, str | None]]:
    """The plain reference: the newest event of each key."""
    newest: dict[int, Event] = {}
    for event in sorted(history, key=lambda each: each[1]):
        newest[event[0]] = event
    return {(key, at, name) for key, at, name, op in newest.values() if op != "d"}


def drawn(rng: random.Random, num_keys: int) -> list[list[Event]]:
    """The batches in which a history of each key comes: in any order, late, and more than once."""
    batches: list[list[Event]] = [[] for _ in range(4)]
    for key in range(num_keys):
        history = [(key, at, rng.choice([None, "a", "b"]), rng.choice("uuud")) for at in range(6)]
        history = rng.sample(history, rng.randint(1, len(history)))
        for event in (*history, *rng.choices(history, k=rng.randint(0, 3))):
            rng.choice(batches).append(event)
    for batch in batches:
        rng.shuffle(batch)
    return batches


def check_histories(table: Table, batches: list[list[Event]], spark: SparkSession | None = None, **more: Any) -> None:
    before: list[Event] = []
    for batch in batches:
        before += batch
        result = apply(table, batch, spark, **more)
        assert result.status in ("committed", "nothing_to_do"), result.error
        assert rows_of(table) == wanted(before)


LAYOUTS: list[dict[str, Any]] = [
    {"properties": {"delta.enableDeletionVectors": "true", "delta.enableRowTracking": "true"}},
    {"properties": {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}},
    {"partition_by": ["name"]},
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_the_table_is_the_ordered_history_in_whatever_order_events_come(number: int, tmp_path: Path) -> None:
    table = empty(tmp_path / "t", **LAYOUTS[number])
    batches = drawn(random.Random(number), 100)
    # One part of the keys a task, and all in one.
    limits = dataclasses.replace(USUAL, held_source_bytes=2000 if number else USUAL.held_source_bytes)
    check_histories(table, batches, limits=limits)
    assert apply(table, batches[-1]).status == "nothing_to_do"
    if "delta.enableChangeDataFeed" in str(LAYOUTS[number]):
        state: set[tuple[int, int, str | None]] = set()
        for row in table.changes(1, table.latest_version()).sort_by("_commit_version").to_pylist():
            values = (row["id"], row["at"], row["name"])
            state = state - {values} if row["_change_type"] in ("delete", "update_preimage") else state | {values}
        assert state == rows_of(table)


@pytest.mark.long("ten thousand histories")
@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_histories_are_ordered(seed: int, tmp_path: Path) -> None:
    check_histories(empty(tmp_path / "t", **LAYOUTS[seed]), drawn(random.Random(seed), 5000 if WHOLE else 1000))


@pytest.mark.spark
@pytest.mark.long("ten thousand histories by Spark")
def test_spark_orders_ten_thousand_histories(tmp_path: Path, spark: SparkSession) -> None:
    # Only Spark knows `rlike`.
    arguments = {"apply_as_deletes": "op rlike '^d$'"}
    check_histories(empty(tmp_path / "t"), drawn(random.Random(7), 10_000 if WHOLE else 500), spark, **arguments)


@pytest.mark.spark
@pytest.mark.long("new columns, by Spark")
def test_the_table_gets_new_columns_of_the_source(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", ROWS.remove(2).empty_table())
    committed(apply(table, [(1, 5, "a", "u"), (2, 5, None, "d")], spark, schema_evolution=True))
    assert rows_of(table) == {(1, 5, "a")}


def test_two_columns_order_events_as_the_page_shows(tmp_path: Path, spark: SparkSession) -> None:
    page = (ROOT / "docs" / "apply-changes.md").read_text()
    (lines,) = re.findall(r"^events = query\(\n((?:    \".*\n)+)", page, re.MULTILINE)
    names = ["id", "commit_lsn", "event_lsn", "name", "op"]
    given = [(1, "9", "1", "old", "u"), (1, "10", "9", "older", "u"), (1, "10", "10", "new", "u")]
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in given]), tmp_path / "e.parquet")
    view = {"format": "parquet", "path": str(tmp_path / "e.parquet")}
    source = {"sql": "".join(map(ast.literal_eval, lines.strip().rstrip(",").splitlines())), "views": {"given": view}}
    columns = [("id", pa.int64()), ("name", pa.string()), ("position", pa.string())]
    table = make_table(tmp_path / "t", pa.schema(columns).empty_table())
    committed(run(spark, "apply_changes", table, **{**ARGUMENTS, "sequence_by": "position", "source": source}))
    assert [row["name"] for row in table.to_arrow().to_pylist()] == ["new"]


def test_a_table_remembers_a_deletion_before_it_has_seen_the_row(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 5, None, "d")]))
    assert apply(table, [(1, 4, "late", "u")]).status == "nothing_to_do"
    # Equal to the tombstone: the first one wins.
    assert apply(table, [(1, 5, "same", "u")]).status == "nothing_to_do"
    committed(apply(table, [(1, 6, "new", "u")]))
    assert rows_of(table) == {(1, 6, "new")}
    assert not list((tmp_path / "t").glob("*.parquet*tmp"))


def test_many_runs_with_deletions_leave_few_files_of_tombstones(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    for key in range(18):
        committed(apply(table, [(key, 5, None, "d")]))
    (manifest, *_) = sorted((tmp_path / "t" / FOLDER).glob("*/*.json"), reverse=True)
    assert len(json.loads(manifest.read_text())["files"]) < 5
    assert apply(table, [(key, 4, "late", "u") for key in range(18)]).status == "nothing_to_do"


def manifests(table: Table) -> list[Path]:
    return sorted((Path(table.uri.removeprefix("file://")) / FOLDER).glob("*/*.json"))


def test_the_history_shows_no_internal_name(tmp_path: Path) -> None:
    times = [pa.field(name, pa.int32()) for name in ("__START_AT", "__END_AT")]
    table, history = empty(tmp_path / "t"), make_table(tmp_path / "h", pa.schema([*ROWS, *times]).empty_table())
    committed(apply(table, [(1, 1, "a", "u"), (2, 1, None, "d")]))
    committed(apply(table, [(3, 1, "a", "u")], ignore_null_updates=True))
    committed(apply(history, [(1, 1, "a", "u")], stored_as_scd_type=2))
    for each in (*table.history(), *history.history()):
        assert "txlog_" not in json.dumps(each["operationParameters"])
    merged = table.history()[1]["operationParameters"]
    assert merged["predicate"] == '["t.`id` = s.`id`"]'
    assert "s.`at`" in merged["matchedPredicates"]


@pytest.mark.parametrize("operation", ["apply_changes", "upsert", "delete"])
def test_the_error_of_a_missing_table_names_the_way_to_create_it(operation: str, tmp_path: Path) -> None:
    source = events(tmp_path / "events.parquet", [])
    arguments = {
        "apply_changes": {**ARGUMENTS, "source": source},
        "upsert": {"keys": ["id"], "source": source},
        "delete": {"predicate": "id = 1"},
    }
    found = error_of(run(None, operation, tmp_path / "none", **arguments[operation]))
    assert found["facts"]["table"] == f"file://{tmp_path}/none"
    assert ("Table.create" in found["message"]) == (operation != "delete")


def test_events_without_an_effect_are_counted(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    first = [(1, 5, "a", "u"), (1, 4, "old", "u"), (2, 5, None, "d"), (3, 5, "a", "u")]
    second = [
        (1, 5, "a", "u"),
        (2, 4, "b", "u"),
        (3, 6, "b", "u"),
        (4, 1, "a", "u"),
        (4, 1, "a", "u"),
        (5, 1, None, "d"),
    ]
    found = [committed(apply(table, batch)).metrics for batch in (first, second)]
    assert [(each["numEvents"], each["numIgnoredEvents"]) for each in found] == [(4, 1), (6, 3)]
    assert apply(table, second).metrics["numIgnoredEvents"] == 6


def test_a_run_logs_the_tombstones_that_it_drops(tmp_path: Path) -> None:
    table, lines = empty(tmp_path / "t"), list[str]()
    for key in (1, 2):
        committed(apply(table, [(key, 5, None, "d")], tombstone_hours=BRIEFLY, log=lines.append))
        time.sleep(0.1)
    told = [line for line in lines if "recorded" in line]
    assert ["dropped" in line for line in told] == [False, True]


def test_times_for_which_python_has_no_form_are_compared_too(tmp_path: Path) -> None:
    kind = pa.timestamp("us", "UTC")
    far = pa.array([4 * 10**17, 4 * 10**17 + 1, 4 * 10**17 + 2]).cast(kind)
    table = make_table(tmp_path / "t", pa.schema([("id", pa.int64()), ("at", kind)]).empty_table())
    source = {"format": "parquet", "path": str(tmp_path / "events.parquet")}
    for key, at, op, revived in ((1, 1, "d", 0), (2, 2, "d", 0), (1, 0, "u", 1)):
        pq.write_table(pa.table({"id": [key], "at": far.slice(at, 1), "op": [op]}), tmp_path / "events.parquet")
        result = committed(run(None, "apply_changes", table, **ARGUMENTS, source=source, tombstone_hours=BRIEFLY))
        assert result.metrics["numPossiblyRevivedRows"] == revived
        time.sleep(0.1)


LATE: list[tuple[pa.DataType, tuple[Any, Any, Any]]] = [
    (pa.int32(), (1, 5, 9)),
    (pa.string(), ("1", "5", "9")),
    (pa.date32(), tuple(dt.date(2026, 1, day) for day in (1, 5, 9))),
    (pa.timestamp("us", "UTC"), tuple(dt.datetime(2026, 1, day, 1, 2, 3, 4, tzinfo=dt.UTC) for day in (1, 5, 9))),
    (pa.decimal128(20, 3), tuple(Decimal(f"{number}.125") for number in (1, 5, 9))),
]


@pytest.mark.parametrize(("kind", "times"), LATE, ids=[str(kind) for kind, _ in LATE])
@pytest.mark.parametrize("more", [{}, {"ignore_null_updates": True}], ids=["events", "partial events"])
def test_a_run_counts_the_rows_that_it_may_bring_back_after_tombstones_were_dropped(
    kind: pa.DataType, times: tuple[Any, Any, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    early, middle, late = times
    schema = EVENTS.set(1, pa.field("at", kind))
    table = make_table(tmp_path / "t", schema.remove(3).empty_table())

    def given(rows: list[tuple[Any, ...]], hours: float = BRIEFLY) -> int:
        pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), file)
        result = run(None, "apply_changes", table, **ARGUMENTS, source=source, tombstone_hours=hours, **more)
        return committed(result).metrics["numPossiblyRevivedRows"]

    file = tmp_path / "events.parquet"
    source = {"format": "parquet", "path": str(file)}
    assert given([(1, early, "a", "u"), (2, early, "a", "u"), (1, middle, None, "d")]) == 0
    time.sleep(0.1)
    # Drops the tombstone of key 1.
    assert given([(3, late, None, "d")]) == 0
    assert given([(1, early, "a", "u"), (2, late, "b", "u"), (4, middle, "a", "u"), (5, late, "a", "u")], 168) == 2
    # Remembered by later runs.
    assert given([(6, early, "a", "u"), (7, early, None, "d")], 168) == 1


def test_old_tombstones_expire_although_their_files_become_few(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 5, None, "d")]))
    committed(apply(table, [(2, 5, None, "d")]))
    listed = json.loads(manifests(table)[-1].read_text())
    old, new = sorted(listed["files"], key=lambda file: file["recorded_ms"])
    old["recorded_ms"] -= 100 * 3_600_000
    manifests(table)[-1].write_text(json.dumps({**listed, "files": [old, *[new] * 20]}))
    committed(apply(table, [(3, 5, None, "d")]))
    assert len(json.loads(manifests(table)[-1].read_text())["files"]) == 3
    assert apply(table, [(key, 4, "late", "u") for key in (1, 2, 3)]).status == "nothing_to_do"
    committed(apply(table, [(4, 5, None, "d")], tombstone_hours=90))
    committed(apply(table, [(key, 4, "late", "u") for key in (1, 2, 3, 4)]))
    assert rows_of(table) == {(1, 4, "late")}


@pytest.mark.parametrize("size_bytes", [None, -(10**12), 0, 10**15], ids=str)
def test_a_lost_file_or_a_false_list_is_noticed_until_a_run_forgets_it(size_bytes: int | None, tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 5, None, "d")]))
    (manifest,) = manifests(table)
    listed = json.loads(manifest.read_text())
    if size_bytes is None:
        (manifest.parent / listed["files"][0]["name"]).unlink()
    else:
        listed["files"][0]["size_bytes"] = size_bytes
        manifest.write_text(json.dumps(listed))
    error = error_of(apply(table, [(2, 5, "a", "u")]))
    assert (error["type"], error["retryable"], "are gone" in error["message"]) == ("CorruptTable", False, True), error
    committed(apply(table, [(2, 5, "a", "u")], tombstone_hours=0))
    committed(apply(table, [(3, 5, "b", "u")]))
    assert rows_of(table) == {(2, 5, "a"), (3, 5, "b")}


def test_tombstones_expire_and_a_lost_list_is_noticed(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 5, None, "d")]))
    time.sleep(0.01)
    committed(apply(table, [(2, 5, None, "d")], tombstone_hours=0))
    committed(apply(table, [(1, 4, "late", "u"), (2, 4, "late", "u")]))
    assert rows_of(table) == {(1, 4, "late")}
    for manifest in (tmp_path / "t" / FOLDER).glob("*/*.json"):
        manifest.unlink()
    error = error_of(apply(table, [(3, 1, "x", "u")]))
    assert (error["type"], "is gone" in error["message"]) == ("CorruptTable", True)
    committed(apply(table, [(3, 1, "x", "u")], tombstone_hours=0))


def test_the_sequence_may_be_kept_in_a_column_of_its_own(tmp_path: Path) -> None:
    more = {"except_column_list": ["op", "at"]}
    table = make_table(tmp_path / "t", ROWS.remove(1).empty_table())
    error = error_of(apply(table, [(1, 5, "a", "u")], **more))
    assert (error["type"], "has no column __SEQUENCE" in error["message"]) == ("SchemaMismatch", True)
    wide = ROWS.remove(1).append(pa.field("__SEQUENCE", pa.int32()))
    table = make_table(tmp_path / "u", pa.Table.from_pylist([{"id": 1, "name": "unordered"}], wide))
    committed(apply(table, [(1, 5, "a", "u"), (2, 2, "b", "u")], **more))
    assert apply(table, [(1, 4, "late", "d"), (2, 1, "late", "u")], **more).status == "committed"
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "a", "__SEQUENCE": 5},
        {"id": 2, "name": "b", "__SEQUENCE": 2},
    ]


@pytest.mark.parametrize(
    ("rows", "more", "error_type", "says"),
    [
        ([(1, 5, "a", "u"), (1, 5, "b", "u")], {}, "AmbiguousMerge", "at least 1 of 2 events have the key and"),
        ([(1, 5, "a", "u"), (1, 5, "a", "d")], {}, "AmbiguousMerge", "(id; at) and differ from it"),
        ([(None, 5, "a", "u")], {}, "SchemaMismatch", "in 1 of 1 events the column 'id', which is a key, is NULL"),
        ([(1, None, "a", "u")], {}, "SchemaMismatch", "the column 'at', which is the sequence, is NULL"),
        ([(1, 5, "a", "u")], {"except_column_list": None}, "UnknownColumn", "'op', which rows would get"),
        ([(1, 5, "a", "u")], {"sequence_by": "when"}, "UnknownColumn", "no column 'when', which sequence_by names"),
        ([(1, 5, "a", "u")], {"keys": ["uid"]}, "UnknownColumn", "no column 'uid', which keys names"),
        ([(1, 5, "a", "u")], {"column_list": ["nmae"], "except_column_list": None}, "UnknownColumn", "column_list"),
        ([(1, 5, "a", "u")], {"tombstone_hours": 1000.0}, "InvalidJobSpec", "setTransactionRetentionDuration"),
    ],
    ids=map(str, itertools.count()),
)
def test_events_without_a_place_in_the_history_are_refused(
    rows: list[Any], more: dict[str, Any], error_type: str, says: str, tmp_path: Path
) -> None:
    table = empty(tmp_path / "t")
    error = error_of(apply(table, rows, **more))
    assert (error["type"], error["retryable"], says in error["message"]) == (error_type, False, True), error
    assert table.latest_version() == 0
    assert not (tmp_path / "t" / FOLDER).exists()


def test_events_that_a_newer_one_decides_may_differ_and_equal_ones_count_once(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    rows: list[Event] = [(1, 5, "a", "u"), (1, 5, "b", "u"), (1, 6, None, "u"), (1, 6, None, "u"), (2, 1, "x", "d")]
    committed(apply(table, [*rows, (2, 1, "y", "d")]))
    assert rows_of(table) == {(1, 6, None)}


def test_equal_events_count_once_whatever_is_in_their_lists(tmp_path: Path) -> None:
    kinds = pa.schema([("id", pa.int64()), ("at", pa.int32()), ("v", pa.list_(pa.float64()))])
    table = make_table(tmp_path / "t", kinds.empty_table())
    pq.write_table(pa.table([[1, 1], [5, 5], [[float("nan"), 1.5]] * 2], kinds), tmp_path / "e.parquet")
    source = {"format": "parquet", "path": str(tmp_path / "e.parquet")}
    committed(run(None, "apply_changes", table, source=source, keys=["id"], sequence_by="at"))
    assert len(table.to_arrow()) == 1


def test_types_must_be_those_of_the_table(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", ROWS.set(0, pa.field("id", pa.string())).empty_table())
    error = error_of(apply(table, [(1, 5, "a", "u")]))
    assert (error["type"], "'id' of the source is long" in error["message"]) == ("SchemaMismatch", True), error
    table = make_table(tmp_path / "u", ROWS.set(1, pa.field("at", pa.int64())).empty_table())
    error = error_of(apply(table, [(1, 5, "a", "u")]))
    assert "'at' of the source is integer, and 'at' of the table is long" in error["message"]
    error = error_of(apply(table, [(1, 5, "a", "u")], source=real_sequences(tmp_path / "real.parquet")))
    assert (error["type"], "sequence_by names the column 'at'" in error["message"]) == ("UnsupportedFeature", True)


def real_sequences(path: Path) -> dict[str, Any]:
    pq.write_table(pa.table({"id": [1], "at": [1.5], "name": ["a"], "op": ["u"]}), path)
    return {"format": "parquet", "path": str(path)}


def test_two_jobs_that_both_delete_remember_both_deletions(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", "u"), (2, 1, "b", "u")]))
    other = events(tmp_path / "other.parquet", [(2, 5, None, "d")])
    log = winning("staged", lambda: committed(run(None, "apply_changes", table, source=other, **ARGUMENTS)))
    result = committed(apply(table, [(1, 5, None, "d"), (2, 4, "late", "u")], log=log))
    assert (result.attempts, rows_of(table)) == (2, set())
    assert apply(table, [(1, 4, "late", "u"), (2, 4, "late", "u")]).status == "nothing_to_do"


def test_a_dry_run_and_a_failed_check_remember_nothing(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", "u")]))
    assert apply(table, [(1, 5, None, "d")], dry_run=True).metrics["numTargetRowsDeleted"] == 1
    assert error_of(apply(table, [(1, 5, None, "d")], max_deleted_rows=0))["type"] == "ExpectationFailed"
    assert not (tmp_path / "t" / FOLDER).exists()
    work = application()
    committed(apply(table, [(1, 3, "b", "u"), (1, 5, None, "d")], application=work))
    assert apply(table, [(1, 5, None, "d")], application=work).status == "already_done"
    assert rows_of(table) == set()


def test_a_job_that_is_killed_anywhere_leaves_rows_and_tombstones_that_agree(tmp_path: Path) -> None:
    at, is_killed = 1, True
    while is_killed:
        table, work = empty(tmp_path / f"{at}" / "t"), application()
        committed(apply(table, [(1, 1, "a", "u"), (2, 1, "b", "u")]))
        deletes: list[Event] = [(1, 5, None, "d"), (2, 3, "c", "u")]
        is_killed = killed(partial(apply, table, deletes, application=work), at, after=False)
        is_deleted = table.latest_version() == 2
        # A tombstone of a deletion that is not in the table does not count.
        apply(table, [(1, 4, "late", "u")])
        assert rows_of(table) == ({(2, 3, "c")} if is_deleted else {(1, 4, "late"), (2, 1, "b")}), at
        again = apply(table, deletes, application=work)
        assert again.status == ("already_done" if is_deleted else "committed"), again.error
        assert apply(table, [(1, 4, "late", "u")]).status == "nothing_to_do"
        assert rows_of(table) == {(2, 3, "c")}, at
        at += 1
    assert at > 6


def test_a_restore_takes_the_tombstones_back_with_the_rows(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", "u"), (2, 1, "b", "u")]))
    committed(apply(table, [(1, 5, None, "d")]))
    committed(apply(table, [(2, 5, None, "d")]))
    committed(run(None, "restore", table, version=2))
    committed(apply(table, [(1, 4, "late", "u"), (2, 4, "later", "u")]))
    assert rows_of(table) == {(2, 4, "later")}
    committed(run(None, "restore", table, version=1))
    committed(apply(table, [(1, 4, "late", "u")]))
    assert rows_of(table) == {(1, 4, "late"), (2, 1, "b")}


def test_a_vacuum_keeps_the_tombstones_and_other_engines_read_the_rows(tmp_path: Path) -> None:
    table = empty(tmp_path / "t")
    committed(apply(table, [(1, 1, "a", "u"), (2, 1, "b", "u")]))
    committed(apply(table, [(1, 5, None, "d")]))
    found = sorted((tmp_path / "t" / FOLDER).rglob("*"))
    past = time.time() - 400 * 86_400
    for path in (tmp_path / "t").rglob("*"):
        os.utime(path, (past, past))
    assert run(None, "vacuum", table, retention_hours=0, check_retention=False).status in ("committed", "nothing_to_do")
    assert sorted((tmp_path / "t" / FOLDER).rglob("*")) == found
    assert apply(table, [(1, 4, "late", "u")]).status == "nothing_to_do"
    other = deltalake.DeltaTable(str(tmp_path / "t"))
    assert other.to_pyarrow_table().to_pylist() == [{"id": 2, "at": 1, "name": "b"}]
    other.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    other.create_checkpoint()
    assert sorted((tmp_path / "t" / FOLDER).rglob("*")) == found
    assert apply(table, [(1, 4, "late", "u")]).status == "nothing_to_do"
