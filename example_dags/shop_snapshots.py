"""The whole list of shops arrives each day. One table gets its rows, another one keeps each version of a row.

The tables are below the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaAlterTableOperator, DeltaApplySnapshotOperator, DeltaWriteOperator, files

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
FIRST, SECOND = str(FOLDER / "shops_1.parquet"), str(FOLDER / "shops_2.parquet")
SHOPS, HISTORY = str(FOLDER / "shops"), str(FOLDER / "shops_history")

with DAG(
    dag_id="shop_snapshots",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    default_args={"retries": 3},
    doc_md=__doc__,
) as dag:

    @task
    def export() -> None:
        """Write the lists of two days. On the second day a shop has moved, one is new, and one is gone."""
        import shutil

        import pyarrow as pa
        import pyarrow.parquet as pq

        for table in (SHOPS, HISTORY):
            shutil.rmtree(table, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        cities = {1: "Oslo", 2: "Bergen", 3: "Tromsø", 4: "Bodø"}
        pq.write_table(pa.table({"shop": list(cities), "city": list(cities.values())}), FIRST)
        moved = {1: "Oslo", 2: "Stavanger", 3: "Tromsø", 5: "Molde"}
        pq.write_table(pa.table({"shop": list(moved), "city": list(moved.values())}), SECOND)

    load = DeltaWriteOperator(task_id="load", table_uri=SHOPS, source=files(FIRST), mode="overwrite")

    # [START howto_operator_apply_snapshot]
    follow = DeltaApplySnapshotOperator(
        task_id="follow",
        table_uri=SHOPS,
        source=files(SECOND),
        keys=["shop"],
        max_deleted_fraction=0.25,
    )
    # [END howto_operator_apply_snapshot]

    load_history = DeltaWriteOperator(task_id="load_history", table_uri=HISTORY, source=files(FIRST), mode="overwrite")

    # [START howto_operator_apply_snapshot_history]
    begin_history = DeltaAlterTableOperator(
        task_id="begin_history",
        table_uri=HISTORY,
        add_columns={"__START_AT": "TIMESTAMP", "__END_AT": "TIMESTAMP", "__IS_DELETED": "BOOLEAN"},
    )
    keep_history = DeltaApplySnapshotOperator(
        task_id="keep_history",
        table_uri=HISTORY,
        source=files(SECOND),
        keys=["shop"],
        max_deleted_fraction=0.25,
        stored_as_scd_type=2,
        hard_deletes="new_record",
        snapshot_at="{{ ts }}",
    )
    # [END howto_operator_apply_snapshot_history]

    export() >> [load, load_history]
    load >> follow
    load_history >> begin_history >> keep_history
