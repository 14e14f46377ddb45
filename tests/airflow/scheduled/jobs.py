"""The processes of a job that was held still, found from the one that waits (see `pauses/sitecustomize.py`)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from airflow_txlog.engine import Table
from tests.airflow.scheduled.deployment import GIVE_UP_S, Deployment
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
# By its module, and below `spark-submit` by its file.
JOB = re.compile(rb"airflow_txlog[./]jobs")


class Lake:
    """One table of the deployment, and the pauses of jobs on it."""

    def __init__(
        self, airflow: Deployment, name: str, schema: pa.Schema | None = SCHEMA, partition_by: list[str] | None = None
    ):
        """Without a schema the table is there."""
        self.folder = airflow.folder / "lake" / name
        uri = str(self.folder)
        self.table = Table.open(uri) if schema is None else Table.create(uri, schema, partition_by or [])
        self._airflow = airflow
        self._pauses = self.folder / ".pauses"
        self._pauses.mkdir()

    @property
    def uri(self) -> str:
        return str(self.folder)

    def hold(self, point: str) -> None:
        """Let the next job wait at the point, once."""
        (self._pauses / point).touch()

    def held(self, point: str, dag_id: str, run_id: str) -> Held:
        """The job of the run's one task, which waits at the point, once it does."""
        paused = self.wait_for(point)
        return Held.of(self._airflow.task(dag_id, run_id)["pid"], paused)

    def wait_for(self, point: str) -> int:
        """The process that waits at the point, once one does."""
        reached = self._pauses / f"{point}.reached"
        self._airflow.until(reached.exists, f"a job on {self.uri} comes to {point!r}")
        return int(reached.read_text())

    def release(self, point: str) -> None:
        (self._pauses / f"{point}.go").touch()

    def count_looks(self) -> None:
        """Let every process count its looks at the log from here on, from 0."""
        (self._pauses / "looks").write_bytes(b"")

    @property
    def looks(self) -> int:
        return (self._pauses / "looks").stat().st_size

    def commits(self) -> list[tuple[str, int]]:
        """The commits of tasks, oldest first: run and try."""
        return [(tags["airflow.run_id"], int(tags["airflow.try_number"])) for tags in self._tags()]

    def tries_by_map_index(self) -> dict[int, list[int]]:
        """The tries that committed, oldest first, of each mapped task."""
        found: dict[int, list[int]] = {}
        for tags in self._tags():
            found.setdefault(int(tags["airflow.map_index"]), []).append(int(tags["airflow.try_number"]))
        return found

    def _tags(self) -> list[dict[str, str]]:
        """Those of the commits of tasks, oldest first."""
        found = [commit.get("tags", {}) for commit in reversed(self.table.history())]
        return [tags for tags in found if tags.get("airflow.run_id")]

    def append(self, rows: list[dict[str, object]]) -> None:
        append(self.table, rows)


@dataclass(frozen=True)
class Held:
    """The processes of one job. `task` runs the operator, `child` the job, `jvm` its Spark, `worker` Spark's Python."""

    task: int
    child: int
    jvm: int | None
    worker: int | None
    all: tuple[int, ...]

    @classmethod
    def of(cls, task: int, paused: int) -> Held:
        """Of the process that runs the operator, and the one that waits: on a warm Spark it is below neither."""
        (child,) = (pid for pid in descendants(task) if parent_of(pid) == task and JOB.search(command_of(pid)))
        below = descendants(child)
        jvm = next((pid for pid in below if b"java" in command_of(pid).split(b"\0")[0]), None)
        workers = [pid for pid in below if b"pyspark" in command_of(pid) and pid != jvm]
        worker = paused if paused != child else (workers[-1] if workers else None)
        return cls(task=task, child=child, jvm=jvm, worker=worker, all=(child, *below))

    def kill(self, victim: str) -> None:
        pid = getattr(self, victim)
        assert pid is not None, f"the job has no {victim}: {self}"
        os.kill(pid, signal.SIGKILL)

    def left(self) -> list[str]:
        """The job's processes below its task that live, a warm Spark's not among them."""
        return [command_of(pid).replace(b"\0", b" ").decode()[:200] for pid in self.all if is_alive(pid)]


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def stat_of(pid: int) -> list[str]:
    """The state of a process, its parent and so on; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def parent_of(pid: int) -> int:
    return int((stat_of(pid) or ["", "0"])[1])


def is_alive(pid: int) -> bool:
    return (stat_of(pid) or ["Z"])[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """All processes below, parents before their children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        children.setdefault(parent_of(int(folder.name)), []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += sorted(children.get(each, []))
    return found[1:]


def none_left(held: Held) -> None:
    """Wait until nothing of the job runs any more."""
    deadline = time.monotonic() + GIVE_UP_S
    while left := held.left():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
