"""The most memory that the driver of a job holds while it plans: a DELETE that must look into every file of a large
table, in a fresh process with a Spark of its own.

The files are not there, so everything is measured but the tasks that would read them: the log is read, the work of
each task is made and left for it, Spark takes the query; then nothing is found in any file, and that is remembered and
saved as it is for a retry.

As a program (`python -m tests.benchmarks.plan_cases TABLE`) this is the child.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airflow_txlog.process.arrow_memory import spare_memory
from tests.helpers.paths import ROOT


def measure_plan(table: Path, files: int) -> dict[str, Any]:
    """`driver_mb`, `jvm_mb`, `seconds` and `files` of one child process that plans a DELETE over the whole table."""
    command = [sys.executable, "-m", "tests.benchmarks.plan_cases", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"planning over {table} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["files"] == files, f"{found['files']} of {files} files are in the plan"
    return {"case": "plan", **found}


def _child(table: str) -> None:
    spare_memory()
    # As in a job's process: after Arrow has been configured, and no earlier.
    from airflow_txlog.contract.job import ApplicationTransaction
    from airflow_txlog.engine import Table
    from airflow_txlog.exactly_once.transactions import remove_saved_work
    from airflow_txlog.jobs.executor.spark import SparkExecutor
    from airflow_txlog.jobs.files.frames import scan_frame
    from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan
    from airflow_txlog.jobs.operations.delete.job import _Delete
    from airflow_txlog.jobs.planner import begin_job
    from airflow_txlog.jobs.rows.matches import Matches
    from airflow_txlog.jobs.rows.pipeline import run_row_operation
    from airflow_txlog.jobs.spark.session import job_settings, local_session
    from tests.benchmarks.peaks import peaks_mb, set_back
    from tests.helpers.specs import job_spec

    planned: list[int] = []

    class Planned(_Delete):
        """A DELETE whose query Spark takes and does not run."""

        def find(self, prepared: Any, plan: FilePlan) -> Matches:
            rows = scan_frame(self._context, addressed_scan(self._context, plan, frozenset({"id", "name"})))
            rows.filter(self._condition).select("id").explain()
            planned.append(plan.num_files)
            return Matches()

    spec = job_spec(
        operation="delete",
        table_uri=table,
        # Of no use to the statistics, so that no file is left out.
        arguments={"predicate": "length(name) % 7 = id % 5"},
        application=ApplicationTransaction(app_id="plan", version=1),
        saved_work_key="0" * 64,
    )
    spark = local_session({})
    set_back()
    began_s = time.perf_counter()
    with job_settings(spark, "UTC", {}):
        said: list[str] = []
        context = begin_job(spec, SparkExecutor(spark), Table.at(table, spec.access), said.append)
        try:
            result = run_row_operation(context, Planned)
        finally:
            remove_saved_work(context.store, context.inputs_folder)
    seconds = time.perf_counter() - began_s
    assert result.status == "nothing_to_do", said
    peaks = peaks_mb()
    found = {"driver_mb": peaks["driver"], "jvm_mb": peaks["jvm"], "seconds": round(seconds, 1)}
    print(json.dumps({**found, "files": sum(planned)}))


if __name__ == "__main__":
    _child(*sys.argv[1:])
