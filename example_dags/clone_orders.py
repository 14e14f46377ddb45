"""A DAG backs up a table, copying only new files each time, and tries a change on a clone without data.

The folder is below the one named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaCloneOperator, table

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
ORDERS = str(FOLDER / "orders_to_clone")
BACKUP = str(FOLDER / "orders_backup")
TRIAL = str(FOLDER / "orders_trial")

with DAG(
    dag_id="clone_orders",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def add_orders() -> int:
        """Orders of today, in the table that is cloned."""
        import shutil

        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        shutil.rmtree(TRIAL, ignore_errors=True)
        rows = pa.table({"id": [1, 2], "amount": [5.0, 9.0]})
        TxlogHook().append(ORDERS, rows)
        return rows.num_rows

    # [START howto_operator_clone]
    backup = DeltaCloneOperator(task_id="backup", table_uri=BACKUP, source=table(ORDERS), replace=True)
    trial = DeltaCloneOperator(task_id="trial", table_uri=TRIAL, source=table(ORDERS), shallow=True)
    # [END howto_operator_clone]

    change = DeltaAlterTableOperator(task_id="change", table_uri=TRIAL, add_columns={"note": "STRING"})

    add_orders() >> [backup, trial]
    trial >> change
