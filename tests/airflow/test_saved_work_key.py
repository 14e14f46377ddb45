"""The key of saved work: made by the first task that needs it, the same for every try, and shown nowhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.exactly_once.transactions import work_folder
from airflow_txlog.runners.child_process import ChildProcessRunner
from tests.helpers.jobs import KEY
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

pytestmark = pytest.mark.airflow

WORK = ApplicationTransaction(app_id="airflow_txlog/tests/a/b", version=3)


class Variables:
    """Airflow's Variables as one task sees them; `fails` is raised by every call."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.values: dict[str, str] = {}
        self.fails = fails
        self.overtakes: str | None = None

    def get(self, key: str, default: Any = ...) -> Any:
        if self.fails is not None:
            raise self.fails
        assert default is not ... or key in self.values
        return self.values.get(key, default)

    def set(self, key: str, value: str, description: str | None = None) -> None:
        self.values[key] = self.overtakes or value


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    from airflow_txlog.hooks import work_key

    found = Variables()
    monkeypatch.setattr(work_key, "Variable", found)
    return found


def key_of(work: ApplicationTransaction) -> str | None:
    from airflow_txlog.hooks.work_key import saved_work_key

    return saved_work_key(work)


def test_all_tries_of_one_work_have_one_key_and_any_other_work_has_another(variables: Variables) -> None:
    key = key_of(WORK)
    assert key is not None
    assert key == key_of(WORK)
    others = [("airflow_txlog/tests/a/b", 4), ("airflow_txlog/tests/a/b2", 3), ("airflow_txlog/tests/a", 3)]
    keys = {key_of(ApplicationTransaction(app_id=app_id, version=version)) for app_id, version in others}
    assert len(keys | {key}) == 4
    (secret,) = variables.values.values()
    assert len(secret) == 64
    assert secret not in keys | {key}
    job_spec(operation="truncate", table_uri="/t", saved_work_key=key)


def test_no_work_has_the_key_of_the_records_of_erasures_whatever_its_handle_names(variables: Variables) -> None:
    from airflow_txlog.hooks.work_key import records_key

    key = records_key()
    assert key is not None
    assert key == records_key()
    named = ("records of erasures", "airflow_txlog erasure records key 1")
    works = [ApplicationTransaction(app_id=app_id, version=version) for app_id in named for version in (0, 1)]
    assert key not in {key_of(work) for work in works}


def test_an_erasure_without_the_secret_warns_that_its_records_are_not_signed(
    variables: Variables, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow_txlog.hooks.work_key import records_key

    variables.fails = RuntimeError("no answer")
    with caplog.at_level(logging.WARNING, "airflow_txlog"):
        assert records_key() is None
    (record,) = caplog.records
    assert "records of this erasure are not signed" in record.getMessage()


def test_a_deployment_has_a_mark_that_follows_from_its_secret_unless_it_has_a_name(
    variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_txlog.hooks.work_key import SECRET_VARIABLE, deployment_mark

    # The tests' own name of a deployment.
    monkeypatch.delenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", raising=False)
    mark = deployment_mark()
    assert mark is not None
    assert deployment_mark() == mark
    (secret,) = variables.values.values()
    assert mark not in secret
    variables.values.clear()
    assert deployment_mark() not in (mark, None)
    # One that can be guessed is not shown by a mark.
    variables.values[SECRET_VARIABLE] = "hunter2"
    assert deployment_mark() is None
    variables.fails = OSError("no database")
    assert deployment_mark() is None
    monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", "production-eu")
    assert deployment_mark() == "production-eu"


def test_of_several_tasks_that_make_the_secret_at_once_the_last_one_counts(variables: Variables) -> None:
    variables.overtakes = "f" * 64
    first = key_of(WORK)
    variables.overtakes = None
    assert key_of(WORK) == first


@pytest.mark.parametrize("fails", [RuntimeError("no answer from 10.0.0.1"), ImportError("no SUPERVISOR_COMMS")])
def test_without_access_to_the_secret_there_is_no_key_and_a_warning(
    variables: Variables, caplog: pytest.LogCaptureFixture, fails: Exception
) -> None:
    variables.fails = fails
    with caplog.at_level(logging.WARNING, "airflow_txlog"):
        assert key_of(WORK) is None
    (record,) = caplog.records
    assert "is not saved for a retry" in record.getMessage()
    assert str(fails) not in record.getMessage()


def test_a_secret_that_can_be_guessed_is_not_used(variables: Variables, caplog: pytest.LogCaptureFixture) -> None:
    variables.values["txlog_saved_work_secret"] = "hunter2"
    with caplog.at_level(logging.WARNING, "airflow_txlog"):
        assert key_of(WORK) is None
    assert "hunter2" not in caplog.text


def test_the_hook_gives_its_jobs_a_key(variables: Variables, tmp_path: Path) -> None:
    from airflow_txlog.hooks.txlog import TxlogHook

    seen: list[JobSpec] = []

    class Runner:
        def run(self, spec: JobSpec, *, log: Any) -> JobResult:
            seen.append(spec)
            return JobResult(status="nothing_to_do", operation=spec.operation.name, table_uri=spec.table_uri)

        def kill(self) -> None:
            raise AssertionError("nothing is killed here")

    TxlogHook().run("truncate", str(tmp_path / "t"), {}, idempotency_key="run1/a", runner=Runner())
    assert seen[0].application is not None
    assert seen[0].saved_work_key == key_of(seen[0].application)
    # A dry run leaves nothing that a call with its key would find done.
    dry = {"predicate": "id = 1", "dry_run": True}
    TxlogHook().run("delete", str(tmp_path / "t"), dry, idempotency_key="run1/a", runner=Runner())
    assert (seen[1].application, seen[1].saved_work_key) == (None, None)


def test_a_child_gets_the_key_in_a_file_without_a_name(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        """
import json, os, sys
from airflow_txlog.contract.job import *
spec = read_spec(sys.argv[1])
opened = os.stat(sys.argv[1])
texts = " ".join(sys.argv) + json.dumps(dict(os.environ)) + repr(spec)
shown = {
    "is_in_texts": int(spec.saved_work_key in texts),
    "names": opened.st_nlink,
    "mode": opened.st_mode & 0o777,
}
result = JobResult(status="committed", operation=spec.saved_work_key, table_uri=spec.table_uri, metrics=shown)
write_document(spec.result_uri, result.to_json())
"""
    )
    lines: list[str] = []
    spec = job_spec(operation="truncate", table_uri="/t", application=WORK, saved_work_key=KEY)
    result = ChildProcessRunner(command=(sys.executable, str(script))).run(spec, log=lines.append)
    assert result.operation == KEY
    assert result.metrics == {"is_in_texts": 0, "names": 0, "mode": 0o600}
    assert KEY not in "".join(lines)


@pytest.fixture
def log_text(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    with caplog.at_level(logging.DEBUG):
        yield lambda: caplog.text


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_retry_by_airflow_goes_on_from_saved_work_and_the_key_is_shown_nowhere(
    tmp_path: Path,
    dag_of: Callable[[str, str], Any],
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_text: Callable[[], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    users = [pa.table({"user_id": pa.array(range(start, start + 100), pa.int64())}) for start in (0, 100)]
    table = make_table(tmp_path / "users", *users)
    copy = tmp_path / "copy"
    monkeypatch.setenv("TXLOG_TEST_TABLE", table.uri)
    monkeypatch.setenv("TXLOG_TEST_COPY", str(copy))
    dag_run = dag_of("saved_work", "saved_work").test()
    (ti,) = dag_run.get_task_instances()
    assert (ti.state, ti.try_number) == ("success", 2)

    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.variable import Variable
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    output = capfd.readouterr()
    shown = log_text() + output.out + output.err
    # Of the two files that the first try copied one is another now: the copy of the other is what is committed.
    assert "resuming an earlier try: 2 files looked at" in shown
    assert "1 file remembered, 1 to look at" in shown
    before = {path.name for path in (copy / "table").glob("part-*")}
    live = {file.rsplit("/")[-1] for file in table.snapshot().files()["path"].to_pylist()}
    assert len(before & live) == 1
    assert list((copy / "table").glob("txlog-inputs-*/memory-*"))
    assert list((tmp_path / "users").glob("txlog-inputs-*")) == []

    with create_session() as session:
        secret = Variable.get("txlog_saved_work_secret")
        rows: list[Any] = []
        for model in (RenderedTaskInstanceFields, XComModel, TaskStateStoreModel):
            rows += [str(vars(row)) for row in session.query(model)]
    monkeypatch.setattr("airflow_txlog.hooks.work_key.Variable", SimpleNamespace(get=lambda name, default: secret))
    (app_id,) = table.snapshot().state.transactions
    work = ApplicationTransaction(app_id=app_id, version=1)
    key = key_of(work)
    assert key is not None
    assert (copy / "table" / str(work_folder(table.uri, work, key))).is_dir(), "this is the key that was used"
    files = [path for root in (tmp_path, airflow_home) for path in root.rglob("*") if path.is_file()]
    contents = b"".join(path.read_bytes() for path in files if not path.name.startswith("airflow.db"))
    names = "".join(map(str, files))
    for hidden in (key, secret):
        assert hidden not in shown
        assert hidden not in "".join(rows)
        assert hidden.encode() not in contents
        assert hidden not in names
