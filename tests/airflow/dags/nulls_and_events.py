"""Tasks whose templates render to None, and tasks that find nothing to do; on the table named by TXLOG_TEST_TABLE."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Asset, task

from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import VacuumOperator
from airflow_txlog.operators.truncate import DeltaTruncateOperator
from airflow_txlog.operators.update import DeltaUpdateOperator

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
DEFAULTS = {"runner": "in_process", "retries": 5, "retry_delay": timedelta(0)}

with DAG("null_from_an_xcom", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(
        task_id="forget",
        table_uri=TABLE,
        predicate="email = :e",
        parameters={"e": "{{ ti.xcom_pull(task_ids='never_pushed') }}"},
    )

with DAG("null_from_another_task", schedule=None, default_args=DEFAULTS):

    @task
    def nobody() -> None:
        return None

    DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="email = :e", parameters={"e": nobody()})

with DAG("null_predicate_from_another_task", schedule=None, default_args=DEFAULTS):

    @task
    def no_predicate() -> None:
        return None

    # None as a predicate would be every row.
    DeltaUpdateOperator(task_id="forget", table_uri=TABLE, set={"email": "'gone'"}, predicate=no_predicate())

with DAG("events", schedule=None, default_args=DEFAULTS):
    empty = DeltaTruncateOperator(task_id="changes", table_uri=TABLE, outlets=[Asset("changed", uri="file:///a")])
    look = VacuumOperator(
        task_id="nothing", table_uri=TABLE, dry_run=True, outlets=[Asset("unchanged", uri="file:///b")]
    )
    each = VacuumOperator.partial(
        task_id="nothing_mapped", table_uri=TABLE, dry_run=True, outlets=[Asset("unchanged_too", uri="file:///c")]
    ).expand(retention_hours=[None, 200])
    empty >> look >> each
