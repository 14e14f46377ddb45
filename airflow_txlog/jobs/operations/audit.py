"""AUDIT: check the table as a staged change would leave it, by SQL that Spark evaluates.

The version that is checked is the one that a publication would make, if no other commit lands: the base version with
the staged files. The invariant: a result has names and numbers, and no value of a row.
"""

from __future__ import annotations

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.contract.operations import Audit, FileView, QuerySource, TableView
from airflow_txlog.contract.operations.fields import StagedView
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine.staged_changes import staged_snapshot
from airflow_txlog.errors import AuditFailed
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.resume.unpublished import record_audit
from airflow_txlog.jobs.sql.gate import SqlGate, check_none_spare

# The rows of a statement on aggregates are one; null fails.
_NUM_FAILED = "SELECT COUNT_IF(ok = 0) AS failed FROM (SELECT CASE WHEN (\n{0}\n) THEN 1 ELSE 0 END AS ok FROM staged)"
_NUM_ROWS = "SELECT COUNT(*) AS failed FROM (\n{0}\n)"


def audit(context: JobContext) -> JobResult:
    """Run the job of `context.spec`. Raises AuditFailed, StagedChangeGone, and the errors of a source's query."""
    described, gate, uri = context.record(Audit), SqlGate(context), context.spec.table_uri
    if described.app_id is not None:
        # Before it is evaluated: what fails now must not pass unseen if the change is made again.
        work = ApplicationTransaction(app_id=described.app_id, version=described.app_version)
        staged_snapshot(context.table, described.id, described.digest)
        record_audit(context, described.id, work)
    views: dict[str, TableView | FileView] = {
        "staged": TableView(table=uri, staged=StagedView(id=described.id, digest=described.digest)),
        "before": TableView(table=uri, version=described.base_version),
    }
    audits = {name: _NUM_FAILED.format(text) for name, text in described.checks.items()}
    audits |= {name: _NUM_ROWS.format(text) for name, text in described.no_rows.items()}
    check_none_spare(described, {name for sql in audits.values() for name in gate.parameters_in(sql)})
    failed: dict[str, int] = {}
    for name, sql in audits.items():
        with context.step("audit"):
            source = context.executor.source(context, gate, QuerySource(sql=sql, views=views), "source", None)
            (count,) = source.values_of("failed", f"evaluate the audit {name}").to_pylist()
        if count:
            failed[name] = count
    if failed:
        words = ", ".join(f"{name} ({plural(count, 'row')})" for name, count in failed.items())
        raise AuditFailed(
            f"{len(failed)} of {plural(len(audits), 'audit')} fail on the staged change {described.id} of "
            f"{context.root}: {words}. Nothing was published. Discard it, correct its source, and stage it again.",
            table=context.root,
            id=described.id,
            failed=failed,
        )
    context.log(f"{plural(len(audits), 'audit')} passed")
    version = described.base_version
    return context.result(
        is_committed=False, version=version, read_version=version, metrics={"numAuditsPassed": len(audits)}
    )
