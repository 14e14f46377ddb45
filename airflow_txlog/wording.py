"""How a result is worded: for the task's log, its XCom, its asset events, the progress file and the command line.

A result is a `contract.JobResult`, from the commit on; here are the only lines that describe one. What a row count of a
commit means is said by the operation's own record (`records`). The invariant: wording never fails for what
a newer release has put into a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_txlog.contract import JobResult
from airflow_txlog.records import REPLACED, row_counts

_STATUS = {"committed": "", "nothing_to_do": "nothing to do", "already_done": "already done by an earlier try"}


APPLICATION = "Spark application "
"""How the line begins that says where a job runs on a cluster."""


def application_line(application: str | None, master: str, ui: str | None) -> str:
    """Where a job runs on a cluster: `Spark application app-… on spark://…, its UI at http://…`."""
    return f"{APPLICATION}{application} on {master}{f', its UI at {ui}' if ui else ''}"


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def tasks_done(name: str, total: int, done: int, failed: int) -> str:
    """How far a step of a running job is."""
    again = f", {failed} failed and are run again" if failed else ""
    return f"{name}: {done} of {total} tasks done{again}"


def job_lines(result: JobResult) -> list[str]:
    """What a job did, in a line, and the time of each step in another: the last lines of the job's own log."""
    if result.error is not None:
        return [f"{result.operation} failed: {result.error['type']}: {result.error['message']}"]
    files, parts = result.files, []
    if "considered" in files:
        parts.append(f"{plural(files['considered'], 'file')} considered")
        parts += [f"{files[name]} {name}" for name in ("pruned", "rewritten") if name in files]
        if "deletion_vectors" in files:
            parts.append(plural(files["deletion_vectors"], "deletion vector"))
    rows = row_counts(result.operation, result.metrics)
    parts += [f"{plural(count, 'row')} {became}" for became, count in rows.items() if count]
    version = "" if result.version is None else f" -> version {result.version}"
    head = "; ".join(filter(None, [_STATUS[result.status], ", ".join(parts)])) or "done"
    lines = [f"{result.operation}: {head}{version} in {result.seconds:.1f} s"]
    if result.steps:
        lines.append("steps: " + ", ".join(f"{step['name']} {step['seconds']:.1f} s" for step in result.steps))
    return lines


def task_lines(result: JobResult) -> list[str]:
    """The outcome in one line of the task's log, and the metrics that its commit carries in another.

    What the job did on the way (files considered and pruned, time per step) is in the job's own lines.
    """
    parts = [_outcome(result)]
    parts += [f"{count} files {name}" for name, count in result.files.items() if count and name != "pruned"]
    rows = rows_changed(result)
    if rows is not None:
        parts.append(f"{rows} rows")
    if result.attempts > 1:
        parts.append(f"planned {result.attempts} times because of other commits")
    lines = [f"{result.operation} {result.table_uri}: {'; '.join(parts)}"]
    if result.metrics:
        lines.append("metrics: " + ", ".join(f"{name} {count}" for name, count in result.metrics.items()))
    return lines


def _outcome(result: JobResult) -> str:
    if result.status == "committed":
        before = "new table" if result.read_version is None else f"version {result.read_version}"
        return f"{before} -> version {result.version}"
    if result.status == "already_done":
        where = f"at version {result.version}" if result.version is not None else f"by version {result.at_or_before}"
        return f"done already {where}, by an earlier try of this task or under the same key; nothing was done again"
    return f"nothing to do at version {result.version if result.version is not None else result.read_version}"


def xcom_of(result: JobResult, seconds: float) -> dict[str, Any]:
    """The small JSON dict that a task returns."""
    xcom: dict[str, Any] = {
        "table_uri": result.table_uri,
        "operation": result.operation,
        "status": result.status,
        "read_version": result.read_version,
        "version": result.version,
        "metrics": result.metrics,
        "files": result.files,
        "seconds": round(seconds, 3),
    }
    if result.at_or_before is not None:
        xcom["at_or_before"] = result.at_or_before
    return xcom


def event_extra(result: JobResult) -> dict[str, Any]:
    """What the asset events of a task carry, for those who are scheduled by them."""
    return {
        "table_uri": result.table_uri,
        "from_version": None if result.version is None else result.version - 1,
        "version": result.version,
        "operation": result.operation,
        "status": result.status,
        "rows": rows_changed(result),
        "metrics": result.metrics,
    }


def rows_changed(result: JobResult) -> int | None:
    """Rows that the operation wrote, changed or removed; None where it has no rows, or does not count them."""
    # An overwrite counts the rows that it wrote.
    found = [count for became, count in row_counts(result.operation, result.metrics).items() if became != REPLACED]
    return sum(found) if found else None


_SIGNS = {"written": "+", "inserted": "+", "updated": "~", "deleted": "-", REPLACED: "-"}


def commit_rows(operation: object, metrics: object) -> str:
    """The rows that a commit of any engine added, updated and removed, such as `+2 ~30 -1`; `0` where it had none.

    Empty where the commit does not count them, and for an operation that we do not know. delta-spark names metrics as
    we do, and writes them as texts; delta-rs names most alike, in snake case.
    """
    if not isinstance(metrics, Mapping):
        return ""
    named = {_camel_case(str(name)): str(count) for name, count in metrics.items()}
    if "numAddedRows" in named:
        named["numOutputRows"] = named["numAddedRows"]
    counts = {_SIGNS[became]: count for became, count in row_counts(str(operation).lower(), named).items()}
    changed = [f"{sign}{counts[sign]}" for sign in "+~-" if counts.get(sign, "0") != "0"]
    return " ".join(changed) if changed else "0" if counts else ""


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
