"""The requests of a week to be forgotten: erased from two tables and from their storage, with a signed report for each.

`people` makes the tables, and `requests` leaves a file for each request as another system would. `erase` deletes the
rows, the old files and the old log, opens every object that is left, and writes the reports. Before you run it, put an
Ed25519 key into a connection named `erasure_signer` (docs/erasure.md). The tables live in the folder named by
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
PEOPLE, LETTERS, REQUESTS, REPORTS = (str(FOLDER / name) for name in ("people", "letters", "requests", "reports"))

with DAG(
    dag_id="erase_weekly",
    schedule="@weekly",
    catchup=False,
    tags=["txlog"],
    default_args={"runner": "in_process", "retries": 2},
    doc_md=__doc__,
) as dag:

    @task
    def people() -> None:
        """Write people, and letters to them."""
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        emails = [f"user{number}@example.org" for number in range(100)]
        TxlogHook().append(PEOPLE, pa.table({"email": emails, "points": list(range(100))}))
        TxlogHook().append(LETTERS, pa.table({"recipient": emails * 2, "text": ["hello", "goodbye"] * 100}))

    @task
    def requests() -> dict[str, Any]:
        """Write a file for each request, and return where its subjects are. Airflow keeps no value of a subject."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = {}
        for request_id, number in (("r-2026-17", 7), ("r-2026-18", 42)):
            folder = Path(REQUESTS) / request_id
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"email": [f"user{number}@example.org"]}), folder / "who.parquet")
            found[request_id] = files(str(folder))
        return found

    requested = requests()
    # [START erase_weekly]
    erase = DeltaEraseOperator(
        task_id="erase",
        tables={PEOPLE: "email", LETTERS: "recipient"},
        # {"r-2026-17": files(…), "r-2026-18": files(…)}
        requests=requested,
        source_column="email",
        report_uri=REPORTS,
        signing_conn_id="erasure_signer",
        # Nothing else writes to these tables.
        writer_hours=0,
        declared={"backups": "There are none."},
    )
    # [END erase_weekly]
    people() >> requested >> erase
