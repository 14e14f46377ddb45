"""UPKEEP: what is due is done through the jobs of OPTIMIZE, CHECKPOINT and VACUUM, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.operations import Upkeep
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.upkeep.removed_files import read_last_vacuum
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.operations.upkeep import upkeep
from airflow_txlog.storage import LocalStore
from tests.conftest import ManualClock
from tests.helpers.depth import depth
from tests.helpers.jobs import begin_job, committed, error_of, run, set_property
from tests.helpers.racing import killed_before_commit
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

# A table whose checkpoints, log and tombstones are never due by themselves.
CALM = {"delta.checkpointInterval": "100000", "delta.enableExpiredLogCleanup": "false"}


def rows(first: int, count: int = 1, day: str = "mon") -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [day] * count})


def make(folder: Path, files: int, **more: Any) -> Table:
    layout = {"properties": CALM | more.pop("properties", {}), **more}
    return make_table(folder, *(rows(number) for number in range(files)), **layout)


def steps(table: Table, **arguments: Any) -> list[tuple[str, bool]]:
    result = run(None, "upkeep", table, **arguments)
    assert result.error is None, result.error
    return [(step["step"], step["done"]) for step in result.details.upkeep]


def ids(table: Table) -> list[int]:
    found: list[int] = Table.open(table.uri).to_arrow()["id"].to_pylist()
    return sorted(found)


def num_files(table: Table) -> int:
    return Table.open(table.uri).snapshot().num_files


def with_old_log(table: Table, log: Path) -> Path:
    """Make the log older than its retention; return a commit before its only checkpoint."""
    table.checkpoint(4)
    long_ago_s = table.clock.now_ms() / 1000 - 60 * 86_400
    for path in log.iterdir():
        os.utime(path, (long_ago_s, long_ago_s))
    return log / f"{3:020}.json"


def test_a_healthy_table_gets_no_commit(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 1)
    result = run(None, "upkeep", table)
    assert (result.status, result.details.upkeep) == ("nothing_to_do", [])
    assert Table.open(table.uri).latest_version() == table.latest_version()


@pytest.mark.parametrize(("files", "expected"), [(2, []), (3, [("compact", True)])])
def test_more_than_two_small_files_of_a_partition_are_joined(
    tmp_path: Path, files: int, expected: list[tuple[str, bool]]
) -> None:
    table = make(tmp_path / "t", files)
    assert steps(table) == expected
    assert num_files(table) == (1 if expected else files)
    assert ids(table) == list(range(files))
    assert steps(table) == []


def test_one_file_with_many_deleted_rows_is_rewritten_alone(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(0, 10), properties=CALM | {"delta.enableDeletionVectors": "true"})
    committed(run(None, "delete", table, predicate="id = 5"))
    assert steps(table, purge_above=None) == [("compact", True)]
    assert steps(table, purge_above=None) == []


def test_a_table_that_may_not_be_written_here_is_refused_and_a_dry_run_reads_it(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 3)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["anythingNew"]}
    commit = f"{table.latest_version() + 1:020}.json"
    (tmp_path / "t" / "_delta_log" / commit).write_text(json.dumps({"protocol": protocol}))
    assert steps(table, dry_run=True) == [("compact", False)]
    assert error_of(run(None, "upkeep", table, compact=False))["type"] == "UnsupportedFeature"


@pytest.mark.parametrize(("above", "is_due"), [(0.05, True), (0.25, True), (0.75, False), (None, False)])
def test_deleted_rows_above_the_share_are_purged(tmp_path: Path, above: float | None, is_due: bool) -> None:
    table = make_table(tmp_path / "t", rows(0, 10), properties=CALM | {"delta.enableDeletionVectors": "true"})
    committed(run(None, "delete", table, predicate="id < 5"))
    assert steps(table, purge_above=above, compact=False) == ([("purge", True)] if is_due else [])
    vectors = Table.open(table.uri).snapshot().files(columns=["deletion_vector"]).column(0)
    assert (vectors.null_count == len(vectors)) == is_due
    assert ids(table) == list(range(5, 10))


def test_a_checkpoint_is_due_beyond_the_interval_of_the_table(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 6)
    set_property(table, "delta.checkpointInterval", "5")
    assert ("checkpoint", True) in steps(table, compact=False)
    found = list_segment(table.store, Table.open(table.uri).latest_version()).checkpoint
    assert found is not None
    assert found.version == Table.open(table.uri).latest_version()
    assert steps(table, compact=False) == []


def test_the_log_before_its_retention_is_cleaned_and_the_table_is_read_as_before(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 6)
    old = with_old_log(table, tmp_path / "t" / "_delta_log")
    assert steps(table, compact=False) == []
    set_property(table, "delta.enableExpiredLogCleanup", "true")
    assert steps(table, compact=False, dry_run=True) == []
    assert old.exists()
    assert steps(table, compact=False) == [("clean_log", True)]
    assert not old.exists()
    assert ids(table) == list(range(6))
    assert steps(table, compact=False) == []


def test_a_lite_vacuum_becomes_full_where_the_log_does_not_reach_back_but_not_beside_files_of_others(
    tmp_path: Path,
) -> None:
    for name in ("alone", "shared"):
        table = make(tmp_path / name, 6, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
        committed(run(None, "delete", table, predicate="id = 0"))
        if name == "shared":
            set_property(table, "txlog.sharedFolder", "true")
        table.checkpoint()
        for version in range(3):
            (tmp_path / name / "_delta_log" / f"{version:020}.json").unlink()
        assert steps(table, compact=False) == ([("vacuum", True)] if name == "alone" else [])
        assert ids(table) == [1, 2, 3, 4, 5]


def test_a_vacuum_without_a_file_is_remembered_so_that_a_cleaned_log_needs_no_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path / "t", 6, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    assert steps(table, compact=False, dry_run=True) == []
    assert read_last_vacuum(table.store) is None
    assert steps(table, compact=False) == []
    assert read_last_vacuum(table.store) == table.latest_version()
    table.checkpoint()
    for version in range(3):
        (tmp_path / "t" / "_delta_log" / f"{version:020}.json").unlink()
    monkeypatch.setattr(LocalStore, "walk", lambda *_, **__: pytest.fail("the files are listed"))
    assert steps(table, compact=False) == []


def test_a_full_vacuum_beside_files_of_others_goes_by_the_log_alone(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 3, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    set_property(table, "txlog.sharedFolder", "true")
    other = tmp_path / "t" / "of-others.parquet"
    other.write_bytes(b"1")
    os.utime(other, (0, 0))
    assert steps(table, vacuum="full") == [("compact", True), ("vacuum", True)]
    assert other.exists()
    assert steps(table, vacuum="full") == []


def test_the_log_is_cleaned_after_the_vacuum_that_needs_it(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 6, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    committed(run(None, "delete", table, predicate="id = 0"))
    # Without a full vacuum, the files that a cleaned log removed would stay for ever.
    set_property(table, "txlog.sharedFolder", "true")
    set_property(table, "delta.enableExpiredLogCleanup", "true")
    table.checkpoint()
    long_ago_s = table.clock.now_ms() / 1000 - 60 * 86_400
    for path in (tmp_path / "t" / "_delta_log").iterdir():
        os.utime(path, (long_ago_s, long_ago_s))
    assert steps(table, compact=False) == [("vacuum", True), ("clean_log", True)]
    assert ids(table) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", ["lite", "full"])
def test_files_that_no_kept_version_needs_are_vacuumed(tmp_path: Path, mode: str) -> None:
    table = make(tmp_path / "t", 3, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    before = set((tmp_path / "t").glob("*.parquet"))
    assert steps(table, vacuum=None) == [("compact", True)]
    assert before < set((tmp_path / "t").glob("*.parquet"))
    assert steps(table, vacuum=mode) == [("vacuum", True)]
    assert not before & set((tmp_path / "t").glob("*.parquet"))
    assert steps(table, vacuum=mode) == []
    assert ids(table) == [0, 1, 2]


def test_a_dry_run_reports_the_steps_and_changes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 4, properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    committed(run(None, "delete", table, predicate="id = 0"))
    set_property(table, "delta.checkpointInterval", "4")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert steps(table, dry_run=True) == [("compact", False), ("checkpoint", False), ("vacuum", False)]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("*") if path.is_file()} == before
    assert [step for step, _ in steps(table)] == ["compact", "checkpoint", "vacuum"]


def test_the_bytes_of_a_budget_are_spent_on_the_smallest_files_and_the_rest_is_left(tmp_path: Path) -> None:
    small = [rows(number, day="mon") for number in range(4)]
    large = [rows(100 * number, 20_000, day="tue") for number in range(1, 4)]
    table = make_table(tmp_path / "t", *small, *large, partition_by=["day"], properties=CALM)
    nothing_fits = run(None, "upkeep", table, max_bytes=1)
    assert nothing_fits.status == "nothing_to_do"
    assert [(step["step"], step["done"]) for step in nothing_fits.details.upkeep] == [("compact", False)]
    assert num_files(table) == 7
    assert steps(table, max_bytes=20_000) == [("compact", True)]
    assert num_files(table) == 4
    assert steps(table) == [("compact", True)]
    assert num_files(table) == 2


def test_no_step_begins_when_the_time_is_over(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 4)
    old = with_old_log(table, tmp_path / "t" / "_delta_log")
    set_property(table, "delta.enableExpiredLogCleanup", "true")
    clock = ManualClock(table.clock.now_ms())
    spec = job_spec(operation="upkeep", table_uri=table.uri, arguments={"max_minutes": 5 / 60})

    context = begin_job(spec, None, Table.open(table.uri), lambda line: clock.sleep(10))
    result = upkeep(context, clock)
    # The line that says what is due takes ten seconds.
    assert [(step["step"], step["done"]) for step in result.details.upkeep] == [("compact", True)]
    assert num_files(table) == 4
    assert old.exists()
    again = dataclasses.replace(spec, operation=Upkeep(max_minutes=1 / 60, purge_above=None, dry_run=False))
    clock.sleep(0)
    assert upkeep(begin_job(again, None, Table.open(table.uri)), clock).status == "committed"


def test_a_killed_upkeep_does_the_rest_when_it_runs_again(tmp_path: Path) -> None:
    table = make_table(
        tmp_path / "t",
        *(rows(number, day=day) for number, day in enumerate(["mon"] * 3 + ["tue"] * 3)),
        partition_by=["day"],
        properties=CALM,
    )
    with killed_before_commit():
        run(None, "upkeep", table)
    assert num_files(table) == 6
    assert steps(table) == [("compact", True)]
    assert num_files(table) == 2
    assert ids(table) == list(range(6))


@pytest.mark.parametrize(
    "wrong", [{"purge_above": 1.5}, {"purge_above": -1}, {"vacuum": "half"}, {"max_bytes": 0}, {"max_minutes": 0}]
)
def test_wrong_arguments_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobSpec):
        job_spec(operation="upkeep", table_uri=str(tmp_path), arguments=wrong)


@pytest.mark.seeded
def test_many_writers_many_readers_and_repeated_upkeep_leave_few_files_and_lose_no_row(tmp_path: Path) -> None:
    """Eight writers make small appends. Of the files that it finds, an upkeep leaves at most twice those of a compacted
    table, which has one here: throughout, and at the end.
    """
    writers, appends = 8, depth(20, 130, 1250)
    properties = {"delta.checkpointInterval": "50"}
    table = make_table(tmp_path / "t", rows(-1), properties=properties)
    done, wrong = threading.Event(), list[BaseException]()

    def until_done(work: Callable[[], object]) -> None:
        while not done.wait(0.05):
            try:
                work()
            except BaseException as error:
                wrong.append(error)
                return

    def read() -> None:
        found = Table.open(table.uri).to_arrow()["id"].to_pylist()
        assert len(found) == len(set(found))

    def keep() -> None:
        result = run(None, "upkeep", table)
        assert result.error is None, result.error
        assert result.read_version is not None
        found, left = (
            set(Table.open(table.uri).snapshot(version).files()["path"].to_pylist())
            for version in (result.read_version, result.version)
        )
        assert len(found & left) + result.metrics.get("numAddedFiles", 0) <= 2

    def write(number: int) -> None:
        own = Table.open(table.uri)
        for each in range(appends):
            append(own, rows(number * appends + each))

    helpers = [threading.Thread(target=until_done, args=(work,)) for work in (read, read, keep)]
    for helper in helpers:
        helper.start()
    try:
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, range(writers)))
    finally:
        done.set()
        for helper in helpers:
            helper.join()
    assert wrong == []
    keep()
    assert ids(table) == [-1, *range(writers * appends)]
    assert num_files(table) <= 2
    assert any(commit["operation"] == "OPTIMIZE" for commit in table.history())
