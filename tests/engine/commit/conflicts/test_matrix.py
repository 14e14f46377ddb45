"""The concurrency matrix: every operation against every other that lands first, at both levels, near and far.

The matrix stands in docs/concurrency.md, and is read from there. Each cell is two real transactions on one table, and
besides a naive reading of the reference's three file rules over the same actions: where the naive rules refuse and we
do not, the letter is small, and one of our two refinements must be the reason.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table, Transaction
from airflow_txlog.errors import CommitConflict, ConcurrentAppend, ConcurrentDeleteDelete, ConcurrentDeleteRead
from tests.conftest import ManualClock
from tests.helpers.paths import ROOT

DOCUMENT = ROOT / "docs" / "concurrency.md"
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
LETTERS = {ConcurrentAppend: "A", ConcurrentDeleteRead: "R", ConcurrentDeleteDelete: "D"}

# Files by name: their day and their ids. Two of each day overlap, the third lies apart by its statistics.
FILES = {f"{day}{number}": (day, 100 if number == 3 else 0) for day in "ab" for number in (1, 2, 3)}
# Where the winner works, beside the transaction that works on a1.
PLACES = {"same file": "a1", "file beside": "a2", "other ids": "a3", "other day": "b1"}
WINNERS = ("insert", "truncate", "delete", "update", "merge", "optimize")


@dataclass(frozen=True)
class Work:
    """What a transaction does: what it read, and its file actions. `reads` None: the whole table."""

    operation: str
    reads: str | None = ""
    looked_into: tuple[str, ...] = ()
    matched: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    moves: bool = False


def winner(kind: str, file: str) -> Work:
    """The commit that lands first, working on this file."""
    new = f"{file}-new"
    match kind:
        case "insert":
            return Work("WRITE", adds=(new,))
        case "truncate":
            return Work("DELETE", "id >= 0", removes=(file,))
        case "delete":
            return Work("DELETE", "id >= 0", removes=(file,), adds=(f"{file}-copy",))
        case "update":
            return Work("UPDATE", "id >= 0", removes=(file,), adds=(f"{file}-copy", f"{file}-images"))
        case "merge":
            return Work("MERGE", "id >= 0", removes=(file,), adds=(f"{file}-copy", f"{file}-images", new))
        case _:
            return Work("OPTIMIZE", "id >= 0", removes=(file,), adds=(f"{file}-bin",), moves=True)


def _rewrite(operation: str, predicate: str, candidates: Iterable[str], *new: str) -> Work:
    return Work(operation, predicate, tuple(candidates), matched=("a1",), removes=("a1",), adds=("a1-mine", *new))


NEAR = ("a1", "a2")
OVERLAPPING = ("a1", "a2", "b1", "b2")
BY_DAY, BY_ID = "day = 'a' AND id < 50", "id < 50"

CURRENTS: dict[str, Work] = {
    "insert": Work("WRITE", adds=("a-mine",)),
    "insert, reads the table": Work("WRITE", None, adds=("a-mine",)),
    "delete, names the day": _rewrite("DELETE", BY_DAY, NEAR),
    "delete": _rewrite("DELETE", BY_ID, OVERLAPPING),
    "update, names the day": _rewrite("UPDATE", BY_DAY, NEAR),
    "update": _rewrite("UPDATE", BY_ID, OVERLAPPING),
    "merge, names the day": _rewrite("MERGE", BY_DAY, NEAR, "a-mine"),
    "merge": _rewrite("MERGE", BY_ID, OVERLAPPING, "a-mine"),
    "merge, by source": _rewrite("MERGE", "true", FILES, "a-mine"),
    "overwrite of the day": Work(
        "WRITE", "day = 'a'", ("a1", "a2", "a3"), ("a1", "a2", "a3"), removes=("a1", "a2", "a3"), adds=("a-mine",)
    ),
    "optimize": Work("OPTIMIZE", "day = 'a'", removes=("a1", "a2"), adds=("a-mine",), moves=True),
}


# --- ours -----------------------------------------------------------------------------------------------------------


def make_table(level: str) -> Table:
    table = Table.create(
        f"memory://matrix-{uuid.uuid4().hex}", SCHEMA, ["day"], {"delta.isolationLevel": level}, clock=ManualClock()
    )
    tx = table.begin()
    add(tx, FILES)
    tx.commit("WRITE")
    return table


def add(tx: Transaction, names: Iterable[str], *, moves: bool = False) -> None:
    for name in names:
        day, start = place_of(name)
        tx.add(path=name, partition_values={"day": day}, size=1, stats=statistics(start), data_change=not moves)


def place_of(name: str) -> tuple[str, int]:
    """The day and the first id of a file, which are those of the file that its rows come from or lie beside."""
    return FILES.get(name.split("-")[0], (name[0], 0))


def statistics(start: int) -> str:
    bounds = {"minValues": {"id": start}, "maxValues": {"id": start + 9}, "nullCount": {"id": 0}}
    return json.dumps({"numRecords": 10, **bounds})


def perform(tx: Transaction, work: Work) -> None:
    """Register what the work reads, as the jobs do, and its file actions."""
    if work.reads is None:
        tx.read_whole_table()
    elif work.moves:
        # A compaction has read its inputs and nothing else.
        tx.read_files(work.removes)
    elif work.reads:
        tx.read(work.reads)
        tx.read_files([name for name in work.looked_into if name not in work.matched], matched=False)
    for name in work.removes:
        tx.remove(name, data_change=not work.moves)
    add(tx, work.adds, moves=work.moves)


def ours(level: str, current: Work, landed: Work) -> str:
    table = make_table(level)
    tx = table.begin()
    perform(tx, current)
    first = table.begin()
    perform(first, landed)
    first.commit(landed.operation)
    try:
        tx.commit(current.operation)
    except CommitConflict as conflict:
        return LETTERS[type(conflict)]
    return "."


# --- the reference, naively -----------------------------------------------------------------------------------------


def reference(level: str, current: Work, landed: Work) -> str:
    """Rules 8 to 10 of the reference, read literally: partition values alone, whoever moved what.

    Source: delta-spark, ConflictChecker (checkForAddedFilesThatShouldHaveBeenReadByCurrentTxn and the two after it).
    """
    whole = current.reads is None
    is_blind = current.reads == "" and not current.removes
    # An isolated compaction, and a blind append under WriteSerializable, are ordered without regard to added rows.
    checked = [] if current.moves or (level == "WriteSerializable" and landed.operation == "WRITE") else landed.adds
    days = {"a"} if "day = 'a'" in (current.reads or "") else {"a", "b"}
    if not is_blind and any(whole or place_of(name)[0] in days for name in checked):
        return "A"
    read = set(FILES) if whole else set(current.removes if current.moves else current.looked_into)
    if read & set(landed.removes):
        return "R"
    return "D" if set(current.removes) & set(landed.removes) else "."


def refinement(current: Work, landed: Work) -> str | None:
    """Why we may let through what the reference refuses."""
    if landed.moves and not set(landed.removes) & set(current.matched) and current.reads is not None:
        # Files that the predicate excludes were not read, so that nothing is asked of them but their rows.
        return "harmless compaction"
    if "id < 50" in (current.reads or "") and all(place_of(name)[1] >= 50 for name in landed.adds):
        return "proved disjoint"
    return None


# --- the matrix -----------------------------------------------------------------------------------------------------


@functools.cache
def cell(level: str, current: Work, landed: Work) -> str:
    """What happens: `.` commits; A, R or D: the conflict; in small letters one that the reference alone has."""
    told, found = reference(level, current, landed), ours(level, current, landed)
    if told == found:
        return found
    assert found == ".", f"{current} against {landed}: the reference says {told}, we say {found}"
    assert refinement(current, landed) is not None, f"{current} against {landed}: nothing refines {told}"
    return told.lower()


def matrix(level: str) -> list[str]:
    """The matrix of one level as lines of text: a group of six letters, one a winner, for each place."""
    head = " " * 26 + "  ".join(place.ljust(11) for place in PLACES)
    letters = " " * 26 + "  ".join([" ".join(kind[0] for kind in WINNERS)] * len(PLACES))
    lines = [head.rstrip(), letters]
    for name, current in CURRENTS.items():
        groups = [" ".join(cell(level, current, winner(kind, file)) for kind in WINNERS) for file in PLACES.values()]
        lines.append(name.ljust(26) + "  ".join(groups))
    return lines


def documented(level: str) -> list[str]:
    found = re.search(rf"^```text\n{level}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/concurrency.md has no matrix for {level}"
    return found.group(1).rstrip("\n").split("\n")


@pytest.mark.parametrize("level", ["Serializable", "WriteSerializable"])
def test_the_matrix_is_what_the_document_says(level: str) -> None:
    assert matrix(level) == documented(level)


def test_a_winner_that_touches_what_was_changed_always_conflicts() -> None:
    """No refinement lets two changes of one file through, whatever the level."""
    rewriting: Sequence[Work] = [work for work in CURRENTS.values() if work.removes]
    kinds = [kind for kind in WINNERS if kind != "insert"]
    for level, current, kind in itertools.product(("Serializable", "WriteSerializable"), rewriting, kinds):
        assert cell(level, current, winner(kind, "a1")) in "ARD", (level, current, kind)


def test_the_order_does_not_matter_for_who_can_conflict_on_other_days() -> None:
    """Where each names its day, no pair of operations conflicts, and every commit is rebased."""
    named = ("insert", "delete, names the day", "update, names the day", "merge, names the day", "optimize")
    for level, name, kind in itertools.product(("Serializable", "WriteSerializable"), named, WINNERS):
        assert cell(level, CURRENTS[name], winner(kind, "b1")) == ".", (level, name, kind)
