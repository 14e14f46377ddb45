"""The link from a task to its commit, and what `airflow connections test` finds out about a connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.links.pages import page_url
from airflow_txlog.operators import CheckpointOperator, DeltaTruncateOperator
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow

PAGE = "https://lake.example.com/history?table={table}&version={version}"


def connect(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> TxlogHook:
    monkeypatch.setenv("AIRFLOW_CONN_TESTED", json.dumps({"conn_type": "txlog", **connection}))
    return TxlogHook("tested")


def test_the_configuration_and_before_it_the_connection_name_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TxlogHook().history_url is None
    monkeypatch.setenv("AIRFLOW__TXLOG__HISTORY_URL", PAGE)
    assert TxlogHook().history_url == PAGE
    assert connect(monkeypatch, extra={}).history_url == PAGE
    assert (
        connect(monkeypatch, extra={"history_url": "https://other/{version}"}).history_url == "https://other/{version}"
    )


def test_a_link_has_the_table_and_the_version_and_leads_nowhere_but_to_the_page() -> None:
    found = page_url(PAGE, "file:///lake/a b?x=1&y", 7)
    assert found == "https://lake.example.com/history?table=file%3A%2F%2F%2Flake%2Fa%20b%3Fx%3D1%26y&version=7"
    assert page_url("https://lake/{table}", "s3://b/t") == "https://lake/s3%3A%2F%2Fb%2Ft"
    assert page_url(None, "file:///t", 7) == ""
    assert page_url("javascript:alert({version})", "file:///t", 7) == ""


@pytest.mark.parametrize("page", [PAGE, ""])
def test_a_task_that_committed_links_to_its_commit_and_one_that_did_not_has_no_link(
    dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__HISTORY_URL", page)
    monkeypatch.setenv("AIRFLOW__TXLOG__TABLE_URL", page)
    table = make_table(tmp_path / "t", pa.table({"id": pa.array([1, 2], pa.int64())}))
    monkeypatch.setenv("TXLOG_TEST_TABLE", table.uri)
    dag_run = dag_of("links", "linked").test()
    assert dag_run.state == "success"

    def links(kind: str) -> dict[str, str]:
        return {
            ti.task_id: ti.xcom_pull(task_ids=ti.task_id, key=f"_link_{kind}") for ti in dag_run.get_task_instances()
        }

    # A link that leads nowhere is no XCom either.
    link = {name: page_url(page, table.uri, version) or None for name, version in (("commit", 2), ("table", None))}
    assert links("CommitLink") == {"empty": link["commit"], "empty_again": None}
    assert links("TableLink") == dict.fromkeys(("empty", "empty_again"), link["table"])


def kept_tasks() -> dict[str, dict[str, Any]]:
    """What Airflow keeps of a DAG's tasks."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    shared: dict[str, Any] = {"table_uri": "/lake/{{ ds }}"}
    with DAG(dag_id="kept", schedule=None) as dag:
        DeltaTruncateOperator(task_id="empty", **shared, spark_conf={"spark.sql.shuffle.partitions": 2})
        DeltaTruncateOperator(task_id="connected", **shared, txlog_conn_id="lake")
        DeltaTruncateOperator.partial(task_id="mapped").expand(table_uri=["/lake/a"])
        DeltaTruncateOperator.partial(task_id="mapped_connected", txlog_conn_id="lake").expand(table_uri=["/lake/a"])
        DeltaTruncateOperator.partial(task_id="mapped_over_connections", **shared).expand(txlog_conn_id=["lake"])
    with DAG(dag_id="by_default", schedule=None, default_args={"txlog_conn_id": "lake"}) as by_default:
        DeltaTruncateOperator.partial(task_id="mapped_by_default").expand(table_uri=["/lake/a"])
    tasks = [task["__var"] for each in (dag, by_default) for task in DagSerialization.to_dict(each)["dag"]["tasks"]]
    return {task["task_id"]: task for task in tasks}


def test_what_airflow_keeps_of_a_task_can_be_read_and_has_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__HISTORY_URL", PAGE)
    monkeypatch.setenv("AIRFLOW__TXLOG__TABLE_URL", PAGE)
    kept = kept_tasks()
    links = {"Commit": "_link_CommitLink", "Table": "_link_TableLink"}
    assert {name: task["_operator_extra_links"] for name, task in kept.items()} == dict.fromkeys(kept, links)
    assert kept["empty"]["table_uri"] == "/lake/{{ ds }}"
    assert kept["empty"]["spark_conf"] == {"spark.sql.shuffle.partitions": 2}
    assert kept["empty"]["template_fields_renderers"] == {"spark_conf": "json"}
    assert "object at 0x" not in json.dumps(kept)


def test_a_task_without_a_page_has_no_links_so_that_airflow_shows_no_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {name: sorted(task.get("_operator_extra_links", ())) for name, task in kept_tasks().items()}
    both = ["Commit", "Table"]
    # A connection may have pages, and is not read while the DAG is parsed.
    assert named == {"empty": [], "mapped": []} | {name: both for name in named if name not in ("empty", "mapped")}
    monkeypatch.setenv("AIRFLOW__TXLOG__TABLE_URL", PAGE)
    assert sorted(kept_tasks()["empty"]["_operator_extra_links"]) == ["Table"]


def test_a_connection_whose_base_opens_is_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extra = {"spark_conf": {"spark.sql.shuffle.partitions": 2}}
    assert connect(monkeypatch, host=f"{tmp_path}/", extra=extra).test_connection() == (
        True,
        f"{tmp_path} was opened; jobs run by the runner child, with 1 Spark settings and 0 storage options.",
    )
    is_well, text = connect(monkeypatch).test_connection()
    assert is_well
    assert text.startswith("There is no base: tables are named by their own URIs.")


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"host": "lake"}, "the base 'lake' is no absolute path and no URI"),
        ({"host": "sftp://host/lake"}, 'the file system "sftp" .* has no proven put-if-absent'),
        ({"host": "/lake", "extra": {"runner": "chlid"}}, "runner must be one of"),
        ({"host": "/lake", "extra": {"runner": "submit"}}, "needs the address of its cluster"),
        ({"host": "/lake", "extra": {"storage_conn_id": "not_there"}}, "not_there"),
        ({"host": "/lake", "extra": {"storage_options": {"profile": "a"}, "storage_conn_id": "x"}}, "one identity"),
        ({"host": "/lake", "extra": {"spark_conf": "a=b"}}, "spark_conf must be"),
    ],
)
def test_what_a_task_would_refuse_the_test_of_the_connection_refuses(
    airflow_home: Path, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], message: str
) -> None:
    import re

    is_well, text = connect(monkeypatch, **connection).test_connection()
    assert not is_well
    assert re.search(message, text)


def test_a_base_that_is_a_table_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64())]))
    is_well, text = connect(monkeypatch, host=table.uri).test_connection()
    assert (is_well, "is a table itself" in text) == (False, True)


def test_a_task_without_a_result_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TXLOG__HISTORY_URL", PAGE)
    monkeypatch.setenv("AIRFLOW__TXLOG__TABLE_URL", PAGE)
    operator = CheckpointOperator(task_id="x", table_uri="/t")
    for link in operator.operator_extra_links:
        get_link: Callable[..., str] = link.get_link
        assert get_link(operator, ti_key=None) == ""


def test_links_of_a_task_that_has_ended_need_no_connection() -> None:
    """`airflow dags test` asks for them where the connections of the database cannot be read."""
    task = CheckpointOperator(task_id="checkpoint", table_uri="t", txlog_conn_id="only_in_the_database")
    task.has_begun = True
    task.last_result = JobResult(table_uri="/lake/t", operation="checkpoint", status="committed", version=3)
    assert [link.name for link in task.operator_extra_links] == ["Commit", "Table"]
