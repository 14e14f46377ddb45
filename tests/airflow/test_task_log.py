"""The whole log of a task, by how it ends: what this package says, and the error with which Airflow ends the try.

In real runs by `dag.test()` with real jobs. What differs from run to run is normalised: times, sizes, names of the run.
TXLOG_NEW_LOGS=1 writes the files in `task_logs` anew, for you to read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.rows import make_table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("spark")]

LINE = re.compile(
    r"^\S+ \[(?:info|warning|error)\s*\] (.*?)\s*\[(?:airflow\.task\.operators\.)?airflow_txlog\.\S+\] loc="
)
ERROR = re.compile(r"^(airflow_txlog\.errors\.\S+|\S*WorkerDied): ")
# How far a step is, as often as it runs long.
PROGRESS = re.compile(r"^\w+: \d+ of \d+ tasks done")
# The log of each DAG of `dags/outcomes.py` that is looked at here.
LOGS = sorted((Path(__file__).parent / "task_logs").glob("*.txt"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_the_log_of_a_task_has_one_summary_or_one_cause(
    log: Path,
    tmp_path: Path,
    dag_of: Callable[[str, str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    table = make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(100), pa.int64())}))
    monkeypatch.setenv("TXLOG_TEST_TABLE", table.uri)
    monkeypatch.setenv("TXLOG_TEST_DEATHS", str(tmp_path / "died"))
    # Only a Spark that is started now would look for it.
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    dag = dag_of("outcomes", log.stem)
    capfd.readouterr()
    dag_run = dag.test()
    found = []
    for line in capfd.readouterr().out.splitlines():
        said = LINE.match(line)
        if said is not None and not PROGRESS.match(said[1]):
            found.append(said[1])
        elif ERROR.match(line):
            found.append(line)
    text = "\n".join(found).replace(table.uri, "TABLE").replace(dag_run.run_id, "RUN")
    for pattern, instead in (
        (r"\b\d+\.\d s\b", "N s"),
        (r"Bytes \d+", "Bytes N"),
        (r"at most [1-9]\d* bytes", "at most N bytes"),
        (r"\(\d+(\.\d)? [KM]?i?B\)", "(N)"),
        # Left out where it is zero.
        (r", \w+Ms \d+", ""),
        (r"part-\S+\.parquet", "FILE"),
    ):
        text = re.sub(pattern, instead, text)
    if os.environ.get("TXLOG_NEW_LOGS"):
        log.write_text(f"{text}\n")
    assert text == log.read_text().rstrip("\n")
