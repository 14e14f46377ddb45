"""Every operator and function of the table against Spark: texts are made from its entries, for each type and each mode.

Spark must accept a text that is bound here, must give it the same type and the same value for each row, nulls and NaN
included, and must not fail on a row whose value is not left to it. An entry that is added to the table is tested here
without another line, if its text is a call or stands between two operands; `_FORMS` has the others, and `_CONSTANTS`
those with an operand that must be a constant. All entries draw from one seed: a new one changes the texts of others.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_txlog.contract.operations.records import COMPUTED
from airflow_txlog.engine.table.predicate.binding import (
    ColumnBinder,
    NotPlain,
    columns_in,
    plain_condition,
    plain_expression,
)
from airflow_txlog.engine.table.schema.schema import delta_type
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from airflow_txlog.errors import InvalidInput
from airflow_txlog.sql import computations
from airflow_txlog.sql.evaluation import KNOWN, LIKE_WITH_ONE, may_be_left_to_spark, values_of
from airflow_txlog.sql.operand_types import MOST_DIGITS, Typed
from airflow_txlog.sql.sql_text import sql_text
from tests.engine.table.predicate.examples import COLUMNS, ROWS, SCHEMA, TIMES
from tests.engine.table.predicate.spark_oracle import VIEW, make_view
from tests.helpers.depth import depth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seeded]

# How an operation is written that neither stands between two operands nor is called.
_FORMS = {
    "in": "{} IN ({}, {})",
    "between": "{} BETWEEN {} AND {}",
    "is null": "{} IS NULL",
    "not": "NOT {}",
    "negate": "- {}",
    "case": "CASE WHEN {} THEN {} ELSE {} END",
    "named_struct()": "named_struct('a', {}, 'b', {})",
}
_PARTS = ["", "a", "b", "ab", "bc", "%", "_", ".", "é", "😀", " ", "\t", "\n", "zz", "5"]
_LIKE = ["a%", "%", "%%", "", "ab", "%b", "%b%", "a%b", "%a%b%", "a%%b", "%é%", "%😀", "%.%", "%1%5%", "% ", "\t%"]
_WITH_ONE = ["_", "__", "a_", "_b", "a_b", "%_", "_%", "a_%b", "%_b%", "_.", "__%__", "._", "(_", "%é_", "_%_%"]
# Constants of operands that must be constants.
_CONSTANTS = {
    "like": [*_LIKE, *_WITH_ONE],
    **dict.fromkeys(("contains()", "startswith()", "endswith()", "replace()"), _PARTS),
    "date_format()": ["yyyy", "yyyy-MM", "yyyyMMdd", "dd.MM.yyyy HH:mm:ss", "ss", "yyyy/MM, _", "yy", "yyyy-MMM", "-"],
    "add_months()": [-1_200_000, -37, -12, -1, 0, 1, 2, 13, 2147483647],
    "round()": [0, 1, 2, 3, 10, 15],
    **{name: [-50, -3, -2, -1, 0, 1, 2, 3, 50, 2147483647] for name in ("substring()", "substr()")},
    **{name: [-1, 0, 1, 2, 50] for name in ("left()", "right()")},
}
_AT_ONCE = 200
_UNITS = ["YEAR", "yyyy", "yy", "quarter", "Month", "MON", "mm", "week", "day", "DD", "hour", "MINUTE", "second"]
_UNITS += ["millisecond", "MICROSECOND"]
_MOMENTS = {
    f"at{number}": dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    for number, value in enumerate(COLUMNS["tim"][1])
}
_AT = {"at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}


def _constant(name: str, draw: random.Random) -> str:
    """Return a constant of the type of a column."""
    values = COLUMNS[name][1]
    value = draw.choice(values)
    match name:
        case "str":
            plain = [text for text in values if not set(text) & set("'\\")]
            return f"'{draw.choice(plain)}'"
        case "dat":
            day = (dt.datetime(1970, 1, 1) + dt.timedelta(days=value)).date().isoformat()
            return draw.choice([f"DATE '{day}'", f"'{day}'", f"CAST('{day}' AS DATE)"])
        case "dbl":
            return draw.choice(["0.1", "-0.0", "3", "- 7", "123456789.25", "1.5", "0", "100000000000000", "1e3", "2D"])
        case "dec" | "whole" | "wide":
            return draw.choice(["0.5", "1.00", "-1.5", "123.456", "7", "0.10", "12345678901234567890"])
        case "bin" | "flt" | "ntz":
            return "NULL"
        case "boo":
            return draw.choice(["true", "FALSE"])
        case "tim":
            name = draw.choice(list(_MOMENTS))
            text = _MOMENTS[name].isoformat(" ")
            texts = [
                f"TIMESTAMP '{text}'",
                f"CAST('{text[:19]}' AS TIMESTAMP)",
                f"'{text[:19]}'",
                f"DATE '{text[:10]}'",
            ]
            return draw.choice([f":{name}", f":{name}", *texts])
    if abs(value) >= 10**18:
        return "0"
    return draw.choice([str(value), f"({value})", str(value) if value == min(values) else f"'{value}'", "3", "-2"])


def _operand(name: str, draw: random.Random) -> str:
    """Return a column, or a function of the table of a column of this type."""
    column = draw.choice([name, name.upper(), f"`{name}`", f"({name})"])
    functions = [known for known in KNOWN if known.endswith("()") and 1 in KNOWN[known].arity]
    if draw.random() < 0.3:
        call = draw.choice(functions).replace("()", f"({column})")
        return call if _bound(call) is not None else column
    return column


def _texts(operator: str, draw: random.Random) -> Iterator[str]:
    """Yield texts of one operation on columns and constants, of each combination of types in turn."""
    arity = KNOWN[operator].arity if operator.endswith("()") else range(2, 3)
    if operator in _FORMS:
        arity = range(_FORMS[operator].count("{}"), _FORMS[operator].count("{}") + 1)
    numbers = [count for count in arity if count <= 3]
    while True:
        kinds = [kinds for count in numbers for kinds in itertools.product(COLUMNS, repeat=min(count, 2))]
        draw.shuffle(kinds)
        for types in kinds:
            count = draw.choice([each for each in numbers if min(each, 2) == len(types)])
            yield _text(operator, [*types, *draw.choices(types, k=count - len(types))], draw)


def _text(operator: str, types: Sequence[str], draw: random.Random) -> str:
    if operator == "date_trunc()":
        return f"date_trunc('{draw.choice(_UNITS)}', {_operand(types[-1], draw)})"
    constants = _CONSTANTS.get(operator)
    operands = [_operand(name, draw) for name in types]
    if constants is not None or operator == "in":
        operands[1:] = [repr(draw.choice(constants)) if constants else _constant(name, draw) for name in types[1:]]
    else:
        at = draw.randrange(2 * len(types))
        operands[at : at + 1] = (
            [_constant(types[at], draw) if draw.random() < 0.8 else "NULL"] if at < len(types) else []
        )
    if operator == "case":
        operands[0] = draw.choice(["boo", "int > 5", "str < 'b'", "NOT boo", "boo OR NULL"])
    if operator in _FORMS:
        return _FORMS[operator].format(*(f"({each})" for each in operands))
    if operator.endswith("()"):
        return operator.replace("()", f"({', '.join(operands)})")
    return f"({operands[0]}) {operator} ({operands[1]})"


def _bound(text: str) -> Typed | None:
    used = {name: _MOMENTS[name] for name in sql_text(text).parameters}
    try:
        return ColumnBinder(columns_in(SCHEMA), used, time_zone="UTC").operand(plain_expression(text))
    except NotPlain:
        return None


def _plain(array: pa.Array) -> list[Any]:
    """Values that compare: NaN as a text, zeros with their sign, and days of any year."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_struct(array.type):
        return [(None if row is None else tuple(row)) for row in zip(*map(_plain, array.flatten()), strict=True)]
    return [repr(value) if isinstance(value, float) else value for value in array.to_pylist()]


def _moment(found: re.Match[str]) -> str:
    """The text of a parameter for Spark."""
    return f"TIMESTAMP '{_MOMENTS[found[1]].isoformat()}'"


def _rows_here(bound: Typed) -> list[int]:
    """Return the rows whose value is not left to Spark."""
    if not may_be_left_to_spark(bound.expression):
        return list(range(ROWS.num_rows))
    found = []
    for number in range(ROWS.num_rows):
        try:
            values_of(bound.expression, ROWS.slice(number, 1))
            found.append(number)
        except InvalidInput as error:
            if error.facts.get("left_to_spark") is None:
                raise
    return found


def _spark_values(spark: SparkSession, texts: list[tuple[str, list[int]]]) -> list[pa.Array]:
    columns = []
    for number, (text, rows) in enumerate(texts):
        given = re.sub(":(at[0-9]+)", _moment, text)
        if len(rows) < ROWS.num_rows:
            given = f"CASE WHEN position IN ({', '.join(map(str, rows))}) THEN (\n{given}\n) END"
        columns.append(f"(\n{given}\n) AS c{number}")
    try:
        table = spark.sql(f"SELECT position, {', '.join(columns)} FROM {VIEW}").toArrow().sort_by("position")
    except Exception as error:
        if len(texts) == 1:
            raise AssertionError(f"Spark, or the reading of its answer, failed on: {texts[0][0]}") from error
        middle = len(texts) // 2
        return _spark_values(spark, texts[:middle]) + _spark_values(spark, texts[middle:])
    return [table.column(f"c{number}").combine_chunks() for number in range(len(texts))]


def _compare(
    spark: SparkSession,
    ansi: str,
    texts: Iterator[Iterator[str]],
    count: int,
    tried: int = 3000,
    **more: str,
) -> None:
    """Compare so many texts of each kind of those that are bound here, out of the first ones that are `tried`."""
    # Texts share a statement here: Spark would compute `(x * 3) * y` once with `(x * y) * 3`, which rounds differently.
    settings = {"spark.sql.ansi.enabled": ansi, "spark.sql.subexpressionElimination.enabled": "false", **more}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    make_view(spark)
    asked: list[tuple[str, list[int]]] = []
    for kind in texts:
        bounds = ((text, bound) for text in itertools.islice(kind, tried) if (bound := _bound(text)))
        found = ((text, _rows_here(bound), pa.types.is_struct(bound.type)) for text, bound in bounds)
        # Spark's structs here cannot be null, so those of some rows alone cannot be collected.
        usable = ((text, rows) for text, rows, is_struct in found if len(rows) >= (ROWS.num_rows if is_struct else 1))
        accepted = list(itertools.islice(usable, count))
        assert accepted
        asked += accepted
    wrong = []
    try:
        for start in range(0, len(asked), _AT_ONCE):
            part = asked[start : start + _AT_ONCE]
            for (text, rows), found_there in zip(part, _spark_values(spark, part), strict=True):
                bound = _bound(text)
                assert bound is not None
                ours = values_of(bound.expression, ROWS.take(rows))
                kinds = {ours.type, found_there.type, bound.type}
                is_typed = len(kinds) == 1 or pa.types.is_struct(bound.type)
                if _plain(ours) != _plain(found_there.take(rows)) or not is_typed:
                    wrong.append((text, kinds))
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    assert not wrong
    print(f"{len(asked)} texts on {ROWS.num_rows} rows, ANSI {ansi}")


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_every_entry_computes_what_spark_computes(spark: SparkSession, ansi: str) -> None:
    draw = random.Random(f"known {ansi}")
    entries = sorted(KNOWN.keys() - {"starts with", LIKE_WITH_ONE})
    _compare(spark, ansi, (_texts(operator, draw) for operator in entries), depth(7, 40, 400))


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_every_cast_computes_what_spark_computes(spark: SparkSession, ansi: str) -> None:
    targets = [str(kind) for kind, _ in COLUMNS.values()] + ["DECIMAL(10, 2)", "NUMERIC(5,1)", "DEC(20,0)", "bigint"]
    casts = [f"CAST({column} AS {target})" for column in COLUMNS for target in targets]
    casts += [f"TRY_CAST({column} AS int)" for column in ("lng", "dbl", "dec")]
    _compare(spark, ansi, iter([iter(casts)]), len(casts))


_COUNTS = [0, 1, 2, 7, 11, 12, 13, 29, 30, 31, 365, 1200, 48_000, 106_751_991, 106_751_992, 178_956_971, 2**31, 2**62]
_UNITS_OF_INTERVALS = ["year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"]
_UNITS_OF_INTERVALS += ["quarter", "nanosecond", "day to second", "dayofyear", ""]


def _sums_with_intervals(draw: random.Random) -> Iterator[str]:
    while True:
        name = draw.choice(["dat", "tim", "ntz", "tim", "dat", "str", "int", "NULL"])
        left = draw.choice([name, name, "DATE '2024-03-31'", f":at{draw.randrange(len(TIMES))}"])
        unit = draw.choice(_UNITS_OF_INTERVALS)
        count = draw.choice(_COUNTS) if draw.random() < 0.7 else draw.randrange(2000)
        unit = draw.choice([unit, unit.upper(), f"{unit}s"])
        forms = ["{}", "-{}", "- {}", "'{}'", "'-{}'", "-'{}'", "-'-{}'", "'+0{}'", "' {}'", "{}.5", "'{}.0'", "{}L"]
        interval = f"INTERVAL {draw.choice(forms).format(count)} {unit}"
        if draw.random() < 0.3:
            parts = [f"{draw.choice(_COUNTS[:13])} {draw.choice(_UNITS_OF_INTERVALS[:9])}" for _ in range(2)]
            parts += [f"{draw.randrange(-1, 9)} {draw.choice(['days', 'MONTHS', 'Hours'])}"] * draw.randrange(2)
            interval = f"INTERVAL {draw.choice(['{}', repr('{}')]).format(' '.join(parts))}"
        found = f"{left} {draw.choice('+-')} {draw.choice([interval, f'({interval})'])}"
        if draw.random() < 0.2:
            found = f"{left} {draw.choice('+-')} INTERVAL '{draw.choice(['', '-', '+', ' '])}{count} {unit}'"
        if draw.random() < 0.2:
            found = draw.choice([f"CAST({found} AS DATE)", f"to_date({found})", f"add_months({left}, {count})"])
        factor = draw.choice([0, 1, -1, 3, 30, 1000, "2L", "1.0", "NULL"])
        products = [f"{left} - {factor} * {interval}", f"{left} + ({interval}) * {factor}"]
        others = [f"{interval} + {left}", f"{interval} - {left}", f"{found} {interval[8:]}"]
        found = draw.choice([found] * 6 + products + others)
        yield draw.choice([found, found, f"{name} < {found}", f"{found} >= {name}", f"{found} - INTERVAL 1 DAY"])


@pytest.mark.parametrize(("ansi", "legacy"), [("true", "false"), ("false", "false"), ("true", "true")])
def test_intervals_move_dates_and_moments_as_in_spark(spark: SparkSession, ansi: str, legacy: str) -> None:
    """With `spark.sql.legacy.interval.enabled` too, with which Spark has intervals of another type."""
    texts = _sums_with_intervals(random.Random(f"intervals {ansi} {legacy}"))
    count = depth(70, 500, 4_000)
    _compare(spark, ansi, iter([texts]), count, tried=count * 8, **{"spark.sql.legacy.interval.enabled": legacy})


@pytest.mark.parametrize(
    "text",
    [
        "dat - INTERVAL 12 HOURS",
        "dat + INTERVAL 0 SECONDS",
        "str - INTERVAL 1 DAY",
        "int - INTERVAL 1 DAY",
        "INTERVAL 1 DAY",
        "INTERVAL 1 DAY IS NULL",
        "coalesce(INTERVAL 1 DAY, INTERVAL 2 DAYS)",
        "INTERVAL 1 DAY - INTERVAL 1 DAY",
        "INTERVAL 1 DAY + dat",
        "dat - INTERVAL 1 DAY 2 HOURS",
        "tim - INTERVAL 1 MONTH 2 DAYS",
        "tim - INTERVAL '1 02:03:04' DAY TO SECOND",
        "tim - CAST('1' AS INTERVAL DAY)",
        "tim - :at0 * INTERVAL 1 DAY",
        "tim - INTERVAL :at0 DAYS",
    ],
)
def test_another_use_of_an_interval_is_left_to_spark(text: str) -> None:
    assert _bound(text) is None


@pytest.mark.parametrize(("zone", "is_plain"), [("UTC", True), ("America/New_York", False), ("+01:00", False)])
def test_a_day_of_a_moment_is_one_of_utc(zone: str, is_plain: bool) -> None:
    assert isinstance(plain_condition("tim - INTERVAL 1 DAY < :at", SCHEMA, _AT, time_zone=zone), str) is not is_plain
    assert isinstance(plain_condition("tim < :at - INTERVAL 1 DAY", SCHEMA, _AT, time_zone=zone), str) is not is_plain
    several = plain_condition("tim < :at - :n * INTERVAL 1 DAY", SCHEMA, {**_AT, "n": 30}, time_zone=zone)
    assert isinstance(several, str) is not is_plain
    assert not isinstance(plain_condition("dat - INTERVAL 1 DAY < '2024-01-01'", SCHEMA, {}, time_zone=zone), str)


def _beside_spark(spark: SparkSession, values: pa.Array, kind: str, texts: list[str]) -> None:
    """Compare texts on a column `v` of these values. None may be left to Spark."""
    table = pa.table({"v": values, "at": pa.array(range(len(values)), pa.int32())})
    spark.createDataFrame(table).selectExpr(f"CAST(v AS {kind}) AS v", "at").createOrReplaceTempView("many_values")
    columns = ", ".join(f"{text} AS c{number}" for number, text in enumerate(texts))
    found = spark.sql(f"SELECT at, {columns} FROM many_values").toArrow().sort_by("at")
    if kind == "STRING":
        table = table.set_column(0, "v", values.view(pa.string()))
    schema = StructType((StructField("v", delta_type(table.schema.field("v").type, "v")),))
    for number, text in enumerate(texts):
        bound = ColumnBinder(columns_in(schema), {}).operand(plain_expression(text))
        ours = _plain(values_of(bound.expression, table))
        theirs = _plain(found.column(f"c{number}").combine_chunks())
        wrong = [three for three in zip(values.to_pylist(), ours, theirs, strict=True) if three[1] != three[2]]
        assert not wrong, (text, wrong[:5])


def test_doubles_are_rounded_by_their_shortest_text_as_java_does(spark: SparkSession) -> None:
    draw = random.Random("round")
    halves = [float(f"{draw.randrange(10 ** draw.randrange(1, 9))}.{draw.randrange(1000)}5") for _ in range(4_000)]
    others = [draw.uniform(-1, 1) * 10 ** draw.randrange(-3, 9) for _ in range(4_000)]
    near = [math.nextafter(value, draw.choice([-math.inf, math.inf])) for value in halves[:2_000]]
    values = pa.array([*halves, *(-value for value in halves), *others, *near, 2.675, 1.005, -0.4, 1e300, None])
    _beside_spark(spark, values, "DOUBLE", [f"round(v, {digits})" for digits in range(5)] + ["round(v)"])


@pytest.mark.parametrize(("precision", "scale"), [(38, 18), (37, 18), (38, 1), (38, 38), (18, 3), (5, 2)])
def test_a_decimal_is_rounded_as_in_spark_also_if_it_needs_another_digit(
    spark: SparkSession, precision: int, scale: int
) -> None:
    draw = random.Random(f"decimals {precision} {scale}")
    units = [10 ** draw.randrange(precision) * draw.choice([1, 4, 5, 9]) for _ in range(50)]
    units += [draw.randrange(10 ** draw.randrange(1, precision + 1)) for _ in range(100)]
    # Those with a carry first: Arrow forgets an error if it can round a later value.
    carried = [10**precision - 10**places for places in range(min(precision, 20))]
    carried = [] if precision == MOST_DIGITS else [*carried, 10**precision - 1]
    exact = [Decimal(sign * each).scaleb(-scale, Context(prec=38)) for each in [*carried, *units] for sign in (1, -1)]
    values = pa.array([*exact, None], pa.decimal128(precision, scale))
    # Arrow rounds none to 38 digits fewer.
    first = 1 if scale == MOST_DIGITS else 0
    texts = [f"round(v, {at})" for at in range(first, min(scale + 1, 16)) if precision - scale + at < MOST_DIGITS]
    texts += [f"CAST(v AS DECIMAL({precision - scale + at + 1}, {at}))" for at in range(first, min(scale, 37))]
    texts += ["floor(v)", "ceil(v)"] if precision < MOST_DIGITS else []
    _beside_spark(spark, values, f"DECIMAL({precision}, {scale})", texts)


@pytest.mark.parametrize(("scale", "places", "least"), [(18, 0, 5 * 10**17), (18, 2, 5 * 10**15), (38, 2, 5 * 10**35)])
def test_a_decimal_that_rounds_to_39_digits_is_left_to_spark(scale: int, places: int, least: int) -> None:
    schema = StructType((StructField("v", DecimalType(38, scale)),))
    bound = ColumnBinder(columns_in(schema), {}).operand(plain_expression(f"CAST(v AS DECIMAL(38, {places}))"))
    for units, fits in ((10**38 - least - 1, True), (10**38 - least, False), (least - 10**38, False)):
        values = [Decimal(units).scaleb(-scale, Context(prec=38)), Decimal(0)]
        table = pa.table({"v": pa.array(values, pa.decimal128(38, scale))})
        if fits:
            assert values_of(bound.expression, table).to_pylist() == [
                values[0].quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, Context(prec=38)),
                0,
            ]
        else:
            with pytest.raises(InvalidInput):
                values_of(bound.expression, table)


def test_functions_that_look_at_bytes_find_in_a_text_that_is_not_utf8_what_spark_finds(spark: SparkSession) -> None:
    draw = random.Random("bytes")
    pieces = [b"a", b"b", b"ab", b"\xff", b"\xc3", b"\xa9", b"\xc3\xa9", b"\xf0\x9f", b"\x00", b"\xed\xa0\x80"]
    values = pa.array([b"".join(draw.choices(pieces, k=draw.randrange(7))) for _ in range(500)] + [None])
    searched = ["a", "b", "ab", "é", "", "\ufffd"]
    texts = [f"{name}(v, '{part}')" for name in ("contains", "startswith", "endswith") for part in searched]
    texts += [f"contains(replace(v, '{part}', 'é'), '{other}')" for part in searched for other in searched]
    texts += [f"replace(v, '{part}') = v" for part in searched]
    _beside_spark(spark, values, "STRING", texts)


_NUMBERS = [
    "0",
    "1",
    "27",
    "9",
    "-",
    "-",
    "+",
    ".",
    " ",
    "\n",
    "\t",
    "e",
    "L",
    "2147483648",
    "9223372036854775807",
    "١",
]
_DAYS = ["0000", "0001", "1582", "1900", "2024", "9999", "10000", "-02", "-2", "-10", "-12", "-29", "-31", "T0", " "]


def test_a_text_that_is_cast_here_has_the_value_that_spark_gives_it(spark: SparkSession) -> None:
    draw = random.Random("casts of texts")
    texts = ["", "-", "-0", "0000-01-01", "128", "-128", "2147483647", "-2147483648", "9" * 18, "9" * 19]
    texts += ["".join(draw.choices(each, k=draw.choice([1, 2, 3]))) for each in (_NUMBERS, _DAYS) for _ in range(2_000)]
    schema = StructType((StructField("v", Primitive.STRING),))

    def is_cast_here(sql: str, text: str) -> bool:
        bound = ColumnBinder(columns_in(schema), {}).operand(plain_expression(sql))
        try:
            return len(values_of(bound.expression, pa.table({"v": [text]}))) == 1
        except InvalidInput:
            return False

    for sql in ("CAST(v AS TINYINT)", "CAST(v AS INT)", "CAST(v AS BIGINT)", "CAST(v AS DATE)", "to_date(v)"):
        here = [text for text in dict.fromkeys(texts) if is_cast_here(sql, text)]
        assert len(here) > 10, sql
        _beside_spark(spark, pa.array([*here, None]), "STRING", [sql])


def test_each_letter_that_is_not_left_to_spark_has_the_case_that_java_gives_it(spark: SparkSession) -> None:
    every = pa.array([chr(code) for code in range(1, 0x30000) if not 0xD800 <= code < 0xE000])
    kept = every.filter(pc.invert(pc.match_substring_regex(every, computations._OF_OTHER_CASE)))
    assert len(kept) > 30_000
    letters = "".join(kept.slice(0, 2_000).to_pylist())
    together = pa.array([letters[start : start + 7] for start in range(0, len(letters), 7)])
    _beside_spark(spark, pa.concat_arrays([kept, together]), "STRING", ["upper(v)", "lower(v)", "v LIKE '_'"])


def test_the_guess_whether_spark_is_needed_names_the_entries_of_the_table() -> None:
    assert KNOWN.keys() - {"starts with", LIKE_WITH_ONE} == COMPUTED, (
        "COMPUTED in contract/operations/records.py names every entry"
    )
