"""`require_match` by a predicate and by a merge's source: what matches no row fails, and nothing is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.jobs import committed, error_of, rows, run
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DELETE = [{"when": "matched", "then": "delete", "condition": "s.id > 100"}]


def test_a_predicate_that_is_true_of_no_row_fails_and_changes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    for operation, arguments in [
        ("delete", {"predicate": "name = :n", "parameters": {"n": "None"}}),
        ("delete", {"predicate": "day = DATE'1999-01-01'"}),  # by partitions alone, without reading a file
        ("delete", {"predicate": "id = 3", "partition_predicate": "day = DATE'1999-01-01'"}),
        ("update", {"predicate": "name = :n", "parameters": {"n": "None"}, "set": {"amount": "0D"}}),
    ]:
        assert run(spark, operation, table, **arguments).status == "nothing_to_do"
        error = error_of(run(spark, operation, table, **arguments, require_match=True))
        assert (error["type"], error["retryable"]) == ("MatchNotFound", False)
        assert "is true of no row at version 1" in error["message"]
    assert table.snapshot().version == 1
    committed(run(spark, "update", table, predicate="id = 3", set={"amount": "0D"}, require_match=True))
    committed(run(spark, "delete", table, predicate="id = 3", require_match=True))
    committed(run(spark, "delete", table, predicate="day = DATE'2024-01-01'", require_match=True))
    assert table.to_arrow().num_rows == 0


def test_a_source_row_of_a_merge_that_matches_no_row_fails_it(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))

    def merge(sql: str) -> Any:
        return run(spark, "merge", table, source={"sql": sql}, on="t.id = s.id", clauses=DELETE, require_match=True)

    error = error_of(merge("SELECT id FROM range(8, 12)"))
    assert (error["type"], error["facts"]["given"], error["facts"]["matched"]) == ("MatchNotFound", 4, 2)
    assert "2 of 4 source rows match no row at version 1" in error["message"]
    # A row counts as matched by ON, also where no clause acts on it.
    assert merge("SELECT id FROM range(5, 8)").status == "nothing_to_do"
    assert merge("SELECT id FROM range(0)").status == "nothing_to_do"
    assert table.snapshot().version == 1
