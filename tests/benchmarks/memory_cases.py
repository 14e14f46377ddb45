"""The most memory that a fresh process holds while it opens a table and lists its files, in megabytes.

The high-water mark of the child itself (`VmHWM`): what `getrusage` gives would begin with the parent's. Interpreter and
imports count on both sides.

As a program (`python -m tests.benchmarks.memory_cases SIDE TABLE [PREDICATE]`) this is the child.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT


def measure_child(side: str, table: Path, predicate: str | None, **settings: str) -> dict[str, Any]:
    """`peak_mb`, `seconds` and `files` of one child process, with these settings, that lists the table."""
    command = [sys.executable, "-m", "tests.benchmarks.memory_cases", side, str(table)]
    command += [] if predicate is None else [predicate]
    environment = os.environ | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{side} on {table} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_memory(
    case: str, table: Path, predicate: str | None, *, files: int, rounds: int, scale: float
) -> dict[str, Any]:
    """Medians of both sides' peaks, the sides in turn; both must list `files` files."""
    peaks: dict[str, list[float]] = {"ours": [], "deltalake": []}
    for number in range(rounds):
        for side in list(peaks)[:: 1 if number % 2 else -1]:
            found = measure_child(side, table, predicate)
            assert found["files"] == files, f"{side} lists {found['files']} of {files} files"
            peaks[side].append(found["peak_mb"])
            told = f"{side} {found['peak_mb']:.0f} MB, {found['seconds']:.2f} s"
            print(f"  {case}: round {number + 1}/{rounds}: {told}", file=sys.stderr, flush=True)
    ours, peer = (statistics.median(found) for found in peaks.values())
    return {
        "case": case,
        "ours_mb": round(ours, 1),
        "peer": "deltalake",
        "peer_mb": round(peer, 1),
        "ratio": round(ours / peer, 3),
        "rounds": rounds,
        "scale": scale,
    }


def peak_mb() -> float:
    """The high-water mark of this process since it was executed."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system tells no VmHWM")


def _child(side: str, table: str, predicate: str | None = None) -> None:
    began = time.perf_counter()
    if side == "ours":
        from airflow_txlog.engine import Table
        from airflow_txlog.process.arrow_memory import spare_memory

        # As the processes of our jobs and commands do.
        spare_memory()
        paths = Table.open(table).snapshot().files(predicate, columns=["path"])["path"].to_pylist()
    else:
        from deltalake import DeltaTable

        paths = DeltaTable(table).file_uris(file_pruning_predicate=predicate)
    seconds = time.perf_counter() - began
    print(json.dumps({"files": len(paths), "seconds": seconds, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    _child(*sys.argv[1:])
