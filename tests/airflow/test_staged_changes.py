"""Staged changes in real DAG runs: published once the checks pass, discarded else, and never seen in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import handles_of
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobError, TxlogError
from airflow_txlog.operators import (
    DeltaAuditOperator,
    DeltaCloneOperator,
    DeltaDiscardOperator,
    DeltaPublishOperator,
    DeltaTruncateOperator,
    DeltaUpsertOperator,
    DeltaWriteOperator,
    query,
    sources,
    write_audit_publish,
)
from airflow_txlog.runners import run_unless_done
from tests.helpers.jobs import KEY, by_id, files_on_disk, ids, rows
from tests.helpers.rows import append, make_table
from tests.helpers.staged import stage

pytestmark = pytest.mark.airflow

ParseDag = Callable[[str, str], Any]
HANDLE: dict[str, Any] = {
    "table_uri": "/t",
    "id": "0" * 32,
    "digest": "1" * 64,
    "operation": "write",
    "app_id": "a",
    "app_version": 1,
    "staged_ms": 1,
    "base_version": 0,
}
NOTHING = {"status": "nothing_to_do"}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Table, Table]:
    """The tables of the DAG."""
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(tmp_path / "t"))
    monkeypatch.setenv("TXLOG_TEST_OTHER", str(tmp_path / "other"))
    return make_table(tmp_path / "t", rows(10)), make_table(tmp_path / "other", rows(3))


def run(dag_of: ParseDag) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Run the DAG; its state, and the states and XComs of its tasks by the last part of their ids."""
    done = dag_of("staged_changes", "publish_after_checks").test()
    found = {ti.task_id: ti for ti in done.get_task_instances()}
    states = {name.split(".")[-1]: ti.state for name, ti in found.items()}
    return done.state, states, {name.split(".")[-1]: ti.xcom_pull(task_ids=name) for name, ti in found.items()}


def test_what_passes_its_checks_is_published(tables: tuple[Table, Table], dag_of: ParseDag) -> None:
    state, states, xcoms = run(dag_of)
    assert (state, set(states.values())) == ("success", {"success"})
    orders, other = tables
    assert (xcoms["change"]["status"], xcoms["change"]["version"]) == ("staged", None)
    changes = xcoms["publish"]["changes"]
    assert [(each["operation"], each["status"], each["version"]) for each in changes] == [
        ("update", "committed", 2),
        ("truncate", "committed", 2),
    ]
    assert ([id for id, name in by_id(orders).items() if name == "x"], ids(other)) == ([0, 1, 2, 3, 4], [])
    (commit,) = orders.history(1)
    assert commit["tags"]["airflow.task_id"] == "change"
    assert not any("txlog-inputs" in path for each in tables for path in files_on_disk(each))


@pytest.mark.parametrize(
    ("variable", "value", "expected", "left"),
    [
        ("TXLOG_TEST_VERDICT", "Reject", "success", {"approve": "success", "publish": "skipped"}),
        ("TXLOG_TEST_OTHER", "/nowhere", "failed", {"empty": "failed", "publish": "upstream_failed"}),
        *(
            pytest.param(*each, marks=pytest.mark.long("another reason to skip the publication"))
            for each in (
                ("TXLOG_TEST_VERDICT", "none", "failed", {"approve": "failed", "publish": "upstream_failed"}),
                ("TXLOG_TEST_FOUND", "6", "failed", {"audit": "failed", "publish": "upstream_failed"}),
            )
        ),
    ],
)
def test_what_is_refused_or_wrong_is_discarded(
    variable: str,
    value: str,
    expected: str,
    left: dict[str, str],
    tables: tuple[Table, Table],
    dag_of: ParseDag,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [(files_on_disk(each), each.snapshot().version) for each in tables]
    monkeypatch.setenv(variable, value)
    state, states, _ = run(dag_of)
    assert (state, {name: states[name] for name in left}, states["discard"]) == (expected, left, "success")
    assert [(files_on_disk(each), each.snapshot().version) for each in tables] == before


def test_a_retry_of_a_publication_of_several_publishes_what_is_left(
    tables: tuple[Table, Table], airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Outside of a task there is no Variable with the secret.
    monkeypatch.setattr("airflow_txlog.operators.publish.saved_work_key", lambda work: KEY)
    handles = [stage("truncate", table) for table in tables]
    publish = DeltaPublishOperator(
        task_id="p", staged=handles, runner="in_process", outlets=[Asset("one"), Asset("two")]
    )
    events = {outlet: SimpleNamespace(extra={}) for outlet in publish.outlets}
    begun: list[str] = []

    def killed_at_the_second(runner: Any, spec: Any, **more: Any) -> Any:
        begun.append(spec.table_uri)
        if len(begun) == 2:
            raise JobError("the worker is gone", retryable=True)
        return run_unless_done(runner, spec, **more)

    monkeypatch.setattr("airflow_txlog.operators.many_jobs.run_unless_done", killed_at_the_second)
    with pytest.raises(JobError):
        publish.execute({"outlet_events": events})
    assert ([ids(table) for table in tables], [event.extra for event in events.values()]) == ([[], [0, 1, 2]], [{}, {}])
    done = publish.execute({"outlet_events": events})["changes"]
    assert [(each["operation"], each["status"], each["version"]) for each in done] == [
        ("truncate", "already_done", 2),
        ("truncate", "committed", 2),
    ]
    assert [ids(table) for table in tables] == [[], []]
    assert {event.extra["version"] for event in events.values()} == {2}
    discard = DeltaDiscardOperator(task_id="d", staged=handles, runner="in_process")
    assert [each["status"] for each in discard.execute({})["changes"]] == ["nothing_to_do"] * 2


def test_a_later_change_that_fails_for_good_leaves_no_event_until_all_are_published(
    tables: tuple[Table, Table], airflow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_txlog.operators.publish.saved_work_key", lambda work: KEY)
    first, second = (stage("truncate", table) for table in tables)
    append(tables[1], rows(1, start=500))
    outlets = [Asset("one", tables[0].uri), Asset("two", tables[1].uri)]
    events = {outlet: SimpleNamespace(extra={}) for outlet in outlets}

    def publish(*staged: Any) -> Any:
        operator = DeltaPublishOperator(task_id="p", staged=list(staged), runner="in_process", outlets=outlets)
        return operator.execute({"outlet_events": events})["changes"]

    for _ in range(2):
        with pytest.raises(TxlogError, match="version 2"):
            publish(first, second)
        assert ([table.snapshot().version for table in tables], ids(tables[0])) == ([2, 2], [])
        assert [event.extra for event in events.values()] == [{}, {}]
    done = publish(first, stage("truncate", tables[1]))
    assert [(each["status"], each["version"]) for each in done] == [("already_done", 2), ("committed", 3)]
    assert [event.extra["version"] for event in events.values()] == [2, 3]


def test_the_outputs_of_tasks_and_handles_are_understood() -> None:
    handle = HANDLE
    staged = {"status": "staged", "staged": handle}
    assert handles_of("staged", [staged, handle, {"status": "nothing_to_do"}]) == [handle, handle]
    assert handles_of("staged", staged) == [handle]
    assert handles_of("staged", [[staged, staged], handle]) == [handle] * 3
    for wrong in (
        "x",
        1,
        None,
        ["x"],
        [{"status": "committed"}],
        [{**handle, "id": "../x"}],
        [{**handle, "app_id": 1}],
    ):
        with pytest.raises(InvalidJobSpec, match="staged"):
            handles_of("staged", wrong)
    two = sources.table("/t", staged=[staged, handle])
    with pytest.raises(InvalidJobSpec, match="2 of them"):
        DeltaWriteOperator(task_id="w", table_uri="/c", source=two).job_arguments()


def test_the_arguments_of_every_operator_reach_the_jobs_on_staged_changes() -> None:
    arguments = {
        "staged": [HANDLE],
        "checks": {"any": {"check_statement": "COUNT(*) > :least"}},
        "spark_conf": {"spark.sql.shuffle.partitions": "3"},
        "unrestricted": "query",
        "runner": "in_process",
    }
    spec = DeltaAuditOperator(task_id="a", **arguments, parameters={"least": 1})._spec_of({}, HANDLE)
    assert spec.spark_conf["spark.sql.shuffle.partitions"] == "3"
    assert "query" in spec.unrestricted
    assert spec.operation.app_id == HANDLE["app_id"]
    with pytest.raises(InvalidJobSpec, match="least"):
        DeltaAuditOperator(task_id="a", **arguments, parameters={"most": 1})
    publish = DeltaPublishOperator(task_id="p", staged=[HANDLE], on_change="reaudit")
    assert publish._spec_of({}, HANDLE).operation.needs_spark
    assert not DeltaPublishOperator(task_id="p", staged=[HANDLE])._spec_of({}, HANDLE).operation.needs_spark


def test_a_publication_knows_the_audits_of_each_change() -> None:
    with DAG("d", schedule=None):
        one, two = (DeltaTruncateOperator(task_id=name, table_uri="/t", publish=False) for name in ("one", "two"))
        audits = [
            DeltaAuditOperator(task_id="both", staged=[one.output, two.output], no_rows={"n": "SELECT 1"}),
            DeltaAuditOperator(task_id="second", staged=two.output, no_rows={"n": "SELECT 1"}),
            DeltaAuditOperator(task_id="any", staged="{{ ti.xcom_pull('one') }}", no_rows={"n": "SELECT 1"}),
        ]
        publish = write_audit_publish([one, two], audits, on_change="reaudit").children["publish_staged.publish"]
    for task_id, found in (
        ("one", ("any", "both")),
        ("two", ("any", "both", "second")),
        (None, ("any", "both", "second")),
    ):
        operation = publish._spec_of({}, {**HANDLE, "task_id": task_id}).operation
        assert operation.audited_by == found
    with pytest.raises(InvalidJobSpec, match="audited_by"):
        DeltaPublishOperator(task_id="p", staged=[HANDLE], audited_by={"one": ["both"]})


def test_the_event_of_a_publication_has_no_partitions_of_a_sensitive_task(
    memory_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Table.create(memory_uri, pa.schema([("id", pa.int64()), ("name", pa.string())]), ["name"])
    append(orders, [{"id": 1, "name": "secret"}])
    asset = Asset("orders")
    done = JobResult(status="committed", operation="publish", table_uri=orders.uri, version=1, read_version=0)
    monkeypatch.setattr(DeltaPublishOperator, "_run", lambda *_: done)
    for is_sensitive in (True, False):
        operator = DeltaPublishOperator(task_id="p", staged=[{**HANDLE, "sensitive": is_sensitive}], outlets=[asset])
        events = OutletEventAccessors()
        operator.execute({"outlet_events": events})
        assert ("secret" in str(events[asset].extra)) == (not is_sensitive)


def test_operators_refuse_what_cannot_be_staged_changes_when_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidJobSpec, match="staged"):
        DeltaPublishOperator(task_id="p", staged=[])
    with pytest.raises(InvalidJobSpec, match="deferrable"):
        DeltaPublishOperator(task_id="p", staged="{{ v }}", deferrable=True)
    with pytest.raises(InvalidJobSpec, match="on_change"):
        DeltaPublishOperator(task_id="p", staged=[HANDLE], on_change="ignore")
    truncate = DeltaTruncateOperator(task_id="t", table_uri="/t", publish=False)
    for audits in ([], [DeltaTruncateOperator(task_id="u", table_uri="/u")]):
        with pytest.raises(InvalidJobSpec, match="DeltaAuditOperator"):
            write_audit_publish(truncate, audits, on_change="reaudit")
    with pytest.raises(InvalidJobSpec, match="publish=False"):
        write_audit_publish(DeltaTruncateOperator(task_id="t", table_uri="/t"), [])


def test_the_publication_runs_on_the_cluster_of_the_task_that_staged_the_change() -> None:
    cluster = {"runner": "connect", "spark_conn_id": "spark"}
    with DAG("d", schedule=None):
        write = DeltaTruncateOperator(task_id="t", table_uri="/t", publish=False, **cluster)
        audit = DeltaAuditOperator(task_id="a", staged=[HANDLE], no_rows={"n": "SELECT 1"}, **cluster)
        group = write_audit_publish(write, audit, on_change="reaudit")
    for task in group.children.values():
        assert task.spark_conn_id == "spark"


@pytest.mark.parametrize(("output", "staged"), [(HANDLE, True), ({"staged": HANDLE}, True), (NOTHING, False)])
def test_the_output_of_a_task_makes_its_change_a_source(output: dict[str, Any], staged: bool) -> None:
    expected = {part: HANDLE[part] for part in ("id", "digest")} if staged else None
    source = sources.table("/t", staged=output)
    upsert = DeltaUpsertOperator(task_id="u", table_uri="/u", keys=["id"], source=source)
    write = DeltaWriteOperator(task_id="w", table_uri="/u", source=query("SELECT * FROM a", a=source))
    clone = DeltaCloneOperator(task_id="c", table_uri="/u", source=source, shallow=True)
    found = [upsert.job_arguments()["source"], write.job_arguments()["source"]["views"]["a"]]
    assert [each["staged"] for each in [*found, clone.job_arguments()["source"]]] == [expected] * 3
    if staged:
        with pytest.raises(InvalidJobSpec, match="version"):
            DeltaCloneOperator(task_id="c", table_uri="/u", source=sources.table("/t", 3, staged=output))
