"""A DAG whose one task appends a file to the table at TXLOG_TEST_TABLE.

TXLOG_TEST_RETRIES is the author's `retries`, read whenever the file is parsed.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_txlog.operators.truncate import DeltaTruncateOperator
from airflow_txlog.policies.retry import TxlogRetryPolicy
from tests.airflow.appending import AppendsAFile

with DAG("identities", schedule=None):
    # The runner appends whatever the operation is: truncate is the one that needs no other argument.
    DeltaTruncateOperator(
        task_id="load",
        table_uri=os.environ.get("TXLOG_TEST_TABLE", "/nowhere"),
        runner=AppendsAFile(),
        retries=int(os.environ.get("TXLOG_TEST_RETRIES", "3")),
        retry_policy=TxlogRetryPolicy(delay=timedelta(0)),
    )
