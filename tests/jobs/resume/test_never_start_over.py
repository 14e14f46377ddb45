"""Alone in showing, with real jobs, what an attempt after a lost race costs: the files that the winner changed, not the
table; and that a job which was killed by the system, in its own process, is taken up by another."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec, write_document
from airflow_txlog.engine import Table
from airflow_txlog.jobs.resume.memory import COPY, IMAGES, INSERTS, FileMatches, LiveFile, Memory, Segment
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import KEY, SCHEMA, by_id, committed, ever_live, files_on_disk, insert, live_files, update
from tests.helpers.paths import ROOT
from tests.helpers.racing import before_commit
from tests.helpers.rows import append, make_table, stage
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("several attempts over many files"),
]

# Images of so many files are staged together: four groups of the table's files.
GROUP = 3
FILES, ROWS = 12, 4
NEW = 10_000
WINNERS = 2


def file_rows(first: int, name: str = "old") -> pa.Table:
    """The rows of one file: four ids from `first` on."""
    ids = list(range(first, first + ROWS))
    return pa.table([ids, [dt.date(2024, 1, 1)] * ROWS, [name] * ROWS, [0.0] * ROWS], schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Many files in one commit; each has one row that the jobs are about."""
    table = make_table(tmp_path / "t", schema=SCHEMA)
    tx = table.begin()
    for number in range(FILES):
        tx.add(stage(table, file_rows(number * ROWS)))
    tx.commit("WRITE")
    return table


# Matches a row of every file; of the others some match what the winners append, and the rest are inserted.
JOBS: dict[str, dict[str, Any]] = {
    "delete": {"predicate": "pmod(id, 4) = 1"},
    "merge": {
        "source": {
            "sql": f"SELECT id * 4 + 1 AS id, 'new' AS name FROM range({FILES}) "
            f"UNION ALL SELECT id * 4 + {NEW} + 1, 'new' FROM range(9)"
        },
        "on": "t.id = s.id",
        "clauses": [update({"name": "s.name"}), insert({"id": "s.id", "name": "s.name"})],
    },
}


def spec(operation: str, table: Table, **more: Any) -> JobSpec:
    return job_spec(operation=operation, table_uri=table.uri, arguments=JOBS[operation], **more)


def after(operation: str, before: dict[int, str]) -> dict[int, str]:
    """The serial order: the job on the rows that the winners left."""
    if operation == "delete":
        return {number: name for number, name in before.items() if number % 4 != 1}
    source = {number * 4 + 1 for number in range(FILES)} | {number * 4 + NEW + 1 for number in range(9)}
    return {**before, **dict.fromkeys(source, "new")}


@dataclass
class Winner:
    """Commits that each append one matching file and rewrite one that the job had touched."""

    table: Table
    number: int = 0

    def land(self) -> str:
        """The path of the file that was rewritten."""
        first = self.number * ROWS
        tx = self.table.begin()
        (path,) = tx.read(f"id = {first}").column("path").to_pylist()
        tx.remove(path)
        tx.add(stage(self.table, file_rows(first, "rewritten"), tx=tx))
        tx.commit("UPDATE")
        append(self.table, file_rows(NEW + first, "appended"))
        self.number += 1
        return str(path)


@dataclass
class Counts:
    """What each attempt looked at and staged, as the memory was told."""

    looked: list[list[str]] = field(default_factory=lambda: [[]])
    staged: list[list[Segment]] = field(default_factory=lambda: [[]])

    def next_attempt(self) -> None:
        self.looked.append([])
        self.staged.append([])

    def kinds(self, number: int) -> Counter[str]:
        return Counter(segment.kind for segment in self.staged[number])

    def images(self, number: int) -> list[frozenset[str]]:
        return [segment.inputs for segment in self.staged[number] if segment.kind == IMAGES]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    remember, add = Memory.remember, Memory.add

    def remembered(memory: Memory, file: LiveFile, matches: FileMatches) -> None:
        counts.looked[-1].append(file.path)
        remember(memory, file, matches)

    def added(memory: Memory, segments: Any) -> None:
        new = list(segments)
        counts.staged[-1].extend(new)
        add(memory, new)

    monkeypatch.setattr(Memory, "remember", remembered)
    monkeypatch.setattr(Memory, "add", added)
    return counts


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.parametrize(
    "operation", [pytest.param("delete", marks=pytest.mark.long("the merge does all of it")), "merge"]
)
def test_each_attempt_looks_at_the_two_files_that_the_winner_brought_and_stages_what_they_feed(
    table: Table, spark: SparkSession, counts: Counts, operation: str
) -> None:
    winner, root = Winner(table), Path(table.uri.removeprefix("file://"))
    expected: dict[int, str] = {}
    rewritten: list[str] = []
    away: set[str] = set()

    def land(_: Any) -> None:
        rewritten.append(winner.land())
        expected.clear()
        expected.update(by_id(table))
        if winner.number == WINNERS:
            # A file that is read once more is found gone, but for those of which images are staged again.
            fed = {
                key
                for inputs in counts.images(0)
                if any(p in key for p in rewritten for key in inputs)
                for key in inputs
            }
            away.update(path for path in counts.looked[0] if not any(path in key for key in fed))
            for path in away:
                (root / path).rename(root / f"{path}.away")
        counts.next_attempt()

    try:
        with before_commit(land, times=WINNERS):
            result = committed(run_job(spec(operation, table), spark, limits=Limits(segment_files=GROUP)))
    finally:
        for path in away:
            (root / f"{path}.away").rename(root / path)
    assert away
    assert result.attempts == WINNERS + 1
    assert [len(looked) for looked in counts.looked] == [FILES, *[2] * WINNERS]
    assert all(set(looked).isdisjoint(counts.looked[0]) for looked in counts.looked[1:])
    assert [counts.kinds(number)[COPY] for number in range(WINNERS + 1)] == [FILES, *[2] * WINNERS]
    if operation == "merge":
        assert max(map(len, counts.images(0))) == GROUP
        fed = next(inputs for inputs in counts.images(0) if any(rewritten[0] in key for key in inputs))
        # Those that lost a file to the winner, less that file, and the two new files.
        assert sum(map(len, counts.images(1))) == len(fed) - 1 + 2
        assert counts.kinds(1)[INSERTS] == 1
    assert by_id(table) == after(operation, expected)
    assert files_on_disk(table) == ever_live(table), "a file is left that no commit names"


@pytest.mark.long("a child with a Spark of its own; test_histories kills and resumes jobs in one process")
def test_b1_a_job_that_is_killed_after_staging_stages_nothing_twice(
    table: Table, tmp_path: Path, spark: SparkSession, counts: Counts
) -> None:
    identity = ApplicationTransaction(app_id="test/delete", version=1)
    described = spec(
        "delete", table, application=identity, saved_work_key=KEY, result_uri=str(tmp_path / "result.json")
    )
    assert killed_before_commit(described, tmp_path) == -signal.SIGKILL
    assert table.snapshot().version == 1
    staged = files_on_disk(table) - ever_live(table)
    copies = {path for path in staged if re.search(r"\.c\d{5}\.", path)}
    assert len(copies) == FILES
    Winner(table).land()
    expected = by_id(table)
    result = committed(run_job(described, spark, limits=Limits(segment_files=GROUP)))
    assert (result.attempts, len(counts.looked[0]), counts.kinds(0)[COPY]) == (1, 2, 2)
    assert by_id(table) == after("delete", expected)
    # What the killed job had copied is what was committed, but for the file that is another now.
    assert len(copies & live_files(table)) == FILES - 1
    # And nothing is left of either, materialized inputs included.
    assert files_on_disk(table) == ever_live(table)


def killed_before_commit(described: JobSpec, folder: Path) -> int:
    """Run the job in a process that kills itself when everything is staged; its exit code."""
    write_document(str(folder / "spec.json"), described.to_json(with_key=True))
    code = """
        import os, signal, sys
        from airflow_txlog.contract.job import read_spec
        from airflow_txlog.jobs.resume import attempts
        from airflow_txlog.jobs.run import run_job
        from airflow_txlog.jobs.spark.session import local_session

        attempts.commit_change = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
        conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        conf["spark.driver.extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        run_job(read_spec(sys.argv[1]), local_session(conf))
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
