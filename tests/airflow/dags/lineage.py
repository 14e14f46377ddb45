"""Tasks of each kind below the folder of TXLOG_TEST_FOLDER, for what the listener of OpenLineage makes of them."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaTruncateOperator,
    DeltaWriteOperator,
    files,
    query,
    table,
    when_matched_update,
    when_not_matched_insert,
)

FOLDER = os.environ.get("TXLOG_TEST_FOLDER", "/nowhere")
PERSON = "{{ person() }}"
DEFAULTS = {"runner": "in_process", "table_uri": "people", "txlog_conn_id": "lake", "trigger_rule": "all_done"}
MACROS = {"person": lambda: os.environ["TXLOG_TEST_PERSON"]}

with DAG("lineage", schedule=None, default_args=DEFAULTS, user_defined_macros=MACROS):
    load = DeltaWriteOperator(task_id="load", source=files(f"{FOLDER}/in/*.parquet"))
    late = DeltaMergeOperator(
        task_id="late",
        source=query("SELECT id, name FROM late WHERE name <> :name", late=table(f"{FOLDER}/late")),
        on="t.id = s.id",
        clauses=[
            when_matched_update({"name": "s.name", "note": "upper(s.name)"}),
            when_not_matched_insert({"id": "s.id", "name": "s.name"}),
        ],
        parameters={"name": PERSON},
        sensitive=True,
    )
    forget = DeltaDeleteOperator(task_id="forget", keys=[PERSON], key_column="name")
    fails = DeltaWriteOperator(task_id="fails", source=files(f"{FOLDER}/nothing"), table_uri=f"{FOLDER}/people")
    empty = DeltaTruncateOperator(task_id="empty")
    again = DeltaTruncateOperator(task_id="again")
    load >> late >> forget >> fails >> empty >> again
