"""One JSON line per finished task, for a front end that shows the progress of a run.

Lines are written only if the environment variable TXLOG_PROGRESS_FILE names a file; nothing here reads it. Invariant: a
line is one write to a file opened for appending, so tasks that finish together never mix their lines.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import rows_changed

PROGRESS_FILE = "TXLOG_PROGRESS_FILE"


def report_result(context: Mapping[str, Any], result: JobResult, seconds: float) -> None:
    """Append the line of a finished operator."""
    report(
        context,
        operation=result.operation,
        status=result.status,
        read_version=result.read_version,
        version=result.version,
        files=result.files,
        rows=rows_changed(result),
        seconds=seconds,
    )


def report(
    context: Mapping[str, Any],
    *,
    operation: str,
    status: str = "done",
    read_version: int | None = None,
    version: int | None = None,
    files: dict[str, int] | None = None,
    rows: int | None = None,
    seconds: float = 0.0,
) -> None:
    """Append a line with these fields, the task's id and its DAG's number of tasks, if PROGRESS_FILE is set."""
    path = os.environ.get(PROGRESS_FILE)
    if not path or "ti" not in context:
        return
    line: dict[str, Any] = {
        "task_id": context["ti"].task_id,
        "tasks": len(context["dag"].task_ids),
        "operation": operation,
        "status": status,
        "read_version": read_version,
        "version": version,
        "files": files or {},
        "rows": rows,
        "seconds": round(seconds, 3),
    }
    # The work is committed by now, and a line that cannot be written must not fail it.
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)
