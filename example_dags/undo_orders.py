"""All tasks of a run read one set of versions, and a run whose check fails is undone on all tables or on none.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaRollbackOperator, DeltaUpsertOperator, PinVersionsOperator, table

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
ORDERS, LATEST, TOTALS = (str(FOLDER / name) for name in ("run_orders", "run_latest", "run_totals"))

with DAG(
    dag_id="undo_orders",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"most": 100},
    default_args={"runner": "in_process", "retries": 0},
    doc_md=__doc__,
) as dag:

    @task
    def new_orders() -> None:
        """Orders as they come, and the tables of the reports."""
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        hook = TxlogHook()
        hook.overwrite(ORDERS, pa.table({"id": [1, 2], "amount": [40.0, 60.0]}))
        for uri in (LATEST, TOTALS):
            hook.append(uri, pa.table({"id": pa.array([], pa.int64()), "amount": pa.array([], pa.float64())}))

    # [START howto_pin_versions]
    pin = PinVersionsOperator(task_id="pin", tables=[ORDERS, LATEST, TOTALS])

    latest = DeltaUpsertOperator(
        task_id="latest",
        table_uri=LATEST,
        source=table(ORDERS, as_of="run"),
        keys=["id"],
    )
    # [END howto_pin_versions]

    @task
    def total() -> float:
        import pyarrow as pa

        from airflow_txlog.hooks.txlog import TxlogHook

        orders = TxlogHook().open(ORDERS, as_of="run").to_arrow()
        amount = sum(orders["amount"].to_pylist())
        TxlogHook().append(TOTALS, pa.table({"id": [len(orders)], "amount": [amount]}))
        return amount

    @task
    def check(amount: float, most: float) -> None:
        if amount > float(most):
            raise ValueError(f"the total is more than {most}")

    # [START howto_roll_back]
    undo = DeltaRollbackOperator(
        task_id="undo",
        run_id="{{ run_id }}",
        tables=[LATEST, TOTALS],
        trigger_rule="one_failed",
    )
    # [END howto_roll_back]

    amount = total()
    checked = check(amount, "{{ params.most }}")
    new_orders() >> pin >> [latest, amount]
    latest >> checked >> undo
