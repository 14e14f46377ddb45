"""The operations on earlier work: audit, publication and end of a staged change; rollback; erasure and its proof."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from airflow_txlog.contract.operations.base import Operation, register
from airflow_txlog.contract.operations.fields import (
    AnyKeys,
    ChangeId,
    Hours,
    Location,
    Names,
    Parameters,
    Queries,
    Text,
    Version,
)
from airflow_txlog.contract.operations.reading import want
from airflow_txlog.contract.operations.records import WithKeys
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
        want("arguments.audited_by", possible, 'null unless on_change is "reaudit"', self.audited_by)

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


class OfSubjects(WithKeys, Operation, frozen=True, kw_only=True):
    """An operation on the subjects of an erasure: `keys`, by a column of the table or a member of a struct."""

    needs_spark = True
    uses_ledger = True

    keys: AnyKeys


@register
class VerifyErasure(OfSubjects, frozen=True, kw_only=True, tag="verify_erasure"):
    """Open every object below the table, and write a verdict on each to a list below `report_uri`. Only read it."""

    job = f"{_JOBS}.verify_erasure:verify_erasure"

    report_uri: Location


@register
class Erase(OfSubjects, frozen=True, kw_only=True, tag="erase"):
    """Delete the subjects' rows, and every object that holds one of them and that the latest version does not need.

    `request_id`: of the subjects in the ledger. `cut_log`: cut the log if it holds one. `writer_hours`: the longest
    time that a writer takes from its first read to its commit; 0: nothing else writes. `report_uri`: the folder for the
    list of the deleted objects; None writes none.
    """

    job = f"{_JOBS}.erase:erase"
    uses_ledger = True
    rows = {"numDeletedRows": "deleted"}

    request_id: Text | None = None
    cut_log: bool = True
    writer_hours: Hours = 24
    report_uri: Location | None = None
