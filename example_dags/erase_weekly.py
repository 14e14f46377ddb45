"""The requests of a week to be forgotten: erased from two tables and from their storage, with one signed report.

`people` makes the tables, and `requests` leaves a file as another system would. `erase` deletes the rows, the old files
and the old log, opens every object that is left, and writes the report. Before you run it, put an Ed25519 key into a
connection named `erasure_signer` (docs/erasure.md). The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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
    def requests() -> None:
        """Write the file of a week."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        Path(REQUESTS).mkdir(parents=True, exist_ok=True)
        who = pa.table({"email": ["user7@example.org", "user42@example.org"]})
        pq.write_table(who, f"{REQUESTS}/week.parquet")

    # [START erase_weekly]
    erase = DeltaEraseOperator(
        task_id="erase",
        tables={PEOPLE: "email", LETTERS: "recipient"},
        subjects=files(REQUESTS),
        source_column="email",
        request_id="week-{{ run_id | replace(':', '.') | replace('+', '.') }}",
        report_uri=REPORTS,
        signing_conn_id="erasure_signer",
        # Nothing else writes to these tables.
        writer_hours=0,
        declared={"backups": "There are none."},
    )
    # [END erase_weekly]
    people() >> requests() >> erase
