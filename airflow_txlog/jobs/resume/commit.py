"""From staged files to one commit: the last step of a job, and the only one that a reader can see.

The invariant: what a commit removes and adds is exactly what the plan found and the stage wrote; the application
transaction rides on it, never alone. Source: soundness A10, B5; delta-spark, DeltaOperations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Add, Cdc
from airflow_txlog.engine.table.schema.properties import SERIALIZABLE, TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.errors import AppendOnlyViolation
from airflow_txlog.jobs.context import LogContext


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a job wants to commit.

    `staged` are new files, those of change rows among them. `removed` are rows of a table `FILES`. `adds` are added
    besides what is `staged`: files of the table that come again with another deletion vector, which lies in one of the
    staged `vector_files`. `parameters` are the commit's operationParameters, as delta-spark spells them; `metrics` its
    operationMetrics. `files` are the result's counts of files.
    """

    operation: str
    parameters: Mapping[str, Any]
    staged: Sequence[StagedFile] = ()
    removed: pa.Table | None = None
    adds: Sequence[Add] = ()
    vector_files: Sequence[StagedFile] = ()
    metrics: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    is_creation: bool = False
    data_change: bool = True
    """False where rows only moved to other files: every action of the commit says so."""

    @property
    def all_staged(self) -> list[StagedFile]:
        """Every file that the commit needs and that was staged for it."""
        return [*self.staged, *self.vector_files]

    @property
    def changes_nothing(self) -> bool:
        return not self.staged and (self.removed is None or self.removed.num_rows == 0) and not self.is_creation


def commit_change(context: LogContext, tx: Transaction, change: Change) -> bool:
    """Commit the change through `tx`; whether a version was made.

    Nothing to do makes no commit under Serializable, and records no application transaction: a retry may find rows
    that arrived later. Under WriteSerializable the empty commit is recorded and carries it (soundness B5).
    Raises what `Transaction.commit` raises.
    """
    if change.changes_nothing and (_is_serializable(tx) or not change.data_change):
        return False
    new_files = (_add(file, change.data_change) for file in change.staged if not file.is_change)
    tx.add([*new_files, *change.adds])
    tx.add_changes([_cdc(file) for file in change.staged if file.is_change])
    if change.removed is not None and change.removed.num_rows:
        tx.remove(change.removed, data_change=change.data_change)
    application = context.spec.application
    if application is not None:
        tx.set_application(application.app_id, application.version)
    if tx.metadata is not None:
        schema = parse_schema(tx.metadata.schema_string)
        context.lineage.columns = {field.name: str(field.type) for field in schema}
    tx.commit(change.operation, change.parameters, change.metrics, tags=context.spec.commit_tags())
    return tx.outcome is not None and tx.outcome.committed


def check_may_remove_rows(snapshot: Snapshot, operation: str) -> None:
    """Raises AppendOnlyViolation before anything is staged where the table only grows."""
    if snapshot.table_properties.append_only:
        raise AppendOnlyViolation(
            f"Table {snapshot.uri} is append-only (delta.appendOnly), so {operation} cannot remove or change rows. "
            "Nothing was staged.",
            table=snapshot.uri,
        )


def predicate_parameter(texts: Sequence[str]) -> str:
    """Conditions as operationParameters have them: a JSON array of texts. Parameters stay names, never values."""
    return json.dumps(list(texts), ensure_ascii=False)


def _is_serializable(tx: Transaction) -> bool:
    if tx.snapshot is None:
        return False
    properties: TableProperties = tx.snapshot.table_properties
    return properties.isolation_level == SERIALIZABLE


def _cdc(file: StagedFile) -> Cdc:
    return Cdc(path=file.path, partition_values=file.partition_values, size=file.size_bytes, data_change=False)


def _add(file: StagedFile, data_change: bool) -> Add:
    return Add(
        path=file.path,
        partition_values=file.partition_values,
        size=file.size_bytes,
        modification_time=file.modification_time_ms,
        data_change=data_change,
        stats=file.stats,
    )
