"""Orders are staged, audited and published: readers see all of a load that is right, and nothing of one that is wrong.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaAuditOperator, DeltaWriteOperator, files, write_audit_publish

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "orders_to_publish")
NEW_ORDERS = str(FOLDER / "new_orders.parquet")

with DAG(
    dag_id="publish_orders",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"amount": 7.5},
    default_args={"runner": "in_process", "retries": 2},
    doc_md=__doc__,
) as dag:

    @task
    def make_orders(**context: object) -> None:
        """A table with two orders, and a file with two more, of which one has the amount of the run."""
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq
        from deltalake import write_deltalake

        shutil.rmtree(TABLE, ignore_errors=True)
        write_deltalake(TABLE, pa.table({"id": [1, 2], "amount": [5.0, 9.0]}))
        pq.write_table(pa.table({"id": [3, 4], "amount": [1.0, context["params"]["amount"]]}), NEW_ORDERS)  # type: ignore[index]

    # [START howto_write_audit_publish]
    load = DeltaWriteOperator(task_id="load", table_uri=TABLE, source=files(NEW_ORDERS), publish=False)

    audit = DeltaAuditOperator(
        task_id="audit",
        staged=[load.output],
        checks={
            "not_empty": {"check_statement": "COUNT(*) > 0"},
            "amount_is_positive": {"check_statement": "amount > 0"},
        },
        no_rows={"id_twice": "SELECT id FROM staged GROUP BY id HAVING COUNT(*) > 1"},
    )

    publish = write_audit_publish(load, audits=[audit])
    # [END howto_write_audit_publish]

    make_orders() >> load
