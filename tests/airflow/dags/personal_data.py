"""Tasks whose keys and parameters are a person's, known when they run; on the table named by TXLOG_TEST_TABLE.

What their jobs say, and how they end, is kept in SAID before Airflow masks anything.
"""

from __future__ import annotations

import os
import traceback

from airflow.sdk import DAG

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import TxlogError
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.update import DeltaUpdateOperator
from airflow_txlog.runners.base import Log
from airflow_txlog.runners.in_process import InProcessRunner

TABLE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
PERSON = "{{ person() }}"
SAID: list[str] = []


class Kept(InProcessRunner):
    def run(self, spec: JobSpec, *, log: Log) -> JobResult:
        def keep(line: str) -> None:
            SAID.append(line)
            log(line)

        try:
            result = super().run(spec, log=keep)
        except TxlogError as error:
            SAID.append("".join(traceback.format_exception(error)))
            raise
        SAID.append(result.to_json())
        return result


DEFAULTS = {"runner": Kept(), "table_uri": TABLE, "trigger_rule": "all_done"}
MACROS = {"person": lambda: os.environ["TXLOG_TEST_PERSON"]}

with DAG("personal_data", schedule=None, default_args=DEFAULTS, user_defined_macros=MACROS):
    update = DeltaUpdateOperator(
        task_id="renames",
        set={"note": "'asked to be forgotten'"},
        predicate="email = :email OR id IN (0, 3)",
        parameters={"email": PERSON},
        sensitive=True,
    )
    fails = DeltaDeleteOperator(task_id="fails", predicate="CAST(:email AS INT) = id", parameters={"email": PERSON})
    mapped = DeltaDeleteOperator.partial(task_id="each", key_column="email").expand(keys=[["joe@home.example", PERSON]])
    named = DeltaDeleteOperator(
        task_id="named", keys=[PERSON], key_column="email", idempotency_key="forget-{{ run_id }}", require_match=True
    )
    update >> fails >> named >> mapped
