"""Alone in showing that values which an UPDATE's tasks compute are those that Spark computes of the same texts."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.parameters import encode_parameters
from airflow_txlog.datafiles.tasks.row_values import RowValues
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from airflow_txlog.jobs.operations import update
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.sql.columns import assigned_column
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.sql.expression import Values
from tests.helpers.depth import depth
from tests.helpers.jobs import committed
from tests.helpers.rows import bag, make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DECIMAL = Decimal("0.50")
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "boo": pa.array([True, False, None] * 2),
        "byt": pa.array([1, -128, None] * 2, pa.int8()),
        "int": pa.array([1, -(2**31), None] * 2, pa.int32()),
        "other int": pa.array([2**31 - 1, 0, 5, None, 7, 8], pa.int32()),
        "lon": pa.array([1, -(2**63), None] * 2, pa.int64()),
        "dbl": [1.5, -0.0, float("nan"), float("inf"), None, 1e308],
        "dbm": [0.1, 3.0, -1e308, None, float("-inf"), 1e308],
        "str": ["", "a", "O'Brien", None, "é", "x" * 100],
        "dat": [dt.date(1, 1, 1), dt.date(2024, 2, 29), None] * 2,
        "tim": pa.array([dt.datetime(2024, 6, 1, 12, tzinfo=dt.UTC), None] * 3, pa.timestamp("us", "UTC")),
        "dec": pa.array([_DECIMAL, None] * 3, pa.decimal128(10, 2)),
        "den": pa.array([None, Decimal("-1.25")] * 3, pa.decimal128(10, 2)),
        "st": pa.array(
            [{"a": 1, "b": "x"}, None, {"a": None, "b": ""}] * 2, pa.struct({"a": pa.int32(), "b": pa.string()})
        ),
    }
)
PARAMETERS = {
    "seven": 7,
    "half": 0.5,
    "tiny": -5e-324,
    "text": "it's \\ :seven -- `x`",
    "day": dt.date(1582, 10, 4),
    "moment": dt.datetime(1899, 12, 31, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    "yes": True,
    "none": None,
}
# One column has a space in its name.
MAPPED = {"delta.columnMapping.mode": "name"}
# Plain values of each column.
TEXTS = {
    "boo": ["TRUE", "false", ":yes", "NULL", "boo", "BOO"],
    "byt": ["-128", "127", ":seven", "byt", "null", "int % 100", "abs(byt % 5)"],
    "int": [
        "length(str) + 1",
        "CASE WHEN boo THEN lon % 7 ELSE `other int` END",
        "2147483647",
        "-2147483648",
        "0",
        "`other int`",
        ":seven",
        "007",
        "Int",
    ],
    "other int": ["st.a", "CASE ST.B WHEN 'x' THEN t.st.a END", "`int`", "12 -- a comment", "/* one */ 3"],
    "lon": ["int", "coalesce(lon, id)", "`other int` * 1L", "999999999999999999", "-5", "id", ":seven", "NULL"],
    "dbl": [
        "dbl + 1",
        "dbl * dbm",
        "dbm - dbl",
        "1.1 * dbl",
        "dbl - -0.3",
        "dbl*:half",
        ":tiny + dbm",
        "(dbm)",
        "round(dbm, 1)",
        "if(int > 0, dbl, `other int`)",
        "dec * dbl",
        "-0.0",
    ],
    "dbm": ["0.1", "-123456789.123456", ":half", ":seven", "3", "dbm * 1.10", "dbl", "dbm + :tiny", "dbm * -0", "NULL"],
    "str": [
        "concat(str, '-', id)",
        "substring(str, 2, 3)",
        "id % 10",
        "nullif(str, 'a')",
        "'new'",
        "''",
        "'O Brien'",
        ":text",
        "str",
        "NULL",
    ],
    "dat": [
        "DATE '2024-02-29'",
        "date'0001-01-01'",
        ":day",
        "dat",
        "date_add(dat, 30)",
        "date_sub(:day, 1)",
        "dat + INTERVAL 1 MONTH",
    ],
    "tim": [":moment", "tim", "current_timestamp()", "now()", "tim + INTERVAL '1' DAY", ":moment - INTERVAL 2 HOURS"],
    "dec": ["den", "NULL", "1.5", "round(dec, 1)", "id", "dec + den", "CAST(dec * den AS DECIMAL(20, 2))"],
    "den": ["dec", "-dec", "coalesce(den, 0)"],
    "st": ["st", "named_struct('a', st.a + 1, 'b', st.b || 'y')", "NULL", "if(st.a IS NULL, NULL, st)"],
}


def update_spec(table_uri: str, assigned: dict[str, str]) -> Any:
    named = {name: PARAMETERS[name] for name in PARAMETERS if f":{name}" in " ".join(assigned.values())}
    return job_spec(
        operation="update",
        table_uri=table_uri,
        arguments={"predicate": "id >= 1", "set": assigned, "parameters": encode_parameters(named)},
    )


@pytest.mark.spark
@pytest.mark.seeded
def test_tasks_compute_what_spark_computes(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(7)
    longest = max(map(len, TEXTS.values()))
    for number in range(depth(5, longest, 6 * longest)):
        # `make test-long` has each text at least once.
        assigned = {
            name: texts[(number + draw.randrange(number // longest + 1)) % len(texts)] for name, texts in TEXTS.items()
        }
        assigned = {name: text for name, text in assigned.items() if "current" not in text and "now" not in text}
        found = []
        for way in ("tasks", "Spark"):
            table = make_table(tmp_path / f"{way}-{number}", ROWS, properties=MAPPED)
            with monkeypatch.context() as patched:
                if way == "Spark":
                    patched.setattr(update, "plain_values", lambda *_, **__: "what this test puts to Spark")
                spec = update_spec(table.uri, assigned)
                committed(run_job(spec, None) if way == "tasks" else run_job(spec, spark))
            found.append(table.to_arrow())
        assert bag(found[0]) == bag(found[1]), assigned


@pytest.mark.spark
@pytest.mark.parametrize("is_given", [False, True])
def test_a_value_that_only_spark_computes_is_left_to_it(tmp_path: Path, spark: SparkSession, is_given: bool) -> None:
    lines: list[str] = []
    table = make_table(tmp_path / "t", ROWS, properties=MAPPED)
    spec = update_spec(table.uri, {"str": "upper(concat(str, 'ß'))"})
    run = {} if is_given else {"start": lambda: spark}
    committed(run_job(spec, spark if is_given else None, log=lines.append, **run))
    assert sorted(row["str"] or "" for row in table.to_arrow().to_pylist()) == [
        "",
        "",
        "ASS",
        "O'BRIENSS",
        "X" * 100 + "SS",
        "ÉSS",
    ]
    assert [line for line in lines if "letters of which Java" in line], lines


@pytest.mark.spark
@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize(
    ("text", "error"),
    [("lon - 1", "ARITHMETIC_OVERFLOW"), ("id / (id - 2)", "DIVIDE_BY_ZERO"), ("int", "cannot be cast to TINYINT")],
)
def test_an_error_of_a_value_is_sparks_own(
    tmp_path: Path, spark: SparkSession, text: str, error: str, is_given: bool
) -> None:
    table = make_table(tmp_path / "t", ROWS, properties=MAPPED)
    before = table.snapshot().version
    column = {"int": "byt", "lon - 1": "lon"}.get(text, "dbl")
    run = {} if is_given else {"start": lambda: spark}
    failed = run_job(update_spec(table.uri, {column: text}), spark if is_given else None, **run).error
    assert failed is not None
    assert error in failed["message"]
    assert table.snapshot().version == before
    assert sorted(path.name for path in (tmp_path / "t").glob("*.parquet")) == [
        path.name for path in (tmp_path / "t").glob("*.parquet") if path.name in str(table.snapshot().files())
    ]


@pytest.mark.parametrize("text", ["current_timestamp()", "NOW()", "current_timestamp"])
def test_the_current_time_in_utc_needs_no_spark(tmp_path: Path, text: str) -> None:
    table = make_table(tmp_path / "t", ROWS, properties=MAPPED)
    before = dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=1)
    committed(run_job(update_spec(table.uri, {"tim": text}), None))
    times = {row["tim"] for row in table.to_arrow().to_pylist() if row["id"] >= 1}
    assert len(times) == 1
    assert before <= times.pop() <= dt.datetime.now(dt.UTC)


SCHEMA = StructType(
    (
        StructField("byt", Primitive.BYTE),
        StructField("int", Primitive.INTEGER),
        StructField("lon", Primitive.LONG),
        StructField("flo", Primitive.FLOAT),
        StructField("dbl", Primitive.DOUBLE),
        StructField("str", Primitive.STRING),
        StructField("dat", Primitive.DATE),
        StructField("tim", Primitive.TIMESTAMP),
        StructField("ntz", Primitive.TIMESTAMP_NTZ),
        StructField("dec", DecimalType(10, 2)),
        StructField("cha", Primitive.STRING, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}),
        StructField("col", Primitive.STRING, metadata={"__COLLATIONS": {"col": "ICU.UNICODE"}}),
        StructField("default", Primitive.STRING),
        StructField("current_date", Primitive.DATE),
    )
)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("byt", "128"),
        ("byt", "dec"),
        ("dec", "1.505"),
        ("dec", "dec * 1.1"),
        ("int", "dbl"),
        ("str", "dat"),
        ("int", "2147483648"),
        ("int", "'5'"),
        ("int", "1.0"),
        ("int", ":missing"),
        ("lon", "9223372036854775808"),
        ("flo", "0.1"),
        ("flo", "flo + 1"),
        ("dbl", "1234567890.1234567"),
        ("dbl", "dbl +"),
        ("dbl", ":yes"),
        ("str", "'a' 'b'"),
        ("str", '"a"'),
        ("str", ""),
        ("str", "cha"),
        ("str", "'x' -- \\"),
        ("dat", "'2024-01-01'"),
        ("dat", "DATE 'today'"),
        ("dat", "DATE '2024-2-1'"),
        ("dat", "current_date"),
        ("tim", "ntz"),
        ("tim", "TIMESTAMP '2024-01-01'"),
        ("ntz", ":moment"),
        ("cha", "'a'"),
        ("col", "'a'"),
        ("default", "default"),
        ("missing", "1"),
        ("t.str.str", "'a'"),
    ],
)
def test_a_text_that_may_mean_more_is_put_to_spark(column: str, text: str) -> None:
    found = plain_values({column: text}, SCHEMA, PARAMETERS, alias="t", is_ansi=True)
    assert isinstance(found, str), found


def test_a_number_in_a_narrower_column_is_put_to_spark_without_ansi_mode() -> None:
    assert isinstance(plain_values({"byt": "1"}, SCHEMA, {}, alias="t", is_ansi=True), RowValues)
    assert isinstance(plain_values({"byt": "1"}, SCHEMA, {}, alias="t", is_ansi=False), str)
    assert isinstance(plain_values({"int": "1"}, SCHEMA, {}, alias="t", is_ansi=False), RowValues)


def test_a_column_is_assigned_by_its_name_behind_the_alias_and_once() -> None:
    found = plain_values({"T.`int`": "1"}, SCHEMA, {}, alias="t", is_ansi=True)
    assert isinstance(found, RowValues)
    assert list(found.values) == ["int"]
    assert isinstance(plain_values({"int": "1", "INT": "2"}, SCHEMA, {}, alias="t", is_ansi=True), str)


@pytest.mark.parametrize(
    ("name", "column"),
    [("x", "x"), ("`X`", "x"), ("T.`x`", "x"), ("x`", "x`"), ("`x```", "x`"), ("t.`x```", "x`"), ("`t.x`", "t.x")],
)
def test_a_name_in_quotes_is_that_of_its_column(name: str, column: str) -> None:
    columns = {each: each for each in ("x", "x`", "t.x")}
    assert assigned_column(name, columns, "t") == column


def test_large_constants_are_written_in_small_batches() -> None:
    values = RowValues(values={"s": Values(pa.array(["x" * 300]))}, most_bytes=1000)
    rows = pa.RecordBatch.from_pydict({"s": ["a"] * 10, "k": list(range(10))})
    batches = list(values.assigned(rows))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]
    assert pa.Table.from_batches(batches)["k"].to_pylist() == list(range(10))
