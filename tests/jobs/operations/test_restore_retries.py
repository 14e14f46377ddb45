"""A RESTORE that is tried again restores on top of the version that its first try met, or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.exactly_once.exchange import forget_saved_work
from airflow_txlog.jobs.run import run_job
from airflow_txlog.storage.local import LocalStore
from tests.helpers.first_versions import lose_by_hand, lose_by_vacuum_of_delta_rs, move_to_the_head, notes
from tests.helpers.jobs import KEY, application, committed, error_of, ids, rows
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec


class Killed(BaseException):
    """The end of a worker, which no job handles."""


def kill() -> None:
    raise Killed


def restore(
    table: Table,
    identity: ApplicationTransaction | None,
    at: Callable[[], Any] | None = None,
    *,
    key: str | None = None,
) -> JobResult:
    """Restore version 1; `at` is called when the plan is made and nothing is committed yet."""
    spec = job_spec(
        operation="restore", table_uri=table.uri, arguments={"version": 1}, application=identity, saved_work_key=key
    )
    return run_job(spec, None, log=lambda line: at() if at is not None and line.startswith("to version") else None)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Version 1 holds ids 0 to 9, version 2 also 50 to 59, version 3 also 90 to 94. All are a day old."""
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50), rows(5, start=90))
    for version in range(4):
        yesterday = SYSTEM_CLOCK.now_ms() // 1000 - 86_400 + version
        os.utime(tmp_path / "t" / commit_name(version), (yesterday, yesterday))
    return table


def saved(table: Table) -> list[Path]:
    return list(Path(table.uri.removeprefix("file://")).glob("txlog-inputs-*"))


def test_a_restore_that_was_killed_undoes_nothing_that_has_landed_since(table: Table) -> None:
    identity = application()
    with pytest.raises(Killed):
        restore(table, identity, kill)
    append(table, rows(1, start=300))
    append(table, rows(1, start=301))
    for _ in range(2):
        error = error_of(restore(table, identity))
        assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
        assert "met version 3 when it was first tried, and since then landed: version 4, 5." in error["message"]
        assert (error["facts"]["read_version"], error["facts"]["winning_version"]) == (3, 4)
    assert table.snapshot().version == 5
    # A cleared task is new work, of an author who has seen what landed.
    committed(restore(table, dataclasses.replace(identity, version=identity.version + 1)))
    assert ids(table) == list(range(10))


def test_a_restore_that_was_killed_is_done_by_its_retry_where_nothing_has_landed(table: Table) -> None:
    identity = application()
    for _ in range(2):
        with pytest.raises(Killed):
            restore(table, identity, kill)
    assert committed(restore(table, identity)).version == 4
    assert ids(table) == list(range(10))
    assert saved(table) == []


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
def test_the_note_of_a_restore_that_has_failed_for_good_goes_with_its_saved_work(table: Table, key: str | None) -> None:
    identity, other = application(), application()
    with pytest.raises(Killed):
        restore(table, other, kill)
    kept = saved(table)
    with pytest.raises(Killed):
        restore(table, identity, kill)
    assert len(saved(table)) == 2
    # What the operator's callback does where no retry comes; see tests/airflow/test_forgotten_work.py.
    for _ in range(2):
        forget_saved_work(
            job_spec(
                operation="restore",
                table_uri=table.uri,
                arguments={"version": 1},
                application=identity,
                saved_work_key=key,
            )
        )
    assert saved(table) == kept


def test_a_restore_that_lost_to_a_commit_is_not_won_by_another_try(table: Table) -> None:
    identity = application()
    for _ in range(2):
        error = error_of(restore(table, identity, lambda: append(table, rows(1, start=300))))
        assert (error["type"], error["facts"]["winning_version"]) == ("ConcurrentWrite", 4)
    assert table.snapshot().version == 4


def test_a_restore_that_lost_to_its_own_other_copy_is_done(table: Table) -> None:
    identity = application()
    result = restore(table, identity, lambda: committed(restore(table, identity)))
    assert (result.status, result.version) == ("already_done", 4)
    assert saved(table) == []


def replace_by_an_unsigned_one(table: Table) -> None:
    for path in notes(table):
        path.write_text(json.dumps({"table": table.snapshot().metadata.id, "version": table.snapshot().version}))


HARMS = [lose_by_hand, lose_by_vacuum_of_delta_rs, move_to_the_head, replace_by_an_unsigned_one]


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
@pytest.mark.parametrize("harm", HARMS)
def test_a23_a_note_that_was_lost_or_rewritten_permits_nothing(
    table: Table, harm: Callable[[Table], None], key: str | None
) -> None:
    identity = application(first_tried_ms=SYSTEM_CLOCK.now_ms())
    with pytest.raises(Killed):
        restore(table, identity, kill, key=key)
    append(table, rows(1, start=300))
    harm(table)
    for _ in range(2):
        error = error_of(restore(table, identity, key=key))
        assert (error["type"], error["retryable"]) == ("ConcurrentWrite", False)
    assert 300 in ids(table)
    # The cleared task's first try.
    committed(restore(table, application(first_tried_ms=SYSTEM_CLOCK.now_ms(), is_first_try=True), key=key))


def test_a_retry_without_a_note_restores_if_nothing_has_landed_since_the_first_try(table: Table) -> None:
    identity = application(first_tried_ms=SYSTEM_CLOCK.now_ms())
    with pytest.raises(Killed):
        restore(table, identity, kill)
    lose_by_hand(table)
    assert committed(restore(table, identity)).version == 4


@pytest.mark.parametrize(("landed_s", "is_allowed"), [(-60, True), (-2, False), (0, False), (60, False)])
def test_a_time_in_whole_seconds_may_be_any_moment_of_its_second(table: Table, landed_s: int, is_allowed: bool) -> None:
    first_s = SYSTEM_CLOCK.now_ms() // 1000 - 600
    commit = Path(table.uri.removeprefix("file://")) / commit_name(3)
    os.utime(commit, (first_s + landed_s, first_s + landed_s))
    result = restore(table, application(first_tried_ms=first_s * 1000))
    assert (result.error is None) == is_allowed
    if result.error is not None:
        assert "since then landed, or may have: version 3." in result.error["message"]


def test_a_first_try_restores_whatever_landed_a_moment_ago(table: Table) -> None:
    append(table, rows(1, start=300))
    identity = application(first_tried_ms=SYSTEM_CLOCK.now_ms() - 60_000, is_first_try=True)
    assert committed(restore(table, identity)).version == 5


def test_a_restore_whose_other_copy_ended_between_two_looks_at_its_note_is_done(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other copy noted the version first, so ours could not; then it committed and deleted its note."""
    identity, put, ended = application(), LocalStore.put_if_absent, []

    def overtaken(store: LocalStore, path: str, data: bytes) -> bool:
        if path.endswith("first-version") and not ended:
            ended.append(True)
            committed(restore(table, identity))
            return False
        return put(store, path, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", overtaken)
    result = restore(table, identity)
    assert (result.status, result.version) == ("already_done", 4)


def test_the_advice_to_restore_all_the_same_is_one_that_works(table: Table) -> None:
    for identity, advice in (
        (application(), "clear the task."),
        (application(check_digest=True), "give it another idempotency_key."),
    ):
        with pytest.raises(Killed):
            restore(table, identity, kill)
        append(table, rows(1, start=300))
        assert advice in error_of(restore(table, identity))["message"]
        # The other identity starts afresh.
        committed(restore(table, dataclasses.replace(identity, app_id=f"{identity.app_id} again")))


def test_a_restore_of_a_table_that_was_made_again_is_refused(table: Table, tmp_path: Path) -> None:
    identity = application()
    with pytest.raises(Killed):
        restore(table, identity, kill)
    for path in [*(tmp_path / "t" / "_delta_log").iterdir(), *(tmp_path / "t").glob("*.parquet")]:
        path.unlink()
    again = make_table(tmp_path / "t", rows(1), rows(2), rows(3))
    assert error_of(restore(again, identity))["type"] == "TableReplaced"
    assert again.snapshot().version == 3
