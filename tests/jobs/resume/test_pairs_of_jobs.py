"""Alone in showing that what real jobs read and write is what the engine's concurrency matrix takes for granted.

`tests/engine/commit/conflicts/test_matrix.py` decides every pair of operations over made-up transactions. Here the
transactions are those of jobs: what they register as read is compared with the matrix's, and a few pairs of jobs show
that a loser commits what it would have made of the winner's rows (at WriteSerializable a blind append counts as the
later one).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table, Transaction
from tests.engine.commit.conflicts import test_matrix as matrix
from tests.helpers.jobs import by_id, committed, delete, insert, live_files, run, update
from tests.helpers.racing import before_commit
from tests.helpers.rows import append, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow("two Spark jobs a test")]

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())])
# Id, day and name.
Rows = list[tuple[int, str, str]]
# Ids of day a that the matching rows of a merge have: one that is there, two that the insert brings, four that are new.
MERGED = range(28, 56, 7)


def _merged(rows: Rows) -> Rows:
    matched = [(n, day, name + "m" if n in MERGED else name) for n, day, name in rows]
    return [*matched, *((n, "a", "merged") for n in sorted(set(MERGED) - {row[0] for row in rows}))]


# An operation of the provider, its arguments, and what it makes of the rows.
JOBS: dict[str, tuple[str, dict[str, Any], Callable[[Rows], Rows]]] = {
    "insert": (
        "write",
        {"source": {"sql": "SELECT id, 'a' AS day, 'inserted' AS name FROM range(40, 50)"}},
        lambda rows: [*rows, *((n, "a", "inserted") for n in range(40, 50))],
    ),
    "delete": (
        "delete",
        {"predicate": "day = 'a' AND pmod(id, 7) < 2"},
        lambda rows: [row for row in rows if row[1] != "a" or row[0] % 7 > 1],
    ),
    "update": (
        "update",
        {"predicate": "day = 'a' AND pmod(id, 5) = 0", "set": {"name": "concat(name, 'u')"}},
        lambda rows: [(n, day, name + "u" if day == "a" and n % 5 == 0 else name) for n, day, name in rows],
    ),
    "merge": (
        "merge",
        {
            "source": {"sql": "SELECT id, 'a' AS day, 'merged' AS name FROM range(28, 56, 7)"},
            "on": "t.id = s.id",
            "clauses": [update({"name": "concat(t.name, 'm')"}), insert()],
        },
        _merged,
    ),
    "optimize": ("optimize", {}, lambda rows: rows),
}
# The first loses to the second; what an OPTIMIZE loses to is in test_optimize, a merge to a merge in test_scoped_jobs.
LONG = pytest.mark.long("two Spark jobs more; the other pairs show each operation as the loser")
PAIRS = [
    ("delete", "delete"),
    pytest.param("delete", "optimize", marks=LONG),
    ("update", "delete"),
    pytest.param("update", "update", marks=LONG),
    ("merge", "insert"),
    pytest.param("merge", "delete", marks=LONG),
    pytest.param("merge", "merge", marks=LONG),
]


def make_table(folder: Path, level: str) -> Table:
    """Days a and b, two files of a and one of b: ids 0 to 19 and 20 to 39, and 120 to 139."""
    table = Table.create(folder / "t", SCHEMA, ["day"], {"delta.isolationLevel": level})
    for start, day in ((0, "a"), (20, "a"), (120, "b")):
        append(table, [{"id": start + n, "day": day, "name": "old"} for n in range(20)])
    return table


def content(table: Table) -> Rows:
    return sorted((row["id"], row["day"], row["name"]) for row in table.to_arrow().to_pylist())


def play(spark: SparkSession, table: Table, first: str, second: str) -> JobResult:
    """The second job runs from start to end when the first has staged everything; then the first goes on."""

    def job(name: str) -> JobResult:
        operation, arguments, _ = JOBS[name]
        return run(spark, operation, table, **arguments)

    with before_commit(lambda tx: committed(job(second))):
        return job(first)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_job_that_lost_its_race_commits_what_it_would_have_made_of_the_winners_rows(
    tmp_path: Path, spark: SparkSession, first: str, second: str
) -> None:
    table = make_table(tmp_path, "Serializable")
    before = content(table)
    result = play(spark, table, first, second)
    # The second of two deletes finds nothing to do.
    is_done = first == second == "delete"
    assert (result.status, result.attempts) == ("nothing_to_do" if is_done else "committed", 2), result.error
    assert content(table) == sorted(JOBS[first][2](JOBS[second][2](before)))


def test_at_write_serializable_a_blind_append_counts_as_the_later_one(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path, "WriteSerializable")
    before = content(table)
    result = play(spark, table, "merge", "insert")
    assert (result.status, result.attempts) == ("committed", 1), result.error
    assert content(table) == sorted(JOBS["insert"][2](_merged(before)))


def test_a12_a_compaction_of_files_in_which_nothing_was_found_passes_without_another_attempt(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Both files may hold id 3 by their statistics, and only one does; it is the other that is compacted."""
    table = Table.create(tmp_path / "t", SCHEMA)
    for ids in ((1, 3, 9), (0, 10)):
        append(table, [{"id": number, "day": "a", "name": "old"} for number in ids])

    def compact(_: Transaction) -> None:
        tx = table.begin()
        files = tx.read("id = 10")
        (path,) = files.column("path").to_pylist()
        tx.remove(files, data_change=False)
        moved = stage(table, pq.read_table(tmp_path / "t" / path), tx=tx)
        tx.add([msgspec.structs.replace(add, data_change=False) for add in moved])
        tx.commit("OPTIMIZE")

    with before_commit(compact):
        source = {"sql": "SELECT 3L AS id"}
        result = run(spark, "merge", table, source=source, on="t.id = s.id", clauses=[update({"name": "'new'"})])
    assert (committed(result).version, result.attempts) == (4, 1)
    assert by_id(table) == {0: "old", 1: "old", 3: "new", 9: "old", 10: "old"}


# --- what the jobs read ---------------------------------------------------------------------------------------------

_SOURCE = {"sql": "SELECT 1L AS id, 'a' AS day"}
# The matrix's name of a transaction, and the job that it stands for: it finds its one row in a1.
STANDS_FOR: dict[str, tuple[str, dict[str, Any]]] = {
    "insert": ("write", {"source": _SOURCE}),
    "delete, names the day": ("delete", {"predicate": "day = 'a' AND id < 50 AND id = 1"}),
    "delete": ("delete", {"predicate": "id < 50 AND pmod(id, 1000) = 1"}),
    "update, names the day": ("update", {"predicate": "day = 'a' AND id < 50 AND id = 1", "set": {"id": "1"}}),
    "merge, names the day": (
        "merge",
        {"source": _SOURCE, "on": "t.id = s.id AND t.day = 'a' AND t.id < 50", "clauses": [delete()]},
    ),
    "overwrite of the day": ("write", {"source": _SOURCE, "mode": "overwrite", "partition_predicate": "day = 'a'"}),
}


@pytest.mark.parametrize("name", STANDS_FOR)
def test_a_job_reads_what_the_matrix_takes_for_granted(tmp_path: Path, spark: SparkSession, name: str) -> None:
    table = Table.create(tmp_path / "t", matrix.SCHEMA, ["day"])
    paths: dict[str, str] = {}
    for file, (day, start) in matrix.FILES.items():
        # In a1 alone there is an id 1.
        before = live_files(table)
        append(table, [{"id": n, "day": day} for n in (start, start + 1 if file == "a1" else start + 2, start + 9)])
        (paths[file],) = live_files(table) - before
    seen: list[Transaction] = []
    operation, arguments = STANDS_FOR[name]
    with before_commit(seen.append):
        committed(run(spark, operation, table, **arguments))
    work, reads = matrix.CURRENTS[name], seen[0].reads
    named = {file for file, path in paths.items() if any(path in one for one in reads.paths)}
    nothing_there = {file for file, path in paths.items() if any(path in one for one in reads.unmatched)}
    assert named == set(work.looked_into)
    assert nothing_there == set(work.looked_into) - set(work.matched)
    assert not reads.whole_table
    assert bool(reads.predicates) == bool(work.reads)
