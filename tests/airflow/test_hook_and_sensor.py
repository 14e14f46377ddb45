"""The connection type `txlog`, and the sensor that reads a log without Spark."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import storage
from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import CorruptTable, InvalidInput, InvalidJobSpec, TableNotFound
from airflow_txlog.hooks.digest_keys import digest_keys
from airflow_txlog.hooks.erasure.published_report import signing_key
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import CheckpointOperator
from airflow_txlog.operators.restore import DeltaRestoreOperator
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.storage import Access
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A connection `lake` whose base is a folder."""
    connection = {
        "conn_type": "txlog",
        "host": f"{tmp_path}/",
        "extra": {"spark_conf": '{"spark.sql.shuffle.partitions": 2}', "runner": "in_process"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return tmp_path


def grow(table: Table) -> int:
    tx = table.begin()
    assert tx.snapshot is not None
    tx.add(path=f"{tx.snapshot.version}.parquet", partition_values={}, size=1, modification_time=1, stats=None)
    return tx.commit("WRITE", {}, {})


@pytest.mark.parametrize("unrestricted", ["query", ["query"], ("query", "options")])
def test_the_hook_takes_one_name_of_what_is_unrestricted_as_the_operators_do(
    tmp_path: Path, unrestricted: str | list[str]
) -> None:
    taken: list[JobSpec] = []

    class Taker:
        def run(self, spec: JobSpec, *, log: Any) -> JobResult:
            taken.append(spec)
            return JobResult(status="nothing_to_do", operation="write", table_uri=spec.table_uri)

        def kill(self) -> None: ...

    source = {"sql": "SELECT 1 AS id"}
    TxlogHook().run(
        "write",
        str(tmp_path / "t"),
        {"source": source},
        idempotency_key="a",
        runner=Taker(),
        unrestricted=unrestricted,
    )
    assert "query" in taken[0].unrestricted
    assert taken[0].operation.name == "write"


def test_a_relative_name_is_joined_to_the_base_of_the_connection(lake: Path) -> None:
    hook = TxlogHook("lake")
    assert hook.table_uri("users") == f"{lake}/users"
    assert hook.table_uri("/other/users") == "/other/users"
    assert hook.table_uri("memory://x/users") == "memory://x/users"


def test_the_settings_of_a_connection_are_texts(lake: Path) -> None:
    hook = TxlogHook("lake")
    assert hook.spark_conf == {"spark.sql.shuffle.partitions": "2"}
    assert hook.runner_or(None) == "in_process"
    assert hook.test_connection()[0]


@pytest.mark.parametrize("options", ['{"profile": "lake"}', {"profile": "lake"}])
def test_tables_and_jobs_are_opened_with_the_storage_options_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: Any
) -> None:
    extra = {"storage_options": options, "allow_absolute_paths": True, "single_writer": True}
    monkeypatch.setenv("AIRFLOW_CONN_OPENED", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    access = Access(storage_options={"profile": "lake"}, allow_absolute_paths=True, single_writer=True)
    assert TxlogHook("opened").table("t").store.access == access
    operator = CheckpointOperator(task_id="x", table_uri="t", txlog_conn_id="opened")
    spec = operator.job_spec({})
    assert spec.access == access
    assert JobSpec.from_json(spec.to_json()).access == access


def test_storage_options_that_are_no_json_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "txlog", "extra": {"storage_options": "a=b"}}))
    with pytest.raises(InvalidJobSpec, match="storage_options must be a JSON object"):
        _ = TxlogHook("odd").storage_options
    assert not TxlogHook("odd").test_connection()[0]


def test_settings_that_are_no_json_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "txlog", "extra": {"spark_conf": "a=b"}}))
    with pytest.raises(InvalidJobSpec, match="spark_conf"):
        _ = TxlogHook("odd").spark_conf
    assert not TxlogHook("odd").test_connection()[0]


def test_a_connection_that_is_named_and_missing_is_an_error(airflow_home: Path) -> None:
    from airflow.exceptions import AirflowNotFoundException

    reads: dict[str, Callable[[], object]] = {
        "txlog_conn_id": lambda: TxlogHook("nobody_made_this").table_uri("users"),
        "storage_conn_id": lambda: TxlogHook(storage_conn_id="nobody_made_this").storage_options,
        "catalog_conn_id": lambda: TxlogHook(catalog_conn_id="nobody_made_this").place_of("sales.orders"),
        "spark_conn_id": lambda: TxlogHook(spark_conn_id="nobody_made_this").make_runner("connect"),
        "signing_conn_id": lambda: signing_key("nobody_made_this"),
        "erasure_key_conn_id": lambda: digest_keys("nobody_made_this"),
    }
    for argument, read in reads.items():
        with pytest.raises(AirflowNotFoundException) as caught:
            read()
        text = str(caught.value)
        assert text.startswith(f"{argument}: Airflow has no connection 'nobody_made_this'. Nothing was read. Correct ")
        assert "AIRFLOW_CONN_NOBODY_MADE_THIS" in text


def test_a_table_is_opened_through_the_hook(lake: Path) -> None:
    hook = TxlogHook("lake")
    with pytest.raises(TableNotFound):
        hook.open("users")
    with pytest.raises(TableNotFound):
        hook.latest_version("users")
    table = Table.create(str(lake / "users"), SCHEMA)
    grow(table)
    assert hook.open("users").snapshot().version == hook.latest_version("users") == 1


def sensor(**kwargs: Any) -> TableVersionSensor:
    return TableVersionSensor(task_id="wait", **kwargs)


def poked(**kwargs: Any) -> Any:
    """The XCom when the condition holds, else False."""
    found = sensor(**kwargs).poke({})  # type: ignore[arg-type]
    return found.xcom_value if found.is_done else False


def test_a_table_that_does_not_exist_yet_is_waited_for(memory_uri: str) -> None:
    assert poked(table_uri=memory_uri, version=0) is False
    assert poked(table_uri=memory_uri, since="2013-01-01") is False
    Table.create(memory_uri, SCHEMA)
    assert poked(table_uri=memory_uri, version=0)


def test_it_waits_for_a_version_or_a_later_one_and_returns_what_it_found(memory_uri: str) -> None:
    table = Table.create(memory_uri, SCHEMA)
    grow(table)
    assert [bool(poked(table_uri=memory_uri, version=v)) for v in (0, 1, 2)] == [True, True, False]
    found = poked(table_uri=memory_uri, version="1")
    assert found.pop("commit_mark")
    assert found == {
        "table_uri": memory_uri,
        "version": 1,
        "from_version": 0,
        "matched_version": None,
        "operation": None,
        "timestamp_ms": None,
        "recreated": False,
    }


def test_it_waits_for_a_version_newer_than_one_seen(memory_uri: str) -> None:
    table = Table.create(memory_uri, SCHEMA)
    assert not poked(table_uri=memory_uri, newer_than="None"), "there is no row yet"
    grow(table)
    seen = poked(table_uri=memory_uri, newer_than="None")
    assert (seen["version"], seen["matched_version"], seen["operation"]) == (1, 1, "WRITE")
    assert [bool(poked(table_uri=memory_uri, newer_than=v)) for v in (0, "0", 1, "1", seen)] == [
        *(True, True),
        *(False, False, False),
    ]
    # What an operator returns; for work that was done already, the version may be known only from above.
    assert poked(table_uri=memory_uri, newer_than={"version": None, "at_or_before": 0, "status": "already_done"})
    grow(table)
    assert poked(table_uri=memory_uri, newer_than=seen)["from_version"] == 1


def test_another_tasks_output_that_is_none_means_that_none_was_seen(memory_uri: str) -> None:
    grow(Table.create(memory_uri, SCHEMA))
    waiting = sensor(table_uri=memory_uri, newer_than="{{ none }}")
    waiting.newer_than = None
    assert waiting.poke({}).is_done  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["version", "since", "operation", "committed_by_dag", "committed_by_task", "partition"]
)
def test_a_condition_that_another_task_gave_as_none_is_an_error_and_not_a_wider_one(memory_uri: str, name: str) -> None:
    grow(Table.create(memory_uri, SCHEMA))
    others = {"operation": "WRITE"} if name != "operation" else {"version": 0}
    given = {"partition": {"day": "{{ ds }}"}}.get(name, "{{ none }}")
    waiting = sensor(table_uri=memory_uri, **others, **{name: given})
    setattr(waiting, name, None)
    with pytest.raises(InvalidInput, match=f"^{name} is a template"):
        waiting.poke({})  # type: ignore[arg-type]


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_wait_that_took_too_long_names_the_table_the_condition_and_the_version(lake: Path, soft_fail: bool) -> None:
    from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

    raised = AirflowSkipException if soft_fail else AirflowSensorTimeout
    table = Table.create(str(lake / "users"), SCHEMA)

    def sensor(**given: Any) -> TableVersionSensor:
        return TableVersionSensor(
            task_id="wait",
            txlog_conn_id="lake",
            timeout=0,
            soft_fail=soft_fail,
            data_changes_only=False,
            **{"table_uri": "users", **given},
        )

    found = "waited for a version of users with version=9, data_changes_only=False; "
    found += "its last successful look found version 1. "
    grow(table)
    waits = sensor(version=9)
    with pytest.raises(raised, match="Sensor has timed out; ") as caught:
        waits.execute({})  # type: ignore[typeddict-item]
    assert f"{found}`airflow txlog history users --conn-id lake` lists the versions." in str(caught.value)
    with pytest.raises(raised, match="last successful look found no table"):
        sensor(version=9, table_uri="nothing").execute({})  # type: ignore[typeddict-item]

    # After a wait in the triggerer, the process that fails has not looked at the table.
    with pytest.raises(raised) as caught:
        sensor(version=9, deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, {})  # type: ignore[typeddict-item]
    assert found in str(caught.value)


def test_the_text_of_a_skipped_wait_names_an_invalid_condition_and_no_value_of_a_partition(lake: Path) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    Table.create(str(lake / "users"), SCHEMA)

    def text_of(**given: Any) -> str:
        waits = TableVersionSensor(task_id="wait", timeout=0, never_fail=True, **given)
        for name, value in given.items():
            setattr(waits, name, value if value != "{{ x }}" else "seven")
        with pytest.raises(AirflowSkipException) as caught:
            waits.resume_execution("__fail__", {"error": "Trigger timeout"}, {})  # type: ignore[typeddict-item]
        return str(caught.value)

    invalid = text_of(table_uri=str(lake / "users"), version="{{ x }}")
    assert "condition is invalid (InvalidInput: version must be a version number; found 'seven'.)" in invalid
    assert "its last successful look found version 0." in invalid
    by_partition = text_of(table_uri=str(lake / "users"), partition={"person": "Ada", "day": "1"})
    assert "with partition of person, day; " in by_partition
    assert "Ada" not in by_partition
    by_name = text_of(table="sales.orders", catalog_conn_id="nowhere", version=9)
    assert "its last look failed (" in by_name
    assert "`airflow txlog history sales.orders --catalog-conn-id nowhere` lists" in by_name


def test_a_deferrable_sensor_fails_as_airflows_sensors_do(tmp_path: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred

    table = Table.create(str(tmp_path), SCHEMA)
    for _ in range(3):
        grow(table)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    given: dict[str, Any] = {"table_uri": str(tmp_path), "newer_than": 3, "deferrable": True}
    event = {"error": CorruptTable("the log is damaged").to_dict()}
    for never_fail, raised in ((False, CorruptTable), (True, AirflowSkipException)):
        waiting = sensor(**given, never_fail=never_fail)
        with pytest.raises(raised):
            waiting.execute({})  # type: ignore[arg-type]
        with pytest.raises(raised):
            waiting.execute_complete({}, event)  # type: ignore[arg-type]
    with pytest.raises(TaskDeferred):
        sensor(**given, silent_fail=True).execute({})  # type: ignore[arg-type]


def test_it_waits_for_a_change_at_or_after_a_time(memory_uri: str) -> None:
    table = Table.create(memory_uri, SCHEMA)
    grow(table)
    at_ms = table.snapshot().timestamp_ms
    changed = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    found = poked(table_uri=memory_uri, since=changed)
    assert (found["version"], found["timestamp_ms"]) == (1, at_ms)
    assert poked(table_uri=memory_uri, since=changed + dt.timedelta(milliseconds=1)) is False
    # A text without a zone is UTC, wherever the worker stands.
    assert poked(table_uri=memory_uri, since=changed.replace(tzinfo=None).isoformat())


def test_a_vacuum_wakes_it_only_where_it_is_asked_for(memory_uri: str) -> None:
    table = Table.create(memory_uri, SCHEMA)
    grow(table)
    table.vacuum()
    assert not poked(table_uri=memory_uri, newer_than=1)
    assert poked(table_uri=memory_uri, newer_than=1, data_changes_only=False)
    assert poked(table_uri=memory_uri, newer_than=1, operation="vacuum end")["operation"] == "VACUUM END"
    assert not poked(table_uri=memory_uri, newer_than=1, operation=["VACUUM END"], data_changes_only=True)


def test_it_waits_for_a_commit_of_a_dag_and_a_task(memory_uri: str) -> None:
    table = Table.create(memory_uri, SCHEMA)
    tx = table.begin()
    tx.add(path="a", partition_values={}, size=1)
    tx.commit("WRITE", tags={"airflow.dag_id": "load", "airflow.task_id": "orders"})
    assert poked(table_uri=memory_uri, committed_by_dag="load")
    assert poked(table_uri=memory_uri, committed_by_dag="load", committed_by_task="orders")
    assert not poked(table_uri=memory_uri, committed_by_dag="load", committed_by_task="customers")


def test_it_waits_for_a_partition_that_appears(memory_uri: str) -> None:
    table = Table.create(memory_uri, pa.schema([("id", pa.int64()), ("day", pa.date32())]), ["day"])
    waiting = sensor(table_uri=memory_uri, partition={"day": dt.date(2013, 1, 2)})
    assert not waiting.poke({}).is_done  # type: ignore[arg-type]
    for day, expected in (("2013-01-01", False), ("2013-01-02", True)):
        tx = table.begin()
        tx.add(path=day, partition_values={"day": day}, size=1)
        tx.commit("WRITE")
        assert waiting.poke({}).is_done is expected  # type: ignore[arg-type]
        assert bool(poked(table_uri=memory_uri, partition={"day": "2013-01-02"})) is expected


@pytest.mark.parametrize(
    "condition",
    [
        *({}, {"data_changes_only": False}, {"version": 1, "newer_than": 1}, {"since": "2013-01-01", "version": 1}),
        *({"version": "latest"}, {"version": True}, {"newer_than": "v1"}, {"newer_than": {}}, {"since": "yesterday"}),
        *({"operation": []}, {"operation": [1]}, {"committed_by_dag": ["a"]}, {"partition": {}}, {"partition": "a"}),
    ],
)
def test_a_condition_that_means_nothing_is_an_error(memory_uri: str, condition: dict[str, Any]) -> None:
    Table.create(memory_uri, SCHEMA)
    with pytest.raises(InvalidInput):
        poked(table_uri=memory_uri, **condition)


def test_a_date_of_a_partition_in_another_form_is_refused_and_not_waited_for(memory_uri: str) -> None:
    table = Table.create(memory_uri, pa.schema([("day", pa.date32()), ("id", pa.int64())]), partition_by=["day"])
    tx = table.begin()
    tx.add(path="a", partition_values={"day": "2024-01-31"}, size=1)
    tx.commit("WRITE")
    with pytest.raises(InvalidInput, match=r"no value of its type, date, written as YYYY-MM-DD\."):
        poked(table_uri=memory_uri, partition={"day": "31.01.2024"})


def test_an_operation_that_is_like_a_known_one_is_refused_and_any_other_is_waited_for(memory_uri: str) -> None:
    for text in ("MERG", ["WRITE", "merg"], "UPSERT", "upsert"):
        with pytest.raises(InvalidInput, match=r"which no known writer uses\. Did you mean 'MERGE'"):
            sensor(table_uri=memory_uri, operation=text)
    for text in ("merge", "LOAD BY HAND", "ADD COLUMN", "{{ params.operation }}"):
        assert sensor(table_uri=memory_uri, operation=text)


@pytest.mark.parametrize(
    "condition",
    [{"version": 9}, {"newer_than": 1}, {"since": "2199-01-01"}, {"operation": "MERGE"}, {"committed_by_dag": "other"}],
)
def test_every_poke_after_the_first_is_one_small_request(
    memory_uri: str, condition: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers.counting import CountingStore

    opened: list[CountingStore] = []

    def open_counting(uri: str, access: Access) -> CountingStore:
        opened.append(CountingStore(uri, access))
        return opened[-1]

    table = Table.create(memory_uri, SCHEMA)
    grow(table)
    monkeypatch.setitem(storage.STORES, "memory", open_counting)
    waiting = sensor(table_uri=memory_uri, **condition)
    assert not waiting.poke({}).is_done  # type: ignore[arg-type]
    opened[0].take()
    for _ in range(3):
        assert not waiting.poke({}).is_done  # type: ignore[arg-type]
        assert opened[0].take() == ["list _delta_log/00000000000000000001"]
    assert len(opened) == 1


def test_a_sensor_that_has_poked_can_be_copied(memory_uri: str) -> None:
    """Airflow copies a task deeply, when it takes a part of its DAG for one."""
    import copy

    Table.create(memory_uri, SCHEMA)
    waiting = sensor(table_uri=memory_uri, version=9)
    for one in (waiting, copy.deepcopy(waiting), copy.copy(waiting)):
        assert not one.poke({}).is_done  # type: ignore[arg-type]
    assert not copy.deepcopy(waiting).poke({}).is_done  # type: ignore[arg-type]


def test_a_hook_keeps_the_tables_that_it_opened(lake: Path) -> None:
    Table.create(str(lake / "users"), SCHEMA)
    hook = TxlogHook("lake")
    table = hook.open("users")
    assert hook.open("users") is hook.open(f"{lake}/users") is table
    assert hook.snapshot("users") is table.snapshot()


def test_a_log_with_a_gap_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), SCHEMA)
    for _ in range(3):
        grow(table)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(CorruptTable):
        poked(table_uri=str(tmp_path), version=9)


def test_the_sensor_needs_no_spark() -> None:
    import subprocess

    code = (
        "import sys\n"
        "from airflow_txlog.engine import Table\n"
        "from airflow_txlog.sensors.table_version import TableVersionSensor\n"
        "import pyarrow as pa\n"
        "Table.create('memory://x/t', pa.schema([('id', pa.int64())]))\n"
        "assert TableVersionSensor(task_id='a', table_uri='memory://x/t', version=0).poke({}).is_done\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_jobs_that_may_bring_rows_back_get_the_ledger_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = {"erasure_ledger": "erased", "erasure_key_conn_id": "keys", "erasure_on_return": "delete"}
    keys = {"conn_type": "generic", "password": "b" * 64, "extra": {"previous_secrets": '["' + "a" * 64 + '"]'}}
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps(keys))

    def spec_of(operation: type[Any], extra: dict[str, str], **arguments: Any) -> JobSpec:
        connection = {"conn_type": "txlog", "host": "/lake", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        operator: Any = operation(task_id="x", table_uri="t", txlog_conn_id="lake", **arguments)
        spec: JobSpec = operator.job_spec({})
        return spec

    found = spec_of(DeltaRestoreOperator, ledger, version=1)
    assert (found.ledger_uri, found.leaves_out_erased) == ("/lake/erased", True)
    assert found.ledger_keys == ("a" * 64, "b" * 64)
    # Other jobs do not even read the connection of the key.
    monkeypatch.delenv("AIRFLOW_CONN_KEYS")
    found = spec_of(CheckpointOperator, ledger)
    assert (found.ledger_uri, found.ledger_keys) == (None, ())
    with pytest.raises(InvalidJobSpec, match="erasure_key_conn_id"):
        spec_of(DeltaRestoreOperator, {"erasure_ledger": "erased"}, version=1)
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps(keys))
    with pytest.raises(InvalidJobSpec, match="erasure_on_return"):
        spec_of(DeltaRestoreOperator, {**ledger, "erasure_on_return": "maybe"}, version=1)
