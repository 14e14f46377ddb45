"""A clustered table of events: loads append, and OPTIMIZE sorts the new rows, so that readers skip most files.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaOptimizeOperator, DeltaWriteOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "clustered_events")
INPUT = FOLDER / "clustered_events_input"

with DAG(
    dag_id="cluster_events",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def fetch_events() -> int:
        """Forty thousand events in the order of their times, in four files."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        INPUT.mkdir(parents=True, exist_ok=True)
        for number in range(4):
            times = range(number * 10_000, (number + 1) * 10_000)
            customers = [time * 7919 % 1000 for time in times]
            events = pa.table({"at": times, "customer_id": customers, "page": [f"/p/{time % 97}" for time in times]})
            pq.write_table(events, INPUT / f"part-{number}.parquet")
        return 4

    # [START cluster_events]
    load = DeltaWriteOperator(
        task_id="load",
        table_uri=TABLE,
        source=files(str(INPUT)),
        # The columns by which readers look events up, in place of partitions.
        cluster_by=["customer_id", "at"],
        # Only for this small example: the default is 256 MiB.
        properties={"delta.targetFileSize": "10kb"},
    )

    cluster = DeltaOptimizeOperator(task_id="cluster", table_uri=TABLE)
    # [END cluster_events]

    @task
    def files_of_a_customer() -> dict[str, int]:
        """How many files a reader of one customer's events opens, before and after."""
        from airflow_txlog.hooks.txlog import TxlogHook

        table = TxlogHook().open(TABLE)
        found = {}
        for when, version in (("before", 0), ("after", None)):
            snapshot = table.snapshot(version)
            found[when] = snapshot.files(snapshot.read_predicate("customer_id = 42")).num_rows
            found[f"{when}, of"] = snapshot.num_files
        return found

    fetch_events() >> load >> cluster >> files_of_a_customer()
