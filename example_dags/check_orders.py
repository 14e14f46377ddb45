"""Orders are checked before they are published: one condition is counted, others and a limit fail the task. A dry run
writes samples of an update.

The tables are below the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaDeleteOperator, DeltaUpdateOperator, DeltaWriteOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
INCOMING = str(FOLDER / "orders_to_check.parquet")
ORDERS = str(FOLDER / "checked_orders")

with DAG(
    dag_id="check_orders",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def make_orders() -> int:
        """A file of a hundred orders; two of them name no shop."""
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq

        shutil.rmtree(ORDERS, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        shops = [None if number < 2 else f"shop {number % 7}" for number in range(100)]
        orders = pa.table({"id": range(100), "shop": shops, "amount": [1.5] * 100})
        pq.write_table(orders, INCOMING)
        return 100

    # [START howto_checks]
    load = DeltaWriteOperator(
        task_id="load",
        table_uri=ORDERS,
        source=files(INCOMING),
        expect={"known shop": "shop IS NOT NULL"},
        expect_or_fail={"positive": "amount > 0", "numbered": "id IS NOT NULL"},
        min_inserted_rows=50,
    )
    forget = DeltaDeleteOperator(task_id="forget", table_uri=ORDERS, predicate="id < 5", max_deleted_fraction=0.1)
    # [END howto_checks]

    # [START howto_samples]
    try_discount = DeltaUpdateOperator(
        task_id="try_discount",
        table_uri=ORDERS,
        set={"amount": "amount * 0.9"},
        predicate="shop IS NOT NULL",
        dry_run=True,
        samples_to=f"{ORDERS}_samples",
    )
    # [END howto_samples]

    make_orders() >> load >> forget >> try_discount
