"""Files that a log names outside of its table: read only where allowed, and never from another kind of store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.errors import InvalidJobSpec, OutsideTable
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage import Access, LocalStore, MemoryStore
from tests.helpers.canary import MARK, Canary
from tests.helpers.jobs import error_of, rows
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec
from tests.helpers.vectors import allow_vectors, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def name_in_log(table: Table, path: str, size_bytes: int, **more: Any) -> None:
    """A commit that adds this path as it is."""
    tx = table.begin()
    tx.add(path=path, size=size_bytes, stats='{"numRecords":1}', **more)
    tx.commit("CLONE")


def clone_of(folder: Path, canary: Canary, spelling: str = "file://{path}", **properties: str) -> Table:
    """A table with rows of its own and one file of the canary's."""
    table = make_table(folder, rows(3), properties=properties)
    name_in_log(table, spelling.format(path=canary.rows), canary.rows.stat().st_size)
    return table


SPELLINGS = ["file://{path}", "file:{path}", "{path}", "../outside/rows.parquet", "p/../../outside/rows.parquet"]


@pytest.mark.parametrize("in_checkpoint", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_outside_is_read_only_where_that_is_allowed(
    tmp_path: Path, canary: Canary, spelling: str, in_checkpoint: bool
) -> None:
    table = clone_of(tmp_path / "t", canary, spelling)
    if in_checkpoint:
        table.checkpoint()
        for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
            commit.unlink()
    table = Table.open(str(tmp_path / "t"))
    assert table.snapshot().num_files == 2, "the log itself can be looked at"
    with pytest.raises(OutsideTable, match="allow_absolute_paths") as caught:
        table.to_arrow()
    assert caught.value.path == f"file://{canary.rows}"
    canary.check(caught.value, caught.value.to_dict())
    allowed = Table.open(str(tmp_path / "t"), allow_absolute_paths=True)
    assert MARK in allowed.to_arrow().column("name").to_pylist()


def test_change_rows_of_a_file_outside_are_read_only_where_that_is_allowed(tmp_path: Path, canary: Canary) -> None:
    table = clone_of(tmp_path / "t", canary, **{"delta.enableChangeDataFeed": "true"})
    with pytest.raises(OutsideTable, match="allow_absolute_paths"):
        table.changes(0)
    assert Table.open(table.store.root, allow_absolute_paths=True).changes(0).num_rows == 4


def test_a_deletion_vector_outside_is_read_only_where_that_is_allowed(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3))
    allow_vectors(table)
    (vector,) = stored(canary.folder, [[1]])
    (file,) = canary.folder.glob("deletion_vector_*.bin")
    outside = DeletionVector(
        storage_type="p",
        path_or_inline_dv=file.as_uri(),
        offset=vector.offset,
        size_in_bytes=vector.size_in_bytes,
        cardinality=1,
    )
    (row,) = table.snapshot().files().to_pylist()
    tx = table.begin()
    tx.remove(tx.read())
    tx.add(path=row["path"], size=row["size"], stats='{"numRecords":3}', deletion_vector=outside)
    tx.commit("DELETE")
    try:
        with pytest.raises(OutsideTable, match="allow_absolute_paths"):
            table.to_arrow()
        assert Table.open(table.uri, allow_absolute_paths=True).to_arrow().num_rows == 2
    finally:
        file.unlink()
        canary.forget()


FOREIGN = [
    "http://127.0.0.1:9/f.parquet",
    "https://user:password@host/f.parquet",
    "s3://bucket/f.parquet",
    "memory://other/f.parquet",
    "hdfs://n/f.parquet",
    "ftp://host/f",
]


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("path", FOREIGN)
def test_no_other_kind_of_store_is_ever_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, allow: bool
) -> None:
    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("a file system was opened")

    monkeypatch.setattr(fsspec.core, "url_to_fs", opened)
    table = make_table(tmp_path / "t", rows(3))
    name_in_log(table, path, 10)
    table = Table.open(table.uri, allow_absolute_paths=allow)
    with pytest.raises(OutsideTable, match="another kind of store") as caught:
        table.to_arrow()
    assert "password" not in str(caught.value.to_dict())
    assert not caught.value.retryable


def test_a_chain_of_file_systems_is_never_opened(tmp_path: Path) -> None:
    store = MemoryStore("memory://chained", Access(allow_absolute_paths=True))
    with pytest.raises(OutsideTable, match="another kind of store"):
        store.open_input("a::file:/etc/passwd")
    # A local file may be called so.
    (tmp_path / "a::b").write_bytes(b"1")
    assert LocalStore(str(tmp_path)).open_input("a::b").read() == b"1"


def test_a_folder_whose_path_begins_with_two_slashes_is_the_table_s_folder(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    assert Table.open(f"//{str(tmp_path).lstrip('/')}/t").uri == table.uri


# --- connections and jobs -------------------------------------------------------------------------------------------


def test_the_permission_goes_from_the_connection_to_the_tables_and_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, is_on in ((True, True), ("true", True), (False, False), (None, False)):
        connection = {"conn_type": "txlog", "extra": {"allow_absolute_paths": value}}
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
        assert TxlogHook("lake").access.allow_absolute_paths is is_on
    assert TxlogHook(None).access.allow_absolute_paths is False
    with pytest.raises(InvalidJobSpec, match="allow_absolute_paths"):
        job_spec(operation="checkpoint", table_uri="/t", allow_absolute_paths="yes")  # type: ignore[arg-type]


JOBS: dict[str, dict[str, Any]] = {
    "delete": {"predicate": "pmod(id, 1000) = 1"},
    "update": {"predicate": "pmod(id, 1000) = 999", "set": {"amount": "1"}},
    "optimize": {},
    "write": {"source": {"sql": "SELECT * FROM clone", "views": {"clone": {"table": "{clone}"}}}, "mode": "append"},
}


@pytest.mark.spark
@pytest.mark.parametrize("operation", JOBS)
def test_a_job_reads_rows_outside_only_where_the_connection_allows_it(
    tmp_path: Path, spark: SparkSession, canary: Canary, operation: str
) -> None:
    clone = clone_of(tmp_path / "clone", canary)
    target = make_table(tmp_path / "t", rows(1)) if operation == "write" else clone
    arguments = json.loads(json.dumps(JOBS[operation]).replace("{clone}", clone.uri))
    spec = job_spec(operation=operation, table_uri=target.uri, arguments=arguments)
    before, lines = target.latest_version(), list[str]()
    result = run_job(spec, spark, log=lines.append)
    error = error_of(result)
    assert error["type"] == "OutsideTable"
    assert "allow_absolute_paths" in error["message"]
    assert target.latest_version() == before
    canary.check(result, lines)
    if operation in ("update", "write"):
        allowed = run_job(spec.replace(access=Access(allow_absolute_paths=True)), spark)
        assert allowed.status == "committed", allowed.error
        copied = Table.open(target.uri, allow_absolute_paths=operation == "update").to_arrow()
        assert MARK in copied.column("name").to_pylist()
