"""Bronze, silver and gold: three DAGs with one increment each. Each table takes what is new in the one before, once.

Orders land in a table. `increments_bronze` copies the new ones to bronze, `increments_silver` keeps the valid ones in
silver, and `increments_gold` adds those to the totals of their days. Bronze and silver start the next DAG by an asset
event. Each table's own commits hold how far it has come. So a run that is retried, cleared, or left out for months
takes every order once, and if Airflow drops an event, the next run takes its orders too.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_txlog.operators import (
    DeltaIncrementalOperator,
    DeltaWriteOperator,
    query,
    table,
    when_matched_update,
    when_not_matched_insert,
)

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
LANDING, BRONZE, SILVER, GOLD = (str(FOLDER / f"orders_{name}") for name in ("landing", "bronze", "silver", "gold"))
BRONZE_ASSET, SILVER_ASSET = (Asset(Path(uri).name, uri=f"file://{uri}") for uri in (BRONZE, SILVER))
GIVEN: dict[str, Any] = {
    "catchup": False,
    "max_active_runs": 1,
    "tags": ["txlog"],
    "default_args": {"runner": "in_process", "retries": 5, "retry_delay": timedelta(seconds=10)},
    "doc_md": __doc__,
}

with DAG("increments_bronze", schedule=None, params={"day": "2013-01-01"}, **GIVEN):

    @task
    def orders(day: str) -> None:
        """Four orders of a day as they come; one of them is not valid."""
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        found = pa.table({"day": [day] * 4, "id": range(4), "amount": [-1.0, 0.0, 1.0, 2.0]})
        TxlogHook().append(LANDING, found)

    bronze = DeltaIncrementalOperator(
        task_id="bronze",
        table_uri=BRONZE,
        source=table(LANDING),
        consumer="bronze",
        outlets=[BRONZE_ASSET],
    )
    orders("{{ params.day }}") >> bronze

with DAG("increments_silver", schedule=[BRONZE_ASSET], **GIVEN):
    # [START howto_operator_incremental]
    silver = DeltaIncrementalOperator(
        task_id="silver",
        table_uri=SILVER,
        source=query("SELECT DATE(day) AS day, id, amount FROM bronze WHERE amount >= 0", bronze=table(BRONZE)),
        consumer="silver",
        outlets=[SILVER_ASSET],
    )
    # [END howto_operator_incremental]

with DAG("increments_gold", schedule=[SILVER_ASSET], **GIVEN):
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
    new_gold >> gold
