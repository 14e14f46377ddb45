"""A DAG applies change events of a shop's database to a table of customers. Events come late and more than once.

The folder is below the one named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaApplyChangesOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
CUSTOMERS = str(FOLDER / "customers")
EVENTS = str(FOLDER / "customer_events")

with DAG(
    dag_id="apply_changes",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def receive_events() -> int:
        """Write two batches of events, and create the table if there is none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from airflow_txlog.hooks.txlog import TxlogHook

        schema = pa.schema([("id", pa.int64()), ("changed_at", pa.int64()), ("city", pa.string()), ("op", pa.string())])
        TxlogHook().append(CUSTOMERS, schema.remove(3).empty_table())
        batches = [
            [(1, 10, "Oslo", "c"), (2, 11, "Rome", "c"), (2, 15, None, "d")],
            # The first event is late, the second is new, the third has come before.
            [(2, 13, "Bari", "u"), (1, 16, "Bergen", "u"), (1, 10, "Oslo", "c")],
        ]
        for number, rows in enumerate(batches, 1):
            events = [dict(zip(schema.names, row, strict=True)) for row in rows]
            Path(EVENTS).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(events, schema), f"{EVENTS}/{number}.parquet")
        return len(batches)

    # [START howto_operator_apply_changes]
    applied = [
        DeltaApplyChangesOperator(
            task_id=f"apply_{batch}",
            table_uri=CUSTOMERS,
            source=files(f"{EVENTS}/{batch}.parquet"),
            keys=["id"],
            sequence_by="changed_at",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
        )
        for batch in (1, 2)
    ]
    # [END howto_operator_apply_changes]

    receive_events() >> applied[0] >> applied[1]
