"""Two assets that the triggerer watches, of the table named by TXLOG_TEST_TABLE, and a task that can be deferred."""

from __future__ import annotations

import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_txlog.triggers.table_version import TableVersionTrigger

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
WATCHED = [
    Asset(
        name,
        uri=f"file:///watched/{name}",
        # The same trigger: Airflow keeps one for both assets.
        watchers=[AssetWatcher(name="log", trigger=TableVersionTrigger(TABLE, poke_interval=1))],
    )
    for name in ("watched", "watched_too")
]

for asset in WATCHED:
    with DAG(f"run_by_{asset.name}", schedule=[asset], is_paused_upon_creation=False):
        EmptyOperator(task_id="nothing")

with DAG("waits_for_the_watched", schedule=None, is_paused_upon_creation=False):
    EmptyOperator(task_id="wait")
