"""Tables of Unity Catalog by name where no object store is needed: the example DAG, waiting, the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.triggers.table_version import TableVersionTrigger
from tests.helpers.managed import NAME, created, ids, opened, rows
from tests.helpers.rows import append
from tests.helpers.unity import FakeUnity, Fault

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home")]

TOKEN = "canary-3c1d-token"


@pytest.fixture
def unity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeUnity]:
    with FakeUnity() as unity:
        unity.root = f"file://{tmp_path}"
        connection = {"conn_type": "txlog_unity", "host": unity.url, "password": TOKEN}
        monkeypatch.setenv("AIRFLOW_CONN_UNITY", json.dumps(connection))
        yield unity


def test_the_example_dag_creates_changes_and_waits_for_a_managed_table(
    unity: FakeUnity, dag_of: Callable[[str, str], Any], tmp_path: Path
) -> None:
    landing = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "amount": [1.0, -2.0, 3.0]}), landing)
    dag = dag_of("unity_tables", "unity_tables")
    dag_run = dag.test(run_conf={"landing": str(landing)})
    tis = {ti.task_id: ti for ti in dag_run.get_task_instances()}
    assert {name: ti.state for name, ti in tis.items()} == dict.fromkeys(
        ("load", "wait", "cancel", "comment"), "success"
    )
    entry = unity.tables["main.sales.orders"]
    assert (entry.is_managed, entry.latest, entry.commits) == (True, 2, {})
    assert entry.columns["fields"][1]["metadata"] == {"comment": "in euros"}
    table = TxlogHook(catalog_conn_id="unity").open("main.sales.orders")
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 3]
    assert {ti.xcom_pull(task_ids=name).get("table") for name, ti in tis.items() if name != "wait"} == {
        "main.sales.orders"
    }


def test_a_deferred_sensor_waits_for_an_unpublished_version_by_the_name(unity: FakeUnity, tmp_path: Path) -> None:
    entry = created(unity, f"file://{tmp_path}")
    sensor = TableVersionSensor(
        task_id="wait", table=NAME, newer_than=0, catalog_conn_id="unity", deferrable=True, poke_interval=0.1
    )
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    kind, arguments = deferred.value.trigger.serialize()
    assert kind.endswith("TableVersionTrigger")
    assert (arguments["table_uri"], arguments["catalog_conn_id"]) == (NAME, "unity")
    assert TOKEN not in json.dumps(arguments)
    with unity.harmed(Fault("refused", on="set-latest-backfilled", times=9)):
        append(opened(unity, entry), rows(1))
    Path(entry.location.removeprefix("file://"), "_delta_log", f"{1:020d}.json").unlink()

    async def first_event() -> dict[str, Any]:
        async for event in TableVersionTrigger(**arguments).run():
            return dict(event.payload)
        raise AssertionError("it ends without an event")

    event = asyncio.run(asyncio.wait_for(first_event(), 20))
    assert sensor.execute_complete({}, event)["version"] == 1
    # Published in between: the position of the last look is still that of the same log.
    append(opened(unity, entry), rows(2))
    later = TableVersionSensor(task_id="later", table=NAME, newer_than=event, catalog_conn_id="unity")
    found = later.poke({})
    assert found.is_done
    assert (found.xcom_value["version"], found.xcom_value["recreated"]) == (2, False)


def test_the_command_line_reads_restores_and_compares_by_the_name(
    unity: FakeUnity, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.cli.cli_parser import get_parser

    def txlog(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        args = get_parser().parse_args(["txlog", *words, "--catalog-conn-id", "unity", "--json"])
        args.func(args)
        shown = capsys.readouterr()
        assert TOKEN not in shown.out + shown.err
        found: dict[str, Any] = json.loads(shown.out)
        return found

    entry = created(unity, f"file://{tmp_path}")
    append(opened(unity, entry), rows(1))
    append(opened(unity, entry), rows(2))
    assert len(txlog("history", NAME)["commits"]) == 3
    assert txlog("snapshot", NAME)["num_rows"] == 2
    assert txlog("restore", NAME, "--version", "1", "--yes")["committed"]
    assert ids(opened(unity, entry)) == [1]
    assert txlog("alter", NAME, "--add-column", "note=STRING", "--yes")["committed"]
    assert [each["name"] for each in entry.columns["fields"]] == ["id", "name", "note"]
    assert txlog("catalog", "check", NAME)["differences"] == []
    assert txlog("catalog", "sync", NAME)["outcome"] == "unchanged"
    assert (entry.latest, entry.commits) == (4, {})
    with pytest.raises(SystemExit):
        txlog("vacuum", NAME, "--yes")


def test_a_command_that_writes_by_itself_gets_the_privilege_to_write(unity: FakeUnity) -> None:
    unity.add(NAME, "s3://lake/orders")
    hook = TxlogHook(catalog_conn_id="unity")
    hook.entry(NAME)
    [read] = hook.access.catalog_tables
    hook.writes_by_name = True
    [write] = hook.access.catalog_tables
    assert (str(read.storage_conn_id)[-5:], str(write.storage_conn_id)[-11:]) == (":READ", ":READ_WRITE")
