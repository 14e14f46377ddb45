"""The Delta transaction log: tables, snapshots, transactions. Knows nothing of Airflow or Spark.

Read `delta_table` first; it puts the parts together. Below it lie `commit`, then `table` and `log`; above it `upkeep`
and `table_api`. None imports one above it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from airflow_txlog.engine.commit.loop import CommitOutcome
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from airflow_txlog.engine.table.changes.versions import changes_since
    from airflow_txlog.engine.table_api import Table
else:
    # Imported on first use: a job needs none of it.
    _LAZY = {"Table": "airflow_txlog.engine.table_api", "changes_since": "airflow_txlog.engine.table.changes.versions"}

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_LAZY[name]), name)


__all__ = ["CommitOutcome", "DeltaTable", "Snapshot", "Table", "Transaction", "changes_since"]
