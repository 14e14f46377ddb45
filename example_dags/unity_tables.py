"""Tables of Unity Catalog: a task creates one that the catalog manages, and others change it and wait for it by name.

The connection `unity` is the catalog. AIRFLOW_CONN_UNITY defines it in the environment:
`{"conn_type": "txlog_unity", "host": "https://catalog.example.com", "password": "TOKEN"}`. The schema `main.sales` must
exist; the catalog chooses the place of a new table and opens it with temporary credentials.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaDeleteOperator, DeltaWriteOperator, files
from airflow_txlog.sensors.table_version import TableVersionSensor

with DAG(
    dag_id="unity_tables",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"landing": "/lake/landing/orders.parquet"},
    default_args={"catalog_conn_id": "unity", "retries": 5},
    doc_md=__doc__,
):
    # [START unity_tables]
    load = DeltaWriteOperator(
        task_id="load",
        table="main.sales.orders",
        source=files("{{ params.landing }}"),
        outlets=[Asset("unity_orders", uri="txlog://unity/main.sales.orders")],
    )
    wait = TableVersionSensor(task_id="wait", table="main.sales.orders", operation="WRITE", deferrable=True)
    cancel = DeltaDeleteOperator(task_id="cancel", table="main.sales.orders", predicate="amount < 0")
    comment = DeltaAlterTableOperator(task_id="comment", table="main.sales.orders", set_comments={"amount": "in euros"})
    # [END unity_tables]
    load >> wait >> cancel >> comment
