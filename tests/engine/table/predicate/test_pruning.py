"""Which files may hold a match, and which hold nothing else (soundness A4, A5, A9)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.table.predicate import Predicate, may_hold_match, rows_matching
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.predicate.tree import type_of_call
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.sql.evaluation import KNOWN
from tests.engine.table.predicate.examples import ROWS, files_of_partitions, files_with_statistics
from tests.engine.table.predicate.examples import SCHEMA as EVERY_TYPE
from tests.engine.table.predicate.tables import PARTITIONS, SCHEMA, file, files, read


def may(sql: str, *adds: Add, **keywords: Any) -> list[bool]:
    trust = keywords.pop("trust_statistics", True)
    return may_hold_match(read(sql, **keywords), files(*adds), SCHEMA, PARTITIONS, trust_statistics=trust).to_pylist()


# --- partitions -----------------------------------------------------------------------------------------------------

DAYS = [
    file({"day": "2024-01-01"}),
    file({"day": "2024-01-02"}),
    file({"day": None}),
    file({"day": ""}),
    file({"day": "x"}),
]
ON_DAYS = [
    ("day = '2024-01-01'", [True, False, False, False, True]),
    ("day != '2024-01-01'", [False, True, False, False, True]),
    ("NOT day = '2024-01-01'", [False, True, False, False, True]),
    ("day >= '2024-01-02'", [False, True, False, False, True]),
    ("day IN ('2024-01-01', '2023-01-01')", [True, False, False, False, True]),
    ("day NOT IN ('2024-01-01')", [False, True, False, False, True]),
    ("day IS NULL", [False, False, True, True, True]),
    ("day IS NOT NULL", [True, True, False, False, True]),
    ("day <=> NULL", [False, False, True, True, True]),
    ("day = '2024-01-01' OR upper(name) = 'A'", [True, True, True, True, True]),
    ("day = '2024-01-01' AND upper(name) = 'A'", [True, False, False, False, True]),
    ("year(day) = 2024", [True, True, False, False, True]),
    ("day(day) > 1 AND month(day) = 1", [False, True, False, False, True]),
    ("year(day) NOT IN (2023, 2025)", [True, True, False, False, True]),
    ("NOT 2024 = year(day)", [False, False, False, False, True]),
    ("year(day) IS NULL", [False, False, True, True, True]),
    ("year(day) IS NOT NULL", [True, True, False, False, True]),
    ("year(day) = 2024 OR trim(name) = 'a'", [True, True, True, True, True]),
    ("weekofyear(day) = 1", [True, True, True, True, True]),
    ("FALSE", [False, False, False, False, False]),
]


@pytest.mark.parametrize(("sql", "kept"), ON_DAYS, ids=[sql for sql, _ in ON_DAYS])
def test_partition_values_compare_as_typed_values(sql: str, kept: list[bool]) -> None:
    assert may(sql, *DAYS) == kept
    assert may(sql, *DAYS, trust_statistics=False) == kept


def test_integers_and_booleans_of_partitions_compare_by_value() -> None:
    adds = [
        file({"year": "2024", "flag": "true"}),
        file({"year": "02025", "flag": "FALSE"}),
        file({"year": "9", "flag": None}),
    ]
    assert may("year > 10", *adds) == [True, True, False]
    assert may("year = 2025", *adds) == [False, True, False]
    assert may("flag", *adds) == [True, False, False]
    assert may("NOT flag", *adds) == [False, True, False]
    assert may("flag IS NOT TRUE", *adds) == [False, True, True]


def test_strings_of_partitions_compare_by_bytes() -> None:
    adds = [file({"country": value}) for value in ("de", "dé", "z", "Z", "\U0001f600", "\uffff")]
    assert may("country > 'de'", *adds) == [False, True, True, False, True, True]
    assert may("country LIKE 'd%'", *adds) == [True, True, False, False, False, False]
    # By UTF-8, and not by UTF-16 as Java's own strings.
    assert may("country > '\uffff'", *adds) == [False, False, False, False, True, False]


def test_a_timestamp_partition_without_a_zone_is_kept() -> None:
    schema = StructType((StructField("at", Primitive.TIMESTAMP), StructField("wall", Primitive.TIMESTAMP_NTZ)))
    values = ["2024-11-03 01:30:00", "2024-11-03T01:30:00.000000Z", None]
    adds = files(
        *[
            Add(path="f", partition_values={"at": v, "wall": None}, size=1, modification_time=0, data_change=True)
            for v in values
        ]
    )
    predicate = read_predicate("at < '2024-01-01'", schema)
    assert may_hold_match(predicate, adds, schema, ["at", "wall"]).to_pylist() == [True, False, False]


def test_nan_partitions_compare_as_spark_compares_them() -> None:
    schema = StructType((StructField("x", Primitive.DOUBLE),))
    values = ["NaN", "Infinity", "-0.0", "5.0", None]
    adds = files(
        *[Add(path="f", partition_values={"x": v}, size=1, modification_time=0, data_change=True) for v in values]
    )

    def kept(sql: str) -> list[bool]:
        return may_hold_match(read_predicate(sql, schema), adds, schema, ["x"]).to_pylist()

    assert kept("x > 5") == [True, True, False, False, False]
    assert kept("x = double('NaN')") == [True, False, False, False, False]
    assert kept("x >= double('Infinity')") == [True, True, False, False, False]
    assert kept("x < double('NaN')") == [False, True, True, True, False]
    assert kept("x <= double('NaN')") == [True, True, True, True, False]
    assert kept("x != double('NaN')") == [False, True, True, True, False]
    assert kept("x = 0D") == [False, False, True, False, False]
    assert kept("x NOT IN (5D, 7D)") == [True, True, True, False, False]


TYPES = {"dat": Primitive.DATE, "str": Primitive.STRING}
FUNCTIONS = [
    (name, column)
    for name, known in KNOWN.items()
    for column, kind in TYPES.items()
    if name.endswith("()") and 1 in known.arity and type_of_call(known, [kind]) is not None
]
ONE_ROW_EACH = files_with_statistics([(row,) for row in range(ROWS.num_rows)])
CONSTANTS = {
    "year()": ("1", "1582", "1970", "2024", "9999", "NULL"),
    "month()": ("0", "1", "2", "12", "2.5"),
    **dict.fromkeys(("day()", "dayofmonth()"), ("1", "4", "29", "31")),
    **dict.fromkeys(("length()", "char_length()"), ("0", "1", "3", "40", "1.5")),
}
CONDITIONS = ["{} = {}", "{} != {}", "{} < {}", "{} >= {}", "{} <=> {}", "NOT ({} <=> {})", "{} IN ({}, {})"]
CONDITIONS += ["{} NOT IN ({}, {})", "{} BETWEEN {} AND {}", "{} NOT BETWEEN {} AND {}", "{} IS NULL", "{} IS NOT NULL"]


@pytest.mark.parametrize(("function", "column"), FUNCTIONS)
def test_a_function_of_a_partition_column_keeps_exactly_the_partitions_whose_rows_match(
    function: str, column: str
) -> None:
    adds = files_of_partitions([column])
    # As a partition value, an empty text is null.
    rows = ROWS.set_column(
        ROWS.column_names.index(column), column, [pa.array([v if v != "" else None for v in ROWS[column].to_pylist()])]
    )
    dates = ("DATE '2024-01-01'", "DATE '1970-01-01'", "DATE '9999-12-31'")
    constants = CONSTANTS.get(function, dates if column == "dat" else ("'a'", "' a'", "''", "'ab'", "'😀'"))
    texts = [
        form.format(operand, first, second)
        for operand in (function.replace("()", f"({column})"), function.replace("()", f"({column.upper()})"))
        for form in CONDITIONS
        for first in constants
        # The spelling of the column does not depend on the constants.
        for second in (constants if column in operand else [first])
    ]
    if column == "str" and function not in CONSTANTS:
        texts += [f"{function[:-2]}({column}) {like} '{p}'" for like in ("LIKE", "NOT LIKE") for p in ("a%", "%b", "%")]
        texts += [f"trim({function[:-2]}({column})) = {constant}" for constant in constants]
    pruned = 0
    for sql in dict.fromkeys(texts):
        predicate = read_predicate(sql, EVERY_TYPE)
        assert not predicate.unknown, sql
        kept = may_hold_match(predicate, adds, EVERY_TYPE, [column]).to_pylist()
        assert kept == rows_matching(predicate, rows).to_pylist(), sql
        # With bounds of a data column, a file of one row is kept if the row matches; its bounds say no more.
        of_data = may_hold_match(predicate, ONE_ROW_EACH, EVERY_TYPE, []).to_pylist()
        held = rows_matching(predicate, ROWS).to_pylist()
        assert not [row for row, is_held in enumerate(held) if is_held and not of_data[row]], sql
        pruned += kept.count(False)
    assert pruned


# --- statistics -----------------------------------------------------------------------------------------------------

ONE_TO_TEN = file(lower={"i": 1}, upper={"i": 10}, nulls={"i": 2})
ALL_FIVE = file(lower={"i": 5}, upper={"i": 5}, nulls={"i": 0})
ALL_NULL = file(nulls={"i": 10})
NO_NULL = file(nulls={"i": 0})
NONE = file()
STATISTICS = [ONE_TO_TEN, ALL_FIVE, ALL_NULL, NO_NULL, NONE]
ON_STATISTICS = [
    ("i = 5", [True, True, False, True, True]),
    ("i = 11", [False, False, False, True, True]),
    ("i != 5", [True, False, False, True, True]),
    ("NOT (i = 5)", [True, False, False, True, True]),
    ("i < 1", [False, False, False, True, True]),
    ("i <= 1", [True, False, False, True, True]),
    ("i > 10", [False, False, False, True, True]),
    ("i >= 10", [True, False, False, True, True]),
    ("i BETWEEN 6 AND 7", [True, False, False, True, True]),
    ("i NOT BETWEEN 1 AND 10", [False, False, False, True, True]),
    ("i IN (0, 11, 12)", [False, False, False, True, True]),
    ("i IN (0, 5)", [True, True, False, True, True]),
    ("i NOT IN (5, 6)", [True, False, False, True, True]),
    ("i IS NULL", [True, False, True, False, True]),
    ("i IS NOT NULL", [True, True, False, True, True]),
    ("i <=> 11", [False, False, False, True, True]),
    ("i IS DISTINCT FROM 5", [True, False, True, True, True]),
    ("i = 11 OR i IS NULL", [True, False, True, True, True]),
    ("i = id", [True, True, True, True, True]),
    # A function of a value may be null.
    ("nullif(i, i) IS NULL", [True, True, True, True, True]),
    ("nullif(i, i) IS DISTINCT FROM 5", [True, True, True, True, True]),
    ("nullif(i, i) IS NOT NULL", [True, True, False, True, True]),
]


@pytest.mark.parametrize(("sql", "kept"), ON_STATISTICS, ids=[sql for sql, _ in ON_STATISTICS])
def test_statistics_prune_what_they_prove(sql: str, kept: list[bool]) -> None:
    assert may(sql, *STATISTICS) == kept
    assert may(sql, *STATISTICS, trust_statistics=False) == [True] * len(STATISTICS)


def test_long_lists_prune_like_short_ones() -> None:
    adds = [file(lower={"i": low}, upper={"i": low + 4}) for low in (0, 100, 205, 396, 1000)] + [NONE]
    numbers = range(0, 400, 10)
    assert may(f"i IN ({', '.join(map(str, numbers))})", *adds) == [True, True, False, False, False, True]
    assert may(f"i NOT IN ({', '.join(map(str, numbers))})", *adds) == [True] * 6
    texts = [file(lower={"name": f"n{low:04d}"}, upper={"name": f"n{low + 4:04d}"}) for low in (0, 101, 205, 396)]
    assert may(f"name IN ({', '.join(repr(f'n{number:04d}') for number in numbers)})", *texts) == [
        True,
        False,
        False,
        False,
    ]


def test_strings_may_go_on_after_their_maximum() -> None:
    cut = file(lower={"name": "a" * 32}, upper={"name": "b" * 32})
    assert may(f"name = '{'b' * 40}'", cut) == [True]
    assert may(f"name > '{'b' * 40}'", cut) == [True]
    assert may("name > 'c'", cut) == [False]
    assert may("name LIKE 'b%'", cut) == [True]
    assert may("name LIKE 'a%'", cut) == [True]
    assert may("name LIKE 'c%'", cut) == [False]
    assert may("name LIKE 'A%'", cut) == [False]
    assert may("name LIKE 'c%x'", cut) == [False]
    assert may("name LIKE 'b%x%'", cut) == [True]
    assert may("name LIKE '%c%'", cut) == may("name NOT LIKE '%c%'", cut) == [True]
    assert may(f"name LIKE '{'b' * 40}%'", cut) == [True]
    assert may(f"name NOT LIKE '{'b' * 3}%'", cut) == [True]
    same = file(lower={"name": "b"}, upper={"name": "b"})
    assert may("name != 'b'", same) == [True]


def test_a5_nan_may_stand_above_any_maximum() -> None:
    """delta-rs writes max 3.0 for [1, 3, NaN], and Spark selects the NaN by x > 5."""
    lying = file(lower={"x": 1.0, "f": 1.0}, upper={"x": 3.0, "f": 3.0}, nulls={"x": 0, "f": 0})
    for column in ("x", "f"):
        for sql in ("{} > 5", "{} >= 5", "{} != 2", "NOT {} <= 5", "{} = double('NaN')", "{} >= double('NaN')"):
            assert may(sql.format(column), lying) == [True], sql
        assert may(f"{column} = 5", lying) == [False]
        assert may(f"{column} < 1", lying) == [False]
        assert may(f"{column} IN (4, 5)", lying) == [False]
        assert may(f"{column} > double('NaN')", lying) == [False]
    assert may("x != 1", file(lower={"x": 1.0}, upper={"x": 1.0})) == [True]


def test_a5_a_float_is_compared_as_a_double() -> None:
    """float('0.1') > 0.1 in Spark, whose statistic is 0.1 or 0.10000000149011612."""
    for written in (0.1, 0.10000000149011612):
        tenth = file(lower={"f": written}, upper={"f": written})
        assert may("f > 0.1", tenth) == [True]
        assert may("f = 0.1F", tenth) == [True]
        assert may("f = 0.1D", tenth) == [False]
        assert may("f < 0.1", tenth) == [False]


def test_a5_a_long_decimal_may_have_passed_through_a_double() -> None:
    stats = '{"numRecords":1,"minValues":{"big":1.2345678901234568e+16},"maxValues":{"big":1.2345678901234568e+16}}'
    assert may("big <= 12345678901234567.89", file(stats=stats)) == [True]
    assert may("big = 12345678901234567.89", file(stats=stats)) == [True]
    assert may("big = 1", file(stats=stats)) == [False]


def test_a5_a_timestamp_may_have_been_cut() -> None:
    cut = file(lower={"at": "2024-01-01T00:00:00.123Z"}, upper={"at": "2024-01-01T00:00:00.123Z"})
    assert may("at > TIMESTAMP '2024-01-01 00:00:00.1235'", cut) == [True]
    assert may("at = TIMESTAMP '2024-01-01 00:00:00.123999'", cut) == [True]
    assert may("at > TIMESTAMP '2024-01-01 00:00:01'", cut) == [False]


@pytest.mark.parametrize(
    "sql", ["st IS NULL", "tags IS NULL", "tags IS NOT NULL", "raw = :raw", "flag = TRUE", "code = 'x'", "folded = 'x'"]
)
def test_columns_whose_statistics_say_nothing_are_kept(sql: str) -> None:
    add = file(
        {"flag": None},
        lower={"raw": "z", "code": "z", "folded": "z", "tags": "z", "st": {"a": 7}},
        upper={"raw": "z", "code": "z", "folded": "z", "tags": "z", "st": {"a": 7}},
        nulls={"raw": 0, "code": 0, "folded": 0, "tags": 10, "st": {"a": 0, "b": 0}},
    )
    parameters = {"raw": b"a"} if ":raw" in sql else None
    # `flag` is a partition column here, and null.
    assert may(sql, add, parameters=parameters) == [sql != "flag = TRUE"]


@pytest.mark.parametrize(
    "stats",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        '{"numRecords":"x"}',
        '{"minValues":{"i":"x"},"maxValues":{"i":"y"}}',
        '{"minValues":{"i":9},"maxValues":{"i":1}}',
        '{"numRecords":0,"nullCount":{"i":0}}',
    ],
)
def test_broken_statistics_prune_nothing(stats: str | None) -> None:
    add = Add(path="f", partition_values={}, size=1, modification_time=0, data_change=True, stats=stats)
    for sql in ("i = 5", "i > 100", "i IS NULL AND i = 5 OR i < -100", "NOT i = 5", "i IS NOT NULL"):
        assert may_hold_match(read(sql), files(add), SCHEMA, PARTITIONS).to_pylist() == [True]


def test_a_deletion_vector_leaves_bounds_true_and_counts_in_doubt() -> None:
    vector = DeletionVector(storage_type="u", path_or_inline_dv="ab", size_in_bytes=1, cardinality=3, offset=1)
    stats = json.dumps({"numRecords": 10, "minValues": {"i": 1}, "maxValues": {"i": 5}, "nullCount": {"i": 3}})
    add = Add(
        path="f",
        partition_values={},
        size=1,
        modification_time=0,
        data_change=True,
        stats=stats,
        deletion_vector=vector,
    )
    adds = files(add)
    kept = [may_hold_match(read(sql), adds, SCHEMA, []).to_pylist()[0] for sql in ("i = 9", "i = 3", "i IS NULL")]
    assert kept == [False, True, True]


def test_partitions_and_statistics_work_together() -> None:
    adds = [
        file({"day": day}, lower={"i": low}, upper={"i": low + 9})
        for day in ("2024-01-01", "2024-01-02")
        for low in (0, 10)
    ]
    assert may("day = '2024-01-02' AND i = 5", *adds) == [False, False, True, False]
    assert may("day = '2024-01-02' OR i = 5", *adds) == [True, False, True, True]
    assert may("NOT (day = '2024-01-02' OR i < 10)", *adds) == [False, True, False, False]
    assert may("day = '2023-01-02' AND i = 5", *adds) == [False] * 4


def test_no_files_at_all() -> None:
    assert may("day = '2024-01-01' AND i = 5") == []


def test_answers_are_plain_arrays_as_long_as_the_files() -> None:
    chunked = pa.concat_tables([files(ONE_TO_TEN), files(ALL_NULL, file({"day": "2024-01-01"}))])
    for sql in ("i = 5", "day = '2024-01-01'", "TRUE", "upper(name) = 'A'", "i = 5 AND day = '2024-01-01'"):
        answer = may_hold_match(read(sql), chunked, SCHEMA, PARTITIONS)
        assert isinstance(answer, pa.BooleanArray)
        assert len(answer) == 3
        assert answer.null_count == 0


def test_a_column_of_another_type_than_was_read_prunes_nothing() -> None:
    other = StructType(tuple(StructField(f.name, Primitive.STRING if f.name == "i" else f.type) for f in SCHEMA))
    adds = files(file(lower={"i": "a"}, upper={"i": "b"}))
    assert may_hold_match(read("i = 5"), adds, other, PARTITIONS).to_pylist() == [True]
    days = files(file({"day": "2023-01-01"}), file({"day": "2024"}))
    for kind, pruned in ((Primitive.DATE, True), (Primitive.STRING, False), (Primitive.TIMESTAMP, False)):
        changed = StructType(tuple(StructField(f.name, kind if f.name == "day" else f.type) for f in SCHEMA))
        for sql in ("year(day) = 2024", "year(day) IS NULL", "month(day) > 2"):
            assert may_hold_match(read(sql), days, changed, PARTITIONS).to_pylist() == [not pruned, True], (sql, kind)
    gone = StructType(tuple(field for field in SCHEMA if field.name != "i"))
    assert may_hold_match(read("i = 5"), adds, gone, PARTITIONS).to_pylist() == [True]


def test_a_partition_value_that_is_not_known_keeps_its_file() -> None:
    assert may("year = 2024", file({"day": "yesterday", "year": "MMXXIV", "flag": "yes"})) == [True]


def test_true_keeps_every_file() -> None:
    assert may_hold_match(Predicate.true(), files(*STATISTICS), SCHEMA, PARTITIONS).to_pylist() == [True] * 5
