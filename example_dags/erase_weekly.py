"""The requests of a week to be forgotten: erased from two tables and from their storage, with a signed report for each.

`people` makes the tables, which know a person by different keys: customers by the e-mail, orders by the number of the
user. `requests` leaves a file for each request, with both keys, as another system would. `erase` deletes the rows, the
old files and the old log, opens every object that is left, and writes the reports. Before you run it, put an Ed25519
key into a connection named `erasure_signer` (docs/erasure.md). The tables live in the folder named by
TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaEraseOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
CUSTOMERS, ORDERS, REQUESTS, REPORTS = (str(FOLDER / name) for name in ("customers", "orders", "requests", "reports"))

with DAG(
    dag_id="erase_weekly",
    schedule="@weekly",
    catchup=False,
    # A second erasure of the tables would prolong the waits of the first one.
    max_active_runs=1,
    tags=["txlog"],
    default_args={"runner": "in_process", "retries": 2},
    doc_md=__doc__,
) as dag:

    @task
    def people() -> None:
        """Write customers, and their orders."""
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        users = list(range(100))
        TxlogHook().append(
            CUSTOMERS, pa.table({"email": [f"user{each}@example.org" for each in users], "user_id": users})
        )
        TxlogHook().append(ORDERS, pa.table({"user_id": users * 2, "item": ["tea", "honey"] * 100}))

    @task
    def requests() -> dict[str, Any]:
        """Write a file for each request, and return where its subjects are. Airflow keeps no value of a subject."""
        found = {}
        Path(REQUESTS).mkdir(parents=True, exist_ok=True)
        for request_id, number in (("r-2026-17", 7), ("r-2026-18", 42)):
            path = f"{REQUESTS}/{request_id}.csv"
            Path(path).write_text(f"email,user_id\nuser{number}@example.org,{number}\n")
            # [START both_keys]
            # With the schema, no job starts Spark to read the file.
            schema = "email STRING, user_id BIGINT"
            found[request_id] = files(path, format="csv", options={"header": "true"}, schema=schema)
            # [END both_keys]
        return found

    requested = requests()
    # [START erase_weekly]
    erase = DeltaEraseOperator(
        task_id="erase",
        # Each table takes the column of the files that has the name of its key.
        tables={CUSTOMERS: "email", ORDERS: "user_id"},
        # {"r-2026-17": files(…), "r-2026-18": files(…)}
        requests=requested,
        report_uri=REPORTS,
        signing_conn_id="erasure_signer",
        # Nothing else writes to these tables.
        writer_hours=0,
        declared={"backups": "There are none."},
    )
    # [END erase_weekly]
    people() >> requested >> erase
