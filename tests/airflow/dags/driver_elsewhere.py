"""A DAG of the tests: a task whose job's driver runs on a cluster, waited for in the triggerer."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators.delete import DeltaDeleteOperator

with DAG(dag_id="driver_elsewhere") as dag:
    DeltaDeleteOperator(
        task_id="forget",
        table_uri=os.environ.get("TXLOG_TEST_TABLE", "/nowhere"),
        predicate="pmod(user_id, 1000) = 42",
        runner="submit",
        spark_conn_id="cluster",
        deferrable=True,
    )
