"""Requests to be forgotten, from a file, carried out in two tables that hold the same people under different types.

`requests` writes a CSV file of user ids; `forget_users` deletes them from a table whose id is text, and
`forget_orders` from one whose id is a number. The file's column is read as text, because `007` and `7` are two people
there: a key becomes a value of the table's column exactly, or the task fails. Every request must be found among the
users; not everybody has ordered something.

The tables live in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_txlog.operators import DeltaDeleteOperator, DeltaWriteOperator, files, query

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
USERS, ORDERS, REQUESTS = (str(FOLDER / name) for name in ("people", "orders", "requests.csv"))

with DAG(
    dag_id="gdpr_keys",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"user_ids": ["7", "42", "999"]},
    default_args={"runner": "in_process", "retries": 2},
    doc_md=__doc__,
) as dag:
    users = DeltaWriteOperator(
        task_id="users",
        table_uri=USERS,
        source=query(
            "SELECT CAST(id AS STRING) AS user_id, concat('user', id, '@example.org') AS email FROM range(1000)"
        ),
        mode="overwrite",
    )
    orders = DeltaWriteOperator(
        task_id="orders",
        table_uri=ORDERS,
        source=query("SELECT id AS order_id, id % 500 AS customer_id FROM range(5000)"),
        mode="overwrite",
    )

    @task
    def requests(params: Any = None) -> str:
        """Write the file that another system would leave."""
        user_ids = params["user_ids"]
        Path(REQUESTS).write_text("\n".join(["user_id", *user_ids]) + "\n")
        return REQUESTS

    # [START gdpr_keys]
    requested = files(REQUESTS, format="csv", options={"header": "true"}, schema="user_id STRING")

    forget_users = DeltaDeleteOperator(
        task_id="forget_users",
        table_uri=USERS,
        keys=requested,
        key_column="user_id",
        require_match=True,
    )

    forget_orders = DeltaDeleteOperator(
        task_id="forget_orders",
        table_uri=ORDERS,
        keys=requested,
        key_column="customer_id",
    )
    # [END gdpr_keys]

    @task
    def check(params: Any = None) -> dict[str, int]:
        """Fail if a person of the requests is still there, or if anybody else is gone."""
        from airflow_txlog.engine import Table

        user_ids = params["user_ids"]
        people = Table.open(USERS).to_arrow(columns=["user_id"]).column(0).to_pylist()
        customers = Table.open(ORDERS).to_arrow(columns=["customer_id"]).column(0).to_pylist()
        if sorted(people) != sorted(str(user) for user in range(1000) if str(user) not in user_ids):
            raise ValueError(f"{USERS} holds {len(people)} people, who are not those who stay")
        if sorted(customers) != sorted(c for c in (n % 500 for n in range(5000)) if str(c) not in user_ids):
            raise ValueError(f"{ORDERS} holds {len(customers)} orders, which are not those that stay")
        return {"people": len(people), "orders": len(customers)}

    [users, orders, requests()] >> forget_users >> forget_orders >> check()
