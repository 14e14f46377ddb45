"""Alone in showing what a job records of the commits that it met: the result and the commit say what it kept, what it
did again, and why it had to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import xcom_of
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.met import MET_TAG
from tests.helpers.jobs import application, committed, ids, rows, run
from tests.helpers.racing import before_commit, killed_before_commit, winning
from tests.helpers.rows import append, make_table, stage


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three files of ten rows each: 0 to 9, 10 to 19, 20 to 29. Jobs on them need no Spark."""
    return make_table(tmp_path / "t", *(rows(10, start=start) for start in (0, 10, 20)))


# A row of each file.
EACH = {"predicate": "id IN (3, 13, 23)"}


def deletes(table: Table, number: int) -> Callable[[], Any]:
    """Another writer's commit, by a job of its own."""
    return lambda: committed(run(None, "delete", table, predicate=f"id = {number}"))


def rewrites(table: Table, number: int) -> None:
    """Another writer's commit, which replaces the file with this row by one without it."""
    tx = table.begin()
    files = tx.read(f"id = {number}")
    start = number // 10 * 10
    left = rows(10, start=start).filter(pc.field("id") != number)
    tx.remove(files)
    tx.add(stage(table, left, tx=tx))
    tx.commit("DELETE")


def met(result: JobResult) -> list[dict[str, Any]]:
    assert result.details.met is not None
    assert result.details.met["total"] == len(result.details.met["last"])
    found: list[dict[str, Any]] = result.details.met["last"]
    return found


def recorded(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.history(1)[0]["met"]["last"]
    return found


def test_after_a_conflict_the_record_names_the_winner_and_counts_what_was_kept_and_done_again(table: Table) -> None:
    result = committed(run(None, "delete", table, log=winning("staged", deletes(table, 5)), **EACH))
    (found,) = met(result)
    assert found["kept_bytes"] > found["redone_bytes"] > 0
    assert {name: value for name, value in found.items() if "bytes" not in name} == {
        "version": 4,
        "how": "redone",
        "operation": "DELETE",
        "conflict": "ConcurrentAppend",
        "kept_files": 2,
        "kept_rows": 18,
        "kept_scans": 2,
        "redone_files": 1,
        "redone_rows": 8,
        "redone_scans": 1,
    }
    assert recorded(table) == result.details.met["last"]
    assert xcom_of(result, 1.0)["met"] == result.details.met
    assert result.attempts == 2


def test_a_winner_of_other_rows_costs_a_vector_and_no_scan(tmp_path: Path) -> None:
    parts = (rows(10, start=start) for start in (0, 10, 20))
    table = make_table(tmp_path / "vectors", *parts, properties={"delta.enableDeletionVectors": "true"})
    result = committed(run(None, "delete", table, log=winning("staged", deletes(table, 5)), **EACH))
    (found,) = met(result)
    assert (found["how"], found["version"], found["kept_scans"]) == ("disjoint_rows", 4, 3)
    assert "redone_scans" not in found
    assert "redone_rows" not in found
    assert ids(table) == [number for number in range(30) if number not in (3, 5, 13, 23)]


def test_a_commit_in_between_that_is_no_conflict_is_recorded_after_the_one_that_was(table: Table) -> None:
    landing = iter([lambda: rewrites(table, 5), lambda: append(table, rows(1, start=90))])
    with before_commit(lambda tx: next(landing)(), times=2):
        result = committed(run(None, "delete", table, **EACH))
    # Its predicate excludes the row that was appended.
    assert [(each["version"], each["how"]) for each in met(result)] == [(4, "redone"), (5, "excluded_by_statistics")]
    assert recorded(table) == result.details.met["last"]  # type: ignore[index]


def test_a_job_that_finds_nothing_to_do_after_a_conflict_still_says_what_it_met(table: Table) -> None:
    with before_commit(lambda tx: rewrites(table, 5)):
        result = run(None, "delete", table, predicate="id = 5")
    assert result.status == "nothing_to_do"
    assert [(each["version"], each["how"]) for each in met(result)] == [(4, "redone")]


def test_a_job_that_met_no_commit_records_nothing(table: Table) -> None:
    result = committed(run(None, "delete", table, application=application(), **EACH))
    assert result.details.met is None
    assert "met" not in xcom_of(result, 1.0)
    assert MET_TAG not in table.history(1)[0].get("tags", {})


def test_a_killed_job_and_its_retry_record_each_conflict_and_the_work_that_was_saved(table: Table) -> None:
    identity = application()
    # One writer lands before the first commit of the first try, which dies before its second; another one after that.
    with killed_before_commit(2), before_commit(lambda tx: rewrites(table, 5)):
        run(None, "delete", table, application=identity, **EACH)
    rewrites(table, 15)
    retried = committed(run(None, "delete", table, application=identity, **EACH))
    first, second = met(retried)
    assert (first["how"], first["version"], first["kept_files"], first["redone_files"]) == ("redone", 4, 2, 1)
    assert (second["how"], second["kept_files"], second["redone_files"], second["kept_rows"]) == ("resumed", 2, 1, 17)
    assert (second["kept_scans"], second["redone_scans"]) == (2, 1)
    assert recorded(table) == [first, second]
    assert ids(table) == [number for number in range(30) if number not in (3, 5, 13, 15, 23)]
    again = run(None, "delete", table, application=identity, **EACH)
    assert (again.status, [each["how"] for each in met(again)]) == (
        "already_done",
        ["redone", "resumed", "already_done"],
    )
    assert met(again)[-1]["version"] == retried.version


def test_a_staged_change_says_at_its_publication_what_it_met(table: Table) -> None:
    identity = application()
    staged = run(None, "delete", table, application=identity, publish=False, **EACH)
    assert staged.status == "staged"
    append(table, rows(1, start=90))
    handle = staged.details.staged
    assert handle is not None
    result = run(None, "publish", table, application=identity, id=handle["id"], digest=handle["digest"])
    assert [(each["version"], each["how"]) for each in met(result)] == [(4, "excluded_by_statistics")]
    assert recorded(table) == met(result)


def test_each_commit_of_one_job_records_only_what_it_met_itself(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", *(rows(10, start=start) for start in range(0, 40, 10)))
    with before_commit(lambda tx: append(table, rows(1, start=90)), times=1):
        result = committed(run(None, "optimize", table))
    assert result.details.met is not None
    assert [each["how"] for each in result.details.met["last"]] == ["disjoint_files"]
