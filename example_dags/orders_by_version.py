"""A DAG that is scheduled by a table, and takes the versions that it has to process from the table.

`orders_load` appends the orders of a day and names the table as an asset. `orders_totals` is scheduled by that asset.
It does not count events, which Airflow may merge or drop. It reads the versions since its last run from the table's
log, and computes the totals of the days that changed. A run that dies is repeated with the same versions and the same
key, so that each total is written once.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import DeltaWriteOperator, query, table

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
ORDERS, TOTALS = str(FOLDER / "orders"), str(FOLDER / "order_totals")
ORDERS_ASSET = Asset("orders", uri=f"file://{ORDERS}")

with DAG(
    dag_id="orders_load",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"day": "2013-01-01"},
    default_args={"runner": "in_process", "retries": 5},
    doc_md=__doc__,
):
    # [START orders_load]
    load = DeltaWriteOperator(
        task_id="load",
        table_uri=ORDERS,
        source=query("SELECT DATE(:day) AS day, id, id * 1.5D AS amount FROM range(4)"),
        parameters={"day": "{{ params.day }}"},
        partition_by="day",
        outlets=[ORDERS_ASSET],
    )
    # [END orders_load]

with DAG(
    dag_id="orders_totals",
    schedule=[ORDERS_ASSET],
    catchup=False,
    tags=["txlog"],
    # Two runs at a time would take the same versions.
    max_active_runs=1,
    default_args={"retries": 5},
    doc_md=__doc__,
):
    # [START orders_totals]
    @task(inlets=[ORDERS_ASSET])
    def add_up(asset_state_store: Any = None) -> list[int]:
        """The totals of the days that changed since this task ran last; returns the versions that it took."""
        hook = TxlogHook()
        done = []
        for new in hook.unprocessed_versions(ORDERS, consumer="orders_totals", state=asset_state_store[ORDERS_ASSET]):
            orders = table(ORDERS, version=new.version)
            # Where the log does not say all that changed, as after a long pause, the totals of all days are made anew.
            for part in new.partitions if new.is_complete else [{}]:
                where = "day = :day" if part else "TRUE"
                totals = f"SELECT day, count(*) AS orders, sum(amount) AS amount FROM orders WHERE {where} GROUP BY 1"
                arguments = {
                    "source": query(totals, orders=orders),
                    "mode": "overwrite",
                    "partition_by": ["day"],
                    "partition_predicate": where if part else None,
                    "parameters": part or None,
                }
                work = f"{new.key}/{part.get('day', 'all')}"
                hook.run("write", TOTALS, arguments, idempotency_key=work, runner="in_process")
            done += new.versions
        return done
        # [END orders_totals]

    add_up()
