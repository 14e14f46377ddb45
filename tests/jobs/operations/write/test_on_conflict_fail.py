"""An overwrite with `on_conflict="fail"` replaces no row that landed after its first try began, however often it is
tried.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import ApplicationTransaction, JobResult, JobSpec
from airflow_txlog.engine import Table, Transaction
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.errors import CommitContention
from airflow_txlog.exactly_once.exchange import forget_saved_work
from airflow_txlog.jobs.run import run_job
from tests.helpers.first_versions import lose_by_hand, lose_by_vacuum_of_delta_rs, move_to_the_head, notes
from tests.helpers.jobs import DAY, KEY, application, committed, error_of, ids, rows, set_property
from tests.helpers.racing import before_commit, killed_before_commit
from tests.helpers.rows import append, make_table, stage
from tests.helpers.specs import job_spec

NEXT_DAY = DAY + dt.timedelta(days=1)

MODES: dict[str, dict[str, Any]] = {
    "the whole table": {"mode": "overwrite"},
    "a partition": {"mode": "overwrite", "partition_predicate": "day = DATE '2024-01-01'"},
    "the partitions of the source": {"mode": "overwrite_partitions"},
}
PARTITION = MODES["a partition"]

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
with_and_without_key = pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Ids 0 to 9 of DAY and 50 to 54 of NEXT_DAY. All commits are a day old."""
    days = (rows(10), rows(5, start=50, day=NEXT_DAY))
    table = make_table(tmp_path / "t", *days, partition_by=["day"])
    for version in range(3):
        yesterday = SYSTEM_CLOCK.now_ms() // 1000 - 86_400 + version
        os.utime(tmp_path / "t" / commit_name(version), (yesterday, yesterday))
    return table


def write(
    table: Table | Path, identity: ApplicationTransaction | None, *, key: str | None = KEY, **arguments: Any
) -> JobResult:
    """Overwrite by the ids 100 and 101 of DAY, without Spark."""
    return run_job(spec_of(table, identity, key, arguments), None)


def spec_of(
    table: Table | Path, identity: ApplicationTransaction | None, key: str | None, arguments: dict[str, Any]
) -> JobSpec:
    root = Path(table.uri.removeprefix("file://")) if isinstance(table, Table) else table
    source = root.parent / "in.parquet"
    if not source.exists():
        pq.write_table(rows(2, start=100), source)
    given = {"source": {"format": "parquet", "path": str(source)}, "on_conflict": "fail", "mode": "overwrite"}
    return job_spec(
        operation="write",
        table_uri=str(root),
        arguments=given | arguments,
        application=identity,
        saved_work_key=None if identity is None else key,
    )


def saved(table: Table) -> list[Path]:
    return list(Path(table.uri.removeprefix("file://")).glob("txlog-inputs-*"))


# --- killed, and tried again ----------------------------------------------------------------------------------------


@with_and_without_key
@each_mode
def test_a_retry_replaces_no_row_that_landed_after_the_first_try(
    table: Table, mode: dict[str, Any], key: str | None
) -> None:
    identity = application()
    for _ in range(2):
        with killed_before_commit():
            write(table, identity, key=key, **mode)
    append(table, rows(1, start=300))
    for _ in range(2):
        error = error_of(write(table, identity, key=key, **mode))
        assert (error["type"], error["retryable"]) == ("ConcurrentAppend", False)
        assert (error["facts"]["read_version"], error["facts"]["winning_version"]) == (2, 3)
    assert ids(table) == [*range(10), *range(50, 55), 300]
    # A cleared task is new work, of an author who has seen what landed.
    committed(write(table, dataclasses.replace(identity, version=2), key=key, **mode))
    assert 300 not in ids(table)


@with_and_without_key
@pytest.mark.parametrize("mode", [PARTITION, MODES["the partitions of the source"]])
def test_a_retry_is_done_where_all_that_has_landed_lies_outside_of_its_scope(
    table: Table, mode: dict[str, Any], key: str | None
) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity, key=key, **mode)
    append(table, rows(1, start=300, day=NEXT_DAY))
    result = committed(write(table, identity, key=key, **mode))
    assert (result.version, result.read_version) == (4, 2)
    assert ids(table) == [*range(50, 55), 100, 101, 300]
    assert saved(table) == []


@each_mode
def test_a_retry_is_done_where_nothing_has_landed(table: Table, mode: dict[str, Any]) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity, **mode)
    assert len(notes(table)) == 1
    assert committed(write(table, identity, **mode)).version == 3
    assert 100 in ids(table)
    assert saved(table) == []


def test_a_retry_leaves_alone_what_the_isolation_level_orders_after_it(tmp_path: Path) -> None:
    properties = {"delta.isolationLevel": "WriteSerializable"}
    table, identity = make_table(tmp_path / "t", rows(10), properties=properties), application()
    with killed_before_commit():
        write(table, identity)
    append(table, rows(1, start=300))
    committed(write(table, identity))
    assert ids(table) == [100, 101, 300]


def test_a_retry_of_work_that_was_killed_after_its_commit_is_done(table: Table) -> None:
    identity = application()
    committed(write(table, identity))
    append(table, rows(1, start=300))
    result = write(table, identity)
    assert (result.status, result.version, ids(table)) == ("already_done", 3, [100, 101, 300])


def test_a_retry_that_cannot_compare_any_more_is_refused(table: Table, tmp_path: Path) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity, **PARTITION)
    append(table, rows(1, start=300, day=NEXT_DAY))
    deltalake.DeltaTable(table.uri).create_checkpoint()
    for version in range(3):
        (tmp_path / "t" / commit_name(version)).unlink()
    error = error_of(write(table, identity, **PARTITION))
    assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    assert "met version 2 when it was first tried, and since then landed: version 3." in error["message"]
    assert "clear the task." in error["message"]


def test_a_retry_on_a_table_that_was_made_again_is_refused(table: Table, tmp_path: Path) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity)
    for path in [*(tmp_path / "t" / "_delta_log").iterdir(), *(tmp_path / "t").rglob("*.parquet")]:
        path.unlink()
    again = make_table(tmp_path / "t", rows(1), rows(2), partition_by=["day"])
    assert error_of(write(again, identity))["type"] == "TableReplaced"
    assert ids(again) == [0, 0, 1]


# --- the note -------------------------------------------------------------------------------------------------------


def take_that_of_other_work(table: Table) -> None:
    (path,) = notes(table)
    with killed_before_commit():
        write(table, application())
    (other,) = set(notes(table)) - {path}
    path.write_bytes(other.read_bytes())


@with_and_without_key
@pytest.mark.parametrize("harm", [lose_by_hand, lose_by_vacuum_of_delta_rs, move_to_the_head, take_that_of_other_work])
def test_a23_a_note_that_was_lost_or_rewritten_permits_nothing(
    table: Table, harm: Callable[[Table], None], key: str | None
) -> None:
    identity = application(first_tried_ms=SYSTEM_CLOCK.now_ms())
    with killed_before_commit():
        write(table, identity, key=key)
    append(table, rows(1, start=300))
    harm(table)
    for _ in range(2):
        error = error_of(write(table, identity, key=key))
        assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    assert 300 in ids(table)
    # The cleared task's first try.
    committed(write(table, application(first_tried_ms=SYSTEM_CLOCK.now_ms(), is_first_try=True), key=key))


def test_a_retry_without_a_note_is_done_if_nothing_has_landed_since_the_first_try(table: Table) -> None:
    identity = application(first_tried_ms=SYSTEM_CLOCK.now_ms())
    with killed_before_commit():
        write(table, identity)
    lose_by_hand(table)
    assert committed(write(table, identity)).version == 3


@with_and_without_key
def test_the_note_of_work_that_has_failed_for_good_goes_with_its_saved_work(table: Table, key: str | None) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity, key=key)
    assert len(notes(table)) == 1
    forget_saved_work(spec_of(table, identity, key, {}))
    assert notes(table) == []


def test_an_overwrite_that_may_replace_what_has_landed_notes_nothing(table: Table) -> None:
    identity = application()
    with killed_before_commit():
        write(table, identity, on_conflict="replan")
    assert notes(table) == []
    append(table, rows(1, start=300))
    committed(write(table, identity, on_conflict="replan"))
    assert ids(table) == [100, 101]


# --- while it runs --------------------------------------------------------------------------------------------------


def evolve(table: Table) -> None:
    """Another's commit that adds a column, and a row that has it."""
    tx = table.begin()
    tx.evolve_schema(pa.schema([*table.snapshot().schema, ("more", pa.int64())]))
    tx.add(stage(table, rows(1, start=300), tx=tx))
    tx.commit("WRITE")


@pytest.mark.parametrize("identity", [None, application()], ids=["without an identity", "with one"])
@pytest.mark.parametrize(
    ("land", "kind"),
    [
        (evolve, "MetadataChanged"),
        # The second commit lies behind the first one, which no plan on the newest version would be compared with.
        (lambda table: (set_property(table, "a", "b"), append(table, rows(1, start=300))), "MetadataChanged"),
        (lambda table: append(table, rows(1, start=300)), "ConcurrentAppend"),
    ],
)
def test_rows_that_land_with_or_behind_another_change_are_not_replaced(
    table: Table, land: Callable[[Table], Any], kind: str, identity: ApplicationTransaction | None
) -> None:
    with before_commit(lambda tx: land(table)):
        error = error_of(write(table, identity))
    assert (error["type"], error["retryable"]) == (kind, False)
    assert 300 in ids(table)


@pytest.mark.parametrize("identity", [None, application()], ids=["without an identity", "with one"])
def test_rows_that_land_between_two_attempts_of_one_try_are_not_replaced(
    table: Table, identity: ApplicationTransaction | None
) -> None:
    def contend(tx: Transaction) -> None:
        append(table, rows(1, start=300))
        raise CommitContention("every race was lost", table=table.uri)

    with before_commit(contend):
        error = error_of(write(table, identity))
    assert (error["type"], error["retryable"]) == ("ConcurrentAppend", False)
    assert 300 in ids(table)


def test_the_conflict_with_another_copy_of_the_same_work_is_its_success(table: Table, tmp_path: Path) -> None:
    pq.write_table(rows(2, start=100).append_column("more", [[1, 2]]), tmp_path / "in.parquet")
    identity = application()
    with before_commit(lambda tx: committed(write(table, identity, schema_evolution=True))):
        result = write(table, identity, schema_evolution=True)
    assert (result.status, result.version) == ("already_done", 3)
    assert saved(table) == []


# --- a table that is made -------------------------------------------------------------------------------------------


def test_rows_of_a_table_that_another_writer_made_first_are_not_replaced(tmp_path: Path) -> None:
    with before_commit(lambda tx: make_table(tmp_path / "t", rows(3))):
        error = error_of(write(tmp_path / "t", application()))
    assert (error["type"], error["retryable"]) == ("ProtocolChanged", False)
    assert ids(Table.open(str(tmp_path / "t"))) == [0, 1, 2]


def test_rows_of_a_table_that_another_writer_made_between_two_tries_are_not_replaced(tmp_path: Path) -> None:
    identity = application()
    with killed_before_commit():
        write(tmp_path / "t", identity)
    table = make_table(tmp_path / "t", rows(3))
    error = error_of(write(tmp_path / "t", identity))
    assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    assert "met no table when it was first tried, and since then landed: version 0, 1." in error["message"]
    assert ids(table) == [0, 1, 2]


def test_a_table_whose_making_was_killed_is_made_by_the_retry(tmp_path: Path) -> None:
    identity = application()
    with killed_before_commit():
        write(tmp_path / "t", identity)
    assert committed(write(tmp_path / "t", identity)).version == 0
    table = Table.open(str(tmp_path / "t"))
    assert (ids(table), saved(table)) == ([100, 101], [])


def test_a_table_that_another_copy_of_the_same_work_made_is_done(tmp_path: Path) -> None:
    identity = application()
    with before_commit(lambda tx: committed(write(tmp_path / "t", identity))):
        result = write(tmp_path / "t", identity)
    assert (result.status, result.version) == ("already_done", 0)
