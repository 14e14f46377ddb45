"""The operators, importable from one path. Each describes one job on one table, runs it and reports the result.

`files`, `table` and `query` make sources; `when_matched_update` and the others make the clauses of a merge.
"""

from airflow_txlog.operators.alter import DeltaAlterTableOperator
from airflow_txlog.operators.changes.apply_changes import DeltaApplyChangesOperator
from airflow_txlog.operators.changes.apply_snapshot import DeltaApplySnapshotOperator
from airflow_txlog.operators.changes.incremental import DeltaIncrementalOperator
from airflow_txlog.operators.clone import DeltaCloneOperator
from airflow_txlog.operators.convert import DeltaConvertOperator
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.erasure.erase import DeltaEraseOperator
from airflow_txlog.operators.erasure.verify import DeltaErasureVerifyOperator
from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import CheckpointOperator, VacuumOperator
from airflow_txlog.operators.maintenance.optimize import DeltaOptimizeOperator
from airflow_txlog.operators.maintenance.upkeep import DeltaUpkeepOperator
from airflow_txlog.operators.merge import (
    DeltaMergeOperator,
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_txlog.operators.publish import (
    DeltaAuditOperator,
    DeltaDiscardOperator,
    DeltaPublishOperator,
    write_audit_publish,
)
from airflow_txlog.operators.restore import DeltaRestoreOperator
from airflow_txlog.operators.runs import DeltaRollbackOperator, PinVersionsOperator
from airflow_txlog.operators.sources import files, query, table
from airflow_txlog.operators.truncate import DeltaTruncateOperator
from airflow_txlog.operators.update import DeltaUpdateOperator
from airflow_txlog.operators.upsert import DeltaUpsertOperator
from airflow_txlog.operators.write import DeltaWriteOperator

__all__ = [
    "CheckpointOperator",
    "DeltaAlterTableOperator",
    "DeltaApplyChangesOperator",
    "DeltaApplySnapshotOperator",
    "DeltaAuditOperator",
    "DeltaCloneOperator",
    "DeltaConvertOperator",
    "DeltaDeleteOperator",
    "DeltaDiscardOperator",
    "DeltaEraseOperator",
    "DeltaErasureVerifyOperator",
    "DeltaIncrementalOperator",
    "DeltaMergeOperator",
    "DeltaOptimizeOperator",
    "DeltaPublishOperator",
    "DeltaRestoreOperator",
    "DeltaRollbackOperator",
    "DeltaTruncateOperator",
    "DeltaUpdateOperator",
    "DeltaUpkeepOperator",
    "DeltaUpsertOperator",
    "DeltaWriteOperator",
    "PinVersionsOperator",
    "VacuumOperator",
    "files",
    "query",
    "table",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
    "write_audit_publish",
]
