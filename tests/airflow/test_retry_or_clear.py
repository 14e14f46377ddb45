"""A retry and a clear, and two deployments, are distinguished: tasks of a real Airflow, its API and its database.

`dag.test()` begins a run; `go_on` repeats its loop for a run that is there, as the scheduler does after a clear.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.transactions import recorded_version
from tests.airflow.appending import DEATHS, append_a_file
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.airflow

DagOf = Callable[[str, str], Any]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table.create(str(tmp_path / "events"), pa.schema([("id", pa.int64())]))
    monkeypatch.setenv("TXLOG_TEST_TABLE", made.uri)
    DEATHS.clear()
    # The configuration that every deployment starts with.
    monkeypatch.delenv("AIRFLOW__TXLOG__DEPLOYMENT_ID")
    return made


class Task:
    """The one task of the DAG "identities", in one run."""

    def __init__(self, dag_of: DagOf, table: Table) -> None:
        self._dag_of = dag_of
        self._table = table
        self.dag_run: Any = None

    def dies(self, when: str, then: Callable[[], object] = lambda: None) -> None:
        """Let the next try die `before` or `after` its commit, and `then` happen before it is retried."""
        DEATHS.append((when, then))

    def start(self) -> None:
        self.dag_run = self._dag_of("identities", "identities").test()

    def clear(self, retries: int) -> None:
        """Edit the DAG's `retries`, then clear the task as the API does."""
        from airflow.dag_processing.bundles.manager import DagBundlesManager
        from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session

        os.environ["TXLOG_TEST_RETRIES"] = str(retries)
        (bundle,) = DagBundlesManager().get_all_dag_bundles()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        sync_bag_to_db(bag, bundle.name, None)
        with create_session() as session:
            dag_run = session.get(DagRun, self.dag_run.id)
            clear_task_instances(dag_run.get_task_instances(session=session), session, run_on_latest_version=True)
            dag_run.set_state("running")
        self.go_on()

    def go_on(self) -> None:
        """Run what is to be run in the run, as the loop of `dag.test()` does."""
        from airflow.models.dagbag import DBDagBag
        from airflow.models.dagrun import DagRun
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session
        from airflow.utils.state import TaskInstanceState

        dag = self._dag_of("identities", "identities")
        for _ in range(10):
            with create_session() as session:
                dag_run = session.get(DagRun, self.dag_run.id)
                dag_run.dag = DBDagBag().get_latest_version_of_dag(dag_run.dag_id, session=session)
                schedulable, _ = dag_run.update_state(session=session)
                for ti in schedulable:
                    ti.try_number += 1
                    ti.state = TaskInstanceState.SCHEDULED
                session.commit()
                if dag_run.state != "running":
                    return
                scheduled = [ti for ti in dag_run.get_task_instances(session=session) if ti.state == "scheduled"]
                session.expunge_all()
            for ti in scheduled:
                _run_task(ti=ti, task=dag.task_dict[ti.task_id])
        raise AssertionError("the run does not end")

    def ti(self) -> Any:
        (found,) = self.dag_run.get_task_instances()
        return found

    def status(self) -> str:
        """What the last try reported."""
        return str(self.ti().xcom_pull(task_ids="load")["status"])

    def loads(self) -> int:
        """How often the work was done."""
        return int(self._table.snapshot().num_files)


def lose_the_state() -> None:
    """Delete what tasks keep in Airflow's task state store."""
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.utils.session import create_session

    with create_session() as session:
        assert session.query(TaskStateStoreModel).delete() > 0


@pytest.fixture
def task(dag_of: DagOf, table: Table, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv("TXLOG_TEST_RETRIES", "3")
    # An edited DAG is taken at once, and not half a minute after the last edit.
    monkeypatch.setenv("AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL", "0")
    return Task(dag_of, table)


def test_a_cleared_task_does_its_work_again_whatever_its_max_tries(task: Task) -> None:
    """One try and retries edited from 3 to 2: Airflow sets max_tries to 1 + 2, which is what it was."""
    task.start()
    before = task.ti()
    task.clear(retries=2)
    assert (before.max_tries, task.ti().max_tries, task.ti().try_number) == (3, 3, 2)
    assert (task.status(), task.loads()) == ("committed", 2)


def test_a_retry_of_a_cleared_task_is_a_retry(task: Task) -> None:
    task.start()
    task.dies("after")
    task.clear(retries=2)
    assert (task.ti().try_number, task.status(), task.loads()) == (3, "already_done", 2)


def test_a_retry_after_the_commit_does_nothing_again(task: Task) -> None:
    task.dies("after")
    task.start()
    assert (task.ti().try_number, task.status(), task.loads()) == (2, "already_done", 1)


def test_a_retry_whose_kept_number_was_lost_finds_its_commit(task: Task) -> None:
    task.dies("after", then=lose_the_state)
    task.start()
    assert (task.ti().try_number, task.status(), task.loads()) == (2, "already_done", 1)


def test_a_retry_whose_kept_number_was_lost_before_any_commit_does_the_work(task: Task) -> None:
    task.dies("before", then=lose_the_state)
    task.start()
    assert (task.ti().try_number, task.status(), task.loads()) == (2, "committed", 1)


def test_another_deployment_with_the_same_ids_does_not_do_our_work(task: Task, table: Table) -> None:
    """Production dies before its commit, staging commits under the same DAG, task and run, production is retried."""
    task.dies("before", then=lambda: staging_does_it(table))
    task.start()
    assert (task.ti().try_number, task.status(), task.loads()) == (2, "committed", 2)


def staging_does_it(table: Table) -> None:
    """The same task of the same run of another Airflow: its ids are equal, its database is its own."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    from airflow_txlog.hooks.identity import annotations_of, application_transaction
    from tests.airflow.test_identity import StateStore

    with create_session() as session:
        ti = session.query(TaskInstance).filter_by(dag_id="identities", state="running").one()
        dag_run = ti.dag_run
        session.expunge_all()
    ti.id = uuid.uuid4()
    context = {"ti": ti, "dag_run": dag_run, "task_state_store": StateStore()}
    application = application_transaction(context, lambda app_id: recorded_version(table, app_id))
    spec = job_spec(operation="truncate", table_uri=table.uri, application=application)
    append_a_file(spec.replace(annotations=annotations_of(context)))
