"""DeltaErasureVerifyOperator: prove that no object of some tables holds a subject, and write a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow_txlog.contract.erasure.report import Times
from airflow_txlog.contract.operations import Operation, VerifyErasure
from airflow_txlog.errors import TxlogError
from airflow_txlog.operators.arguments.given import moment_text
from airflow_txlog.operators.erasure.reporting import ErasureOperator
from airflow_txlog.policies.retry import raise_for_airflow

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class DeltaErasureVerifyOperator(ErasureOperator):
    """Open every object below some Delta tables, and report whether one still holds a subject.

    The task needs the right to list and to read the tables, and to write to `report_uri`. It opens data files with
    their dictionaries, statistics and filters, deletion vectors, change files, every file of the log, staged files and
    all other files, and searches names too. Each object gets a verdict. The report is complete only if every
    object passes. An object that cannot be read never passes. An incomplete report is written too. The report and its
    lists contain no value of a subject. `airflow txlog erasure verify REPORT` checks it.

    The XCom is `{"request_id", "complete", "report", "page", "public_key", "left": {table: objects}, "recheck_on"}`.
    With `requests` it is `{"requests": {id: {"complete", "report", "page", "left", "recheck_on"}}, "num_requests",
    "num_complete", "complete", "public_key", "recheck_on"}`.

    Example: `DeltaErasureVerifyOperator(task_id="prove", tables={"/lake/users": "email"}, subjects=["a@example.org"],
    request_id="r-17", report_uri="/reports/erasures", signing_conn_id="erasure_signer")`. The page of the
    operator, docs/operators/erasure-verify.md, has a table of all parameters.
    """

    operation: ClassVar[type[Operation]] = VerifyErasure

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check_literals()

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify each table, write the report, and return its place."""
        self.begin_try()
        try:
            self.check_ready()
            if (nothing := self.nothing_requested()) is not None:
                return nothing
            found = self.verified(context)
            if (nothing := self.no_subject()) is not None:
                return nothing
            times = Times(requested=moment_text(self.requested_at))
            return self.published(self.reports(found, dict.fromkeys(found, times)))
        except TxlogError as error:
            raise_for_airflow(error)
