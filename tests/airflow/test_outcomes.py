"""How tasks end, in real runs by `dag.test()` with real Spark jobs: retried, failed at once, done exactly once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import files_on_disk
from tests.helpers.rows import make_table

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("spark")]

RunDag = Callable[[str], tuple[Any, list[Any]]]


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A hundred users in one file, at version 1."""
    rows = pa.table({"user_id": pa.array(range(100), pa.int64())})
    table = make_table(tmp_path / "users", rows)
    monkeypatch.setenv("TXLOG_TEST_TABLE", table.uri)
    monkeypatch.setenv("TXLOG_TEST_DEATHS", str(tmp_path / "died"))
    return table


@pytest.fixture
def run(dag_of: Callable[[str, str], Any]) -> RunDag:
    """Runs a DAG of `dags/outcomes.py`: the DagRun, and its task instances by map index."""

    def run_dag(dag_id: str) -> tuple[Any, list[Any]]:
        dag_run = dag_of("outcomes", dag_id).test()
        return dag_run, sorted(dag_run.get_task_instances(), key=lambda ti: ti.map_index)

    return run_dag


def ids(table: Table) -> list[int]:
    return sorted(table.to_arrow()["user_id"].to_pylist())


def without(*gone: int) -> list[int]:
    return [user for user in range(100) if user not in gone]


def xcom_of(ti: Any) -> Any:
    return ti.xcom_pull(task_ids=ti.task_id)


def test_a_retryable_conflict_is_retried_and_the_asset_event_and_the_xcom_carry_the_version(
    users: Table, run: RunDag
) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    dag_run, (ti,) = run("conflict")
    assert (dag_run.state, ti.state, ti.try_number, ti.max_tries) == ("success", "success", 2, 5)
    assert ids(users) == without(7, 42)
    operations = [(commit["version"], commit["operation"]) for commit in users.history()]
    assert operations[:2] == [(3, "DELETE"), (2, "DELETE")]
    with create_session() as session:
        event = session.query(AssetEvent).filter_by(source_run_id=dag_run.run_id, source_dag_id="conflict").one()
    xcom = xcom_of(ti)
    assert (xcom["status"], xcom["operation"], xcom["read_version"], xcom["version"]) == ("committed", "delete", 2, 3)
    assert xcom["metrics"]["numDeletedRows"] == 1
    assert xcom["files"]["rewritten"] == 1
    assert (event.extra["version"], event.extra["operation"], event.extra["status"]) == (3, "delete", "committed")


def test_a_conflict_that_the_job_wins_itself_costs_no_try_and_the_commit_names_its_task(
    users: Table, run: RunDag
) -> None:
    dag_run, (ti,) = run("conflict_won_by_the_job")
    assert (ti.state, ti.try_number) == ("success", 1)
    # It was planned again on what the rival left at version 2.
    assert (xcom_of(ti)["read_version"], xcom_of(ti)["version"]) == (2, 3)
    met = xcom_of(ti)["met"]
    assert (met["total"], met["last"][0]["version"], met["last"][0]["how"]) == (1, 2, "redone")
    assert users.history(1)[0]["met"] == met
    assert ids(users) == without(7, 42)
    tags = users.history(1)[0]["tags"]
    found = {name: tags[f"airflow.{name}"] for name in ("dag_id", "task_id", "run_id", "map_index", "try_number")}
    assert found == {
        "dag_id": "conflict_won_by_the_job",
        "task_id": "forget",
        "run_id": dag_run.run_id,
        "map_index": "-1",
        "try_number": "1",
    }


def test_a_non_retryable_error_fails_on_try_1_of_6(users: Table, run: RunDag) -> None:
    dag_run, (ti,) = run("wrong_input")
    assert (dag_run.state, ti.state, ti.try_number, ti.max_tries) == ("failed", "failed", 1, 5)
    assert users.snapshot().version == 1
    assert ids(users) == without()


def test_a_delete_of_more_rows_than_its_limit_fails_on_try_1_of_6_and_leaves_no_file(
    users: Table, run: RunDag, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    before = files_on_disk(users)
    dag_run, (ti,) = run("too_many_rows")
    assert (dag_run.state, ti.state, ti.try_number, ti.max_tries) == ("failed", "failed", 1, 5)
    assert (users.snapshot().version, files_on_disk(users)) == (1, before)
    told = "51 of the 100 rows in its scope (51 %), and max_deleted_fraction allows 50 %"
    assert told in caplog.text + "".join(capfd.readouterr())


def test_every_index_of_a_mapped_task_is_judged_by_itself(users: Table, run: RunDag) -> None:
    _, tis = run("wrong_input_of_one_index")
    assert [(ti.map_index, ti.state, ti.try_number) for ti in tis] == [(0, "success", 1), (1, "failed", 1)]
    assert ids(users) == without(1)


def test_a_task_that_dies_after_its_commit_and_is_retried_changes_the_table_once(users: Table, run: RunDag) -> None:
    _, (ti,) = run("death_after_the_commit")
    assert (ti.state, ti.try_number) == ("success", 2)
    assert users.snapshot().version == 2
    assert ids(users) == without(42)
    xcom = xcom_of(ti)
    assert (xcom["status"], xcom["version"], xcom["metrics"]["numDeletedRows"]) == ("already_done", 2, 1)


def test_a_sensor_waits_for_the_table_and_tells_its_version(users: Table, run: RunDag) -> None:
    dag_run, tis = run("wait_and_forget")
    by_id = {ti.task_id: ti for ti in tis}
    assert dag_run.state == "success"
    assert xcom_of(by_id["wait"])["version"] == 1
    assert xcom_of(by_id["forget"])["version"] == 2
