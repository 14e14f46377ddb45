"""A table of orders gets deletion vectors, a new column, a wider type and a rule for its rows.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaDeleteOperator

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "orders_to_alter")

with DAG(
    dag_id="alter_orders",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def make_orders() -> int:
        """A small table as another team might have left it."""
        import shutil

        import pyarrow as pa
        from deltalake import write_deltalake

        shutil.rmtree(TABLE, ignore_errors=True)
        orders = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "amount": [5.0, 7.5, 9.0]})
        write_deltalake(TABLE, orders)
        return orders.num_rows

    # [START howto_operator_alter]
    modernize = DeltaAlterTableOperator(
        task_id="modernize",
        table_uri=TABLE,
        add_features=["deletionVectors", "changeDataFeed"],
        add_columns={"note": {"type": "STRING", "comment": "what the customer wrote"}},
        change_types={"id": "BIGINT"},
        set_not_null=["id"],
        add_constraints={"positive": "amount > 0"},
        # Every engine that reads this table knows deletion vectors and type widening.
        allow_reader_upgrade=True,
    )
    # [END howto_operator_alter]

    forget = DeltaDeleteOperator(task_id="forget", table_uri=TABLE, predicate="id = 2")

    make_orders() >> modernize >> forget
