"""Tasks that wait for tables in the triggerer, and DAGs that are scheduled by the versions of one."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import files
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.triggers.table_version import TableVersionTrigger

LAKE = Path(os.environ["TXLOG_TEST_SETTINGS"]).parent / "lake"
PROCESSED = str(LAKE / "processed")


def watched(name: str, table: str) -> Asset:
    """An asset that has an event for the table's versions, from the first on."""
    trigger = TableVersionTrigger(str(LAKE / table), newer_than=0, poke_interval=1)
    return Asset(name, uri=f"file://{LAKE / name}", watchers=[AssetWatcher(name="log", trigger=trigger)])


with DAG("waits", schedule=None, catchup=False):

    @task
    def tables(dag_run: Any = None) -> list[str]:
        """One table for each task that waits."""
        found: list[str] = dag_run.conf["tables"]
        return found

    TableVersionSensor.partial(task_id="wait", newer_than=1, deferrable=True, poke_interval=1, timeout=7200).expand(
        table_uri=tables()
    )

ORDERS = watched("orders", "orders")
# The same trigger twice: Airflow keeps one for both assets. And a second DAG for the orders, as an asset is not watched
# while its DAGs are all paused.
for asset in (watched("followed", "followed"), watched("followed_too", "followed"), ORDERS):
    with DAG(f"follows_{asset.name}", schedule=[asset], catchup=False):
        EmptyOperator(task_id="nothing")

with DAG(
    "processes",
    schedule=[ORDERS],
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 5, "retry_delay": timedelta(0)},
):

    @task(inlets=[ORDERS])
    def process(asset_state_store: Any = None) -> None:
        """Append a row for each version of the orders that was not processed yet."""
        hook, orders = TxlogHook(), str(LAKE / "orders")
        for new in hook.unprocessed_versions(orders, consumer="processes", state=asset_state_store[ORDERS]):
            rows = LAKE / f"processed-{new.from_version}-{new.version}.parquet"
            pq.write_table(pa.table({"version": pa.array(new.versions, pa.int64())}), rows)
            hook.run("write", PROCESSED, {"source": files(str(rows))}, idempotency_key=new.key)

    process()
