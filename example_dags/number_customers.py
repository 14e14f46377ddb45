"""A table numbers its customers. Imported customers keep their numbers, and no number occurs twice.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaUpsertOperator, DeltaWriteOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "numbered_customers")
INPUT = FOLDER / "numbered_customers_input"

with DAG(
    dag_id="number_customers",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 5},
    doc_md=__doc__,
) as dag:

    @task
    def make_table() -> None:
        """Make an empty table, and the files of two loads and an import."""
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq

        from airflow_txlog.engine import Table
        from airflow_txlog.engine.table.schema.identities import identity_column
        from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType

        columns = (identity_column("number", takes_values=True), StructField("email", Primitive.STRING))
        for folder in (Path(TABLE), INPUT):
            shutil.rmtree(folder, ignore_errors=True)
        Table.create(TABLE, StructType(columns))
        loads = {
            "first": {"email": ["ann@x.org", "bob@x.org"]},
            "import": {"number": [40, 70], "email": ["old@x.org", "older@x.org"]},
            "second": {"email": ["bob@x.org", "cid@x.org"]},
        }
        for name, rows in loads.items():
            (INPUT / name).mkdir(parents=True)
            pq.write_table(pa.table(rows), INPUT / name / "part-0.parquet")

    # [START number_customers]
    # The rows have no column `number`. New customers get the next numbers, and known customers keep theirs.
    first = DeltaUpsertOperator(task_id="first", table_uri=TABLE, source=files(str(INPUT / "first")), keys=["email"])

    # These rows bring their numbers along. The table accepts them, but does not continue after them by itself.
    take_over = DeltaWriteOperator(task_id="take_over", table_uri=TABLE, source=files(str(INPUT / "import")))
    count_on = DeltaAlterTableOperator(task_id="count_on", table_uri=TABLE, sync_identity=["number"])

    second = DeltaUpsertOperator(task_id="second", table_uri=TABLE, source=files(str(INPUT / "second")), keys=["email"])
    # [END number_customers]

    make_table() >> first >> take_over >> count_on >> second
