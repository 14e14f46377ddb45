"""An author's SQL: certain mistakes are refused when the DAG is parsed, and a text may be in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.errors import InvalidInput, InvalidJobSpec
from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaMergeOperator,
    DeltaOptimizeOperator,
    DeltaRestoreOperator,
    DeltaUpdateOperator,
    DeltaWriteOperator,
    files,
    query,
    when_matched_delete,
    when_matched_update,
)
from airflow_txlog.operators.base import TxlogOperator
from airflow_txlog.sensors.table_version import TableVersionSensor

pytestmark = pytest.mark.airflow

T: dict[str, Any] = {"task_id": "x", "table_uri": "/t"}
IDS: dict[str, Any] = {"ids": [1, 2]}


def delete(predicate: str, parameters: Any = None, **given: Any) -> TxlogOperator:
    return DeltaDeleteOperator(**T, predicate=predicate, parameters=parameters, **given)


def merge(**given: Any) -> TxlogOperator:
    return DeltaMergeOperator(
        **{**T, "source": files("/in"), "on": "t.id = s.id", "clauses": [when_matched_update()], **given}
    )


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (lambda: delete("id IN (:ids)", IDS), r"predicate has IN \(:ids\).* Write array_contains\(:ids, column\)"),
        (lambda: delete("a AND id not in (0, :ids)", IDS), r"NOT array_contains\(:ids, column\), .*, column <> :ids"),
        (lambda: delete("id IN :ids", IDS), r"Write array_contains\(:ids, column\), .*, column = :ids"),
        (lambda: delete("id = :idd", {"id": 1}), r":idd, and parameters has no value for it \(it has id\)"),
        (lambda: delete("id = :id"), r":id, and parameters has no value for it \(it has none\)"),
        (lambda: delete("id = 1", {"id": 1}), r"a value for id, and no SQL of this operator has :id"),
        (lambda: delete("(id = 1"), r"predicate is no SQL expression: it has a \( without its \)"),
        (lambda: delete("a[1)] = 1"), r"it has a \) without its \("),
        (lambda: delete("name = 'O"), "a string without its closing quote"),
        (lambda: delete("id = 1; x"), "the character ';': leave that out"),
        (lambda: delete("id = 1 /* why"), "a comment that is not closed"),
        (lambda: delete("id = "), "nothing comes after ="),
        (lambda: delete("WHERE id = 1"), "leave that out"),
        (lambda: delete("id = ':u'", {"u": 1}), "A parameter in quotes is a text: write :u without quotes"),
        (lambda: merge(on="t.id = s.id)"), r"on is no SQL expression: it has a \) without its"),
        (lambda: merge(on="t.id = t.id"), r"on compares t.id with itself. Did you mean s.id on one side\?"),
        (lambda: merge(on="t.a = s.a AND (s.`id` <=> S.ID)"), r"on compares s.id with itself. Did you mean t.id on"),
        (lambda: merge(on="NOT (t.a = s.a) AND t.id = t.id"), "on compares t.id with itself"),
        (lambda: merge(clauses=[when_matched_update({"a": "f(s.a"})]), r"clauses is no .*: it has a \( without its"),
        (lambda: merge(clauses=[when_matched_update(), when_matched_delete()]), r"clauses\[1\] can never act"),
        (lambda: merge(source=query("SELECT :day", a=files("/in"))), "source has the parameter :day"),
        (lambda: DeltaUpdateOperator(**T, set={"a": "b + 'c"}), "set is no SQL expression: it has a string without"),
        (lambda: DeltaOptimizeOperator(**T, zorder_by="a", purge=True), "exclude each other"),
        (lambda: DeltaRestoreOperator(**T, timestamp="yesterday"), "a date or time in ISO 8601; found 'yesterday'"),
        (lambda: DeltaRestoreOperator(**T, version=1, timestamp="2024-01-31"), "version must be left out where timest"),
        (lambda: delete("TRUE", time_zone="Europe/Berln"), "no time zone 'Europe/Berln'"),
        (lambda: delete("TRUE", runner="submit"), "give spark_conn_id"),
        (lambda: delete("TRUE", idempotency_key=" "), "idempotency_key must not be empty"),
        # What a template decides does not hide what stands beside it.
        (lambda: DeltaDeleteOperator(task_id="x", table_uri="{{ var.value.lake }}/t", predicate="(a"), "without its"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_any_rendering_is_refused_at_once(operator: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidJobSpec, match=message):
        operator()


@pytest.mark.parametrize(
    "on",
    [
        "t.id = s.id",
        "t.s.id = s.id",
        "t.id = t.id + s.id",
        "t.a = t.b AND t.id = s.id",
        "place.city = place.city AND t.id = s.id",
        "t.id = s.id AND NOT (t.a = t.a)",
        "s.has_a = (t.a = t.a) AND f((t.a = t.a))",
    ],
)
def test_a_column_that_is_not_compared_with_itself_passes(on: str) -> None:
    merge(on=on)


@pytest.mark.parametrize(
    "operator",
    [
        lambda: delete("array_contains(:ids, id)", IDS),
        lambda: delete("id IN (:a, :b)", {"a": 1, "b": 2}),
        lambda: delete("id IN (:ids[0], element_at(:ids, 2))", IDS),
        lambda: delete("name = ':) it''s (' AND r'\\' = x -- :none ("),
        lambda: delete("raw:price::int = :p", {"p": 1}),
        # Known when the task runs: nothing is said before.
        lambda: delete("id IN (:ids) AND day = '{{ ds }}'", IDS),
        lambda: delete("id IN (:ids)", {"ids": "{{ params.ids }}"}),
        lambda: delete("id IN (:ids)", "{{ params.values }}"),
        lambda: delete("forget.sql", {"id": 1}),
        lambda: delete("TRUE", runner="submit", txlog_conn_id="lake"),
        lambda: delete("TRUE", time_zone="+02:00"),
        lambda: DeltaRestoreOperator(**T, timestamp="{{ params.moment }}"),
        lambda: DeltaWriteOperator(**T, source=query("SELECT 1;")),
    ],
)
def test_what_may_be_right_is_left_to_the_task(operator: Callable[[], Any]) -> None:
    assert operator()


def test_a_text_that_is_wrong_once_it_is_rendered_is_refused_before_anything_starts() -> None:
    operator = delete("id IN (:ids)", {"ids": "{{ params.ids }}"})
    operator.parameters = {"ids": [1, 2]}  # type: ignore[attr-defined]
    with pytest.raises(InvalidJobSpec, match="array_contains"):
        operator._spec("/t")


def test_a_sensor_of_a_relative_path_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="must be an absolute path"):
        TableVersionSensor(task_id="x", table_uri="lake/t", version=1)
    assert TableVersionSensor(task_id="x", table_uri="t", version=1, txlog_conn_id="lake")


DAG_FILE = """
from airflow.sdk import DAG
from airflow_txlog.operators import DeltaDeleteOperator, DeltaWriteOperator, files, query

with DAG(dag_id="texts", schedule=None):
    DeltaDeleteOperator(task_id="forget", table_uri="/t.sql", predicate="forget.sql", parameters={"user": "x.sql"})
    DeltaWriteOperator(task_id="load", table_uri="/t", source=query("daily.sql", raw=files("/in/dump.sql")))
    DeltaDeleteOperator.partial(task_id="each", table_uri="/t", predicate="forget.sql").expand(
        parameters=[{"user": "a"}, {"user": "b"}]
    )
"""


def parsed(folder: Path, **texts: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    (folder / "texts.py").write_text(DAG_FILE)
    for name, text in texts.items():
        (folder / f"{name}.sql").write_text(text)
    return DagBag(dag_folder=str(folder / "texts.py"), bundle_path=folder)


def test_a_text_may_be_a_file_beside_the_dag_and_is_rendered_and_checked_like_any(
    airflow_home: Path, tmp_path: Path
) -> None:
    bag = parsed(tmp_path, forget="user = :user\nAND day < '{{ ds }}'", daily="SELECT * FROM raw")
    assert not bag.import_errors
    dag = bag.dags["texts"]
    forget, load = dag.get_task("forget"), dag.get_task("load")
    assert forget.predicate == "user = :user\nAND day < '{{ ds }}'"
    assert load.source["sql"] == "SELECT * FROM raw"
    forget.render_template_fields({"ds": "2013-01-31"})
    assert forget.predicate == "user = :user\nAND day < '2013-01-31'"
    # No other text is the name of a file.
    assert forget.table_uri == "/t.sql"
    assert forget.job_arguments()["parameters"] == {"user": "x.sql"}
    assert load.job_arguments()["source"]["views"]["raw"]["path"] == "/in/dump.sql"


def test_a_mapped_task_reads_its_file_when_it_runs(airflow_home: Path, tmp_path: Path) -> None:
    dag = parsed(tmp_path, forget="user = :user AND day < '{{ ds }}'", daily="SELECT 1").dags["texts"]
    each = dag.get_task("each").unmap({"parameters": {"user": "a"}})
    each.render_template_fields({"ds": "2013-01-31"})
    assert each.predicate == "user = :user AND day < '2013-01-31'"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"daily": "SELECT 1"}, "predicate is the name of a template file, 'forget.sql', which is neither in the"),
        ({"daily": "SELECT 1", "forget": "(user = :user"}, "predicate is no SQL expression: it has a ( without its )"),
    ],
)
def test_a_file_that_is_missing_or_wrong_is_an_import_error(
    airflow_home: Path, tmp_path: Path, texts: dict[str, str], message: str
) -> None:
    (error,) = parsed(tmp_path, **texts).import_errors.values()
    assert message in error


def test_the_ui_knows_what_is_sql_and_what_is_json() -> None:
    assert delete("TRUE").template_fields_renderers == {
        "spark_conf": "json",
        "partition_predicate": "sql",
        "parameters": "json",
        "predicate": "sql",
        "keys": "json",
    }
    assert merge().template_fields_renderers["on"] == "sql"
    assert TableVersionSensor.template_fields_renderers == {"newer_than": "json", "partition": "json"}
