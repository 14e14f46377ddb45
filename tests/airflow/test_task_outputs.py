"""What another task or a template decides may be any part of an argument, and is no error of the DAG's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.airflow


def test_a_part_of_any_argument_may_be_another_tasks_output(dag_of: Callable[[str, str], Any]) -> None:
    dag = dag_of("task_outputs", "task_outputs")
    givers = {"sep", "view", "path", "expression", "set", "conf"}
    assert dag.get_task("merge").upstream_task_ids == givers
    run = dag.test()
    given = {ti.task_id: ti.xcom_pull(task_ids=ti.task_id) for ti in run.get_task_instances()}
    merge = given["merge"]
    late = {"format": "csv", "path": "/in", "options": {"sep": ";"}, "schema": None}
    found = {"format": "parquet", "path": ["/a", "/b"], "options": {}, "schema": None}
    assert merge["source"]["views"] == {"late": late, "early": {"table": "/early"}, "found": found}
    assert [clause.get("set") or clause.get("values") for clause in merge["clauses"]] == [
        {"a": "s.a + 1"},
        {"b": "s.b"},
        {"id": "s.id"},
    ]
    assert given["delete"]["keys"] == {"column": "email", "values": ["a", "b"]}


def test_what_is_wrong_beside_a_template_is_still_refused_when_the_dag_is_parsed() -> None:
    from airflow_txlog.errors import InvalidJobSpec
    from airflow_txlog.operators.delete import DeltaDeleteOperator

    with pytest.raises(InvalidJobSpec, match=r": keys\[1\]") as caught:
        DeltaDeleteOperator(task_id="d", table_uri="{{ ds }}", keys=["a", object()], key_column="email")
    assert caught.value.facts["argument"] == "keys[1]"
    with pytest.raises(InvalidJobSpec, match=r": parameters\.e"):
        DeltaDeleteOperator(task_id="d", table_uri="/t", predicate="e = :e", parameters={"e": object()})
