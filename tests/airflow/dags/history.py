"""Tasks with long names that change the table of TXLOG_TEST_TABLE; one is mapped, and one fails on its first try."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_txlog.operators import DeltaDeleteOperator, DeltaWriteOperator, files
from airflow_txlog.policies.retry import TxlogRetryPolicy

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")


class DeleteOnTheSecondTry(DeltaDeleteOperator):
    def execute(self, context: Any) -> Any:
        if context["ti"].try_number == 1:
            raise RuntimeError("the first try fails")
        return super().execute(context)


DEFAULTS = {
    "runner": "in_process",
    "table_uri": TABLE,
    "retries": 1,
    "retry_policy": TxlogRetryPolicy(otherwise="default"),
    "retry_delay": timedelta(0),
}
with DAG("forget_people_who_asked_for_it_in_every_table", schedule=None, default_args=DEFAULTS):
    load = DeltaWriteOperator(task_id="load_people", source=files(f"{TABLE}.in"))
    today = DeleteOnTheSecondTry(task_id="forget_those_who_asked_today", keys=[1], key_column="id")
    late = DeltaDeleteOperator.partial(
        task_id="forget_those_who_asked_too_late_for_that",
        key_column="id",
        map_index_template="batch {{ ti.map_index }}",
        sensitive=False,
    ).expand(keys=[[2, 3]])
    load >> today >> late
