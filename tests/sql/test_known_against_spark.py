"""Every operator and function of the table against Spark: texts are made from its entries, for each type and each mode.

A text that is certain must not be refused by Spark, nor fail on a row, and its values must be Spark's, nulls and NaN
included. An entry that is added to the table is tested here without another line, if its text is a call or stands
between two operands.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.table.predicate import rows_matching, why_not_plain
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.sql.evaluation import KNOWN, values_of
from airflow_txlog.sql.sql_text import sql_text
from tests.engine.table.predicate.examples import COLUMNS, ROWS, SCHEMA
from tests.engine.table.predicate.spark_oracle import VIEW, make_view
from tests.helpers.depth import depth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seeded]

# How an operator is written that neither stands between two operands nor is called.
_FORMS = {"in": "{} IN ({}, {})", "between": "{} BETWEEN {} AND {}", "is null": "{} IS NULL"}
_PATTERNS = [
    "a%",
    "%",
    "%%",
    "",
    "ab",
    "%b",
    "%b%",
    "a%b",
    "%a%b%",
    "a%%b",
    "%é%",
    "%😀",
    "%.%",
    "a%\n%",
    "%1%5%",
    "% ",
    "\t%",
]
_OF_TYPE = {str(kind): name for name, (kind, _) in COLUMNS.items()}
_AT_ONCE = 200
_MOMENTS = {
    f"at{number}": dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    for number, value in enumerate(COLUMNS["tim"][1])
}


def _is_condition(operator: str, kind: str) -> bool:
    """Whether the texts of an entry are conditions; a value is assigned to a column of the operands' own type."""
    return KNOWN[operator].result == "boolean" or KNOWN[operator].result != kind


def _constant(kind: str, draw: random.Random) -> str:
    """A constant of a type as a plain text has it."""
    values = COLUMNS[_OF_TYPE[kind]][1]
    value = draw.choice(values)
    match kind:
        case "string":
            plain = [text for text in values if not set(text) & set("'\\")]
            return f"'{draw.choice(plain)}'"
        case "date":
            day = (dt.datetime(1970, 1, 1) + dt.timedelta(days=value)).date().isoformat()
            return draw.choice([f"DATE '{day}'", f"'{day}'", f"CAST('{day}' AS DATE)", f"'{day}'"])
        case "double":
            return draw.choice(["0.1", "-0.0", "3", "- 7", "123456789.25", "1.5", "0", "100000000000000"])
        case "binary" | "float" | "timestamp_ntz":
            return "NULL"  # Nothing is compared with these.
        case "boolean":
            return draw.choice(["true", "FALSE"])
        case "timestamp":
            return f":{draw.choice(list(_MOMENTS))}"
    if abs(value) >= 10**18:
        return "0"
    # The least number of a type is not certain as a text.
    return draw.choice([str(value), f"({value})", str(value) if value == min(values) else f"'{value}'"])


def _texts(operator: str, kind: str, draw: random.Random) -> Iterator[str]:
    """Texts of one operator with a column of one type, and the same within a function of the table."""
    column = _OF_TYPE[kind]
    calls = [name for name, known in KNOWN.items() if name.endswith("()") and known.types == {kind} == {known.result}]
    while True:
        operand = draw.choice([column, column.upper(), f"`{column}`", f"({column})"])
        if calls and draw.random() < 0.5:
            operand = draw.choice(calls).replace("()", f"({operand})")
        others = [_constant(kind, draw) for _ in range(2)]
        if KNOWN[operator].result == kind == "double" and draw.random() < 0.5:
            operand = f"({operand} {draw.choice('+-*')} {_constant(kind, draw)})"
        # The engine does not decide a list of texts and others.
        if others[0].startswith("'") != others[1].startswith("'"):
            others = [others[0]] * 2
        if operator.endswith("()"):
            call, result = operator.replace("()", f"({operand})"), KNOWN[operator].result
            compared = draw.choice(["=", "<", ">=", "<=>"])
            yield call if result == kind else f"{call} {compared} {_constant(result, draw)}"
        elif operator == "like":
            yield f"{operand} {draw.choice(['', 'NOT '])}LIKE '{draw.choice(_PATTERNS)}'"
        elif operator in _FORMS:
            yield _FORMS[operator].format(operand, *others)
        else:
            sides = [operand, others[0]]
            draw.shuffle(sides)
            yield f"{sides[0]} {operator} {sides[1]}"


def _joined(conditions: Iterator[str], draw: random.Random) -> Iterator[str]:
    for first in conditions:
        text = first
        for _ in range(draw.choice([0, 0, 1, 2])):
            text = f"{text} {draw.choice(['AND', 'OR'])} {draw.choice(['', 'NOT '])}({next(conditions)})"
        yield draw.choice(["", "NOT ", "! "]) + text


def _plain(array: pa.Array) -> list[Any]:
    """Values that compare: NaN as a text, and zeros with their sign."""
    return [repr(value) if isinstance(value, float) else value for value in array.to_pylist()]


def _moment(found: re.Match[str]) -> str:
    """The text of a parameter for Spark."""
    return f"TIMESTAMP '{_MOMENTS[found[1]].isoformat()}'"


def _spark_values(spark: SparkSession, texts: list[str]) -> list[list[Any]]:
    given = [re.sub(":(at[0-9]+)", _moment, text) for text in texts]
    columns = ", ".join(f"(\n{text}\n) AS c{number}" for number, text in enumerate(given))
    table = spark.sql(f"SELECT position, {columns} FROM {VIEW}").toArrow().sort_by("position")
    return [_plain(table.column(f"c{number}").combine_chunks()) for number in range(len(texts))]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_every_entry_computes_what_spark_computes(spark: SparkSession, ansi: str) -> None:
    # Texts share a statement here: Spark would compute `(x * 3) * y` once with `(x * y) * 3`, which rounds differently.
    settings = {"spark.sql.ansi.enabled": ansi, "spark.sql.subexpressionElimination.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    make_view(spark)
    draw = random.Random(f"known {ansi}")
    pairs = [(operator, kind) for operator, known in KNOWN.items() for kind in sorted(known.types)]
    count = 0
    try:
        for operator, kind in pairs:
            texts = _texts(operator, kind, draw)
            if _is_condition(operator, kind):
                texts = _joined(texts, draw)
            asked = [next(texts) for _ in range(depth(6, 60, 220))]
            for start in range(0, len(asked), _AT_ONCE):
                part = asked[start : start + _AT_ONCE]
                for text, found in zip(part, _spark_values(spark, part), strict=True):
                    assert _ours(text, operator, kind) == _selected(found, operator, kind), (text, ansi)
                    count += 1
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    print(f"{count} texts of {len(pairs)} entries and types on {ROWS.num_rows} rows, ANSI {ansi}")
    assert count >= len(pairs)


def _ours(text: str, operator: str, kind: str) -> list[Any]:
    if _is_condition(operator, kind):
        used = {name: _MOMENTS[name] for name in sql_text(text).parameters}
        assert why_not_plain(text, SCHEMA, used) is None, text
        return _plain(rows_matching(read_predicate(text, SCHEMA, parameters=used), ROWS))
    column = _OF_TYPE[kind]
    found = plain_values({column: text}, SCHEMA, {}, alias="t", is_ansi=True)
    assert not isinstance(found, str), (text, found)
    return _plain(values_of(found.values[column], ROWS))


def _selected(found: list[Any], operator: str, kind: str) -> list[Any]:
    """Spark's answer, for a condition whether it selects the row."""
    return [value is True for value in found] if _is_condition(operator, kind) else found
