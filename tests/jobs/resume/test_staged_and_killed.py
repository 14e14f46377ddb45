"""Staging, auditing, publishing, making again and discarding by processes that SIGKILL ends after each of their writes.

To be killed before the next write leaves the same files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.engine import Table
from airflow_txlog.engine.staged_changes import staged_in
from airflow_txlog.storage.local import LocalStore
from tests.helpers.jobs import application, by_id, committed, files_on_disk, live_files, rows, run
from tests.helpers.racing import CHANGING
from tests.helpers.rows import make_table
from tests.helpers.staged import Handle, discard, publish, stage
from tests.jobs.resume.test_reaudited import Audits

pytestmark = pytest.mark.long("a process that is killed at each write")

SET_NAME = {"set": {"name": "'x'"}, "predicate": "id < 5"}
VECTORS = {"delta.enableDeletionVectors": "true"}
_MOST_WRITES = 60

# Imports once what each child needs, and begins no thread.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])

Step = Callable[[Table, ApplicationTransaction, Handle | None], object]


def stage_it(table: Table, work: ApplicationTransaction, handle: Handle | None) -> Handle:
    return stage("update", table, work=work, **SET_NAME)


def audit_it(table: Table, work: ApplicationTransaction, handle: Handle | None) -> None:
    assert handle is not None
    with pytest.MonkeyPatch.context() as patch:
        Audits(patch).record(table, handle)


def publish_it(table: Table, work: ApplicationTransaction, handle: Handle | None) -> Any:
    assert handle is not None
    with pytest.MonkeyPatch.context() as patch:
        Audits(patch)
        return publish(handle, on_change="reaudit")


def discard_it(table: Table, work: ApplicationTransaction, handle: Handle | None) -> Any:
    assert handle is not None
    return discard(handle)


def die_after(step: Step, uri: str, work: ApplicationTransaction, handle: Handle | None, at: int) -> None:
    """Do the step in this process, which ends after its change of this number to a store."""
    left = [at]

    def counted(really: Callable[..., Any], *args: Any, **more: Any) -> Any:
        left[0] -= 1
        result = really(*args, **more)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    for name in CHANGING:
        really = getattr(LocalStore, name)
        setattr(LocalStore, name, lambda *a, really=really, **k: counted(really, *a, **k))
    step(Table.open(uri), work, handle)


def is_killed(step: Step, table: Table, work: ApplicationTransaction, handle: Handle | None, at: int) -> bool:
    child = _FORKS.Process(target=die_after, args=(step, table.uri, work, handle, at))
    child.start()
    child.join(120)
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode != 0


@pytest.mark.parametrize(
    ("step", "is_raced"),
    [(stage_it, False), (audit_it, True), (publish_it, False), (publish_it, True), (discard_it, False)],
    ids=["stage", "audit", "publish", "make again", "discard"],
)
def test_a_process_that_is_killed_at_any_write_loses_and_doubles_nothing(
    step: Step, is_raced: bool, tmp_path: Path
) -> None:
    for at in range(1, _MOST_WRITES):
        table = make_table(tmp_path / f"t{at}", rows(10), rows(10, start=50), properties=VECTORS if at % 2 else {})
        work, before = application(), files_on_disk(table)
        handle = None if step is stage_it else stage_it(table, work, None)
        if step is publish_it:
            audit_it(table, work, handle)
        if is_raced:
            committed(run(None, "update", table, set={"amount": "-1.0"}, predicate="id = 3"))
        was_killed = is_killed(step, table, work, handle, at)
        # What the task's next try does, and the tasks after it.
        handle = stage_it(table, work, None) if handle is None else handle
        if step is discard_it:
            discard(handle)
            assert (table.snapshot().version, "x" in by_id(table).values()) == (2, False)
            assert {path for path in files_on_disk(table) if not path.endswith("/staged-fate")} == before
        else:
            if step is audit_it:
                audit_it(table, work, handle)
            assert publish_it(table, work, handle).status in ("committed", "already_done")
            assert publish_it(table, work, handle).status == "already_done"
            assert table.snapshot().version == 3 + is_raced
            assert [id for id, name in by_id(table).items() if name == "x"] == [*range(5)]
            assert by_id(table, "amount")[3] == (-1.0 if is_raced else 1.5)
            assert len(by_id(table)) == 20
        assert live_files(table) <= files_on_disk(table)
        assert list(staged_in(table.store)) == []
        if not was_killed:
            break
    assert (1 if step is audit_it else 3) < at < _MOST_WRITES - 1
