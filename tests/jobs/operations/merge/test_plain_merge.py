"""Merges of which nothing has to be computed: rows are found and written by the tasks, and Spark joins nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.predicate.binding import NotPlain
from airflow_txlog.jobs.executor import spark as executor
from airflow_txlog.jobs.files import frames
from airflow_txlog.jobs.operations.merge import by_spark as by_spark_module
from airflow_txlog.jobs.operations.merge import clauses as merge_clauses
from airflow_txlog.jobs.operations.merge import keys as merge_keys
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import committed, delete, insert, merge, update
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("w", pa.int32())])
SOURCE = (
    "SELECT * FROM VALUES (1L, 'a', 'new', 10), (2L, 'a', 'new', 20), (2L, 'b', 'new', 30), (NULL, 'a', 'new', 40), "
    "(9L, 'c', NULL, 50) AS s(k, p, v, w)"
)
ON = "t.k = s.k AND s.p = t.p"
BY_SOURCE = "not_matched_by_source"
FIND, WRITE = "match source and target", "write the data files"


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark has evaluated, but for the rows of the source."""
    seen: list[str] = []
    for module in (by_spark_module, executor, frames):
        collect = module.collect

        def recorded(frame: DataFrame, what: str, collect: Any = collect) -> pa.Table:
            if what != "write down the source's rows":
                seen.append(what)
            return collect(frame, what)

        monkeypatch.setattr(module, "collect", recorded)
    return seen


def rows(*found: tuple[object, ...]) -> pa.Table:
    columns = zip(*found, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


OLD = ((1, "a", "old", 1), (1, "b", "old", 2), (2, "a", "old", 3), (None, "a", "old", 4))
LATER = ((2, "b", "old", 5), (2, "b", "old", 6), (7, "b", "old", 7))


def target_of(folder: Path, *partition_by: str, **properties: str) -> Table:
    table = make_table(folder, rows(*OLD), partition_by=partition_by, properties=properties)
    append(table, rows(*LATER))
    return table


UPDATED = ((1, "a", "new", 1), (2, "a", "new", 3), (2, "b", "new", 5), (2, "b", "new", 6))
UNTOUCHED = ((1, "b", "old", 2), (None, "a", "old", 4), (7, "b", "old", 7))


@pytest.mark.parametrize(
    ("partition_by", "properties"),
    [((), {}), (("p",), {"delta.enableChangeDataFeed": "true"}), ((), {"delta.enableDeletionVectors": "true"})],
    ids=["copies", "partitions, change feed", "deletion vectors"],
)
def test_values_that_go_over_as_they_are_are_not_evaluated(
    tmp_path: Path, spark: SparkSession, by_spark: list[str], partition_by: tuple[str, ...], properties: dict[str, str]
) -> None:
    table = target_of(tmp_path / "t", *partition_by, **properties)
    clauses = [update({"t.v": "s.v"}), insert({"k": "s.k", "p": "(s.p)", "w": "s.`W`"})]
    result = committed(merge(spark, table, SOURCE, *clauses, on=ON))
    inserted = [(None, "a", None, 40), (9, "c", None, 50)]
    assert bag(table.to_arrow()) == bag(rows(*UNTOUCHED, *UPDATED, *inserted))
    assert result.metrics["numTargetRowsUpdated"] == 4
    assert result.metrics["numTargetRowsInserted"] == 2
    assert by_spark == []


@pytest.mark.parametrize("way", ["tasks", "Spark"])
def test_a_condition_of_on_on_the_table_alone_is_not_evaluated(
    tmp_path: Path, spark: SparkSession, by_spark: list[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "Spark":
        monkeypatch.setattr(merge_keys, "_target_condition", lambda *_: None)
    table = target_of(tmp_path / "t")
    on = f"{ON} AND (t.w > 5 OR t.w < 2) AND t.p <> 'a'"
    committed(merge(spark, table, SOURCE, update({"v": "s.v"}), insert({"k": "s.k", "w": "s.w"}), on=on))
    updated = [(2, "b", "new", 6)]
    kept = [*OLD, *(row for row in LATER if row[3] != 6)]
    inserted = [(1, None, None, 10), (2, None, None, 20), (None, None, None, 40), (9, None, None, 50)]
    assert bag(table.to_arrow()) == bag(rows(*kept, *updated, *inserted))
    assert by_spark == ([FIND] if way == "Spark" else [])


@pytest.mark.parametrize("way", ["tasks", "Spark"])
@pytest.mark.parametrize("properties", [{}, {"delta.enableChangeDataFeed": "true"}])
def test_constants_are_not_evaluated(
    tmp_path: Path,
    spark: SparkSession,
    by_spark: list[str],
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
    way: str,
) -> None:
    if way == "Spark":
        monkeypatch.setattr(merge_clauses, "plain_value", _left_to_spark)
    table = target_of(tmp_path / "t", "p", **properties)
    clauses = [
        update({"t.v": ":seen", "w": "s.w", "p": "'a'"}),
        insert({"k": "s.k", "p": "'z'", "w": "-7", "v": "NULL"}),
    ]
    committed(merge(spark, table, SOURCE, *clauses, on=ON, parameters={"seen": "it's"}))
    updated = [(1, "a", "it's", 10), (2, "a", "it's", 20), (2, "a", "it's", 30), (2, "a", "it's", 30)]
    inserted = [(None, "z", None, -7), (9, "z", None, -7)]
    assert bag(table.to_arrow()) == bag(rows(*UNTOUCHED, *updated, *inserted))
    assert by_spark == ([WRITE] if way == "Spark" else [])


def _left_to_spark(*_: Any, **__: Any) -> Any:
    raise NotPlain("what this test puts to Spark")


@pytest.mark.parametrize(
    ("clauses", "expected"),
    [
        ([update({"v": "reverse(t.v)"}), insert()], [WRITE]),
        ([update({"v": "reverse('x')", "w": "s.w"}, "s.w > 5")], [WRITE]),
        ([update({"v": "s.v"}), insert({"k": "s.k"}, "reverse(s.v) = 'wen'")], [WRITE]),
        ([delete("t.w > 1"), update({"v": "s.v"}), delete("reverse(t.v) = 'x'", when=BY_SOURCE)], [FIND]),
    ],
)
def test_parts_that_only_spark_computes_are_left_to_it(
    tmp_path: Path, spark: SparkSession, by_spark: list[str], clauses: list[dict[str, Any]], expected: list[str]
) -> None:
    committed(merge(spark, target_of(tmp_path / "t"), SOURCE, *clauses, on=ON))
    assert by_spark == expected


@pytest.mark.parametrize(("limit", "by_spark_beyond"), [("merge_source_bytes", [WRITE]), ("merge_key_bytes", [FIND])])
def test_a_source_of_more_than_the_tasks_read_is_left_to_spark(
    tmp_path: Path, spark: SparkSession, by_spark: list[str], limit: str, by_spark_beyond: list[str]
) -> None:
    clauses = [update({"t.v": "s.v"}), insert({"k": "s.k", "p": "s.p", "w": "s.w"})]
    left = []
    for most, expected in ((10_000, []), (1, by_spark_beyond)):
        by_spark.clear()
        table = target_of(tmp_path / str(most))
        committed(merge(spark, table, SOURCE, *clauses, on=ON, limits=Limits(**{limit: most})))
        left.append(bag(table.to_arrow()))
        assert by_spark == expected
    assert left[0] == left[1] == bag(rows(*UNTOUCHED, *UPDATED, (None, "a", None, 40), (9, "c", None, 50)))


@pytest.mark.parametrize(
    ("on", "source", "expected"),
    [
        # A disjunction in parentheses is a conjunct that keys say nothing of.
        (f"{ON} AND (t.w = 1 OR s.w = 99)", SOURCE, [(1, "a", "new", 1), *OLD[1:], *LATER]),
        # NULL equals NULL by this.
        ("t.k <=> s.k AND t.p = s.p", SOURCE, [OLD[1], LATER[2], *UPDATED, (None, "a", "new", 4)]),
        # 2.0 is a number that Spark compares with another type.
        (
            "t.k = s.k",
            "SELECT CAST(7 AS DOUBLE) AS k, 'b' AS p, 'new' AS v, 1 AS w",
            [*OLD, *LATER[:2], (7, "b", "new", 7)],
        ),
    ],
    ids=["or", "null-safe", "cast"],
)
def test_what_keys_do_not_decide_is_left_to_spark(
    tmp_path: Path, spark: SparkSession, by_spark: list[str], on: str, source: str, expected: list[tuple[object, ...]]
) -> None:
    table = target_of(tmp_path / "t")
    merge(spark, table, source, update({"v": "s.v"}), on=on)
    assert bag(table.to_arrow()) == bag(rows(*expected))
    assert FIND in by_spark


def test_a_word_that_is_a_literal_is_no_column(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("k", pa.int64()), ("b", pa.bool_())])
    table = make_table(tmp_path / "t", pa.table({"k": [1], "b": [False]}, schema))
    committed(merge(spark, table, "SELECT 1L AS k, false AS `true`", update({"b": "true"}), on="t.k = s.k"))
    assert table.to_arrow()["b"].to_pylist() == [True]


def test_a_column_that_no_file_holds_stays_null(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("k", pa.int64()), ("nothing", pa.null())])
    table = make_table(tmp_path / "t", pa.table({"k": [1], "nothing": pa.nulls(1)}, schema))
    source = "SELECT * FROM VALUES (1L, NULL), (2L, NULL) AS s(k, nothing)"
    committed(merge(spark, table, source, update("*"), insert("*"), on="t.k = s.k"))
    assert sorted(table.to_arrow()["k"].to_pylist()) == [1, 2]


def test_a_delete_by_keys_evaluates_nothing(tmp_path: Path, spark: SparkSession, by_spark: list[str]) -> None:
    table = target_of(tmp_path / "t")
    committed(merge(spark, table, SOURCE, delete(), on=ON))
    assert bag(table.to_arrow()) == bag(rows(*UNTOUCHED))
    assert by_spark == []
