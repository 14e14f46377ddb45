"""Rows chosen without Spark, sets of partitions, and the target's part of a merge's condition."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.table.predicate import may_hold_match, partitions_of, rows_matching
from airflow_txlog.engine.table.predicate.reading import target_conjuncts
from airflow_txlog.engine.table.predicate.tree import describe
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from airflow_txlog.errors import InvalidPredicate, PartitionMismatch, UnknownColumn, UnsupportedPredicate
from tests.engine.table.predicate.tables import PARTITIONS, SCHEMA, file, files, is_decided, read

NAN = float("nan")
ROWS = pa.table(
    {
        "i": pa.array([1, 2, None, 4], pa.int32()),
        "x": pa.array([1.0, NAN, None, -0.0]),
        "f": pa.array([0.1, NAN, None, 5.0], pa.float32()),
        "name": pa.array(["a", "ab", None, "é"]),
        "flag": pa.array([True, False, None, True]),
        "day": pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2), None, dt.date(9999, 12, 31)]),
        "at": pa.array([0, 1, None, 253_402_300_799_999_999], pa.timestamp("us", tz="UTC")),
        "wall": pa.array([0, 1, None, 2], pa.timestamp("us")),
        "price": pa.array([Decimal("1.50"), Decimal("-1.50"), None, Decimal("999.99")], pa.decimal128(5, 2)),
        "raw": pa.array([b"\xff", b"a", None, b""]),
        "st": pa.array([{"a": 1}, {"a": None}, None, {"a": 2}]),
    }
)
SELECTED = [
    ("f < 3.4028234e38F", [0, 3]),
    ("i = 1 OR i = 4", [0, 3]),
    ("i != 1", [1, 3]),
    ("NOT (i = 1)", [1, 3]),
    ("i NOT IN (1, 2)", [3]),
    ("i NOT IN (1, NULL)", []),
    ("i IS NULL", [2]),
    ("i <=> NULL OR i > 3", [2, 3]),
    ("i IS DISTINCT FROM 1", [1, 2, 3]),
    ("x > 5", [1]),
    ("x = double('NaN')", [1]),
    ("x = 0.0D", [3]),
    ("x < double('NaN')", [0, 3]),
    ("NOT x > 5", [0, 3]),
    ("f > 0.1", [0, 1, 3]),
    ("f = 0.1F", [0]),
    ("name LIKE 'a%'", [0, 1]),
    ("name NOT LIKE 'a%'", [3]),
    ("name > 'z'", [3]),
    ("flag", [0, 3]),
    ("NOT flag", [1]),
    ("flag IS NOT TRUE", [1, 2]),
    ("day = '2024-01-01'", [0]),
    ("day > '2024-01-01'", [1, 3]),
    ("at >= '9999-12-31'", [3]),
    ("wall < TIMESTAMP_NTZ '1970-01-01 00:00:00.000001'", [0]),
    ("price >= 1.499", [0, 3]),
    ("price IN (1.5, -1.5)", [0, 1]),
    ("raw > :raw", [0]),
    ("st IS NULL", [2]),
    ("TRUE", [0, 1, 2, 3]),
    ("NULL", []),
]


@pytest.mark.parametrize(("sql", "selected"), SELECTED, ids=[sql for sql, _ in SELECTED])
def test_rows_are_chosen_as_spark_chooses_them(sql: str, selected: list[int]) -> None:
    predicate = read(sql, parameters={"raw": b"a"} if ":raw" in sql else None)
    for rows in (ROWS, pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)])):
        answer = rows_matching(predicate, rows)
        assert isinstance(answer, pa.BooleanArray)
        assert [number for number, chosen in enumerate(answer.to_pylist()) if chosen] == selected
        assert rows.filter(answer).num_rows == len(selected)


def test_rows_of_a_dictionary_or_another_unit_are_compared_by_value() -> None:
    rows = pa.table(
        {
            "name": pa.array(["a", "ab", None]).dictionary_encode(),
            "at": pa.array([0, 1, None], pa.timestamp("ms", tz="Europe/Berlin")),
        }
    )
    assert rows_matching(read("name = 'ab'"), rows).to_pylist() == [False, True, False]
    assert rows_matching(read("at > '1970-01-01'"), rows).to_pylist() == [False, True, False]


@pytest.mark.parametrize(
    ("sql", "construct"),
    [("upper(name) = 'A'", "the function upper()"), ("i = 1 AND name = 'it''s'", "a string with a doubled quote")],
)
def test_rows_are_refused_by_name_outside_the_grammar(sql: str, construct: str) -> None:
    with pytest.raises(UnsupportedPredicate) as caught:
        rows_matching(read(sql), ROWS)
    assert caught.value.construct == construct  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sql",
    [
        "price > DATE '2024-01-01'",
        "price IN (DATE '1970-01-02')",
        "price = TIMESTAMP '1970-01-01 00:00:00'",
        "f < 3.40282347e38F",
        "f > -1e39F",
    ],
)
def test_what_spark_refuses_selects_no_row(sql: str) -> None:
    with pytest.raises(UnsupportedPredicate):
        rows_matching(read(sql), ROWS)


# --- sets of partitions ---------------------------------------------------------------------------------------------


def test_a_set_of_partitions_compares_typed_values() -> None:
    predicate = partitions_of([{"year": "2024", "country": "de"}, {"year": "02025", "country": None}])
    adds = files(
        file({"year": "2024", "country": "de"}),
        file({"year": "02024", "country": "de"}),
        file({"year": "2025", "country": None}),
        file({"year": "2025", "country": ""}),
        file({"year": "2025", "country": "de"}),
        file({"year": None, "country": "de"}),
        file({"year": "soon", "country": "de"}),
    )
    assert may_hold_match(predicate, adds, SCHEMA, PARTITIONS).to_pylist() == [
        True,
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert predicate.columns == {"country", "year"}
    assert "country=de/year=2024" in predicate.sql
    with pytest.raises(UnsupportedPredicate):
        rows_matching(predicate, ROWS)


def test_a_set_with_a_value_of_no_type_keeps_every_file() -> None:
    predicate = partitions_of([{"year": "2024"}, {"year": "soon"}])
    adds = files(file({"year": "2023"}), file({"year": "2024"}))
    assert may_hold_match(predicate, adds, SCHEMA, PARTITIONS).to_pylist() == [True, True]


def test_sets_over_different_columns_are_united() -> None:
    predicate = partitions_of([{"year": "2024"}, {"country": "de"}])
    adds = files(file({"year": "2024"}), file({"country": "de"}), file({"year": "2023", "country": "at"}))
    assert may_hold_match(predicate, adds, SCHEMA, PARTITIONS).to_pylist() == [True, True, False]


def test_floats_and_decimals_of_a_set_compare_by_value() -> None:
    schema = StructType((StructField("x", Primitive.DOUBLE), StructField("d", DecimalType(5, 2))))
    predicate = partitions_of([{"x": "0.0", "d": "1.5"}, {"x": "NaN", "d": "1.50"}])
    values = [("-0.0", "1.50"), ("NaN", "1.5"), ("1.0", "1.50"), ("0.0", "2.00")]
    adds = files(
        *[
            Add(path="f", partition_values={"x": x, "d": d}, size=1, modification_time=0, data_change=True)
            for x, d in values
        ]
    )
    assert may_hold_match(predicate, adds, schema, ["x", "d"]).to_pylist() == [True, True, False, False]


def test_an_empty_set_holds_nothing_and_an_empty_partition_is_an_error() -> None:
    adds = files(file({"year": "2024"}))
    assert may_hold_match(partitions_of([]), adds, SCHEMA, PARTITIONS).to_pylist() == [False]
    with pytest.raises(PartitionMismatch):
        partitions_of([{}])


def test_a_set_of_columns_that_do_not_partition_keeps_every_file() -> None:
    adds = files(file(lower={"i": 1}, upper={"i": 1}))
    assert may_hold_match(partitions_of([{"i": "5"}]), adds, SCHEMA, PARTITIONS).to_pylist() == [True]


# --- the target's part of a merge -----------------------------------------------------------------------------------


def conjuncts(on: str, **keywords: object) -> str:
    return describe(_read_on(on, **keywords).tree)


def _read_on(on: str, **keywords: object):  # type: ignore[no-untyped-def]
    return target_conjuncts(on, SCHEMA, target_alias="t", source_alias="s", **keywords)  # type: ignore[arg-type]


MERGES = [
    ("t.id = s.id AND t.day = '2024-01-01'", "<a column where a constant should stand> AND day = '2024-01-01'"),
    ("T.DAY >= DATE '2024-01-01' AND t.flag", "day >= '2024-01-01' AND flag = TRUE"),
    ("t.id = s.id OR t.year = 2024", "<"),
    ("t.year = 2024 OR t.year = 2025", "year = 2024 OR year = 2025"),
    ("NOT (t.id = s.id OR t.year = 2024)", "<"),
    ("s.year = 2024", "<s.year, which is not a column of the table alone>"),
    ("year = 2024", "<the name year>"),
    ("t.st.a = 1", "<t.st.a, which is not a column of the table alone>"),
]


@pytest.mark.parametrize(("on", "tree"), MERGES, ids=[on for on, _ in MERGES])
def test_only_conditions_on_the_target_alone_prune_a_merge(on: str, tree: str) -> None:
    told = conjuncts(on)
    assert told == tree or (tree == "<" and told.startswith("<"))


def test_a_mixed_or_prunes_nothing() -> None:
    predicate = _read_on("t.id = s.id OR t.year = 2024")
    adds = files(file({"year": "2023"}), file({"year": "2024"}))
    assert may_hold_match(predicate, adds, SCHEMA, PARTITIONS).to_pylist() == [True, True]
    predicate = _read_on("t.id = s.id AND t.year = 2024")
    assert may_hold_match(predicate, adds, SCHEMA, PARTITIONS).to_pylist() == [False, True]


def test_a_bare_name_is_the_targets_only_where_the_source_cannot_have_it() -> None:
    assert conjuncts("year = 2024", source_columns=["id", "name"]) == "year = 2024"
    assert conjuncts("year = 2024", source_columns=["id", "YEAR"]) == "<the name year>"
    # A struct column `t` of the source would catch `t.year`.
    assert conjuncts("t.year = 2024", source_columns=["t"]).startswith("<")


def test_a_merge_names_a_column_that_the_target_does_not_have() -> None:
    with pytest.raises(UnknownColumn):
        conjuncts("t.yaer = 2024 AND t.id = s.id")
    assert conjuncts("s.yaer = 2024").startswith("<")


def test_a_merge_names_the_targets_columns_and_shares_its_parameters() -> None:
    predicate = _read_on("t.id = s.id AND t.year = :year", parameters={"year": 2024, "of_a_clause": 1})
    assert predicate.columns == {"id", "year"}
    with pytest.raises(InvalidPredicate):
        _read_on("t.year = :year", parameters={})


def test_a_merge_is_confined_like_any_predicate() -> None:
    with pytest.raises(UnsupportedPredicate):
        _read_on("t.id = s.id AND rand() < 0.5")
    with pytest.raises(InvalidPredicate):
        _read_on("t.id = s.id) WHEN MATCHED THEN DELETE --")
    assert _read_on("t.id = s.id AND t.v:path = 1", lenient=True).columns is None


def test_one_alias_for_both_sides_prunes_nothing() -> None:
    predicate = target_conjuncts("t.year = 2024", SCHEMA, target_alias="t", source_alias="T")
    assert not is_decided(predicate)
