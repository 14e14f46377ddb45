"""Alone in showing that a merge loses to commits on the partitions that its source names, and to no others."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.jobs import BY_SOURCE, by_id, committed, delete, ids, insert, live_files, merge, rows, update
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.engine import Table

pytestmark = pytest.mark.spark

MONDAY, TUESDAY, FRIDAY = dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 5)


def days_table(folder: Path, *days: dt.date | None) -> Table:
    """Five rows a day, the first with ids from 0 on, the second from 100, ..."""
    return make_table(folder, *(rows(5, start=100 * n, day=day) for n, day in enumerate(days)), partition_by=["day"])


def test_a13_two_merges_that_each_insert_where_the_other_looks_do_not_both_insert(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Write skew: each looks at one day for the id 777 and, where it is absent, inserts it on the other day.

    In either order of the two only the first inserts. Each one's own rows lie outside of what it has read.
    """
    table = days_table(tmp_path / "t", MONDAY, TUESDAY)

    def insert_if_absent(looks: dt.date, puts: dt.date, **more: Any) -> Any:
        sql, parameters = "SELECT 777L AS id, :looks AS day, :puts AS there", {"looks": looks, "puts": puts}
        clause = insert({"id": "s.id", "day": "s.there"})
        return merge(spark, table, sql, clause, on="t.day = s.day AND t.id = s.id", parameters=parameters, **more)

    log = winning("to update", lambda: committed(insert_if_absent(TUESDAY, MONDAY)))
    result = insert_if_absent(MONDAY, TUESDAY, log=log)
    assert (result.status, result.attempts) == ("nothing_to_do", 2)
    assert by_id(table, "day")[777] == MONDAY


def test_a14_a_merge_by_the_days_of_its_source_neither_reads_nor_fears_the_other_days(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = days_table(tmp_path / "t", MONDAY, TUESDAY, FRIDAY, None)
    before = live_files(table)
    source = "SELECT * FROM VALUES (1L, DATE'2024-01-01'), (301L, NULL), (900L, DATE'2024-01-02') AS v(id, day)"
    log = winning("to update", lambda: append(table, rows(1, start=900, day=FRIDAY)))
    # The new row lands on a day that the merge has not read, which is no error without a partition_predicate.
    friday = insert({"id": "s.id + 1000", "day": "DATE'2024-01-05'"})
    on = "t.id = s.id AND t.day = s.day"
    result = committed(merge(spark, table, source, update({"name": "'new'"}), friday, on=on, log=log))
    assert (result.attempts, result.version, result.read_version) == (1, 6, 4)
    assert (result.files["considered"], result.files["pruned"], result.files["removed"]) == (4, 3, 1)
    assert any("the source, which names 2 values of day" in line for line in log.lines)
    assert [by_id(table)[n] for n in (1, 301, 1301, 1900)] == ["new", "n301", None, None]
    assert len(before & live_files(table)) == 3


def test_a14_clauses_by_source_widen_the_scope_by_what_they_can_be_true_of(tmp_path: Path, spark: SparkSession) -> None:
    table = days_table(tmp_path / "t", MONDAY, TUESDAY, FRIDAY)
    source = (
        "SELECT * FROM VALUES (1L, DATE'2024-01-01'), (101L, DATE'2024-01-01'), (901L, DATE'2024-01-01') AS v(id, day)"
    )
    on, matched = "t.day = s.day AND t.id = s.id", update({"name": "'new'"})
    log = winning("to update", lambda: append(table, rows(1, start=901, day=FRIDAY)))
    tuesday = delete("t.day = :day", BY_SOURCE)
    result = committed(merge(spark, table, source, matched, tuesday, on=on, parameters={"day": TUESDAY}, log=log))
    assert (result.attempts, result.files["pruned"]) == (1, 1)
    # The row 101 is named for Monday alone, so on Tuesday nothing matches, and Tuesday goes.
    assert ids(table) == [*range(5), *range(200, 205), 901]
    # Without a condition, a clause looks at every row there is.
    log = winning("to update", lambda: append(table, rows(1, start=902, day=FRIDAY)))
    whole = committed(merge(spark, table, source, matched, delete(when=BY_SOURCE), on=on, log=log))
    assert (whole.attempts, whole.files["pruned"], by_id(table)) == (2, 0, {1: "new"})
