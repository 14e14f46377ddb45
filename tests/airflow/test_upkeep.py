"""DeltaUpkeepOperator and `airflow txlog upkeep`: many tables, one report, and no table stops another."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.contract.operations import Upkeep
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, JobLost, TxlogError
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.upkeep import run_upkeep
from airflow_txlog.operators import DeltaUpkeepOperator
from airflow_txlog.runners.in_process import InProcessRunner
from airflow_txlog.storage import LocalStore
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow

CALM = {"delta.checkpointInterval": "100000"}


def make(folder: Path, files: int) -> Table:
    return make_table(folder, *(pa.table({"id": [number]}) for number in range(files)), properties=CALM)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two tables, one of which needs something, deep in a folder with other files."""
    make(tmp_path / "lake" / "raw" / "orders", 4)
    make(tmp_path / "lake" / "users", 1)
    (tmp_path / "lake" / "README.txt").write_text("not a table")
    return tmp_path / "lake"


class Instance:
    """A task instance, as far as a report needs it."""

    dag_id, task_id, run_id, map_index, try_number, max_tries = "d", "t", "r", -1, 1, 0

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def execute(tables: Any, ti: Instance | None = None, **arguments: Any) -> dict[str, Any]:
    operator = DeltaUpkeepOperator(task_id="keep", tables=tables, runner="in_process", **arguments)
    return operator.execute({} if ti is None else {"ti": ti})  # type: ignore[typeddict-item]


def done(report: dict[str, Any]) -> dict[str, list[str]]:
    return {Path(each["table"]).name: [step["step"] for step in each.get("steps", ())] for each in report["tables"]}


def test_every_table_of_a_folder_gets_what_is_due_and_the_report_is_json(lake: Path) -> None:
    report = execute(str(lake))
    assert done(report) == {"orders": ["compact"], "users": []}
    assert [each["status"] for each in report["tables"]] == ["committed", "nothing_to_do"]
    assert report == json.loads(json.dumps(report))
    assert (report["failed"], report["left"]) == ([], [])
    assert Table.open(str(lake / "raw" / "orders")).snapshot().num_files == 1
    assert done(execute([str(lake / "users"), str(lake)])) == {"orders": [], "users": []}


def test_a_table_that_fails_stops_no_other_and_the_task_fails_and_names_it(lake: Path) -> None:
    (lake / "broken" / "_delta_log").mkdir(parents=True)
    (lake / "broken" / "_delta_log" / f"{0:020}.json").write_text("{")
    ti = Instance()
    with pytest.raises((TxlogError, AirflowException), match=r"1 of 3 tables failed: .*broken"):
        execute(str(lake), ti)
    report = ti.pushed["return_value"]
    assert report["failed"] == [f"{lake}/broken"]
    assert done(report)["orders"] == ["compact"]
    assert Table.open(str(lake / "raw" / "orders")).snapshot().num_files == 1


def test_a_folder_of_another_user_stops_no_table_and_a_table_there_is_a_failed_one(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    walk = LocalStore.walk

    def walk_as_another_user(store: LocalStore, on_unreadable: Any = None, **others: Any) -> Any:
        for path in ("users/txlog-inputs-0", "closed/_delta_log"):
            if on_unreadable is None:
                raise PermissionError(path)
            on_unreadable(path)
        yield from walk(store, on_unreadable, **others)

    monkeypatch.setattr(LocalStore, "walk", walk_as_another_user)
    ti = Instance()
    with pytest.raises((TxlogError, AirflowException), match="1 of 3 tables failed"):
        execute(str(lake), ti, compact=False, checkpoint=False, vacuum=None)
    assert ti.pushed["return_value"]["failed"] == [f"{lake}/closed"]
    assert f"cannot list 1 folder below {lake}: users/txlog-inputs-0" in capsys.readouterr().out


def test_the_error_of_many_tables_names_the_first_ten(lake: Path) -> None:
    for number in range(12):
        (lake / f"broken-{number:02}" / "_delta_log").mkdir(parents=True)
        (lake / f"broken-{number:02}" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises((TxlogError, AirflowException), match=r"12 of 14 .*broken-09.* And 2 more\.") as caught:
        execute(str(lake), dry_run=True)
    assert "broken-10" not in str(caught.value)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_task_that_is_stopped_begins_no_other_table(lake: Path, is_late: bool) -> None:
    """Airflow calls `on_kill` in a signal handler, and the task goes on with what it does."""

    class StoppedRunner(InProcessRunner):
        specs: ClassVar[list[JobSpec]] = []

        def run(self, spec: JobSpec, *, log: Any) -> JobResult:
            self.specs.append(spec)
            operator.on_kill()
            if not is_late:
                raise JobLost("The job was stopped.", exit_code=None, has_application_transaction=False)
            return super().run(spec, log=log)

    operator = DeltaUpkeepOperator(task_id="keep", tables=str(lake), runner=StoppedRunner())
    with pytest.raises((TxlogError, AirflowException), match="stopped"):
        operator.execute({})
    assert [spec.table_uri for spec in StoppedRunner.specs] == [f"{lake}/raw/orders"]


def test_a_dry_run_says_what_is_due(lake: Path) -> None:
    report = execute(str(lake), dry_run=True)
    (step,) = report["tables"][0]["steps"]
    assert (step["step"], step["done"], step["files"]) == ("compact", False, 4)
    assert Table.open(str(lake / "raw" / "orders")).latest_version() == 4


def test_a_budget_of_bytes_holds_for_all_tables_together(lake: Path) -> None:
    make(lake / "visits", 4)
    size = Table.open(str(lake / "visits")).snapshot().size_bytes
    report = execute(str(lake), max_bytes=size + 10)
    assert done(report) == {"orders": ["compact"], "users": [], "visits": ["compact"]}
    assert Table.open(str(lake / "visits")).snapshot().num_files == 4, "the first table has used the bytes"
    execute(str(lake), max_bytes=size + 10)
    assert Table.open(str(lake / "visits")).snapshot().num_files == 1


def test_tables_are_left_when_the_minutes_are_over(lake: Path) -> None:
    report = execute(str(lake), max_minutes=1e-9)
    assert report["left"] == [f"{lake}/raw/orders", f"{lake}/users"]


def test_each_table_gets_the_minutes_that_are_left(lake: Path) -> None:
    given: list[float] = []

    def make_spec(table: str, limits: Mapping[str, Any]) -> JobSpec:
        given.append(limits["max_minutes"])
        return JobSpec(operation=Upkeep(), table_uri=table)

    def run(spec: JobSpec) -> JobResult:
        time.sleep(0.02)
        return InProcessRunner().run(spec, log=print)

    run_upkeep(TxlogHook(), [str(lake)], make_spec, run, print, max_minutes=5)
    assert 4 < given[1] <= given[0] - 0.02 / 60 < 5


def test_names_are_those_of_the_connection_and_its_base_is_the_default(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(lake)}))
    assert done(execute("users", txlog_conn_id="lake")) == {"users": []}
    assert done(execute(None, txlog_conn_id="lake")) == {"orders": ["compact"], "users": []}


def test_wrong_arguments_are_errors_of_the_dag(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        DeltaUpkeepOperator(task_id="t")
    wrong: list[dict[str, Any]] = [{"purge_above": 2}, {"max_bytes": 0}, {"max_minutes": -1}, {"vacuum": "half"}]
    for arguments in wrong:
        with pytest.raises(InvalidJobSpec):
            DeltaUpkeepOperator(task_id="t", tables="/lake", **arguments)
    with pytest.raises((TxlogError, AirflowException), match="no table"):
        execute(str(tmp_path))


def test_an_empty_list_of_another_task_is_nothing_to_do() -> None:
    with pytest.raises(InvalidJobSpec, match="tables is empty"):
        DeltaUpkeepOperator(task_id="keep", tables=[])
    keep = DeltaUpkeepOperator(task_id="keep", tables="{{ ti.xcom_pull('find') }}", runner="in_process")
    keep.tables = []
    assert keep.execute({}) == {"tables": [], "failed": [], "left": []}
