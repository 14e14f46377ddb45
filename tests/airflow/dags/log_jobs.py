"""A DAG of the tests: a table is emptied, and what it held is brought back, both by the log alone."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators.restore import DeltaRestoreOperator
from airflow_txlog.operators.truncate import DeltaTruncateOperator

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")

with DAG(dag_id="empty_and_undo", params={"version": 0}) as dag:
    empty = DeltaTruncateOperator(task_id="empty", table_uri=TABLE, runner="in_process")
    undo = DeltaRestoreOperator(
        task_id="undo",
        table_uri=TABLE,
        runner="in_process",
        version="{{ ti.xcom_pull(task_ids='empty')['read_version'] }}",
    )
    empty >> undo
