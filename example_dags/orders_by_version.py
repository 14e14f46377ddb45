"""A DAG that is scheduled by a table, and takes the versions that it has to process from the table.

`orders_load` appends the orders of a day and names the table as an asset. `orders_totals` is scheduled by that asset.
It does not count events, which Airflow may merge or drop. It reads the versions since its last run from the table's
log, and computes the totals of the days that changed. A run that dies is repeated with the same versions and the same
key, so that each total is written once. Both DAGs read and write rows in Python, without Spark.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_txlog.hooks.txlog import TxlogHook

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
ORDERS, TOTALS = str(FOLDER / "orders"), str(FOLDER / "order_totals")
ORDERS_ASSET = Asset("orders", uri=f"file://{ORDERS}")

with DAG(
    dag_id="orders_load",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"day": "2013-01-01"},
    default_args={"retries": 5},
    doc_md=__doc__,
):
    # [START orders_load]
    @task(outlets=[ORDERS_ASSET])
    def load(day: str) -> int | None:
        """Append the orders of a day; returns the version that this made."""
        import pyarrow as pa

        orders = pa.table({"day": [date.fromisoformat(day)] * 4, "id": range(4), "amount": [0.0, 1.5, 3.0, 4.5]})
        return TxlogHook().append(ORDERS, orders, partition_by="day").version
        # [END orders_load]

    load("{{ params.day }}")

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
            orders = hook.open(ORDERS).at_version(new.version)
            # Where the log does not say all that changed, as after a long pause, the totals of all days are made anew.
            for day in new.partitions if new.is_complete else [{}]:
                where = "day = :day" if day else None
                rows = orders.to_arrow(where, ["day", "amount"], parameters=day)
                sums = rows.group_by("day").aggregate([("amount", "count"), ("amount", "sum")])
                totals = sums.select(["day", "amount_count", "amount_sum"]).rename_columns(["day", "orders", "amount"])
                work = f"{new.key}/{day.get('day', 'all')}"
                others = {"partition_predicate": where, "parameters": day, "idempotency_key": work}
                hook.overwrite(TOTALS, totals, partition_by="day", **others)
            done += new.versions
        return done
        # [END orders_totals]

    add_up()
