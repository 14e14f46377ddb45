"""The rollback of a run's commits: restored, removed, or refused by the commits in the way; and never undone twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import TOMBSTONES, Watermark
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.upkeep.consumers import set_watermark, watermark_of
from airflow_txlog.engine.upkeep.rollback import (
    NOT_DONE,
    UNDOES_TAG,
    RollbackPlan,
    check_rollback,
    fill_rollback,
    of_run,
    plan_rollback,
    undoes_tag,
)
from airflow_txlog.errors import AppendOnlyViolation, FilesMissing, VersionNotFound
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import DAY, committed, ids, live_files, rows
from tests.helpers.readers import rows_by_delta_rs
from tests.helpers.rows import append, make_table, stage
from tests.helpers.specs import job_spec

RUN = {"airflow.dag_id": "orders", "airflow.run_id": "r1", "airflow.task_id": "load"}
OTHER = {**RUN, "airflow.run_id": "r2"}
REMEMBERED = f"{TOMBSTONES}k"
APP = ("airflow_txlog/x/orders/load/r1/-1", 1)


def plan(table: Table, run: dict[str, str] = RUN) -> RollbackPlan:
    wanted = {name: run[name] for name in ("airflow.dag_id", "airflow.run_id")}
    return plan_rollback(table, table.snapshot(), of_run(wanted))


def undo(table: Table, run: dict[str, str] = RUN, tags: dict[str, str] | None = None) -> int:
    found = plan(table, run)
    assert found.in_the_way == (), found
    check_rollback(table, found)
    tx = table.begin(found.head)
    operation, parameters, metrics = fill_rollback(tx, table, found)
    tags = {**(tags or {}), **undoes_tag(found)}
    return tx.commit(operation, parameters, metrics, tags=tags, never_rebases=True, record_empty=True)


def delete_all_but(table: Table, kept: pa.Table, **tags: dict[str, str]) -> int:
    """Rewrite the table as these rows alone, as a commit that copies rows does."""
    tx = table.begin()
    tx.remove(tx.read_whole_table())
    tx.add(stage(table, kept))
    return tx.commit("MERGE", {}, **tags)


def remove_file(table: Table, path: str, operation: str = "DELETE") -> int:
    tx = table.begin()
    tx.read_whole_table()
    tx.remove(path)
    return tx.commit(operation, {})


def test_a_run_alone_is_undone_by_restoring_the_version_before_it(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), application=APP, tags=RUN)
    delete_all_but(table, rows(1), tags=RUN)
    assert (plan(table).versions, plan(table).restores) == ((2, 3), 1)
    undo(table)
    assert ids(table) == list(range(5))
    assert table.history(1)[0]["operation"] == "RESTORE"
    assert (plan(table).versions, plan(table).undone) == ((), (2, 3))


def test_the_appends_of_a_run_are_removed_around_those_of_others_and_the_change_feed_shows_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0).schema, properties={"delta.enableChangeDataFeed": "true"})
    append(table, rows(5), tags=OTHER)
    append(table, rows(2, start=10), application=APP, tags=RUN)
    append(table, rows(2, start=20), tags=OTHER)
    append(table, rows(2, start=30), tags=RUN)
    found = plan(table)
    assert (found.versions, found.restores, found.removed.num_rows) == ((2, 4), None, 2)
    version = undo(table)
    assert ids(table) == [*range(5), 20, 21]
    changed = table.changes(version)
    assert sorted(zip(changed.column("_change_type").to_pylist(), changed.column("id").to_pylist(), strict=True)) == [
        ("delete", each) for each in (10, 11, 30, 31)
    ]
    entry = table.history(1)[0]
    assert (entry["operation"], entry["operationMetrics"]["numDeletedRows"]) == ("ROLLBACK", "4")


def test_the_table_that_a_run_created_is_left_empty(tmp_path: Path) -> None:
    table = Table.at(tmp_path / "t", Table.open(make_table(tmp_path / "u", rows(1)).uri).store.access)
    tx = table.begin_create(rows(0).schema)
    tx.commit("CREATE TABLE", {}, tags=RUN)
    append(table, rows(3), tags=RUN)
    delete_all_but(table, rows(2), tags=RUN)
    undo(table)
    assert ids(table) == []
    append(table, rows(1), tags=RUN)
    assert plan(table).versions == (4,)


IN_THE_WAY: dict[str, Callable[[Table, str], int]] = {
    "removed its file": remove_file,
    "compacted its file": lambda table, path: remove_file(table, path, "OPTIMIZE"),
    "read its rows": lambda table, path: delete_all_but(table, rows(3)),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_a_later_commit_that_may_have_built_on_the_rows_is_named(tmp_path: Path, what: str) -> None:
    table = make_table(tmp_path / "t", rows(5))
    before = live_files(table)
    append(table, rows(5, start=10), tags=RUN)
    append(table, rows(5, start=20), tags=OTHER)
    (path,) = live_files(Table.open(table.uri).at_version(2)) - before
    version = IN_THE_WAY[what](table, path)
    assert [each.version for each in plan(table).in_the_way] == [version]


def test_a_merge_that_left_the_rows_of_the_run_as_they_are_may_have_read_them(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    tx = table.begin()
    tx.read_whole_table()
    tx.add(stage(table, rows(1, start=99)))
    tx.commit("MERGE", {}, tags=OTHER)
    assert [(each.version, each.operation) for each in plan(table).in_the_way] == [(3, "MERGE")]


def test_commits_that_cannot_depend_on_the_rows_are_not_in_the_way(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5), rows(5, start=50))
    (path, _) = sorted(live_files(table))
    begun = table.begin()
    begun.read("id < 5")
    append(table, rows(5, start=10), tags=RUN)
    # It has read an earlier version, and is rebased over the run.
    begun.add(stage(table, rows(1, start=99)))
    begun.commit("WRITE", {})
    remove_file(table, path)
    table.vacuum(check_retention=False)
    assert plan(table).in_the_way == ()
    undo(table)
    assert not set(range(10, 15)) & set(ids(table))


def test_what_is_no_append_is_restored_or_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    delete_all_but(table, rows(2), tags=RUN)
    append(table, rows(1, start=99), tags=OTHER)
    assert [each.version for each in plan(table).in_the_way] == [3]


def test_two_runs_are_undone_one_after_the_other_in_any_order(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    append(table, rows(5, start=20), tags=OTHER)
    undo(table)
    undo(table, OTHER)
    assert ids(table) == list(range(5))
    append(table, rows(5, start=10), tags=RUN)
    append(table, rows(5, start=20), tags=OTHER)
    # The second run is restored away, and the first one then stands alone.
    undo(table, OTHER)
    assert plan(table).restores is not None
    undo(table)
    assert ids(table) == list(range(5))


def test_a_run_that_writes_again_is_undone_again_and_only_what_is_new(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), application=APP, tags=RUN)
    # The task that rolls back may belong to the run itself.
    undo(table, tags=RUN)
    append(table, rows(5, start=10), application=APP, tags=RUN)
    assert plan(table).versions == (4,)
    undo(table, tags=RUN)
    assert ids(table) == list(range(5))


def test_what_is_older_than_the_first_commit_of_the_run_need_not_be_read(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=OTHER)
    append(table, rows(5, start=20), tags=RUN)
    snapshot = table.snapshot()
    for version in range(2):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").write_text("not a commit")
    meant = of_run({name: RUN[name] for name in ("airflow.dag_id", "airflow.run_id")})
    found = plan_rollback(table, snapshot, meant, since=3)
    assert (found.versions, found.restores) == ((3,), 2)


def test_undone_work_counts_as_not_done_also_for_other_readers(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), application=APP, tags=RUN)
    append(table, rows(5, start=20), tags=OTHER)
    undo(table)
    assert table.snapshot().application_version(APP[0]) == NOT_DONE
    table.checkpoint()
    assert Table.open(table.uri).snapshot().application_version(APP[0]) == NOT_DONE


@pytest.mark.parametrize("is_alone", [True, False], ids=["restored", "removed"])
def test_a_run_whose_rows_a_restore_brings_back_is_done_again_and_not_undone_already(
    tmp_path: Path, is_alone: bool
) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(2, start=10), application=APP, tags=RUN)
    before = table.latest_version() if is_alone else append(table, rows(1, start=20))
    undo(table)
    restored = table.restore(before)
    assert table.snapshot().application_version(APP[0]) == APP[1]
    found = plan(table)
    assert (found.versions, found.undone) == ((2,), ())
    assert restored in [each.version for each in found.in_the_way]
    # Back after the rollback: what counts is the last of them.
    table.restore(restored - 1)
    assert (plan(table).versions, plan(table).undone) == ((), (2,))


def test_a_restore_to_a_moment_after_the_rollback_leaves_the_run_undone(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(2, start=10), tags=RUN)
    moment = table.snapshot(undo(table)).timestamp_ms
    append(table, rows(1, start=20))
    restored = table.restore(timestamp=moment)
    assert table.history(1)[0]["operationParameters"]["version"] == "3"
    assert (plan(table).versions, plan(table).undone) == ((), (2,))
    # Back to the moment before the rollback, the rows are there again.
    table.restore(timestamp=table.snapshot(2).timestamp_ms)
    assert [each.version for each in plan(table).in_the_way] == [3, restored, restored + 1]


def evolve(table: Table, tags: dict[str, str]) -> int:
    tx = table.begin()
    tx.evolve_schema(pa.schema([("more", pa.int64())]))
    return tx.commit("ADD COLUMNS", tags=tags)


def alter(table: Table, name: str, value: str) -> None:
    """Set a property as a task of the run."""
    annotations = {each.partition(".")[2]: text for each, text in RUN.items()}
    arguments = {"set_properties": {name: value}, "allow_reader_upgrade": True}
    spec = job_spec(operation="alter", table_uri=table.uri, arguments=arguments, annotations=annotations)
    committed(run_job(spec, None))


CHANGED: dict[str, Callable[[Table], object]] = {
    "a column": lambda table: evolve(table, RUN),
    "a property": lambda table: alter(table, "delta.checkpointInterval", "7"),
    "column mapping": lambda table: alter(table, "delta.columnMapping.mode", "name"),
    "a change feed": lambda table: alter(table, "delta.enableChangeDataFeed", "true"),
    "commit timestamps": lambda table: alter(table, "delta.enableInCommitTimestamps", "true"),
    "row ids": lambda table: alter(table, "delta.enableRowTracking", "true"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_restored_run_that_changed_the_table_counts_as_undone(tmp_path: Path, what: str) -> None:
    table = make_table(tmp_path / "t", rows(5))
    CHANGED[what](table)
    append(table, [{"id": 10, "name": "x"}], tags=RUN)
    assert plan(table).restores == 1
    undo(table)
    assert (ids(table), plan(table).versions) == (list(range(5)), ())
    assert plan(table).undone


def forge(table: Table, version: int, operation: str = "ROLLBACK", parameters: dict[str, Any] | None = None) -> int:
    """Commit the tag of an undoing that undoes nothing, as anybody who may write the table can."""
    tags = {UNDOES_TAG: f"[{version}]"}
    return table.begin().commit(operation, parameters or {}, tags=tags, record_empty=True)


@pytest.mark.parametrize("operation", ["ROLLBACK", "RESTORE", "MERGE"])
def test_a_tag_that_the_table_contradicts_does_not_keep_a_run_from_being_undone(tmp_path: Path, operation: str) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    forge(table, 2, operation, {"version": 1})
    assert (plan(table).versions, plan(table).undone, plan(table).in_the_way) == ((2,), (), ())
    undo(table)
    assert ids(table) == list(range(5))
    assert (plan(table).versions, plan(table).undone) == ((), (2,))


@pytest.mark.parametrize("operation", ["ROLLBACK", "RESTORE"])
@pytest.mark.parametrize("what", ["rows", "a column"])
def test_such_a_tag_does_not_take_the_work_of_others_back_with_the_run(
    tmp_path: Path, operation: str, what: str
) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    theirs = append(table, rows(1, start=50), tags=OTHER) if what == "rows" else evolve(table, OTHER)
    forge(table, theirs, operation, {"version": 2})
    undo(table)
    assert ids(table) == [*range(5), *([50] if what == "rows" else [])]
    assert ("more" in table.snapshot().delta_schema.names) == (what == "a column")


def test_such_a_tag_does_not_hide_that_a_commit_may_have_read_the_rows(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    tx = table.begin()
    tx.read_whole_table()
    tx.add(stage(table, rows(1, start=99)))
    tx.commit("MERGE", {}, tags={UNDOES_TAG: "[1]"})
    assert [each.version for each in plan(table).in_the_way] == [3]


@pytest.mark.parametrize("when", ["at once", "before"])
def test_such_a_tag_does_not_keep_rows_that_were_only_moved(tmp_path: Path, when: str) -> None:
    table = make_table(tmp_path / "t", rows(5))
    before = live_files(table)
    append(table, rows(5, start=10), tags=RUN)
    (path,) = live_files(Table.open(table.uri)) - before
    tx = table.begin()
    tx.read_whole_table()
    tx.remove(path)
    tx.add(stage(table, rows(5, start=10)))
    moved = tx.commit("OPTIMIZE", {}, tags={UNDOES_TAG: "[2]"} if when == "at once" else {})
    if when == "before":
        forge(table, 2)
    assert plan(table).undone == ()
    assert moved in [each.version for each in plan(table).in_the_way]


def test_a_restore_of_fewer_rows_is_believed_if_it_brings_files_back_and_no_other_rows(tmp_path: Path) -> None:
    """Rows of erased subjects are left out of a rollback, which can be read in the log alone."""

    def undone(kept: pa.Table | None, *, brings_back: bool = True) -> tuple[int, ...]:
        table = make_table(tmp_path / uuid.uuid4().hex, rows(5), rows(3, start=10))
        tx = table.begin()
        removed = tx.read_whole_table()
        tx.remove(removed)
        tx.commit("DELETE", {}, tags=RUN)
        tx = table.begin()
        if brings_back:
            tx.add(table_to_adds(removed.slice(0, 1), data_change=True))
        if kept is not None:
            tx.add(stage(table, kept))
        tx.commit("RESTORE", {"version": 2}, tags={UNDOES_TAG: "[3]"}, record_empty=True)
        return plan(table).undone

    assert undone(rows(2, start=10)) == undone(None) == undone(rows(2), brings_back=False) == (3,)
    assert undone(rows(6, start=10)) == undone(None, brings_back=False) == ()


def test_a_run_of_the_same_name_in_another_deployment_is_another_run(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    ours, theirs = ({**RUN, "airflow.deployment": name} for name in ("a", "b"))
    append(table, rows(1, start=10), tags=ours)
    append(table, rows(1, start=20), tags=theirs)
    append(table, rows(1, start=30), tags=RUN)

    def found(deployment: str | None) -> tuple[int, ...]:
        return plan_rollback(table, table.snapshot(), of_run(RUN, {"airflow.deployment": deployment})).versions

    # A commit without the tag may be anybody's.
    assert [found(name) for name in ("a", "b", "c", None)] == [(2, 4), (3, 4), (4,), (2, 3, 4)]


def record(table: Table, number: int, tags: dict[str, str]) -> int:
    """Commit tombstones alone, as of events that delete what the table does not have."""
    tx = table.begin()
    tx.set_application(REMEMBERED, number)
    return tx.commit("MERGE", {}, tags=tags, record_empty=True)


def test_the_tombstones_of_earlier_runs_stay(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    record(table, 100, OTHER)
    append(table, rows(2, start=10), application=(REMEMBERED, 200), tags=RUN)
    append(table, rows(1, start=20))
    undo(table)
    assert ids(table) == [*range(5), 20]
    assert table.snapshot().application_version(REMEMBERED) == 100


def test_tombstones_alone_are_undone_and_those_of_a_later_run_are_in_the_way(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    record(table, 100, OTHER)
    record(table, 200, RUN)
    record(table, 300, OTHER)
    assert [each.version for each in plan(table).in_the_way] == [4]
    assert plan(table, OTHER).in_the_way[0].version == 3
    table = make_table(tmp_path / "alone", rows(5))
    record(table, 100, OTHER)
    record(table, 200, RUN)
    undo(table)
    assert table.snapshot().application_version(REMEMBERED) == 100


def test_a_rollback_that_was_undone_can_be_made_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), application=APP, tags=RUN)
    version = undo(table)
    again = plan_rollback(table, table.snapshot(), lambda each, info: each == version)
    tx = table.begin()
    operation, parameters, metrics = fill_rollback(tx, table, again)
    tx.commit(operation, parameters, metrics, tags=undoes_tag(again), never_rebases=True)
    assert ids(table) == [*range(5), *range(10, 15)]
    assert table.snapshot().application_version(APP[0]) == 1
    undo(table)
    assert ids(table) == list(range(5))


def test_what_only_moves_rows_or_records_something_needs_no_undoing(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5), rows(5, start=10))
    tx = table.begin()
    tx.remove(tx.read_whole_table(), data_change=False)
    tx.add([msgspec.structs.replace(each, data_change=False) for each in stage(table, rows(10))])
    tx.commit("OPTIMIZE", {}, tags=RUN)
    assert plan(table).versions == ()


def test_a_rollback_that_the_table_forbids_is_refused_before_it_begins(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", rows(0).schema, properties={"delta.appendOnly": "true"})
    append(table, rows(5), tags=OTHER)
    append(table, rows(5, start=10), tags=RUN)
    with pytest.raises(AppendOnlyViolation):
        check_rollback(table, plan(table))


def test_a_version_that_a_vacuum_has_removed_is_refused_before_it_begins(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    (path,) = live_files(table)
    delete_all_but(table, rows(2), tags=RUN)
    (tmp_path / "t" / path).unlink()
    with pytest.raises(FilesMissing, match="version 1 "):
        check_rollback(table, plan(table))


def test_a_run_whose_first_commits_the_log_may_have_lost_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), tags=RUN)
    append(table, rows(5, start=20), tags=RUN)
    table.checkpoint(2)
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(VersionNotFound, match="version 3 is to be undone"):
        plan(Table.open(table.uri))


def advance(table: Table, version: int, start: int, **commit: Any) -> int:
    """Append a row with the watermark of a consumer, as an incremental task does."""
    tx = table.begin()
    set_watermark(tx, "orders", Watermark(source="/in", table_id="i", version=version))
    tx.add(stage(table, rows(1, start=start), tx=tx))
    return tx.commit("WRITE", {"mode": "Append"}, **commit)


@pytest.mark.parametrize("is_first", [True, False], ids=["the first increment", "a later one"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["restored", "removed"])
def test_the_watermark_of_an_increment_goes_back_with_its_rows(tmp_path: Path, is_first: bool, is_alone: bool) -> None:
    table = make_table(tmp_path / "t", rows(5))
    if not is_first:
        advance(table, 3, 10)
    advance(table, 7, 20, tags=RUN)
    if not is_alone:
        append(table, rows(1, start=50), tags=OTHER)
    assert (plan(table).restores is None, len(plan(table).rewinds)) == (not is_alone, 1)
    undo(table)
    found = watermark_of(table.snapshot(), "orders")
    assert (None if found is None else found.version) == (None if is_first else 3)
    assert ids(table) == [*range(5), *([] if is_first else [10]), *([] if is_alone else [50])]
    advance(table, 7, 20)


def test_a_later_increment_of_the_same_consumer_is_in_the_way(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    advance(table, 3, 10, tags=RUN)
    append(table, rows(1, start=50), tags=OTHER)
    advance(table, 7, 20, tags=OTHER)
    assert [each.version for each in plan(table).in_the_way] == [4]


FEATURES = {
    "deletion vectors": {"delta.enableDeletionVectors": "true"},
    "column mapping": {"delta.columnMapping.mode": "name"},
    "row ids": {"delta.enableRowTracking": "true"},
    "change feed": {"delta.enableChangeDataFeed": "true"},
    "commit timestamps": {"delta.enableInCommitTimestamps": "true"},
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("partition_by", [[], ["day", "name"]], ids=["whole", "partitioned"])
def test_tables_with_features_are_rolled_back_both_ways(tmp_path: Path, feature: str, partition_by: list[str]) -> None:
    odd = pa.Table.from_pylist(
        [{"id": 7, "name": "a/b c=%20"}, {"id": 8, "day": DAY, "amount": 1.0}], schema=rows(0).schema
    )
    table = Table.create(tmp_path / "t", odd.schema, partition_by, FEATURES[feature])
    append(table, rows(3), tags=OTHER)
    append(table, odd, tags=RUN)
    append(table, rows(2, start=20), tags=OTHER)
    assert plan(table).restores is None
    undo(table)
    assert (ids(table), plan(table).versions) == ([0, 1, 2, 20, 21], ())
    append(table, odd, tags=RUN)
    assert plan(table).restores is not None
    undo(table)
    assert (ids(table), plan(table).versions) == ([0, 1, 2, 20, 21], ())
    found = rows_by_delta_rs(str(tmp_path / "t"))
    assert found is None or sorted(found.column("id").to_pylist()) == [0, 1, 2, 20, 21]


def test_appends_by_delta_rs_are_left_and_it_reads_the_number_of_undone_work(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(5))
    append(table, rows(5, start=10), application=APP, tags=RUN)
    write_deltalake(table.uri, rows(1, start=50), mode="append")
    undo(table)
    write_deltalake(table.uri, rows(1, start=60), mode="append")
    theirs = DeltaTable(table.uri)
    assert theirs.transaction_version(APP[0]) == NOT_DONE
    theirs.create_checkpoint()
    assert Table.open(table.uri).snapshot().application_version(APP[0]) == NOT_DONE
    assert ids(table) == [*range(5), 50, 60]
    append(table, rows(5, start=80), tags=RUN)
    merge = DeltaTable(table.uri).merge(rows(1, start=70), "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_not_matched_insert_all().execute()
    assert [each.operation for each in plan(table).in_the_way] == ["MERGE"]
