"""Tasks whose error running again cannot help."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators.delete import DeltaDeleteOperator

with DAG("wrong_input", schedule=None, default_args={"runner": "in_process", "retries": 5}):
    DeltaDeleteOperator(
        task_id="forget",
        table_uri=os.environ.get("TXLOG_TEST_TABLE", "/nowhere"),
        predicate="no_such_column = 1",
    )
