"""ALTER: new properties, features, columns, rules, marks and clustering, in one commit.

Only rules for rows that exist, and marks past their values, need rows (`verification`). Everything else is done by the
log alone, so a lost race spoils nothing: the next attempt alters what the winner left. Source: delta-spark,
alterDeltaTableCommands.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Alter
from airflow_txlog.contract.operations.alter import AddedColumn
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.alteration.altered import Alteration, Altered, altered
from airflow_txlog.engine.alteration.column_changes import NewColumn
from airflow_txlog.engine.alteration.feature_changes import readers_text
from airflow_txlog.engine.checkpointing import checkpoint
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.operations.alter.file_types import check_present_types
from airflow_txlog.jobs.resume.attempts import Change, run_attempts

Verify = Callable[[Transaction, Altered], Altered]


def alter(context: LogContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_attempts(context, lambda tx: planned(context, tx, None))


def planned(context: LogContext, tx: Transaction, verify: Verify | None) -> Change:
    """Return the change.

    `verify` returns it with the marks that identity columns need for the rows of the table. It raises
    ConstraintViolation if rows break a new rule.
    """
    snapshot = tx.snapshot
    assert snapshot is not None
    with context.step("plan"):
        found = altered(snapshot, _alteration(context), context.clock.unique_id)
    if verify is not None and (found.to_sync or not found.changes_nothing):
        found = verify(tx, found)
    if found.changes_nothing:
        context.log("the table is as it should be")
        return Change(operation=found.operation, parameters={}, data_change=False)
    if found.new_for_readers:
        context.log(f"readers must know {', '.join(found.new_for_readers)} now: {readers_text(found.new_for_readers)}")
    if found.adds:
        context.log(f"the row ids of {plural(len(found.adds), 'file')} change")
    if found.adds or found.constraints or found.not_null or found.to_sync:
        # A file that lands first has not been read, or has no row ids.
        tx.read_whole_table()
    if found.needs_present_types:
        with context.step("verify"):
            check_present_types(context, snapshot)
    if found.protects_history:
        with context.step("checkpoint"):
            context.log(f"a checkpoint of version {snapshot.version}, from which readers without the feature begin")
            checkpoint(context.store, snapshot, context.clock, is_classic=True)
    if found.metadata != snapshot.metadata:
        tx.set_metadata(found.metadata, is_checked=True)
    if found.protocol != snapshot.protocol:
        tx.set_protocol(found.protocol)
    for domain in found.domains:
        tx.set_domain(domain.domain, domain.configuration, removed=domain.removed)
    return Change(
        operation=found.operation,
        parameters=found.parameters,
        adds=found.adds,
        files={"considered": snapshot.num_files},
        is_alteration=True,
        never_rebases=found.protects_history,
    )


def _alteration(context: LogContext) -> Alteration:
    # The author's own texts: the table keeps them as they are.
    record = context.spec.operation
    assert isinstance(record, Alter)
    given = {name: getattr(record, name) for name in record.__struct_fields__}
    given["add_columns"] = {name: _column(column) for name, column in record.add_columns.items()}
    return Alteration(**given)


def _column(given: str | AddedColumn) -> NewColumn:
    if isinstance(given, str):
        return NewColumn(type=given)
    return NewColumn(type=given.type, comment=given.comment, default=given.default)
