"""Staging, publishing and discarding, killed before and after each change of the store: nothing is lost or doubled.

A killed process calls the store no more. So does a job here: from its last call on, every call ends like the first.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.engine.staged_changes import staged_in
from tests.helpers.jobs import application, by_id, committed, files_on_disk, live_files, rows, run
from tests.helpers.racing import killed
from tests.helpers.rows import make_table
from tests.helpers.staged import discard, publish, stage

SET_NAME = {"set": {"name": "'x'"}, "predicate": "id < 5"}


def two_files(folder: Path, properties: dict[str, str]) -> Table:
    return make_table(folder, rows(10), rows(10, start=50), properties=properties)


@pytest.mark.parametrize(
    ("after", "properties"),
    [
        pytest.param(False, {}, id="before"),
        pytest.param(True, {"delta.enableDeletionVectors": "true"}, id="after, with vectors"),
    ],
)
def test_a_killed_try_loses_and_doubles_nothing(after: bool, properties: dict[str, str], tmp_path: Path) -> None:
    deaths: dict[str, int] = {}
    for step in ("stage", "publish", "discard"):
        for at in range(1, 30):
            table, work = two_files(tmp_path / f"{step}{at}", properties), application()
            before = files_on_disk(table)
            if step == "stage":
                was_killed = killed(lambda: stage("update", table, work=work, **SET_NAME), at, after=after)  # noqa: B023
            handle = stage("update", table, work=work, **SET_NAME)
            if step == "publish":
                was_killed = killed(lambda: publish(handle), at, after=after)  # noqa: B023
            if step == "discard":
                was_killed = killed(lambda: discard(handle), at, after=after)  # noqa: B023
                assert discard(handle).status == "nothing_to_do"
                # Killed after the document and before the fate, which a VACUUM then deletes.
                left = {path for path in files_on_disk(table) if not path.endswith("/staged-fate")}
                assert (left, table.snapshot().version) == (before, 2)
            else:
                assert publish(handle).status in ("committed", "already_done")
                names = by_id(table)
                assert (sorted(names), table.snapshot().version) == ([*range(10), *range(50, 60)], 3)
                assert [id for id, name in names.items() if name == "x"] == list(range(5))
            assert list(staged_in(table.store)) == []
            if not was_killed:
                deaths[step] = at - 1
                break
    print(f"killed at {deaths} changes of the store")
    assert deaths.keys() == {"stage", "publish", "discard"}
    assert all(deaths.values())


def test_a_discard_that_was_killed_prevents_the_publication_and_is_ended_by_the_next(tmp_path: Path) -> None:
    for at in range(1, 10):
        table = two_files(tmp_path / f"t{at}", {})
        handle = stage("update", table, **SET_NAME)
        if not killed(lambda: discard(handle), at, after=True):  # noqa: B023
            break
        assert publish(handle).status == "failed"
        assert table.snapshot().version == 2
        discard(handle)
        assert live_files(table) <= files_on_disk(table)
    assert at > 2


def test_a_publication_that_was_killed_before_its_commit_keeps_its_files_from_a_discard(tmp_path: Path) -> None:
    table = two_files(tmp_path / "t", {})
    handle = stage("update", table, **SET_NAME)
    # The first change is the fate, the second the commit.
    assert killed(lambda: publish(handle), 2, after=False)
    discard(handle)
    committed(publish(handle))
    assert by_id(table)[0] == "x"


def test_a_clear_of_the_work_stages_another_change(tmp_path: Path) -> None:
    table, work = two_files(tmp_path / "t", {}), application()
    stage("update", table, work=work, **SET_NAME)
    again = application(2)
    other = stage("update", table, work=type(work)(app_id=work.app_id, version=again.version), **SET_NAME)
    committed(publish(other))
    assert run(None, "update", table, application=work, publish=False, **SET_NAME).status == "already_done"


def test_a_clear_before_the_publication_stages_another_change_under_the_same_number(tmp_path: Path) -> None:
    table, now = two_files(tmp_path / "t", {}), SYSTEM_CLOCK.now_ms()
    work = application(first_tried_ms=now - 1000)
    first = stage("update", table, work=work, **SET_NAME)
    assert stage("update", table, work=work, **SET_NAME)["id"] == first["id"]
    # No commit of it is in the table, so that the number is free.
    second = stage("update", table, work=dataclasses.replace(work, first_tried_ms=now), **SET_NAME)
    assert second["id"] != first["id"]
    committed(publish(second))
    assert publish(first).status == "already_done"
