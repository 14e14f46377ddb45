"""A GDPR delete and a nightly enrichment, on one table at the same time.

`forget_user` deletes a person's rows; `enrich_users` updates everybody's score by MERGE. They run side by side and
touch the same files, so one of them loses. The loser's job plans again on the winner's version and commits. If it
loses too often, the retry policy retries the task. Either way, the forgotten rows stay gone: a MERGE that lost
to the delete does not bring them back, because it reads the table again.

The table lives in the folder named by TXLOG_DEMO_FOLDER.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaWriteOperator,
    query,
    when_matched_update,
)

FOLDER = Path(os.environ.get("TXLOG_DEMO_FOLDER", str(Path(tempfile.gettempdir()) / "txlog_demo")))
TABLE = str(FOLDER / "users")

with DAG(
    dag_id="gdpr_race",
    schedule=None,
    catchup=False,
    tags=["txlog"],
    params={"user_id": "42"},
    default_args={"runner": "in_process", "retries": 5},
    doc_md=__doc__,
) as dag:
    users = DeltaWriteOperator(
        task_id="users",
        table_uri=TABLE,
        source=query(
            "SELECT id AS user_id, concat('user', id, '@example.org') AS email, 0.0D AS score FROM range(1000)"
        ),
        mode="overwrite",
    )

    # [START gdpr_race]
    forget_user = DeltaDeleteOperator(
        task_id="forget_user",
        table_uri=TABLE,
        predicate="user_id = :user",
        parameters={"user": "{{ params.user_id }}"},
    )

    enrich_users = DeltaMergeOperator(
        task_id="enrich_users",
        table_uri=TABLE,
        source=query("SELECT id AS user_id, CAST(id % 10 AS DOUBLE) AS score FROM range(1000)"),
        on="t.user_id = s.user_id",
        # No `not matched` clause: a user who is gone is not enriched into being.
        clauses=[when_matched_update({"score": "s.score"})],
    )
    # [END gdpr_race]

    @task
    def check(user_id: str) -> dict[str, int]:
        """Fail if the forgotten user is back, or if anybody else was lost or left out."""
        from airflow_txlog.engine import Table

        rows = Table.open(TABLE).to_arrow(columns=["user_id", "score"]).to_pylist()
        expected = {(user, float(user % 10)) for user in range(1000) if user != int(user_id)}
        if {(row["user_id"], row["score"]) for row in rows} != expected or len(rows) != len(expected):
            raise ValueError(f"{TABLE} holds {len(rows)} rows that are not what both operations leave")
        return {"rows": len(rows)}

    users >> [forget_user, enrich_users] >> check("{{ params.user_id }}")
