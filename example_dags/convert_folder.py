"""A folder of another team's Parquet files is converted into a Delta table in place, and the DAG deletes a row of it.

The folder is below the one named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaConvertOperator, DeltaDeleteOperator

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
EVENTS = str(FOLDER / "events_to_convert")

with DAG(
    dag_id="convert_folder",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def make_files() -> int:
        """Files as another team might have left them: one folder for each day."""
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq

        shutil.rmtree(EVENTS, ignore_errors=True)
        for day in (1, 2):
            folder = Path(EVENTS) / f"day=2024-01-0{day}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"id": [day, day + 10], "name": ["a", None]}), folder / "part-0.parquet")
        return 4

    # [START howto_operator_convert]
    look = DeltaConvertOperator(task_id="look", table_uri=EVENTS, partition_schema="day DATE", dry_run=True)
    convert = DeltaConvertOperator(task_id="convert", table_uri=EVENTS, partition_schema="day DATE")
    # [END howto_operator_convert]

    forget = DeltaDeleteOperator(task_id="forget", table_uri=EVENTS, predicate="day = DATE'2024-01-01' AND id = 11")

    make_files() >> look >> convert >> forget
