"""DeltaEraseOperator: erase subjects from some tables and from their storage, prove it, and write a report."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.exceptions import AirflowRescheduleException

from airflow_txlog.contract.erasure.check_report import NOT_ERASED, VERIFIED
from airflow_txlog.contract.erasure.report import Findings, Times
from airflow_txlog.contract.operations import CheckSubjects, Erase, Operation
from airflow_txlog.contract.wording import summary_lines
from airflow_txlog.errors import InvalidJobSpec, TableError, TableNotFound, TxlogError, UnsupportedFeature
from airflow_txlog.operators.arguments.given import has_template, moment_of, moment_text, path_text
from airflow_txlog.operators.erasure.reporting import ErasureOperator
from airflow_txlog.operators.progress import report_result
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

# A wait ends by the store's clock, which may be behind.
_SLACK_MS = 60_000
# The step of a report for records that this deployment has not signed. Any writer of the folder can make one.
_UNVERIFIED = "earlier runs (not verified)"
# The records of earlier releases name it otherwise.
_UNKNOWN_RUNS = {_UNVERIFIED, "earlier runs"}


class DeltaEraseOperator(ErasureOperator):
    """Erase subjects from Delta tables and from their storage, verify every object, and write a signed report.

    For each table one job deletes the rows, purges deletion vectors, and deletes the files that hold a subject and that
    the latest version does not need. If the log holds a subject, the job cuts it at a checkpoint without subjects.
    Versions that need a deleted file or the deleted log can no longer be read. If the connection names a ledger, the
    subjects are recorded there before the first row is deleted. Afterwards the task verifies the tables as
    `DeltaErasureVerifyOperator` does. A retry continues the work of a killed try.

    Files that no commit names, and commits that a running writer must still find, wait for `writer_hours`, and files of
    a staged change until it expires. The task is then rescheduled until the last wait ends, and occupies no worker.

    :param deadline: a datetime or ISO 8601, in UTC if it names no zone. The task waits only for waits that end before
        it. Then it verifies, and reports the objects that had to wait longer. None waits until the last wait ends:
        without end if a load brings a subject back during each wait, or another erasure deletes files. (templated)
    :param cut_log: cut the log of a table if it holds a subject. With False the report is complete only if the log
        holds none.
    :param writer_hours: the longest time that any writer of the tables takes from its first read to its commit. Lower
        it only if you know all of them. With 0 only staged changes wait, and a writer that runs now may corrupt the
        table.

    The XCom is that of `DeltaErasureVerifyOperator`.

    Example: `DeltaEraseOperator(task_id="erase", tables={"/lake/users": "email"}, subjects=files("/requests/{{ ds }}"),
    request_id="week-{{ ds }}", report_uri="/reports/erasures", signing_conn_id="erasure_signer")`. The page of the
    operator, docs/operators/erase.md, has a table of all parameters.
    """

    operation: ClassVar[type[Operation]] = Erase
    template_fields: Sequence[str] = (*ErasureOperator.template_fields, "deadline")

    def __init__(
        self,
        *,
        deadline: dt.datetime | str | None = None,
        cut_log: bool = True,
        writer_hours: float = 24,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deadline = deadline
        self.cut_log = cut_log
        self.writer_hours = writer_hours
        self._not_erased: dict[str, str] = {}
        self._unopened: set[str] = set()
        self._held_clones: dict[str, str] | None = None
        self.check_literals()

    def check_arguments(self) -> None:
        super().check_arguments()
        if not has_template(self.deadline):
            _ = self._deadline_ms

    def job_arguments(self) -> dict[str, Any]:
        """Return the fields of the erasure by the first column: the others differ from it in nothing else."""
        self.check_arguments()
        columns = [] if has_template(self.tables) else list(self.tables.values())
        return self._erasure(columns[0] if columns else "column")

    def _erasure(self, column: str, report_uri: str | None = None) -> dict[str, Any]:
        return {
            **self.subjects_by(column),
            "cut_log": self.cut_log,
            "writer_hours": self.writer_hours,
            "report_uri": None if report_uri is None else path_text(report_uri),
        }

    def execute(self, context: Context) -> dict[str, Any]:
        """Erase the subjects from each table, wait if objects have to, verify, write the report, and return its place.

        Raises AirflowRescheduleException to wait.
        """
        self.begin_try()
        self._held_clones = None
        try:
            to_check = self.check_ready()
            if (nothing := self.nothing_requested()) is not None:
                return nothing
            self._check_sources(context, to_check)
            done = self._erased(context)
            if (nothing := self.no_subject()) is not None:
                return nothing
            self._wait(done)
            records = {table: [run["name"] for run in each["runs"]] for table, each in done.items()}
            verified = self.verified(context, records)
            by_table = list(zip(*verified.values(), strict=True))
            found = {
                request_id: [
                    self._not_complete(table, _with_erasure(each, done.get(each.table), request_id, of_all))
                    for table, each, of_all in zip(self.tables, tables, by_table, strict=True)
                ]
                for request_id, tables in verified.items()
            }
            return self.published(self.reports(found, {name: self._times(tables) for name, tables in found.items()}))
        except TxlogError as error:
            raise_for_airflow(error)

    def _check_sources(self, context: Mapping[str, Any], tables: Sequence[Sequence[str]]) -> None:
        """Read the sources of the subjects for `tables` of each kind of key column, before the first one loses a row.

        If a table cannot be read, the next one of its kind is checked, because no table may stop the others. Raises the
        errors of reading the sources, and errors that another try may not meet.
        """
        for alike in tables:
            for table in alike:
                if self._has_read_source(context, table):
                    break

    def _has_read_source(self, context: Mapping[str, Any], table: str) -> bool:
        uri, column = self.hook.table_uri(table), self.tables[table]
        record = self.record_of(CheckSubjects, self.subjects_by(column), self.hook)
        try:
            self.run_job(context, self.spec_for(context, record, uri), f"{uri}/check")
        except (TableError, UnsupportedFeature) as error:
            of_table = error.facts.get("table")
            if error.retryable or of_table is None or self.hook.table(of_table).place != self.hook.table(uri).place:
                raise
            self.log.warning("%s: the subjects were not checked: %s", uri, error)
            return False
        except InvalidJobSpec as error:
            raise InvalidJobSpec(f"{uri}, column {column!r}: {error.message}", **error.facts) from error
        return True

    def _erased(self, context: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Run the job of each table, in order. Return its steps and waits by the table's canonical URI.

        A table whose erasure cannot succeed does not stop the others: the report names it with the reason, and is
        incomplete.
        """
        done: dict[str, dict[str, Any]] = {}
        self._not_erased = {}
        is_failed = False
        report_uri, clones = self.hook.table_uri(self.report_uri), self._clones()
        for table in _after(clones):
            if self.held(table) is not None:
                self.log.info("%s is under legal hold, and is left alone", table)
                continue
            uri = self.hook.table_uri(table)
            if (needed := self._needed_by(uri, clones[table])) is not None:
                self.log.error("%s is left alone: %s", uri, needed)
                self._not_erased[table] = needed
                continue
            record = self.record_of(Erase, self._erasure(self.tables[table], report_uri), self.hook)
            spec = self.spec_for(context, record, uri)
            try:
                result = self.run_job(context, spec, f"{uri}/erase")
            except TxlogError as error:
                if error.retryable or self._is_stopped:
                    raise
                self.log.error("%s: the subjects were not erased: %s", uri, error)
                self._not_erased[table] = f"the erasure failed with {type(error).__name__}, see the task's log"
                is_failed = True
                continue
            for line in summary_lines(result, result.seconds):
                self.log.info("%s", line)
            report_result(context, result, result.seconds)
            if result.details.erasure is None:
                if not done and not is_failed:
                    self.has_no_subject = True
                    return {}
                self.log.error("%s: the subjects were not erased: their source is now empty", uri)
                self._not_erased[table] = "the source of the subjects is now empty"
                continue
            done[self.hook.table(uri).uri] = result.details.erasure
        return done

    def _not_complete(self, table: str, found: Findings) -> Findings:
        """Return the findings on a table; on one that was to be erased and was not, with the reason."""
        reason = self._not_erased.get(table)
        if reason is None:
            return found
        if found.state != VERIFIED:
            reason = f"{reason}; {found.state}: {found.reason}"
        return dataclasses.replace(found, state=NOT_ERASED, reason=reason)

    def _clones(self) -> dict[str, list[str]]:
        """Return for each table those of the tables that are shallow clones of it, or may be."""
        found: dict[str, list[str]] = {table: [] for table in self.tables}
        names = {self.hook.table(table).uri: table for table in self.tables}
        self._unopened = set()
        for clone in self.tables if len(names) > 1 else ():
            if self.held(clone) is not None:
                continue
            table = self.hook.table(clone)
            try:
                sources = table.clone_of(names)
            except TableNotFound:
                continue
            except (TableError, UnsupportedFeature) as error:
                if error.retryable:
                    raise
                # Its job meets the error, too. A repair brings back the rows of the files that it still names.
                self._unopened.add(clone)
                sources = table.may_be_clone_of(names)
            for uri in sources:
                if names[uri] != clone:
                    found[names[uri]].append(clone)
        return found

    def _needed_by(self, uri: str, clones: Sequence[str]) -> str | None:
        """Return why the files of a table must stay for a shallow clone; None if they need not."""
        if (clone := self._held_clone_of(uri)) is not None:
            return f"its shallow clone {clone} is under legal hold, and needs its files"
        failed = next((clone for clone in clones if clone in self._not_erased), None)
        if failed in self._unopened:
            return (
                f"{failed} cannot be opened, and may be a shallow clone that needs its files. Repair it. If it is "
                "lost, or is no such clone, take it out of tables"
            )
        return None if failed is None else f"its shallow clone {failed} was not erased, and needs its files"

    def _held_clone_of(self, uri: str) -> str | None:
        """Return the table under legal hold that reads files of this one; None if there is none.

        Raises InvalidJobSpec if one under legal hold cannot be opened.
        """
        if self._held_clones is None:
            self._held_clones = self._with_held_clones()
        return self._held_clones.get(self.hook.table(uri).uri)

    def _with_held_clones(self) -> dict[str, str]:
        """Return the canonical URIs of the tables whose files one under legal hold reads, each with its name."""
        uris = [self.hook.table(table).uri for table in self.tables if self.held(table) is None]
        found: dict[str, str] = {}
        for name in self.legal_hold or ():
            try:
                sources = self.hook.table(name).clone_of(uris)
            except (TableError, UnsupportedFeature) as error:
                if error.retryable:
                    raise
                raise InvalidJobSpec(
                    f"{name} is under legal hold, and cannot be opened. So it is unknown whether it is a shallow clone "
                    "that needs the files of another of the tables. Nothing was changed. Correct the name, or repair "
                    f"the table. If it is gone, take it out of tables and legal_hold. {error.message}",
                    argument="legal_hold",
                ) from error
            for uri in sources:
                found.setdefault(uri, name)
        return found

    def is_skipped(self, table: str) -> bool:
        return super().is_skipped(table) or self._held_clone_of(self.hook.table_uri(table)) is not None

    @property
    def _deadline_ms(self) -> int | None:
        return None if self.deadline is None else int(moment_of("deadline", self.deadline).timestamp() * 1000)

    def _wait(self, done: Mapping[str, Mapping[str, Any]]) -> None:
        """Reschedule the task until the last wait that ends before the deadline. Return if there is none."""
        ends_ms = sorted({each + _SLACK_MS for found in done.values() for each in found["ends_ms"]})
        if not ends_ms:
            return
        count, deadline_ms = sum(found["num_waits"] for found in done.values()), self._deadline_ms
        in_time = [each for each in ends_ms if deadline_ms is None or each <= deadline_ms]
        last = dt.datetime.fromtimestamp(ends_ms[-1] / 1000, dt.UTC)
        if not in_time:
            self.log.warning("%d objects have to wait until %s, after the deadline: they are reported", count, last)
            return
        until = dt.datetime.fromtimestamp(in_time[-1] / 1000, dt.UTC)
        # Also if the wait has ended since, while the other tables were erased: nothing has deleted the objects yet.
        self.log.info("%d objects have to wait until %s: the task is run again at %s", count, last, until)
        if self.has_dag() and self.dag.max_active_runs != 1:  # type: ignore[no-untyped-call]
            self.log.warning("give the DAG max_active_runs=1: an erasure by another run meanwhile prolongs this wait")
        raise AirflowRescheduleException(until)  # type: ignore[no-untyped-call]

    def _times(self, tables: Sequence[Findings]) -> Times:
        """Return the times of a request's report: of the steps in all runs of the task, the last table's."""
        # Where nothing of the subjects was there, nothing went.
        of_tables = [_times_of(each.steps) for each in tables if each.steps and each.num_erased_objects != 0]
        is_complete = bool(of_tables) and all(each.is_complete for each in tables)
        last = [max(each) for each in zip(*of_tables, strict=True)] if of_tables else [None] * 3
        return Times(
            requested=moment_text(self.requested_at),
            gone_from_latest_version=None if any(each.state == NOT_ERASED for each in tables) else last[0],
            gone_from_storage=last[1] if is_complete else None,
            gone_from_log=last[2] if is_complete else None,
        )


def _after(clones: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tables, each after its clones: these copy other people's rows from its files before the files go."""
    left, found = list(clones), []
    while left:
        # Tables that name files of each other have no order.
        table = next((each for each in left if all(clone not in left for clone in clones[each])), left[0])
        left.remove(table)
        found.append(table)
    return found


def _times_of(steps: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Return the times from which on a table's latest version, its files and its log were without the subjects.

    Each is the time of the last step that still deleted something there. If no step did, it is the time of the first
    removal that found the version before it without subjects.
    """
    known, unknown = [step for step in steps if step["at"]], {step["name"] for step in steps if not step["at"]}
    removals = [step for step in known if step["name"] == "remove"]
    # An unknown step of a killed run was before the last removal.
    last = removals[-1]["at"]
    version = max((step["at"] for step in known if step["name"] != "remove"), default=removals[0]["at"])
    if unknown - {"remove"}:
        version = last
    after = next((step["at"] for step in removals if step["at"] >= version), version)
    files, log = (
        last if unknown else max((step["at"] for step in removals if step.get(name)), default=after)
        for name in ("deleted_files", "deleted_log_files")
    )
    return version, max(files, version), max(log, version)


def _with_erasure(
    found: Findings, done: Mapping[str, Any] | None, request_id: str, of_all: Sequence[Findings] = ()
) -> Findings:
    """Return the findings on a table with the steps of all runs, the waits, and the objects that they deleted.

    `of_all`: the findings of each request on it.
    """
    if done is None:
        return found
    runs = [run for run in done["runs"] if request_id in run["requests"]]
    # The record of a run also has the steps of killed ones, for each of its requests.
    different = {repr(sorted(step.items())): step for run in runs for step in run["steps"]}
    steps = sorted(different.values(), key=lambda step: str(step["at"] or step["begun"] or ""))
    if request_id in done.get("unverified", ()):
        steps = [{"name": _UNVERIFIED, "version": None, "at": None, "begun": None}, *steps]
    found = dataclasses.replace(found, steps=steps)
    # The waits are those of all requests. Where objects show that they are another one's, they are not this one's.
    is_of_others = not found.num_left and any(each.num_left for each in of_all)
    waiting = done["unshown"] if is_of_others else done
    found = dataclasses.replace(found, waits=waiting["waits"], num_waits=waiting["num_waits"])
    deleted = done["deleted"].get(request_id, ())
    count = sum(each["num_objects"] for each in deleted)
    unknown = {step["name"] for step in steps if step["at"] is None}
    rows = [step.get("num_rows", 0) for step in steps]
    are_known = None not in rows and not unknown & {"delete", *_UNKNOWN_RUNS}
    found = dataclasses.replace(
        found,
        num_erased_objects=None if unknown & _UNKNOWN_RUNS else count,
        num_deleted_rows=sum(rows) if are_known else None,
    )
    if not count or found.state != VERIFIED:
        return found
    verdicts = {**found.verdicts, "deleted": found.verdicts.get("deleted", 0) + count}
    return dataclasses.replace(
        found, verdicts=verdicts, num_objects=found.num_objects + count, parts=[*found.parts, *deleted]
    )
