"""What the dag processor spends on a DAG file: each example in a fresh Python process, beside a DAG without tasks.

`over_empty_s` is what the example costs beyond Airflow's own import, of the clock; `over_empty_cpu_s` of the CPU, which
a busy machine moves least.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

_EMPTY = 'from airflow.sdk import DAG\nwith DAG("empty"):\n    pass\n'


def measure_parse(folder: Path, *, rounds: int) -> list[dict[str, Any]]:
    """A line for each example; the files in turn, and the first round, which compiles them, does not count."""
    folder.mkdir(parents=True, exist_ok=True)
    empty = folder / "empty.py"
    empty.write_text(_EMPTY)
    files = [empty, *sorted((ROOT / "example_dags").glob("*.py"))]
    walls: dict[Path, list[float]] = {file: [] for file in files}
    cpus: dict[Path, list[float]] = {file: [] for file in files}
    for number in range(rounds + 1):
        for file in files:
            wall_s, cpu_s = _parse(file, folder)
            if number:
                walls[file].append(wall_s)
                cpus[file].append(cpu_s)
        print(f"  parse: round {number}/{rounds}", file=sys.stderr, flush=True)
    wall = {file: statistics.median(found) for file, found in walls.items()}
    cpu = {file: statistics.median(found) for file, found in cpus.items()}
    return [
        {
            "case": "parse",
            "dag": file.stem,
            "wall_s": round(wall[file], 3),
            "empty_s": round(wall[empty], 3),
            "over_empty_s": round(wall[file] - wall[empty], 3),
            "over_empty_cpu_s": round(cpu[file] - cpu[empty], 3),
            "rounds": rounds,
        }
        for file in files[1:]
    ]


def _parse(file: Path, home: Path) -> tuple[float, float]:
    """Seconds of the clock, and of the CPU."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(file)!r})"],
        cwd=ROOT,
        env={**os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        check=True,
        capture_output=True,
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
