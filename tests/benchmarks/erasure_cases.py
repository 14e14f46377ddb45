"""The seconds, CPU and memory of an erasure and of its verification, measured alone, on a disk and on S3.

1,000 subjects leave 20 million rows in 80 files with deletion vectors; a verification, before it and after it, is
compared with reading every column of every row; and 1, 100 and 1,000 requests leave a table in one run. There is no
peer. Each piece of work runs in a new process (`python -m tests.benchmarks.erasure_cases WORK TABLE COUNT REPORTS`),
whose imports do not count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.engine import Table
from tests.benchmarks.memory_cases import peak_mb
from tests.benchmarks.places import S3Folder, has_server
from tests.helpers import s3
from tests.helpers.jobs import committed, run
from tests.helpers.paths import ROOT
from tests.helpers.rows import append

FILES, ROWS_PER_FILE = 80, 250_000
NOTED_FILES, REQUESTED_FILES, ROWS_OF_LARGE_FILE, ROWS_OF_REQUESTED = 4, 20, 1_000_000, 100_000
SUBJECTS = 1000
REQUESTS = (1, 100, 1000)
WORKS = ("verify-one", "verify", "verify-near")
WORDS = (
    "lorem",
    "ipsum",
    "dolor",
    "sit",
    "amet",
    "consetetur",
    "sadipscing",
    "elitr",
    "sed",
    "diam",
    "nonumy",
    "eirmod",
)
VECTORS = {"delta.enableDeletionVectors": "true"}


def email_of(number: int) -> str:
    return f"person.{number:09d}@example.org"


def rows_of(start: int, count: int, *, with_notes: bool) -> pa.Table:
    numbers = pa.array(range(start, start + count), pa.int64())
    padded = pc.utf8_lpad(numbers.cast(pa.string()), 9, "0")
    columns = {
        "email": pc.binary_join_element_wise("person.", padded, "@example.org", ""),
        "number": numbers,
        "city": pa.array([f"city {number % 500}" for number in range(500)]).take(
            pa.array([n % 500 for n in range(count)])
        ),
    }
    if with_notes:
        picks = [pa.array([(n * step) % len(WORDS) for n in range(start, start + count)]) for step in (1, 3, 5, 9, 11)]
        words = [pa.array(WORDS).take(each) for each in picks]
        columns["note"] = pc.binary_join_element_wise("call", padded, *words, " ")
    return pa.table(columns)


def make(uri: str, files: int, rows: int, *, with_notes: bool = False) -> Table:
    """Return a table with deletion vectors, of `files` files with `rows` rows each."""
    first = rows_of(0, rows, with_notes=with_notes)
    options = s3.options() if uri.startswith("s3:") else None
    table = Table.create(uri, first.schema, properties=VECTORS, storage_options=options)
    for number in range(files):
        append(table, rows_of(number * rows, rows, with_notes=with_notes) if number else first)
    return table


def measure_erasure(folder: Path, *, scale: float) -> Iterator[dict[str, Any]]:
    """Yield a line for each piece of work."""
    shutil.rmtree(folder, ignore_errors=True)
    rows = max(int(ROWS_PER_FILE * scale), 100)
    reports = str(folder / "reports")
    table = make(str(folder / "people"), FILES, rows)
    yield from _of_table(table, reports, "erasure", FILES * rows)
    noted = make(str(folder / "noted"), NOTED_FILES, max(int(ROWS_OF_LARGE_FILE * scale), 100), with_notes=True)
    scan = child("scan", noted.uri, 0, reports)
    for work in WORKS:
        yield {"case": f"erasure, notes: {work}", **compared(child(work, noted.uri, SUBJECTS, reports), scan)}
    for count in REQUESTS:
        table = make(str(folder / f"requests-{count}"), REQUESTED_FILES, max(int(ROWS_OF_REQUESTED * scale), 100))
        yield {"case": f"erasure, {count} requests", **child("requests", table.uri, count, reports)}
    if not has_server():
        return
    with S3Folder() as place, S3Folder() as of_reports:
        table = make(place.uri, FILES, rows)
        yield from _of_table(table, of_reports.uri, "s3-erasure", FILES * rows)


def _of_table(table: Table, reports: str, case: str, rows: int) -> Iterator[dict[str, Any]]:
    # The first one warms the caches of files.
    scan = [child("scan", table.uri, 0, reports) for _ in range(2)][-1]
    facts = {"million_rows": rows / 1e6, "files": FILES, "mb": round(table.snapshot().size_bytes / 1e6, 1)}
    for work in WORKS:
        found = compared(child(work, table.uri, SUBJECTS, reports), scan)
        yield {"case": f"{case}: {work} before", **facts, **found}
    yield {"case": f"{case}: erase", **facts, **child("erase", table.uri, SUBJECTS, reports)}
    for work in WORKS:
        yield {"case": f"{case}: {work}", **facts, **compared(child(work, table.uri, SUBJECTS, reports), scan)}


def compared(found: dict[str, Any], scan: dict[str, Any]) -> dict[str, Any]:
    return {**found, "scan_cpu_s": scan["cpu_s"], "ratio": round(found["cpu_s"] / scan["cpu_s"], 2)}


def child(work: str, uri: str, count: int, reports: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.erasure_cases", work, uri, str(count), reports]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{work} on {uri} failed:\n{done.stderr[-3000:]}")
    print(f"  {work} {count}: {done.stdout.splitlines()[-1]}", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- in the child -----------------------------------------------------------------------------------------------------


def do(work: str, table: Table, count: int, reports: str) -> None:
    options = s3.plain_options() if table.uri.startswith("s3:") else None
    stats = table.snapshot().files(columns=["stats"]).column("stats").to_pylist()
    total = sum(json.loads(each)["numRecords"] for each in stats)
    step = max(total // max(count, 1), 1)
    if work == "scan":
        for path in table.snapshot().files(columns=["path"]).column("path").to_pylist():
            with table.store.open_input(path) as source:
                for _ in pq.ParquetFile(source).iter_batches(use_threads=False):
                    pass
        return
    given = {"report_uri": reports, "storage_options": options, "log": lambda line: None}
    if work in ("erase", "requests"):
        keys = [{"column": "email", "values": [email_of(number * step)]} for number in range(min(count, total))]
        if work == "requests":
            requests: dict[str, Any] = {"requests": {f"r-{number}": each for number, each in enumerate(keys)}}
        else:
            requests = {
                "subjects": {"column": "email", "values": [each["values"][0] for each in keys]},
                "request_id": "r",
            }
        done = committed(run(None, "erase", table, writer_hours=0, **requests, **given))
        assert done.metrics["numDeletedRows"] == len(keys), done.metrics
        if work == "erase":
            return
        is_clean(run(None, "verify_erasure", table, **requests, **given))
        return
    ending = "example.com" if work == "verify-near" else "elsewhere.net"
    start = "person." if work == "verify-near" else "somebody-"
    values = [f"{start}{number * 3997:09d}@{ending}" for number in range(1 if work == "verify-one" else count)]
    keys_of_all = {"column": "email", "values": values}
    is_clean(run(None, "verify_erasure", table, subjects=keys_of_all, request_id="r", **given))


def is_clean(result: Any) -> None:
    assert result.error is None, result.error
    for findings in result.details.findings.values():
        assert not findings["left"], findings["left"]


def _child(work: str, uri: str, count: str, reports: str) -> None:
    from airflow_txlog.process.arrow_memory import spare_memory

    spare_memory()
    table = Table.open(uri, storage_options=s3.options() if uri.startswith("s3:") else None)
    table.snapshot()
    began, cpu = time.perf_counter(), time.process_time()
    do(work, table, int(count), reports)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"seconds": round(seconds, 2), "cpu_s": round(cpu_s, 2), "peak_mb": round(peak_mb())}))


if __name__ == "__main__":
    _child(*sys.argv[1:])
