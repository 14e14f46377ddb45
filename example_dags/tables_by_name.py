"""Tables by their names in a Hive Metastore: a task creates and registers one, another reads it by its name.

The connection `lake_names` is the metastore. AIRFLOW_CONN_LAKE_NAMES defines it in the environment:
`{"conn_type": "hive_metastore", "host": "metastore.example.com", "port": 9083}`. For AWS Glue it is a connection of
type `aws`, and nothing else changes. The database `sales` must exist; new tables are in its folder.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaWriteOperator, query, table

with DAG(
    dag_id="tables_by_name",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"day": "2013-01-01"},
    default_args={"catalog_conn_id": "lake_names", "runner": "in_process", "retries": 5},
    doc_md=__doc__,
):
    # [START tables_by_name]
    load = DeltaWriteOperator(
        task_id="load",
        table="sales.orders",
        source=query("SELECT id, DATE(:day) AS day, id * 1.5D AS amount FROM range(4)"),
        parameters={"day": "{{ params.day }}"},
        outlets=[Asset("sales_orders", uri="txlog://lake_names/sales.orders")],
    )
    total = DeltaWriteOperator(
        task_id="total",
        table="sales.totals",
        source=query("SELECT day, sum(amount) AS amount FROM orders GROUP BY day", orders=table("sales.orders")),
    )
    comment = DeltaAlterTableOperator(
        task_id="comment",
        table="sales.totals",
        set_comments={"amount": "in euros"},
    )
    # [END tables_by_name]
    load >> total >> comment
