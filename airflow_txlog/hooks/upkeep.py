"""The upkeep of many tables: the tables of a folder, one job for each within one budget, and a report.

The invariant: the failure of one table stops no other; the report names all failures at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation
from airflow_txlog.contract.wording import plural, size_text
from airflow_txlog.errors import InvalidJobSpec, JobError, TxlogError
from airflow_txlog.runners import run_unless_done

if TYPE_CHECKING:
    from airflow_txlog.hooks.txlog import TxlogHook

_LOG = "_delta_log"
# The report of a failed table has so much of its error.
_ERROR_CHARACTERS = 500
# An error or a warning names so many tables or folders.
_SHOWN = 10

RunJob = Callable[[JobSpec], JobResult]


@dataclass(kw_only=True)
class UpkeepReport:
    """One entry for each table, in the order of the work.

    An entry has `table` and `status` ("committed", "nothing_to_do", "failed", "left"), and, if the job ran, `version`,
    `steps` (see `Details.upkeep`), `metrics` and `seconds`; of a failed one `error`.
    """

    tables: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, TxlogError] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON: `{"tables", "failed", "left"}`."""
        left = [entry["table"] for entry in self.tables if entry["status"] == "left"]
        return {"tables": self.tables, "failed": sorted(self.errors), "left": left}

    def check(self) -> None:
        """Raise JobError if the upkeep of some table failed: retryable if another try may cure all of them."""
        if not self.errors:
            return
        first = list(self.errors.items())[:_SHOWN]
        named = "; ".join(f"{table} ({type(error).__name__}: {error.message})" for table, error in first)
        more = f" And {len(self.errors) - _SHOWN} more." if len(self.errors) > _SHOWN else ""
        raise JobError(
            f"The upkeep of {len(self.errors)} of {plural(len(self.tables), 'table')} failed: {named}{more} The others "
            "are done. Run it again: what is done is no longer due.",
            retryable=all(error.retryable for error in self.errors.values()),
        )


def find_tables(hook: TxlogHook, places: Sequence[str], argument: str = "tables") -> list[str]:
    """Return the URIs of the tables at these places, each a table or a folder with tables at any depth, once each.

    Raises InvalidJobSpec for a place without a table.
    """
    found: dict[str, None] = {}
    for place in places:
        below = list(_tables_at(hook, hook.table_uri(place)))
        if not below:
            raise InvalidJobSpec(
                f"There is no table at {place!r}: neither it nor a folder below it holds {_LOG}. Nothing was changed.",
                argument=argument,
            )
        found |= dict.fromkeys(below)
    return list(found)


def _tables_at(hook: TxlogHook, uri: str) -> Iterator[str]:
    # Here: parsing a DAG imports no store.
    from airflow_txlog.storage import open_folder

    store = open_folder(uri, hook.access)
    if store.list(_LOG):
        yield uri
        return
    unreadable: list[str] = []
    files = (info.path for info in store.walk(unreadable.append))
    roots = {path.partition(f"/{_LOG}/")[0] for path in files if f"/{_LOG}/" in path}
    # The job of a table whose log this user cannot list fails, and names it.
    roots |= {path.removesuffix(f"/{_LOG}") for path in unreadable if path.endswith(f"/{_LOG}")}
    others = [path for path in unreadable if not path.endswith(f"/{_LOG}")]
    if others:
        shown = ", ".join(sorted(others)[:_SHOWN])
        hook.log.warning("this user cannot list %s below %s: %s", plural(len(others), "folder"), uri, shown)
    for root in sorted(roots):
        yield f"{uri.rstrip('/')}/{root}"


def run_upkeep(
    hook: TxlogHook,
    places: Sequence[str],
    make_spec: Callable[[str, Mapping[str, Any]], JobSpec],
    run: RunJob,
    log: Callable[[str], None],
    *,
    max_bytes: int | None = None,
    max_minutes: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> UpkeepReport:
    """Run the job of `make_spec` on each table, one after another, within the budget; return the report.

    `make_spec` gets the table, and the fields of the record that limit the job. Raises the error of a job that ends
    after the caller `is_stopped`.
    """
    tables, report = find_tables(hook, places), UpkeepReport()
    until_s = None if max_minutes is None else SYSTEM_CLOCK.monotonic_s() + 60 * max_minutes
    left_bytes = max_bytes
    for number, table in enumerate(tables, 1):
        log(f"table {number} of {len(tables)}: {table}")
        minutes = None if until_s is None else (until_s - SYSTEM_CLOCK.monotonic_s()) / 60
        if minutes is not None and minutes <= 0:
            log("left for another time: the time is over")
            report.tables.append({"table": table, "status": "left"})
            continue
        # A record of this kind has no zero: what is left of nothing is one byte, which no file fits.
        limits = {"max_minutes": minutes, "max_bytes": None if left_bytes is None else max(1, left_bytes)}
        started_s = SYSTEM_CLOCK.monotonic_s()
        try:
            result = run(make_spec(table, limits))
        except TxlogError as error:
            if is_stopped():
                raise
            log(f"failed: {type(error).__name__}: {error}")
            report.errors[table] = error
            shown = {"type": type(error).__name__, "message": str(error)[:_ERROR_CHARACTERS]}
            report.tables.append({"table": table, "status": "failed", "error": shown})
            continue
        entry = {
            "table": table,
            "status": result.status,
            "version": result.version,
            "steps": result.details.upkeep,
            "metrics": {name: count for name, count in result.metrics.items() if count},
            "seconds": round(SYSTEM_CLOCK.monotonic_s() - started_s, 1),
        }
        report.tables.append(entry)
        log(_line(entry))
        if left_bytes is not None:
            left_bytes -= result.metrics.get("numRemovedBytes", 0)
    return report


def upkeep_here(
    hook: TxlogHook, places: Sequence[str], arguments: Mapping[str, Any], log: Callable[[str], None], **limits: Any
) -> UpkeepReport:
    """Return the report of an upkeep with these fields of the record, by the runner of the connection.

    `limits`: as of `run_upkeep`.
    """
    name = hook.runner_or(None)

    def make_spec(table: str, limited: Mapping[str, Any]) -> JobSpec:
        operation = read_operation(operation_named("upkeep"), {**arguments, **limited})
        return hook.with_settings(JobSpec(operation=operation, table_uri=table), name)

    def run(spec: JobSpec) -> JobResult:
        runner = hook.make_runner(name) if isinstance(name, str) else name
        return run_unless_done(runner, spec, log=log)

    return run_upkeep(hook, places, make_spec, run, log, **limits)


def _line(entry: Mapping[str, Any]) -> str:
    if not entry["steps"]:
        return "nothing is due"
    return "; ".join(
        f"{step['step']}{'' if step['done'] else ' (left undone)'}: {step['why']}"
        + (f", {size_text(step['bytes'])}" if step.get("bytes") else "")
        for step in entry["steps"]
    )
