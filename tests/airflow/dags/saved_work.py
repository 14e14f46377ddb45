"""A DAG whose one task loses to a commit on its first try, and goes on from its saved work on the second.

After its first try the table's folder is copied to TXLOG_TEST_COPY, and the job's description to a file beside it.
"""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.policies.retry import TxlogRetryPolicy
from airflow_txlog.runners.base import Log
from tests.airflow.racing import OvertakenRunner, delete_user


class KeepsACopy(OvertakenRunner):
    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        copy = Path(os.environ["TXLOG_TEST_COPY"])
        try:
            return super().run(spec, log=log)
        except Exception:
            if not copy.exists():
                shutil.copytree(spec.table_uri.removeprefix("file://"), copy / "table")
                (copy / "spec.json").write_text(spec.to_json())
                (copy / "spec.txt").write_text(repr(spec))
            raise


with DAG("saved_work", schedule=None):
    DeltaDeleteOperator(
        task_id="forget",
        table_uri=os.environ.get("TXLOG_TEST_TABLE", "/nowhere"),
        predicate="user_id IN (42, 142)",
        runner=KeepsACopy(delete_user(7)),
        conflict_deadline_s=0,
        retries=5,
        retry_policy=TxlogRetryPolicy(delay=timedelta(0)),
    )
