"""A symbolic link inside a table leads nothing and nobody out of it: no read, no write, no delete, no listing.

Each attack has a canary outside of the table, which must stay byte for byte as it was, and whose content must stand in
no output. Where a folder is replaced by a link while we work, the swap happens at one fixed point.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.clock import SystemClock
from airflow_txlog.datafiles.staged_files import CHANGE_TYPE_COLUMN
from airflow_txlog.engine import Table
from airflow_txlog.errors import OutsideTable
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.storage import Access, LocalStore
from tests.helpers.canary import Canary
from tests.helpers.jobs import KEY, application, error_of, rows, run
from tests.helpers.rows import append, make_table, stage, stage_changes
from tests.helpers.specs import job_spec
from tests.helpers.vectors import allow_vectors, mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = "day=2024-01-01"
SWAPPED_AFTER = ("open", "makedirs", "scandir", "listdir")
COMMIT = "_delta_log/00000000000000000001.json"
FEED = {"delta.enableChangeDataFeed": "true"}
V2 = {"delta.checkpointPolicy": "v2"}


def linked(path: Path, target: Path) -> None:
    """Put a link to `target` in the place of `path` in the table `t`; what was there moves beside the table."""
    if path.exists():
        beside = next(parent for parent in path.parents if parent.name == "t").parent
        path.rename(beside / f"kept-{path.name}")
    path.symlink_to(target)


def refused(call: Callable[[], object], canary: Canary, link: str) -> None:
    """The call is refused by name, and names the component that is the link."""
    with pytest.raises(OutsideTable, match="symbolic link") as caught:
        call()
    assert caught.value.link == link
    assert not caught.value.retryable
    canary.check(caught.value, caught.value.to_dict())


# --- the engine -------------------------------------------------------------------------------------------------------


def test_a_log_that_is_a_link_is_neither_read_nor_written(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3))
    linked(tmp_path / "t" / "_delta_log", canary.folder)
    for call in (
        table.snapshot,
        table.history,
        lambda: Table.open(str(tmp_path / "t")),
        lambda: Table.exists(str(tmp_path / "t")),
        lambda: Table.create(str(tmp_path / "t"), rows(1).schema),
        lambda: table.store.put("_delta_log/x", b"x"),
        lambda: table.store.put_if_absent(COMMIT, b"x"),
        lambda: table.store.open_output("_delta_log/x"),
        lambda: table.store.delete("_delta_log/secret"),
        lambda: table.store.read("_delta_log/secret"),
        lambda: table.store.open_input("_delta_log/secret"),
        lambda: table.store.stat("_delta_log/secret"),
        lambda: table.store.list("_delta_log"),
        lambda: table.store.delete_empty_directory("_delta_log/empty"),
        table.store.now_ms,
    ):
        refused(call, canary, "_delta_log")


def test_a_log_that_becomes_a_link_before_the_commit_gets_none(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3))
    tx = table.begin()
    tx.add(stage(table, rows(1, start=3), tx=tx))
    linked(tmp_path / "t" / "_delta_log", canary.folder)
    refused(lambda: tx.commit("WRITE"), canary, "_delta_log")


@pytest.mark.parametrize("name", ["00000000000000000001.json", "00000000000000000001.checkpoint.parquet"])
def test_a_file_of_the_log_that_is_a_link_is_not_read_and_not_passed_over(
    tmp_path: Path, canary: Canary, name: str
) -> None:
    """To pass over it would be to read an older version, and to commit on top of that."""
    table = make_table(tmp_path / "t", rows(3))
    if "checkpoint" in name:
        table.checkpoint()
        (tmp_path / "t" / "_delta_log" / "_last_checkpoint").unlink()
    linked(tmp_path / "t" / "_delta_log" / name, canary.secret)
    refused(lambda: Table.open(str(tmp_path / "t")).begin(), canary, f"_delta_log/{name}")
    refused(lambda: Table.open(str(tmp_path / "t"), allow_absolute_paths=True), canary, f"_delta_log/{name}")


def test_a_hint_that_is_a_link_is_no_hint(tmp_path: Path, canary: Canary) -> None:
    make_table(tmp_path / "t", rows(3)).checkpoint()
    hint = tmp_path / "t" / "_delta_log" / "_last_checkpoint"
    linked(hint, canary.secret)
    table = Table.open(str(tmp_path / "t"))
    append(table, rows(1, start=3))
    table.checkpoint()
    assert not hint.is_symlink()


def test_sidecars_behind_a_link_are_neither_written_read_nor_cleaned(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3), properties=V2)
    sidecars = tmp_path / "t" / "_delta_log" / "_sidecars"
    sidecars.symlink_to(canary.folder)
    refused(table.checkpoint, canary, "_delta_log/_sidecars")
    sidecars.unlink()
    table.checkpoint()
    elsewhere = shutil.move(sidecars, tmp_path / "moved")
    sidecars.symlink_to(elsewhere)
    refused(lambda: Table.open(str(tmp_path / "t")), canary, "_delta_log/_sidecars")


def test_no_rows_are_written_through_a_partition_that_is_a_link(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    linked(tmp_path / "t" / DAY, canary.folder)
    refused(lambda: stage(table, rows(1, start=3)), canary, DAY)


def test_no_change_rows_are_written_through_a_link(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3))
    (tmp_path / "t" / "_change_data").symlink_to(canary.folder)
    change = {**rows(1).to_pylist()[0], CHANGE_TYPE_COLUMN: "insert"}
    refused(lambda: stage_changes(table, [change]), canary, "_change_data")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_rows_behind_a_link_are_read_only_where_that_is_allowed(tmp_path: Path, canary: Canary, what: str) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"], properties=FEED)
    (path,) = (tmp_path / "t" / DAY).iterdir()
    kept = shutil.copytree(tmp_path / "t" / DAY, tmp_path / "cold")
    linked(path if what == "file" else path.parent, kept / path.name if what == "file" else kept)
    refused(table.to_arrow, canary, f"{DAY}/{path.name}" if what == "file" else DAY)
    refused(lambda: table.changes(0), canary, f"{DAY}/{path.name}" if what == "file" else DAY)
    allowed = Table.open(str(tmp_path / "t"), allow_absolute_paths=True)
    assert allowed.to_arrow().num_rows == 3
    if what == "folder":
        refused(lambda: stage(allowed, rows(1, start=3)), canary, DAY)


def test_a_deletion_vector_behind_a_link_is_not_read(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3))
    allow_vectors(table)
    mask(table, {0: [1]})
    (vector,) = (tmp_path / "t").glob("deletion_vector_*.bin")
    kept = shutil.move(vector, tmp_path / "vector.bin")
    vector.symlink_to(kept)
    refused(table.to_arrow, canary, vector.name)
    assert Table.open(str(tmp_path / "t"), allow_absolute_paths=True).to_arrow().num_rows == 2


def test_a_vacuum_lists_and_deletes_nothing_behind_a_link(tmp_path: Path, canary: Canary) -> None:
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"])
    (file,) = (tmp_path / "t" / DAY).iterdir()
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    linked(tmp_path / "t" / DAY, canary.folder)
    (tmp_path / "t" / "link").symlink_to(canary.folder)
    (canary.folder / file.name).write_bytes(b"what bears the name of the removed file")
    before = canary.state()
    inventory = pa.table(
        {
            "path": [f"{DAY}/secret", "link/empty", "link/secret"],
            "length": [1, 0, 1],
            "size": [1, 0, 1],
            "isDir": [False, True, False],
            "modificationTime": [0, 0, 0],
        }
    )
    for more in ({}, {"mode": "lite"}, {"inventory": inventory}):
        done = table.vacuum(timedelta(0), check_retention=False, **more)  # type: ignore[arg-type]
        assert (done.deleted_files, done.deleted_directories) == (0, 0)
    assert canary.state() == before
    canary.forget()


# --- swaps ------------------------------------------------------------------------------------------


def swapping(monkeypatch: pytest.MonkeyPatch, folder: Path, target: Path) -> None:
    """From the moment on that the folder was made or opened, a link to `target` is in its place."""
    real = {name: getattr(os, name) for name in SWAPPED_AFTER}
    is_done = False

    def after(name: str) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **more: Any) -> Any:
            nonlocal is_done
            found = real[name](path, *args, **more)
            if not is_done and isinstance(path, str) and path.rstrip("/").endswith(folder.name) and folder.is_dir():
                is_done = True
                folder.rename(folder.with_name("swapped"))
                folder.symlink_to(target)
            return found

        return call

    for name in SWAPPED_AFTER:
        monkeypatch.setattr(os, name, after(name))


def test_rows_go_where_the_folder_was_that_is_swapped_for_a_link(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t" / "p=1"
    folder.mkdir(parents=True)
    swapping(monkeypatch, folder, canary.folder)
    store = LocalStore(str(tmp_path / "t"))
    with store.open_new("p=1/f.parquet") as sink:
        sink.write(b"rows")
    monkeypatch.undo()
    assert (tmp_path / "t" / "swapped" / "f.parquet").read_bytes() == b"rows"
    refused(lambda: store.stat("p=1/f.parquet"), canary, "p=1")


def test_a_file_is_read_from_the_folder_that_is_swapped_for_a_link(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t" / "p=1"
    folder.mkdir(parents=True)
    (folder / "secret").write_bytes(b"rows")
    swapping(monkeypatch, folder, canary.folder)
    with LocalStore(str(tmp_path / "t")).open_input("p=1/secret") as file:
        assert file.read() == b"rows"
    canary.check()


@pytest.mark.parametrize("operation", ["put", "put_if_absent", "open_output"])
def test_an_object_gets_its_name_in_the_folder_that_is_swapped_for_a_link(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("_delta_log/0", b"")
    swapping(monkeypatch, tmp_path / "t" / "_delta_log", canary.folder)
    if operation == "open_output":
        with store.open_output("_delta_log/secret") as sink:
            sink.write(b"ours")
    else:
        getattr(store, operation)("_delta_log/secret", b"ours")
    monkeypatch.undo()
    assert (tmp_path / "t" / "swapped" / "secret").read_bytes() == b"ours"
    assert len(list((tmp_path / "t" / "swapped").iterdir())) == 2, "no temporary file is left"


@pytest.mark.parametrize("operation", ["put", "put_if_absent", "open_output"])
def test_nothing_is_written_where_a_link_comes_before_the_temporary_file(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("_delta_log/0", b"")
    unique_id = SystemClock.unique_id

    def swap(clock: SystemClock) -> str:
        linked(tmp_path / "t" / "_delta_log", canary.folder)
        return unique_id(clock)

    monkeypatch.setattr(SystemClock, "unique_id", swap)
    content = [] if operation == "open_output" else [b"ours"]
    refused(lambda: getattr(store, operation)("_delta_log/secret2", *content), canary, "_delta_log")


def test_a_listing_stays_in_the_folder_that_is_swapped_for_a_link(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("p=1/ours", b"")
    with monkeypatch.context() as patch:
        swapping(patch, tmp_path / "t" / "p=1", canary.folder)
        assert [info.path for info in store.list("p=1")] == ["p=1/ours"]
    (tmp_path / "t" / "p=1").unlink()
    (tmp_path / "t" / "swapped").rename(tmp_path / "t" / "p=1")
    with monkeypatch.context() as patch:
        swapping(patch, tmp_path / "t" / "p=1", canary.folder)
        assert [info.path for info in store.walk()] == ["p=1/ours"]


def test_a_delete_stays_in_the_folder_that_is_swapped_for_a_link(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(str(tmp_path / "t"))
    store.put("p=1/secret", b"")
    swapping(monkeypatch, tmp_path / "t" / "p=1", canary.folder)
    store.delete("p=1/secret")
    assert not (tmp_path / "t" / "swapped" / "secret").exists()


# --- what else may lie there ------------------------------------------------------------------------------------------


def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Exception, match="not there"):
        table.to_arrow()


def test_a_name_that_is_taken_by_a_link_is_not_written_through(tmp_path: Path, canary: Canary) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").symlink_to(canary.secret)
    with pytest.raises(FileExistsError):
        LocalStore(str(tmp_path / "t")).open_new("f")
    with pytest.raises(FileExistsError):
        LocalStore(str(tmp_path / "t")).put_new("f", pa.py_buffer(b"rows"))


def test_a_place_outside_of_the_table_is_not_written_or_deleted(tmp_path: Path, canary: Canary) -> None:
    store = LocalStore(str(tmp_path / "t"), Access(allow_absolute_paths=True))
    for call in (store.open_new, lambda path: store.put_new(path, pa.py_buffer(b"rows")), store.delete):
        for path in (str(canary.secret), f"file://{canary.secret}"):
            with pytest.raises(ValueError, match="no path inside the table"):
                call(path)


def test_a_table_in_a_folder_that_is_a_link_works(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    table = make_table(tmp_path / "lake" / "t", rows(3), partition_by=["day"])
    table.checkpoint()
    assert Table.open(str(tmp_path / "disk" / "t")).to_arrow().num_rows == 3
    assert table.uri == f"file://{tmp_path}/lake/t"


# --- jobs ------------------------------------------------------------------------------------------

MERGE: dict[str, Any] = {
    "source": {"sql": "SELECT 1L AS id, 'new' AS name"},
    "on": "t.id = s.id",
    "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}],
}
WRITE: dict[str, Any] = {
    "source": {"sql": "SELECT 9L AS id, DATE'2024-01-01' AS day, 'x' AS name, 0D AS amount"},
    "mode": "append",
}


@pytest.mark.spark
@pytest.mark.parametrize("attack", ["partition", "saved work", "changes", "data file"])
def test_a_job_is_refused_where_a_link_leads_out(
    tmp_path: Path, spark: SparkSession, canary: Canary, attack: str
) -> None:
    properties = FEED if attack == "changes" else {}
    table = make_table(tmp_path / "t", rows(3), partition_by=["day"], properties=properties)
    root, lines, identity = tmp_path / "t", [], application()
    operation, arguments = "merge", MERGE
    if attack == "partition":
        operation, arguments, link = "write", WRITE, DAY
        linked(root / DAY, canary.folder)
    elif attack == "saved work":
        spec = job_spec(
            operation="merge", table_uri=table.uri, arguments=MERGE, application=identity, saved_work_key=KEY
        )
        link = LogContext(spec=spec, table=table, log=lines.append).work_folder or ""
        (root / link).symlink_to(canary.folder)
    elif attack == "changes":
        link = "_change_data"
        (root / link).symlink_to(canary.folder)
    else:
        (file,) = (root / DAY).iterdir()
        link = f"{DAY}/{file.name}"
        linked(file, canary.rows)
        operation, arguments = "update", {"predicate": "true", "set": {"amount": "1"}}
    result = run(spark, operation, table, application=identity, log=lines.append, **arguments)
    error = error_of(result)
    assert (error["type"], error["facts"]["link"], error["retryable"]) == ("OutsideTable", link, False)
    assert table.latest_version() == 1
    canary.check(result, lines)
