"""CSV files that this process reads have the rows that Spark reads, in every mode; all others are left to Spark."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import FileView
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.rows_here import columns_of_ddl
from airflow_txlog.jobs.spark.session import job_settings
from tests.helpers.depth import depth, in_long
from tests.helpers.jobs import committed, error_of
from tests.helpers.read_here import rows_read_here
from tests.helpers.rows import bag
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "t STRING, i INT, b BIGINT, s SMALLINT, y TINYINT, d DOUBLE, f FLOAT, day DATE, o BOOLEAN, n DECIMAL(6, 2)"
# As Python writes small and large numbers.
EXPONENTS = ["9.5367431640625e-07", "1e-05", "-1.2345678901234567e+16", "1e22", "5E-99", "99999999999999999999.5e99"]
# Texts of each column that are usual, and some that Spark reads in ways of its own.
USUAL = {
    "STRING": ["a", "b c", "é", "", '"a,b"', '"x;y"', '"q q"', "NA", " padded ", "null", "'s'", "1", "\t"],
    "INT": ["1", "-5", "007", "2147483647", "-2147483648", "", "-0"],
    "BIGINT": ["9223372036854775807", "-9223372036854775808", "0", ""],
    "SMALLINT": ["32767", "-32768", ""],
    "TINYINT": ["127", "-128", ""],
    "DOUBLE": ["1.5", "-0.0", "1e5", "0.1", "123456789.123456789", "2.2250738585072014", "1E-5", "", "7", *EXPONENTS],
    "FLOAT": ["1.5", "0.1", "16777217", "3.4028235", "1e-9", "", "1.5e-07", "9e+09"],
    "DATE": ["2024-01-31", "1582-10-10", "1000-01-01", "9999-12-31", "2024-02-29", ""],
    "BOOLEAN": ["true", "false", ""],
    "DECIMAL(6, 2)": ["12.50", "-1", "9999.99", "0.1", "0012.3", ""],
}
ODD = {
    "STRING": [
        '""',
        '"a""b"',
        'a"b',
        "a\\b",
        '"a\\"b"',
        '"a',
        "\x00",
        "\x01",
        '"a" ',
        "#c",
        "\u2028",
        '"NA"',
        "\ufeffa",
    ],
    "INT": ["+5", " 5", "5 ", "1.0", "x", "2147483648", "٣", "NA", '"7"', "1_0"],
    "BIGINT": ["9223372036854775808", "1L"],
    "SMALLINT": ["32768"],
    "TINYINT": ["128"],
    "DOUBLE": ["NaN", "Inf", "-Inf", "Infinity", "1d", ".5", "5.", "0x1p3", " 1", "1e400", "1,5"],
    "FLOAT": ["1f", "1e39", "3.4e38"],
    "DATE": ["2024-02-30", "2024-1-5", "24-01-05", "2024-01-05T00:00:00", "0000-01-01", "+2024-01-01", "20240105"],
    "BOOLEAN": ["TRUE", "yes", "1", "True"],
    "DECIMAL(6, 2)": ["1.234", "12345.6", "1e2", "+1", "1,000"],
}
# Texts that are usual with the escape that RFC 4180 has.
QUOTES = [
    *('"6"" nails"', '"6"""', '""""', '""""""', '"""a"""', '"a,""b"', '"a"",b"', '"a;""b"', '"""NA"""'),
    *("a\\b", '"a\\b"', '"a\\""b"', '"a\\\\"', '"\\"', '"x ""y"" z"', '" a "', '"\t"""'),
]
OPEN = ['"a""', '"6"" x', '"""', 'a""b', '""a', ' "a""b"', '"a\\"', '"a""b" ']
KINDS = [column.split(" ", 1)[1] for column in SCHEMA.replace("(6, 2)", "(6;2)").split(", ")]
OPTIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "header": {"header": "true", "enforceSchema": "true"},
    "null": {"nullValue": "NA"},
    "semicolons": {"sep": ";", "header": "true", "mode": "FAILFAST"},
    "tabs": {"delimiter": "\t", "mode": "DROPMALFORMED", "nullValue": "null"},
    "doubled quotes": {"escape": '"', "header": "true"},
    "two names": {"sep": ";", "delimiter": ",", "encoding": "UTF-8", "charset": "UTF-16"},
    "doubled quotes and a null": {"escape": '"', "nullValue": "NA", "sep": ";"},
}
IN_EACH_RUN = ["semicolons", "doubled quotes"]


def _text(rng: random.Random, options: Mapping[str, str]) -> str:
    """A CSV file: mostly usual values, and in half of the files one that is not."""
    mark = options.get("sep", options.get("delimiter", ","))
    kinds = [kind.replace(";", ", ") for kind in KINDS]
    usual, odd = USUAL, ODD
    if "escape" in options:
        usual, odd = USUAL | {"STRING": USUAL["STRING"] + QUOTES}, ODD | {"STRING": ODD["STRING"] + OPEN}
    rows = [[rng.choice(usual[kind]) for kind in kinds] for _ in range(rng.randrange(5))]
    rows = [[text if mark != "\t" else text.replace("\t", "T") for text in row] for row in rows]
    if rows and rng.random() < 0.5:
        number = rng.randrange(len(kinds))
        rng.choice(rows)[number] = rng.choice(odd[kinds[number]])
    if rows and rng.random() < 0.1:
        row = rng.choice(rows)
        row[:] = row[: rng.randrange(1, len(kinds))] if rng.random() < 0.5 else [*row, "more"]
    lines = [mark.join(row) for row in rows]
    if options.get("header") == "true":
        names = ["t", "i", "b", "s", "y", "d", "f", "day", "o", "n"]
        is_short = "enforceSchema" in options and rng.random() < 0.1
        lines.insert(0, mark.join(names[:2] if is_short else names))
    lines += [rng.choice(["", "  "])] * (rng.random() < 0.2)
    end = rng.choice(["\n", "\r\n", "\r"])
    return "\ufeff" * (rng.random() < 0.1) + end.join(lines) + end * rng.randrange(2)


def values(rows: pa.Table) -> list[dict[str, object]]:
    """The rows, with dates as numbers: Spark may read one beyond all that Python has."""
    days = rows.schema.get_field_index("day")
    found: list[dict[str, object]] = rows.set_column(days, "day", rows.column(days).cast(pa.int32())).to_pylist()
    return found


def here(folder: Path, view: FileView, conf: Mapping[str, str] | None = None) -> list[dict[str, object]] | str:
    """The rows of a view as this process reads them, or why it leaves them to Spark."""
    try:
        found = rows_read_here(folder, view, conf)
    except InvalidInput as error:
        if "a value with a doubled quote" in str(error) or "a quote that does not end in its line" in str(error):
            return "malformed quotes"
        return f"malformed {error.facts.get('column')}"
    return found if isinstance(found, str) else values(found)


@pytest.mark.spark
@pytest.mark.seeded
@pytest.mark.parametrize(
    "name",
    [
        *IN_EACH_RUN,
        *in_long("Spark reads files for each of the options", *(name for name in OPTIONS if name not in IN_EACH_RUN)),
    ],
)
def test_rows_that_are_read_here_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from pyspark.sql import functions as F

    rng, options = random.Random(name), OPTIONS[name]
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(depth(16, 120, 4_000)):
        text, is_packed = _text(rng, options).encode(), "escape" in options and not number % 4
        name = f"{number:04}.csv" + ".gz" * is_packed
        (folder / name).write_bytes(gzip.compress(text) if text and is_packed else text)
    # In the mode that fails at nothing: where all is certain the modes do not differ.
    reader = spark.read.options(**options | {"mode": "PERMISSIVE"}).schema(SCHEMA)
    with job_settings(spark, "Europe/Berlin"):
        frame = reader.csv(str(folder)).select("*", F.input_file_name().alias("file")).toArrow()
    theirs: dict[str, list[str]] = {}
    for row in values(frame):
        theirs.setdefault(Path(str(row.pop("file"))).name, []).append(repr(row))
    certain = rows = malformed = 0
    for path in sorted(folder.iterdir()):
        if not path.stat().st_size:
            continue
        view = FileView(format="csv", path=str(path), options=options, schema=SCHEMA)
        ours = here(tmp_path, view)
        if not isinstance(ours, str):
            certain, rows = certain + 1, rows + len(ours)
            assert sorted(map(repr, ours)) == sorted(theirs.get(path.name, [])), path.read_bytes()
        elif ours.startswith("malformed"):
            malformed += 1
            strict = spark.read.options(**options | {"mode": "FAILFAST"}).schema(SCHEMA).csv(str(path))
            # Spark changes values of these columns, and of a text with quotes.
            if ours not in ("malformed n", "malformed day", "malformed quotes"):
                with pytest.raises(Exception, match="MALFORMED_RECORD"):
                    strict.collect()
    print(name, certain, rows, malformed)
    assert (malformed > 0) == (options.get("mode", "FAILFAST") == "FAILFAST")
    assert certain > depth(3, 36, 1_250)


@pytest.mark.spark
@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        "`a b` INT,c LONG",
        "select Integer,\n b short , c byte, d real,e dec( 10,0 )",
        "a INT, a STRING",
        "a DECIMAL(39, 1)",
        "a DECIMAL(3, 4)",
        "a INT,",
        ", a INT",
        "a INT NOT NULL",
        "a: INT",
        "a INT COMMENT 'x'",
        "a DECIMAL",
        "a ARRAY<INT>",
        "a TIMESTAMP",
        "a VARCHAR(3)",
        "1a INT",
        "",
    ],
)
def test_a_schema_has_the_columns_that_spark_takes_from_it(spark: SparkSession, schema: str) -> None:
    from pyspark.sql.types import StructType

    found = columns_of_ddl(schema)
    assert (found is not None) == (schema in (SCHEMA, "`a b` INT,c LONG") or "real" in schema)
    if found is not None:
        theirs = [(each.name, each.dataType.simpleString()) for each in cast("StructType", StructType.fromDDL(schema))]
        names = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
        assert [(each.name, names.get(str(each.type), str(each.type))) for each in found] == theirs


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quote": "'"}, "option quote"),
        ({"escape": "'"}, "option escape"),
        ({"dateFormat": "dd.MM.yyyy"}, "option dateformat"),
        ({"emptyValue": "e"}, "option emptyvalue"),
        ({"comment": "#"}, "option comment"),
        ({"multiLine": "true"}, "Spark's own reader"),
        ({"header": "yes"}, "option header"),
        ({"nullValue": '"'}, "option nullvalue"),
        ({"columnNameOfCorruptRecord": "bad"}, "option columnnameofcorruptrecord"),
        ({"sep": "::"}, "separator"),
        ({"encoding": "ISO-8859-1"}, "encoding"),
        ({"schema": "id INT NOT NULL"}, "plain types"),
        ({"schema": "_corrupt_record STRING"}, "plain types"),
        ({"name": "a.csv.bz2"}, "compressed"),
        ({"conf": "spark.sql.legacy.timeParserPolicy"}, "setting"),
    ],
)
def test_other_views_are_left_to_spark(tmp_path: Path, options: dict[str, str], why: str) -> None:
    path = tmp_path / options.pop("name", "a.csv")
    path.write_bytes(b"1\n")
    schema, setting = options.pop("schema", "id INT"), options.pop("conf", None)
    view = FileView(format="csv", path=str(path), options=options, schema=schema)
    assert why in str(here(tmp_path, view, {} if setting is None else {setting: "x"}))


def test_a_file_that_is_no_text_in_utf_8_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xe9\n")
    view = FileView(format="csv", path=str(tmp_path / "a.csv"), schema="name STRING")
    assert here(tmp_path, view) == "it cannot be decoded"


def test_a_compressed_file_with_more_text_than_is_read_at_once_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLOG_SMALL_JOB_BYTES", str(2**20))
    too_much = "it is compressed, and has more text than a job reads at once without Spark"
    view = FileView(format="csv", path=str(tmp_path / "in"), schema="day DATE")
    (tmp_path / "in").mkdir()
    # Repeated keys take a hundredth of their text and less. One text is a line without an end.
    keys = b"2024-01-31\n"
    for text, expected in ((keys * 2**16, 2**16), (keys * 2**18, too_much), (b"0" * 2**21, too_much)):
        (tmp_path / "in" / "0.csv.gz").write_bytes(gzip.compress(text[:-2]) + gzip.compress(text[-2:]))
        found = here(tmp_path, view)
        assert (found if isinstance(found, str) else len(found)) == expected
    # Each of four files may have a quarter of it.
    for text, expected in ((keys * 2**14, 2**16), (keys * 2**15, too_much)):
        for number in range(4):
            (tmp_path / "in" / f"{number}.csv.gz").write_bytes(gzip.compress(text))
        found = here(tmp_path, view)
        assert (found if isinstance(found, str) else len(found)) == expected


# --- whole jobs -----------------------------------------------------------------------------------------------------

ORDERS = b"day,id,amount\n2024-01-31,1,12.50\n2024-01-31,2,\n"
VIEW = {"format": "csv", "options": {"header": "true"}, "schema": "day DATE, id BIGINT, amount DECIMAL(10, 2)"}


def job(table: Path, operation: str, **arguments: object) -> JobSpec:
    return job_spec(operation=operation, table_uri=str(table), arguments=arguments)


@pytest.mark.spark
def test_small_csv_files_are_loaded_merged_and_deleted_by_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(ORDERS)
    packed = [gzip.compress(part) for part in (ORDERS[:9], ORDERS[9:].replace(b",1,", b",3,").replace(b",2,", b",4,"))]
    (tmp_path / "in" / "b.csv.gz").write_bytes(b"".join(packed))
    (tmp_path / "gone.csv").write_bytes(b"id\n2\n3\n")
    source = {**VIEW, "path": str(tmp_path / "in")}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("write", {"source": source, "mode": "overwrite_partitions", "partition_by": ["day"]}),
        ("upsert", {"source": {**source, "path": str(tmp_path / "in" / "a.csv")}, "keys": ["id"]}),
        (
            "delete",
            {
                "predicate": None,
                "keys": {"column": "id", "source": {**VIEW, "path": str(tmp_path / "gone.csv"), "schema": "id BIGINT"}},
            },
        ),
    ]
    for operation, arguments in steps:
        committed(run_job(job(tmp_path / "ours", operation, **arguments), None))
        committed(run_job(job(tmp_path / "theirs", operation, **arguments), spark))
    ours, theirs = (Table.open(str(tmp_path / name)) for name in ("ours", "theirs"))
    assert sorted(ours.to_arrow().column("id").to_pylist()) == [1, 4]
    assert bag(ours) == bag(theirs)
    assert str(ours.snapshot().delta_schema) == str(theirs.snapshot().delta_schema)


def test_keys_of_which_there_are_too_many_in_a_compressed_file_are_given_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, keys = (
        {"format": "csv", "path": str(tmp_path / name), "schema": "id BIGINT"} for name in ("in", "gone.csv.gz")
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"2\n3\n")
    (tmp_path / "gone.csv.gz").write_bytes(gzip.compress(b"2\n" * 2**20))
    committed(run_job(job(tmp_path / "t", "write", source=rows), None))
    spec = job(tmp_path / "t", "delete", predicate=None, keys={"column": "id", "source": keys})
    monkeypatch.setenv("TXLOG_SMALL_JOB_BYTES", str(2**20))
    error = error_of(run_job(spec, None))
    assert error["facts"]["needs_spark"]
    assert "has more text than a job reads at once" in error["message"]
    assert Table.open(str(tmp_path / "t")).to_arrow().column("id").to_pylist() == [2, 3]
    monkeypatch.delenv("TXLOG_SMALL_JOB_BYTES")
    committed(run_job(spec, None))
    assert Table.open(str(tmp_path / "t")).to_arrow().column("id").to_pylist() == [3]


@pytest.mark.spark
def test_a_job_whose_last_file_is_uncertain_writes_nothing_and_goes_on_with_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(ORDERS)
    (tmp_path / "in" / "b.csv").write_bytes(ORDERS.replace(b"12.50", b"+7.00"))
    spec = job(tmp_path / "t", "write", source={**VIEW, "path": str(tmp_path / "in")})
    error = error_of(run_job(spec, None))
    assert error["facts"]["needs_spark"]
    assert "column 'amount' has a value" in error["message"]
    assert not list(tmp_path.glob("t/**/*.parquet"))
    committed(run_job(spec, None, start=lambda: spark))
    amounts = sorted(map(str, Table.open(str(tmp_path / "t")).to_arrow().column("amount").to_pylist()))
    assert amounts == ["12.50", "7.00", "None", "None"]
