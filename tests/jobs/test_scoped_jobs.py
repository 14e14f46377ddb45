"""Phantoms, skew and scopes, with real jobs: what a job has read is what it can lose to, no less and no more."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.jobs.tables import append, committed, live_files, make_table, rows, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.engine import Table

pytestmark = pytest.mark.spark

MONDAY, TUESDAY, FRIDAY = dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 5)


def once(at: str, win: Callable[[], Any]) -> Callable[[str], None]:
    """A log that lets another commit land when the first line with `at` comes by: after the finding."""
    left = [True]

    def log(line: str) -> None:
        if at in line and left[0]:
            left[0] = False
            win()

    return log


def content(table: Table) -> set[tuple[Any, ...]]:
    found = table.to_arrow(columns=["id", "day", "name"]).to_pylist()
    tuples = [(row["id"], row["day"], row["name"]) for row in found]
    assert len(tuples) == len(set(tuples))
    return set(tuples)


def test_a13_two_merges_that_each_insert_where_the_other_looks_do_not_both_insert(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Write skew: each looks at one day for the id 77 and, where it is absent, inserts it on the other day.

    In either order of the two only the first inserts. Each one's own rows lie outside of what it has read.
    """
    table = make_table(tmp_path / "t", rows(3, day=MONDAY), rows(3, start=10, day=TUESDAY), partition_by=["day"])

    def insert_if_absent(looks: dt.date, puts: dt.date, **more: Any) -> Any:
        return run(
            spark,
            "merge",
            table,
            source={"sql": "SELECT 77L AS id, :looks AS day, :puts AS there"},
            on="t.day = s.day AND t.id = s.id",
            clauses=[{"when": "not_matched", "then": "insert", "values": {"id": "s.id", "day": "s.there"}}],
            parameters={"looks": looks, "puts": puts},
            **more,
        )

    log = once("to update", lambda: committed(insert_if_absent(TUESDAY, MONDAY)))
    result = insert_if_absent(MONDAY, TUESDAY, log=log)
    assert (result.status, result.rounds) == ("nothing_to_do", 2)
    assert [row for row in content(table) if row[0] == 77] == [(77, MONDAY, None)]


def test_a14_a_merge_by_the_days_of_its_source_neither_reads_nor_fears_the_other_days(
    tmp_path: Path, spark: SparkSession
) -> None:
    days = [MONDAY, TUESDAY, FRIDAY, None]
    table = make_table(
        tmp_path / "t", *(rows(5, start=100 * n, day=day) for n, day in enumerate(days)), partition_by=["day"]
    )
    before = live_files(table)
    source = {
        "sql": "SELECT * FROM VALUES (1L, DATE'2024-01-01'), (301L, NULL), (900L, DATE'2024-01-02') AS v(id, day)"
    }
    clauses = [
        {"when": "matched", "then": "update", "set": {"name": "'new'"}},
        # It lands on a day that the merge has not read, which is no error without a partition_predicate.
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "day": "DATE'2024-01-05'"}},
    ]
    lines: list[str] = []
    append_friday = once("to update", lambda: append(table, rows(1, start=901, day=FRIDAY)))

    def log(line: str) -> None:
        lines.append(line)
        append_friday(line)

    on = "t.id = s.id AND t.day = s.day"
    result = committed(run(spark, "merge", table, source=source, on=on, clauses=clauses, log=log))
    assert (result.rounds, result.version, result.read_version) == (1, 6, 4)
    assert (result.files["considered"], result.files["pruned"], result.files["removed"]) == (4, 2, 1)
    assert any("the source, which names 2 values of day" in line for line in lines)
    assert (result.metrics["numTargetRowsUpdated"], result.metrics["numTargetRowsInserted"]) == (1, 2)
    assert {(1, MONDAY, "new"), (301, None, "n301"), (301, FRIDAY, None), (900, FRIDAY, None)} <= content(table)
    assert len(before & live_files(table)) == 3
    # Null-safe, the null partition is among them.
    on = "t.id = s.id AND t.day <=> s.day"
    safe = committed(run(spark, "merge", table, source=source, on=on, clauses=clauses[:1]))
    assert (safe.metrics["numTargetRowsUpdated"], safe.files["pruned"]) == (2, 3)
    assert (301, None, "new") in content(table)


def test_a14_clauses_by_source_widen_the_scope_by_what_they_can_be_true_of(tmp_path: Path, spark: SparkSession) -> None:
    days = [MONDAY, TUESDAY, FRIDAY]
    table = make_table(
        tmp_path / "t", *(rows(5, start=100 * n, day=day) for n, day in enumerate(days)), partition_by=["day"]
    )
    source = {"sql": "SELECT * FROM VALUES (1L, DATE'2024-01-01'), (101L, DATE'2024-01-01') AS v(id, day)"}
    matched = {"when": "matched", "then": "update", "set": {"name": "'new'"}}
    orphan: dict[str, Any] = {"when": "not_matched_by_source", "then": "delete", "condition": "t.day = :day"}
    arguments: dict[str, Any] = {"source": source, "on": "t.day = s.day AND t.id = s.id"}
    day = {"day": TUESDAY}
    log = once("to update", lambda: append(table, rows(1, start=901, day=FRIDAY)))
    result = committed(run(spark, "merge", table, clauses=[matched, orphan], parameters=day, log=log, **arguments))
    assert (result.rounds, result.files["pruned"]) == (1, 1)
    # The row 101 is named for Monday alone, so on Tuesday nothing matches, and Tuesday goes.
    assert {row[:2] for row in content(table)} == {
        *((n, MONDAY) for n in range(5)),
        *((n, FRIDAY) for n in range(200, 205)),
        (901, FRIDAY),
    }
    # Without a condition, a clause looks at every row there is.
    del orphan["condition"]
    log = once("to update", lambda: append(table, rows(1, start=902, day=FRIDAY)))
    whole = committed(run(spark, "merge", table, clauses=[matched, orphan], log=log, **arguments))
    assert (whole.rounds, whole.files["pruned"]) == (2, 0)
    assert content(table) == {(1, MONDAY, "new")}
