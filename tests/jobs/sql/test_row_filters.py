"""Alone in showing that a row filter drops no row of which its condition is TRUE, and that it drops others."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from airflow_txlog.jobs.sql.scope import row_filter_of
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Call, Column, Values, all_of, any_of, columns_of, negation
from tests.engine.table.predicate.tables import read
from tests.engine.table.predicate.test_rows_and_sets import ROWS, SELECTED


def passed(sql: str) -> list[int] | None:
    row_filter = row_filter_of(read(sql, parameters={"raw": b"a"} if ":raw" in sql else None), ROWS.column_names)
    if row_filter is None:
        return None
    # It travels to the workers as it is.
    keep = passing(pickle.loads(pickle.dumps(row_filter)), ROWS)
    assert keep.null_count == 0
    return [row for row, passes in enumerate(keep.to_pylist()) if passes]


@pytest.mark.parametrize(("sql", "selected"), SELECTED)
def test_a_row_that_a_condition_selects_passes_its_filter(sql: str, selected: list[int]) -> None:
    found = passed(sql)
    assert found is None or set(found) >= set(selected)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("i = 2", [1]),
        ("i <=> 2 AND x > 100", [1]),
        ("i >= 2 AND abs(i) < 9", [1, 3]),
        ("name = 'ab' OR day IS NULL", [1, 2]),
        ("at < TIMESTAMP'1970-01-01 00:00:01Z' AND i IN (1, 4)", [0]),
        ("NOT (i = 2 OR name = 'a')", [3]),
        ("flag = TRUE OR wall > TIMESTAMP_NTZ'1970-01-01 00:00:00.000001'", [0, 3]),
        ("day NOT IN (DATE'2024-01-01', DATE'2024-01-02')", [3]),
    ],
)
def test_what_the_engine_reads_of_a_condition_filters(sql: str, expected: list[int]) -> None:
    assert passed(sql) == expected


@pytest.mark.parametrize("sql", ["abs(i) = 2", "price = 1.50BD", "i = 1 OR abs(i) = 2", "TRUE"])
def test_a_condition_of_which_nothing_is_certain_has_no_filter(sql: str) -> None:
    assert passed(sql) is None


def test_a_column_that_is_not_scanned_filters_nothing() -> None:
    assert row_filter_of(read("i = 2"), ["name"]) is None
    assert row_filter_of(read("i = 2 AND name = 'a'"), ["name"]) == row_filter_of(read("name = 'a'"), ["name"])


def test_parts_of_a_row_filter_join() -> None:
    two = Call("=", (Column("i"), Values(pa.array([2], pa.int32()))))
    some = negation(Call("in", (Column("name"), Values(pa.array(["a", "é"])))))
    is_null = Call("is null", (Column("name"),))
    both, either = all_of([two, some]), any_of([two, some, is_null])
    assert columns_of(either) == {"i", "name"}
    assert passing(both, ROWS).to_pylist() == [False, True, False, False]
    assert passing(either, ROWS).to_pylist() == [False, True, True, False]
    assert passing(negation(is_null), ROWS).to_pylist() == [True, True, False, True]
