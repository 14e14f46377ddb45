"""How Spark joins for a merge: a small source goes to every task; any other is sorted, because a hash table of it may
not fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.executor import spark as executor
from airflow_txlog.jobs.files import frames
from airflow_txlog.jobs.files.stage import WRITING
from airflow_txlog.jobs.operations.delete import job as delete_job
from airflow_txlog.jobs.operations.merge import by_spark
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import BY_SOURCE, committed, delete, error_of, insert, merge, rows, run, update
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TARGET = pa.schema([("k", pa.int64()), ("v", pa.string())])
ON = "t.k = s.k"
SORTED = {"SortMergeJoin"}
SENT = {"BroadcastHashJoin"}
SORTS = Limits(broadcast_bytes=0)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[str]]]:
    """Return the description of each Spark job of a merge, and the joins in Spark's plan for it."""
    seen: list[tuple[str, set[str]]] = []
    for module in (by_spark, executor, frames, delete_job):
        collect = module.collect

        def recorded(frame: DataFrame, what: str, collect: Any = collect) -> pa.Table:
            plan = str(frame._jdf.queryExecution().executedPlan())
            seen.append((what, set(re.findall(r"\w+Join\b|BroadcastNestedLoopJoin", plan))))
            return collect(frame, what)

        monkeypatch.setattr(module, "collect", recorded)
    return seen


def target_of(folder: Path) -> Table:
    """Keys 0 to 9, 40 rows with key 3, and 5 without a key, in two files."""
    table = make_table(folder, pa.table({"k": range(10), "v": ["old"] * 10}, TARGET))
    append(table, pa.table({"k": [3] * 40 + [None] * 5, "v": ["many"] * 40 + ["none"] * 5}, TARGET))
    return table


SOURCE = "SELECT id AS k, concat('new', id) AS v FROM range(2, 12) UNION ALL SELECT NULL, 'new'"


def expected() -> pa.Table:
    """SOURCE merged into `target_of`: matched rows updated, others inserted, and other keys deleted."""
    new = [(k, f"new{k}") for k in range(2, 12)]
    found = [*new, *[(3, "new3")] * 40, (None, "new"), *[(None, "none")] * 5]
    return pa.table({"k": [k for k, _ in found], "v": [v for _, v in found]}, TARGET)


@pytest.mark.long("Spark runs many jobs")
def test_a_source_beyond_the_bound_is_sorted_and_not_hashed(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]]
) -> None:
    table = target_of(tmp_path / "t")
    clauses = [update({"v": "s.v"}), insert("*"), delete("reverse(t.k) IS NOT NULL", when=BY_SOURCE)]
    limits = replace(SORTS, merge_source_bytes=1)
    committed(merge(spark, table, SOURCE, *clauses, on=ON, limits=limits))
    assert bag(table.to_arrow()) == bag(expected())
    found = dict(joins)
    assert found["match source and target"] == SORTED
    assert found["write the data files"] == SORTED


@pytest.mark.long("Spark runs many jobs")
def test_long_texts_that_repeat_are_not_taken_for_a_small_source(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]]
) -> None:
    """In a dictionary two million characters are a few kilobytes."""
    table = target_of(tmp_path / "t")
    source, computed = "SELECT id AS k, repeat('x', 1000) AS v FROM range(2000)", {"v": "concat(s.v, reverse(''))"}
    limits = Limits(broadcast_bytes=1_000_000)
    committed(merge(spark, table, source, update(computed), on=f"{ON} AND reverse(t.v) <> ''", limits=limits))
    found = dict(joins)
    assert found["match source and target"] == SENT
    assert found["write the data files"] == SORTED


def test_source_rows_that_all_matched_are_not_looked_through_for_inserts(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]]
) -> None:
    table = target_of(tmp_path / "t")
    computed = insert({"k": "s.k", "v": "concat(s.v, reverse(''))"})
    committed(merge(spark, table, "SELECT id AS k, 'new' AS v FROM range(10)", delete(), computed, on=ON))
    assert dict(joins).get("write the data files", set()) == set()
    assert bag(table.to_arrow()) == bag(pa.table({"k": [None] * 5, "v": ["none"] * 5}, TARGET))


def test_an_ambiguous_match_is_refused_where_the_source_is_sorted(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]]
) -> None:
    table = target_of(tmp_path / "t")
    source = "SELECT * FROM VALUES (3L, 'a'), (3L, 'b'), (4L, 'c'), (NULL, 'd'), (NULL, 'e') AS s(k, v)"
    for clauses, error in [([update({"v": "s.v"})], "AmbiguousMerge"), ([delete()], None)]:
        result = merge(spark, table, source, *clauses, on=f"{ON} AND reverse(t.v) <> ''", limits=SORTS)
        if error is None:
            committed(result)
            continue
        assert error_of(result)["type"] == error
        # The row with key 3 of the first file, and the forty of the second.
        assert "41 target rows are matched by more than one source row" in error_of(result)["message"]
    assert dict(joins)["match source and target"] == SORTED


def test_keys_beyond_the_bound_are_sorted_and_not_hashed(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.SparkExecutor, "most_sent_rows", 2)
    table = make_table(tmp_path / "t", rows(20))
    keys = {"column": "id", "values": [3, 5, 99]}
    result = run(spark, "delete", table, predicate=None, keys=keys, limits=SORTS)
    assert committed(result).metrics["numDeletedRows"] == 2
    assert dict(joins)["find the rows of the keys"] == SORTED


PROPERTIES = {
    "copies": {"delta.enableChangeDataFeed": "false"},
    "change feed": {"delta.enableChangeDataFeed": "true"},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "row ids": {"delta.enableRowTracking": "true"},
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "copies" else pytest.mark.long("another kind")) for kind in PROPERTIES],
)
def test_rows_that_meet_a_small_source_take_from_their_file_what_no_clause_assigns(
    tmp_path: Path, spark: SparkSession, joins: list[tuple[str, set[str]]], kind: str
) -> None:
    """The same rows are left where Spark makes whole rows, because the source is too large for every task."""
    clauses = [
        update({"name": "reverse(concat(t.name, s.v))"}, "s.k % 4 = 1"),
        update({"amount": "t.amount + length(reverse(s.v))"}, "s.k % 4 = 2"),
        delete("s.k % 4 = 3"),
        insert({"id": "s.k", "name": "reverse(s.v)"}),
    ]
    left = []
    for number, limits in enumerate((Limits(), Limits(changed_in_place_bytes=0), SORTS)):
        table = make_table(tmp_path / f"t{number}", rows(20), rows(20, start=100), properties=PROPERTIES[kind])
        # In another order than the target, so that a sorted join cannot keep the target's by chance.
        source = "SELECT 31 - id AS k, concat('new', id) AS v FROM range(2, 30, 1, 2)"
        done = committed(merge(spark, table, source, *clauses, on="t.id = s.k", limits=limits))
        left.append((bag(table.to_arrow()), done.metrics["numTargetRowsUpdated"], done.metrics["numTargetRowsDeleted"]))
        if kind == "change feed":
            left[-1] = (*left[-1], bag(table.changes(2).drop_columns(["_commit_timestamp"])))
    assert left[0] == left[1] == left[2]
    assert left[0][1:3] == (9, 5)
    assert [found for what, found in joins if what == "write the data files"][-1] == SORTED


def test_values_that_spark_computes_for_a_merge_take_the_places_of_their_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = make_table(tmp_path / "t", rows(50), rows(50, start=100))
    clauses = [update({"name": "reverse(concat(t.name, s.v))"}, "s.k < 120"), update({"amount": "hash(s.v) * 0"})]
    source = "SELECT id AS k, 'x' AS v FROM range(110, 130)"
    limits = Limits(changed_in_place_bytes=0)
    result = committed(merge(spark, table, source, *clauses, on="t.id = s.k", limits=limits))
    found = {row["id"]: (row["name"], row["amount"]) for row in table.to_arrow().to_pylist()}
    assert found[115] == ("x511n", 57.5)
    assert found[125] == ("n125", 0.0)
    assert (len(found), result.files["rewritten"], result.files["added"]) == (100, 1, 1)


@pytest.mark.parametrize(("value", "is_collected"), [("reverse(left(s.v, 1))", True), ("reverse(s.v)", False)])
def test_computed_values_are_not_collected_if_they_are_wide_but_if_only_the_source_is(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, value: str, is_collected: bool
) -> None:
    here: list[str] = []
    run_here = frames.run_here
    monkeypatch.setattr(frames, "run_here", lambda *given: here.append(given[2]) or run_here(*given))
    table = make_table(tmp_path / "t", rows(20))
    source, clause = "SELECT 1 AS k, repeat('x', 10000) AS v", update({"name": value})
    committed(merge(spark, table, source, clause, on="t.id >= s.k", limits=Limits(computed_bytes=100_000)))
    assert [row["name"].strip("x") for row in table.to_arrow().to_pylist()].count("") == 19
    assert (WRITING in here) == is_collected
