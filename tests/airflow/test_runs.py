"""One set of versions for all tasks of a run, and the rollback of a run's commits, on all tables or none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import (
    CannotRollBack,
    FilesMissing,
    InvalidInput,
    InvalidJobSpec,
    TableNotFound,
    TableReplaced,
)
from airflow_txlog.hooks.identity import annotations_of
from airflow_txlog.hooks.run_versions import pinned_version
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaRollbackOperator,
    DeltaUpsertOperator,
    PinVersionsOperator,
    table,
)
from airflow_txlog.runners.in_process import InProcessRunner
from airflow_txlog.sensors.table_version import TableVersionSensor
from tests.helpers.jobs import ids, rows
from tests.helpers.rows import append, make_table, overwrite, stage

pytestmark = pytest.mark.airflow

NAMES = ("a", "b", "c")
RUN = {"airflow.dag_id": "orders", "airflow.run_id": "r1", "airflow.task_id": "load"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in NAMES:
        make_table(tmp_path / "in" / name, rows(3))
        make_table(tmp_path / "out" / name, rows(1))
    return tmp_path


def opened(lake: Path, folder: str) -> dict[str, Table]:
    return {name: Table.open(str(lake / folder / name)) for name in NAMES}


@pytest.fixture
def writer(lake: Path) -> Iterator[None]:
    """Another writer, which appends to each table in turn as fast as it can."""
    is_over = threading.Event()

    def write() -> None:
        tables, number = opened(lake, "in"), 100
        while not is_over.is_set():
            for each in tables.values():
                append(each, rows(1, start=number))
                time.sleep(0.02)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.long("a DAG of eight tasks beside a writer")
@pytest.mark.usefixtures("writer")
def test_six_tasks_over_three_tables_read_one_set_of_versions_while_another_writes(
    lake: Path, dag_of: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLOG_TEST_TABLE", str(lake))
    done = dag_of("runs", "one_set_of_versions").test()
    assert done.state == "success"
    tis = {(ti.task_id, ti.map_index): ti for ti in done.get_task_instances()}
    pinned = {}
    for index in range(2):
        for each in tis["pin", index].xcom_pull(task_ids="pin", map_indexes=index)["tables"]:
            pinned[Path(each["table_uri"]).name] = each["version"]
    inputs, outputs = opened(lake, "in"), opened(lake, "out")
    for index, name in enumerate(NAMES):
        found = tis["count", index].xcom_pull(task_ids="count", map_indexes=index)
        expected = inputs[name].to_arrow(version=pinned[name])
        assert (found["version"], found["rows"]) == (pinned[name], expected.num_rows)
        assert set(ids(outputs[name])) == set(expected.column("id").to_pylist())
        # The writer has gone on in the meantime.
        assert inputs[name].latest_version() > pinned[name]
    # A foreign commit on one of them is named, and no table is changed.
    shutil.copytree(lake / "out" / "b", lake / "kept")
    foreign, others = overwrite(outputs["b"], rows(1, start=99)), [outputs[name].latest_version() for name in "ac"]
    with pytest.raises((CannotRollBack, AirflowException), match=rf"out/b: version {foreign} \(WRITE.*No table was"):
        execute(of_dag_id="one_set_of_versions", run_id=done.run_id, tables=str(lake))
    assert [outputs[name].latest_version() for name in "ac"] == others
    shutil.rmtree(lake / "out" / "b")
    (lake / "kept").rename(lake / "out" / "b")
    # Its rollback restores all three, and names no other table.
    undone = execute(of_dag_id="one_set_of_versions", run_id=done.run_id, tables=str(lake))
    assert {Path(each["table_uri"]).name: each["action"] for each in undone["tables"]} == dict.fromkeys(
        NAMES, "restore"
    )
    assert contents(opened(lake, "out")) == BEFORE


# --- versions of a run ----------------------------------------------------------------------------------------------


class Instance:
    """A task instance that knows the XComs of its run."""

    def __init__(self, xcoms: Mapping[str, Any]) -> None:
        self.xcoms = xcoms
        self.dag_id, self.task_id, self.run_id, self.map_index, self.try_number, self.max_tries = (
            "d",
            "t",
            "r",
            -1,
            1,
            0,
        )
        self.id = "0"

    def xcom_pull(self, task_ids: list[str]) -> list[Any]:
        return [self.xcoms.get(task_id) for task_id in task_ids]


def context_of(*pins: Any, **others: Any) -> dict[str, Any]:
    """The context of a task that is downstream of one pin task for each of these outputs."""
    with DAG("d", schedule=None) as dag:
        task = CheckpointOperator(task_id="t", table_uri="/t")
        for number in range(len(pins)):
            PinVersionsOperator(task_id=f"pin{number}", tables="/t") >> task
        PinVersionsOperator(task_id="elsewhere", tables="/t")
    xcoms = {f"pin{number}": output for number, output in enumerate(pins)} | {"elsewhere": {"tables": "never read"}}
    return {"ti": Instance(xcoms), "task": task, "dag": dag, **others}


def pinned(*tables: Any) -> dict[str, Any]:
    return PinVersionsOperator(task_id="pin", tables=[str(each) for each in tables]).execute({})  # type: ignore[arg-type]


def test_a_cleared_pin_task_pins_again_and_what_it_returns_is_json(lake: Path) -> None:
    uri = str(lake / "in" / "a")
    first = pinned(uri)
    append(Table.open(uri), rows(1, start=50))
    again = pinned(lake / "in")
    assert json.loads(json.dumps(again)) == again
    assert [each["version"] for each in first["tables"]] == [1]
    assert {Path(each["table_uri"]).name: each["version"] for each in again["tables"]} == {"a": 2, "b": 1, "c": 1}
    assert [pinned_version(TxlogHook(), uri, context_of(each)) for each in (first, again)] == [1, 2]


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (lambda uri: None, "no task of Airflow runs in this process"),
        (lambda uri: context_of(), "no task upstream of this one is a PinVersionsOperator"),
        (lambda uri: context_of(None), "have pinned no table"),
        (lambda uri: context_of(pinned(uri.replace("/a", "/b"))), "have pinned .*/in/b"),
        (
            lambda uri: context_of(pinned(uri), {"tables": [{"table_uri": uri, "version": 0}]}),
            r"have pinned the versions \[0, 1\] of it",
        ),
    ],
    ids=["no task", "no pin", "no output", "another table", "two versions"],
)
def test_a_table_that_the_run_has_not_pinned_is_refused_with_the_reason(lake: Path, context: Any, why: str) -> None:
    uri = str(lake / "in" / "a")
    with pytest.raises(InvalidJobSpec, match=why):
        pinned_version(TxlogHook(), uri, context(uri))


def test_a_table_that_was_created_again_is_not_read_at_the_number_of_another_one(lake: Path) -> None:
    uri = lake / "in" / "a"
    found = pinned(uri)
    Table.open(str(uri))
    for path in sorted(uri.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    make_table(uri, rows(9))
    with pytest.raises(TableReplaced, match="Clear the task that pins"):
        pinned_version(TxlogHook(), str(uri), context_of(found))


def test_a_missing_table_cannot_be_pinned(lake: Path) -> None:
    with pytest.raises((InvalidJobSpec, TableNotFound), match="no table"):
        pinned(lake / "in" / "nowhere")


def vacuumed(lake: Path) -> tuple[str, dict[str, Any]]:
    """A table of which the run has pinned a version that a VACUUM has removed."""
    uri = str(lake / "in" / "a")
    found = pinned(uri)
    overwrite(Table.open(uri), rows(2, start=70))
    Table.open(uri).vacuum(0, check_retention=False)
    return uri, found


def test_a_pinned_version_that_a_vacuum_has_removed_is_named_by_the_hook(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, found = vacuumed(lake)
    monkeypatch.setattr("airflow_txlog.hooks.txlog.task_context", lambda: context_of(found))
    opened = TxlogHook().open(uri, as_of="run")
    assert opened.snapshot().version == 1
    with pytest.raises(FilesMissing, match=r"version 1 of .* a VACUUM has deleted it"):
        opened.to_arrow()
    with pytest.raises(InvalidJobSpec, match="as_of"):
        TxlogHook().open(uri, as_of="yesterday")  # type: ignore[arg-type]


def test_a_pinned_version_that_a_vacuum_has_removed_is_named_by_an_operator(lake: Path) -> None:
    uri, found = vacuumed(lake)
    operator = DeltaUpsertOperator(
        task_id="t", table_uri=str(lake / "out" / "a"), source=table(uri, as_of="run"), keys=["id"], idempotency_key="k"
    )
    spec = operator.job_spec(context_of(found))
    with pytest.raises(FilesMissing, match=r"version 1 of .* a VACUUM has deleted it"):
        InProcessRunner().run(spec, log=print)


def test_a_job_never_reads_the_newest_version_in_the_place_of_the_runs(lake: Path) -> None:
    operator = DeltaUpsertOperator(
        task_id="t", table_uri=str(lake / "out" / "a"), source=table("/in", as_of="run"), keys=["id"]
    )
    with pytest.raises(InvalidJobSpec, match=r"arguments\.source reads /in at the version of a run"):
        InProcessRunner().run(operator._spec(str(lake / "out" / "a")), log=print)
    for wrong in ({"version": 3}, {"staged": None, "as_of": "yesterday"}):
        with pytest.raises(InvalidJobSpec, match="as_of"):
            DeltaUpsertOperator(
                task_id="t", table_uri="/t", keys=["id"], source={"table": "/in", "as_of": "run", **wrong}
            )


def test_a_sensor_as_of_the_run_looks_once_and_no_later_than_the_pinned_version(lake: Path) -> None:
    uri = lake / "in" / "a"
    found = pinned(uri)
    append(Table.open(str(uri)), rows(1, start=50))
    context = context_of(found)
    conditions: list[tuple[dict[str, Any], bool]] = [
        ({"version": 1}, True),
        ({"version": 2}, False),
        ({"newer_than": 0}, True),
        ({"newer_than": 1}, False),
        ({"newer_than": 2}, False),
        ({"operation": "WRITE"}, True),
        ({"operation": "MERGE"}, False),
    ]
    for condition, is_satisfied in conditions:
        for others in ({}, {"deferrable": True}):
            sensor = TableVersionSensor(task_id="t", table_uri=str(uri), as_of="run", **condition, **others)
            if is_satisfied:
                assert sensor.execute(context)["version"] == 1  # type: ignore[arg-type]
            else:
                with pytest.raises(AirflowFailException, match="up to version 1, which the run has pinned"):
                    sensor.execute(context)  # type: ignore[arg-type]
    skipped = TableVersionSensor(task_id="t", table_uri=str(uri), as_of="run", version=2, soft_fail=True)
    with pytest.raises(AirflowSkipException):
        skipped.execute(context)  # type: ignore[arg-type]
    assert TableVersionSensor(task_id="t", table_uri=str(uri), version=2).execute(context)["version"] == 2
    with pytest.raises(InvalidInput, match="as_of"):
        TableVersionSensor(task_id="t", table_uri=str(uri), version=2, as_of="now")  # type: ignore[arg-type]


# --- rollback -------------------------------------------------------------------------------------------------------


def execute(runner: Any = "in_process", **arguments: Any) -> dict[str, Any]:
    operator = DeltaRollbackOperator(task_id="undo", runner=runner, **arguments)
    return operator.execute({})  # type: ignore[typeddict-item]


def run_of(lake: Path) -> dict[str, Table]:
    """Three tables that a run has changed by more than appends."""
    tables = opened(lake, "out")
    for each in tables.values():
        tx = each.begin()
        tx.remove(tx.read_whole_table())
        tx.add(stage(each, rows(2, start=20)))
        tx.commit("MERGE", {}, tags=RUN)
    return tables


def roll_back(lake: Path, **arguments: Any) -> dict[str, Any]:
    return execute(of_dag_id="orders", run_id="r1", tables=str(lake / "out"), **arguments)


def contents(tables: Mapping[str, Table]) -> list[list[Any]]:
    return [ids(each) for each in tables.values()]


BEFORE, AFTER = [[0]] * 3, [[20, 21]] * 3


def test_a_commit_in_the_way_on_one_table_is_named_and_no_table_is_changed(lake: Path) -> None:
    tables = run_of(lake)
    append(tables["b"], rows(1, start=99), tags={**RUN, "airflow.run_id": "r2", "airflow.task_id": "late"})
    planned = roll_back(lake, dry_run=True)
    assert [each["action"] for each in planned["tables"]] == ["restore", "blocked", "restore"]
    named = r"version 3 \(WRITE by task late of DAG orders, run r2\)"
    assert [bool(each["in_the_way"]) for each in planned["tables"]] == [False, True, False]
    with pytest.raises((CannotRollBack, AirflowException), match=f"out/b: {named}.* No table was changed"):
        roll_back(lake)
    assert contents(tables) == [[20, 21], [20, 21, 99], [20, 21]]
    assert {each.latest_version() for each in tables.values()} == {2, 3}


def test_a_version_that_a_vacuum_has_removed_on_one_table_changes_no_table(lake: Path) -> None:
    tables = run_of(lake)
    tables["c"].vacuum(0, check_retention=False)
    with pytest.raises((FilesMissing, AirflowException), match=r"version 1 of .*out/c"):
        roll_back(lake)
    assert [tables[name].latest_version() for name in "ab"] == [2, 2], "neither is rolled back and put back again"


def test_a_rollback_emits_the_asset_events_of_its_commits(lake: Path) -> None:
    run_of(lake)
    asset, events = Asset("orders"), OutletEventAccessors()
    operator = DeltaRollbackOperator(
        task_id="undo",
        runner="in_process",
        of_dag_id="orders",
        run_id="r1",
        tables=str(lake / "out" / "a"),
        outlets=[asset],
    )
    operator.execute({"outlet_events": events})  # type: ignore[typeddict-item]
    assert events[asset].extra["version"] == 3


class OnThird(InProcessRunner):
    """Does something before the third job on a table begins."""

    jobs = 0

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__()
        self._do = do

    def run(self, spec: JobSpec, *, log: Any) -> JobResult:
        OnThird.jobs += 1
        if OnThird.jobs == 3:
            self._do()
        return super().run(spec, log=log)


def test_a_commit_that_lands_between_two_tables_puts_the_others_back(lake: Path) -> None:
    tables, OnThird.jobs = run_of(lake), 0
    other = Table.open(tables["c"].uri)
    with pytest.raises((CannotRollBack, AirflowException), match=r"version 3 .*The tables before it were put back"):
        roll_back(lake, runner=OnThird(lambda: append(other, rows(1, start=99))))
    assert contents(tables) == [[20, 21], [20, 21], [20, 21, 99]]
    # It may be rolled back without the table that has another's commit.
    execute(of_dag_id="orders", run_id="r1", tables=[tables["a"].uri, tables["b"].uri])
    assert contents(tables) == [[0], [0], [20, 21, 99]]


def test_the_tables_that_an_earlier_try_has_rolled_back_are_named_as_such(lake: Path) -> None:
    tables = run_of(lake)
    execute(of_dag_id="orders", run_id="r1", tables=tables["a"].uri)
    other, OnThird.jobs = Table.open(tables["c"].uri), 1
    said = r"version 3 .*An earlier rollback has undone the run on \S*out/a, .*The tables before it were put back"
    with pytest.raises((CannotRollBack, AirflowException), match=said):
        roll_back(lake, runner=OnThird(lambda: append(other, rows(1, start=99))))
    assert contents(tables) == [[0], [20, 21], [20, 21, 99]]


def test_files_that_a_vacuum_deletes_between_two_tables_put_the_others_back(lake: Path) -> None:
    tables, OnThird.jobs = run_of(lake), 0
    other = Table.open(tables["c"].uri)
    with pytest.raises((FilesMissing, AirflowException), match=r"version 1 of .*out/c.*The tables before it were put"):
        roll_back(lake, runner=OnThird(lambda: other.vacuum(0, check_retention=False)))
    assert contents(tables) == AFTER


def test_a_rollback_that_is_killed_between_two_tables_is_completed_by_the_next(lake: Path) -> None:
    tables, OnThird.jobs = run_of(lake), 0
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            roll_back(lake, runner=OnThird(lambda: os.kill(os.getpid(), signal.SIGKILL)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert contents(tables) == [[0], [0], [20, 21]]
    done = roll_back(lake)
    assert [each["action"] for each in done["tables"]] == ["none", "none", "restore"]
    assert contents(tables) == BEFORE
    assert [each["status"] for each in roll_back(lake)["tables"]] == ["already_done"] * 3


def test_the_command_prints_the_plan_and_undoes_the_run(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow.cli.cli_parser import get_parser

    def command(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        args = get_parser().parse_args(["txlog", "rollback", *words, "--dag-id", "orders", "--run-id", "r1", "--json"])
        args.func(args)
        return dict(json.loads(capsys.readouterr().out))

    tables = run_of(lake)
    uris = [each.uri for each in tables.values()]
    assert [each["status"] for each in command(*uris, "--dry-run")["tables"]] == ["planned"] * 3
    assert contents(tables) == AFTER
    assert [each["status"] for each in command(uris[0], str(lake / "out"))["tables"]] == ["committed"] * 3
    assert contents(tables) == BEFORE


def test_a_run_of_the_same_name_in_another_deployment_is_left_alone(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Without a configured name, no mark follows from a secret that other tests may have made.
    monkeypatch.setenv("AIRFLOW_VAR_TXLOG_SAVED_WORK_SECRET", "short")
    table = opened(lake, "out")["a"]
    for number, name in enumerate(("ours", "theirs")):
        monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", name)
        tags = {f"airflow.{key}": str(value) for key, value in annotations_of(context_of()).items() if value}
        append(table, rows(1, start=10 * (number + 1)), tags=tags)
    # A process that does not know its deployment, such as the command line, does not choose between them.
    with monkeypatch.context() as patch:
        patch.delenv("AIRFLOW__TXLOG__DEPLOYMENT_ID")
        with pytest.raises((CannotRollBack, AirflowException), match=r"several Airflow deployments \(ours, theirs\)"):
            execute(of_dag_id="d", run_id="r", tables=table.uri)
    for name, expected in {"neither": [0, 10, 20], "theirs": [0, 10], "ours": [0]}.items():
        monkeypatch.setenv("AIRFLOW__TXLOG__DEPLOYMENT_ID", name)
        execute(of_dag_id="d", run_id="r", tables=table.uri)
        assert ids(table) == expected
        said = "Another deployment has committed in a run of this name." in capsys.readouterr().out
        assert said == (name == "neither")
    alone = opened(lake, "out")["b"]
    append(alone, rows(1, start=50), tags=tags)
    monkeypatch.delenv("AIRFLOW__TXLOG__DEPLOYMENT_ID")
    execute(of_dag_id="d", run_id="r", tables=alone.uri)
    assert ids(alone) == [0]


@pytest.mark.parametrize("wrong", [{"run_id": ""}, {"tables": 7}, {"tables": []}, {"tables": "/nowhere"}])
def test_a_rollback_of_nothing_that_has_a_name_is_refused(lake: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((InvalidJobSpec, AirflowException)):
        execute(**{"of_dag_id": "orders", "run_id": "r1", "tables": str(lake), **wrong})


def test_a_run_without_a_commit_is_rolled_back_already(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(of_dag_id="orders", run_id="none", tables=str(lake))["tables"] == []
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "no commit of run none of DAG orders" in each]
    assert "warning" in line


@pytest.mark.parametrize(
    ("dag", "run", "near"),
    [
        ("orders", "r11", "Did you mean 'r1'"),
        ("ordres", "r1", "A run of this id is there, of DAG orders"),
        ("ordres", "r9", "Did you mean 'orders'"),
    ],
)
def test_the_command_fails_for_a_run_that_no_log_names(
    lake: Path, capsys: pytest.CaptureFixture[str], dag: str, run: str, near: str
) -> None:
    from airflow.cli.cli_parser import get_parser

    tables = run_of(lake)
    args = get_parser().parse_args(["txlog", "rollback", str(lake / "out"), "--dag-id", dag, "--run-id", run])
    with pytest.raises(SystemExit, match="1"):
        args.func(args)
    said = capsys.readouterr().err
    assert f"No commit of run {run} of DAG {dag}" in said
    assert near in said
    assert contents(tables) == AFTER


@pytest.mark.long("two runs of six tasks")
def test_the_example_undoes_the_run_whose_check_fails(
    lake: Path, dag_of: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLOG_DEMO_FOLDER", str(lake))
    names = ("run_orders", "run_latest", "run_totals")
    found = []
    for most in (100, 50):
        done = dag_of("undo_orders", "undo_orders").test(run_conf={"most": most})
        found.append({ti.task_id: ti.state for ti in done.get_task_instances()})
        found[-1] |= {name: len(ids(Table.open(str(lake / name)))) for name in names}
    for states, check, undo in zip(found, ("success", "failed"), ("skipped", "success"), strict=True):
        assert (states["check"], states["undo"]) == (check, undo)
        assert [states[name] for name in names] == [2, 2, 1]
