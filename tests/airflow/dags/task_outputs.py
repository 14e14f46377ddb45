"""Operators whose arguments are other tasks' outputs, down to single values; each returns its job's arguments."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.merge import DeltaMergeOperator, when_matched_update, when_not_matched_insert
from airflow_txlog.operators.sources import files, query


class Merge(DeltaMergeOperator):
    def execute(self, context: Any) -> dict[str, Any]:
        return self.job_arguments()


class Delete(DeltaDeleteOperator):
    def execute(self, context: Any) -> dict[str, Any]:
        return self.job_arguments()


@task
def give(value: Any) -> Any:
    return value


with DAG("task_outputs", schedule=None, catchup=False, render_template_as_native_obj=True):
    Merge(
        task_id="merge",
        table_uri="/t",
        source=query(
            "SELECT * FROM late",
            late=files("/in", format="csv", options={"sep": give.override(task_id="sep")(";")}),
            early=give.override(task_id="view")({"table": "/early"}),
            found=files(give.override(task_id="path")(["/a", "/b"])),
        ),
        on="t.id = s.id",
        clauses=[
            when_matched_update({"a": give.override(task_id="expression")("s.a + 1")}),
            when_matched_update(give.override(task_id="set")({"b": "s.b"}), condition="s.b > 0"),
            when_not_matched_insert("{{ {'id': 's.id'} }}"),
        ],
        spark_conf=give.override(task_id="conf")({"spark.sql.shuffle.partitions": 2}),
    )
    Delete(
        task_id="delete",
        table_uri="/t",
        keys=["a", give.override(task_id="key")("b")],
        key_column=give.override(task_id="column")("email"),
    )
