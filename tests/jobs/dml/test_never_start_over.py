"""Never start over, counted: 200 files, and winners between staging and commit that bring two files each.

What a round looks at is counted where it is remembered, and besides the other files are taken away meanwhile: a job
that reads one of them again fails. A job that is killed after staging is resumed, and stages nothing twice.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract import ApplicationTransaction, JobSpec, write_document
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.jobs import rounds
from airflow_txlog.jobs.dml.memory import COPY, IMAGES, INSERTS, LiveFile, Memory, Segment
from airflow_txlog.jobs.dml.staging import MAX_INPUTS
from airflow_txlog.jobs.run import run_job
from tests.engine.rows import append, stage
from tests.jobs.tables import SCHEMA, committed, files_on_disk, live_files, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
FILES, ROWS = 200, 4
NEW = 10_000
WINNERS = 10

Ids = dict[int, str]


def file_rows(first: int, name: str = "old") -> pa.Table:
    """The rows of one file: four ids from `first` on."""
    ids = range(first, first + ROWS)
    day = [dt.date(2024, 1, 1)] * ROWS
    return pa.table([list(ids), day, [name] * ROWS, [0.0] * ROWS], schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """200 files in one commit; each has one row that the jobs are about."""
    table = make_table(tmp_path / "t", schema=SCHEMA)
    tx = table.begin()
    for number in range(FILES):
        tx.add(stage(table, file_rows(number * ROWS)))
    tx.commit("WRITE")
    return table


DELETE: dict[str, Any] = {"predicate": "id % 4 = 1"}
# Matches a row of every file; of the others, 40 are inserted and 10 match what the winners append.
MERGE: dict[str, Any] = {
    "source": {
        "sql": f"SELECT id * 4 + 1 AS id, 'new' AS name FROM range({FILES}) "
        f"UNION ALL SELECT id * 4 + {NEW} + 1, 'new' FROM range(50)"
    },
    "on": "t.id = s.id",
    "clauses": [
        {"when": "matched", "then": "update", "set": {"name": "s.name"}},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": "s.name"}},
    ],
}


def spec(operation: str, table: Table, **more: Any) -> JobSpec:
    arguments = DELETE if operation == "delete" else MERGE
    return JobSpec(operation=operation, table_uri=table.uri, arguments=arguments, **more)


def after(operation: str, before: Ids) -> Ids:
    """The serial order: the job on the rows that the winners left."""
    if operation == "delete":
        return {number: name for number, name in before.items() if number % 4 != 1}
    source = {number * 4 + 1 for number in range(FILES)} | {number * 4 + NEW + 1 for number in range(50)}
    return {**before, **dict.fromkeys(source, "new")}


def content(table: Table) -> Ids:
    rows = table.to_arrow(columns=["id", "name"]).to_pylist()
    found = {row["id"]: row["name"] for row in rows}
    assert len(found) == len(rows), "an id twice"
    return found


# --- winners --------------------------------------------------------------------------------------------------------


@dataclass
class Winner:
    """A commit that appends one matching file and rewrites one that the job had touched."""

    table: Table
    number: int = 0

    def land(self) -> str:
        """The path of the file that was rewritten."""
        first = self.number * ROWS
        old = [
            add
            for add in table_to_adds(self.table.snapshot().files(), data_change=True)
            if f'"id":{first},' in _least(add.stats)
        ]
        assert len(old) == 1
        tx = self.table.begin()
        tx.read_files([old[0].path])
        tx.remove(path=old[0].path)
        tx.add(stage(self.table, file_rows(first, "rewritten"), tx=tx))
        tx.commit("UPDATE")
        append(self.table, file_rows(NEW + first, "appended"))
        self.number += 1
        return old[0].path


def _least(stats: str | None) -> str:
    return (stats or "").split('"minValues":{')[1].split("}")[0] + ","


# --- counts ---------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """What each round looked at and staged, as the memory was told."""

    looked: list[list[str]] = field(default_factory=lambda: [[]])
    staged: list[list[Segment]] = field(default_factory=lambda: [[]])

    def next_round(self) -> None:
        self.looked.append([])
        self.staged.append([])

    def kinds(self, number: int) -> Counter[str]:
        return Counter(segment.kind for segment in self.staged[number])


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    remember, add = Memory.remember, Memory.add

    def remembered(memory: Memory, file: LiveFile, verdicts: pa.Table) -> None:
        counts.looked[-1].append(file.path)
        remember(memory, file, verdicts)

    def added(memory: Memory, segments: Any) -> None:
        new = list(segments)
        counts.staged[-1].extend(new)
        add(memory, new)

    monkeypatch.setattr(Memory, "remember", remembered)
    monkeypatch.setattr(Memory, "add", added)
    return counts


def before_each_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Everything is staged, and nothing is committed yet."""
    commit = rounds.commit_change

    def late(*args: Any, **kwargs: Any) -> Any:
        action()
        return commit(*args, **kwargs)

    monkeypatch.setattr(rounds, "commit_change", late)


@contextmanager
def taken_away(table: Table) -> Iterator[Callable[[set[str]], None]]:
    """A function that takes data files away (by their paths); all are there again at the end."""
    root = Path(table.uri.removeprefix("file://"))
    away: set[str] = set()

    def take(paths: set[str]) -> None:
        for path in paths - away:
            (root / path).rename(root / f"{path}.away")
        away.update(paths)

    try:
        yield take
    finally:
        for path in away:
            (root / f"{path}.away").rename(root / path)


# --- the tests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["delete", "merge"])
def test_after_a_winner_two_files_are_looked_at_and_only_what_they_feed_is_staged_again(
    table: Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, counts: Counts, operation: str
) -> None:
    winner = Winner(table)
    before = live_files(table)
    expected: list[Ids] = []
    fed: list[Segment] = []

    def land() -> None:
        if winner.number:
            return
        rewritten = winner.land()
        expected.append(content(table))
        fed.extend(s for s in counts.staged[0] if s.kind == IMAGES and any(rewritten in key for key in s.inputs))
        counts.next_round()
        # Whoever looks at a file that was looked at already finds it gone. The images that went with the rewritten
        # file's are staged again, so that the files which they came from are needed.
        take({path for path in before if not any(path in key for segment in fed for key in segment.inputs)})

    before_each_commit(monkeypatch, land)
    with taken_away(table) as take:
        result = committed(run_job(spec(operation, table), spark))
    assert result.rounds == 2
    assert [len(looked) for looked in counts.looked] == [FILES, 2]
    assert set(counts.looked[1]).isdisjoint(counts.looked[0])
    assert (counts.kinds(0)[COPY], counts.kinds(1)[COPY]) == (FILES, 2)
    if operation == "merge":
        again = [segment for segment in counts.staged[1] if segment.kind == IMAGES]
        assert [len(segment.inputs) for segment in fed] <= [MAX_INPUTS]
        # Those that lost a file to the winner, less that file, and the two new files.
        assert sum(len(segment.inputs) for segment in again) == len(fed[0].inputs) - 1 + 2
        assert counts.kinds(1)[INSERTS] == 1
    assert content(table) == after(operation, expected[0])


@pytest.mark.parametrize("operation", ["delete", "merge"])
def test_ten_winners_in_a_row_and_the_job_commits_all_the_same(
    table: Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, counts: Counts, operation: str
) -> None:
    winner = Winner(table)
    expected: list[Ids] = []

    def land() -> None:
        if winner.number < WINNERS:
            winner.land()
            expected[:] = [content(table)]
            counts.next_round()

    before_each_commit(monkeypatch, land)
    result = committed(run_job(spec(operation, table), spark))
    assert result.rounds == WINNERS + 1
    assert [len(looked) for looked in counts.looked] == [FILES, *[2] * WINNERS]
    assert [counts.kinds(number)[COPY] for number in range(WINNERS + 1)] == [FILES, *[2] * WINNERS]
    assert content(table) == after(operation, expected[0])
    # Not a file is left that no commit names.
    assert files_on_disk(table) == ever_live(table)


@pytest.mark.parametrize("operation", ["delete", "merge"])
def test_b1_a_job_that_is_killed_after_staging_stages_nothing_twice(
    table: Table, tmp_path: Path, spark: SparkSession, counts: Counts, operation: str
) -> None:
    identity = ApplicationTransaction(app_id=f"test/{operation}", version=1)
    described = spec(operation, table, application=identity, result_uri=str(tmp_path / "result.json"))
    assert killed_before_commit(described, tmp_path) == -signal.SIGKILL
    assert table.snapshot().version == 1
    staged = files_on_disk(table) - ever_live(table)
    data = {path for path in staged if "txlog-inputs" not in path}
    assert len(data) >= FILES
    winner = Winner(table)
    winner.land()
    expected = content(table)
    result = committed(run_job(described, spark))
    assert result.rounds == 1
    assert len(counts.looked[0]) == 2
    assert counts.kinds(0)[COPY] == 2
    assert content(table) == after(operation, expected)
    # What the killed job had copied is what was committed, but for the file that is another now.
    assert len({path for path in data if path in live_files(table) and is_copy(path)}) == FILES - 1
    # And nothing is left of either, pinned inputs included.
    assert files_on_disk(table) == ever_live(table)


def killed_before_commit(described: JobSpec, folder: Path) -> int:
    """Run the job in a process that kills itself when everything is staged; its exit code."""
    write_document(str(folder / "spec.json"), described.to_json())
    code = """
        import os, signal, sys
        from airflow_txlog.contract import read_spec
        from airflow_txlog.jobs import rounds
        from airflow_txlog.jobs.run import run_job
        from airflow_txlog.jobs.session import local_session

        rounds.commit_change = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
        run_job(read_spec(sys.argv[1]), local_session({"spark.master": "local[2]"}), log=print)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines()), str(folder / "spec.json")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode


def ever_live(table: Table) -> set[str]:
    """The files of all versions."""
    return {path for version in range(table.snapshot().version + 1) for path in _paths(table, version)}


def _paths(table: Table, version: int) -> set[str]:
    return set(table.snapshot(version).files().column("path").to_pylist())


def is_copy(path: str) -> bool:
    """Copies say in their names which file they are of."""
    return re.search(r"\.c\d{5}\.", path) is not None
