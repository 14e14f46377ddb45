"""Our two refinements of the reference's conflict rules: what they let through, and everything that they must not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, Transaction
from tests.helpers.vectors import inline

SCHEMA = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string()), ("day", pa.string())])


def stats(rows: int | None = 10, **bounds: tuple[Any, Any]) -> str:
    content: dict[str, Any] = {} if rows is None else {"numRecords": rows}
    content["minValues"] = {name: low for name, (low, _) in bounds.items()}
    content["maxValues"] = {name: high for name, (_, high) in bounds.items()}
    content["nullCount"] = dict.fromkeys(bounds, 0)
    content["tightBounds"] = True
    return json.dumps(content)


@pytest.fixture
def table(memory_uri: str, clock: Any) -> Table:
    """Unpartitioned: file `low` holds ids 0 to 9, `high` ids 100 to 109."""
    table = Table.create(memory_uri, SCHEMA, clock=clock)
    tx = table.begin()
    tx.add(path="low", size=1, stats=stats(id=(0, 9)))
    tx.add(path="high", size=1, stats=stats(id=(100, 109)))
    tx.commit("WRITE")
    return table


def add(tx: Transaction, path: str, text: str | None, data_change: bool = True) -> None:
    tx.add(path=path, size=1, stats=text, data_change=data_change)


def winner(table: Table, change: Callable[[Transaction], None], operation: str = "WRITE") -> None:
    tx = table.begin()
    tx.read_files([])
    change(tx)
    tx.commit(operation)


def rewrite_high(table: Table, predicate: str = "id >= 100") -> Transaction:
    tx = table.begin()
    assert tx.read(predicate).column("path").to_pylist() == ["high"]
    tx.remove("high")
    add(tx, "high-2", stats(id=(100, 109)))
    return tx


# --- proved disjoint ------------------------------------------------------------------------------------------------


def test_a13_an_added_file_whose_statistics_exclude_what_was_read_does_not_conflict(table: Table) -> None:
    tx = rewrite_high(table)
    winner(table, lambda other: add(other, "low-2", stats(id=(10, 20))))
    assert tx.commit("UPDATE") == 3


@pytest.mark.parametrize(
    "text",
    [
        stats(id=(90, 100)),
        None,
        "{}",
        "not json",
        stats(name=("a", "b")),
        json.dumps({"numRecords": 10, "minValues": {"id": 10}}),
        json.dumps({"numRecords": 10, "minValues": {"id": "ten"}, "maxValues": {"id": "twenty"}}),
    ],
)
def test_an_added_file_that_nothing_excludes_conflicts(table: Table, text: str | None) -> None:
    tx = rewrite_high(table)
    winner(table, lambda other: add(other, "unknown", text))
    with pytest.raises(errors.ConcurrentAppend) as caught:
        tx.commit("UPDATE")
    assert caught.value.path == "unknown"
    assert caught.value.winning_version == 2


def test_a5_an_upper_bound_of_a_float_never_excludes_what_nan_would_satisfy(table: Table) -> None:
    """Other writers leave NaN out of the maximum, and Spark says NaN > 5."""
    tx = table.begin()
    tx.read("score > 5.0")
    tx.remove("high")
    winner(table, lambda other: add(other, "nan", stats(score=(1.0, 3.0))))
    with pytest.raises(errors.ConcurrentAppend):
        tx.commit("DELETE")


def test_trust_statistics_off_turns_the_refinement_off(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"txlog.trustStatistics": "false"}, clock=clock)
    tx = table.begin()
    tx.add(path="high", size=1, stats=stats(id=(100, 109)))
    tx.commit("WRITE")
    tx = table.begin()
    tx.read("id >= 100")
    tx.remove("high")
    winner(table, lambda other: add(other, "low", stats(id=(0, 9))))
    with pytest.raises(errors.ConcurrentAppend):
        tx.commit("DELETE")


def test_a13_the_refinement_narrows_added_files_only(table: Table) -> None:
    """A winner that also removes a file which we read is judged by the other rules as ever."""
    tx = rewrite_high(table)

    def change(other: Transaction) -> None:
        other.remove("high")
        add(other, "low-2", stats(id=(10, 20)))

    winner(table, change, "UPDATE")
    with pytest.raises(errors.ConcurrentDeleteRead) as caught:
        tx.commit("UPDATE")
    assert caught.value.path == "high"


def test_a13_registering_only_the_own_keys_is_not_what_a_merge_does(table: Table) -> None:
    """Two insert-if-absent transactions over the same keys: one must lose, or the key is there twice."""
    first, second = table.begin(), table.begin()
    for tx, name in ((first, "mine"), (second, "theirs")):
        tx.read("id IN (50, 51)")
        add(tx, name, stats(id=(50, 51)))
    first.commit("MERGE")
    with pytest.raises(errors.ConcurrentAppend):
        second.commit("MERGE")


def test_every_registered_predicate_must_be_excluded(table: Table) -> None:
    tx = rewrite_high(table)
    tx.read("id < 5")
    winner(table, lambda other: add(other, "low-2", stats(id=(2, 3))))
    with pytest.raises(errors.ConcurrentAppend):
        tx.commit("UPDATE")


@pytest.mark.parametrize(
    ("predicate", "day", "name", "conflicts"),
    [
        ("year(day) = 2024", "2023-12-31", "a", False),
        ("year(day) = 2024", "2024-01-01", "a", True),
        ("year(day) = 2024", None, "a", False),
        ("year(day) IS NULL", None, "a", True),
        ("year(day) = 2024", "some day", "a", True),
        ("NOT year(day) = 2024", "2023-12-31", "a", True),
        ("year(day) = 2024 AND trim(name) = 'x'", "2023-12-31", "x", False),
        # Bounds of a name are no bounds of what is left when it is trimmed.
        ("trim(name) = 'x'", "2023-12-31", " x", True),
        ("year(day) = 2024 OR trim(name) = 'x'", "2023-12-31", "a", True),
    ],
)
def test_a13_a_function_of_a_partition_value_proves_that_a_winner_s_file_is_disjoint(
    memory_uri: str, clock: Any, predicate: str, day: str | None, name: str, conflicts: bool
) -> None:
    table = Table.create(memory_uri, SCHEMA.set(3, pa.field("day", pa.date32())), ["day"], clock=clock)
    tx = table.begin()
    tx.add(path="ours", partition_values={"day": "2024-06-01"}, size=1, stats=stats(name=("x", "x")))
    tx.commit("WRITE")
    tx = table.begin()
    tx.read(predicate)
    tx.remove("ours")
    bounds = stats(name=(name, name))
    winner(table, lambda other: other.add(path="theirs", partition_values={"day": day}, size=1, stats=bounds))
    if conflicts:
        with pytest.raises(errors.ConcurrentAppend) as caught:
            tx.commit("DELETE")
        assert caught.value.path == "theirs"
    else:
        assert tx.commit("DELETE") == 3


FLOWER = "a" * 32 + "\U0001f33c"


@pytest.mark.parametrize(
    ("column", "text", "predicate"),
    [
        # 1880-01-01 on a clock at +09:18:59, whose offset was cut: 59 seconds after the instant.
        ("at", "1880-01-01T00:00:00.000+09:18", "at < TIMESTAMP '1879-12-31 14:41:30Z'"),
        ("name", "a" * 32 + "\ufffd", f"name = '{FLOWER}'"),
    ],
)
def test_a21_statistics_that_were_cut_do_not_prove_that_a_winner_s_file_is_disjoint(
    memory_uri: str, clock: Any, column: str, text: str, predicate: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    table = Table.create(memory_uri, schema, clock=clock)
    tx = table.begin()
    tx.read(predicate)
    add(tx, "mine", None)
    cut = {"numRecords": 1, "minValues": {column: text[:32]}, "maxValues": {column: text}, "nullCount": {column: 0}}
    if column == "at":
        cut["minValues"] = cut["maxValues"]
    winner(table, lambda other: add(other, "theirs", json.dumps(cut, separators=(",", ":"))))
    with pytest.raises(errors.ConcurrentAppend):
        tx.commit("UPDATE")


# --- harmless compaction --------------------------------------------------------------------------------------------


def scanned_nothing_in_low(table: Table) -> Transaction:
    """Deletes rows of `high`, and looked into `low` without finding one."""
    tx = table.begin()
    tx.read("name = 'x'")
    tx.read_files(["low"], matched=False)
    tx.remove("high")
    add(tx, "high-2", stats(rows=9, id=(100, 108)))
    return tx


def compact_low(table: Table, text: str | None = None, **options: Any) -> None:
    def change(other: Transaction) -> None:
        other.remove("low", data_change=options.get("data_change", False))
        add(other, "low-compacted", text or stats(id=(0, 9)), data_change=options.get("data_change", False))
        if options.get("also_high"):
            other.remove("high", data_change=False)

    winner(table, change, "OPTIMIZE")


def test_a12_a_compaction_of_files_that_held_nothing_of_ours_passes(table: Table) -> None:
    tx = scanned_nothing_in_low(table)
    compact_low(table)
    assert tx.commit("DELETE") == 3
    assert sorted(table.snapshot().files().column("path").to_pylist()) == ["high-2", "low-compacted"]


def test_a12_what_was_compacted_may_be_compacted_again(table: Table) -> None:
    tx = scanned_nothing_in_low(table)
    compact_low(table)

    def again(other: Transaction) -> None:
        other.remove("low-compacted", data_change=False)
        add(other, "low-compacted-2", stats(id=(0, 9)), data_change=False)

    winner(table, again, "OPTIMIZE")
    assert tx.commit("DELETE") == 4


def test_a12_masked_rows_are_not_counted_among_those_that_moved(memory_uri: str, clock: Any) -> None:
    """Of 10 rows 3 are masked: a compaction that moves 7 is harmless, and one that brings 10 back is not."""
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableDeletionVectors": "true"}, clock=clock)
    masked = inline([0, 1, 2])
    for rows, is_harmless in ((7, True), (10, False)):
        tx = table.begin()
        tx.remove(tx.snapshot.files())  # type: ignore[union-attr]
        tx.add(path="low", size=1, stats=stats(id=(0, 9)), deletion_vector=masked)
        tx.add(path="high", size=1, stats=stats(id=(100, 109)))
        tx.commit("WRITE")
        tx = scanned_nothing_in_low(table)
        compact_low(table, stats(rows=rows, id=(0, 9)))
        if is_harmless:
            tx.commit("DELETE")
            assert sorted(table.snapshot().files().column("path").to_pylist()) == ["high-2", "low-compacted"]
        else:
            with pytest.raises(errors.CommitConflict):
                tx.commit("DELETE")


def test_a12_a_file_that_moved_with_a_vector_is_counted_once_when_it_moves_again(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableDeletionVectors": "true"}, clock=clock)
    tx = table.begin()
    tx.add(path="low", size=1, stats=stats(id=(0, 9)))
    tx.add(path="high", size=1, stats=stats(id=(100, 109)))
    tx.commit("WRITE")
    tx = scanned_nothing_in_low(table)

    def move(path: str, to: str, rows: int, masked: list[int]) -> None:
        def change(other: Transaction) -> None:
            other.remove(path, data_change=False)
            vector = inline(masked) if masked else None
            other.add(path=to, size=1, stats=stats(rows=rows), data_change=False, deletion_vector=vector)

        winner(table, change, "OPTIMIZE")

    # A compaction may leave its output with a vector of its own: 12 rows of which 2 are masked are the same 10.
    move("low", "moved", 12, [3, 4])
    move("moved", "moved again", 10, [])
    assert tx.commit("DELETE") == 4


def test_a1_a_winner_that_only_adds_a_vector_to_a_file_that_was_read_conflicts(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableDeletionVectors": "true"}, clock=clock)
    tx = table.begin()
    tx.add(path="low", size=1, stats=stats(id=(0, 9)))
    tx.add(path="high", size=1, stats=stats(id=(100, 109)))
    tx.commit("WRITE")

    def mask(other: Transaction) -> None:
        other.remove("high")
        other.add(path="high", size=1, stats=stats(id=(100, 109)), deletion_vector=inline([5]))

    # By the rows that it might hold, and, where its statistics exclude them, as a file that was read.
    for predicate, kind in (("id >= 100", errors.ConcurrentAppend), ("name = 'x'", errors.ConcurrentAppend)):
        tx = table.begin()
        tx.read(predicate)
        tx.remove("high")
        winner(table, mask, "DELETE")
        with pytest.raises(kind):
            tx.commit("DELETE")
        undo = table.begin()
        undo.remove("high")
        undo.add(path="high", size=1, stats=stats(id=(100, 109)))
        undo.commit("RESTORE")
    tx = table.begin()
    tx.read("id < 100")
    tx.read_files(["high"])
    add(tx, "other", stats(id=(0, 1)))
    winner(table, mask, "DELETE")
    with pytest.raises(errors.ConcurrentDeleteRead) as caught:
        tx.commit("WRITE")
    assert caught.value.path == "high"


def test_a12_a_rewrite_after_a_harmless_compaction_still_conflicts(table: Table) -> None:
    tx = scanned_nothing_in_low(table)
    compact_low(table)
    winner(table, lambda other: other.remove("low-compacted"), "DELETE")
    with pytest.raises(errors.ConcurrentDeleteRead) as caught:
        tx.commit("DELETE")
    assert caught.value.path == "low-compacted"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"data_change": True}, id="it says that rows changed"),
        pytest.param({"text": stats(rows=11, id=(0, 9))}, id="a row more than before"),
        pytest.param({"text": stats(rows=None, id=(0, 9))}, id="nobody knows how many rows"),
        pytest.param({"also_high": True}, id="it moved a file of ours too"),
    ],
)
def test_a12_a_compaction_that_is_not_proved_harmless_conflicts(table: Table, options: dict[str, Any]) -> None:
    tx = scanned_nothing_in_low(table)
    compact_low(table, **options)
    with pytest.raises(errors.CommitConflict):
        tx.commit("DELETE")


def test_a12_a_compaction_of_a_file_that_we_only_read_conflicts(table: Table) -> None:
    tx = table.begin()
    tx.read("name = 'x'")
    tx.remove("high")
    compact_low(table)
    with pytest.raises(errors.CommitConflict):
        tx.commit("DELETE")


def test_a12_a_file_that_we_remove_ourselves_is_not_compacted_away_under_us(table: Table) -> None:
    """Said to hold nothing of ours, and removed all the same: both would count its rows as theirs."""
    tx = scanned_nothing_in_low(table)
    tx.remove("low")
    compact_low(table)
    with pytest.raises(errors.ConcurrentDeleteDelete):
        tx.commit("DELETE")


# --- what the message tells the author ------------------------------------------------------------------------------


def test_a_conflict_over_partitions_that_nobody_named_tells_what_to_add(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, ["day"], clock=clock)

    def append(path: str, day: str) -> None:
        tx = table.begin()
        tx.add(path=path, partition_values={"day": day}, size=1)
        tx.commit("WRITE")

    append("one", "1")
    blind, bounded = table.begin(), table.begin()
    blind.read("id = 7")
    blind.remove("one")
    bounded.read("day = :day AND id = 7", parameters={"day": "1"})
    bounded.remove("one")
    append("two", "2")
    with pytest.raises(errors.ConcurrentAppend) as caught:
        blind.commit("DELETE")
    assert 'partition_predicate="day = :day"' in str(caught.value)
    assert caught.value.partition == {"day": "2"}
    assert bounded.commit("DELETE") == 3


def test_c8_a_long_partition_value_is_cut_in_the_message_and_whole_in_the_facts(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, ["day"], clock=clock)
    person = "a person of a very long name " * 10
    tx = table.begin()
    tx.read("id = 7")
    tx.add(path="mine", partition_values={"day": "1"}, size=1)
    winner(table, lambda other: other.add(path="x", partition_values={"day": person}, size=1))
    with pytest.raises(errors.ConcurrentAppend) as caught:
        tx.commit("WRITE")
    assert person not in str(caught.value)
    assert caught.value.partition == {"day": person}
