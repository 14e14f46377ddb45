"""A task that waits in the triggerer for the table named by TXLOG_TEST_TABLE."""

from __future__ import annotations

import os

from airflow.sdk import DAG, task

from airflow_txlog.sensors.table_version import TableVersionSensor

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")

with DAG("waiting", schedule=None):

    @task
    def seen() -> None:
        """No version was seen yet."""

    wait = TableVersionSensor(
        task_id="wait", table_uri=TABLE, newer_than=seen(), deferrable=True, poke_interval=0.1, timeout=60
    )
