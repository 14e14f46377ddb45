"""`airflow txlog …`: through the real command in a new process, and through Airflow's parser in this one."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.errors import SubjectReturns
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import PLAIN
from tests.helpers import s3
from tests.helpers.jobs import run
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, make_table, sorted_rows, stage
from tests.helpers.staged import publish as publish_change
from tests.helpers.staged import stage as stage_change
from tests.helpers.vectors import mask

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("day", pa.string()), ("id", pa.int64())])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Version 1: days 1 and 2; version 2: day 3; version 3: day 1 deleted."""
    table = Table.create(str(tmp_path / "t"), SCHEMA, partition_by=["day"])
    append(table, [{"day": "1", "id": 1}, {"day": "2", "id": 2}])
    append(table, [{"day": "3", "id": 3}])
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    tx.commit("DELETE", {"predicate": "[\"day = '1'\"]"})
    return tmp_path / "t"


class Said:
    """The output of a command, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def txlog(airflow_home: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `airflow txlog …` through Airflow's own parser, in this process."""
    from airflow.cli.cli_parser import get_parser

    def run(*words: object) -> Said:
        capsys.readouterr()
        code = 0
        try:
            args = get_parser().parse_args(["txlog", *map(str, words)])
            args.func(args)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


def airflow(*words: object, home: Path, env: dict[str, str] | None = None) -> Said:
    """Run the real `airflow` command in a new process."""
    command = [sys.executable, "-m", "airflow", *map(str, words)]
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONPATH": str(ROOT),
        **(env or {}),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, cwd=home, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


# --- the real command -----------------------------------------------------------------------------------------------


def test_the_airflow_command_knows_a_table_by_its_connection(folder: Path, tmp_path: Path) -> None:
    connection = json.dumps({"conn_type": "txlog", "host": str(tmp_path)})
    named = airflow(
        "txlog", "snapshot", "t", "--conn-id", "lake", "--json", home=tmp_path, env={"AIRFLOW_CONN_LAKE": connection}
    )
    assert named.code == 0, named.err
    assert named.document["version"] == 3


@pytest.mark.long("a second start of the command; how an error ends a command is shown in this process below")
def test_the_airflow_command_fails_without_a_traceback(tmp_path: Path) -> None:
    said = airflow("txlog", "files", tmp_path / "nothing", home=tmp_path)
    assert said.code == 1
    assert said.err.strip().splitlines()[-1].startswith("TableNotFound: ")
    assert "Traceback" not in said.err
    assert said.out == ""


def test_the_definition_of_the_commands_imports_nothing_heavy() -> None:
    """Airflow reads it at every start of its command line."""
    script = (
        "import sys; from airflow_txlog.cli.definition import get_cli_commands; get_cli_commands(); "
        "print([name for name in sys.modules if name in ('pyarrow', 'sqlglot') "
        "or name.startswith(('airflow_txlog.engine', 'airflow_txlog.hooks'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_command_takes_all_of_arrows_memory_from_one_allocator(folder: Path, airflow_home: Path) -> None:
    script = (
        "import sys; from airflow.cli.cli_parser import get_parser; "
        "args = get_parser().parse_args(['txlog', 'files', sys.argv[1], '--json']); args.func(args); "
        "import pyarrow as pa; "
        "print(pa.jemalloc_memory_pool().max_memory() > 0, pa.mimalloc_memory_pool().max_memory())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stdout.strip().splitlines()[-1] == "True 0"


def test_a_connection_of_the_database_is_found(folder: Path, airflow_home: Path, txlog: Any) -> None:
    from airflow.models import Connection
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(Connection(conn_id="shelf", conn_type="txlog", host=str(folder.parent)))
    assert txlog("checkpoint", "t", "--conn-id", "shelf").out == "3\n"
    missing = txlog("checkpoint", "t", "--conn-id", "nobody", "--json")
    assert missing.code == 1
    assert "nobody" in missing.document["error"]["message"]


# --- what the commands say ------------------------------------------------------------------------------------------


def test_history_is_a_table_for_people(txlog: Any, folder: Path) -> None:
    said = txlog("history", folder, "--limit", 2)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split()[-1] == "parameters"
    assert len(lines) == 6, "with a last line that says that there are more"
    assert "predicate=[\"day = '1'\"]" in lines[2], "nothing of the log is taken for markup"
    assert "Z " in lines[2]


def test_history_shows_which_commits_each_one_met_and_why_they_did_not_stop_it(txlog: Any, folder: Path) -> None:
    table = Table.open(str(folder))
    read = table.snapshot().version
    tx = table.begin()
    tx.add(path="mine", partition_values={"day": "9"}, size=1)
    for _ in range(2):
        append(table, [{"day": "4", "id": 4}])
    tx.commit("WRITE")
    lines = [line.split() for line in txlog("history", folder, "--met", "--limit", 2).out.splitlines()]
    assert lines[0] == ["version", "read", "operation", "met", "resolved"]
    assert lines[2] == [str(read + 3), str(read), "WRITE", "2", "2", "read_nothing"]
    assert lines[3] == [str(read + 2), str(read + 1), "WRITE"]
    newest, before = txlog("history", folder, "--json", "--limit", 2).document["commits"]
    assert ([each["how"] for each in newest["met"]["last"]], before["met"]) == (["read_nothing"] * 2, None)


def test_history_says_where_older_commits_are_not_shown(txlog: Any, folder: Path) -> None:
    some, every = txlog("history", folder, "--limit", 2), txlog("history", folder, "--limit", 4)
    assert some.out.splitlines()[-1] == "the newest 2 commits are shown, and the log holds older ones (--limit)"
    assert "are shown" not in every.out
    documents = [txlog("history", folder, "--limit", limit, "--json").document for limit in (2, 4)]
    assert [(len(each["commits"]), each["truncated"]) for each in documents] == [(2, True), (4, False)]
    for _ in range(17):
        append(Table.open(str(folder)), [{"day": "4", "id": 4}])
    assert "the newest 20 commits are shown" in txlog("history", folder).out


def test_a_vacuum_by_a_task_is_shown_with_its_dag_and_task(txlog: Any, folder: Path) -> None:
    from airflow_txlog.operators import VacuumOperator

    context = {"ti": Instance()}
    VacuumOperator(task_id="sweep", table_uri=str(folder), runner="in_process").execute(context)  # type: ignore[arg-type]
    lines = [line.split() for line in txlog("history", folder, "--limit", 2).out.splitlines()[2:4]]
    assert [line[3:5] for line in lines] == [["VACUUM", "END"], ["VACUUM", "START"]]
    assert [line[5:9] for line in lines] == [["upkeep", "sweep[eu]", "manual__1", "1"]] * 2


class Instance:
    """The parts of a mapped task instance that a commit names."""

    dag_id, task_id, run_id, map_index, try_number, max_tries = "upkeep", "sweep", "manual__1", 2, 1, 0
    rendered_map_index = "eu"


def test_history_shows_what_other_engines_write(txlog: Any, folder: Path) -> None:
    """Without commitInfo, with parameters of any shape, with fields that mean something else there."""
    strange = [
        None,
        {"operation": "MERGE", "operationParameters": "a text", "operationMetrics": {"n": 5, "deep": {"x": [1, None]}}},
        {
            "operation": ["a", "list"],
            "timestamp": "yesterday",
            "version": "nine",
            "engineInfo": None,
            "clientVersion": 7,
        },
        {},
    ]
    for number, info in enumerate(strange, start=4):
        lines: list[dict[str, Any]] = [] if info is None else [{"commitInfo": info}]
        lines.append({"txn": {"appId": "x", "version": number}})
        (folder / "_delta_log" / f"{number:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    said = txlog("history", folder)
    assert said.code == 0, said.err
    assert len(said.out.splitlines()) == 2 + 8
    commits = txlog("history", folder, "--json").document["commits"]
    assert [commit["version"] for commit in commits] == list(range(7, -1, -1))
    assert all(isinstance(commit["timestamp"], int) for commit in commits)
    assert commits[2]["operationMetrics"] == {"n": 5, "deep": {"x": [1, None]}}


def test_history_is_told_of_a_table_that_cannot_be_read_here(txlog: Any, folder: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    (folder / "_delta_log" / f"{4:020d}.json").write_text(json.dumps({"protocol": protocol}))
    assert txlog("snapshot", folder, "--json").document["error"]["type"] == "UnsupportedFeature"
    assert len(txlog("history", folder, "--json").document["commits"]) == 5
    assert txlog("history", folder.parent).err.startswith("TableNotFound: ")


def test_a_name_without_a_catalog_is_answered_with_the_option_for_one(
    txlog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("history", "snapshot"):
        said = txlog(command, "sales.orders").err
        assert said.startswith("TableNotFound: ")
        assert "If sales.orders is a name in a catalog, name the catalog's connection with --catalog-conn-id." in said
        assert "--catalog-conn-id" not in txlog(command, "./sales.orders").err


def test_history_checks_the_table(txlog: Any, folder: Path) -> None:
    assert txlog("history", folder, "--check").out.splitlines()[-1] == "Nothing unhealthy was found."
    table = Table.open(str(folder))
    tx = table.begin()
    for number in range(10_001):
        tx.set_application(f"a{number}", 1)
    tx.commit("WRITE", record_empty=True)
    said = txlog("history", folder, "--check")
    assert "too_many_application_transactions: " in said.out
    findings = txlog("history", folder, "--check", "--json").document["findings"]
    assert [(finding["code"], finding["facts"]) for finding in findings] == [
        ("too_many_application_transactions", {"count": 10_001})
    ]
    assert "delta.setTransactionRetentionDuration" in findings[0]["advice"]


def test_files_of_a_mapped_table_show_their_partitions_by_the_names_of_today(txlog: Any, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, ["day"], {"delta.columnMapping.mode": "name"})
    append(table, [{"day": "1", "id": 1}])
    (file,) = txlog("files", tmp_path / "t", "--where", "day = '1'", "--json").document["files"]
    assert file["partition_values"] == {"day": "1"}


def test_files_say_how_many_of_their_rows_are_masked(txlog: Any, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, ["day"], {"delta.enableDeletionVectors": "true"})
    append(table, [{"day": "1", "id": 1}, {"day": "1", "id": 2}, {"day": "1", "id": 3}])
    mask(table, {0: [0, 2]})
    (file,) = txlog("files", tmp_path / "t", "--json").document["files"]
    assert (file["num_records"], file["deletion_vector"]) == (3, {"cardinality": 2})
    assert "deletes 2 of them" in txlog("files", tmp_path / "t").out


def test_files_are_chosen_by_a_predicate_and_its_parameters(txlog: Any, folder: Path) -> None:
    document = txlog(
        "files", folder, "--where", "id >= :n AND day = :d", "--param", "n=3", "--param", 'd="3"', "--json"
    )
    assert document.document["num_files"] == 1
    (file,) = document.document["files"]
    assert set(file) == {
        "path", "size_bytes", "num_records", "modification_time", "partition_values", "deletion_vector",
    }  # fmt: skip
    assert (file["partition_values"], file["num_records"], file["deletion_vector"]) == ({"day": "3"}, 1, None)
    assert txlog("files", folder, "--version", 1, "--json").document["num_files"] == 2
    some = txlog("files", folder, "--limit", 1, "--json").document
    assert (some["num_files"], len(some["files"]), some["truncated"]) == (2, 1, True)
    people = txlog("files", folder, "--limit", 1).out
    assert "2 files, " in people
    assert "of which 1 are shown" in people


@pytest.mark.parametrize(
    ("where", "value", "num_files"),
    [
        # The text of a column of texts, though it is JSON too.
        ("code = :v", "7", 1), ("code = :v", "007", 1), ("code = :v", "true", 1), ("code IN (:v)", "1e3", 1),
        ("code = :v", "99999999999999999999", 0), ("code = :v", "[1]", 0),
        ("code = :v", '"7"', 1), ("code = :v", "null", 0),
        # Beside a number, a date or a boolean, that.
        ("n = :v", "7", 1), ("n >= :v", "7", 2), ("flag = :v", "true", 4), ("price < :v", "7.5", 3),
        ("day = :v", "2024-01-07", 1),
        # Both at once.
        ("code = :v OR n = :v", "7", 1),
    ],
)  # fmt: skip
def test_a_parameter_is_read_as_the_column_beside_it_takes_it(
    txlog: Any, tmp_path: Path, where: str, value: str, num_files: int
) -> None:
    schema = {"code": pa.string(), "n": pa.int64(), "flag": pa.bool_(), "price": pa.float64(), "day": pa.date32()}
    table = Table.create(str(tmp_path / "t"), pa.schema(list(schema.items())), ["code"])
    for code, n, flag in (("7", 7, True), ("007", 8, False), ("true", 1, False), ("1e3", 2, True)):
        append(table, [{"code": code, "n": n, "flag": flag, "price": float(n), "day": dt.date(2024, 1, n)}])
    said = txlog("files", tmp_path / "t", "--where", where, "--param", f"v={value}", "--json")
    assert (said.document["num_files"], said.err) == (num_files, "")


def test_a_comparison_that_rules_out_no_file_is_named(txlog: Any, folder: Path) -> None:
    said = txlog("files", folder, "--where", "id = :v", "--param", "v=monday")
    assert "--where rules out no file by a long column beside a constant of type string." in said.err
    assert "2 files, " in said.out


def test_a_snapshot_counts_its_rows(txlog: Any, folder: Path, tmp_path: Path) -> None:
    assert txlog("snapshot", folder, "--json").document["num_rows"] == 2
    assert txlog("snapshot", folder, "--version", 2, "--json").document["num_rows"] == 3
    masked = Table.create(str(tmp_path / "m"), SCHEMA, ["day"], {"delta.enableDeletionVectors": "true"})
    append(masked, [{"day": "1", "id": 1}, {"day": "1", "id": 2}, {"day": "1", "id": 3}])
    mask(masked, {0: [0, 2]})
    assert txlog("snapshot", tmp_path / "m", "--json").document["num_rows"] == 1
    tx = masked.begin()
    tx.add([replace(add, stats=None) for add in stage(masked, pa.Table.from_pylist([{"day": "2", "id": 4}], SCHEMA))])
    tx.commit("WRITE")
    assert txlog("snapshot", tmp_path / "m", "--json").document["num_rows"] is None
    assert "not known: 1 of 2 files have no statistics of it" in txlog("snapshot", tmp_path / "m").out


def test_a_snapshot_tells_one_version(txlog: Any, folder: Path) -> None:
    document = txlog("snapshot", folder, "--version", 2, "--json").document
    assert (document["version"], document["num_files"], document["partition_columns"]) == (2, 3, ["day"])
    assert document["protocol"]["min_writer_version"] == 2
    assert [field["name"] for field in document["schema"]["fields"]] == ["day", "id"]
    assert document["properties"]["delta.setTransactionRetentionDuration"] == "interval 30 days"
    people = txlog("snapshot", folder).out
    assert "id: int64" in people
    assert "version:" in people
    moment = Table.open(str(folder)).snapshot(1).timestamp_ms
    assert txlog("snapshot", folder, "--timestamp", moment, "--json").document["version"] == 1


def test_a_checkpoint_prints_its_version(txlog: Any, folder: Path) -> None:
    assert txlog("checkpoint", folder, "--json").document == {"table": f"file://{folder}", "version": 3}
    assert (folder / "_delta_log" / f"{3:020d}.checkpoint.parquet").exists()


@pytest.mark.long("the command starts for each case")
def test_an_upkeep_does_what_is_due_of_every_table_of_a_folder_and_tells_of_those_that_fail(
    txlog: Any, tmp_path: Path
) -> None:
    for name, files in (("a", 4), ("b", 1)):
        rows = [pa.table({"id": [number]}) for number in range(files)]
        make_table(tmp_path / "lake" / name, *rows, properties={"delta.checkpointInterval": "1000"})
    due = txlog("upkeep", tmp_path / "lake", "--dry-run", "--json").document
    assert [[step["step"] for step in entry["steps"]] for entry in due["tables"]] == [["compact"], []]
    (tmp_path / "lake" / "c" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "c" / "_delta_log" / f"{0:020}.json").write_text("{")
    said = txlog("upkeep", tmp_path / "lake", "--vacuum", "none", "--json")
    assert said.code == 1
    assert [entry["status"] for entry in said.document["tables"]] == ["committed", "nothing_to_do", "failed"]
    assert Table.open(str(tmp_path / "lake" / "a")).snapshot().num_files == 1
    assert "compact" not in txlog("upkeep", tmp_path / "lake" / "a").out
    assert txlog("upkeep", tmp_path / "elsewhere", "--json").code == 1


def test_a_convert_makes_a_folder_a_table(txlog: Any, tmp_path: Path) -> None:
    place = tmp_path / "t" / "day=2024-01-01"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), place / "a.parquet")
    (place / "notes.txt").write_text("no data")
    words = ["convert", tmp_path / "t", "--partition-schema", "day DATE"]
    assert txlog(*words, "--dry-run").out == "1 files with 2 rows would be converted, 1 files left out\n"
    assert not Table.exists(tmp_path / "t")
    assert txlog(*words, "--json").document == {
        "table": f"file://{tmp_path / 't'}",
        "version": 0,
        "committed": True,
        "dry_run": False,
        "num_files": 1,
        "num_rows": 2,
        "left_out": ["day=2024-01-01/notes.txt"],
    }
    assert "TableAlreadyExists" in txlog(*words).err


def test_a_clone_is_made_once_and_brought_up_to_date(txlog: Any, folder: Path, tmp_path: Path) -> None:
    words = ["clone", tmp_path / "copy", "--from", folder, "--set-property", "delta.appendOnly=false"]
    first = Table.open(folder).snapshot(1)
    assert txlog(*words, "--version", "1", "--json").document == {
        "table": f"file://{tmp_path / 'copy'}",
        "version": 0,
        "committed": True,
        "num_copied_files": first.num_files,
        "copied_size_bytes": first.size_bytes,
        "num_removed_files": 0,
    }
    assert Table.open(tmp_path / "copy").snapshot().properties["delta.appendOnly"] == "false"
    assert "TableAlreadyExists" in txlog(*words).err
    assert txlog(*words, "--replace").out.startswith("cloned by version 1, ")
    assert txlog(*words, "--replace").out == "a clone of that version already: nothing to do\n"
    assert txlog("clone", tmp_path / "u", "--from", folder, "--shallow").out == "cloned by version 0, 0 files copied\n"
    for wrong in (["--version", "1", "--timestamp", "2024-01-01"], ["--set-property", "x"]):
        assert txlog(*words, *wrong).code == 2


def test_an_alter_changes_the_table_once_for_each_call(txlog: Any, folder: Path) -> None:
    words = ["--set-property", "comment=days and ids", "--add-column", "note=STRING", "--set-comment", "id=the key"]
    words += ["--set-not-null", "id", "--add-constraint", "positive=id > 0", "--set-comment", "day="]
    assert txlog("alter", folder, *words, "--json").document == {
        "table": Table.open(folder).uri,
        "version": 4,
        "committed": True,
    }
    snapshot = Table.open(folder).snapshot()
    assert snapshot.properties["delta.constraints.positive"] == "id > 0"
    assert snapshot.metadata.description == "days and ids"
    assert [field.nullable for field in snapshot.delta_schema] == [True, False, True]
    assert txlog("alter", folder, "--set-not-null", "id").out == "as it should be at version 4: nothing to do\n"
    assert txlog("alter", folder, "--drop-constraint", "positive").out == "altered by version 5\n"
    assert txlog("alter", folder, "--add-constraint", "positive=id > 0").out == "altered by version 6\n"
    assert txlog("alter", folder, "--rename-column", "note=text").code == 1


def test_a_clustering_column_may_have_a_comma_in_backquotes(txlog: Any, tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    table = make_table(tmp_path / "c", pa.table({"a,b": [1], "c": [1]}), properties=mapped)
    assert txlog("alter", tmp_path / "c", "--cluster-by", "c, `a,b`").code == 0
    names = {field.name: field.physical_name for field in table.snapshot().delta_schema}
    found = json.loads(table.snapshot().state.domains["delta.clustering"].configuration)["clusteringColumns"]
    assert found == [[names["c"]], [names["a,b"]]]


def test_staged_changes_are_listed(txlog: Any, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    assert txlog("staged", table.uri, "--json").document == {"table": table.uri, "staged": []}
    handle = stage_change("delete", table, predicate="id = 2")
    published = stage_change("delete", table, predicate="id = 7 OR id = 1")
    (change, other) = txlog("staged", table.uri, "--json").document["staged"]
    assert (change["id"], change["operation"], change["base_version"]) == (handle["id"], "delete", 1)
    assert (change["state"], change["expires_at"], change["files"]) == ("waits", handle["expires_at"], 1)
    assert other["id"] == published["id"]
    shown = txlog("staged", table.uri)
    assert (shown.code, handle["id"] in shown.out, "-1" in shown.out) == (0, True, True)
    assert publish_change(published).status == "committed"
    assert publish_change(handle).status == "failed"
    (change,) = txlog("staged", table.uri, "--json").document["staged"]
    assert (change["id"], change["state"]) == (handle["id"], "refused")


def test_what_is_left_of_a_value_is_listed_without_it(txlog: Any, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.table({"mail": ["canary@example.org", "bob@example.org"]}))
    (tmp_path / "values").write_text("canary@example.org\nnever@example.org\n")
    (tmp_path / "none").write_text("\n")
    given = ("traces", table.uri, "--column", "mail", "--values")
    found = txlog(*given, tmp_path / "values", "--json")
    assert (found.code, found.document["num_objects"], found.document["is_complete"]) == (1, 3, False)
    assert sorted(each["verdict"] for each in found.document["left"]) == ["found", "statistic only"]
    shown = txlog(*given, tmp_path / "values")
    assert (shown.code, "add.stats" in shown.out, "3 objects read: 1 without a trace" in shown.out) == (1, True, True)
    assert not any("canary" in each.out + each.err for each in (found, shown))
    assert txlog(*given, tmp_path / "none").code == 2
    (tmp_path / "values").write_text("never@example.org\n")
    assert txlog(*given, tmp_path / "values", "--json").document["is_complete"]


def test_a_value_inside_of_a_text_is_found_by_another_column_as_the_command_says(txlog: Any, tmp_path: Path) -> None:
    columns = {"mail": ["anna@example.org"], "note": ["gift, ask canary@example.org"], "day": [1]}
    table = make_table(tmp_path / "t", pa.table(columns))
    (tmp_path / "values").write_text("canary@example.org\n")
    found = {name: txlog("traces", table.uri, "--column", name, "--values", tmp_path / "values") for name in columns}
    assert (found["note"].code, found["mail"].code) == (0, 1)
    assert "compared by whole values" in found["note"].out
    assert "To search inside of note, name another column of texts" in found["note"].out
    assert "column 'note'" in found["mail"].out
    (tmp_path / "days").write_text("7\n")
    assert "whole values" not in txlog("traces", table.uri, "--column", "day", "--values", tmp_path / "days").out


def test_a_restore_makes_an_earlier_version_the_latest(txlog: Any, folder: Path) -> None:
    before = sorted_rows(Table.open(str(folder)).to_arrow(version=1))
    assert txlog("restore", folder, "--version", 1, "--json").document == {
        "table": f"file://{folder}", "version": 4, "committed": True,
    }  # fmt: skip
    assert sorted_rows(Table.open(str(folder)).to_arrow()) == before
    assert txlog("restore", folder, "--version", 4).out == "already at version 4: nothing to do\n"


def test_a_vacuum_names_what_would_go_and_then_deletes_it(txlog: Any, folder: Path) -> None:
    arguments = ("vacuum", folder, "--retention-hours", 0, "--no-check-retention")
    dry = txlog(*arguments, "--dry-run", "--json").document
    assert (dry["dry_run"], dry["num_files"], dry["deleted_files"], len(dry["files"])) == (True, 1, 0, 1)
    assert "day=1/" in txlog(*arguments, "--dry-run").out
    done = txlog(*arguments, "--json").document
    assert (done["dry_run"], done["num_files"], done["deleted_files"]) == (False, 1, 1)
    assert txlog("vacuum", folder).out == "0 files (0 B) to delete, 0 deleted\n"


def test_the_commands_tend_a_table_in_a_bucket(txlog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_folder()
    table = Table.create(uri, SCHEMA, ["day"], storage_options=s3.options())
    append(table, [{"day": "1", "id": 1}, {"day": "2", "id": 2}])
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    tx.commit("DELETE", {"predicate": "[]"})
    lake = ("--conn-id", s3.connection(monkeypatch, uri.removesuffix("/t")))
    assert [each["version"] for each in txlog("history", "t", *lake, "--json").document["commits"]] == [2, 1, 0]
    assert txlog("files", "t", *lake, "--json").document["num_files"] == 1
    assert txlog("checkpoint", "t", *lake, "--json").document["version"] == 2
    retention = ("--retention-hours", 0, "--no-check-retention")
    assert txlog("vacuum", "t", *lake, *retention, "--json").document["deleted_files"] == 1
    assert [key for key in s3.keys_under(uri) if "day=" in key] == [
        key for key in s3.keys_under(uri) if key.startswith("day=2/")
    ]


def test_a_vacuum_goes_by_the_log_or_by_an_inventory(txlog: Any, folder: Path, tmp_path: Path) -> None:
    arguments = ("vacuum", folder, "--retention-hours", 0, "--no-check-retention", "--json")
    removed = next(folder.glob("day=1/*.parquet"))
    report = tmp_path / "report.csv"
    report.write_text(f"path,modificationTime\n{removed},0\n{tmp_path}/elsewhere,0\n")
    proposed = txlog(*arguments, "--dry-run", "--inventory", report, "--parallelism", 2).document
    assert (proposed["mode"], proposed["files"]) == ("full", [f"file://{removed}"])
    lite = txlog(*arguments, "--mode", "lite").document
    assert (lite["mode"], lite["deleted_files"]) == ("lite", 1)
    assert not removed.exists()
    (folder / "_delta_log" / "_last_vacuum_info").unlink()
    Table.open(str(folder)).checkpoint()
    (folder / "_delta_log" / f"{0:020d}.json").unlink()
    refused = txlog(*arguments, "--mode", "lite")
    assert (refused.code, refused.document["error"]["type"]) == (1, "CannotVacuumLite")


# --- what they refuse -----------------------------------------------------------------------------------------------


def test_an_error_is_a_document_too(txlog: Any, folder: Path) -> None:
    said = txlog("vacuum", folder, "--retention-hours", 1, "--json")
    assert said.code == 1
    assert said.document["error"]["type"] == "RetentionTooShort"
    assert said.document["error"]["facts"]["asked_ms"] == 3_600_000
    assert said.err.startswith("RetentionTooShort: vacuum of ")


@pytest.mark.parametrize(
    "words", [["history", "s3://lake/t"], ["erasure", "verify", "s3://lake/reports/r.json", "--public-key", "00"]]
)
def test_a_command_without_credentials_names_its_option(
    txlog: Any, words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    said = txlog(*words)
    assert said.code == 1
    assert "--conn-id" in said.out + said.err


@pytest.mark.parametrize(
    "words",
    [
        ["files", "t", "--timestamp", "9" * 5_000],
        ["files", "t", "--timestamp", "9" * 20],
        ["restore", "t", "--timestamp", "--3"],
        ["vacuum", "t", "--retention-hours", "nan"],
        ["vacuum", "t", "--orphan-retention-hours", "1e300"],
    ],
)
def test_a_time_that_is_none_fails_without_a_traceback(txlog: Any, folder: Path, words: Sequence[str]) -> None:
    # As a shell would give it, a value that looks like an option stands behind an equals sign.
    given = [*words[:-2], f"{words[-2]}={words[-1]}"]
    said = txlog(*(str(folder) if word == "t" else word for word in given))
    assert said.code == 1
    assert said.err.splitlines()[-1].startswith("InvalidInput: ")


def test_a_deeply_nested_parameter_is_text(txlog: Any, folder: Path) -> None:
    assert txlog("files", folder, "--where", "id = :n", "--param", f"n={'[' * 100_000}").code == 0


def test_a_name_with_a_line_break_is_one_line_of_a_vacuum(txlog: Any, folder: Path) -> None:
    (folder / "a\nb.parquet").touch()
    os.utime(folder / "a\nb.parquet", (0, 0))
    assert f"file://{folder}/a\\nb.parquet" in txlog("vacuum", folder, "-n").out.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["history"],
        ["history", "t", "--limit", "-1"],
        ["history", "t", "--limit", "many"],
        ["nonsense", "t"],
        ["restore", "t"],
        ["alter", "t"],
        ["alter", "t", "--set-property", "a"],
        ["alter", "t", "--cluster-by", "a,`b"],
        ["alter", "t", "--add-column", "a=INT", "--add-column", "A=INT"],
        ["restore", "t", "--version", "1", "--timestamp", "2026-01-01"],
        ["files", "t", "--param", "nothing", "--where", "id = :nothing"],
        ["files", "t", "--param", "n=1"],
        ["files", "t", "--where", "id = :n", "--param", "n=1", "--param", "n=2"],
        ["snapshot", "t", "--version", "one"],
        ["vacuum", "t", "--mode", "light"],
    ],
)
def test_wrong_usage_ends_with_2(txlog: Any, folder: Path, words: Sequence[str]) -> None:
    said = txlog(*(str(folder) if word == "t" else word for word in words))
    assert said.code == 2
    assert said.out == "" or "usage" in said.out.lower()


@pytest.mark.parametrize(("answer", "code", "version"), [("n\n", 1, 3), ("\n", 1, 3), ("", 1, 3), ("y\n", 0, 4)])
def test_on_a_terminal_it_asks_first(
    txlog: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, version: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    said = txlog("restore", folder, "--version", 1)
    assert (said.code, Table.open(str(folder)).snapshot().version) == (code, version)
    assert "now at version 3, to version 1? [y/N]" in said.err
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert txlog("restore", folder, "--version", 1, "--yes").code == 0


def test_the_watermarks_of_a_table_are_shown_and_set(txlog: Any, folder: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    make_table(tmp_path / "target", schema=SCHEMA)
    assert txlog("incremental", "show", target, "--json").document["consumers"] == []
    words = ("incremental", "reset", target, "--consumer", "c", "--to-version")
    assert (said := txlog(*words, 1)).code == 2
    assert "--source" in said.err
    assert txlog(*words, 9, "--source", folder).code == 2
    said = txlog(*words, 1, "--source", folder, "--json")
    source = Table.open(str(folder))
    assert said.document == {
        "table": Table.open(target).uri,
        "version": 1,
        "consumer": "c",
        "source": source.uri,
        "to_version": 1,
    }
    assert "the writer feature domainMetadata" in said.err
    append(source, [{"day": "4", "id": 4}])
    increment = {"consumer": "c", "source": {"table": str(folder)}, "skip_change_commits": True}
    assert run(None, "incremental", target, **increment).status == "committed"
    assert sorted(Table.open(target).to_arrow().column("id").to_pylist()) == [3, 4]
    (shown,) = txlog("incremental", "show", target, "--json").document["consumers"]
    assert shown == {
        "consumer": "c",
        "source": source.uri,
        "table_id": source.snapshot().metadata.id,
        "version": 4,
        "others": {},
        "lost": None,
    }
    said = txlog("incremental", "reset", target, "--consumer", "cc", "--to-version", 1)
    near = "'cc'. Did you mean 'c'? The table's consumers are c. For a new one, name its source with --source"
    assert near in said.err
    assert txlog(*words, -1).code == 0
    assert "lost" not in txlog("incremental", "show", target).out
    assert run(None, "incremental", target, **increment).status == "committed"
    assert sorted(Table.open(target).to_arrow().column("id").to_pylist()) == [1, 2, 3, 3, 4, 4]
    tx = Table.open(target).begin()
    tx.set_domain("txlog.incremental.c", "null")
    tx.commit("WRITE")
    (shown,) = txlog("incremental", "show", target, "--json").document["consumers"]
    assert (shown["consumer"], shown["version"], "holds another text" in shown["lost"]) == ("c", None, True)
    assert "lost" in txlog("incremental", "show", target).out
    assert (txlog(*words, -1).code, txlog(*words, -1, "--source", folder).code) == (2, 0)
    tx = Table.open(target).begin()
    tx.read_whole_table()
    tx.commit("RESTORE", {"version": 0, "timestamp": None}, record_empty=True)
    assert "RESTORE to version 0" in txlog("incremental", "show", target).out


def test_a_ledger_is_created_shown_and_gets_another_key(
    txlog: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "erased"
    assert txlog("ledger", "create", ledger, "--json").document["created"] is True
    assert txlog("ledger", "create", ledger, "--json").document["created"] is False
    table, (old, new) = Table.open(str(folder)), ("a" * 64, "b" * 64)
    key = DigestKey.of(old, "the key")
    snapshot = table.snapshot()
    Ledger(Table.open(str(ledger)), [key]).record("r-1", snapshot, Forms.of(snapshot, "id", [1]))
    (shown,) = txlog("ledger", "show", ledger, "--json").document["erasures"]
    del shown["recorded_at"]
    assert shown == {"request_id": "r-1", "table": table.uri, "column": "id", "subjects": 1, "keys": [key.id]}
    assert key.id in txlog("ledger", "show", ledger).out
    extra = {"erasure_ledger": "erased", "erasure_key_conn_id": "keys"}
    lake = {"conn_type": "txlog", "host": str(tmp_path), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(lake))
    restore = ("restore", folder.name, "--conn-id", "lake", "--version", 2, "--json")
    for keys, error in [
        ({"password": old}, "SubjectReturns"),
        ({"password": new}, "LedgerKeyMissing"),
        ({"password": ""}, "InvalidInput"),
        ({"password": new, "extra": {"previous_secrets": 1}}, "InvalidInput"),
    ]:
        monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps({"conn_type": "generic", **keys}))
        assert txlog(*restore).document["error"]["type"] == error
    both = {"conn_type": "generic", "password": new, "extra": {"previous_secrets": [old]}}
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps(both))
    rotated = txlog("ledger", "rotate", ledger, "--key-conn-id", "keys", "--json").document
    assert (rotated["changed"], rotated["key"]) == (1, DigestKey.of(new, "the key").id)
    assert txlog(*restore).document["error"]["type"] == "SubjectReturns"
    # The commands that run a job are guarded, too.
    clone = ("clone", "copy", "--from", folder.name, "--conn-id", "lake", "--json")
    assert txlog(*clone, "--version", 2).document["error"]["type"] == "SubjectReturns"
    assert txlog(*clone).document["committed"] is True
    assert table.latest_version() == 3
    # So is Python code that uses the connection; other commits of its table are compared with nothing.
    opened = TxlogHook("lake").open(folder.name)
    with pytest.raises(SubjectReturns):
        opened.restore(2)
    append(opened, [{"day": "4", "id": 1}])
    assert opened.restore(3) == 5
    check = ("ledger", "check", folder.name)
    assert txlog(*check, "--conn-id", "lake").code == 0
    assert txlog("ledger", "check", folder).code == 2
    # Another engine does not know the ledger.
    table.restore(2)
    said = txlog(*check, "--conn-id", "lake", "--json")
    (file,) = said.document["files"]
    assert (said.code, file["rows"], file["columns"], file["requests"]) == (1, 1, ["id"], ["r-1"])
    assert "1 rows of request r-1" in txlog(*check, "--conn-id", "lake").out


def test_a_check_by_the_ledger_shows_no_subject_in_the_path_of_a_partition(
    txlog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("email", pa.string()), ("n", pa.int64())]), ["email"])
    append(table, [{"email": "anna@example.com", "n": 1}])
    create_ledger(Table.at(str(tmp_path / "erased"), PLAIN))
    snapshot, key = table.snapshot(), DigestKey.of("a" * 64, "the key")
    Ledger(Table.open(str(tmp_path / "erased")), [key]).record(
        "r-1", snapshot, Forms.of(snapshot, "email", ["anna@example.com"])
    )
    extra = {"erasure_ledger": "erased", "erasure_key_conn_id": "keys"}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "txlog", "host": str(tmp_path), "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps({"conn_type": "generic", "password": "a" * 64}))
    for how in ((), ("--json",)):
        shown = txlog("ledger", "check", "t", "--conn-id", "lake", *how)
        assert shown.code == 1
        assert "email=*/part-" in shown.out
        assert "anna" not in shown.out


def test_a_pair_is_named_by_the_form_that_the_help_shows(txlog: Any, folder: Path) -> None:
    assert "--add-column is NAME=TYPE, not 'a'." in txlog("alter", folder, "--add-column", "a").err
