"""One DAG for each way that a task can end, on the table of users named by TXLOG_TEST_TABLE."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, Asset

from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.policies.retry import TxlogRetryPolicy
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.airflow.racing import DiesAfterTheCommit, OvertakenRunner, delete_user

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
FORGET = {"predicate": "user_id = :user", "parameters": {"user": "42"}, "table_uri": TABLE}
DEFAULTS = {"runner": "in_process", "retries": 5, "retry_delay": timedelta(0)}

with DAG("conflict", schedule=None, default_args=DEFAULTS):
    # The rival deletes user 7 from the file that this task rewrites. On the second try it finds nothing to do.
    DeltaDeleteOperator(
        task_id="forget",
        **FORGET,
        runner=OvertakenRunner(delete_user(7)),
        conflict_deadline_s=0,
        # The rule of every operator, which waits some seconds otherwise.
        retry_policy=TxlogRetryPolicy(delay=timedelta(0)),
        outlets=[Asset("users", uri="file:///lake/users")],
    )

with DAG("conflict_won_by_the_job", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(task_id="forget", **FORGET, runner=OvertakenRunner(delete_user(7)))

with DAG("wrong_input", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="no_such_column = 1")

with DAG("too_many_rows", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="user_id < 51", max_deleted_fraction=0.5)

with DAG("wrong_input_of_one_index", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator.partial(task_id="forget", table_uri=TABLE).expand(predicate=["user_id = 1", "nobody = 1"])

with DAG("death_after_the_commit", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(
        task_id="forget",
        **FORGET,
        runner=DiesAfterTheCommit(),
        retry_policy=TxlogRetryPolicy(otherwise="default"),
    )

with DAG("nothing_to_do", schedule=None, default_args=DEFAULTS):
    DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="user_id = 1000")

with DAG("a_spark_of_its_own", schedule=None):
    DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="user_id = 42 AND hash(user_id) != 0")

with DAG("wait_and_forget", schedule=None, default_args=DEFAULTS):
    wait = TableVersionSensor(task_id="wait", table_uri=TABLE, newer_than="None", mode="reschedule", poke_interval=1)
    wait >> DeltaDeleteOperator(task_id="forget", **FORGET)
