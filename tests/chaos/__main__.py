"""Processes that change one table and are killed at random; then a checker that believes none of them.

python -m tests.chaos --store file|s3 --writers 8 --seconds 60 --seed 1

They append, delete, update, checkpoint, clean the log and vacuum through the engine; one more runs Spark jobs that
write, delete, update, merge, optimize and alter. All die by SIGKILL in the middle of their work and are started again.
The checker, and delta-rs, read what is left. Prints one JSON line; ends with 1 where something is wrong. The table of
an even seed has deletion vectors. `--store s3` needs the server of TXLOG_TEST_S3 (tools/with_stores.sh).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Table
from tests.chaos.check import Found, check, read_log
from tests.chaos.process import LaterStore, work_for_ever
from tests.chaos.work import PROPERTIES, SCHEMA, WITH_VECTORS, WITHOUT_TRANSACTION, Journal, Rows

# So many commits of jobs there must be: they are waited for so long beyond the time given.
JOB_COMMITS_WANTED, GRACE_S = 3, 360.0
# How many pieces a process does after its start before it may be killed: one with Spark takes some seconds to start.
PIECES_OF_A_LIFE = {"engine": 1, "jobs": 3}
# A kill comes so long after the beginning of a piece, at most: about as long as one takes.
PIECE_S = {"engine": 0.04, "jobs": 1.0}
AT_WORK_S, STAGED_S = 5.0, 0.03
KILLS_OF_JOBS = 0.4


class Place:
    """Where the table is, as the checker sees it: not through the store under test."""

    def __init__(self, store: str, folder: Path) -> None:
        self.keys: dict[str, str] = {}
        self.options: dict[str, Any] = {}
        self.reader_options: dict[str, str] = {}
        self.uri = str(folder / "table")
        self._is_s3 = store == "s3"
        if self._is_s3:
            from tests.helpers import s3

            if "TXLOG_TEST_S3" not in os.environ:
                raise SystemExit(
                    "--store s3 needs an S3 server: tools/with_stores.sh .venv/bin/python -m tests.chaos …"
                )
            given = s3.options()
            self.uri = s3.new_folder()
            self.options = given
            keys = {"AWS_ACCESS_KEY_ID": given["key"], "AWS_SECRET_ACCESS_KEY": given["secret"]}
            self.keys = {"TXLOG_CHAOS_ENDPOINT": given["endpoint_url"], **keys}
            self.reader_options = {
                **keys,
                "AWS_ENDPOINT_URL": given["endpoint_url"],
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": given["region"],
            }

    def files(self) -> set[str]:
        """The paths of all files below the table."""
        if self._is_s3:
            from tests.helpers import s3

            return set(s3.keys_under(self.uri))
        base = Path(self.uri)
        return {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """The contents of files of the log, by name."""
        if not self._is_s3:
            return {name: (Path(self.uri) / "_delta_log" / name).read_bytes() for name in names}
        from tests.helpers import s3

        key = self.uri.removeprefix(f"s3://{s3.BUCKET}/")
        get = s3.client().get_object
        return {name: get(Bucket=s3.BUCKET, Key=f"{key}/_delta_log/{name}")["Body"].read() for name in names}

    def rows(self) -> Rows:
        """The rows, as delta-rs reads them."""
        from deltalake import DeltaTable, QueryBuilder

        table = DeltaTable(self.uri, storage_options=self.reader_options)
        return rows_by_id(pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t")))


def rows_by_id(table: pa.Table) -> Rows:
    columns = [table[name].to_pylist() for name in ("id", "n", "bucket")]
    rows = {each: (n, bucket) for each, n, bucket in zip(*columns, strict=True)}
    assert len(rows) == table.num_rows, "an id is there twice"
    return rows


class Processes:
    """The processes by name; one that has died, by itself or killed, is started again.

    Each is a fork of one that has imported everything: an import takes a hundred times as long as a piece of work.
    """

    def __init__(self, place: Place, folder: Path, writers: int, seed: int) -> None:
        self._place, self._folder, self._seed = place, folder, seed
        self._kinds = {f"writer-{number}": "engine" for number in range(writers)} | {"job-0": "jobs"}
        self._writers = [name for name, kind in self._kinds.items() if kind == "engine"]
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["tests.chaos.process", "airflow_txlog.jobs.planner", "botocore.session"])
        self._pieces_at_start = dict.fromkeys(self._kinds, 0)
        self._running = {name: self._start(name) for name in self._kinds}
        self.kills_at_work = 0

    def _start(self, name: str) -> ForkServerProcess:
        number = list(self._kinds).index(name)
        arguments = (self._place.uri, self._folder, name, number, self._seed, self._kinds[name], self._place.keys)
        process = self._forks.Process(target=work_for_ever, args=arguments)
        process.start()
        return process

    def kill_one(self, rng: random.Random, *, jobs: bool) -> bool:
        """Kill one, at work where possible, and start it again; False where the one drawn is not yet worth it."""
        jobs = jobs and rng.random() < KILLS_OF_JOBS
        name = "job-0" if jobs and self._is_worth_it("job-0") else rng.choice(self._writers)
        if not self._is_worth_it(name):
            return False
        self._wait(name, rng)
        self._kill(self._running[name])
        self.kills_at_work += self._is_at_work(name)
        self._pieces_at_start[name] = self._pieces(name)
        self._running[name] = self._start(name)
        return True

    def _is_worth_it(self, name: str) -> bool:
        return self._pieces(name) - self._pieces_at_start[name] >= PIECES_OF_A_LIFE[self._kinds[name]]

    def _wait(self, name: str, rng: random.Random) -> None:
        """Until the process is at work, or, every other time, until its job has staged files and not committed."""
        end_s = time.monotonic() + AT_WORK_S
        is_staged = self._kinds[name] == "jobs" and rng.random() < 0.5
        while time.monotonic() < end_s:
            if is_staged and self._lines(name)[-1].startswith((b'{"log": "staged ', b'{"log": "5 rows in ')):
                return time.sleep(rng.uniform(0, STAGED_S))
            if not is_staged and self._is_at_work(name):
                return time.sleep(rng.uniform(0, PIECE_S[self._kinds[name]]))
            time.sleep(0.002)
        return None

    def job_commits(self) -> int:
        """How many changes of data the process with Spark has had acknowledged."""
        journal = Journal(self._folder / "job-0.jsonl")
        kinds = [journal.pieces[done]["kind"] for done, line in journal.done.items() if line["status"] == "committed"]
        return sum(1 for kind in kinds if kind not in WITHOUT_TRANSACTION)

    def failed(self) -> list[str]:
        """What ended by itself, which none may."""
        return [name for name, process in self._running.items() if process.exitcode is not None]

    def end(self) -> None:
        for process in self._running.values():
            self._kill(process)

    def _kill(self, process: ForkServerProcess) -> None:
        # With its JVM, as a machine that is turned off. One that has just been started is not yet a group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()

    def _journal(self, name: str) -> bytes:
        path = self._folder / f"{name}.jsonl"
        return path.read_bytes() if path.exists() else b""

    def _lines(self, name: str) -> list[bytes]:
        return self._journal(name).splitlines() or [b""]

    def _pieces(self, name: str) -> int:
        return self._journal(name).count(b'"done"')

    def _is_at_work(self, name: str) -> bool:
        marks = [line for line in self._lines(name) if line.startswith((b'{"piece"', b'{"done"'))]
        return bool(marks) and marks[-1].startswith(b'{"piece"')


def run(store: str, writers: int, seconds: float, seed: int, keep: Path | None = None) -> tuple[dict[str, Any], Found]:
    """The figures, and what the checker found. `keep`: gets the journals, and the table where it is on a disk."""
    with tempfile.TemporaryDirectory(prefix="txlog-chaos-") as name:
        folder = Path(name)
        (folder / "archive").mkdir()
        place = Place(store, folder)
        properties = PROPERTIES | (WITH_VECTORS if seed % 2 == 0 else {})
        Table.create(place.uri, SCHEMA, ["bucket"], properties, storage_options=place.options)
        rng, kills = random.Random(seed), 0
        processes = Processes(place, folder, writers, seed)
        end_s = time.monotonic() + seconds
        try:
            while time.monotonic() < end_s or (
                processes.job_commits() < JOB_COMMITS_WANTED and time.monotonic() < end_s + GRACE_S
            ):
                time.sleep(rng.uniform(0.3, 1.5))
                failed = processes.failed()
                if failed:
                    raise SystemExit(f"{failed[0]} ended: {(folder / f'{failed[0]}.log').read_text()[-3000:]}")
                # A machine so slow that the time was not enough gets time to let jobs commit.
                kills += processes.kill_one(rng, jobs=time.monotonic() < end_s)
        finally:
            processes.end()
            if keep is not None:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
        # What a killed process had sent may still be at work in the server.
        time.sleep(1)
        found = _check(place, folder / "archive")
    if found.job_commits < JOB_COMMITS_WANTED:
        found.problems.append(f"only {found.job_commits} jobs of Spark have committed: too few to say anything of them")
    if not kills:
        found.problems.append("no process was killed: too few to say anything")
    figures = {name: value for name, value in dataclasses.asdict(found).items() if name not in ("problems", "live")}
    given = {"store": store, "writers": writers, "seconds": seconds, "seed": seed}
    return {**given, "kills": kills, "kills_at_work": processes.kills_at_work, **figures}, found


def _check(place: Place, archive: Path) -> Found:
    rows, files = place.rows(), place.files()
    in_log = [path.removeprefix("_delta_log/") for path in files if path.startswith("_delta_log/")]
    log = read_log(archive, place.read(name for name in in_log if re.fullmatch(r"\d{20}\.json", name)))
    checkpoints = place.read(name for name in in_log if re.fullmatch(r"\d{20}\.checkpoint\.parquet", name))
    by_version = {int(name[:20]): data for name, data in checkpoints.items()}
    found = check(log, archive.parent, files, rows, by_version)
    table = Table.open(place.uri, storage_options=place.options)
    if rows_by_id(table.to_arrow()) != rows:
        found.problems.append("delta-rs and we do not read the same rows")
    Table(LaterStore(table.store)).vacuum(0, check_retention=False)  # type: ignore[arg-type]
    left = {path for path in place.files() if not path.startswith("_delta_log/")} - found.live
    if left or place.rows() != rows:
        found.problems.append(f"a VACUUM leaves {len(left)} files that are not live, or other rows: {sorted(left)[:3]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=["file", "s3"], default="file")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the journals, and for the table on a disk")
    given = parser.parse_args()
    figures, found = run(given.store, given.writers, given.seconds, given.seed, given.keep)
    print(json.dumps(figures))
    if not found.conflicts:
        # Chance, on a slow machine; a run that is to show something has some.
        found.problems.append("no process met a conflict: too few commits to say anything")
    for problem in found.problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(found.problems or found.lost or found.duplicated or found.unserializable))


if __name__ == "__main__":
    main()
