"""VACUUM of real tables, through the front door, with another implementation looking on."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.table.snapshot.files import vectors_of
from airflow_txlog.engine.upkeep.removed_files import read_last_vacuum
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumMode
from airflow_txlog.errors import RetentionTooShort
from tests.helpers.paths import ROOT
from tests.helpers.rows import append, sorted_rows
from tests.helpers.vectors import bitmap, file_of

SCHEMA = pa.schema([("day", pa.string()), ("person", pa.string())])


def table_with_a_forgotten_person(path: Path, properties: dict[str, str] | None = None) -> Table:
    """Two partitions; the file that holds "ann" has been removed and replaced by one without her."""
    table = Table.create(str(path), SCHEMA, partition_by=["day"], properties=properties)
    append(table, [{"day": "1", "person": "ann"}, {"day": "1", "person": "bob"}, {"day": "2", "person": "cid"}])
    tx = table.begin()
    tx.remove(tx.snapshot.files("day = '1'"))
    tx.commit("DELETE")
    append(table, [{"day": "1", "person": "bob"}])
    return table


def people_on_disk(path: Path) -> set[str]:
    return {
        person
        for file in path.rglob("*.parquet")
        if "_delta_log" not in file.parts
        for person in pq.read_table(file, partitioning=None).column("person").to_pylist()
    }


@pytest.mark.parametrize("forgotten_by_a_checkpoint", [False, True])
def test_a_forgotten_person_is_gone_from_the_disk(tmp_path: Path, forgotten_by_a_checkpoint: bool) -> None:
    """Also where a checkpoint has dropped the tombstone, so that the table's state no longer names the file."""
    keep_nothing = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    table = table_with_a_forgotten_person(tmp_path / "t", keep_nothing if forgotten_by_a_checkpoint else None)
    if forgotten_by_a_checkpoint:
        table.checkpoint()
        table = Table.open(str(tmp_path / "t"))
        assert table.snapshot().state.tombstones.num_rows == 0
    before = sorted_rows(table.to_arrow())
    assert people_on_disk(tmp_path / "t") == {"ann", "bob", "cid"}
    assert len(table.vacuum(timedelta(0), dry_run=True, check_retention=False).files) == 1
    assert people_on_disk(tmp_path / "t") == {"ann", "bob", "cid"}
    result = table.vacuum(timedelta(0), check_retention=False)
    assert result.deleted_files == 1
    assert people_on_disk(tmp_path / "t") == {"bob", "cid"}
    assert sorted_rows(table.to_arrow()) == before
    deltalake = pytest.importorskip("deltalake")
    assert deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == len(before)
    newest = table.history(2)
    assert [entry["operation"] for entry in newest] == ["VACUUM END", "VACUUM START"]
    assert newest[0]["operationMetrics"]["numDeletedFiles"] in (1, "1")


def test_the_default_retention_deletes_nothing_young(tmp_path: Path) -> None:
    table = table_with_a_forgotten_person(tmp_path / "t")
    assert table.vacuum().files == []
    assert people_on_disk(tmp_path / "t") == {"ann", "bob", "cid"}


REFERENCE = ROOT / "tests" / "interop" / "reference"


def files_on_disk(root: Path) -> set[str]:
    """Every file under the table but those of the log, by its path."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if "_delta_log" not in path.parts}


@pytest.mark.parametrize("name", ["vectors", "vectors_in_random_folders", "vectors_partitioned", "vectors_by_merge"])
def test_vectors_of_delta_spark_stay_as_long_as_a_file_needs_them(tmp_path: Path, name: str) -> None:
    """Tables of delta-spark: vectors that share files, that were replaced, and that lie under random prefixes."""
    source = REFERENCE / name / "table"
    root = shutil.copytree(next(path.parent for path in source.rglob("_delta_log")), tmp_path / "t")
    table = Table.open(root)
    versions = range(table.snapshot().version + 1)
    readable = {version: sorted_rows(table.to_arrow(version=version)) for version in versions}
    orphan = "deletion_vector_00000000-0000-0000-0000-000000000000.bin"
    (root / orphan).write_bytes(b"\x01")
    for path in files_on_disk(root):
        os.utime(root / path, (0, 0))
    # All but the orphan is live, or was removed inside so long a retention: every version reads as before.
    assert [Path(path).name for path in table.vacuum(timedelta(days=7300)).files] == [orphan]
    assert {version: sorted_rows(table.to_arrow(version=version)) for version in versions} == readable
    # Without a retention only what the newest version needs is left, its vectors among it.
    table.vacuum(timedelta(0), check_retention=False)
    assert sorted_rows(Table.open(root).to_arrow()) == readable[versions[-1]]
    files = table.snapshot().files()
    places = {vector_file(v.storage_type, v.path_or_inline_dv, table.uri) for v in vectors_of(files).values()}
    left = files_on_disk(root)
    assert {path for path in left if path.endswith(".bin")} == places
    assert len(left - places) == files.num_rows


def test_an_absolute_vector_inside_the_table_stays(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    table = Table.create(str(root), SCHEMA, partition_by=["day"], properties={"delta.enableDeletionVectors": "true"})
    append(table, [{"day": "1", "person": "ann"}, {"day": "1", "person": "bob"}])
    data, (offset,) = file_of(bitmap([0]))
    place = root / "vectors 50%.bin"
    place.write_bytes(data)
    vector = DeletionVector(
        storage_type="p",
        path_or_inline_dv=place.as_uri(),
        offset=offset,
        size_in_bytes=len(bitmap([0])),
        cardinality=1,
    )
    tx = table.begin()
    files = tx.read()
    tx.remove(files)
    tx.add([replace(add, deletion_vector=vector) for add in table_to_adds(files, data_change=True)])
    tx.commit("DELETE")
    os.utime(place, (0, 0))
    assert table.vacuum(timedelta(0), check_retention=False).deleted_files == 0
    assert table.to_arrow().column("person").to_pylist() == ["bob"]


def test_too_short_a_retention_leaves_no_trace(tmp_path: Path) -> None:
    table = table_with_a_forgotten_person(tmp_path / "t")
    version = table.snapshot().version
    with pytest.raises(RetentionTooShort, match=r"check_retention=False \(--no-check-retention"):
        table.vacuum(timedelta(hours=1))
    assert table.snapshot().version == version


def test_what_a_killed_writer_left_in_the_log_goes_once_it_is_old(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, partition_by=["day"])
    log = tmp_path / "t" / "_delta_log"
    name = ".00000000000000000001.json.0356b577-2677-49cc-8d45-0ee1c782fb1b.tmp"
    strangers = [log / "notes.tmp", log / ".hidden", log / "_last_checkpoint"]
    for path in (log / name, *strangers):
        path.write_bytes(b"half")
    table.vacuum(timedelta(0), check_retention=False)
    assert (log / name).exists()
    for path in (log / name, *strangers):
        os.utime(path, (0, 0))
    table.vacuum(timedelta(0), check_retention=False)
    assert not (log / name).exists()
    assert all(path.exists() for path in strangers)


NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, as none of pytest's own can be."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/t")
        os.chown(f"{folder}/t", NOBODY, NOBODY)
        with another_user():
            if not os.access(f"{folder}/t", os.W_OK, effective_ids=True):
                pytest.skip(f"other users cannot enter {folder}")
        yield Path(folder)


def test_a_vacuum_leaves_the_private_folder_of_another_users_job_and_goes_on_with_the_rest(
    open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = open_folder / "t"
    with another_user():
        table = table_with_a_forgotten_person(path)
        (path / "day=1" / "orphan.parquet").write_bytes(b"")
    for folder in ("txlog-inputs-0", "_hidden"):
        (path / folder).mkdir(mode=0o700)
        (path / folder / "keys").write_bytes(b"keys")
    for old in (path / "day=1" / "orphan.parquet", path / "txlog-inputs-0" / "keys"):
        os.utime(old, (0, 0))
    caplog.set_level(logging.WARNING)
    with another_user():
        assert table.vacuum(timedelta(0), check_retention=False).deleted_files == 2
    assert people_on_disk(path) == {"bob", "cid"}
    assert (path / "txlog-inputs-0" / "keys").exists()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.endswith("what no commit has removed from them is left alone: txlog-inputs-0")


@pytest.mark.parametrize("by_inventory", [False, True])
def test_the_files_of_a_table_whose_log_is_another_users_stay(open_folder: Path, by_inventory: bool) -> None:
    path = open_folder / "t"
    with another_user():
        table = table_with_a_forgotten_person(path)
        (path / "inner").mkdir()
    for folder, name in (("inner/_delta_log", "x"), ("inner", "data")):
        (path / folder).mkdir(mode=0o700, exist_ok=True)
        (path / folder / name).write_bytes(b"1")
        os.utime(path / folder / name, (0, 0))
    given = pa.table({"path": ["inner/data"], "modificationTime": [0]}) if by_inventory else None
    with another_user():
        table.vacuum(timedelta(0), check_retention=False, inventory=given)
    assert (path / "inner" / "data").exists()


@pytest.mark.parametrize("mode", ["full", "lite"])
def test_a_removed_file_in_a_folder_of_another_user_is_no_success(
    open_folder: Path, mode: VacuumMode, caplog: pytest.LogCaptureFixture
) -> None:
    path = open_folder / "t"
    with another_user():
        table = table_with_a_forgotten_person(path)
    os.chown(path / "day=1", 0, 0)
    os.chmod(path / "day=1", 0o700)
    with another_user():
        tx = table.begin()
        tx.remove(tx.snapshot.files("day = '2'"))
        tx.commit("DELETE")
    with another_user(), pytest.raises(PermissionError) as caught:
        table.vacuum(timedelta(0), check_retention=False, mode=mode)
    assert "day=1/" in caught.value.__notes__[0]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("what no commit has removed from them is left alone: day=1")
    # The rest is gone all the same, and no later lite vacuum passes the file over.
    assert list((path / "day=2").glob("*.parquet")) == []
    assert read_last_vacuum(table.store) is None
