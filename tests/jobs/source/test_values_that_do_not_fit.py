"""A value that does not fit its column is an error that names its place, with Spark and without it, and no other value.

Spark's readers would load NULL or another number. With the options for that, they still do.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.datafiles.failures import Misfit, row_does_not_fit
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.frames import build_source
from airflow_txlog.jobs.spark.session import session_settings
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.storage import PLAIN
from tests.helpers.depth import in_long
from tests.helpers.jobs import begin_job, committed, error_of
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEADER = "id,day,amount,big,ok\n"
SCHEMA = "id INT, day DATE, amount DECIMAL(12, 2), big DECIMAL(38, 10), ok BOOLEAN"
GOOD = "1,2026-11-27,12.50,1.5,true\n"
EXECUTORS = [None, pytest.param("spark", marks=pytest.mark.spark)]

# A line, the column that is wrong, and whether only Spark's executor is certain of it.
BAD: dict[str, tuple[str, str | None]] = {
    "a word for a number": ("n/a,2026-11-27,12.50,1.5,true\n", "id"),
    "a number beyond its type": ("2147483648,2026-11-27,12.50,1.5,true\n", "id"),
    "a fraction for a whole number": ("1.5,2026-11-27,12.50,1.5,true\n", "id"),
    "a word for a decimal": ("1,2026-11-27,n/a,1.5,true\n", "amount"),
    "a comma in a decimal": ('1,2026-11-27,"12,50",1.5,true\n', "amount"),
    "thousands": ('1,2026-11-27,"1,250.00",1.5,true\n', "amount"),
    "more decimals than the scale": ("1,2026-11-27,12.505,1.5,true\n", "amount"),
    "more digits than the precision": ("1,2026-11-27,12345678901.5,1.5,true\n", "amount"),
    "an exponent": ("1,2026-11-27,1e2,1.5,true\n", "amount"),
    "more decimals than a long scale": ("1,2026-11-27,12.50,1.12345678901,true\n", "big"),
    "a day of another land": ("1,27.11.2026,12.50,1.5,true\n", "day"),
    "a day that is not": ("1,2026-02-30,12.50,1.5,true\n", "day"),
    "a time of day": ("1,2026-11-27 23:59:59,12.50,1.5,true\n", "day"),
    "a year alone": ("1,2026,12.50,1.5,true\n", "day"),
    "a word for a truth": ("1,2026-11-27,12.50,1.5,yes\n", "ok"),
    "a value less": ("1,2026-11-27,12.50,1.5\n", None),
    "a value more": ("1,2026-11-27,12.50,1.5,true,x\n", None),
}
# One for each type, and the numbers of values, with Spark too; `make test-long` has all with Spark.
WITH_SPARK = [
    "a number beyond its type",
    "a comma in a decimal",
    "more decimals than the scale",
    "more decimals than a long scale",
    "a day that is not",
    "a time of day",
    "a word for a truth",
    "a value less",
    "a value more",
]


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession | None:
    found: Any = None if request.param is None else request.getfixturevalue(request.param)
    return found


def load(tmp_path: Path, session: SparkSession | None, text: str, **options: str) -> JobResult:
    path = tmp_path / "a.csv"
    path.write_text(text)
    source = {"format": "csv", "path": str(path), "schema": SCHEMA, "options": {"header": "true", **options}}
    return run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), session)


@pytest.mark.parametrize(
    ("name", "session"),
    [
        *((name, None) for name in BAD),
        *(pytest.param(name, "spark", marks=pytest.mark.spark) for name in WITH_SPARK),
        *in_long("each reads by Spark", *((name, "spark") for name in BAD if name not in WITH_SPARK)),
    ],
    indirect=["session"],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_its_place(
    tmp_path: Path, session: SparkSession | None, name: str
) -> None:
    line, column = BAD[name]
    error = error_of(load(tmp_path, session, HEADER + "\n" + GOOD * 3 + line + GOOD))
    assert error["type"] == "InvalidInput"
    assert not error["facts"].get("needs_spark")
    assert error["facts"]["file"].endswith("/a.csv")
    assert f"{tmp_path}/a.csv has" in error["message"]
    if session is None:
        assert (error["facts"]["line"], error["facts"]["column"]) == (6, column)
        assert "a.csv has in line 6 a" in error["message"]
    elif column in ("day", "amount", "big"):
        assert error["facts"]["column"] == column
    assert not [text for text in ("n/a", "12,50", "12.505", "2026-02-30", "23:59", "yes") if text in str(error)]
    assert not list(tmp_path.glob("t/**/*.parquet"))


SEMICOLON = 'If ";" separates its values, set the option "sep": ";".'


@pytest.mark.parametrize(
    ("text", "header", "cause", "advice"),
    [
        (
            HEADER + GOOD,
            "false",
            "line 1 a value of column 'id'",
            'If the first line is a header, set the option "header"',
        ),
        (GOOD.replace(",", ";") * 2, "false", "line 1 a row that does not fit", SEMICOLON),
        ((HEADER + GOOD).replace(",", ";"), "true", "with another separator than the source's", SEMICOLON),
        (HEADER + GOOD + GOOD.replace(",", "\t"), "true", "line 3 a row that does not fit", '"sep": "\\t".'),
        (HEADER + GOOD + "1;a;b;c; see notes\n", "true", "line 3 a row that does not fit", "Correct the file. In CSV"),
    ],
)
def test_a_forgotten_header_and_another_separator_are_named_with_their_options(
    tmp_path: Path, text: str, header: str, cause: str, advice: str
) -> None:
    message = error_of(load(tmp_path, None, text, header=header))["message"]
    assert cause in message
    assert advice in message
    assert "PERMISSIVE" not in message


TRIMMED = {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}


@pytest.mark.parametrize("line", ["1,2026-11-27, 12.50,1.5,true\n", "1 ,2026-11-27,12.50,1.5,true\n"])
def test_spaces_around_a_value_are_named_with_their_options(tmp_path: Path, line: str) -> None:
    message = error_of(load(tmp_path, None, HEADER + GOOD + line))["message"]
    assert ", and has spaces around it. Nothing was committed" in message
    assert all(f'"{name}": "true"' in message for name in TRIMMED)
    assert "spaces around" not in error_of(load(tmp_path, None, HEADER + GOOD.replace("true", "yes")))["message"]


@pytest.mark.spark
def test_spaces_around_values_are_read_with_these_options(tmp_path: Path, spark: SparkSession) -> None:
    committed(load(tmp_path, spark, HEADER + "1 ,2026-11-27, 12.50 , 1.5, true\n", **TRIMMED))
    [row] = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
    assert (row["id"], str(row["amount"]), row["ok"]) == (1, "12.50", True)


@pytest.mark.parametrize(
    ("text", "header"), [("id\n1;secret\n", "true"), ("id;name\n1;secret\n", "true"), ("1;2\n", "false")]
)
def test_another_separator_is_named_where_the_schema_has_one_column(tmp_path: Path, text: str, header: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    source = {"format": "csv", "path": str(tmp_path / "a.csv"), "schema": "id INT", "options": {"header": header}}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
    message = error_of(run_job(spec, None))["message"]
    assert SEMICOLON in message
    assert "STRING" not in message, "a text would be the whole line"


@pytest.mark.parametrize(
    ("text", "schema", "separator"),
    [
        ('2,"x,y"\n', "id INT, a STRING, b STRING", ","),
        ('"1,5"\n', "price DECIMAL(9, 2)", ","),
        ('2;"x;y"\n', "id INT, a STRING, b STRING", ";"),
    ],
)
def test_the_separator_of_the_source_is_not_advised(tmp_path: Path, text: str, schema: str, separator: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    source = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": schema, "options": {"sep": separator}}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
    message = error_of(run_job(spec, None))["message"]
    assert "separates its values" not in message
    assert "Correct the file, or" in message


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_values_that_keep_their_meaning_are_read(tmp_path: Path, session: SparkSession | None) -> None:
    text = HEADER + "-7,2026-11-27,-0012.5,12345678901234567890.1234567891,false\n,,,,\n0,0999-12-31,0,0,true\n"
    text = text.replace("0,0999-12-31,0,0,true\n", "") + "0,1999-12-31,0,0,true\n"
    committed(load(tmp_path, session, text))
    found = Table.open(str(tmp_path / "t")).to_arrow().sort_by("id").to_pylist()
    assert [str(row["amount"]) for row in found] == ["-12.50", "0.00", "None"]
    assert [str(row["big"]) for row in found] == ["12345678901234567890.1234567891", "0E-10", "None"]
    assert [str(row["day"]) for row in found] == ["2026-11-27", "1999-12-31", "None"]


@pytest.mark.spark
def test_spellings_that_only_spark_reads_keep_their_values(tmp_path: Path, spark: SparkSession) -> None:
    text = HEADER + "+1,2026-1-7,+12.500,.5,TRUE\n2,2026-11-27T00:00:00,00000000000000012.,5.,False\n"
    committed(load(tmp_path, spark, text))
    found = Table.open(str(tmp_path / "t")).to_arrow().sort_by("id").to_pylist()
    assert [str(row["amount"]) for row in found] == ["12.50", "12.00"]
    assert [str(row["day"]) for row in found] == ["2026-01-07", "2026-11-27"]


@pytest.mark.spark
def test_an_option_for_it_keeps_the_meaning_that_spark_gives(tmp_path: Path, spark: SparkSession) -> None:
    bad = "n/a,2026-11-27T10:00:00,12.505,1.5,true\n"
    for options, expected in (
        ({"mode": "PERMISSIVE"}, ["12.50", "12.51"]),
        ({"mode": "DROPMALFORMED"}, ["12.50"]),
        ({"columnNameOfCorruptRecord": "bad"}, ["12.50", "12.51"]),
    ):
        folder = tmp_path / next(iter(options.values()))
        folder.mkdir()
        committed(load(folder, spark, HEADER + GOOD + bad, **options))
        rows = Table.open(str(folder / "t")).to_arrow().to_pylist()
        assert sorted(str(row["amount"]) for row in rows) == expected
    comma = HEADER.replace(",", ";") + "1;27.11.2026;12,50;1,5;true\n"
    committed(load(tmp_path, spark, comma, sep=";", locale="de-DE", dateFormat="dd.MM.yyyy"))
    [row] = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
    assert (str(row["amount"]), str(row["day"])) == ("12.50", "2026-11-27")


@pytest.mark.parametrize(("kind", "leaves_out"), [("INT", True), ("DECIMAL(9, 2)", False), ("DATE", False)])
def test_a_mode_is_not_advised_for_values_that_it_would_change(kind: str, leaves_out: bool) -> None:
    message = row_does_not_fit("a.csv", Misfit(column="a", kind=kind), line=2).message
    assert ("DROPMALFORMED leaves such rows out" in message) is leaves_out
    assert ("drops commas" in message) is not leaves_out


@pytest.mark.spark
@pytest.mark.parametrize(("quote", "advice"), [('""', '"\\"" if a quote'), ('\\"', 'or "\\\\" if it has a')])
def test_the_advice_for_a_line_break_in_quotes_gives_the_text_that_was_written(
    tmp_path: Path, spark: SparkSession, quote: str, advice: str
) -> None:
    text = f'id,note\n1,"a\nb {quote}c{quote}"\n'
    (tmp_path / "in").mkdir()
    assert advice in error_of(load_notes(tmp_path / "in", None, text))["message"]
    committed(load_notes(tmp_path / "in", spark, text, multiLine="true", escape=quote[0]))
    assert Table.open(f"{tmp_path}/in/t").to_arrow().column("note").to_pylist() == ['a\nb "c"']


@pytest.mark.spark
def test_settings_of_the_session_hide_no_value_that_does_not_fit(tmp_path: Path, spark: SparkSession) -> None:
    settings = {
        "spark.sql.columnNameOfCorruptRecord": "bad",
        "spark.sql.legacy.raiseErrorWithoutErrorClass": "true",
        "spark.sql.parser.quotedRegexColumnNames": "true",
    }
    with session_settings(spark, settings):
        error = error_of(load(tmp_path, spark, HEADER + "1,2026-11-27,12.505,1.5,true\n"))
        assert error["type"] == "InvalidInput"
        assert "column 'amount'" in error["message"]
        for format, line in (("csv", "x"), ("json", '{"id": "x"}')):
            (tmp_path / f"a.{format}").write_text(f"{line}\n")
            schema = "id INT, _corrupt_record STRING"
            source = {"format": format, "path": f"{tmp_path}/a.{format}", "schema": schema}
            spec = job_spec(operation="write", table_uri=f"{tmp_path}/{format}", arguments={"source": source})
            committed(run_job(spec, spark))
            assert Table.open(f"{tmp_path}/{format}").to_arrow().to_pylist() == [{"id": None, "_corrupt_record": line}]


@pytest.mark.spark
def test_json_and_inferred_columns_are_as_strict(tmp_path: Path, spark: SparkSession) -> None:
    def error(name: str, text: str, schema: str | None) -> dict[str, Any]:
        (tmp_path / name).write_text(text)
        source: dict[str, Any] = {"format": name.rpartition(".")[2], "path": str(tmp_path / name)}
        source |= {} if schema is None else {"schema": schema}
        spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
        return error_of(run_job(spec, spark))

    schema = "id INT, amount DECIMAL(12, 2), day DATE"
    for value in ('"id": "x"', '"amount": 12.505', '"amount": "12,50"', '"day": "2026-11-27T10:00:00"'):
        found = error("a.json", f'{{"id": 1, {value}}}\n' if "id" not in value else f"{{{value}}}\n", schema)
        assert found["type"] == "InvalidInput"
        assert found["message"].startswith(f"The source's file file://{tmp_path}/a.json has a")
    assert error("b.json", '{"id": 1}\n{bad\n', None)["type"] == "InvalidInput"
    found = error("b.csv", "1,2\n3\n", None)
    assert "b.csv has a row that does not fit the columns" in found["message"]
    (tmp_path / "c.json").write_text(json.dumps({"id": 1, "amount": 12.5, "day": "2026-11-27"}))
    source = {"format": "json", "path": str(tmp_path / "c.json"), "schema": schema}
    committed(run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark))
    [row] = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
    assert (str(row["amount"]), str(row["day"])) == ("12.50", "2026-11-27")


def test_the_line_is_that_of_the_text_of_a_compressed_file_of_many_blocks(tmp_path: Path) -> None:
    path, number = tmp_path / "a.csv.gz", 400_000
    path.write_bytes(gzip.compress((HEADER + GOOD * number + "x" + GOOD).encode(), 1))
    source = {"format": "csv", "path": str(path), "schema": SCHEMA, "options": {"header": "true"}}
    error = error_of(
        run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), None)
    )
    assert error["facts"]["line"] == number + 2
    assert not list(tmp_path.glob("t/**/*.parquet"))


NUMBERS = ("0.1234567890123456789", "12345678.25", "0.00012", "9876543210123456789.5", '"-12.5"')


@pytest.mark.spark
@pytest.mark.parametrize("options", [{}, {"encoding": "UTF-8"}, {"multiLine": "true"}])
def test_a_decimal_of_json_keeps_its_digits(tmp_path: Path, spark: SparkSession, options: dict[str, str]) -> None:
    lines = "".join(f'{{"a": {text}}}\n' for text in NUMBERS)
    text = f"[{','.join(lines.splitlines())}]" if "multiLine" in options else lines
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    source = {"format": "json", "path": f"{tmp_path}/a.json.gz", "schema": "a DECIMAL(38, 19)", "options": options}
    committed(run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark))
    found = Table.open(str(tmp_path / "t")).to_arrow().column("a").to_pylist()
    assert sorted(found) == sorted(Decimal(text.strip('"')) for text in NUMBERS)


@pytest.mark.spark
@pytest.mark.parametrize("options", [{"encoding": "UTF-8"}, {"multiLine": "true"}], ids=str)
def test_a_decimal_of_json_is_not_changed(tmp_path: Path, spark: SparkSession, options: dict[str, str]) -> None:
    for number, value in enumerate(("12.505", '"12,50"', "1.2500000000000000000001e1")):
        (tmp_path / "a.json").write_text(f'{{"a": {value}}}\n')
        source = {"format": "json", "path": f"{tmp_path}/a.json", "schema": "a DECIMAL(12, 2)", "options": options}
        spec = job_spec(operation="write", table_uri=f"{tmp_path}/t{number}", arguments={"source": source})
        assert error_of(run_job(spec, spark))["facts"]["column"] == "a"


@pytest.mark.spark
@pytest.mark.parametrize("schema", [None, "a STRING"])
def test_an_encoding_in_which_spark_finds_no_lines_of_json_is_named_with_its_option(
    tmp_path: Path, spark: SparkSession, schema: str | None
) -> None:
    (tmp_path / "a.json").write_bytes('{"a": "é"}\n{"a": "x"}\n'.encode("latin-1"))
    options = {"encoding": "ISO-8859-1"}
    source = {"format": "json", "path": f"{tmp_path}/a.json", "options": options, "schema": schema}
    spec = job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source})
    error = error_of(run_job(spec, spark))
    assert error["message"].endswith('of JSON in ISO-8859-1. Set the option "lineSep": "\\n". Nothing was read.')
    options["lineSep"] = "\n"
    spec = job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source})
    committed(run_job(spec, spark))
    assert sorted(Table.open(f"{tmp_path}/t").to_arrow().column("a").to_pylist()) == ["x", "é"]


@pytest.mark.spark
@pytest.mark.parametrize("format", ["csv", "json"])
def test_folders_are_left_out_by_a_predicate(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str], format: str
) -> None:
    for day, text in (("2026-11-26", "x"), ("2026-11-27", "1.50")):
        (tmp_path / "in" / f"day={day}" / "part=1").mkdir(parents=True)
        line = f"1,{text}\n" if format == "csv" else json.dumps({"id": 1, "amount": text})
        (tmp_path / "in" / f"day={day}" / "part=1" / "a").write_text(line)
    schema = "id INT, amount DECIMAL(12, 2), day DATE, part INT"
    source = {"format": format, "path": str(tmp_path / "in"), "schema": schema}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
    context = begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print)
    frame = build_source(context, SqlGate(context), None).frame.where("day = DATE'2026-11-27' AND part = 1")
    frame.explain()
    filters = capsys.readouterr().out.partition("PartitionFilters: [")[2].partition("PushedFilters")[0]
    assert "2026-11-27" in filters
    assert "part" in filters
    # The other folder has a text that is no number.
    assert [(row["id"], str(row["amount"]), str(row["day"])) for row in frame.collect()] == [(1, "1.50", "2026-11-27")]


@pytest.mark.spark
@pytest.mark.parametrize("place", ["day=2026-11-27", "day=*"])
def test_a_date_of_a_file_in_a_folder_of_that_name_is_as_strict(
    tmp_path: Path, spark: SparkSession, place: str
) -> None:
    folder = tmp_path / "in" / "day=2026-11-27"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("2026-11-27T10:00:00\n")
    source = {"format": "csv", "path": f"{tmp_path}/in/{place}", "schema": "day DATE"}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
    assert error_of(run_job(spec, spark))["facts"]["column"] == "day"


@pytest.mark.spark
def test_a_column_with_the_name_of_spark_s_own_is_read(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "a.csv").write_text("1.5,x\n")
    source = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": "a DECIMAL(12, 2), _metadata STRING"}
    committed(run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark))
    (tmp_path / "a.csv").write_text("1.555,x\n")
    error = error_of(
        run_job(job_spec(operation="write", table_uri=str(tmp_path / "u"), arguments={"source": source}), spark)
    )
    assert error["facts"]["file"].endswith("/a.csv")


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["CHAR(3)", "VARCHAR(3)", "ARRAY<STRUCT<b: CHAR(3)>>"])
def test_a_type_that_no_file_has_is_refused(tmp_path: Path, spark: SparkSession, kind: str) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    source = {"format": "json", "path": f"{tmp_path}/a.json", "schema": f"a {kind}"}
    error = error_of(
        run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark)
    )
    assert error["type"] == "InvalidJobSpec"
    assert "the schema of files has no CHAR and VARCHAR. Write STRING." in error["message"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("schema", "is_error"),
    [
        ("id INT, /* , _corrupt_record */ b DECIMAL(5, 2)", True),
        ("id INT, `_corrupt_record` STRING", False),
        *in_long(
            "more schemas",
            ("id INT COMMENT 'no _corrupt_record', b STRING", True),
            ("id INT, is_corrupt_record STRING", True),
            ("id INT, b STRUCT<c: INT, _corrupt_record: STRING>", True),
        ),
    ],
)
def test_only_a_column_for_the_texts_of_rows_takes_rows_that_do_not_fit(
    tmp_path: Path, spark: SparkSession, schema: str, is_error: bool
) -> None:
    (tmp_path / "a.json").write_text('{"id": "x"}\n')
    source = {"format": "json", "path": f"{tmp_path}/a.json", "schema": schema}
    result = run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark)
    assert (error_of(result)["type"] == "InvalidInput") if is_error else committed(result)


# --- quotes -----------------------------------------------------------------------------------------------------------

NOTES = "id INT, note STRING"


def load_notes(
    folder: Path, session: SparkSession | None, text: str, *, schema: str | None = NOTES, **options: str
) -> JobResult:
    folder.mkdir(exist_ok=True)
    (folder / "a.csv").write_text(text)
    source: dict[str, Any] = {"format": "csv", "path": f"{folder}/a.csv", "options": {"header": "true", **options}}
    source |= {} if schema is None else {"schema": schema}
    return run_job(job_spec(operation="write", table_uri=str(folder / "t"), arguments={"source": source}), session)


def notes(folder: Path) -> list[object]:
    found: list[object] = Table.open(str(folder / "t")).to_arrow().sort_by("id").column("note").to_pylist()
    return found


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
@pytest.mark.parametrize(
    "cell", ['"6"" nails"', '"six, ""6"""', *in_long("more quotes", '"6"""', '""""', '"""six"" nails"')]
)
def test_a_doubled_quote_is_an_error_until_the_author_chooses_the_escape(
    tmp_path: Path, session: SparkSession | None, cell: str
) -> None:
    text = f"id,note\n1,plain\n2,{cell}\n"
    error = error_of(load_notes(tmp_path, session, text))
    assert error["type"] == "InvalidInput"
    assert not error["facts"].get("needs_spark")
    assert error["facts"]["file"].endswith("/a.csv")
    if session is None or "," not in cell:
        assert 'a value with a doubled quote ("")' in error["message"]
        assert '"escape": "\\""' in error["message"]
        assert error["facts"].get("line") == (3 if session is None else None)
    assert "nails" not in str(error)
    assert "six" not in str(error)
    assert not list(tmp_path.glob("t/**/*.parquet"))
    committed(load_notes(tmp_path, session, text, escape='"'))
    assert notes(tmp_path) == ["plain", cell[1:-1].replace('""', '"')]


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ('"Nails 6"",",Oslo', 'Nails 6",'),
        ('"6"",,",Oslo,x', '6",,'),
    ],
)
def test_a_doubled_quote_before_a_separator_is_an_error_if_texts_follow(
    tmp_path: Path, session: SparkSession | None, values: str, expected: str
) -> None:
    schema = NOTES + ", town STRING" + ", more STRING" * values.endswith("x")
    text = f"{schema.replace(' INT', '').replace(' STRING', '').replace(', ', ',')}\n2,{values}\n"
    error = error_of(load_notes(tmp_path, session, text, schema=schema))
    assert 'a value with a doubled quote ("")' in error["message"]
    assert "Oslo" not in str(error)
    committed(load_notes(tmp_path, session, text, schema=schema, escape='"'))
    assert notes(tmp_path) == [expected]


@pytest.mark.spark
@pytest.mark.parametrize(("line", "column"), [("1,a, b,7", "qty"), ('1,"Nails 6"",",7', "note")])
def test_a_column_that_a_query_leaves_out_is_checked(
    tmp_path: Path, spark: SparkSession, line: str, column: str
) -> None:
    (tmp_path / "a.csv").write_text(line + "\n")
    kind = "STRING" if column == "qty" else "INT"
    view = {"format": "csv", "path": f"{tmp_path}/a.csv", "schema": f"id INT, note STRING, qty {kind}"}
    source = {"sql": f"SELECT id, {column} FROM v", "views": {"v": view}}
    error = error_of(
        run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark)
    )
    assert error["type"] == "InvalidInput"
    assert "does not fit" in error["message"]


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_a_header_with_a_doubled_quote_is_an_error_until_the_author_chooses_the_escape(
    tmp_path: Path, session: SparkSession | None
) -> None:
    text, schema = 'id,"inch"""\n1,x\n', 'id INT, `inch"` STRING'
    error = error_of(load_notes(tmp_path, session, text, schema=schema))
    assert "doubled quote" in error["message"]
    committed(load_notes(tmp_path, session, text, schema=schema, escape='"'))
    assert Table.open(str(tmp_path / "t")).to_arrow().to_pylist() == [{"id": 1, 'inch"': "x"}]


@pytest.mark.spark
def test_the_author_can_have_spark_s_own_reading_of_a_doubled_quote(tmp_path: Path, spark: SparkSession) -> None:
    text = 'id,note\n1,"6"" nails"\n2,"a \\"b\\""\n'
    for number, options in enumerate(({"escape": "\\"}, {"mode": "PERMISSIVE"}, {"mode": "DROPMALFORMED"})):
        committed(load_notes(tmp_path / str(number), spark, text, **options))
        assert notes(tmp_path / str(number)) == ['"6"" nails"', 'a "b"']
    # Without a schema all columns are texts, and as strict.
    error = error_of(load_notes(tmp_path / "inferred", spark, text, schema=None))
    assert "doubled quote" in error["message"]
    # Other quotes are read as before.
    committed(load_notes(tmp_path / "other", spark, 'id,note\n1,6" nails\n2,"a \\"b\\" c"\n3,""\n'))
    assert notes(tmp_path / "other") == ['6" nails', 'a "b" c', None]


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_an_empty_value_is_null_and_the_text_null_is_a_text(tmp_path: Path, session: SparkSession | None) -> None:
    committed(load_notes(tmp_path / "a", session, 'id,note\n1,\n2,""\n3,NULL\n'))
    assert notes(tmp_path / "a") == [None, None, "NULL"]
    committed(load_notes(tmp_path / "b", session, "id,note\n1,\n2,NULL\n", nullValue="NULL"))
    assert notes(tmp_path / "b") == [None, None]
    if session is not None:
        committed(load_notes(tmp_path / "c", session, 'id,note\n1,\n2,""\n', nullValue="NULL"))
        assert notes(tmp_path / "c") == [None, ""]


@pytest.mark.spark
@pytest.mark.parametrize("schema", [None, f"{NOTES}, part STRING"])
def test_the_name_of_a_folder_may_hold_a_doubled_quote(tmp_path: Path, spark: SparkSession, schema: str | None) -> None:
    folder = tmp_path / "in" / 'part="6""'
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,note\n1,x\n")
    source: dict[str, Any] = {"format": "csv", "path": str(tmp_path / "in"), "options": {"header": "true"}}
    source |= {} if schema is None else {"schema": schema}
    committed(run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), spark))
    assert Table.open(str(tmp_path / "t")).to_arrow().column("part").to_pylist() == ['"6""']


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_a_line_break_in_quotes_is_an_error_that_names_the_option_for_it(
    tmp_path: Path, session: SparkSession | None
) -> None:
    error = error_of(load_notes(tmp_path, session, 'id,note\n1,x\n2,"first line\nsecond"\n'))
    assert error["type"] == "InvalidInput"
    assert "first" not in str(error)
    if session is None:
        assert "has in line 3 a quote that does not end in its line" in error["message"]
    assert "multiLine" in error["message"]


@pytest.mark.spark
def test_a_line_break_in_quotes_is_read_with_multi_line(tmp_path: Path, spark: SparkSession) -> None:
    text = 'id,note\n1,"first ""line""\nsecond"\n2,"a\r\nb"\n3,\n'
    (tmp_path / "in").mkdir()
    committed(load_notes(tmp_path / "in", spark, text, multiLine="true", escape='"'))
    assert notes(tmp_path / "in") == ['first "line"\nsecond', "a\r\nb", None]
    error = error_of(load_notes(tmp_path / "in", spark, text, multiLine="true"))
    assert "a quote that Spark may have misread" in error["message"]
    error = error_of(load_notes(tmp_path / "in", spark, text.replace("id,", "no,"), multiLine="true", escape='"'))
    assert error["type"] == "SchemaMismatch"
