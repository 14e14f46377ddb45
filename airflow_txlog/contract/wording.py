"""The wording of results: for the task's log, its XCom, its asset events, the progress file and the command line.

The record of an operation (`contract.operations`) defines what the row counts of its commit mean. Invariant: wording
never fails on content of a result that a newer release has added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX, JobResult
from airflow_txlog.contract.operations import OPERATIONS, REPLACED
from airflow_txlog.errors import InvalidJobSpec

_Count = TypeVar("_Count", int, str)

APPLICATION = "Spark application "
"""The beginning of the line with a job's application on a cluster."""


def application_line(application: str | None, master: str, ui: str | None) -> str:
    """Return a job's application on a cluster as text: `Spark application app-… on spark://…, its UI at http://…`."""
    return f"{APPLICATION}{application} on {master}{f', its UI at {ui}' if ui else ''}"


_SHORTEST_OTHER_S = 10.0


class LinesOnce:
    """The log of a job that may run again, with Spark or elsewhere, without the lines that earlier runs have logged.

    A line is left out only as many times as earlier runs logged it.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._logged = Counter[str]()

    def begin(self) -> Callable[[str], None]:
        """Return the log of a run that begins now."""
        left_out = self._logged.copy()

        def say(line: str) -> None:
            if left_out[line] > 0:
                left_out[line] -= 1
            else:
                self._logged[line] += 1
                self._log(line)

        return say


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 row`, `2 rows`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(size_bytes: int) -> str:
    """Return bytes in a unit fit for people."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def files_text(sizes: Sequence[int]) -> str:
    """Return the number of files and their size: `2 files (1.5 MiB)`."""
    return f"{plural(len(sizes), 'file')} ({size_text(sum(sizes))})"


def tasks_done(name: str, total: int, done: int, failed: int, moved: Sequence[str] = ()) -> str:
    """Return the progress of a step of a running job. `moved`: what its tasks have read and written so far."""
    again = f", {failed} failed and are run again" if failed else ""
    so_far = f", {', '.join(moved)} so far" if moved else ""
    return f"{name}: {done} of {total} tasks done{again}{so_far}"


def summary_lines(result: JobResult, seconds: float) -> list[str]:
    """Return lines with the outcome, the time of each step, and the metrics of the commit that are not zero.

    The process that reads a result last logs them; `seconds`: how long the work took for it.
    """
    if result.error is not None:
        return [f"{result.operation} failed: {result.error['type']}: {result.error['message']}"]
    rows = row_counts(result.operation, result.metrics)
    parts = [
        _outcome(result),
        ", ".join(_file_counts(result.files)),
        ", ".join(f"{plural(count, 'row')} {became}" for became, count in rows.items() if count),
        f"planned {result.attempts} times because of other commits" if result.attempts > 1 else "",
        "nothing was done again" if result.status == "already_done" else "",
        f"{seconds:.1f} s",
    ]
    place = result.table_uri if result.table_name is None else f"{result.table_name} ({result.table_uri})"
    lines = [f"{result.operation} {place}: {'; '.join(filter(None, parts))}"]
    if result.steps:
        lines.append("steps: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in _steps(result, seconds)))
    if result.details.arguments_changed:
        lines.append(
            f"The task's arguments have changed since version {result.version}, which did this work by the earlier "
            "ones. Nothing was done by the new ones: clear the task to have that done."
        )
    expectations = expectation_counts(result.metrics)
    if expectations:
        judged = (f"{name}: {each['passed']} passed, {each['failed']} failed" for name, each in expectations.items())
        lines.append(f"expectations: {'; '.join(judged)}")
    counts = {name: count for name, count in result.metrics.items() if not name.startswith(_EXPECTATION)}
    metrics = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    if metrics and result.status in ("committed", "staged"):
        lines.append(f"metrics: {metrics}")
    return lines


def _steps(result: JobResult, seconds: float) -> list[tuple[str, float]]:
    """Return each step once with its seconds, and "other" for the rest if that is long: starts, waits for a cluster."""
    taken: dict[str, float] = {}
    for step in result.steps:
        taken[step["name"]] = taken.get(step["name"], 0.0) + step["seconds"]
    other = seconds - sum(taken.values())
    return [*taken.items(), *([("other", other)] if other >= _SHORTEST_OTHER_S else [])]


def _file_counts(files: Mapping[str, int]) -> list[str]:
    """Return the counts that are not zero: `3 files considered`, `1 rewritten`, `1 deletion vector`."""
    counts = {name: count for name, count in files.items() if count}
    vectors = counts.pop("deletion_vectors", 0)
    # Only the first has the noun.
    named = [f"{count if at else plural(count, 'file')} {name}" for at, (name, count) in enumerate(counts.items())]
    return [*named, plural(vectors, "deletion vector")] if vectors else named


def _outcome(result: JobResult) -> str:
    if result.details.dry_run and result.version is None:
        return "dry run, nothing was committed"
    if result.status == "committed":
        before = "new table" if result.read_version is None else f"version {result.read_version}"
        return f"{before} -> version {result.version}"
    if result.status == "staged":
        return f"staged on version {result.read_version}, not published"
    if result.status == "already_done":
        where = f"at version {result.version}" if result.version is not None else f"by version {result.at_or_before}"
        return f"done already {where}, by an earlier try of this task or under the same key"
    return f"nothing to do at version {result.version if result.version is not None else result.read_version}"


def xcom_of(result: JobResult, seconds: float) -> dict[str, Any]:
    """Return the small JSON dict that a task returns."""
    xcom: dict[str, Any] = {
        "table_uri": result.table_uri,
        "operation": result.operation,
        "status": result.status,
        "read_version": result.read_version,
        "version": result.version,
        "metrics": {name: count for name, count in result.metrics.items() if not name.startswith(_EXPECTATION)},
        "files": result.files,
        "seconds": round(seconds, 3),
    }
    if result.table_name is not None:
        xcom["table"] = result.table_name
    expectations = expectation_counts(result.metrics)
    if expectations:
        xcom["expectations"] = expectations
    if result.details.partitions:
        xcom["partitions"] = result.details.partitions
    if result.details.met is not None:
        xcom["met"] = result.details.met
    if result.at_or_before is not None:
        xcom["at_or_before"] = result.at_or_before
    if result.details.staged is not None:
        xcom["staged"] = result.details.staged
    return xcom


def handles_of(argument: str, given: Any) -> list[dict[str, Any]]:
    """Return the handles of staged changes from the XComs of the tasks that staged them, or from handles; one or many.

    The XCom of a mapped task is a list, so a list may have lists in it.

    A task that had nothing to stage, or whose change is published already, has none. Raises InvalidJobSpec (`argument`)
    for anything else.
    """
    given = [given] if isinstance(given, Mapping) else given
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _no_handle(argument, type(given).__name__)
    found = []
    for index, item in enumerate(given):
        place = f"{argument}[{index}]"
        if isinstance(item, Sequence) and not isinstance(item, str):
            found += handles_of(place, item)
            continue
        handle = item.get("staged", item) if isinstance(item, Mapping) else None
        if not isinstance(handle, Mapping):
            raise _no_handle(place, type(item).__name__)
        if "id" not in handle and item.get("status") in ("nothing_to_do", "already_done"):
            continue
        wrong = next((part for part, is_one in _HANDLE.items() if not is_one(handle.get(part))), None)
        if wrong is not None:
            is_done = item.get("status") == "committed"
            raise _no_handle(place, "that of a task that has committed" if is_done else f"one without a valid {wrong}")
        found.append(dict(handle))
    return found


def handle_of(argument: str, given: Any) -> dict[str, Any] | None:
    """Return the handle of one staged change, in a form of `handles_of`; None if the task had nothing to stage."""
    handles = handles_of(argument, given)
    if len(handles) > 1:
        raise _no_handle(argument, f"{len(handles)} of them, and a table is read with one")
    return handles[0] if handles else None


def _no_handle(place: str, found: str) -> InvalidJobSpec:
    return InvalidJobSpec(
        f"{place} must be the output of a task with publish=False, such as load.output; found {found}. Nothing was "
        "read.",
        argument=place,
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


_HANDLE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("table_uri", "operation", "app_id"), _is_text),
    **dict.fromkeys(("app_version", "staged_ms", "base_version"), _is_count),
    "id": lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None,
    "digest": lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None,
}


def event_extra(result: JobResult) -> dict[str, Any]:
    """Return the extra of a task's asset events, for the DAGs that they schedule."""
    return {
        "table_uri": result.table_uri,
        "from_version": None if result.version is None else result.version - 1,
        "version": result.version,
        "operation": result.operation,
        "status": result.status,
        "rows": rows_changed(result),
        "metrics": result.metrics,
    } | ({} if result.table_name is None else {"table": result.table_name})


def commit_text(version: int, operation: str | None, tags: Mapping[str, Any], engine: str | None) -> str:
    """Return a commit as a message names it: `version 7 (MERGE by task load of DAG orders)`."""
    by = {name: tags.get(f"{ANNOTATION_TAG_PREFIX}{name}") for name in ("task_id", "dag_id", "run_id")}
    who = f"{engine or 'an engine without a name'}"
    if all(by.values()):
        who = f"task {by['task_id']} of DAG {by['dag_id']}, run {by['run_id']}"
    return f"version {version} ({operation or 'no operation named'} by {who})"


def row_counts(operation: str, metrics: Mapping[str, _Count]) -> dict[str, _Count]:
    """Return the row counts among a commit's metrics by kind of change; empty for an unknown operation."""
    known = OPERATIONS[operation].rows if operation in OPERATIONS else {}
    return {became: metrics[name] for name, became in known.items() if name in metrics}


def rows_changed(result: JobResult) -> int | None:
    """Return the rows that the operation wrote, changed or removed; None if it has none, or does not count them."""
    found = [count for became, count in row_counts(result.operation, result.metrics).items() if became != REPLACED]
    return sum(found) if found else None


# The metrics of an expectation in a commit: `expectation.<name>.passed` and `expectation.<name>.failed`.
_EXPECTATION = "expectation."
_OUTCOMES = ("passed", "failed")


def expectation_metrics(counts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the metrics of a commit with `{"passed", "failed"}` of each expectation by its name."""
    return {f"{_EXPECTATION}{name}.{outcome}": each[outcome] for name, each in counts.items() for outcome in _OUTCOMES}


def expectation_counts(metrics: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return `{"passed", "failed"}` of each expectation by its name, from the metrics of a commit."""
    found: dict[str, dict[str, int]] = {}
    for metric, count in metrics.items():
        name, _, outcome = metric.rpartition(".")
        if metric.startswith(_EXPECTATION) and outcome in _OUTCOMES:
            found.setdefault(name.removeprefix(_EXPECTATION), {})[outcome] = count
    return {name: each for name, each in found.items() if len(each) == len(_OUTCOMES)}


_SIGNS = {"written": "+", "added": "+", "inserted": "+", "updated": "~", "deleted": "-", REPLACED: "-"}


def commit_rows(operation: object, metrics: object) -> str:
    """Return the rows that a commit of any engine added, updated and removed, such as `+2 ~30 -1`; `0` for none.

    Empty if the commit does not count them. delta-spark uses our names, delta-rs most of them in snake case.
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
