"""What one entry in the table of operators and functions makes of a text."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_txlog.engine.table.predicate import may_hold_match, plain_condition, rows_matching
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.sql.evaluation import KNOWN, Known, passing, values_of
from airflow_txlog.sql.expression import Call, Column
from airflow_txlog.sql.operand_types import TEXT, of
from tests.engine.table.predicate.tables import PARTITIONS, SCHEMA, file, files, is_decided
from tests.helpers.calls import counted_steps

ROWS = pa.table({"name": ["A", "b", None], "i": pa.array([1, 2, 3], pa.int32())})


@pytest.fixture
def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function for the texts here. The table's own leaves some values to Spark."""
    monkeypatch.setitem(KNOWN, "lower()", Known(compute=pc.utf8_lower, signature=of(TEXT, TEXT)))


@pytest.mark.usefixtures("lower")
def test_one_entry_makes_a_function_known_to_conditions() -> None:
    for sql, selected in (
        ("lower(name) = 'a'", [True, False, False]),
        ("LOWER(`name`) IN ('a', 'b') AND i > 1", [False, True, False]),
        ("NOT lower(lower(name)) LIKE 'a%'", [False, True, False]),
    ):
        predicate = read_predicate(sql, SCHEMA)
        assert rows_matching(predicate, ROWS).to_pylist() == selected
        bound = plain_condition(sql, SCHEMA, {})
        assert not isinstance(bound, str)
        assert passing(bound, ROWS).to_pylist() == selected


@pytest.mark.usefixtures("lower")
def test_a_function_of_a_column_prunes_by_partition_values_and_not_by_bounds() -> None:
    adds = files(file({"country": "DE"}), file({"country": "fr"}, lower={"name": "x"}, upper={"name": "y"}))
    assert may_hold_match(read_predicate("lower(country) = 'de'", SCHEMA), adds, SCHEMA, PARTITIONS).to_pylist() == [
        True,
        False,
    ]
    assert may_hold_match(read_predicate("lower(name) = 'a'", SCHEMA), adds, SCHEMA, PARTITIONS).to_pylist() == [
        True,
        True,
    ]


@pytest.mark.usefixtures("lower")
def test_one_entry_makes_a_function_known_to_assigned_values() -> None:
    found = plain_values({"name": "lower(name)"}, SCHEMA, {}, alias="t", is_ansi=True)
    assert not isinstance(found, str)
    assert values_of(found.values["name"], ROWS).to_pylist() == ["a", "b", None]


@pytest.mark.usefixtures("lower")
@pytest.mark.parametrize(
    "sql", ["lower(i) = 'a'", "lower(name, name) = 'a'", "lower(code) = 'a'", "initcap(name) = 'A'"]
)
def test_another_type_or_number_of_operands_is_left_to_spark(sql: str) -> None:
    assert isinstance(plain_condition(sql, SCHEMA, {}), str)
    assert not is_decided(read_predicate(sql, SCHEMA))


def test_the_parts_of_a_date_are_those_of_the_calendar_however_far_it_is() -> None:
    draw = random.Random("dates")
    days = [draw.randrange(-(2**31), 2**31) for _ in range(5_000)] + [-(2**31), 2**31 - 1, 11_968_265, -719_529, 0]
    rows = pa.table({"d": pa.array([*days, None], pa.int32()).cast(pa.date32())})
    found = [values_of(Call(f"{part}()", (Column("d"),)), rows).to_pylist() for part in ("year", "month", "day")]
    for day, *parts in zip(days, *found, strict=False):
        # The calendar repeats itself every 400 years.
        cycles, rest = divmod(day, 146_097)
        near = dt.date(1970, 1, 1) + dt.timedelta(days=rest)
        assert parts == [near.year + 400 * cycles, near.month, near.day]
    assert [part[-1] for part in found] == [None, None, None]


def test_ten_times_as_many_values_of_a_list_are_at_most_twenty_times_the_work() -> None:
    steps = []
    for count in (100, 1_000):
        sql = f"i IN ({', '.join(map(str, range(count)))})"
        with counted_steps() as taken:
            assert not isinstance(plain_condition(sql, SCHEMA, {}), str)
        steps.append(taken[0])
    assert steps[1] < 20 * steps[0]


@pytest.mark.parametrize(
    "sql",
    [
        "length(name)",
        "char_length(name)",
        "substring(name, 2)",
        "substr(name, 1, 1)",
        "left(name, 1)",
        "right(name, 1)",
        "upper(name)",
        "lower(name)",
    ],
)
@pytest.mark.parametrize("value", [b"\x80\x80a", b"\xe9a", b"a\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_the_characters_of_a_text_that_is_not_utf_8_are_counted_by_spark(sql: str, value: bytes) -> None:
    condition = plain_condition(f"{sql} = {1 if 'length' in sql else repr('a')}", SCHEMA, {})
    assert not isinstance(condition, str)
    texts = pa.array([b"plain", value]).view(pa.string())
    rows = pa.table({"name": texts})
    with pytest.raises(InvalidInput, match="only Spark evaluates"):
        passing(condition, rows)
    assert passing(condition, rows.slice(0, 1)).to_pylist() == [False]


OF_EVERY_KIND = StructType(
    (
        StructField("d", Primitive.DATE),
        StructField("i", Primitive.INTEGER),
        StructField("lng", Primitive.LONG),
        StructField("long decimal", DecimalType(18, 10)),
        StructField("short decimal", DecimalType(15, 10)),
    )
)


@pytest.mark.parametrize(
    ("sql", "is_plain"),
    [
        # In doubles, 9007199254740992 would be between them.
        ("lng BETWEEN 9007199254740993 AND 1e300", False),
        ("lng BETWEEN 1 AND 2.5", True),
        ("CASE WHEN NULL THEN true ELSE i = 1 END", False),
        ("CASE i WHEN NULL THEN true ELSE i = 1 END", True),
        # Spark makes 100000000 of 99999999.9999999999.
        ("CAST(`long decimal` AS INT) = 1", False),
        ("CAST(`long decimal` AS BIGINT) = 1", True),
        ("CAST(`short decimal` AS INT) = 1", True),
    ],
)
def test_a_text_is_plain_only_if_its_types_leave_no_doubt(sql: str, is_plain: bool) -> None:
    assert isinstance(plain_condition(sql, OF_EVERY_KIND, {}), str) != is_plain


def test_a_job_that_leaves_values_to_spark_leaves_each_of_them() -> None:
    sql = "CAST(d AS STRING) = '9999-12-31'"
    rows = pa.table({"d": pa.array([2_932_896, 2_932_897], pa.int32()).cast(pa.date32())})
    condition = plain_condition(sql, OF_EVERY_KIND, {})
    assert not isinstance(condition, str)
    with pytest.raises(InvalidInput, match="a year of five digits"):
        passing(condition, rows)
    assert isinstance(plain_condition(sql, OF_EVERY_KIND, {}, may_fail=False), str)
