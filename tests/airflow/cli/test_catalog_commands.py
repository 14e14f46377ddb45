"""`airflow txlog` with a table's name in a catalog, and the commands that write and compare its entry."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.hooks.txlog import TxlogHook
from tests.conftest import REPORTED
from tests.helpers.catalogs import HiveBackend, Record
from tests.helpers.metastore import Metastore
from tests.helpers.rows import append

pytestmark = pytest.mark.airflow

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def backend(metastore: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HiveBackend:
    monkeypatch.setenv("AIRFLOW_CONN_NAMES", metastore.connection)
    return HiveBackend(metastore, str(tmp_path))


@pytest.fixture
def name(backend: HiveBackend) -> str:
    database = f"db_{uuid.uuid4().hex}"
    backend.create_database(database)
    return f"{database}.orders"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three orders, at a place that the catalog does not know."""
    table = Table.create(str(tmp_path / "orders"), SCHEMA, ["day"])
    append(table, [{"id": 1, "day": "a"}, {"id": 2, "day": "b"}])
    return table


@pytest.fixture
def txlog(airflow_home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `airflow txlog … --catalog-conn-id names --json`; the exit code and the document."""
    from airflow.cli.cli_parser import get_parser

    def run(*words: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = 0
        try:
            args = get_parser().parse_args(["txlog", *map(str, words), "--catalog-conn-id", "names", "--json"])
            args.func(args)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_table_is_registered_once_and_then_read_by_its_name(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    code, found = txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    assert (code, found["outcome"]) == (0, "registered")
    assert txlog("catalog", "sync", name)[1]["outcome"] == "unchanged"
    code, found = txlog("history", name)
    assert (code, len(found["commits"])) == (0, 2)
    assert backend.catalog.find(name).uri == str(tmp_path / "orders")


def test_an_entry_that_fell_behind_is_found_and_repaired(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    assert txlog("catalog", "check", name) == (
        0,
        {"table": name, "table_uri": str(tmp_path / "orders"), "version": 1, "differences": []},
    )
    arguments = {"add_columns": {"note": "STRING"}, "set_properties": {"delta.appendOnly": "true"}}
    TxlogHook().run("alter", str(tmp_path / "orders"), arguments, idempotency_key="k", runner="in_process")
    code, found = txlog("catalog", "check", name)
    assert code == 1
    assert found["differences"] == [
        {"what": "delta.appendOnly", "catalog": None, "log": "true"},
        {"what": "column note", "catalog": None, "log": "string"},
    ]
    assert txlog("catalog", "sync", name)[1]["outcome"] == "updated"
    assert txlog("catalog", "check", name)[0] == 0


def test_a_table_that_was_replaced_at_its_place_is_found_by_its_id(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    shutil.rmtree(tmp_path / "orders")
    Table.create(str(tmp_path / "orders"), SCHEMA, ["day"])
    code, found = txlog("catalog", "check", name)
    assert (code, [each["what"] for each in found["differences"]]) == (1, ["table id"])


def test_a_name_of_another_place_and_a_place_without_a_table_are_refused(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    assert txlog("catalog", "sync", name, "--location", tmp_path / "nothing")[1]["error"]["type"] == "TableNotFound"
    backend.put(Record(name=name, location=f"{tmp_path}/theirs", parameters={"table_type": "delta"}))
    code, found = txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    assert (code, found["error"]["type"]) == (1, "InvalidJobSpec")
    assert backend.catalog.find(name).uri == f"{tmp_path}/theirs"


def test_a_missing_name_and_a_path_are_not_compared(txlog: Command, backend: HiveBackend, name: str) -> None:
    assert txlog("catalog", "check", name)[1]["error"]["type"] == "TableNotInCatalog"
    code, found = txlog("catalog", "check", "/lake/orders")
    assert (code, found["error"]["type"]) == (2, "UsageError")


def test_a_command_that_changes_a_table_by_its_name_keeps_the_entry_up_to_date(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    assert txlog("alter", name, "--add-column", "note=STRING", "--yes")[1]["committed"]
    assert [column for column, _ in backend.get(name).columns] == ["id", "day", "note"]
    assert txlog("restore", name, "--version", 1, "--yes")[1]["committed"]
    assert [column for column, _ in backend.get(name).columns] == ["id", "day"]
    assert txlog("catalog", "check", name)[0] == 0
    assert table.history(2)[1]["tags"]["airflow.table"] == name


def test_a_clone_by_a_name_that_is_new_is_registered(
    txlog: Command, backend: HiveBackend, name: str, table: Table, tmp_path: Path
) -> None:
    txlog("catalog", "sync", name, "--location", tmp_path / "orders")
    new = f"{name}_copy"
    code, found = txlog("clone", new, "--from", name, "--yes")
    assert (code, found["committed"]) == (0, True), found
    assert Table.open(backend.catalog.find(new).uri).snapshot().num_files == 2


def test_to_resolve_a_name_takes_little_time(
    backend: HiveBackend, name: str, table: Table, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Reported, and not asserted: seconds would be those of the machine."""
    backend.put(Record(name=name, location=str(tmp_path / "orders"), parameters={"table_type": "delta"}))
    times = []
    for _ in range(10):
        hook = TxlogHook(catalog_conn_id="names")
        began = time.perf_counter()
        assert hook.table_uri(name) == str(tmp_path / "orders")
        times.append(time.perf_counter() - began)
    record_property(REPORTED, f"a name of the metastore is resolved in {1000 * sorted(times)[5]:.1f} ms (median of 10)")
