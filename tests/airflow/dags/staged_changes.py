"""A DAG of the tests: a change is staged, checked by a task, waits for a verdict, and is published or discarded."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, task

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import DeltaTruncateOperator, DeltaUpdateOperator, write_audit_publish

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
OTHER = os.environ.get("TXLOG_TEST_OTHER", "/nowhere")
FOUND = int(os.environ.get("TXLOG_TEST_FOUND", "5"))
VERDICT = os.environ.get("TXLOG_TEST_VERDICT", "Approve")


class Answered(ApprovalOperator):
    """Airflow's own operator, once somebody has answered, or nobody in time."""

    def execute(self, context: Any) -> Any:
        if VERDICT == "none":
            return self.execute_complete(context, {"error": "nobody has answered", "error_type": "timeout"})
        answer = {"chosen_options": [VERDICT], "params_input": {}, "responded_by_user": None}
        return self.execute_complete(context, {**answer, "responded_at": datetime(2026, 1, 1, tzinfo=UTC)})


with DAG("publish_after_checks") as dag:
    change = DeltaUpdateOperator(
        task_id="change",
        table_uri=TABLE,
        set={"name": "'x'"},
        predicate="id < 5",
        publish=False,
        runner="in_process",
    )
    empty = DeltaTruncateOperator(task_id="empty", table_uri=OTHER, publish=False, runner="in_process")

    @task
    def audit(staged: dict[str, object]) -> int:
        names = TxlogHook().open(TABLE, staged=staged).to_arrow(columns=["name"]).column("name").to_pylist()
        assert names.count("x") == FOUND
        return len(names)

    approve = Answered(task_id="approve", subject="Publish?")
    group = write_audit_publish([change, empty], audit(change.output), approve, outlets=[Asset("staged-orders")])
