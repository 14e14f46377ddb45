"""VACUUM by the log alone (lite), by an inventory, in parallel, and broken off anywhere."""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import many_files
from airflow_txlog.engine.log.actions import Cdc
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.many_files import Progress
from airflow_txlog.engine.table.schema.properties import HOUR_MS
from airflow_txlog.engine.upkeep.removed_files import LAST_VACUUM, read_last_vacuum
from airflow_txlog.engine.upkeep.vacuum import vacuum
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumRequest, VacuumState
from airflow_txlog.errors import CannotVacuumLite, InvalidInput, SourceNotFound
from tests.engine.upkeep.aged import NOW, VECTOR, VECTOR_FILE, WEEK, Table, remove
from tests.engine.upkeep.faults import WITH_ITS_WORK_DONE, DyingStore, dying
from tests.helpers.limits import limited
from tests.helpers.rows import append, sorted_rows


def names(result: Any, table: Table) -> list[str]:
    return [uri.removeprefix(f"{table.store.root}/") for uri in result.files]


# --- lite -----------------------------------------------------------------------------------------------------------


def removed(table: Table, path: str, *, age: float) -> Table:
    """A file that a commit removed so many hours ago, and that the state still remembers."""
    return table.file(path, age=9999).remove(path, age=age).commit(remove(path, age), age=age)


def test_a_lite_vacuum_deletes_what_the_log_removed_and_never_lists() -> None:
    table = removed(removed(Table(), "old", age=WEEK + 9), "young", age=1)
    table.file("orphan", age=9999)

    class NoListing:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("walk", "list_directories")
            return getattr(table.store, name)

    result = table.vacuum(mode="lite", store=NoListing())
    assert (names(result, table), result.size_bytes, result.deleted_files, result.mode) == (["old"], 4, 1, "lite")
    assert table.left() == ["orphan", "young"]
    assert read_last_vacuum(table.store) == 0


def test_a_lite_vacuum_begins_where_the_last_one_ended() -> None:
    table = removed(removed(Table(), "a", age=WEEK + 30), "b", age=WEEK + 20)
    table.vacuum(mode="lite")
    assert (table.left(), read_last_vacuum(table.store)) == ([], 1)
    removed(table, "c", age=WEEK + 10)
    table.store.delete(commit_name(0))
    table.store.delete(commit_name(1))
    assert names(table.vacuum(mode="lite"), table) == ["c"]
    assert read_last_vacuum(table.store) == 2
    assert table.vacuum(mode="lite").files == []


def test_a_lite_vacuum_deletes_vectors_and_change_rows_and_keeps_what_is_needed() -> None:
    table = Table()
    table.file("kept", age=9999).add("kept").file("twice", age=9999).remove("twice", age=1)
    table.file("deletion_vectors", age=9999).file(VECTOR_FILE, age=9999).file("_change_data/c", age=9999)
    cdc = Cdc(path="_change_data/c", partition_values={}, size=4, data_change=False)
    old = [remove("kept", WEEK + 9), remove("twice", WEEK + 9), remove("deletion_vectors", WEEK + 9, VECTOR)]
    table.commit(*old, cdc, age=WEEK + 9)
    assert names(table.vacuum(mode="lite"), table) == ["_change_data/c", VECTOR_FILE, "deletion_vectors"]
    assert table.left() == ["kept", "twice"]


def test_a_lite_vacuum_leaves_alone_what_is_not_the_tables_own() -> None:
    """A log may name anything: another table's file, the log itself, a hidden folder, a way out."""
    table = Table().file("_hidden/x", age=9999).file(".dot", age=9999)
    named = [
        "_hidden/x",
        ".dot",
        "_delta_log/00000000000000000000.json",
        "../other/f",
        "memory://elsewhere/f",
        "%2E%2E/f",
    ]
    table.commit(*(remove(path, WEEK + 9) for path in named), age=WEEK + 9)
    assert table.vacuum(mode="lite").files == []
    assert table.store.stat(commit_name(0)) is not None
    assert table.left() == [".dot", "_hidden/x"]


def test_a_lite_vacuum_is_refused_where_the_log_was_cut_since() -> None:
    table = removed(removed(removed(Table(), "a", age=WEEK + 30), "b", age=WEEK + 20), "c", age=WEEK + 10)
    table.store.delete(commit_name(0))
    with pytest.raises(CannotVacuumLite) as error:
        table.vacuum(mode="lite")
    assert (error.value.needed, error.value.earliest) == (0, 1)
    assert table.left() == ["a", "b", "c"]
    table.store.put(LAST_VACUUM, json.dumps({"latestCommitVersionOutsideOfRetentionWindow": 0}).encode())
    assert names(table.vacuum(mode="lite"), table) == ["b", "c"]


def test_a_lite_vacuum_is_refused_where_a_commit_between_is_gone() -> None:
    table = removed(removed(removed(Table(), "a", age=WEEK + 30), "b", age=WEEK + 20), "c", age=WEEK + 10)
    table.store.delete(commit_name(1))
    with pytest.raises(CannotVacuumLite):
        table.vacuum(mode="lite")
    assert table.left() == ["a", "b", "c"]


def test_after_a_full_vacuum_a_lite_one_is_possible_again() -> None:
    table = removed(removed(removed(Table(), "a", age=WEEK + 60), "b", age=WEEK + 50), "c", age=WEEK + 1)
    table.store.delete(commit_name(0))
    assert names(table.vacuum(), table) == ["a", "b", "c"]
    # The last day before the cutoff is left to the next one: clocks of writers may be that far apart.
    assert read_last_vacuum(table.store) == 1
    table.store.delete(commit_name(1))
    assert table.vacuum(mode="lite").files == []
    assert read_last_vacuum(table.store) == 2


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"[]", b'{"latestCommitVersionOutsideOfRetentionWindow": "x"}', b"\xff"]
)
def test_a_record_that_makes_no_sense_is_none(garbage: bytes) -> None:
    table = removed(Table(), "a", age=WEEK + 9)
    table.store.put(LAST_VACUUM, garbage)
    assert names(table.vacuum(mode="lite"), table) == ["a"]
    table = removed(Table(), "a", age=WEEK + 9)
    table.store.put(LAST_VACUUM, b'{"latestCommitVersionOutsideOfRetentionWindow": 99}')
    assert names(table.vacuum(mode="lite"), table) == ["a"], "of another life of the table"


def test_a_tombstone_stamped_by_a_fast_clock_is_gone_through_again() -> None:
    table = removed(Table(), "a", age=WEEK + 30)
    table.file("fast", age=9999).remove("fast", age=WEEK - 2).commit(remove("fast", WEEK - 2), age=WEEK + 1)
    assert names(table.vacuum(mode="lite"), table) == ["a"]
    assert read_last_vacuum(table.store) == 0
    assert names(table.vacuum(WEEK - 5, check=False, mode="lite"), table) == ["fast"]


def test_a_lite_vacuum_of_a_longer_retention_keeps_what_a_checkpoint_forgot() -> None:
    """Removed, added again, and removed once more inside the asked retention; the state knows nothing of it."""
    table = Table().file("f", age=9999).commit(remove("f", 3 * WEEK), age=3 * WEEK)
    table.commit(remove("f", WEEK + 9), age=WEEK + 9)
    assert table.vacuum(2 * WEEK, mode="lite").files == []
    assert names(table.vacuum(mode="lite"), table) == ["f"]


def test_a_dry_lite_run_remembers_nothing() -> None:
    table = removed(Table(), "a", age=WEEK + 9)
    assert names(table.vacuum(mode="lite", dry_run=True), table) == ["a"]
    assert (table.left(), read_last_vacuum(table.store)) == (["a"], None)


# --- by inventory ---------------------------------------------------------------------------------------------------


def inventory(**rows: Any) -> pa.Table:
    return pa.table(rows)


def test_an_inventory_stands_in_for_the_listing_and_every_rule_applies() -> None:
    table = Table().file("live", age=9999).add("live").file("orphan", age=9999).file("staged", age=30)
    table.file("removed", age=9999).remove("removed", age=WEEK + 1).file("kept", age=9999).remove("kept", age=1)
    table.file("_hidden/x", age=9999).file("unlisted", age=9999).file("p=1/a b%20c", age=9999)
    root = table.store.root
    given = inventory(
        path=["live", f"{root}/orphan", "staged", "removed", "kept", "_hidden/x", "gone", "p=1/a b%20c", "./p=1//live"],
        modificationTime=[0] * 9,
        size=[4] * 9,
    )

    class NoListing:
        def __getattr__(self, name: str) -> Any:
            assert name not in ("walk", "list_directories")
            return getattr(table.store, name)

    result = table.vacuum(inventory=given, store=NoListing())
    assert names(result, table) == ["orphan", "p=1/a b%20c", "removed"]
    assert table.left() == ["_hidden/x", "kept", "live", "staged", "unlisted"]
    assert read_last_vacuum(table.store) is None, "an inventory may have left anything out"


def test_the_files_of_a_table_in_a_folder_of_this_one_stay_even_if_the_inventory_leaves_out_its_log() -> None:
    table = Table().file("p=1/inner/_delta_log/00000000000000000000.json", age=9999)
    data = ["orphan", "p=1/orphan", "p=1/inner/part-0", "p=1/inner/q=1/part-0"]
    for path in data:
        table.file(path, age=9999)
    result = table.vacuum(inventory=inventory(path=data, modificationTime=[0] * 4))
    assert names(result, table) == ["orphan", "p=1/orphan"]


def test_a_wrong_inventory_deletes_nothing_outside_and_nothing_young(tmp_path: Path) -> None:
    """It says that all is ancient, names other tables, leads out and through a symlink, and calls files folders."""
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("other/f", "t/young", "t/_delta_log/x.json"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "t" / "link").symlink_to(tmp_path / "other")
    for name in ("other/f", "t/_delta_log/x.json"):
        os.utime(tmp_path / name, (0, 0))
    outside = [
        "../other/f",
        f"{tmp_path}/other/f",
        f"file://{tmp_path}/other/f",
        "s3://bucket/f",
        "t/../../other/f",
        "",
    ]
    inside = ["link/f", "young", "_delta_log/x.json", "link"]
    given = pa.concat_tables(
        [
            inventory(path=[*outside, *inside], modificationTime=[0] * 10, isDir=[False] * 10),
            inventory(path=["link", "young", "nothing", "../other", "."], modificationTime=[0] * 5, isDir=[True] * 5),
        ]
    )
    from airflow_txlog.clock import SystemClock
    from airflow_txlog.engine.log.columns import FILES, TOMBSTONES
    from airflow_txlog.storage import LocalStore

    state = VacuumState(
        version=0,
        live=FILES.empty_table(),
        tombstones=TOMBSTONES.empty_table(),
        partition_columns=[],
        retention_ms=0,
    )
    store = LocalStore(str(tmp_path / "t"))
    result = vacuum(store, state, VacuumRequest(inventory=given), clock=SystemClock())
    assert (result.deleted_files, result.deleted_directories) == (0, 0)
    assert (tmp_path / "other" / "f").exists()
    assert (tmp_path / "t" / "young").exists()
    assert (tmp_path / "t" / "_delta_log" / "x.json").exists()
    assert (tmp_path / "t" / "link").is_symlink()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("spelling", ["ours", "delta", "store"])
def test_an_inventory_is_read_from_a_file(tmp_path: Path, kind: str, spelling: str) -> None:
    table = Table().file("a", age=9999).file("b", age=1)
    moment = datetime.fromtimestamp((NOW - 9999 * HOUR_MS) / 1000, UTC)
    given = {
        "ours": inventory(path=["a", "b"], size=[4, 4], modificationTime=[0, NOW]),
        "delta": inventory(
            path=["a", "b"], length=[4, 4], isDir=[False, False], modificationTime=pa.array([0, NOW], pa.int64())
        ),
        "store": inventory(
            Key=["a", "b"], Size=[4, 4], LastModified=pa.array([moment, moment], pa.timestamp("us", "UTC"))
        ),
    }[spelling]
    path = str(tmp_path / f"inventory.{kind}")
    if kind == "parquet":
        pq.write_table(given, path)
    else:
        pyarrow.csv.write_csv(given, path)
    assert names(table.vacuum(inventory=path), table) == ["a"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (inventory(modificationTime=[0]), "no column 'path'"),
        (inventory(path=["a"]), "no column 'modificationtime'"),
        (inventory(path=["a"], modificationTime=["yesterday"]), "'modificationTime'"),
        (inventory(path=["a"], modificationTime=[0.5]), "'modificationTime'"),
        (inventory(path=["a", None], modificationTime=[0, 0]), "nulls"),
        (inventory(path=["a"], modificationTime=pa.array([None], pa.int64())), "nulls"),
        ("/nowhere/inventory.xlsx", "neither"),
    ],
)
def test_an_inventory_that_cannot_be_used_is_refused(given: Any, told: str) -> None:
    table = Table().file("a", age=9999)
    with pytest.raises(InvalidInput, match=told):
        table.vacuum(inventory=given)
    assert (table.left(), table.said) == (["a"], [])


def test_an_inventory_that_is_not_there_is_a_source_that_may_arrive() -> None:
    table = Table().file("a", age=9999)
    with pytest.raises(SourceNotFound, match="does not exist"):
        table.vacuum(inventory="/nowhere/inventory.parquet")
    assert (table.left(), table.said) == (["a"], [])


def test_empty_directories_of_an_inventory_go(tmp_path: Path) -> None:
    from tests.engine.upkeep.test_vacuum_files import on_disk, put

    put(tmp_path, "_delta_log/x", "p=1/live", "p=2/f")
    (tmp_path / "p=3" / "q=1").mkdir(parents=True)
    given = inventory(
        path=["p=3", "p=3/q=1", "p=1", "p=2", "p=1/live"],
        modificationTime=[0] * 5,
        isDir=[True, True, True, True, False],
    )
    assert on_disk(tmp_path, ["p=1/live"], inventory=given).deleted_directories == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_delta_log", "p=1", "p=2"]


def test_what_cannot_be_meant_is_refused() -> None:
    table = Table().file("a", age=9999)
    for asked in (
        {"mode": "light"},
        {"mode": "lite", "inventory": inventory(path=["a"], modificationTime=[0])},
        {"parallelism": 0},
        {"parallelism": 1000},
    ):
        with pytest.raises(InvalidInput):
            table.vacuum(**asked)
    assert table.left() == ["a"]


# --- in parallel, and broken off ------------------------------------------------------------------------------------


def many(count: int) -> Table:
    table = Table()
    for number in range(count):
        table.file(f"p={number % 7}/f{number}", age=9999)
    return table.file("live", age=9999).add("live")


@pytest.mark.parametrize("parallelism", [1, 4])
def test_deletes_run_at_once_but_no_more_than_asked(monkeypatch: pytest.MonkeyPatch, parallelism: int) -> None:
    table = many(40)
    real, lock = table.store.delete, threading.Lock()
    running, most = 0, 0
    together = threading.Barrier(parallelism)

    def delete(path: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        # As many as asked for must be under way before the first of them may end.
        together.wait(timeout=120)
        real(path)
        with lock:
            running -= 1

    monkeypatch.setattr(table.store, "delete", delete)
    assert table.vacuum(parallelism=parallelism).deleted_files == 40
    assert (most, table.left()) == (parallelism, ["live"])


@pytest.mark.parametrize("parallelism", [1, 8])
def test_a_store_that_refuses_altogether_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch, parallelism: int
) -> None:
    table = many(400)
    asked = []

    def delete(path: str) -> None:
        asked.append(path)
        raise PermissionError(path)

    monkeypatch.setattr(table.store, "delete", delete)
    with pytest.raises(PermissionError) as error:
        table.vacuum(parallelism=parallelism)
    assert "could not be deleted" in error.value.__notes__[0]
    assert many_files.MAX_FAILURES <= len(asked) <= many_files.MAX_FAILURES + 2 * parallelism
    assert table.said[-1] == ("END", {"status": "FAILED"}, {"numDeletedFiles": 0, "numVacuumedDirectories": 0})
    assert read_last_vacuum(table.store) is None


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("after", WITH_ITS_WORK_DONE)
@pytest.mark.parametrize("mode", ["full", "lite"])
def test_a_vacuum_that_dies_anywhere_keeps_what_is_needed_and_can_be_run_again(
    mode: str, after: bool, parallelism: int
) -> None:
    deaths = 0
    while True:
        table = Table().file("live", age=9999).add("live").file("kept", age=9999).remove("kept", age=1)
        for number in range(6):
            removed(table, f"f{number}", age=WEEK + 60 - number)
        store = DyingStore(table.store, deaths, after=after)
        with dying():
            table.vacuum(mode=mode, parallelism=parallelism, store=store)
        assert {"live", "kept"} <= set(table.left())
        if not store.has_died:
            break
        deaths += 1
        again = table.vacuum(mode=mode)
        assert table.left() == ["kept", "live"], again
    assert deaths > 8
    assert [what for what, _, _ in table.said] == ["START", "END"]


def test_the_counts_of_a_vacuum_that_is_interrupted_are_of_files_that_are_gone() -> None:
    table = many(50)
    store = DyingStore(table.store, 20, only="delete_many")
    with dying():
        table.vacuum(store=store, parallelism=4)
    (_, status, metrics) = table.said[-1]
    assert status == {"status": "FAILED"}
    assert metrics["numDeletedFiles"] == 50 - (len(table.left()) - 1)


def test_progress_is_told_by_files_and_by_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Progress] = []
    table = many(35)
    limited(table.store, progress_files=10)
    with caplog.at_level(logging.INFO):
        vacuum_with_progress(table, heard)
    assert [progress.deleted_files for progress in heard] == [10, 20, 30]
    assert (heard[0].total_files, heard[0].total_bytes, heard[0].deleted_bytes) == (35, 140, 40)
    assert "10 of 35 files deleted" in caplog.text
    assert "36 files listed" in caplog.text

    heard.clear()
    table = many(5)
    real = table.store.delete

    def slow(path: str) -> None:
        table.clock.time_ms += 20_000
        real(path)

    monkeypatch.setattr(table.store, "delete", slow)
    vacuum_with_progress(table, heard)
    assert [progress.deleted_files for progress in heard] == [2, 4], "every thirty seconds"


def vacuum_with_progress(table: Table, heard: list[Progress]) -> None:
    from airflow_txlog.engine.log.columns import adds_to_table, removes_to_table

    state = VacuumState(
        version=-1,
        live=adds_to_table(table.live),
        tombstones=removes_to_table([]),
        partition_columns=["p"],
        retention_ms=WEEK * HOUR_MS,
    )
    vacuum(table.store, state, VacuumRequest(parallelism=1), clock=table.clock, on_progress=heard.append)


# --- through the front door -----------------------------------------------------------------------------------------


def test_a_table_is_vacuumed_by_its_log_and_by_an_inventory(tmp_path: Path) -> None:
    from airflow_txlog.engine import Table as DeltaTable

    schema = pa.schema([("day", pa.string()), ("id", pa.int64())])
    folder = tmp_path / "t"
    table = DeltaTable.create(str(folder), schema, partition_by=["day"])
    append(table, [{"day": "1", "id": 1}, {"day": "2", "id": 2}])
    tx = table.begin()
    tx.remove(tx.read("day = '1'"))
    tx.commit("DELETE")
    rows = sorted_rows(table.to_arrow())
    for path in folder.rglob("_delta_log/*.json"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    table = DeltaTable.open(str(folder))
    lite = table.vacuum(timedelta(0), check_retention=False, mode="lite")
    assert (lite.deleted_files, lite.mode) == (1, "lite")
    (folder / "day=2" / "orphan.parquet").write_bytes(b"1")
    os.utime(folder / "day=2" / "orphan.parquet", (0, 0))
    listed = [str(path) for path in folder.rglob("*.parquet")]
    given = inventory(path=listed, modificationTime=[0] * len(listed), size=[1] * len(listed))
    done = table.vacuum(inventory=given)
    assert done.files == [f"file://{folder}/day=2/orphan.parquet"]
    assert sorted_rows(table.to_arrow()) == rows
    assert [entry["operation"] for entry in table.history(4)] == ["VACUUM END", "VACUUM START"] * 2
