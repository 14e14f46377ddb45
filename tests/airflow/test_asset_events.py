"""The asset events of a task: only where rows changed, and what they carry."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.hooks.asset_events import asset_uri, fill_asset_events
from airflow_txlog.hooks.txlog import TxlogHook
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])
ASSET, ALIAS = Asset("orders", uri="file:///lake/orders"), AssetAlias("any_orders")


@pytest.fixture
def table(memory_uri: str) -> Table:
    table = Table.create(memory_uri, SCHEMA, ["day"])
    append(table, [{"id": 1, "day": 1}, {"id": 2, "day": 2}, {"id": 3, "day": None}])
    return table


def emitted(result: JobResult, *outlets: Any, without_change: bool = False, by_partition: bool = False) -> Any:
    """The task as it is left, and the events that it fills."""
    task = SimpleNamespace(outlets=[*outlets], hook=TxlogHook())
    events = OutletEventAccessors()
    context = {"outlet_events": events}
    fill_asset_events(task, context, [result], without_change=without_change, by_partition=by_partition)
    return task.outlets, events


def result(table: Table, operation: str = "write", status: str = "committed", **given: Any) -> JobResult:
    return JobResult(
        **{"status": status, "operation": operation, "table_uri": table.uri, "version": 1, "read_version": 0} | given
    )


def test_an_event_says_which_versions_rows_and_partitions_changed(table: Table) -> None:
    outlets, events = emitted(result(table, metrics={"numOutputRows": 3}), ASSET)
    assert outlets == [ASSET]
    extra = events[ASSET].extra
    assert extra.pop("commit_mark")
    assert extra == {
        "table_uri": table.uri,
        "from_version": 0,
        "version": 1,
        "operation": "write",
        "status": "committed",
        "rows": 3,
        "metrics": {"numOutputRows": 3},
        "partition_count": 3,
        "partitions": [{"day": "1"}, {"day": "2"}, {"day": None}],
    }
    assert events[ASSET].partition_keys == set()


def test_an_alias_gets_an_event_of_the_table_that_the_task_was_rendered_for(table: Table) -> None:
    _, events = emitted(result(table), ALIAS)
    (event,) = events[ALIAS].asset_alias_events
    assert event.dest_asset_key.uri == Asset(uri=table.uri).uri
    assert (event.extra["version"], event.extra["partition_count"]) == (1, 3)
    assert [asset_uri(uri) for uri in ("/lake/a", "s3://lake/a")] == ["file:///lake/a", "s3://lake/a"]


@pytest.mark.parametrize(
    ("operation", "status", "version"),
    [("optimize", "committed", 1), ("vacuum", "committed", 1), ("delete", "nothing_to_do", None)],
)
def test_where_no_row_changed_there_is_no_event_unless_it_is_asked_for(
    table: Table, operation: str, status: str, version: int | None
) -> None:
    nothing = result(table, operation, status, version=version)
    outlets, events = emitted(nothing, ASSET, ALIAS)
    assert (outlets, len(events)) == ([], 0)
    outlets, events = emitted(nothing, ASSET, without_change=True)
    assert (outlets, events[ASSET].extra["status"]) == ([ASSET], status)


def test_a_change_that_is_only_staged_has_no_event(table: Table) -> None:
    outlets, events = emitted(result(table, status="staged", version=None), ASSET, ALIAS, without_change=True)
    assert (outlets, len(events)) == ([], 0)


def test_a_write_that_only_made_the_table_changed_no_row(table: Table) -> None:
    assert emitted(result(table, version=0, read_version=None), ASSET)[0] == []


def test_work_that_an_earlier_try_did_has_its_event_still(table: Table) -> None:
    outlets, events = emitted(result(table, status="already_done"), ASSET)
    assert (outlets, events[ASSET].extra["version"]) == ([ASSET], 1)
    outlets, _ = emitted(result(table, status="already_done", version=None, at_or_before=9), ASSET)
    assert outlets == [ASSET]


def test_a_log_that_cannot_be_read_again_costs_the_event_its_details_and_not_the_task(table: Table) -> None:
    table.store.delete("_delta_log/00000000000000000000.json")
    outlets, events = emitted(result(table), ASSET)
    assert (outlets, events[ASSET].extra["version"]) == ([ASSET], 1)
    assert "partitions" not in events[ASSET].extra


def test_the_event_of_a_sensitive_task_names_no_partition(table: Table) -> None:
    task = SimpleNamespace(outlets=[ASSET], hook=TxlogHook(), sensitive=True)
    events = OutletEventAccessors()
    fill_asset_events(task, {"outlet_events": events}, [result(table)], without_change=False, by_partition=True)
    assert events[ASSET].extra["version"] == 1
    assert "partitions" not in events[ASSET].extra
    assert events[ASSET].partition_keys == set()


def test_partitions_become_events_of_their_own_where_it_is_asked_for_and_they_are_few(table: Table) -> None:
    _, events = emitted(result(table), ASSET, by_partition=True)
    assert events[ASSET].partition_keys == {"1", "2", "__HIVE_DEFAULT_PARTITION__"}
    tx = table.begin()
    for day in range(1001):
        tx.add(path=f"day={day}", size=1, partition_values={"day": str(day)})
    tx.commit("WRITE")
    _, events = emitted(result(table, version=2), ASSET, by_partition=True)
    assert events[ASSET].partition_keys == set()
    assert ("partitions" in events[ASSET].extra, events[ASSET].extra["partition_count"]) == (False, 1001)


def test_the_example_processes_each_version_once_though_events_are_dropped(
    dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLOG_DEMO_FOLDER", str(tmp_path))
    load, totals = (dag_of("orders_by_version", name) for name in ("orders_load", "orders_totals"))

    def taken() -> Any:
        (ti,) = totals.test().get_task_instances()
        assert ti.state == "success"
        return ti.xcom_pull(task_ids="add_up")

    for day in ("2013-01-01", "2013-01-02"):
        # The run that the first event would have scheduled does not come.
        assert load.test(run_conf={"day": day}).state == "success"
    assert taken() == [0, 1]
    assert taken() == []
    rows = Table.open(str(tmp_path / "order_totals")).to_arrow().sort_by("day").to_pylist()
    assert [(str(row["day"]), row["orders"]) for row in rows] == [("2013-01-01", 4), ("2013-01-02", 4)]

    # Dropped and made again: its log does not say what has gone.
    shutil.rmtree(tmp_path / "orders")
    assert load.test(run_conf={"day": "2013-01-03"}).state == "success"
    taken()
    rows = Table.open(str(tmp_path / "order_totals")).to_arrow().to_pylist()
    assert [(str(row["day"]), row["orders"]) for row in rows] == [("2013-01-03", 4)]
