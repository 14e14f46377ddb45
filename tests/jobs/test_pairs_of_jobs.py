"""The concurrency matrix with real jobs: each operation loses its race to each other, on the same rows and elsewhere.

The second job runs from start to end when the first has staged everything; then the first goes on to its commit, is
rebased or plans again, and lands. At Serializable the table is what the second and then the first would have made of
it; at WriteSerializable a blind append of the second counts as the later one. What each job says that it read is
compared with what docs/concurrency.md takes for granted (tests/engine/commit/test_matrix.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract import JobResult, JobSpec
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.jobs import rounds
from airflow_txlog.jobs.run import run_job
from tests.engine.commit import test_matrix as matrix
from tests.engine.rows import append
from tests.jobs.tables import committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())])
# Id, day and name.
Rows = list[tuple[int, str, str]]


def _merge(on: str) -> dict[str, Any]:
    return {
        "source": {"sql": "SELECT id * 7 AS id, 'a' AS day, 'merged' AS name FROM range(8)"},
        "on": on,
        "clauses": [
            {"when": "matched", "then": "update", "set": {"name": "concat(t.name, 'm')"}},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ],
    }


def _inserted(rows: Rows) -> Rows:
    return [*rows, *((number, "a", "inserted") for number in range(1000, 1020))]


def _deleted(rows: Rows) -> Rows:
    return [row for row in rows if not (row[1] == "a" and row[0] % 10 == 3)]


def _updated(rows: Rows) -> Rows:
    return [(n, day, name + "u" if day == "a" and n % 5 == 0 else name) for n, day, name in rows]


def _merged(rows: Rows) -> Rows:
    source = {number * 7 for number in range(8)}
    matched = [(n, day, name + "m" if n in source else name) for n, day, name in rows]
    return [*matched, *((n, "a", "merged") for n in sorted(source - {row[0] for row in rows}))]


# An operation of the provider, its arguments, and what it makes of the rows.
JOBS: dict[str, tuple[str, dict[str, Any], Callable[[Rows], Rows]]] = {
    "insert": (
        "write",
        {"source": {"sql": "SELECT id, 'a' AS day, 'inserted' AS name FROM range(1000, 1020)"}},
        _inserted,
    ),
    "delete": ("delete", {"predicate": "day = 'a' AND id % 10 = 3"}, _deleted),
    "update": ("update", {"predicate": "day = 'a' AND id % 5 = 0", "set": {"name": "concat(name, 'u')"}}, _updated),
    "merge": ("merge", _merge("t.id = s.id"), _merged),
    "optimize": ("optimize", {}, lambda rows: rows),
}


def make_table(folder: Path, level: str) -> Table:
    """Days a and b, two files each: ids 0 to 19 and 20 to 39 of each day's hundred."""
    table = Table.create(folder / "t", SCHEMA, ["day"], {"delta.isolationLevel": level})
    for start, day in ((0, "a"), (20, "a"), (100, "b"), (120, "b")):
        append(table, [{"id": start + n, "day": day, "name": "old"} for n in range(20)])
    return table


def content(table: Table) -> Rows:
    return sorted((row["id"], row["day"], row["name"]) for row in table.to_arrow().to_pylist())


def spec(table: Table, name: str) -> JobSpec:
    operation, arguments, _ = JOBS[name]
    return JobSpec(operation=operation, table_uri=table.uri, arguments=arguments)


@contextmanager
def once_staged(action: Callable[[Transaction], None]) -> Iterator[None]:
    """Everything of the first job is staged and nothing committed; the action happens once, then."""
    commit, waiting = rounds.commit_change, [action]

    def late(context: Any, tx: Transaction, *rest: Any, **more: Any) -> Any:
        if waiting:
            waiting.pop()(tx)
        return commit(context, tx, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "commit_change", late)
        yield


def play(spark: SparkSession, table: Table, first: str, second: str) -> tuple[JobResult, JobResult]:
    landed: list[JobResult] = []
    with once_staged(lambda tx: landed.append(run_job(spec(table, second), spark.newSession()))):
        result = run_job(spec(table, first), spark)
    assert result.status in ("committed", "nothing_to_do"), result.error
    return result, committed(landed[0])


@pytest.mark.parametrize("second", JOBS)
@pytest.mark.parametrize("first", JOBS)
def test_a_job_that_lost_its_race_commits_what_it_would_have_made_of_the_winners_rows(
    tmp_path: Path, spark: SparkSession, first: str, second: str
) -> None:
    table = make_table(tmp_path, "Serializable")
    before = content(table)
    result, _ = play(spark, table, first, second)
    # The second of two deletes finds nothing to do, nor does a compaction of what was compacted just now.
    is_done = first == second and first in ("delete", "optimize")
    assert result.status == ("nothing_to_do" if is_done else "committed")
    assert content(table) == sorted(JOBS[first][2](JOBS[second][2](before)))


@pytest.mark.parametrize("first", ["delete", "update", "merge"])
def test_at_write_serializable_a_blind_append_counts_as_the_later_one(
    tmp_path: Path, spark: SparkSession, first: str
) -> None:
    table = make_table(tmp_path, "WriteSerializable")
    before = content(table)
    result, _ = play(spark, table, first, "insert")
    assert result.rounds == 1
    assert content(table) == sorted(JOBS["insert"][2](JOBS[first][2](before)))


# --- what the jobs read ---------------------------------------------------------------------------------------------

_SOURCE = {"sql": "SELECT 1L AS id, 'a' AS day"}
_MATCHED = [{"when": "matched", "then": "delete"}]
# The matrix's name of a transaction, and the job that it stands for: it finds its one row in a1.
STANDS_FOR: dict[str, tuple[str, dict[str, Any]]] = {
    "insert": ("write", {"source": _SOURCE}),
    "delete, names the day": ("delete", {"predicate": "day = 'a' AND id < 50 AND id = 1"}),
    "delete": ("delete", {"predicate": "id < 50 AND id + 0 = 1"}),
    "update, names the day": ("update", {"predicate": "day = 'a' AND id < 50 AND id = 1", "set": {"id": "1"}}),
    "merge, names the day": (
        "merge",
        {"source": _SOURCE, "on": "t.id = s.id AND t.day = 'a' AND t.id < 50", "clauses": _MATCHED},
    ),
    "overwrite of the day": ("write", {"source": _SOURCE, "mode": "overwrite", "partition_predicate": "day = 'a'"}),
}


@pytest.mark.parametrize("name", STANDS_FOR)
def test_a_job_reads_what_the_matrix_takes_for_granted(tmp_path: Path, spark: SparkSession, name: str) -> None:
    table = Table.create(tmp_path / "t", matrix.SCHEMA, ["day"])
    paths = {}
    for file, (day, start) in matrix.FILES.items():
        # In a1 alone there is an id 1.
        ids = [start, start + 1 if file == "a1" else start + 2, start + 9]
        version = append(table, [{"id": number, "day": day} for number in ids])
        paths[file] = (set(_paths(table, version)) - set(_paths(table, version - 1))).pop()
    seen: list[Transaction] = []
    operation, arguments = STANDS_FOR[name]
    with once_staged(seen.append):
        committed(run_job(JobSpec(operation=operation, table_uri=table.uri, arguments=arguments), spark))
    work, reads = matrix.CURRENTS[name], seen[0]._reads
    named = {file for file, path in paths.items() if any(path in one for one in reads.paths)}
    nothing_there = {file for file, path in paths.items() if any(path in one for one in reads.unmatched)}
    assert named == set(work.looked_into)
    assert nothing_there == set(work.looked_into) - set(work.matched)
    assert not reads.whole_table
    assert bool(reads.predicates) == bool(work.reads)


def _paths(table: Table, version: int) -> list[str]:
    return table.snapshot(version).files().column("path").to_pylist()
