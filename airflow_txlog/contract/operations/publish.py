"""The operations on earlier work: audit, publication and end of a staged change; rollback; erasure and its proof."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from airflow_txlog.contract.operations.base import Operation, register
from airflow_txlog.contract.operations.fields import (
    AnyKeys,
    ChangeId,
    Hours,
    KeySource,
    KeyValues,
    Location,
    Names,
    Parameters,
    Queries,
    RowsInProcess,
    Text,
    Version,
)
from airflow_txlog.contract.operations.reading import want
from airflow_txlog.contract.operations.records import is_in_reach, may_be_read_here
from airflow_txlog.contract.parameters import decode_parameter

_JOBS = "airflow_txlog.jobs.operations"


@register
class Publish(Operation, frozen=True, kw_only=True, tag="publish"):
    """Commit the staged change with this id, whose document has this digest, as the work that staged it.

    `on_change` "reaudit": if another commit forbids it, make the change again on the newest version, run the audits of
    it that were recorded, and publish that. "fail": raise the conflict. `audited_by`: tasks whose audits must be among
    those that were recorded.
    """

    job = f"{_JOBS}.publish:publish"
    changes_rows = True
    uses_ledger = True
    runs_jobs = True

    id: ChangeId
    digest: Text
    on_change: Literal["fail", "reaudit"] = "fail"
    audited_by: Names | None = None

    def check(self) -> None:
        possible = not self.audited_by or self.on_change == "reaudit"
        want("arguments.audited_by", possible, 'None unless on_change is "reaudit"', self.audited_by)

    @property
    def needs_spark(self) -> bool:  # type: ignore[override]
        return self.on_change == "reaudit"

    @property
    def may_spare_spark(self) -> bool:
        return True

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return True


@register
class Audit(Operation, frozen=True, kw_only=True, tag="audit"):
    """Check the table as the staged change with this id and digest would leave it: the view `staged`.

    `checks`: conditions on its rows, or on aggregates of them; each must be true. `no_rows`: queries that must return
    no row. The view `before` is the version that the change was made on, `base_version`. `app_id` and `app_version`:
    the work that staged it; with them the job records what it audits, for a publication that audits again.
    """

    job = f"{_JOBS}.audit:audit"
    needs_spark = True

    id: ChangeId
    digest: Text
    base_version: Version
    checks: Queries = msgspec.field(default_factory=dict)
    no_rows: Queries = msgspec.field(default_factory=dict)
    parameters: Parameters | None = None
    app_id: Text | None = None
    app_version: int = 0

    def check(self) -> None:
        want("arguments.checks", bool(self.checks or self.no_rows), "given, or no_rows is: there is nothing to check")

    @property
    def bound_parameters(self) -> dict[str, Any]:
        return {name: decode_parameter(value) for name, value in (self.parameters or {}).items()}


@register
class Discard(Operation, frozen=True, kw_only=True, tag="discard"):
    """Delete the files of the staged change with this id and digest, unless it may be published."""

    job = f"{_JOBS}.publish:discard"

    id: ChangeId
    digest: Text


@register
class Rollback(Operation, frozen=True, kw_only=True, tag="rollback"):
    """Undo what the tasks of the run have committed to the table, unless later commits are in the way.

    It carries no separate transaction, because commits that are already undone are not undone again. `since`: the run
    has committed nothing before this version. `of_deployment`: commits that name another Airflow deployment are not the
    run's. `commit`: undo this commit instead, which is an earlier rollback.
    """

    job = f"{_JOBS}.rollback:rollback"
    changes_rows = True
    uses_ledger = True
    rows = {"numDeletedRows": "deleted"}

    run_id: Text
    of_dag_id: Text
    of_deployment: Text | None = None
    since: Version = 0
    commit: Version | None = None


class OfSubjects(Operation, frozen=True, kw_only=True):
    """An operation on the subjects of an erasure, by a column of the table or a member of a struct.

    `subjects`: those of one request. `requests`: those of several, by the ids of the requests, all by one column.
    `statements`: texts of the author that the report shows, and that may name no subject.
    """

    needs_spark = True
    uses_ledger = True

    request_id: Text | None = None
    subjects: AnyKeys | None = None
    requests: Annotated[dict[Text, AnyKeys], Meta(min_length=1, description="a non-empty mapping")] | None = None
    statements: Names = ()

    def check(self) -> None:
        want("arguments.subjects", (self.subjects is None) != (self.requests is None), "given, or requests instead")
        want("arguments.request_id", None in (self.request_id, self.requests), "None with requests")
        columns = {each.column for each in self.by_request.values()}
        want("arguments.requests", len(columns) == 1, "of one column")

    @property
    def by_request(self) -> dict[str, KeyValues | KeySource]:
        """The subjects of each request; those of a single one without an id under `UNNAMED`."""
        if self.subjects is not None:
            return {self.request_id or UNNAMED: self.subjects}
        return self.requests or {}

    @property
    def column(self) -> str:
        """The column of the table that identifies subjects."""
        return next(iter(self.by_request.values())).column

    @property
    def _sources(self) -> list[Any]:
        return [each.source for each in self.by_request.values() if isinstance(each, KeySource)]

    @property
    def holds_rows(self) -> bool:
        return any(isinstance(each, RowsInProcess) for each in self._sources)

    @property
    def may_spare_spark(self) -> bool:
        return all(map(may_be_read_here, self._sources))

    def likely_spares_spark(self, *, is_spark_here: bool) -> bool:
        return self.may_spare_spark and all(is_in_reach(each, is_spark_here=is_spark_here) for each in self._sources)


UNNAMED = "request"


@register
class VerifyErasure(OfSubjects, frozen=True, kw_only=True, tag="verify_erasure"):
    """Open every object below the table, and write a verdict on each to a list below `report_uri`. Only read it.

    `records`: the names of the records there that the erasures of these requests have left.
    """

    job = f"{_JOBS}.verify_erasure:verify_erasure"

    report_uri: Location
    records: Names = ()


@register
class CheckSubjects(OfSubjects, frozen=True, kw_only=True, tag="check_subjects"):
    """Read the subjects as values of the column of the table, and change nothing: an erasure could begin."""

    job = f"{_JOBS}.verify_erasure:check_subjects"
    uses_ledger = False


@register
class Erase(OfSubjects, frozen=True, kw_only=True, tag="erase"):
    """Delete the subjects' rows, and every object that holds one of them and that the latest version does not need.

    The subjects of a request with an id are in the ledger first. `cut_log`: cut the log if it holds one.
    `writer_hours`: the longest time that a writer takes from its first read to its commit; 0: nothing else writes.
    `report_uri`: the folder for the lists of deleted objects and the record of the work; None writes none.
    """

    job = f"{_JOBS}.erase:erase"
    rows = {"numDeletedRows": "deleted"}

    cut_log: bool = True
    writer_hours: Hours = 24
    report_uri: Location | None = None
