"""Two tasks on the table of TXLOG_TEST_TABLE: one commits, and the other finds nothing left to do."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators import DeltaTruncateOperator

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")

with DAG("linked", schedule=None, default_args={"runner": "in_process"}):
    first = DeltaTruncateOperator(task_id="empty", table_uri=TABLE)
    first >> DeltaTruncateOperator(task_id="empty_again", table_uri=TABLE)
