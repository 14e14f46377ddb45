"""VACUUM: the files that it deletes, and those that it never deletes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine.log.actions import Add, Cdc, DeletionVector
from airflow_txlog.engine.log.columns import adds_to_table, removes_to_table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.upkeep.vacuum import VacuumResult, vacuum
from airflow_txlog.engine.upkeep.vacuum_plan import (
    HOUR_MS,
    NamedFiles,
    VacuumRequest,
    VacuumState,
    files_named,
    plan_vacuum,
)
from airflow_txlog.errors import CorruptTable, InvalidInput, RetentionTooShort
from airflow_txlog.storage import FileInfo, LocalStore
from tests.engine.upkeep.aged import NOW, VECTOR, VECTOR_FILE, WEEK, Hands, Table, remove

# --- the two clocks -------------------------------------------------------------------------------------------------


def test_live_files_stay_however_old_they_are() -> None:
    table = Table().file("a", age=10_000).add("a")
    assert table.vacuum().files == []
    assert table.left() == ["a"]


def test_a_file_removed_inside_the_retention_stays_and_one_removed_before_goes() -> None:
    table = Table()
    table.file("recent", age=9999).remove("recent", age=WEEK - 1)
    table.file("edge", age=9999).remove("edge", age=WEEK)
    table.file("old", age=9999).remove("old", age=WEEK + 1)
    table.file("unstamped", age=9999).remove("unstamped", age=None)
    result = table.vacuum()
    assert table.left() == ["edge", "recent"]
    assert result.files == [f"{table.store.root}/{name}" for name in ("old", "unstamped")]
    assert (result.deleted_files, result.size_bytes) == (2, 8)


def test_a_removed_file_that_was_added_again_stays() -> None:
    table = Table().file("a", age=9999).remove("a", age=5000).add("a", VECTOR).file(VECTOR_FILE, age=9999)
    table.vacuum()
    assert table.left() == ["a", VECTOR_FILE]


def test_a_path_with_two_tombstones_goes_by_the_younger() -> None:
    table = Table().file("a", age=9999).remove("a", age=5000).remove("a", age=1, vector=VECTOR)
    table.vacuum()
    assert table.left() == ["a"]


def test_a16_a_staged_file_survives_a_vacuum_without_retention() -> None:
    """A writer may sit for hours between staging and committing; then its commit must not name what is gone."""
    table = Table().file("removed", age=30).remove("removed", age=1 / 60)
    table.file("staged", age=23.9).file("staged-long-ago", age=WEEK - 0.1)
    table.vacuum(0, check=False)
    assert table.left() == ["staged", "staged-long-ago"]


@pytest.mark.parametrize("age", [0, -1 / 3_600_000, -1])
def test_where_nothing_is_to_be_kept_no_clock_decides(age: float) -> None:
    """A removed file is deleted in the tick of its removal, and where its writer's clock is an hour ahead."""
    table = Table().file("removed", age=30).remove("removed", age=age)
    table.vacuum(0, check=False)
    assert table.left() == []


@pytest.mark.parametrize(
    ("retention", "orphan_retention", "hours"),
    [
        pytest.param(0, 0, 24, id="never-under-24-hours"),
        pytest.param(1, WEEK, WEEK, id="the-orphan-retention"),
        pytest.param(500, WEEK, 500, id="a-longer-retention"),
    ],
)
def test_a16_an_orphan_goes_once_every_limit_has_passed(retention: int, orphan_retention: int, hours: int) -> None:
    table = Table().file("young", age=hours - 0.1).file("old", age=hours + 0.1)
    table.vacuum(retention, orphan_retention=orphan_retention, check=False)
    assert table.left() == ["young"]


def test_a16_age_is_told_by_the_stores_clock() -> None:
    """A driver whose clock runs ahead would take a file staged a minute ago for a week old."""
    table = Table().file("staged", age=0.01).file("removed", age=9999).remove("removed", age=1)
    table.vacuum(clock=Hands(NOW + 30 * WEEK * HOUR_MS))
    assert table.left() == ["removed", "staged"]


def test_a_tombstone_is_judged_by_the_slower_of_two_clocks() -> None:
    """Its stamp came from a writer's clock, which may be as far behind the store's as this driver's is."""
    table = Table().file("removed", age=9999).remove("removed", age=WEEK + 1)
    table.vacuum(clock=Hands(NOW - 2 * HOUR_MS))
    assert table.left() == ["removed"]


# --- what a checkpoint has forgotten --------------------------------------------------------------------------------


def test_a_longer_retention_than_the_tables_looks_into_the_commits() -> None:
    """Tombstones past the table's retention vanish with the next checkpoint. The task's retention still covers them."""
    table = Table().file("a", age=9999).file("b", age=9999)
    table.commit(remove("b", 30 * 24), age=30 * 24).commit(remove("a", 10 * 24), age=10 * 24)
    table.vacuum(20 * 24)
    assert table.left() == ["a"]


def test_a_young_file_that_was_committed_and_removed_goes_by_the_asked_retention() -> None:
    """A person was forgotten, a checkpoint dropped the tombstone: the rows must not stay for a week as an orphan."""
    table = Table().file("forgotten", age=5).file("staged", age=5)
    table.commit(Add(path="forgotten", partition_values={}, size=4, modification_time=0, data_change=True), age=4.9)
    table.commit(remove("forgotten", 3), age=3)
    table.vacuum(1, table_retention=1)
    assert table.left() == ["staged"]


def test_change_files_go_by_the_age_of_their_commit() -> None:
    table = Table().file("_change_data/old", age=20).file("_change_data/new", age=2).file("_change_data/staged", age=20)
    for name, age in (("old", 19), ("new", 1)):
        cdc = Cdc(path=f"_change_data/{name}", partition_values={}, size=4, data_change=False)
        table.commit(cdc, age=age)
    table.vacuum(10, table_retention=10)
    assert table.left() == ["_change_data/new", "_change_data/staged"]


def test_commits_are_not_read_where_nothing_is_unclear() -> None:
    table = Table().file("a", age=9999).add("a").file("b", age=9999).remove("b", age=1)
    table.store.put(commit_name(0), b"this is no commit")
    table.vacuum()
    assert table.left() == ["a", "b"]


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("part-0.parquet", True),
        ("p=1/part-0.parquet", True),
        ("a/b/c", True),
        ("_delta_log/00000000000000000000.json", False),
        ("_delta_log/_sidecars/x.parquet", False),
        ("_delta_log/.00000000000000000000.json.0a.tmp", False),
        ("_SUCCESS", False),
        (".part-0.parquet.crc", False),
        (".hidden/part-0", False),
        ("p=1/_temporary/0/part-0", False),
        ("_metadata/part-0", False),
        ("_change_data/cdc-0.parquet", True),
        ("_change_data/.cdc-0.parquet.crc", False),
        ("_delta_index/part-0", True),
        ("_p=1/part-0", True),  # a partition column may begin with "_"
        ("_q=1/part-0", False),  # but this is none
        ("_x%3Ay=1/part-0", True),
        (".dot=a/part-0", True),
        ("part-0.parquet.8a3e.tmp", True),
        ("é \U0001f600 %41/part-0", True),
    ],
)
def test_what_is_hidden_stays(path: str, goes: bool) -> None:
    table = Table().file(path, age=9999)
    result = table.vacuum(partition_columns=["p", "_p", "_x:y", ".dot"])
    assert (result.files == [f"{table.store.root}/{path}"]) is goes
    assert (table.store.stat(path) is None) is goes


def test_paths_are_compared_decoded() -> None:
    names = ["a b", "t=10%3A00/f", "100%", "p+q", "é"]
    wires = ["a%20b", "t=10%253A00/f", "100%25", "p+q", "%C3%A9"]
    table = Table()
    for name, wire in zip(names, wires, strict=True):
        table.file(name, age=9999).add(wire)
    table.file("t=10:00/f", age=9999)
    table.vacuum()
    assert table.left() == sorted(names)


def test_absolute_paths_into_the_table_protect_their_files() -> None:
    table = Table().file("a b", age=9999).file("c", age=9999)
    table.add(f"{table.store.root}/a%20b").remove(f"{table.store.root}/c", age=1)
    table.vacuum()
    assert table.left() == ["a b", "c"]


def test_absolute_paths_out_of_the_table_name_nothing_in_it_but_spare_what_bears_their_name() -> None:
    """`/alias/t/f` may be this table through a symlink; its letters do not show that."""
    table = Table().file("a/f.parquet", age=9999).file("g.parquet", age=9999)
    table.add("file:/alias/t/a/f.parquet").remove("s3://elsewhere/x", age=9999)
    table.vacuum()
    assert table.left() == ["a/f.parquet"]


def test_vectors_of_live_and_of_retained_files_stay() -> None:
    for protect in (
        lambda table: table.add("a", VECTOR),
        lambda table: table.remove("a", age=1, vector=VECTOR),
    ):
        table = Table().file("a", age=9999).file(VECTOR_FILE, age=9999).file("ab/deletion_vector_other.bin", age=9999)
        protect(table)
        table.vacuum()
        assert table.left() == ["a", VECTOR_FILE]


def test_a_vector_goes_with_the_tombstone_that_names_it() -> None:
    table = Table().file("a", age=2).file(VECTOR_FILE, age=2).add("a").remove("a", age=1, vector=VECTOR)
    table.vacuum(0, check=False)
    assert table.left() == ["a"]


def test_a_vector_that_lies_nobody_knows_where_stops_the_vacuum() -> None:
    vector = DeletionVector(storage_type="z", path_or_inline_dv="?", size_in_bytes=1, cardinality=1)
    table = Table().file("a", age=9999).add("b", vector)
    with pytest.raises(CorruptTable):
        table.vacuum()
    assert table.left() == ["a"]
    assert table.said == []


# --- asking ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_names_and_deletes_nothing() -> None:
    table = Table().file("a", age=9999).file("b", age=9999)
    result = table.vacuum(dry_run=True)
    assert result == VacuumResult(
        files=[f"{table.store.root}/a", f"{table.store.root}/b"],
        size_bytes=8,
        deleted_files=0,
        deleted_directories=0,
        dry_run=True,
    )
    assert table.left() == ["a", "b"]
    assert table.said == []


def test_a_retention_below_the_tables_is_refused_unless_the_check_is_off() -> None:
    table = Table().file("a", age=9999).remove("a", age=2)
    with pytest.raises(RetentionTooShort) as caught:
        table.vacuum(1)
    assert (caught.value.asked_ms, caught.value.required_ms) == (HOUR_MS, WEEK * HOUR_MS)
    assert "check_retention=False (--no-check-retention on the command line)" in str(caught.value)
    assert table.left() == ["a"]
    assert table.said == []
    table.vacuum(1, check=False)
    assert table.left() == []


@pytest.mark.parametrize("given", [{"retention": -1}, {"orphan_retention": -1}])
def test_a_negative_retention_is_refused(given: dict[str, float]) -> None:
    table = Table().file("a", age=9999)
    with pytest.raises(InvalidInput):
        table.vacuum(**given, check=False)
    assert table.left() == ["a"]


def test_start_and_end_are_recorded_around_the_deletes() -> None:
    table = Table().file("a", age=9999).file("b", age=9999)
    table.vacuum(200)
    assert table.said == [
        (
            "START",
            {
                "retentionCheckEnabled": True,
                "defaultRetentionMillis": WEEK * HOUR_MS,
                "specifiedRetentionMillis": 200 * HOUR_MS,
            },
            {"numFilesToDelete": 2, "sizeOfDataToDelete": 8},
        ),
        ("END", {"status": "COMPLETED"}, {"numDeletedFiles": 2, "numVacuumedDirectories": 0}),
    ]
    table.said.clear()
    table.vacuum()
    assert table.said[0][1] == {"retentionCheckEnabled": True, "defaultRetentionMillis": WEEK * HOUR_MS}


def test_a_delete_that_fails_is_recorded_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table().file("a", age=9999).file("b", age=9999).file("c", age=9999)
    real = table.store.delete

    def delete(path: str) -> None:
        if path == "b":
            raise PermissionError(path)
        real(path)

    monkeypatch.setattr(table.store, "delete", delete)
    with pytest.raises(PermissionError):
        table.vacuum()
    assert table.left() == ["b"], "what cannot be deleted does not keep the others alive"
    assert table.said[-1] == ("END", {"status": "FAILED"}, {"numDeletedFiles": 2, "numVacuumedDirectories": 0})


def test_nothing_is_deleted_where_the_start_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table().file("a", age=9999)

    def fail(operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        raise RuntimeError(operation)

    monkeypatch.setattr(table, "_record", fail)
    with pytest.raises(RuntimeError, match="START"):
        table.vacuum()
    assert table.left() == ["a"]


# --- on a disk ------------------------------------------------------------------------------------------------------


def on_disk(
    directory: Path, live: Iterable[str] = (), partition_columns: Sequence[str] = ("p",), **asked: Any
) -> VacuumResult:
    """A vacuum of a table on disk all of whose files have been made old."""
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            os.utime(path, (0, 0), follow_symlinks=False)
    adds = [Add(path=path, partition_values={}, size=1, modification_time=0, data_change=True) for path in live]
    return vacuum(
        LocalStore(str(directory)),
        VacuumState(
            version=0,
            live=adds_to_table(adds),
            tombstones=removes_to_table([]),
            partition_columns=partition_columns,
            retention_ms=WEEK * HOUR_MS,
        ),
        VacuumRequest(**asked),
        clock=SystemClock(),
    )


def put(directory: Path, *paths: str) -> None:
    store = LocalStore(str(directory))
    for path in paths:
        store.put(path, b"1")


def test_empty_directories_go_and_one_emptied_now_goes_next_time(tmp_path: Path) -> None:
    put(tmp_path, "_delta_log/x", "p=1/orphan", "p=2/live")
    for empty in ("p=3", "p=4/q=1/r", "_hidden", "_p=1"):
        (tmp_path / empty).mkdir(parents=True)
    first = on_disk(tmp_path, ["p=2/live"], ["p", "_p"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_delta_log", "_hidden", "p=1", "p=2"]
    assert (first.deleted_files, first.deleted_directories) == (1, 5)
    second = on_disk(tmp_path, ["p=2/live"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_delta_log", "_hidden", "p=2"]
    assert second.deleted_directories == 1


def test_the_directory_of_a_needed_file_stays_even_where_the_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "p=1" / "q=2").mkdir(parents=True)
    on_disk(tmp_path, ["p=1/q=2/lost"])
    assert (tmp_path / "p=1" / "q=2").is_dir()


def test_a_directory_with_hidden_files_alone_is_not_empty(tmp_path: Path) -> None:
    put(tmp_path, "p=1/.crc")
    on_disk(tmp_path)
    assert (tmp_path / "p=1" / ".crc").exists()


def test_the_files_of_a_table_in_a_folder_of_this_one_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads_kept: list[tuple[str, ...]] = []
    monkeypatch.setattr(LocalStore, "abort_unfinished", lambda store, before_ms, others=(): uploads_kept.append(others))
    inner = ("p=1/inner/_delta_log/00000000000000000000.json", "p=1/inner/part-0", "p=1/inner/q=1/deeper/part-0")
    put(tmp_path, "_delta_log/x", "p=1/orphan", "p=1/innermost", *inner)
    assert on_disk(tmp_path).files == [f"file://{tmp_path}/p=1/innermost", f"file://{tmp_path}/p=1/orphan"]
    assert all((tmp_path / path).exists() for path in inner)
    assert uploads_kept == [("p=1/inner/",)]


def test_unfinished_uploads_that_the_store_does_not_drop_stop_no_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def abort(store: LocalStore, before_ms: int, others: tuple[str, ...] = ()) -> int:
        raise PermissionError("s3:ListBucketMultipartUploads is not allowed")

    monkeypatch.setattr(LocalStore, "abort_unfinished", abort)
    put(tmp_path, "_delta_log/x", "orphan")
    assert on_disk(tmp_path).files == [f"file://{tmp_path}/orphan"]
    (warning,) = (each for each in caplog.records if each.levelname == "WARNING")
    assert warning.getMessage().endswith("were left alone: s3:ListBucketMultipartUploads is not allowed")


def test_nothing_is_deleted_outside_the_table_nor_through_a_symlink(tmp_path: Path) -> None:
    put(tmp_path, "outside/precious", "sibling/f", "t/_delta_log/x", "t/orphan")
    (tmp_path / "t" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "t" / "p=1").mkdir()
    (tmp_path / "t" / "p=1" / "link").symlink_to(tmp_path / "outside" / "precious")
    result = on_disk(tmp_path / "t", ["../sibling/other"])
    assert result.files == [f"file://{tmp_path}/t/orphan"]
    assert (tmp_path / "outside" / "precious").exists()
    assert (tmp_path / "sibling" / "f").exists()
    assert (tmp_path / "t" / "p=1" / "link").is_symlink()


def test_a_live_file_named_through_a_symlinked_root_stays(tmp_path: Path) -> None:
    put(tmp_path, "t/p=1/live", "t/p=1/orphan")
    (tmp_path / "alias").symlink_to(tmp_path / "t")
    on_disk(tmp_path / "t", [f"file:{tmp_path}/alias/p=1/live"])
    assert sorted(each.name for each in (tmp_path / "t" / "p=1").iterdir()) == ["live"]


def test_a_name_that_is_not_utf8_stays(tmp_path: Path) -> None:
    put(tmp_path, "orphan")
    path = os.fsencode(tmp_path) + b"/\xff\xfe"
    with open(path, "wb"):
        pass
    result = on_disk(tmp_path)
    assert result.deleted_files == 1
    assert os.path.exists(path)


# --- the decision itself --------------------------------------------------------------------------------------------

PATHS = st.sampled_from([f"{directory}{name}" for directory in ("", "a/", "a/b/") for name in "fgh"])


@given(
    st.dictionaries(PATHS, st.integers(0, 10)), st.sets(PATHS), st.sets(PATHS), st.sets(st.sampled_from("fgh")),
    st.integers(0, 11),
)  # fmt: skip
@settings(deadline=None)
def test_a_plan_holds_what_may_go_and_nothing_else(
    files: dict[str, int], needed: set[str], expired: set[str], elsewhere: set[str], orphan_before_ms: int
) -> None:
    """Notes, 6.1: unreferenced files and empty directories; soundness A16: two clocks."""
    infos = [FileInfo(path=path, size_bytes=1, modified_ms=age) for path, age in files.items()]
    named = NamedFiles(needed=needed, expired=expired, needed_elsewhere=elsewhere)
    plan = plan_vacuum(infos, named, orphan_before_ms, ["a/b", "a"], files)
    gone = {info.path for info in plan.files}
    assert not gone & needed
    assert gone <= set(files)
    for path in set(files) - gone:
        assert path in needed or path[-1] in elsewhere or (path not in expired and files[path] >= orphan_before_ms)
    for directory in ("a", "a/b"):
        holds = any(path.startswith(f"{directory}/") for path in {*files, *needed})
        assert (directory in plan.directories) is not holds


def test_many_files_are_planned_as_columns_and_sets() -> None:
    count = 50_000
    live = adds_to_table(
        [
            Add(path=f"p={i % 365}/part-{i}", partition_values={}, size=1, modification_time=0, data_change=True)
            for i in range(count)
        ]
    )
    infos = [FileInfo(path=f"p={i % 365}/part-{i}", size_bytes=1, modified_ms=0) for i in range(count + 10)]
    named = files_named(pa.concat_tables([live, live]), removes_to_table([]), "file:///t", 0)
    plan = plan_vacuum(infos, named, 1, [], [info.path for info in infos])
    assert len(plan.files) == 10
