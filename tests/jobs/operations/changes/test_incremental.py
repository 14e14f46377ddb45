"""Increments without Spark: ranges, watermarks, and everything that could process a range twice or skip one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.locations import Access
from airflow_txlog.storage import LocalStore
from tests.helpers.jobs import (
    SCHEMA,
    application,
    by_id,
    committed,
    error_of,
    ids,
    insert,
    read_alike,
    rows,
    run,
    update,
)
from tests.helpers.racing import before_commit, killed_before_commit, winning
from tests.helpers.rows import append, make_table, overwrite, stage, stage_changes


def increment(source: Table, target: Table | Path, *, consumer: str = "c", **arguments: Any) -> JobResult:
    """Run an increment without Spark."""
    return run(None, "incremental", target, source={"table": source.uri}, consumer=consumer, **arguments)


def mark(target: Table, consumer: str = "c") -> int | None:
    """The version of the source that the target's watermark names; None without one."""
    found = watermarks_of(target.snapshot().state.domains).get(consumer)
    return None if found is None else found.version


def two_tables(folder: Path) -> tuple[Table, Table]:
    """A source whose versions 1 and 2 add three rows each, and the target that has them."""
    source = make_table(folder / "s", rows(3), rows(3, start=10))
    committed(increment(source, folder / "t"))
    return source, Table.open(folder / "t")


def remove_rows(table: Table) -> int:
    """A commit that removes the first file; its version."""
    tx = table.begin()
    tx.remove(tx.read_whole_table().slice(0, 1))
    return tx.commit("DELETE")


# --- ranges ---------------------------------------------------------------------------------------------------------


def test_each_row_is_appended_once(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    assert (target.snapshot().version, ids(target), mark(target)) == (0, [0, 1, 2, 10, 11, 12], 2)
    assert (again := increment(source, target)).status == "nothing_to_do", again
    append(source, rows(2, start=20))
    append(source, rows(2, start=30))
    result = committed(increment(source, target))
    assert result.metrics["numTargetRowsInserted"] == 4
    assert (ids(target)[6:], mark(target)) == ([20, 21, 30, 31], 4)
    (entry, *_) = target.history(1)
    assert entry["operation"] == "WRITE"


@pytest.mark.parametrize(
    ("bound", "ends"),
    [({"max_versions": 2}, [1, 3, 4]), ({"max_files": 1}, [1, 2, 3, 4]), ({"max_bytes": 1}, [1, 2, 3, 4])],
)
def test_a_range_has_whole_versions_and_one_at_least(tmp_path: Path, bound: dict[str, int], ends: list[int]) -> None:
    source = make_table(tmp_path / "s", *(rows(2, start=10 * number) for number in range(4)))
    found = []
    for _ in ends:
        committed(increment(source, tmp_path / "t", starting=0, **bound))
        found.append(mark(Table.open(tmp_path / "t")))
    # The version that creates the table adds no file.
    assert found == ends
    assert increment(source, tmp_path / "t", **bound).status == "nothing_to_do"
    assert len(ids(Table.open(tmp_path / "t"))) == 8


@pytest.mark.parametrize(
    ("starting", "first"), [("snapshot", 0), (2, 10), ("2000-01-01", 0), ("2100-01-01", None), (9, None)]
)
def test_the_first_run_begins_where_it_is_told(tmp_path: Path, starting: Any, first: int | None) -> None:
    source = make_table(tmp_path / "s", rows(1), rows(1, start=10))
    result = increment(source, tmp_path / "t", starting=starting)
    if first is None:
        assert (result.status, Table.exists(tmp_path / "t")) == ("nothing_to_do", False)
    else:
        assert ids(Table.open(tmp_path / "t"))[0] == first


def test_the_first_run_begins_at_a_moment(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1), rows(1, start=10))
    moment_ms = source.snapshot().timestamp_ms
    committed(increment(source, tmp_path / "t", starting=moment_text(moment_ms)))
    assert ids(Table.open(tmp_path / "t")) == [10]


def test_a_compaction_of_the_source_is_no_new_row(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    tx = source.begin()
    files = tx.read_whole_table()
    tx.remove(files, data_change=False)
    tx.add(msgspec.structs.replace(add, data_change=False) for add in stage(source, source.to_arrow(), tx=tx))
    tx.commit("OPTIMIZE")
    append(source, rows(1, start=20))
    committed(increment(source, target))
    assert (ids(target), mark(target)) == ([0, 1, 2, 10, 11, 12, 20], 4)


@pytest.mark.parametrize("what", ["overwrite", "delete", "restore"])
def test_a_version_that_changes_rows_is_refused_by_its_number(tmp_path: Path, what: str) -> None:
    source, target = two_tables(tmp_path)
    version = {
        "overwrite": lambda: overwrite(source, rows(1, start=50)),
        "delete": lambda: remove_rows(source),
        "restore": lambda: source.restore(1),
    }[what]()
    append(source, rows(1, start=20))
    error = error_of(increment(source, target))
    assert (error["type"], error["facts"]["version"]) == ("SourceGap", version)
    assert f"version {version} (" in error["message"]
    assert (target.snapshot().version, mark(target)) == (0, 2)
    committed(increment(source, target, skip_change_commits=True))
    assert ids(target) == [0, 1, 2, 10, 11, 12, 20]


def test_files_that_come_back_are_no_new_rows(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    committed(run(None, "truncate", source))
    source.restore(2)
    append(source, rows(1, start=20))
    committed(increment(source, target, skip_change_commits=True))
    assert ids(target) == [0, 1, 2, 10, 11, 12, 20]


def test_a_range_ends_before_a_schema_that_cannot_read_it(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1))
    committed(increment(source, tmp_path / "t", starting=0))
    append(source, rows(1, start=10))
    tx = source.begin()
    tx.remove(tx.read_whole_table())
    other = make_table(tmp_path / "x", schema=pa.schema([pa.field("id", pa.string())])).snapshot().metadata
    assert tx.metadata is not None
    tx.set_metadata(
        msgspec.structs.replace(tx.metadata, schema_string=other.schema_string),
        is_checked=True,
    )
    tx.commit("WRITE")
    target = Table.open(tmp_path / "t")
    committed(increment(source, target))
    assert (ids(target), mark(target)) == ([0, 10], 2)
    assert error_of(increment(source, target))["facts"]["version"] == 3


def test_new_columns_of_the_source(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    wider = SCHEMA.append(pa.field("extra", pa.int64()))
    tx = source.begin()
    tx.evolve_schema(wider)
    tx.commit("ADD COLUMNS")
    append(source, [{"id": 20, "extra": 7}])
    error = error_of(increment(source, target))
    assert (error["facts"], mark(target)) == ({"needs_spark": True}, 2)
    committed(increment(source, target, on_schema_change="ignore"))
    assert (ids(target)[-1], target.snapshot().schema.names) == (20, SCHEMA.names)
    append(source, [{"id": 21, "extra": 8}])
    committed(increment(source, target, on_schema_change="append_new_columns"))
    assert by_id(target, "extra") == {0: None, 1: None, 2: None, 10: None, 11: None, 12: None, 20: None, 21: 8}


# --- change rows ----------------------------------------------------------------------------------------------------

FEED = {"delta.enableChangeDataFeed": "true"}


def changes_in(target: Table) -> list[tuple[Any, ...]]:
    """The change rows that an increment has appended, in order."""
    found = target.to_arrow(columns=["_commit_version", "_change_type", "id"]).to_pylist()
    return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in found)


def test_change_rows_come_from_the_feed(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(2), properties=FEED)
    tx = source.begin()
    tx.remove(tx.read_whole_table())
    tx.add(stage(source, rows(1), tx=tx))
    tx.add_changes(stage_changes(source, [{"id": 1, "_change_type": "delete"}]))
    tx.commit("DELETE")
    remove_rows(source)
    committed(increment(source, tmp_path / "t", changes=True, starting=0))
    assert changes_in(Table.open(tmp_path / "t")) == [
        (1, "insert", 0),
        (1, "insert", 1),
        (2, "delete", 1),
        (3, "delete", 0),
    ]


def test_small_files_of_rows_and_of_change_rows_are_read_together(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1), properties=FEED)
    for start in range(10, 50):
        append(source, rows(2, start=start))
        tx = source.begin()
        tx.add_changes(stage_changes(source, [{"id": start, "_change_type": "delete"}]))
        tx.add(stage(source, rows(1, start=start + 1), tx=tx))
        tx.commit("DELETE")
    committed(increment(source, tmp_path / "t", changes=True, starting=0))
    kinds = [kind for _, kind, _ in changes_in(Table.open(tmp_path / "t"))]
    assert (len(kinds), kinds.count("delete")) == (121, 40)


def test_a_snapshot_of_change_rows_is_one_of_inserts(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1), rows(1, start=5))
    committed(increment(source, tmp_path / "t", changes=True))
    assert changes_in(Table.open(tmp_path / "t")) == [(2, "insert", 0), (2, "insert", 5)]


def test_whole_files_show_their_changes_without_a_feed(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1), rows(1, start=5))
    remove_rows(source)
    committed(increment(source, tmp_path / "t", changes=True, starting=2))
    target = Table.open(tmp_path / "t")
    assert [row[1] for row in changes_in(target)] == ["insert", "delete"]
    version = overwrite(source, rows(1, start=9))
    error = error_of(increment(source, target, changes=True))
    assert (error["type"], error["facts"]["version"]) == ("SourceGap", version)


def test_deletion_vectors_show_their_changes_without_a_feed(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(6), properties={"delta.enableDeletionVectors": "true"})
    for predicate in ("id in (1, 2)", "id = 4"):
        committed(run(None, "delete", source, predicate=predicate))
    source.restore(2)
    committed(increment(source, tmp_path / "t", changes=True, starting=2))
    assert changes_in(Table.open(tmp_path / "t")) == [
        (2, "delete", 1),
        (2, "delete", 2),
        (3, "delete", 4),
        (4, "insert", 4),
    ]
    error = error_of(increment(source, tmp_path / "u", starting=1))
    assert (error["type"], error["facts"]["version"]) == ("SourceGap", 2)


@pytest.mark.parametrize("properties", [{}, {"delta.columnMapping.mode": "name"}])
def test_row_ids_show_the_changes_of_replaced_files(tmp_path: Path, properties: dict[str, str]) -> None:
    tracked = {"delta.enableRowTracking": "true", **properties}
    source = make_table(tmp_path / "s", rows(5), rows(2, start=10), properties=tracked)
    # Each copies the rows that stay into new files.
    committed(run(None, "delete", source, predicate="id = 1"))
    committed(run(None, "update", source, set={"name": "'x'"}, predicate="id in (2, 10)"))
    committed(increment(source, tmp_path / "t", changes=True, starting=3))
    target = Table.open(tmp_path / "t")
    assert changes_in(target) == [
        (3, "delete", 1),
        (4, "update_postimage", 2),
        (4, "update_postimage", 10),
        (4, "update_preimage", 2),
        (4, "update_preimage", 10),
    ]
    found = target.to_arrow(columns=["_change_type", "name"]).to_pylist()
    assert {row["name"] for row in found if row["_change_type"] == "update_postimage"} == {"x"}


def test_change_rows_of_partitions_have_their_values(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    given = pa.Table.from_pylist([{"id": 1, "p": "a/ü"}, {"id": 2, "p": None}], schema=schema)
    source = make_table(tmp_path / "s", given, partition_by=["p"])
    committed(run(None, "truncate", source))
    committed(increment(source, tmp_path / "t", changes=True, starting=0, partition_by=["p"]))
    target = Table.open(tmp_path / "t")
    found = target.to_arrow(columns=["_change_type", "id", "p"]).to_pylist()
    assert sorted((row["_change_type"], row["id"], row["p"] or "") for row in found) == [
        ("delete", 1, "a/ü"),
        ("delete", 2, ""),
        ("insert", 1, "a/ü"),
        ("insert", 2, ""),
    ]


# --- upsert and merge -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "upsert", "keys": ["id"]},
        {"mode": "merge", "on": "t.id = s.id", "clauses": [update(), insert()]},
    ],
)
def test_rows_are_brought_in_by_keys(tmp_path: Path, how: dict[str, Any]) -> None:
    source = make_table(tmp_path / "s", rows(3))
    target = make_table(tmp_path / "t", rows(1, start=2), rows(1, start=9))
    result = committed(increment(source, target, **how))
    assert {name: result.metrics[f"numTargetRows{name}"] for name in ("Inserted", "Updated")} == {
        "Inserted": 2,
        "Updated": 1,
    }
    assert (ids(target), mark(target)) == ([0, 1, 2, 9], 1)
    assert increment(source, target, **how).status == "nothing_to_do"
    assert error_of(increment(source, tmp_path / "none", **how))["type"] == "TableNotFound"


def test_events_are_applied_in_their_order_whatever_the_range_in_which_they_come(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("op", pa.string())])
    source = make_table(tmp_path / "s", schema=schema)
    target = make_table(tmp_path / "t", schema=schema.remove(3))
    how: dict[str, Any] = {
        "mode": "apply_changes",
        "keys": ["id"],
        "sequence_by": "at",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["op"],
        "starting": 0,
    }
    for events in ([(1, 5, "a", "u"), (2, 9, None, "d")], [(1, 4, "old", "u"), (2, 8, "old", "u"), (3, 1, "c", "u")]):
        append(source, [dict(zip(schema.names, event, strict=True)) for event in events])
        committed(increment(source, target, **how))
    assert (by_id(target), mark(target)) == ({1: "a", 3: "c"}, 2)
    history = make_table(
        tmp_path / "h", schema=pa.schema([*schema.remove(3), ("__START_AT", pa.int64()), ("__END_AT", pa.int64())])
    )
    committed(increment(source, history, **how, stored_as_scd_type=2))
    assert history.to_arrow().num_rows == 4
    append(source, [{"id": 1, "at": 7, "name": None, "op": "u"}])
    partial = make_table(tmp_path / "p", schema=schema.remove(3))
    committed(increment(source, partial, **how, ignore_null_updates=True))
    assert by_id(partial) == {1: "a", 3: "c"}
    with pytest.raises(InvalidJobSpec) as refused:
        increment(source, target, **how, on_gap="full")
    assert refused.value.argument == "arguments.on_gap"


# --- once -----------------------------------------------------------------------------------------------------------


def test_a_retry_finds_the_range_done_although_the_source_has_moved_on(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    work = application()
    first = committed(increment(source, target, application=work))
    append(source, rows(1, start=30))
    again = increment(source, target, application=work)
    assert (again.status, again.version, ids(target)[-1]) == ("already_done", first.version, 20)
    committed(increment(source, target, application=application(2)))
    assert ids(target)[-1] == 30


@pytest.mark.parametrize("has_moved", [False, True])
def test_a_kill_before_the_commit_loses_nothing(tmp_path: Path, has_moved: bool) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    work = application()
    with killed_before_commit():
        increment(source, target, application=work)
    append(source, rows(1, start=30))
    if has_moved:
        committed(increment(source, target))
    result = increment(source, target, application=work)
    if has_moved:
        assert result.status == "nothing_to_do", result
    elif mark(target) == 3:
        # The saved work of the killed try is its own range.
        committed(increment(source, target))
    assert (ids(target), mark(target)) == ([0, 1, 2, 10, 11, 12, 20, 30], 4)


def test_a_source_that_is_recreated_before_it_is_read_is_chosen_again(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3), rows(3, start=10))
    log = winning("consumer 'c' processes all rows", lambda: _recreated(source, tmp_path / "s"))
    committed(increment(source, tmp_path / "t", log=log))
    target, source = Table.open(tmp_path / "t"), Table.open(tmp_path / "s")
    assert (ids(target), mark(target)) == (ids(source), 4)
    append(source, rows(1, start=90))
    committed(increment(source, target))
    assert ids(target)[-1] == 90


def test_of_two_runs_one_finds_the_work_done(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    lines: list[str] = []
    with before_commit(lambda tx: committed(increment(source, target))):
        result = increment(source, target, log=lines.append)
    assert (result.status, ids(target)) == ("nothing_to_do", [0, 1, 2, 10, 11, 12, 20])
    assert any("the range of consumer 'c' is no longer the next one" in line for line in lines)


def test_the_run_that_loses_does_what_is_left(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    for start in (20, 30):
        append(source, rows(1, start=start))
    with before_commit(lambda tx: committed(increment(source, target, max_versions=1))):
        committed(increment(source, target))
    assert (ids(target), mark(target)) == ([0, 1, 2, 10, 11, 12, 20, 30], 4)


def test_the_run_that_loses_puts_the_rows_of_what_is_left_into_quarantine(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    bad = {"expect_or_quarantine": {"low": "id < 20"}, "quarantine_uri": str(tmp_path / "q")}
    append(source, rows(1, start=20))

    def other_run(tx: Any) -> None:
        # The first commit is that of the quarantine.
        if tx.snapshot is not None:
            committed(increment(source, target))
            append(source, rows(1, start=30))

    with before_commit(other_run, times=2):
        committed(increment(source, target, application=application(), **bad))
    assert (ids(target), mark(target)) == ([0, 1, 2, 10, 11, 12, 20], 4)
    assert ids(Table.open(tmp_path / "q"))[-1] == 30


def test_two_first_runs_make_one_table(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    with before_commit(lambda tx: committed(increment(source, tmp_path / "t"))):
        assert increment(source, tmp_path / "t").status == "nothing_to_do"
    assert ids(Table.open(tmp_path / "t")) == [0, 1, 2]


def test_two_consumers_of_one_target_do_not_meet(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    other = make_table(tmp_path / "o", rows(1, start=40))
    committed(increment(other, target, consumer="o"))
    append(source, rows(1, start=20))
    append(other, rows(1, start=50))
    lines: list[str] = []
    with before_commit(lambda tx: committed(increment(other, target, consumer="o"))):
        committed(increment(source, target, log=lines.append))
    assert any("rebased over 1 commit" in line for line in lines)
    assert (ids(target)[6:], mark(target), mark(target, "o")) == ([20, 40, 50], 3, 2)


def test_a_new_consumer_of_the_same_source_is_named(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    lines: list[str] = []
    committed(increment(source, target, consumer="renamed", log=lines.append))
    assert any(line.startswith("warning: 'renamed' is a new consumer") for line in lines)


def test_a_snapshot_whose_files_a_vacuum_takes_is_read_again(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))

    def replaced(line: str) -> None:
        if "processes all rows" in line and source.snapshot().version == 1:
            (path,) = source.snapshot().files().column("path").to_pylist()
            overwrite(source, rows(3))
            (tmp_path / "s" / path).unlink()

    committed(increment(source, tmp_path / "t", log=replaced))
    target = Table.open(tmp_path / "t")
    assert (ids(target), mark(target)) == ([0, 1, 2], 2)
    read_alike(target)


def test_nothing_new_lists_each_log_once_and_reads_the_target_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = two_tables(tmp_path)
    made: list[tuple[str, str]] = []
    for name in ("list", "read", "read_all", "stat"):
        call = getattr(LocalStore, name)

        def counted(store: LocalStore, *given: Any, name: str = name, call: Any = call, **more: Any) -> Any:
            made.append((name, "source" if store.root == source.uri else "target"))
            return call(store, *given, **more)

        monkeypatch.setattr(LocalStore, name, counted)
    assert increment(source, target).status == "nothing_to_do"
    assert [name for name, table in made if table == "source"] == ["list"]
    # Of the target the log is read as always: a file that lives proves the watermark, and no further commit.
    assert len(made) <= 6, made


# --- a target that was taken back -----------------------------------------------------------------------------------


def test_our_restore_rewinds_the_watermark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    committed(increment(source, target))
    lines: list[str] = []
    committed(run(None, "restore", target, version=0, log=lines.append))
    assert any("consumer 'c' goes back from version 3 to version 2" in line for line in lines)
    assert mark(target) == 2
    committed(increment(source, target))
    assert ids(target) == [0, 1, 2, 10, 11, 12, 20]
    Table.open(target.uri).restore(2)
    assert "goes back from version 3 to version 2" in caplog.text


def test_a_restore_to_before_the_first_run_takes_the_watermark(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    target = make_table(tmp_path / "t", rows(1, start=90))
    committed(increment(source, target))
    committed(run(None, "restore", target, version=1))
    assert mark(target) is None
    committed(increment(source, target))
    assert ids(target) == [0, 1, 2, 90]


def foreign_restore(target: Table, version: int) -> int:
    """RESTORE as another engine makes it: it leaves the domains alone."""
    tx, then = target.begin(), target.snapshot(version)
    tx.read_whole_table()
    tx.set_metadata(then.metadata, is_checked=True)
    have = dict.fromkeys(tx.read_whole_table().column("path").to_pylist())
    wanted = set(then.files().column("path").to_pylist())
    tx.remove([path for path in have if path not in wanted])
    return tx.commit("RESTORE", {"version": version, "timestamp": None}, never_rebases=True)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_restore_by_another_engine_is_found(tmp_path: Path, is_compacted: bool) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    committed(increment(source, target))
    version = foreign_restore(target, 0)
    if is_compacted:
        append(target, rows(1, start=90))
    assert mark(target) == 3
    error = error_of(increment(source, target))
    assert (error["type"], error["facts"]["restored_version"]) == ("WatermarkLost", 0)
    assert f"version {version} is a RESTORE to version 0" in error["message"]
    assert "airflow txlog incremental reset" in error["message"]


def test_a_restore_to_after_the_watermark_takes_none_of_its_rows(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(target, rows(1, start=90))
    overwrite(target, rows(6, start=60))
    foreign_restore_to = target.snapshot().version
    append(target, rows(1, start=91))
    foreign_restore(target, foreign_restore_to)
    append(source, rows(1, start=20))
    committed(increment(source, target))
    assert ids(target) == [20, 60, 61, 62, 63, 64, 65]


def test_a_restore_to_before_the_first_run_by_another_engine_is_found(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    target = make_table(tmp_path / "t", rows(1, start=90))
    committed(increment(source, target))
    foreign_restore(target, 1)
    assert error_of(increment(source, target))["type"] == "WatermarkLost"


def test_a_restore_that_lands_first_is_a_conflict(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    committed(increment(source, target))
    append(source, rows(1, start=30))
    with before_commit(lambda tx: foreign_restore(Table.open(target.uri), 0)):
        error = error_of(increment(source, target))
    assert (error["type"], ids(target)) == ("WatermarkLost", [0, 1, 2, 10, 11, 12])


def test_a_watermark_whose_log_is_gone_counts_while_a_file_of_it_lives(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    for _ in range(2):
        append(target, rows(1, start=90))
    target.checkpoint()
    for version in range(2):
        (tmp_path / "t" / commit_name(version)).unlink()
    committed(increment(source, Table.open(target.uri)))
    # Nothing shows any more that no RESTORE came after the watermark.
    target = Table.open(target.uri)
    overwrite(target, rows(1, start=80))
    target.checkpoint()
    for version in range(2, target.snapshot().version):
        (tmp_path / "t" / commit_name(version)).unlink()
    error = error_of(increment(source, Table.open(target.uri)))
    assert error["type"] == "WatermarkLost"
    assert "the log no longer shows" in error["message"]


def test_a_consumer_without_its_domain_does_not_start_over(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    tx = target.begin()
    tx.set_domain("txlog.incremental.c", "{}", removed=True)
    tx.commit("ALTER TABLE")
    error = error_of(increment(source, target))
    assert (error["type"], error["facts"]["consumer"]) == ("WatermarkLost", "c")
    assert "--consumer c --to-version N --source SOURCE" in error["message"], "the table no longer names the source"


HOSTILE = ["", "null", '{"source": "s"}', json.dumps({"source": "s", "tableId": "i", "version": 10**30})]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_domain_without_a_watermark_stops_its_own_consumer_alone(tmp_path: Path, text: str) -> None:
    source, target = two_tables(tmp_path)
    tx = target.begin()
    tx.set_domain("txlog.incremental.c", text)
    tx.commit("WRITE")
    append(source, rows(1, start=20))
    error = error_of(increment(source, target))
    assert error["type"] == "WatermarkLost", error
    assert "--source" in error["message"]
    committed(increment(source, target, consumer="d", starting=3))
    assert ids(target) == [0, 1, 2, 10, 11, 12, 20]
    lines: list[str] = []
    committed(run(None, "restore", target, version=0, log=lines.append))
    assert any("watermark of consumer 'c' goes back to version 2" in line for line in lines), lines
    assert (ids(target), mark(target)) == ([0, 1, 2, 10, 11, 12], 2)
    committed(increment(source, target))
    assert ids(target) == [0, 1, 2, 10, 11, 12, 20]


def test_a_clone_of_the_target_continues(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    lines: list[str] = []
    committed(run(None, "clone", tmp_path / "k", source={"table": target.uri}, log=lines.append))
    assert any("the clone continues consumer 'c' after version 2" in line for line in lines)
    append(source, rows(1, start=20))
    committed(increment(source, tmp_path / "k"))
    assert ids(Table.open(tmp_path / "k")) == [0, 1, 2, 10, 11, 12, 20]


def test_a_table_that_becomes_a_clone_takes_the_watermark(tmp_path: Path) -> None:
    source, target = two_tables(tmp_path)
    append(source, rows(1, start=20))
    other = Table.open(tmp_path / "t")
    committed(run(None, "clone", tmp_path / "k", source={"table": target.uri}))
    committed(increment(source, tmp_path / "k"))
    committed(run(None, "clone", tmp_path / "k", source={"table": other.uri}, replace=True))
    clone = Table.open(tmp_path / "k")
    assert (mark(clone), ids(clone)) == (2, [0, 1, 2, 10, 11, 12])
    committed(increment(source, clone))
    assert ids(clone) == [0, 1, 2, 10, 11, 12, 20]


def test_an_expired_transaction_does_not_matter(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    properties = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    committed(increment(source, tmp_path / "t", application=application(), properties=properties))
    target = Table.open(tmp_path / "t")
    target.checkpoint()
    target = Table.open(tmp_path / "t")
    append(source, rows(1, start=20))
    committed(increment(source, target, application=application()))
    assert ids(target) == [0, 1, 2, 20]


# --- a source with a gap --------------------------------------------------------------------------------------------


def _recreated(source: Table, folder: Path) -> None:
    shutil.rmtree(folder)
    make_table(folder, *(rows(1, start=70 + number) for number in range(4)))


def _recreated_as_long(source: Table, folder: Path) -> None:
    shutil.rmtree(folder)
    make_table(folder, *(rows(1, start=70 + number) for number in range(2)))


def _brought_back(source: Table, folder: Path) -> None:
    """Bring back a copy of version 1, to which other rows were added since."""
    for path in (folder / "_delta_log").glob("*2.*"):
        path.unlink()
    for number in range(2):
        append(Table.open(folder), rows(1, start=70 + number))


def _cleaned(source: Table, folder: Path) -> None:
    for number in range(3):
        append(source, rows(1, start=20 + number))
    source.checkpoint()
    for version in range(4):
        (folder / commit_name(version)).unlink()


def _vacuumed(source: Table, folder: Path) -> None:
    append(source, rows(1, start=20))
    before = set(source.snapshot(2).files().column("path").to_pylist())
    (path,) = set(source.snapshot().files().column("path").to_pylist()) - before
    tx = source.begin()
    tx.remove([path], data_change=False)
    tx.add(msgspec.structs.replace(add, data_change=False) for add in stage(source, rows(1, start=20), tx=tx))
    tx.commit("OPTIMIZE")
    (folder / path).unlink()


def _rewritten(source: Table, folder: Path) -> None:
    overwrite(source, rows(1, start=80))


@pytest.mark.parametrize("gap", [_recreated, _recreated_as_long, _brought_back, _cleaned, _vacuumed, _rewritten])
def test_a_gap_fails_the_run_or_rebuilds_the_target(tmp_path: Path, gap: Any) -> None:
    source, target = two_tables(tmp_path)
    gap(source, tmp_path / "s")
    source = Table.open(tmp_path / "s")
    error = error_of(increment(source, target))
    assert (error["type"], ids(target), mark(target)) == ("SourceGap", [0, 1, 2, 10, 11, 12], 2), error
    lines: list[str] = []
    result = committed(increment(source, target, on_gap="full", log=lines.append))
    assert any("The target is rebuilt from all rows of the source" in line for line in lines)
    assert result.metrics["numTargetRowsInserted"] == len(ids(source))
    assert (ids(target), mark(target)) == (ids(source), source.snapshot().version)
    assert increment(source, target).status == "nothing_to_do"


def test_a_first_run_after_a_gap_names_where_to_begin(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(1), rows(1, start=10))
    _cleaned(source, tmp_path / "s")
    error = error_of(increment(source, tmp_path / "t", starting=0))
    assert (error["type"], "`starting`" in error["message"], "reset" in error["message"]) == ("SourceGap", True, False)


def test_a_text_in_a_watermark_begins_no_line_of_a_log(tmp_path: Path) -> None:
    _, target = two_tables(tmp_path)
    text = json.dumps({"source": "s\nforged", "tableId": "i", "version": 1})
    tx = target.begin()
    tx.set_domain("txlog.incremental.c", text)
    tx.commit("WRITE")
    lines: list[str] = []
    clone = run(None, "clone", tmp_path / "copy", source={"table": target.uri}, log=lines.append)
    committed(clone)
    committed(run(None, "restore", target, version=0, log=lines.append))
    assert [line for line in lines if "forged" in line and "\n" not in line], lines
    assert not any("\n" in line for line in lines)


def test_a_target_that_is_its_own_source_is_refused(tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    error = error_of(increment(source, source))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "arguments.source")
    missing = increment(Table.at(str(tmp_path / "none"), Access()), tmp_path / "t")
    assert error_of(missing)["type"] == "SourceNotFound"
