"""Bronze, silver and gold: each table takes what is new in the one before, once.

`bronze` appends the orders of a day. `silver` takes the versions of bronze that it has not processed, and keeps the
valid orders. `gold` adds the new orders of silver to the totals of their days. Each table's own commits hold how far it
has come. So a task that is retried, cleared, or left out for months takes every order once.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG

from airflow_txlog.operators import (
    DeltaIncrementalOperator,
    DeltaWriteOperator,
    query,
    table,
    when_matched_update,
    when_not_matched_insert,
)

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
BRONZE, SILVER, GOLD = (str(FOLDER / name) for name in ("orders_bronze", "orders_silver", "orders_gold"))

with DAG(
    dag_id="increments",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"day": "2013-01-01"},
    default_args={"runner": "in_process", "retries": 5},
    doc_md=__doc__,
):
    bronze = DeltaWriteOperator(
        task_id="bronze",
        table_uri=BRONZE,
        source=query("SELECT DATE(:day) AS day, id, id - 1.0D AS amount FROM range(4)"),
        parameters={"day": "{{ params.day }}"},
    )
    # [START howto_operator_incremental]
    silver = DeltaIncrementalOperator(
        task_id="silver",
        table_uri=SILVER,
        source=query("SELECT day, id, amount FROM bronze WHERE amount >= 0", bronze=table(BRONZE)),
        consumer="silver",
    )
    # [END howto_operator_incremental]
    new_gold = DeltaWriteOperator(
        task_id="new_gold",
        table_uri=GOLD,
        source=query("SELECT DATE'2013-01-01' AS day, 0L AS orders, 0.0D AS amount WHERE FALSE"),
    )
    # [START howto_operator_incremental_merge]
    gold = DeltaIncrementalOperator(
        task_id="gold",
        table_uri=GOLD,
        source=query(
            "SELECT day, count(*) AS orders, sum(amount) AS amount FROM silver GROUP BY day", silver=table(SILVER)
        ),
        consumer="gold",
        mode="merge",
        on="t.day = s.day",
        clauses=[
            when_matched_update({"orders": "t.orders + s.orders", "amount": "t.amount + s.amount"}),
            when_not_matched_insert(),
        ],
    )
    # [END howto_operator_incremental_merge]
    bronze >> silver >> gold
    new_gold >> gold
