"""A change that is staged, audited and approved by a person, who has long or hardly any time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import DeltaUpdateOperator, write_audit_publish


@task(retries=0)
def audit(staged: dict[str, Any]) -> None:
    names = TxlogHook().open(staged["staged"]["table_uri"], staged=staged).to_arrow(columns=["name"])
    assert set(names.column("name").to_pylist()) == {"audited"}


for dag_id, time_allowed in (("publishes", timedelta(hours=1)), ("publishes_in_time", timedelta(seconds=5))):
    with DAG(dag_id, schedule=None, catchup=False):
        change = DeltaUpdateOperator(
            task_id="change", table_uri="{{ dag_run.conf.table }}", set={"name": "'audited'"}, publish=False
        )
        approve = ApprovalOperator(
            task_id="approve", subject="Publish what was staged?", execution_timeout=time_allowed, retries=0
        )
        write_audit_publish(change, audit(change.output), approve)
