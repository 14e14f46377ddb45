"""Processes that change one table and are killed at random; then a checker that believes none of them.

python -m tests.chaos --store file|s3 --writers 8 --seconds 60 --seed 1

They append, delete, update, checkpoint, clean the log and vacuum through the engine; one more runs Spark jobs that
write, delete, update, merge and optimize. All die by SIGKILL in the middle of their work and are started again. The
checker, and delta-rs, read what is left. Prints one JSON line; ends with 1 where something is wrong.
`--store s3` needs the server of TXLOG_TEST_S3 (tools/with_stores.sh).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_txlog.engine import Table
from tests.chaos.check import Found, check, read_log
from tests.chaos.work import PROPERTIES, SCHEMA, Rows

# So many pieces of the process with Spark are waited for, and so long beyond the time given.
JOBS_WANTED, GRACE_S = 8, 120.0
JOB_COMMITS_WANTED = 3
# How many pieces a process does after its start before it may be killed: one with Spark takes ten seconds to start.
PIECES_OF_A_LIFE = {"engine": 1, "jobs": 4}


class Place:
    """Where the table is, as the checker sees it: not through the store under test."""

    def __init__(self, store: str, folder: Path) -> None:
        self.environment = dict(os.environ)
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
            self.environment |= {"TXLOG_CHAOS_ENDPOINT": given["endpoint_url"], **keys}
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

    def commits(self) -> dict[str, bytes]:
        """The commits that the log still has, by name."""
        names = [path for path in self.files() if path.startswith("_delta_log/") and path.endswith(".json")]
        names = [name for name in names if len(name) == len("_delta_log/") + 25]
        if self._is_s3:
            from tests.helpers import s3

            key = self.uri.removeprefix(f"s3://{s3.BUCKET}/")
            get = s3.client().get_object
            return {name[11:]: get(Bucket=s3.BUCKET, Key=f"{key}/{name}")["Body"].read() for name in names}
        return {name[11:]: (Path(self.uri) / name).read_bytes() for name in names}

    def rows(self) -> Rows:
        """The rows, as delta-rs reads them."""
        from deltalake import DeltaTable

        table = DeltaTable(self.uri, storage_options=self.reader_options).to_pyarrow_table()
        columns = [table[name].to_pylist() for name in ("id", "n", "bucket")]
        rows = {each: (n, bucket) for each, n, bucket in zip(*columns, strict=True)}
        assert len(rows) == table.num_rows, "an id is there twice"
        return rows


class Processes:
    """The processes by name; one that has died, by itself or killed, is started again."""

    def __init__(self, place: Place, folder: Path, writers: int, seed: int) -> None:
        self._place, self._folder, self._seed = place, folder, seed
        self._kinds = {f"writer-{number}": "engine" for number in range(writers)} | {"job-0": "jobs"}
        self._running = {name: self._start(name) for name in self._kinds}
        self._pieces_at_start = dict.fromkeys(self._kinds, 0)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        number = list(self._kinds).index(name)
        arguments = [self._place.uri, str(self._folder), name, str(number), str(self._seed), self._kinds[name]]
        output = (self._folder / f"{name}.log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.process", *arguments],
            env=self._place.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def kill_one(self, rng: random.Random) -> bool:
        """Kill one and start it again; False where the one that was drawn is not yet worth it."""
        name = rng.choice([*self._kinds, "job-0"])
        done = self._pieces(name)
        if done - self._pieces_at_start[name] < PIECES_OF_A_LIFE[self._kinds[name]]:
            return False
        self._kill(self._running[name])
        self._pieces_at_start[name] = done
        self._running[name] = self._start(name)
        return True

    def job_pieces(self) -> int:
        """How many pieces the process with Spark has done."""
        return self._pieces("job-0")

    def failed(self) -> list[str]:
        """What ended by itself, which none may."""
        return [name for name, process in self._running.items() if process.poll() is not None]

    def end(self) -> None:
        for process in self._running.values():
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        # With its JVM and its workers, as a machine that is turned off.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _pieces(self, name: str) -> int:
        path = self._folder / f"{name}.jsonl"
        return path.read_bytes().count(b'"done"') if path.exists() else 0


def run(store: str, writers: int, seconds: float, seed: int) -> tuple[dict[str, Any], Found]:
    """The figures, and what the checker found."""
    with tempfile.TemporaryDirectory(prefix="txlog-chaos-") as name:
        folder = Path(name)
        (folder / "archive").mkdir()
        place = Place(store, folder)
        Table.create(place.uri, SCHEMA, ["bucket"], PROPERTIES, storage_options=place.options)
        rng, kills = random.Random(seed), 0
        processes = Processes(place, folder, writers, seed)
        end_s = time.monotonic() + seconds
        try:
            while time.monotonic() < end_s or (
                processes.job_pieces() < JOBS_WANTED and time.monotonic() < end_s + GRACE_S
            ):
                time.sleep(rng.uniform(0.3, 1.5))
                failed = processes.failed()
                if failed:
                    raise SystemExit(f"{failed[0]} ended: {(folder / f'{failed[0]}.log').read_text()[-3000:]}")
                kills += processes.kill_one(rng)
        finally:
            processes.end()
        log = read_log(folder / "archive", place.commits())
        found = check(log, folder, {unquote(path) for path in place.files()}, place.rows())
        ours = Table.open(place.uri, storage_options=place.options).to_arrow()
        if ours.num_rows != len(place.rows()):
            found.problems.append(f"delta-rs reads {len(place.rows())} rows, and we {ours.num_rows}")
    figures = {name: value for name, value in dataclasses.asdict(found).items() if name != "problems"}
    return {"store": store, "writers": writers, "seconds": seconds, "seed": seed, "kills": kills, **figures}, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", choices=["file", "s3"], default="file")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    figures, found = run(given.store, given.writers, given.seconds, given.seed)
    print(json.dumps(figures))
    if found.job_commits < JOB_COMMITS_WANTED:
        found.problems.append(f"only {found.job_commits} jobs of Spark have committed: too few to say anything of them")
    for problem in found.problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(found.problems or found.lost or found.duplicated or found.unserializable))


if __name__ == "__main__":
    main()
