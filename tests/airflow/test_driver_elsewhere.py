"""Operators whose job's driver runs on a cluster: they wait in the triggerer, and every try finds the same job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobLost
from airflow_txlog.operators.base import TxlogOperator, _forget_saved_work
from airflow_txlog.operators.delete import DeltaDeleteOperator
from airflow_txlog.operators.maintenance.optimize import DeltaOptimizeOperator
from airflow_txlog.runners.base import SparkSubmit
from airflow_txlog.triggers.submitted_job import SubmittedJobTrigger
from tests.airflow.test_identity import StateStore, Try
from tests.helpers.driver_elsewhere import PlayedCluster
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow

SECRET = "5e" * 32


@pytest.fixture
def users(tmp_path: Path) -> Table:
    return make_table(tmp_path / "users", pa.table({"user_id": pa.array(range(9), pa.int64())}))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    """The cluster of the connection `cluster`, and a deployment that has its secret."""
    from airflow_txlog.hooks import spark_connection, work_key
    from airflow_txlog.hooks.txlog import TxlogHook

    played = PlayedCluster(tmp_path / "cluster")
    monkeypatch.setattr(work_key, "Variable", SimpleNamespace(get=lambda key, default=None: SECRET))
    monkeypatch.setattr(TxlogHook, "make_runner", lambda hook, name: played.runner())

    def open_connection(runner: str, conn_id: str) -> SparkSubmit:
        assert (runner, conn_id) == ("submit", "cluster")
        return SparkSubmit(master="local[2]", command=(), applications=played)

    monkeypatch.setattr(spark_connection, "open_spark_connection", open_connection)
    yield played
    played.end()


def delete(users: Table, **given: Any) -> DeltaDeleteOperator:
    return DeltaDeleteOperator(
        **{
            "task_id": "forget",
            "table_uri": users.uri,
            "predicate": "pmod(user_id, 1000) = 42",
            "runner": "submit",
            "spark_conn_id": "cluster",
            **given,
        }
    )


class Task:
    """A task instance: its tries share a state store."""

    def __init__(self) -> None:
        self.store = StateStore()
        self.ti = SimpleNamespace(**Try().__dict__, id="0192")

    def context(self) -> Any:
        return {"ti": self.ti, "task_state_store": self.store, "dag_run": SimpleNamespace(start_date=None)}

    def retried(self) -> Any:
        self.ti.try_number += 1
        return self.context()

    def cleared(self) -> Any:
        self.ti.max_tries = self.ti.try_number + 2
        return self.retried()


def deferred(operator: TxlogOperator, context: Any) -> tuple[SubmittedJobTrigger, Any]:
    """The trigger that the task defers to, made anew from what Airflow keeps of it, and the deferral."""
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as caught:
        operator.execute(context)
    path, arguments = caught.value.trigger.serialize()
    assert path == "airflow_txlog.triggers.submitted_job.SubmittedJobTrigger"
    return SubmittedJobTrigger(**{**json.loads(json.dumps(arguments)), "poll_s": 0.01}), caught.value


def event_of(trigger: SubmittedJobTrigger) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload
        raise AssertionError("it ended without an event")

    return asyncio.run(asyncio.wait_for(first(), 120))


@pytest.mark.parametrize("make", [delete, lambda users, **given: optimize(users, **given)], ids=["delete", "optimize"])
def test_a_deferrable_task_waits_in_the_triggerer_and_goes_on_with_the_result(
    cluster: PlayedCluster, users: Table, make: Any
) -> None:
    task = Task()
    cluster.hold("commit")
    trigger, deferral = deferred(make(users, deferrable=True, execution_timeout=timedelta(hours=1)), task.context())
    assert deferral.timeout == timedelta(hours=1)
    kept = json.dumps(trigger.serialize())
    assert SECRET not in kept
    assert users.uri not in kept
    cluster.go_on()
    event = event_of(trigger)
    assert "has ended: ended" in event["text"]
    xcom = make(users, deferrable=True).resume_execution(deferral.method_name, {"event": event}, task.context())
    assert (xcom["status"], xcom["version"]) == ("committed", 2)
    assert len(cluster.homes()) == 1


def optimize(users: Table, **given: Any) -> DeltaOptimizeOperator:
    # A scope that Spark has to judge: else the job would first be tried without.
    given["partition_predicate"] = "pmod(day, 7) >= 0"
    return DeltaOptimizeOperator(
        task_id="compact", table_uri=users.uri, runner="submit", spark_conn_id="cluster", **given
    )


@pytest.mark.long("a DAG run of Airflow's own, for what the tests beside this one show of the operator")
def test_a_deferrable_task_succeeds_in_a_real_dag_run(
    cluster: PlayedCluster, users: Table, monkeypatch: pytest.MonkeyPatch, dag_of: Any
) -> None:
    monkeypatch.setenv("TXLOG_TEST_TABLE", users.uri)
    monkeypatch.setitem(SubmittedJobTrigger.__init__.__kwdefaults__, "poll_s", 0.1)
    events: list[Any] = []
    resume = TxlogOperator.resume
    monkeypatch.setattr(
        TxlogOperator, "resume", lambda self, context, event: events.append(event) or resume(self, context, event)
    )
    run = dag_of("driver_elsewhere", "driver_elsewhere").test()
    assert run.state == "success"
    (ti,) = run.get_task_instances()
    assert ti.xcom_pull(task_ids="forget")["version"] == 2
    assert len(events) == 1
    assert len(cluster.homes()) == 1


def test_a_task_that_goes_on_before_its_job_has_ended_waits_again(cluster: PlayedCluster, users: Table) -> None:
    task, operator = Task(), delete(users, deferrable=True)
    cluster.hold("commit")
    deferred(operator, task.context())
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred):
        operator.resume(task.context(), {"text": "no answer"})
    deferred(delete(users, deferrable=True), task.retried())
    assert len(cluster.homes()) == 1


def test_the_trigger_cancels_the_job_when_a_person_ends_the_task(cluster: PlayedCluster, users: Table) -> None:
    task = Task()
    cluster.hold("commit")
    trigger, _ = deferred(delete(users, deferrable=True), task.context())
    asyncio.run(trigger.on_kill())
    assert not cluster.runs(*cluster.homes())
    with pytest.raises(JobLost, match="left no result"):
        delete(users, deferrable=True).resume(task.context(), event_of(trigger))


def test_a_wait_that_takes_too_long_cancels_the_job(
    cluster: PlayedCluster, users: Table, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.sdk.exceptions import TaskDeferralTimeout

    task = Task()
    cluster.hold("commit")
    deferred(delete(users, deferrable=True), task.context())
    with pytest.raises(TaskDeferralTimeout):
        delete(users, deferrable=True).resume_execution("__fail__", {"error": "Trigger timeout"}, task.context())
    assert not cluster.runs(*cluster.homes())


def test_the_triggerer_goes_on_asking_a_cluster_that_does_not_answer(cluster: PlayedCluster, users: Table) -> None:
    cluster.hold("commit")
    trigger, _ = deferred(delete(users, deferrable=True), Task().context())
    cluster.is_silent = True
    trigger.unanswered_polls = 3
    event = event_of(trigger)
    assert event == {"text": f"no answer about {trigger.name} (OSError)"}


def test_the_event_loop_goes_on_while_the_cluster_answers_slowly(cluster: PlayedCluster, users: Table) -> None:
    import threading

    asked, answer = threading.Event(), threading.Event()

    class Slow(PlayedCluster):
        def look(self, name: str) -> Any:
            asked.set()
            assert answer.wait(120)
            return super().look(name)

    cluster.__class__ = Slow

    async def both() -> None:
        waiting = asyncio.ensure_future(anext(SubmittedJobTrigger(spark_conn_id="cluster", name="none").run()))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        answer.set()
        await waiting

    asyncio.run(asyncio.wait_for(both(), 120))


@pytest.mark.parametrize("runner", ["child", "warm", "connect", "in_process"])
def test_a_runner_whose_job_ends_with_its_task_is_not_deferrable(users: Table, runner: str) -> None:
    with pytest.raises(InvalidJobSpec, match=f"The runner is {runner}, whose job ends with its task") as caught:
        delete(users, deferrable=True, runner=runner, spark_conn_id=None)
    assert caught.value.argument == "deferrable"


def test_client_mode_is_not_deferrable(users: Table, cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_txlog.hooks.txlog import TxlogHook
    from airflow_txlog.runners.submit import SubmitRunner

    client = SubmitRunner(SparkSubmit(master="yarn", command=()))
    monkeypatch.setattr(TxlogHook, "make_runner", lambda hook, name: client)
    with pytest.raises(InvalidJobSpec, match="deferrable=True waits in the triggerer"):
        delete(users, deferrable=True).execute(Task().context())


# --- tries and clears -------------------------------------------------------------------------------------------------


def lost_with_its_worker(operator: TxlogOperator, context: Any) -> None:
    """A try that submits its job, and of which nothing is left."""
    operator.deferrable = True
    deferred(operator, context)


def test_a_retry_waits_for_the_job_of_the_try_before(cluster: PlayedCluster, users: Table) -> None:
    task = Task()
    lost_with_its_worker(delete(users), task.context())
    assert delete(users).execute(task.retried())["status"] in ("committed", "already_done")
    assert len(cluster.homes()) == 1
    assert users.latest_version() == 2


def test_a_cleared_task_cancels_what_still_runs_and_does_its_work_anew(cluster: PlayedCluster, users: Table) -> None:
    task = Task()
    cluster.hold("commit")
    lost_with_its_worker(delete(users), task.context())
    # Another table's number is not the first, as it is where the task had committed before.
    task.store.values["txlog.transaction"]["succeeded"] = True
    (first,) = cluster.homes()
    operator = delete(users)
    context = task.cleared()
    assert operator.application(context, users.uri) is not None
    task.store.values["txlog.transaction"]["version"] = 2
    lost_with_its_worker(operator, context)
    assert not cluster.runs(first)
    assert len(cluster.homes()) == 2
    cluster.go_on()
    assert delete(users).execute(task.retried())["status"] in ("committed", "already_done")
    assert users.latest_version() == 2


def test_a_task_that_fails_for_good_leaves_no_job_that_runs(cluster: PlayedCluster, users: Table) -> None:
    cluster.hold("commit")
    operator = delete(users)
    lost_with_its_worker(operator, Task().context())
    _forget_saved_work({"task": operator})
    assert not cluster.runs(*cluster.homes())
    assert not list(Path(users.uri.removeprefix("file://")).glob("txlog-inputs-*"))
