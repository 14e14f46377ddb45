"""A table is not made beside files of others by accident, and a VACUUM does not take them."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER
from airflow_txlog.errors import FolderNotEmpty, ProtocolChanged
from tests.helpers.counting import CountingStore
from tests.helpers.rows import append, sorted_rows

SCHEMA = pa.schema([("id", pa.int64()), ("_day", pa.string())])
LEFTOVER = f"part-0123456789abcdef-{uuid.UUID(int=7)}.c000.zstd.parquet"
A_MONTH_S = 30 * 86_400


def put(folder: Path, *names: str, age_s: int = 0) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("somebody's")
        then = SYSTEM_CLOCK.now_ms() / 1000 - age_s
        os.utime(path, (then, then))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["events.parquet", "README.txt", "archive/deep/x.parquet", "part-00000-a.c000.parquet"]
)
def test_a_folder_with_a_file_of_others_is_refused_by_name(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    for create in (lambda: Table.create(str(tmp_path), SCHEMA), lambda: begun(tmp_path)):
        with pytest.raises(FolderNotEmpty) as error:
            create()
        assert error.value.examples == [name]  # type: ignore[attr-defined]
        assert not error.value.retryable
    assert files(tmp_path) == {name}


def begun(folder: Path) -> Transaction:
    from airflow_txlog.storage import PLAIN

    return Table.at(str(folder), PLAIN).begin_create(SCHEMA)


def test_files_of_a_table_that_is_created_meanwhile_are_no_obstacle_and_the_commit_loses(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"id": pa.array([1], pa.int64())}))
    transaction = begun(tmp_path)
    with pytest.raises(ProtocolChanged):
        transaction.commit("CREATE TABLE", {})


def test_a_name_that_is_not_utf_8_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_text("somebody's")
    with pytest.raises(FolderNotEmpty) as error:
        Table.create(str(tmp_path), SCHEMA)
    assert error.value.examples == [r"\udcff.parquet"]  # type: ignore[attr-defined]
    str(error.value).encode()


def test_of_many_files_a_few_are_named(tmp_path: Path) -> None:
    put(tmp_path, *(f"f{number}" for number in range(9)))
    with pytest.raises(FolderNotEmpty, match=r"\(f\d, f\d, f\d, …\)") as error:
        Table.create(str(tmp_path), SCHEMA)
    assert len(error.value.examples) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS",
        ".DS_Store",
        "_temporary/0/x.parquet",
        "_delta_log/_commits/x",
        "txlog-inputs-0123/source.parquet",
        LEFTOVER,
        f"_day=1/{LEFTOVER}",
    ],
)
def test_what_no_vacuum_deletes_and_what_a_killed_try_left_is_no_obstacle(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    (tmp_path / "empty").mkdir()
    table = Table.create(str(tmp_path), SCHEMA)
    assert SHARED_FOLDER not in table.snapshot().properties
    assert name in files(tmp_path)


@pytest.mark.parametrize(
    ("age_s", "partition_by", "name"), [(A_MONTH_S, [], LEFTOVER), (0, ["_day"], "_day=1/x.parquet")]
)
def test_an_old_leftover_and_the_directory_of_a_partition_count_as_files_of_others(
    tmp_path: Path, age_s: int, partition_by: list[str], name: str
) -> None:
    put(tmp_path, name, age_s=age_s)
    with pytest.raises(FolderNotEmpty):
        Table.create(str(tmp_path), SCHEMA, partition_by)


def test_an_empty_folder_costs_one_listing() -> None:
    store = CountingStore(f"memory://folder-{uuid.uuid4().hex}")
    Table.create(store, SCHEMA)
    assert [kind for kind, _ in store.requests].count("walk") == 1


def test_a_table_beside_files_of_others_says_so(tmp_path: Path) -> None:
    put(tmp_path / "t", "events.parquet")
    shared = Table.create(str(tmp_path / "t"), SCHEMA, allow_non_empty=True)
    assert shared.snapshot().properties[SHARED_FOLDER] == "true"
    alone = Table.create(str(tmp_path / "u"), SCHEMA, allow_non_empty=True)
    assert SHARED_FOLDER not in alone.snapshot().properties


def test_a_vacuum_of_such_a_table_takes_files_of_others_only_with_a_flag(tmp_path: Path) -> None:
    put(tmp_path, "events.parquet", "archive/x.parquet", age_s=A_MONTH_S)
    table = Table.create(str(tmp_path), SCHEMA, allow_non_empty=True)
    append(table, [{"id": 1, "_day": "a"}])
    [removed] = table.snapshot().files().column("path").to_pylist()
    tx = table.begin()
    tx.remove(tx.read())
    tx.commit("DELETE")
    now = {"retention": timedelta(0), "check_retention": False}
    for more in ({}, {"inventory": pa.table({"path": ["events.parquet"], "modificationTime": [1]})}):
        with pytest.raises(FolderNotEmpty, match="include_foreign"):
            table.vacuum(**now, **more)  # type: ignore[arg-type]
    assert {"events.parquet", "archive/x.parquet", removed} <= files(tmp_path)
    assert table.vacuum(dry_run=True).deleted_files == 0
    assert table.vacuum(mode="lite", **now).deleted_files == 1  # type: ignore[arg-type]
    assert {"events.parquet", "archive/x.parquet"} <= files(tmp_path)
    assert removed not in files(tmp_path)
    # An earlier version does not bring the folder back to how it was.
    append(table, [{"id": 2, "_day": "a"}])
    table.restore(version=0)
    with pytest.raises(FolderNotEmpty):
        table.vacuum()
    assert table.vacuum(include_foreign=True).deleted_files == 2
    assert sorted_rows(table.to_arrow()) == []


def test_the_owner_of_any_table_can_protect_its_folder(tmp_path: Path) -> None:
    import msgspec

    table = Table.create(str(tmp_path), SCHEMA)
    metadata = table.snapshot().metadata
    tx = table.begin()
    tx.set_metadata(msgspec.structs.replace(metadata, configuration={**metadata.configuration, SHARED_FOLDER: "true"}))
    tx.commit("SET TBLPROPERTIES")
    put(tmp_path, "later.txt", age_s=A_MONTH_S)
    with pytest.raises(FolderNotEmpty):
        table.vacuum()
    table.restore(version=0)
    with pytest.raises(FolderNotEmpty):
        table.vacuum()
