"""Every literal is read as Spark reads it, or not at all: texts, numbers, dates, timestamps (soundness A3).

The literals are generated at random, most of them odd, and put to Spark's own parser or its own casts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.table.predicate import constants
from airflow_txlog.engine.table.predicate.constants import OutsideGrammar
from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.engine.table.predicate.tree import constants_of
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.sql.expression import Call
from airflow_txlog.sql.sql_text import sql_text
from tests.engine.table.predicate.examples import plain
from tests.engine.table.predicate.spark_oracle import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_TEXT = StructType((StructField("s", Primitive.STRING), StructField("t", Primitive.STRING)))
_PIECES = [
    "'", "'", "''", '"', "\\", "\\'", "\\n", "\\u0041", "\\101", "\\Z", "\\_", "\\%", "a", "O", "Brien", " ", "é", "😀",
    "%", "_", "\n", "\t", "\r", "--", "/*", "*/", "`", "R", "r'", "N'", "X'", "$", "{", "}", ":p", "?", ";", "0", "E",
]  # fmt: skip


def test_a3_a_string_that_is_read_is_the_string_that_spark_reads(spark: SparkSession) -> None:
    draw = random.Random(11)
    read = 0
    for _ in range(2500):
        inner = "".join(draw.choice(_PIECES) for _ in range(draw.randrange(6)))
        quote = draw.choice("'''\"")
        prefix = draw.choice(["", "", "", "", "R", "r", "N", "date ", "-- c\n"])
        sql = f"s = {prefix}{quote}{inner}{quote}" + draw.choice(["", "", " -- it's", " /* ' */", " 'x'", "'"])
        tree = read_predicate(sql, _TEXT, lenient=True, parameters={}).tree if ":p" not in sql else None
        if not (isinstance(tree, Call) and tree.operator == "="):
            continue
        read += 1
        spark_tree = parsed(spark, sql)
        assert spark_tree is not None, sql
        assert spark_tree.getClass().getSimpleName() == "EqualTo", sql
        assert spark_tree.right().value().toString() == constants_of(tree)[0].as_py(), sql
    assert read > 250


def test_numbers_have_the_type_and_the_value_that_spark_gives_them(spark: SparkSession) -> None:
    draw = random.Random(5)
    texts = [
        "0x1F",
        "1_000",
        "1LIKE",
        "1.5.2",
        "1e400",
        "1e39F",
        "128Y",
        "-128Y",
        "99999999999999999999999999999999999999999",
    ]
    for _ in range(1500):
        whole = draw.choice(
            ["", "0", "5", "00", "127", "128", "32768", "2147483648", "9223372036854775808", "16777217"]
        )
        point = draw.choice(["", "", ".", ".5", ".10", ".000", ".123456789012345678901234567890"])
        exponent = draw.choice(["", "", "", "e5", "E-3", "e+2", "e308"])
        texts.append(
            draw.choice(["", "-", "- "]) + whole + point + exponent + draw.choice(["", "", *"LSYDFlsydf", "BD", "bd"])
        )
    read = 0
    for text in dict.fromkeys(texts):
        try:
            tokens = sql_text(text).tokens
            if [token.kind for token in tokens] == ["word"]:
                assert parsed(spark, text).getClass().getSimpleName() == "UnresolvedAttribute", text
            if [token.kind for token in tokens] not in (["number"], ["symbol", "number"]):
                continue
            constant = constants.number(tokens[-1].text, negative=len(tokens) == 2)
        except OutsideGrammar:
            continue
        spark_tree = parsed(spark, text)
        read += 1
        assert spark_tree.getClass().getSimpleName() == "Literal", text
        assert spark_tree.dataType().catalogString() == _spark_name(constant.type), text
        value = spark_tree.value()
        value = Decimal(value.toString()) if hasattr(value, "toString") else value
        # A Java float comes over with the digits that tell it from other floats.
        value = pa.scalar(value, pa.float32()).as_py() if constant.type is Primitive.FLOAT else value
        assert value == constant.value, text
    assert read > 400


def _spark_name(kind: Any) -> str:
    names = {Primitive.BYTE: "tinyint", Primitive.SHORT: "smallint", Primitive.INTEGER: "int", Primitive.LONG: "bigint"}
    return names.get(kind, str(kind)) if isinstance(kind, Primitive) else str(kind)


def _times(draw: random.Random) -> list[str]:
    """Texts that look like dates and times; in each part a few are not."""

    def part(good: list[str], odd: list[str]) -> str:
        return draw.choice(odd if draw.random() < 0.12 else good)

    texts = []
    for _ in range(1500):
        date = "-".join(
            [
                part(["2024", "2024", "1969", "9999", "2007"], ["0001", "10000", "24", "-2024", "+2024", "1582"]),
                part(["01", "3", "03", "11", "12"], ["13", "0", "010"]),
                part(["1", "03", "10", "29", "30"], ["31", "32", "0", "010"]),
            ]
        )
        date = part([date], [date[:4], date[:7], date.replace("-", "/"), date.replace("-", "")])
        time = ":".join(
            [
                part(["02", "1", "01", "23", "0"], ["24", "25", "001"]),
                part(["00", "30", "59", "5"], ["60"]),
                part(["00", "0", "59", "7"], ["60"]) + part(["", ".1", ".123456"], [".", ".1234567", ",5"]),
            ]
        )
        time = part([time], [time[:2], time[:5]])
        zone = part(["", "", "", "Z", "+01:00"], ["-0330", "+5", " UTC", "+18:00", "+19:00", " America/New_York", "z"])
        text = part([date, f"{date} {time}{zone}", f"{date}T{time}{zone}"], [f"{date}  {time}", f"{date}t{time}", time])
        texts.append(part([text], [f" {text}", f"{text}\n", f"{text} ", f"{text}x"]))
    return list(dict.fromkeys(texts))


@pytest.mark.parametrize("zone", ["UTC", "-03:30", "+05:30"])
def test_texts_become_the_dates_and_times_that_spark_makes_of_them(spark: SparkSession, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        texts = _times(random.Random(zone))
        _compare_casts(spark, texts, "DATE", constants.as_date, 110)
        _compare_casts(spark, texts, "TIMESTAMP", lambda text: constants.as_timestamp(text, zone).value, 40)
        _compare_casts(spark, texts, "TIMESTAMP_NTZ", constants.as_timestamp_ntz, 40)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_texts_become_the_numbers_that_spark_makes_of_them(spark: SparkSession) -> None:
    draw = random.Random(8)
    pieces = [
        "1",
        "0",
        "5",
        "12",
        ".",
        "e",
        "E5",
        "e-3",
        "+",
        "-",
        "D",
        "f",
        "NaN",
        "nan",
        "Infinity",
        "inf",
        " ",
        "_",
        "9" * 18,
        "0x1",
    ]
    texts = list({"".join(draw.choice(pieces) for _ in range(draw.randrange(1, 5))) for _ in range(1200)})
    _compare_casts(spark, texts, "DOUBLE", constants.as_float, 50)
    _compare_casts(spark, texts, "FLOAT", _cast(Primitive.FLOAT), 50)
    for kind, name in ((Primitive.LONG, "BIGINT"), (Primitive.BYTE, "TINYINT")):
        _compare_casts(spark, texts, name, _cast(kind), 20)


def _cast(kind: Primitive) -> Callable[[str], Any]:
    return lambda text: constants.cast(constants.Constant(Primitive.STRING, text), kind, "UTC").value


def _compare_casts(
    spark: SparkSession, texts: Sequence[str], kind: str, read: Callable[[str], Any], at_least: int
) -> None:
    """What `read` makes of a text is what TRY_CAST makes of it; a text that Spark cannot cast is not read."""
    frame = spark.createDataFrame(pa.table({"position": range(len(texts)), "text": list(texts)}))
    cast = frame.selectExpr("position", f"TRY_CAST(text AS {kind}) AS value").toArrow().sort_by("position")
    spark_says = plain(cast.column("value").combine_chunks())
    found = 0
    for text, expected in zip(texts, spark_says, strict=True):
        try:
            value = read(text)
        except OutsideGrammar:
            continue
        found += 1
        assert value == expected or (value != value and expected != expected), (kind, text, value, expected)
    assert found >= at_least
