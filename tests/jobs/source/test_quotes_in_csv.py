"""Checks of the quotes in CSV that Spark parses, on a disk and in a store, and the cost of the checks."""

from __future__ import annotations

import csv
import io
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.text_lines import CsvFormat, Uncertain, UnfitRow, rows_of_csv
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.frames import build_source
from airflow_txlog.jobs.source.strict_values import strict_columns
from airflow_txlog.jobs.spark.session import session_settings
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.storage import PLAIN
from tests.helpers.depth import depth, in_long
from tests.helpers.jobs import begin_job, committed, error_of
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOWNS = "id INT, note STRING, town STRING"


@pytest.mark.parametrize("is_in_store", [False, pytest.param(True, marks=pytest.mark.long("each reads by Spark"))])
@pytest.mark.parametrize(
    ("text", "schema", "options", "sql"),
    [
        ('2,"6"",",7\n', "id INT, b BINARY, c BINARY", {}, None),
        ('2,"Nails 6"",",Oslo\n', TOWNS, {}, "SELECT id FROM v WHERE town = 'Oslo'"),
        ('2,"\0nails 6""x\0"\n', "id INT, note STRING", {}, None),
        ('2||"6""|"\n', "id INT, note STRING", {"sep": "||"}, None),
        *in_long(
            "each reads by Spark",
            ('2,"6"" nails"\n', "id INT, b VARIANT", {}, "SELECT id FROM v"),
            ('2\\"6""\\"\\x\n', TOWNS, {"sep": "\\\\"}, None),
            ("2,a,Oslo,7\n", TOWNS, {}, "SELECT id FROM v WHERE id > 5"),
            ('2,"6"" a,,",7\n', "id INT, a STRING, b INT, c STRING", {}, "SELECT id FROM v WHERE b = 7"),
        ),
    ],
    ids=["binary", "filter", "NUL", "long", "variant", "escaped separator", "count and filter", "filter of a null"],
)
def test_values_are_checked_whatever_their_types_separator_and_filter(
    tmp_path: Path,
    spark: SparkSession,
    shelf: str,
    *,
    is_in_store: bool,
    text: str,
    schema: str,
    options: dict[str, str],
    sql: str | None,
) -> None:
    place = f"{shelf if is_in_store else ''}{tmp_path}"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(text)
    view: dict[str, Any] = {"format": "csv", "path": f"{place}/in", "schema": schema, "options": options}
    source = view if sql is None else {"sql": sql, "views": {"v": view}}
    spec = job_spec(operation="write", table_uri=f"{place}/t", arguments={"source": source})
    error = error_of(run_job(spec, spark))
    assert error["type"] == "InvalidInput"
    texts = ("does not fit", "doubled quote", "a quote that Spark may have misread")
    assert any(text in error["message"] for text in texts)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"singleVariantColumn": "v"}, "escape"),
        ({"nullValue": '6"'}, "escape"),
        ({"encoding": "UTF-16LE"}, "multiLine"),
        ({"encoding": "UTF-32"}, "multiLine"),
        ({"charset": "utf-16", "lineSep": "\n"}, "multiLine"),
        ({"header": "true", "sep": ""}, "sep"),
    ],
    ids=str,
)
def test_options_with_which_nothing_shows_what_is_wrong_are_refused(
    tmp_path: Path, spark: SparkSession, options: dict[str, str], why: str
) -> None:
    (tmp_path / "a.csv").write_text("x\n", encoding="utf-16-le")
    source = {"format": "csv", "path": f"{tmp_path}/a.csv", "options": options}
    error = error_of(
        run_job(job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source}), spark)
    )
    assert error["type"] == "InvalidJobSpec"
    assert f'"{why}"' in error["message"]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("note STRING, town STRING", {}),
        *in_long(
            "more columns",
            ("note STRING, town STRING", {"escape": '"', "multiLine": "true"}),
            ("note BINARY, town BINARY", {"escape": "\\"}),
            (None, {"singleVariantColumn": "town", "escape": '"'}),
            (None, {"header": "true"}),
        ),
    ],
    ids=["plain", "lines", "binary", "one variant", "header"],
)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a,Bod\xf8\n".encode("latin-1"), id="bytes"),
        pytest.param("a,Bod\ufffd\n".encode(), id="text", marks=pytest.mark.long("each reads by Spark")),
    ],
)
def test_bytes_that_spark_would_replace_are_an_error(
    tmp_path: Path, spark: SparkSession, text: bytes, schema: str | None, options: dict[str, str]
) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,Oslo\n" * 3 + text)
    source = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": schema, "options": options}
    sources = [source] if schema is None else [source, {"sql": "SELECT note FROM v", "views": {"v": source}}]
    for each in sources:
        spec = job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": each})
        error = error_of(run_job(spec, spark))
        assert error["type"] == "InvalidInput"
        # Without a schema the name may be a value of the file.
        place = "" if schema is None else " in column 'town'"
        assert f"a.csv has a text that is not UTF-8{place}: " in error["message"]
        assert '"encoding"' in error["message"]
        assert "Bod" not in error["message"]


@pytest.mark.parametrize(
    ("encoding", "found"), [({"encoding": "iso-8859-1"}, "Bod\xf8"), ({"charset": "UTF-8"}, "Bod\ufffd")], ids=str
)
def test_with_an_encoding_bytes_are_those_that_it_gives(
    tmp_path: Path, spark: SparkSession, encoding: dict[str, str], found: str
) -> None:
    (tmp_path / "b.csv").write_bytes(b"a,Bod\xf8\n")
    view = {"format": "csv", "schema": "note STRING, town STRING", "options": encoding}
    assert rows_of(str(tmp_path), view, spark) == [["a", found]]


def test_replaced_bytes_in_a_header_are_an_error(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,by\xf8\n1,x\n")
    source = {"format": "csv", "path": f"{tmp_path}/a.csv", "options": {"header": "true"}}
    spec = job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source})
    assert "a text that is not UTF-8" in error_of(run_job(spec, spark))["message"]


def test_a_store_refuses_such_bytes_and_reads_the_character(tmp_path: Path, spark: SparkSession, shelf: str) -> None:
    view = {"format": "csv", "schema": "note STRING, town STRING"}
    (tmp_path / "b.csv").write_bytes("a,Bod\ufffd\n".encode())
    assert rows_of(f"{shelf}{tmp_path}", view, spark) == [["a", "Bod\ufffd"]]
    (tmp_path / "b.csv").write_bytes(b"a,Bod\xf8\n")
    source = view | {"path": f"{shelf}{tmp_path}/b.csv"}
    spec = job_spec(operation="write", table_uri=f"{shelf}{tmp_path}/t", arguments={"source": source})
    assert "cannot be read as CSV in UTF-8" in error_of(run_job(spec, spark))["message"]


def test_one_column_of_a_file_in_a_store_is_written(tmp_path: Path, spark: SparkSession, shelf: str) -> None:
    (tmp_path / "a.csv").write_text("1,x,y\n")
    view = {"format": "csv", "path": f"{shelf}{tmp_path}/a.csv", "schema": TOWNS}
    source = {"sql": "SELECT id FROM v", "views": {"v": view}}
    spec = job_spec(operation="write", table_uri=f"{shelf}{tmp_path}/t", arguments={"source": source})
    committed(run_job(spec, spark))
    assert Table.open(str(tmp_path / "t")).to_arrow().to_pylist() == [{"id": 1}]


def checked_rows(frame: DataFrame) -> DataFrame:
    """The rows with whether they are refused for a quote in another column than `bad`."""
    strict = strict_columns(FileView(format="csv", path="/in", schema="a STRING"), None, has_bytes=True).without(
        {"bad"}
    )
    return frame.withColumn("refused", strict._has_doubled_quote(frame, '"'))


def test_many_quotes_in_a_long_row_are_read_once(spark: SparkSession) -> None:
    cells = ['x""' * 40_000 + "x", '"' + 'a"b' * 40_000 + "x", "x" * 100_000 + '"' + "," * 100_000]
    frame = checked_rows(spark.createDataFrame([(cell, "y") for cell in cells], "a STRING, b STRING"))
    started = time.monotonic()
    assert [row["refused"] for row in frame.select("refused").collect()] == [False] * 3
    # One second. It was two minutes.
    assert time.monotonic() - started < 20


@pytest.mark.long("Spark plans wide files twice")
def test_the_plan_of_many_columns_of_csv_grows_with_their_number(tmp_path: Path, spark: SparkSession) -> None:
    def characters(count: int) -> int:
        path = tmp_path / f"{count}.csv"
        path.write_text(",".join("x" * count) + "\n")
        schema = ", ".join(f"c{number:03} {'DATE' if number % 5 else 'STRING'}" for number in range(count))
        source = {"format": "csv", "path": str(path), "schema": schema}
        spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
        context = begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print)
        frame: Any = build_source(context, SqlGate(context), None).frame
        with session_settings(spark, {"spark.sql.debug.maxToStringFields": "100000"}):
            return len(frame._jdf.queryExecution().optimizedPlan().toString())

    assert characters(300) / 300 < 1.2 * characters(50) / 50


def test_a_text_that_is_cut_at_a_line_end_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "a.csv").write_text('"""\n x"\n')
    view = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": "a STRING"}
    source = view | {"options": {"multiLine": "true"}}
    error = error_of(
        run_job(job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source}), spark)
    )
    assert "a quote that Spark may have misread" in error["message"]


@pytest.mark.parametrize(
    ("line", "options"),
    [('2,5"\n', {"multiLine": "true"}), *in_long("each reads by Spark", ('2||a 5" b\n', {"sep": "||"}))],
    ids=["lines", "long"],
)
def test_a_quote_that_means_nothing_is_read_with_the_option_that_its_error_names(
    tmp_path: Path, spark: SparkSession, line: str, options: dict[str, str]
) -> None:
    (tmp_path / "a.csv").write_text(line)

    def load(**more: str) -> Any:
        source = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": "id INT, note STRING"}
        source |= {"options": options | more}
        return run_job(job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source}), spark)

    message = error_of(load())["message"]
    assert "has a quote that Spark may have misread" in message
    assert 'set "quote": "".' in message
    committed(load(quote=""))
    assert Table.open(f"{tmp_path}/t").to_arrow().column("note").to_pylist() == [line[1:].strip(",|\n")]


def rows_of(place: str, view: dict[str, Any], spark: SparkSession) -> list[list[str | None]]:
    spec = job_spec(operation="write", table_uri=f"{place}/t", arguments={"source": view | {"path": f"{place}/b.csv"}})
    context = begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print)
    frame = build_source(context, SqlGate(context), None).frame
    return [[None if value is None else str(value) for value in row] for row in frame.collect()]


def row_here(line: str, kinds: list[str], options: dict[str, str]) -> list[str | None] | None:
    columns = pa.schema([(f"c{n}", pa.string() if kind == "STRING" else pa.int32()) for n, kind in enumerate(kinds)])
    try:
        [row] = rows_of_csv(pa.array([line]), columns, CsvFormat(is_strict=True, **options)).to_pylist()
    except (Uncertain, UnfitRow):
        return None
    return [None if value is None else str(value) for value in row.values()]


@pytest.mark.seeded
@pytest.mark.parametrize("options", [{}, {"escape": '"'}], ids=str)
@pytest.mark.parametrize(
    "schema",
    ["a STRING, b INT, c STRING", *in_long("more schemas", "a STRING, b STRING, c STRING", "a STRING, b INT")],
)
def test_rows_that_pass_are_those_of_rfc_4180(
    tmp_path: Path, spark: SparkSession, shelf: str, schema: str, options: dict[str, str]
) -> None:
    rng, kinds = random.Random(schema), [each.split()[1] for each in schema.split(", ")]
    lines, rows = [], list[list[str | None]]()
    for _ in range(depth(300, 5_000, 50_000)):
        text, quoting = io.StringIO(), rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        row = ["".join(rng.choices('",a 7\0', k=rng.randrange(7))) if each == "STRING" else "7" for each in kinds]
        csv.writer(text, quoting=quoting, lineterminator="").writerow(row)  # type: ignore[arg-type]
        lines.append(text.getvalue())
        rows += ([value or None for value in each] for each in csv.reader(lines[-1:], strict=True))
    (tmp_path / "a.csv").write_text("\n".join(lines))
    here = [row_here(line, kinds, options) for line in lines]
    assert all(each in (row, None) for each, row in zip(here, rows, strict=True))
    passed = [True] * len(lines)
    if not options:
        reader = spark.read.options(columnPruning="false", mode="PERMISSIVE", columnNameOfCorruptRecord="bad")
        frame = reader.schema(f"{schema}, bad STRING").csv(f"{tmp_path}/a.csv").cache()
        passed = [not row["refused"] and row["bad"] is None for row in checked_rows(frame).collect()]
        frame.unpersist()
    assert all(each or '"' in line for each, line in zip(passed, lines, strict=True))
    (tmp_path / "b.csv").write_text("\n".join(line for each, line in zip(passed, lines, strict=True) if each))
    expected = [row for each, row in zip(passed, rows, strict=True) if each]
    for place in (str(tmp_path), f"{shelf}{tmp_path}"):
        assert rows_of(place, {"format": "csv", "schema": schema, "options": options}, spark) == expected
    assert len(expected) > depth(18, 300, 3_000)
    assert len([row for row in here if row is not None]) > depth(18, 300, 3_000)
