"""Work on a column of texts in a DAG that renders native objects; TXLOG_TEST_LAKE has a table for each task."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_txlog.operators import DeltaDeleteOperator, DeltaUpdateOperator

LAKE = os.environ.get("TXLOG_TEST_LAKE", "/lake")

with DAG("native_objects", schedule=None, params={"u": "42", "ids": ["42"]}, render_template_as_native_obj=True):
    DeltaDeleteOperator(
        task_id="template",
        table_uri=f"{LAKE}/template",
        predicate="user_id = :u",
        parameters={"u": "{{ params.u }}"},
    )
    DeltaDeleteOperator.partial(task_id="mapped", table_uri=f"{LAKE}/mapped", predicate="user_id = :u").expand(
        parameters=[{"u": "42"}, {"u": "{{ 7 | string }}"}]
    )
    DeltaDeleteOperator(task_id="keys", table_uri=f"{LAKE}/keys", keys="{{ params.ids }}", key_column="user_id")
    DeltaUpdateOperator(
        task_id="update", table_uri=f"{LAKE}/update", set={"status": "'closed'"}, predicate="user_id = '7'"
    )
