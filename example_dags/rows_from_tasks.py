"""Rows that tasks hold in Python: measured, corrected and forgotten by `TxlogHook`, without a file and without Spark.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
READINGS = str(FOLDER / "readings")

with DAG(
    dag_id="rows_from_tasks",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 3},
    doc_md=__doc__,
) as dag:
    # [START rows_from_tasks]
    @task
    def measure(sensors: list[str]) -> int | None:
        """Append a reading of each sensor."""
        import pandas as pd

        from airflow_txlog.hooks.txlog import TxlogHook

        readings = pd.DataFrame({"sensor": sensors, "celsius": [20.0 + len(name) for name in sensors]})
        return TxlogHook().append(READINGS, readings).version
        # [END rows_from_tasks]

    @task
    def correct() -> int | None:
        """Update a reading, and insert one that was late."""
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        corrections = pa.table({"sensor": ["roof", "attic"], "celsius": [19.5, 21.0]})
        return TxlogHook().upsert(READINGS, corrections, keys="sensor").version

    @task
    def forget() -> int | None:
        """Delete a sensor that was sold."""
        from airflow_txlog.hooks.txlog import TxlogHook

        return TxlogHook().delete(READINGS, keys=["cellar"], key_column="sensor").version

    measure(["roof", "cellar"]) >> correct() >> forget()
