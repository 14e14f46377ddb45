"""The helpers for tests of DAG authors do what their page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog import operators
from airflow_txlog.errors import CommitConflict, TxlogError
from airflow_txlog.operators import (
    DeltaDeleteOperator,
    DeltaUpdateOperator,
    DeltaUpsertOperator,
    DeltaWriteOperator,
    table,
)
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.testing import Lake
from tests.helpers.paths import ROOT
from tests.test_docs import airflow_environment

PAGE = ROOT / "docs" / "testing.md"

USERS = [{"id": 1, "name": "ann"}, {"id": 2, "name": "joe"}]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_an_operator_runs_on_a_table_with_rendered_templates_and_returns_its_xcom(lake: Lake) -> None:
    users = lake.table("users", USERS)
    delete = DeltaDeleteOperator(
        task_id="forget", table_uri=users.uri, predicate="id = :id", parameters={"id": "{{ params.id }}"}
    )
    xcom = lake.run(delete, params={"id": 2})
    assert xcom["metrics"]["numDeletedRows"] == 1
    users.assert_rows([USERS[0]])
    users.assert_operations("WRITE", "DELETE")


def test_arguments_of_the_dag_file_are_replaced_in_a_copy(lake: Lake) -> None:
    users = lake.table("users", USERS)
    delete = DeltaDeleteOperator(task_id="forget", table_uri="/lake/users", predicate="id = {{ params.id }}")
    for id in (1, 2):
        lake.run(delete, arguments={"table_uri": users.uri}, params={"id": id})
    assert users.rows == []
    assert delete.table_uri == "/lake/users"
    with pytest.raises(AttributeError, match="no argument 'tabel'"):
        lake.run(delete, arguments={"tabel": users.uri})


def test_outputs_of_other_tasks_are_rendered(lake: Lake) -> None:
    users = lake.table("users", USERS)
    delete = DeltaDeleteOperator(
        task_id="forget",
        table_uri=users.uri,
        predicate="id = :id",
        parameters={"id": "{{ ti.xcom_pull('find') }}"},
    )
    lake.run(delete, xcoms={"find": 1})
    users.assert_rows([USERS[1]])


def test_a_source_table_fills_a_new_one(lake: Lake) -> None:
    users = lake.table("users", USERS)
    copy = DeltaWriteOperator(task_id="copy", table_uri=lake.uri("copy"), source=table(users.uri))
    lake.run(copy)
    lake.table("copy").assert_rows(USERS)


def test_a_key_makes_a_second_run_change_nothing(lake: Lake) -> None:
    users, new = lake.table("users", USERS), lake.table("new", [{"id": 3, "name": "eve"}])
    for expected in ("committed", "already_done"):
        load = DeltaUpsertOperator(
            task_id="load", table_uri=users.uri, source=table(new.uri), keys="id", idempotency_key="load {{ ds }}"
        )
        assert lake.run(load)["status"] == expected
    assert len(users.rows) == 3


def test_a_writer_that_changes_other_rows_first_is_followed(lake: Lake) -> None:
    users = lake.table("users", USERS)
    delete = DeltaDeleteOperator(task_id="forget", table_uri=users.uri, predicate="id = 1")
    with lake.overtaken("users", by=lambda: users.append([{"id": 3, "name": "eve"}])):
        xcom = lake.run(delete)
    assert (xcom["read_version"], xcom["version"]) == (0, 2)
    users.assert_rows([USERS[1], {"id": 3, "name": "eve"}])


def test_a_writer_that_changes_the_same_rows_first_makes_the_job_do_its_work_again(lake: Lake) -> None:
    users = lake.table("users", USERS)
    rename = DeltaUpdateOperator(task_id="rename", table_uri=users.uri, set={"name": "'eve'"}, predicate="id = 1")
    raise_id = DeltaUpdateOperator(task_id="raise", table_uri=users.uri, set={"id": "id + 10"}, predicate="id = 2")
    with lake.overtaken("users", by=lambda: lake.run(rename)):
        lake.run(raise_id)
    users.assert_rows([{"id": 1, "name": "eve"}, {"id": 12, "name": "joe"}])


def test_a_conflict_that_may_not_be_resolved_is_raised(lake: Lake) -> None:
    users = lake.table("users", USERS)
    rename = DeltaUpdateOperator(task_id="rename", table_uri=users.uri, set={"name": "'eve'"}, predicate="id = 1")
    late = DeltaUpdateOperator(
        task_id="late", table_uri=users.uri, set={"id": "id + 10"}, predicate="id = 1", conflict_deadline_s=0
    )
    with pytest.raises(CommitConflict), lake.overtaken("users", by=lambda: lake.run(rename)):
        lake.run(late)


def test_a_block_without_a_commit_is_an_error_of_the_test(lake: Lake) -> None:
    lake.table("users", USERS)
    with pytest.raises(AssertionError, match="nothing was overtaken"), lake.overtaken("users", by=lambda: None):
        pass


def test_a_wrong_expectation_names_the_differences(lake: Lake) -> None:
    users = lake.table("users", USERS)
    with pytest.raises(AssertionError, match=r"1 are missing .*eve.* 1 are unexpected .*joe"):
        users.assert_rows([USERS[0], {"id": 3, "name": "eve"}])
    with pytest.raises(AssertionError, match="MERGE"):
        users.assert_operations("MERGE")


def test_an_empty_table_is_made_from_an_arrow_schema(lake: Lake) -> None:
    empty = pa.schema([("id", pa.int64())]).empty_table()
    assert lake.table("new", empty).rows == []


def test_the_error_of_a_job_is_raised_as_its_class(lake: Lake) -> None:
    gone = DeltaDeleteOperator(task_id="t", table_uri=lake.uri("none"), predicate="id = 1")
    with pytest.raises(TxlogError):
        lake.run(gone)


def test_a_lake_works_without_pytest(tmp_path: Path) -> None:
    """In a process that cannot import pytest."""
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from airflow_txlog.testing import Lake\n"
        "print(Lake(sys.argv[1]).table('users', [{'id': 1}]).rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lake")],
        cwd=ROOT,
        env=airflow_environment(tmp_path / "airflow", tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["[{'id': 1}]"], done.stdout + done.stderr


def test_the_page_on_testing_passes_as_a_users_own_tests(tmp_path: Path) -> None:
    dag_file, conftest, tests = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for name, text in (("users.py", dag_file), ("conftest.py", conftest), ("test_users.py", tests)):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=airflow_environment(tmp_path / "airflow", tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_a_staged_change_is_published_and_sensors_and_pins_run(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "x" * 64)
    users, new = lake.table("users", [{"id": 1}]), lake.table("new", [{"id": 2}])
    write = operators.DeltaWriteOperator(
        task_id="write",
        table_uri=users.uri,
        source=operators.table(new.uri),
        publish=False,
        idempotency_key="write",
    )
    staged = lake.run(write)
    assert users.version == 0
    publish = operators.DeltaPublishOperator(task_id="publish", staged="{{ ti.xcom_pull('write') }}")
    lake.run(publish, arguments={"staged": [staged]})
    users.assert_rows([{"id": 1}, {"id": 2}])
    arrived = lake.run(TableVersionSensor(task_id="arrived", table_uri=users.uri, version=1))
    assert arrived["version"] == 1
    pinned = lake.run(operators.PinVersionsOperator(task_id="pin", tables=[users.uri]))
    assert [each["version"] for each in pinned["tables"]] == [1]
