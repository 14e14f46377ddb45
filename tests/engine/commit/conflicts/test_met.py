"""Alone in showing what a commit records about the commits that it met: which, and why each did not stop it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.commit.content.met import EXPLANATIONS, MET_TAG, MOST_MET, How, Meeting, Meetings, meetings_of

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
SECRET = "a.person@example.org"


def stats(low: int) -> str:
    bounds = {"minValues": {"id": low}, "maxValues": {"id": low + 9}, "nullCount": {"id": 0}}
    return json.dumps({"numRecords": 10, **bounds})


def add(tx: Transaction, path: str, low: int = 0, day: str = "a", *, moves: bool = False) -> None:
    tx.add(path=path, partition_values={"day": day}, size=1, stats=stats(low), data_change=not moves)


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Partitioned by day: `low` and `other` hold ids 0 to 9 of days a and b, `high` ids 100 to 109 of day a."""
    table = Table.create(memory_uri, SCHEMA, ["day"], {"delta.isolationLevel": "WriteSerializable"}, clock=clock)
    tx = table.begin()
    add(tx, "low")
    add(tx, "high", 100)
    add(tx, "other", day="b")
    tx.commit("WRITE")
    return table


def reads_high(tx: Transaction) -> None:
    """An update of day a from id 100 on, which looked into `low` without a match."""
    tx.read("day = 'a' AND id >= 100")
    tx.read_files(["low"], matched=False)
    tx.remove("high")
    add(tx, "high-2", 100)


def appends(tx: Transaction) -> None:
    add(tx, "mine")


def compacts_high(tx: Transaction) -> None:
    tx.read_files(["high"])
    tx.remove("high", data_change=False)
    add(tx, "high-moved", 100, moves=True)


def blind(tx: Transaction) -> None:
    add(tx, "theirs", 100)


def in_other_day(tx: Transaction) -> None:
    tx.read("day = 'b'")
    add(tx, "theirs", 100, "b")


def with_other_ids(tx: Transaction) -> None:
    tx.read("day = 'b' OR id < 50")
    add(tx, "theirs-b", 100, "b")
    add(tx, "theirs-a", 20)


def removes_other(tx: Transaction) -> None:
    tx.read("day = 'b'")
    tx.remove("other")


def moves_low(tx: Transaction) -> None:
    tx.read_files(["low"])
    tx.remove("low", data_change=False)
    add(tx, "low-moved", moves=True)


def sets_application(tx: Transaction) -> None:
    tx.set_application("stream", 1)


Change = Callable[[Transaction], None]


@pytest.mark.parametrize(
    ("ours", "theirs", "operation", "how", "counts"),
    [
        (reads_high, sets_application, "STREAMING UPDATE", How.NO_DATA, (0, 0)),
        (appends, removes_other, "DELETE", How.READ_NOTHING, (0, 1)),
        (reads_high, blind, "WRITE", How.BLIND_APPEND, (1, 0)),
        (reads_high, moves_low, "OPTIMIZE", How.MOVED_ROWS_ONLY, (1, 1)),
        (reads_high, removes_other, "DELETE", How.DISJOINT_FILES, (0, 1)),
        (compacts_high, in_other_day, "MERGE", How.DISJOINT_FILES, (1, 0)),
        (reads_high, in_other_day, "MERGE", How.DISJOINT_PARTITIONS, (1, 0)),
        (reads_high, with_other_ids, "MERGE", How.EXCLUDED_BY_STATISTICS, (2, 0)),
    ],
)
def test_a_commit_records_why_the_commit_that_came_first_did_not_stop_it(
    table: Table, ours: Change, theirs: Change, operation: str, how: How, counts: tuple[int, int]
) -> None:
    tx = table.begin()
    ours(tx)
    first = table.begin()
    theirs(first)
    first.commit(operation, record_empty=True)
    tx.commit("OPTIMIZE" if ours is compacts_high else "UPDATE")
    met = Meeting(version=2, how=how, operation=operation, added_files=counts[0], removed_files=counts[1])
    assert tx.outcome is not None
    assert tx.outcome.met == Meetings(total=1, last=(met,))
    newest, before = table.history(2)
    assert newest["met"] == {"total": 1, "last": [msgspec.to_builtins(met)]}
    assert json.loads(newest["tags"][MET_TAG]) == newest["met"]
    assert before["met"] is None


def test_a_commit_without_a_race_has_no_such_tag(table: Table) -> None:
    tx = table.begin()
    appends(tx)
    tx.commit("WRITE")
    assert "tags" not in table.history(1)[0]
    assert tx.outcome is not None
    assert not tx.outcome.met


def test_each_lost_race_adds_its_winners_and_the_last_twenty_are_kept(table: Table) -> None:
    tx = table.begin()
    appends(tx)
    for number in range(MOST_MET + 5):
        first = table.begin()
        add(first, f"theirs-{number}")
        first.commit("WRITE")
    tx.commit("WRITE")
    met = table.history(1)[0]["met"]
    assert met["total"] == MOST_MET + 5
    assert [each["version"] for each in met["last"]] == list(range(7, 7 + MOST_MET))
    assert len(json.dumps(met)) < 2500


def test_no_value_and_no_path_is_recorded(table: Table) -> None:
    tx = table.begin()
    tx.read("day = 'a'")
    tx.remove("low")
    first = table.begin()
    first.read(f"day = '{SECRET}'")
    add(first, f"day={SECRET}/theirs", day=SECRET)
    first.commit("MERGE", {"predicate": SECRET})
    tx.commit("DELETE")
    assert SECRET not in json.dumps(table.history(1)[0])


def test_a_conflict_is_a_conflict_still(table: Table) -> None:
    tx = table.begin()
    reads_high(tx)
    first = table.begin()
    first.read("id >= 50")
    add(first, "theirs", 105)
    first.commit("MERGE")
    with pytest.raises(errors.ConcurrentAppend):
        tx.commit("UPDATE")


def test_every_reason_is_explained() -> None:
    assert set(EXPLANATIONS) == set(How)


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "",
        "[]",
        "{",
        '{"total":-1}',
        '{"total":0,"last":[{"how":"redone"}]}',
        '{"total":1,"last":[{"version":"<script>","how":"redone"}]}',
        '{"total":1,"last":[{"version":1}]}',
        json.dumps({"total": 1, "last": [{"version": 1, "how": "x" * 65}]}),
        json.dumps({"total": 1, "last": [{"version": 1, "how": "redone", "operation": "x" * 100_000}]}),
        "[" * 100_000,
    ],
)
def test_a_tag_of_another_form_is_none(text: Any) -> None:
    assert not meetings_of({"tags": {MET_TAG: text}})


@pytest.mark.parametrize("info", [None, {}, {"tags": None}, {"tags": []}, {"tags": {}}, {"met": {"total": 1}}])
def test_a_commit_of_another_engine_has_met_nothing(info: Any) -> None:
    assert not meetings_of(info)


def test_a_reason_and_a_field_of_a_newer_release_are_read() -> None:
    text = json.dumps({"total": 1, "last": [{"version": 1, "how": "by_magic", "spell": "x"}], "more": 1})
    assert meetings_of({"tags": {MET_TAG: text}}).last == (Meeting(version=1, how="by_magic"),)


def test_more_than_the_bound_in_a_tag_is_cut() -> None:
    text = json.dumps({"total": 500, "last": [{"version": each, "how": "redone"} for each in range(500)]})
    found = meetings_of({"tags": {MET_TAG: text}})
    assert (found.total, len(found.last), found.last[-1].version) == (500, MOST_MET, 499)
