"""A DAG of the tests: three tables are pinned, and six tasks read them at the pinned versions while others write."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import DeltaUpsertOperator, PinVersionsOperator, table

LAKE = os.environ.get("TXLOG_TEST_TABLE", "/nowhere")
NAMES = ("a", "b", "c")

with DAG("one_set_of_versions") as dag:
    pin = PinVersionsOperator.partial(task_id="pin").expand(
        tables=[[f"{LAKE}/in/a", f"{LAKE}/in/b"], [f"file://{LAKE}/in/c"]]
    )

    @task
    def count(name: str) -> dict[str, Any]:
        found = TxlogHook().open(f"{LAKE}/in/{name}", as_of="run")
        assert get_current_context()["ti"].map_index >= 0
        return {"version": found.snapshot().version, "rows": found.to_arrow().num_rows}

    copies = [
        DeltaUpsertOperator(
            task_id=f"copy_{name}",
            table_uri=f"{LAKE}/out/{name}",
            source=table(f"{LAKE}/in/{name}", as_of="run"),
            keys=["id"],
            runner="in_process",
        )
        for name in NAMES
    ]
    pin >> [count.expand(name=list(NAMES)), *copies]
