"""VACUUM on a full disk, a dry run on a read-only one, and the message of each stage about such a disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.upkeep.removed_files import read_last_vacuum
from airflow_txlog.errors import JobError
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark.installation import not_started
from airflow_txlog.jobs.spark.launch import _properties_file
from airflow_txlog.runners.child_process import ChildProcessRunner
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import error_of, rows, run
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64())])


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine mounts nothing: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    if os.geteuid():
        pytest.skip("only root mounts a disk")
    place = tmp_path / "disk"
    place.mkdir()
    _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def table(disk: Path) -> Table:
    """A table with a file that a VACUUM deletes."""
    made = Table.create(disk / "t", SCHEMA)
    (disk / "t" / "old.parquet").write_bytes(bytes(200_000))
    tx = made.begin()
    tx.add(path="old.parquet", partition_values={}, size=200_000)
    tx.commit("WRITE")
    tx = made.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    return made


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.fixture
def read_only(table: Table, disk: Path) -> Table:
    _mount("-o", "remount,ro", str(disk))
    return table


def _vacuum(table: Table, **more: Any) -> Any:
    return table.vacuum(0, check_retention=False, **more)


@pytest.mark.parametrize("mode", ["full", "lite"])
def test_a_vacuum_frees_a_full_disk(table: Table, disk: Path, mode: Any, caplog: pytest.LogCaptureFixture) -> None:
    _fill(disk)
    with pytest.raises(OSError, match="No space left"):
        (disk / "t" / "more").write_bytes(b"x")
    done = _vacuum(table, mode=mode)
    assert done.deleted_files == 1
    assert not (disk / "t" / "old.parquet").exists()
    assert "VACUUM START was not recorded, the disk is full" in caplog.text
    # What was freed is room enough for the record of the end.
    assert table.history(limit=1)[0]["operation"] == "VACUUM END"
    assert mode == "full" or read_last_vacuum(table.store) is not None


def test_a_vacuum_that_frees_nothing_on_a_full_disk_succeeds(table: Table, disk: Path) -> None:
    _vacuum(table)
    _fill(disk)
    assert _vacuum(table).deleted_files == 0


def test_the_time_of_a_full_disk_is_its_own(table: Table, disk: Path) -> None:
    before_ms = LocalStore(str(disk / "t")).now_ms()
    _fill(disk)
    assert before_ms <= LocalStore(str(disk / "t")).now_ms() <= before_ms + 60_000


def test_a_dry_run_of_a_vacuum_writes_nothing(table: Table, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(LocalStore, "now_ms", lambda self: written.append("now_ms"))
    for name in ("put", "put_if_absent", "open_output", "delete"):
        monkeypatch.setattr(LocalStore, name, lambda self, *given, name=name: written.append(name))
    assert len(_vacuum(table, dry_run=True).files) == 1
    assert written == []


def test_a_dry_run_of_a_vacuum_works_on_a_read_only_disk(read_only: Table) -> None:
    done = _vacuum(Table.open(read_only.uri), dry_run=True)
    assert [Path(uri).name for uri in done.files] == ["old.parquet"]


OPERATIONS: dict[str, dict[str, Any]] = {
    "vacuum": {"retention_hours": 0, "check_retention": False},
    "checkpoint": {},
    "truncate": {},
    "alter": {"add_features": ["rowTracking"]},
    "restore": {"version": 1},
}


@pytest.mark.parametrize("operation", ["vacuum", "checkpoint", "restore"])
def test_a_job_on_a_read_only_disk_names_the_file_in_the_first_line(
    read_only: Table, disk: Path, operation: str
) -> None:
    spec = job_spec(operation=operation, table_uri=read_only.uri, arguments=OPERATIONS[operation])
    result = run_job(spec, None)
    assert result.error is not None
    first = result.error["message"].splitlines()[0]
    assert result.error["type"] == "JobError"
    assert first.startswith(f"Cannot run the {operation} job: OSError: [Errno 30] Read-only file system: '{disk}/t/")
    assert "The disk is mounted read-only on the machine that runs the job: mount it" in first


@pytest.mark.parametrize("operation", ["checkpoint", "truncate", "restore"])
def test_a_job_on_a_full_disk_names_the_file_in_the_first_line(table: Table, disk: Path, operation: str) -> None:
    (disk / "t" / "old.parquet").touch()
    if operation == "truncate":
        table.restore(1)
    _fill(disk)
    spec = job_spec(operation=operation, table_uri=table.uri, arguments=OPERATIONS[operation])
    result = run_job(spec, None)
    assert result.error is not None
    first = result.error["message"].splitlines()[0]
    assert first.startswith(f"Cannot run the {operation} job: {NO_ROOM}: '{disk}/t/")
    assert "The disk is full. If no file is named" in first
    assert Table.open(table.uri).snapshot().version == (3 if operation == "truncate" else 2)


# 13 MB of texts that do not compress, and 26 MB of them.
TEXTS = "SELECT id, sha2(string(id), 512) AS name FROM range({count})"
STAGED = "Cannot write the data files: "
PINNED = "Cannot write down the source's rows: "
WRITE = {"source": {"sql": TEXTS.format(count=100_000)}}
MERGE = {**WRITE, "on": "t.id = s.id", "clauses": [{"when": "matched", "then": "update", "set": {"name": "s.name"}}]}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("operation", "arguments", "what"), [("write", WRITE, STAGED), ("merge", MERGE, PINNED)], ids=["write", "merge"]
)
def test_a_disk_that_fills_while_rows_are_staged_leaves_no_commit_and_no_files(
    disk: Path, spark: SparkSession, operation: str, arguments: dict[str, Any], what: str
) -> None:
    table = make_table(disk / "t", rows(3).select(["id", "name"]))
    before = sorted((disk / "t").rglob("*"))
    error = error_of(run(spark, operation, table, **arguments))
    assert (error["type"], error["retryable"]) == ("JobError", False)
    assert error["message"].startswith(f"{what}{NO_ROOM}: '{disk}/t/")
    assert "The disk is full. If no file is named" in error["message"]
    assert sorted((disk / "t").rglob("*")) == before


@pytest.mark.spark
@pytest.mark.long("starts a Spark of its own, whose local disk is full")
def test_a_local_disk_of_spark_that_fills_while_rows_are_shuffled_leaves_no_commit(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _mount("-o", "remount,size=8m", str(disk))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(disk))
    table = make_table(tmp_path / "t", rows(3).select(["id", "name"]))
    before = sorted((tmp_path / "t").rglob("*"))
    query = f"{TEXTS.format(count=200_000)} DISTRIBUTE BY name"
    spec = job_spec(operation="write", table_uri=table.uri, arguments={"source": {"sql": query}})
    with pytest.raises(JobError) as caught:
        ChildProcessRunner().run(spec, log=lambda line: None)
    first = caught.value.message.splitlines()[0]
    assert first.startswith(STAGED)
    assert "No space left on device. The disk is full. If no file is named, it is that of spark.local.dir" in first
    assert sorted((tmp_path / "t").rglob("*")) == before


# --- the disk of temporary files --------------------------------------------------------------------------------------

NO_ROOM = "OSError: [Errno 28] No space left on device"
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def temporary(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A full disk, on which this process makes its temporary files."""
    _fill(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    return disk


@pytest.mark.parametrize("pages", [0, 1], ids=["for the description", "for the result"])
def test_a_job_that_finds_no_room_for_its_temporary_files_is_not_started(
    temporary: Path, tmp_path: Path, pages: int
) -> None:
    """Otherwise it could commit and be unable to report it."""
    table = Table.create(tmp_path / "t", SCHEMA)
    os.truncate(temporary / "ballast", (temporary / "ballast").stat().st_size // PAGE * PAGE - pages * PAGE)
    spec = job_spec(operation="truncate", table_uri=table.uri, arguments={})
    with pytest.raises(JobError) as caught:
        ChildProcessRunner(("false",)).run(spec, log=lambda line: None)
    first = caught.value.message.splitlines()[0]
    assert first.startswith(f"Cannot run the truncate job: {NO_ROOM}. The disk of {temporary}, ")
    assert not caught.value.retryable
    assert Table.open(table.uri).snapshot().version == 0


def test_a_job_without_any_folder_for_temporary_files_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    spec = job_spec(operation="truncate", table_uri=str(tmp_path / "t"), arguments={})
    with pytest.raises(JobError, match=r"no folder for temporary files \(TMPDIR\) can be written"):
        ChildProcessRunner(("false",)).run(spec, log=lambda line: None)


def test_a_spark_that_finds_no_room_for_its_settings_is_told_from_one_without_java(temporary: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, _properties_file({"spark.x": "1" * PAGE}):
        pass
    message = not_started(caught.value).message
    assert message.startswith(f"Spark could not be started: {NO_ROOM}. The disk of {temporary}, ")
    assert "Java" not in message
