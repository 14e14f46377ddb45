"""The events that Airflow's provider for OpenLineage sends of our tasks, through its own listener and a file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import Details, JobResult, Lineage
from airflow_txlog.contract.operations import Delete, Operation, Update, Upsert, Write
from airflow_txlog.engine import Table
from airflow_txlog.operators.sources import files, query, table
from tests.helpers.paths import ROOT
from tests.helpers.rows import append

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.usefixtures("spark")]

PERSON = "mary.canary@home.example"
SECRET = "canary-5ec2e7"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])

Event = dict[str, Any]


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, airflow_home: Path) -> Iterator[Path]:
    """The file that the listener writes its events to; with all that it can be asked to send of a task."""
    from airflow.sdk.listener import get_listener_manager

    events = tmp_path / "events.jsonl"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO", "True")
    # A fork would share this process's connection to its JVM.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")
    # Here and not above: its module asks the configuration whether it is switched on.
    from airflow.providers.openlineage.plugins.listener import OpenLineageListener

    manager, listener = get_listener_manager(), OpenLineageListener()
    manager.add_listener(listener)
    yield events
    manager.pm.unregister(listener)


def facets(dataset: Event, *names: str) -> list[Any]:
    """These facets, without what all facets have."""
    found = {**dataset["facets"], **dataset.get("outputFacets", {}), **dataset.get("inputFacets", {})}
    return [{k: v for k, v in found[name].items() if k[0] != "_"} if name in found else None for name in names]


@pytest.mark.long("a DAG of six tasks, one of them with Spark")
def test_the_listener_sends_what_tasks_read_and_wrote_and_nothing_of_a_person_or_a_secret(
    listening: Path, dag_of: Callable[[str, str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": 1, "name": "joe", "note": ""}, {"id": 2, "name": PERSON, "note": ""}]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "in" / "a.parquet")
    late = Table.create(str(tmp_path / "late"), SCHEMA)
    append(late, [{"id": 3, "name": "ann", "note": ""}, {"id": 1, "name": "jo", "note": ""}])
    connection = {"conn_type": "txlog", "host": str(tmp_path), "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    monkeypatch.setenv("TXLOG_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("TXLOG_TEST_PERSON", PERSON)
    dag_of("lineage", "lineage").test()

    text = listening.read_text()
    assert PERSON not in text
    assert SECRET not in text
    events = {
        (event["job"]["name"].rpartition(".")[2], event["eventType"]): event
        for event in map(json.loads, text.splitlines())
    }
    ended = {task: kind for task, kind in events if kind != "START"}
    assert ended == {**dict.fromkeys(["load", "late", "forget", "empty", "again"], "COMPLETE"), "fails": "FAIL"}
    people = f"{tmp_path}/people"

    load = events["load", "COMPLETE"]
    ((read,), (written,)) = load["inputs"], load["outputs"]
    assert (read["namespace"], read["name"]) == ("file", f"{tmp_path}/in")
    size = (tmp_path / "in" / "a.parquet").stat().st_size
    assert facets(read, "inputStatistics") == [{"rowCount": 2, "size": size, "fileCount": 1}]
    assert (written["namespace"], written["name"]) == ("file", people)
    size = sum(path.stat().st_size for path in Path(people).glob("*.parquet") if path.stat().st_mtime)
    version, change, layer = facets(written, "version", "lifecycleStateChange", "storage")
    assert (version, change) == ({"datasetVersion": "0"}, {"lifecycleStateChange": "CREATE"})
    assert layer == {"storageLayer": "delta", "fileFormat": "parquet"}
    schema, statistics, columns = facets(written, "schema", "outputStatistics", "columnLineage")
    assert [(field["name"], field["type"]) for field in schema["fields"]] == [
        ("id", "long"),
        ("name", "string"),
        ("note", "string"),
    ]
    assert (statistics["rowCount"], statistics["fileCount"]) == (2, 1)
    assert 0 < statistics["size"] < size
    assert copies(columns) == {name: {f"{tmp_path}/in.{name}"} for name in SCHEMA.names}
    # Which folder a name stands for only a connection knows: none is read before the task itself does.
    assert events["load", "START"]["outputs"] == []

    check_merge(events["late", "COMPLETE"], tmp_path)
    (of_delete,) = events["forget", "COMPLETE"]["outputs"]
    assert facets(of_delete, "version", "columnLineage") == [{"datasetVersion": "2"}, None]
    assert run_facet(events["forget", "COMPLETE"])["metrics"]["numDeletedRows"] == 1
    check_ends(events, tmp_path)


def copies(columns: Event) -> dict[str, set[str]]:
    """By column, `place.column` of each that it is a copy of."""
    return {
        column: {f"{origin['name']}.{origin['field']}" for origin in found["inputFields"]}
        for column, found in columns["fields"].items()
    }


def run_facet(event: Event) -> Event:
    """Our own facet of the run."""
    found: Event = event["run"]["facets"]["txlog"]
    return found


def check_merge(late: Event, folder: Path) -> None:
    """The version that the source's table had, and no column that the merge computed."""
    ((read,), (written,)) = late["inputs"], late["outputs"]
    assert (read["name"], *facets(read, "version")) == (f"{folder}/late", {"datasetVersion": "1"})
    version, statistics, columns = facets(written, "version", "outputStatistics", "columnLineage")
    assert version == {"datasetVersion": "1"}
    assert statistics["rowCount"] == 3, "two rows of the source, and one that was copied"
    assert copies(columns) == {"id": {f"{folder}/late.id"}, "name": {f"{folder}/late.name"}}
    assert late["job"]["facets"]["sql"]["query"] == "SELECT id, name FROM late WHERE name <> :name"
    ours = run_facet(late)
    assert (ours["operation"], ours["readVersion"], ours["version"]) == ("merge", 0, 1)
    assert (ours["metrics"]["numTargetRowsUpdated"], ours["metrics"]["numTargetRowsInserted"]) == (1, 1)


def check_ends(events: dict[tuple[str, str], Event], folder: Path) -> None:
    """Of a task that fails, one that empties the table, and one that finds it empty."""
    failed = events["fails", "FAIL"]
    ((read,), (written,)) = failed["inputs"], failed["outputs"]
    assert (read["name"], written["name"]) == (f"{folder}/nothing", f"{folder}/people")
    assert facets(written, "version", "outputStatistics") == [None, None]
    assert "txlog" not in failed["run"]["facets"]
    assert events["fails", "START"]["outputs"][0]["name"] == f"{folder}/people"
    (emptied,), (again,) = events["empty", "COMPLETE"]["outputs"], events["again", "COMPLETE"]["outputs"]
    assert facets(emptied, "version", "lifecycleStateChange") == [
        {"datasetVersion": "3"},
        {"lifecycleStateChange": "TRUNCATE"},
    ]
    assert facets(again, "version", "lifecycleStateChange", "outputStatistics") == [{"datasetVersion": "3"}, None, None]


def test_the_statement_of_a_job_has_names_in_place_of_values() -> None:
    from airflow_txlog.lineage.facets import lineage_of

    def sql(operation: Operation) -> str | None:
        facet = lineage_of(operation, "s3a://KEY:SECRET@bucket/t", None).job_facets.get("sql")
        return None if facet is None else facet.query

    place: Any = {"partition_predicate": "day = :day", "parameters": {"day": "2024-01-01", "user": PERSON}}
    delete = Delete(predicate="user = :user OR note = ''", **place)
    assert sql(delete) == "DELETE FROM delta.`s3://bucket/t` WHERE (day = :day) AND (user = :user OR note = '')"
    assert sql(Update(set={"note": ":user", "n": "t.n + 1"})) == (
        "UPDATE delta.`s3://bucket/t` AS t SET note = :user, n = t.n + 1"
    )
    keys: Any = {"column": "user", "values": [PERSON]}
    assert sql(Delete(predicate=None, keys=keys)) is None


def test_expectations_are_assertions_on_the_table_also_of_a_task_that_they_fail() -> None:
    from airflow_txlog.lineage.facets import lineage_of

    def assertions(metrics: dict[str, int], failed: Any = None) -> list[tuple[str, bool]]:
        outcome = None
        if metrics:
            outcome = JobResult(status="committed", operation="write", table_uri="/t", version=7, metrics=metrics)
        found = lineage_of(Write(source=files("/in")), "/t", outcome, failed).inputs  # type: ignore[arg-type]
        facets = [each.inputFacets["dataQualityAssertions"] for each in found if each.name == "/t"]
        return [(each.assertion, each.success) for facet in facets for each in facet.assertions]

    counts = {
        "expectation.a.passed": 3,
        "expectation.a.failed": 0,
        "expectation.b.passed": 1,
        "expectation.b.failed": 2,
    }
    assert assertions(counts) == [("a", True), ("b", False)]
    assert assertions({}, {"b": {"passed": 1, "failed": 2}}) == [("b", False)]
    assert assertions({"numOutputRows": 3}) == []


@pytest.mark.parametrize(
    ("given", "result", "change", "rows"),
    [
        ({"mode": "overwrite"}, {"read_version": 6}, "OVERWRITE", 12),
        ({"mode": "overwrite", "replace_where": "a = 1"}, {"read_version": 6}, None, 12),
        ({"mode": "overwrite", "partition_predicate": "a = 1"}, {"read_version": 6}, None, 12),
        ({"mode": "overwrite_partitions"}, {"read_version": 6}, None, 12),
        ({}, {"read_version": None}, "CREATE", 12),
        ({}, {"read_version": 6}, None, 12),
        ({"mode": "overwrite"}, {"read_version": 6, "status": "already_done"}, None, None),
    ],
)
def test_what_became_of_the_table_is_reported_by_the_try_that_committed(
    given: dict[str, Any], result: dict[str, Any], change: str | None, rows: int | None
) -> None:
    from airflow_txlog.lineage.facets import lineage_of

    metrics = {"numOutputRows": 10, "numCopiedRows": 2, "numOutputBytes": 100, "numFiles": 1}
    outcome = JobResult(
        **{"status": "committed", "operation": "write", "table_uri": "/t", "version": 7, "metrics": metrics, **result}
    )
    (written,) = lineage_of(Write(source=files("/in"), **given), "/t", outcome).outputs  # type: ignore[arg-type]
    assert written.facets["version"].datasetVersion == "7"
    lifecycle = written.facets.get("lifecycleStateChange")
    assert (None if lifecycle is None else lifecycle.lifecycleStateChange.value) == change
    statistics = written.outputFacets.get("outputStatistics")
    assert (None if statistics is None else statistics.rowCount) == rows


WITHOUT = """
import sys
from types import SimpleNamespace

PROVIDER = "airflow.providers.openlineage"

class Absent:
    def find_spec(self, name, path=None, target=None):
        # Airflow reads the descriptions of all providers that the environment lists.
        is_listed = name in (PROVIDER, f"{PROVIDER}.get_provider_info")
        if name.startswith((PROVIDER, "openlineage")) and not is_listed:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from airflow_txlog.operators import CheckpointOperator

operator = CheckpointOperator(task_id="x", table_uri=sys.argv[1], runner="in_process")
ti = SimpleNamespace(dag_id="d", task_id="x", run_id="r", map_index=-1, try_number=1, max_tries=0)
context = {"ti": ti, "task_instance": ti, "task": operator, "run_id": "r", "outlet_events": {}}
print(operator.execute(context)["status"])
try:
    operator.get_openlineage_facets_on_complete(ti)
except ModuleNotFoundError:
    print("absent")
"""


def test_a_task_needs_nothing_of_openlineage(tmp_path: Path, airflow_home: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    append(table, [{"id": 1, "name": "a", "note": ""}])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, table.uri], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["committed", "absent"]


@pytest.mark.parametrize(
    ("operation", "status", "rows"),
    [
        (Write(source=files("/in")), "committed", 10),
        (Upsert(source=table("/in"), keys=("id",)), "committed", 4),
        (Upsert(source=table("/in"), keys=("id",)), "already_done", None),
        (Write(source=query("SELECT * FROM v WHERE id > 1", v=files("/in"))), "committed", None),
        (Write(source=files(["/in/a", "/in/b"])), "committed", None),
        (Delete(predicate=None, keys={"column": "id", "source": table("/in")}), "committed", None),
    ],
)
def test_rows_that_were_read_are_counted_where_all_of_one_input_were(
    operation: Operation, status: str, rows: int | None
) -> None:
    from airflow_txlog.lineage.facets import lineage_of

    metrics = {"numOutputRows": 10} if isinstance(operation, Write) else {"numOutputRows": 12, "numSourceRows": 4}
    result = JobResult(status=status, operation="any", table_uri="/t", version=7, metrics=metrics)
    counts = [found.inputFacets.get("inputStatistics") for found in lineage_of(operation, "/t", result).inputs]
    assert {None if count is None else count.rowCount for count in counts} == {rows}


def test_the_views_of_a_query_are_reported_with_their_sizes() -> None:
    """What the result says of a view goes before what the job counted."""
    from airflow_txlog.lineage.facets import lineage_of

    def reported(operation: Operation, **sizes: dict[str, int]) -> dict[str, tuple[int | None, ...] | None]:
        details = Details(lineage=Lineage(sizes={name.strip("_"): size for name, size in sizes.items()}))
        metrics = {"numOutputRows": 10}
        result = JobResult(status="committed", operation="write", table_uri="/t", metrics=metrics, details=details)
        found = {}
        for read in lineage_of(operation, "/t", result).inputs:
            facet = read.inputFacets.get("inputStatistics")
            found[read.name] = None if facet is None else (facet.rowCount, facet.size, facet.fileCount)
        return found

    views = {"a": table("/a"), "b": files("/b/*.csv", format="csv"), "c": table("/c")}
    joined: Any = query("SELECT * FROM a JOIN b USING (id) WHERE id IN (SELECT id FROM c)", **views)
    orders, lines = {"rows": 7, "bytes": 700, "files": 2}, {"bytes": 800, "files": 1}
    expected = {"/a": (7, 700, 2), "/b": (None, 800, 1), "/c": None}
    assert reported(Write(source=joined), a=orders, b=lines) == expected
    assert reported(Write(source=files("/b")), _=lines) == {"/b": (10, 800, 1)}  # type: ignore[arg-type]
    assert reported(Write(source=table("/a")), _=orders) == {"/a": (7, 700, 2)}  # type: ignore[arg-type]
