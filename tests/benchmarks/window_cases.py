"""The window: requests per second with the growth of its memory, large tables, and what the progress of a job costs.

Each table is served by a process of its own, as `python -m airflow_txlog.window` serves it. There is no peer.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa

from airflow_txlog.process import progress
from airflow_txlog.window.markup import link
from tests.benchmarks.large_tables import make_checkpointed
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec
from tests.window.tables import Hands, busy_table, long_log

_BEGAN_MS = 1_790_000_000_000
_CLIENTS = 8
_ROWS_PER_FILE = 250_000
_FEWEST_FILES = 24
# A job reports at least so often, also one that ends before its first report would be due.
_REPORTS = 8


def measure_window(folder: Path, *, rounds: int, scale: float) -> list[dict[str, Any]]:
    """A line for each case, the medians of several rounds."""
    orders, long, million = str(folder / "orders"), folder / "long", folder / "million"
    files, commits = max(1_000, int(1_000_000 * scale)), max(120, int(10_000 * scale))
    if not Path(orders).exists():
        busy_table(orders, Hands(_BEGAN_MS))
    if not long.exists():
        long_log(long, commits)
    make_checkpointed(million, files)
    lines = [
        _requests(orders, max(400, int(4_000 * scale))),
        _first_page("window-commits", str(long), rounds, commits=commits),
        _first_page("window-files", str(million), rounds, files=files),
        _progress(folder / "progress", rounds, max(_FEWEST_FILES, int(240 * scale))),
    ]
    return [{**line, "rounds": rounds, "scale": scale} for line in lines]


@contextmanager
def _served(uri: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of the page of a table, and the process that serves it."""
    command = [sys.executable, "-m", "airflow_txlog.window", "--table", uri, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split()[0]
        yield f"{address}{link('table', uri=uri)}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _requests(uri: str, count: int) -> dict[str, Any]:
    async def ask(client: httpx.AsyncClient, page: str, number: int) -> None:
        for _ in range(number):
            assert (await client.get(page)).status_code == 200

    async def run(page: str, number: int) -> float:
        async with httpx.AsyncClient() as client:
            started = time.perf_counter()
            await asyncio.gather(*(ask(client, page, number // _CLIENTS) for _ in range(_CLIENTS)))
            return time.perf_counter() - started

    with _served(uri) as (page, process):
        asyncio.run(run(page, count // 4))
        before, cpu_before = process.memory_info().rss, _cpu_s(process)
        took = asyncio.run(run(page, count))
        grown, cpu = process.memory_info().rss - before, _cpu_s(process) - cpu_before
    return {
        "case": "window-cached",
        "requests_per_s": round(count / took),
        "cpu_ms_per_request": round(1000 * cpu / count, 2),
        "grown_mb": round(grown / 2**20, 1),
    }


def _first_page(case: str, uri: str, rounds: int, **size: int) -> dict[str, Any]:
    """The first page of a server that has read nothing yet, and the most memory that it held."""
    wall, cpu, peak = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        with _served(uri) as (page, process):
            cpu_before, started = _cpu_s(process), time.perf_counter()
            with httpx.Client(timeout=120) as client:
                while client.get(page).status_code == 504:
                    pass
            wall.append(time.perf_counter() - started)
            cpu.append(_cpu_s(process) - cpu_before)
            peak.append(_peak_mb(process))
    return {
        "case": case,
        **size,
        "wall_s": round(statistics.median(wall), 3),
        "cpu_s": round(statistics.median(cpu), 3),
        "peak_mb": round(statistics.median(peak)),
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _peak_mb(process: psutil.Process) -> float:
    """The high-water mark of a process that runs."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _progress(folder: Path, rounds: int, files: int) -> dict[str, Any]:
    """The processor time of the same job with a listener, as a task has one, and without; the least of the rounds.

    What else runs on the machine adds to any round, so the least is nearest to the cost.
    """
    from airflow_txlog.jobs.run import run_job

    made, work = folder / "made", folder / "work"
    if not made.exists():
        rows = pa.table({"id": pa.array(range(_ROWS_PER_FILE), pa.int64()), "text": ["x" * 40] * _ROWS_PER_FILE})
        table = make_table(made, schema=rows.schema)
        for _ in range(files):
            append(table, rows)
    heard = list[str]()

    def job() -> float:
        # The same files each time: a job leaves fewer and larger ones.
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        arguments = {"set": {"text": "'y'"}, "predicate": "id % 7 = 3"}
        spec = job_spec(operation="update", table_uri=str(work), arguments=arguments)
        began_s = time.process_time()
        assert run_job(spec, None).status == "committed"
        return time.process_time() - began_s

    began_s = time.monotonic()
    job()
    every_s = min(progress.EVERY_S, (time.monotonic() - began_s) / _REPORTS)

    def watched() -> float:
        with progress.listening(lambda found: heard.append(found.line()), every_s):
            return job()

    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(2 * max(rounds, 1)):
        for name, run in sorted({"with": watched, "without": job}.items(), reverse=bool(number % 2)):
            seconds[name].append(run())
    assert heard, "each job ended before its first report, so its cost is not measured"
    with_it, without = min(seconds["with"]), min(seconds["without"])
    return {
        "case": "window-progress",
        "files": files,
        "job_cpu_s": round(without, 3),
        "with_progress_cpu_s": round(with_it, 3),
        "cost_percent": round(100 * (with_it / without - 1), 2),
        "calls_percent": round(100 * _calls_s(files, with_it) / without, 4),
        "reports": len(heard),
    }


def _calls_s(files: int, job_s: float) -> float:
    """The processor time of what progress does in such a job, by itself: it is below the noise of the job's own time.

    Each file is planned and done in two steps, and a report is made every two seconds.
    """
    many, lines = 10_000, list[str]()
    with progress.listening(lambda found: lines.append(found.line()), 0.001), progress.measured(), progress.step("x"):
        began_s = time.process_time()
        for _ in range(many):
            progress.planned(1, 1)
            progress.done(1, 1)
        counted_s = (time.process_time() - began_s) / many
        seen, began_s = len(lines), time.process_time()
        time.sleep(0.2)
        reported_s = (time.process_time() - began_s) / max(1, len(lines) - seen)
    return 2 * files * counted_s + reported_s * (1 + job_s / progress.EVERY_S)
