"""The Delta transaction log: tables, snapshots, transactions. Knows nothing of Airflow or Spark.

Read `delta_table` first; it puts the parts together. Below it lie `commit` and `upkeep`, then `table`, `log` and
`store`, and none of them imports one above it.
"""

from __future__ import annotations

from airflow_txlog.engine.commit.transaction import CommitOutcome, Transaction
from airflow_txlog.engine.delta_table import Table
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot

__all__ = ["CommitOutcome", "Snapshot", "Table", "Transaction", "changes_since"]
