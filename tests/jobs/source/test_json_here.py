"""Lines of JSON that this process reads have the rows that Spark reads, in every mode; all others are left to Spark."""

from __future__ import annotations

import datetime as dt
import gzip
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.json_rows import rows_of_json
from airflow_txlog.datafiles.text_lines import Uncertain
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.ddl import TIMES
from airflow_txlog.engine.table.schema.schema import to_arrow
from airflow_txlog.engine.table.schema.types import StructType
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

COLUMNS = {
    "t": "STRING",
    "i": "INT",
    "b": "BIGINT",
    "s": "SMALLINT",
    "y": "TINYINT",
    "d": "DOUBLE",
    "f": "FLOAT",
    "o": "BOOLEAN",
    "n": "DECIMAL(6, 2)",
    "w": "DECIMAL(38, 10)",
    "p": "DECIMAL(3, 3)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
}
SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())
_FLOATS = ["1.5", "-0.0", "0.1", "1E-5", "7", "1.5e-07", "16777217", "16777217.0000000001", "0e5", "1e-60", "-3.4e17"]
# Values of each type as they are written, usual ones and some that Spark reads in ways of its own.
USUAL = {
    "STRING": [
        *('"a"', '""', '"b c"', '"é"', '" padded "', '"null"', '"1"', r'"\"q\" \\ \/ \b\f\n\r\t"', '"{}[],:"', '"\'"'),
        *(r'"\u00e9\u0041\u0000"', r'"\uD83D\ude00"', '"😀"', '"\u2028\ufeff\x7f"', r'"\"n\": 1e2, \"p\": 5"', '"n"'),
    ],
    "INT": ["1", "-5", "2147483647", "-2147483648", "0"],
    "BIGINT": ["9223372036854775807", "-9223372036854775808", "0"],
    "SMALLINT": ["32767", "-32768"],
    "TINYINT": ["127", "-128"],
    "DOUBLE": [*_FLOATS, "123456789.123456789", "4.9e-324", "9223372036854775809", "1.7976931348623157e308", "1e-400"],
    "FLOAT": [*_FLOATS, "123456789012345678", "0.0000000000000000000000000000000000000001", "3e-46"],
    "BOOLEAN": ["true", "false"],
    "DECIMAL(6, 2)": ["12.50", "-1", "9999.99", "0.1", '"12.3"', '"-7"', "-0.0"],
    "DECIMAL(38, 10)": ["1234567890123456789012345678.0123456789", "0.0000000001", "-5", '"12.5"'],
    "DECIMAL(3, 3)": ["0.125", "-0.5", "0", '"0.999"'],
    "DATE": ['"2024-01-31"', '"1582-10-10"', '"1000-01-01"', '"9999-12-31"', '"2024-02-29"'],
    "TIMESTAMP": [
        *('"2024-01-31T12:00:00Z"', '"2024-01-31 12:00:00.123+05:30"', '"2024-10-27T02:30:00.123456-08:00"'),
        *('"1000-01-01T00:00:00Z"', '"1582-10-10T00:00:00.5Z"', '"9999-12-31T23:59:59.999999+00:00"'),
    ],
    "TIMESTAMP_NTZ": ['"2024-01-31T12:00:00"', '"2024-03-31 02:30:00.123456"', '"1000-01-01T00:00:00.1"'],
}
_NO_TEXT = ['"1"', '""', "true", "[1]", '{"a": 1}', "'1'"]
_TIMES = [
    '"2024-01-31"',
    '"12:00:00"',
    "1706702400",
    "1.5",
    '""',
    '"2024-01-31T12:00"',
    '"2024-1-31T12:00:00Z"',
    '"now"',
]
_TIMES += [
    '"2024-01-31T12:00:00.1234567Z"',
    '"2024-02-30T12:00:00Z"',
    '"2024-01-31T24:00:00Z"',
    '" 2024-01-31T12:00:00Z"',
]
_TIMES += ['"2024-01-31T12:00:00+5"', '"2024-01-31T12:00:00 Europe/Berlin"', '"2024-01-31t12:00:00z"', '"epoch"']
ODD = {
    "STRING": [
        *("1", "1.50", "true", "[1, 2]", '{"a":  1}', "'a'", "a", "NaN", r'"\x"', r'"\ud83d"', r'"\ude00\ud83d"', '"a'),
        *(r'"\u12"', '"\t"', '"\x01"', '"\x00"', r'"\'"', "1e2", "-0"),
    ],
    "INT": [*_NO_TEXT, "1.0", "1e0", "-0", "2147483648", "+1", "01", "0x1", "1_0", ".5", "٣"],
    "BIGINT": [*_NO_TEXT, "9223372036854775808", "1L", "123456789012345678901234567890"],
    "SMALLINT": ["32768", "1.5"],
    "TINYINT": ["128", '"5"'],
    "DOUBLE": [*_NO_TEXT, "NaN", '"NaN"', "Infinity", "-INF", "1e400", ".5", "5.", "-0", "1d", "+1.5", "00.5"],
    "FLOAT": [*_NO_TEXT, "1e39", '"-Infinity"', "9223372586610589697", "3.4028236e38", "-0"],
    "BOOLEAN": ['"true"', "True", "1", "yes", '""'],
    "DECIMAL(6, 2)": [
        "12345.6",
        "1.234",
        "1e2",
        '"1e2"',
        '"+1"',
        '"1,000"',
        '"x"',
        '""',
        "true",
        '" 1"',
        '"1."',
        '".5"',
    ],
    "DECIMAL(38, 10)": ["12345678901234567890123456789", "0.00000000001", "1e-5", "1.5E3"],
    "DECIMAL(3, 3)": ["1", "1.0", '"1"', "0.1234", "0.5000"],
    "DATE": [
        '"2024-02-30"',
        '"2024-1-5"',
        '"2024-01-05T00:00:00"',
        '"0000-01-01"',
        "19000",
        '"20240105"',
        '""',
        '"now"',
    ],
    # Without a zone they are certain in a job in UTC.
    "TIMESTAMP": [*_TIMES, '"2024-01-31T12:00:00"', '"1582-10-10 02:30:00.5"'],
    "TIMESTAMP_NTZ": [*_TIMES, '"2024-01-31T12:00:00Z"', '"2024-01-31T12:00:00+05:30"'],
}
# Whole lines that are no plain object, or whose text after one Spark ignores.
LINES = [
    *(
        '{"i": 1}{"i": 2}',
        '{"i": 1} {"i": 2}',
        '{"i": 1} x',
        '{"i": 1},',
        '[{"i": 1}, {"i": 2}]',
        "[]",
        "null",
        "5",
        '"a"',
    ),
    *('{"i": 1, "i": 2}', '{"i": null, "i": 2}', '{"t": "a", "t": null}', '{"i": 1,}', '{"i" 1}', "{i: 1}", "{'i': 1}"),
    *(
        '{"i": 1 /* c */}',
        '{"i": 1} // c',
        "# c",
        "{",
        "}",
        '{"i": 1',
        '{"i": 1}}',
        "\x00",
        "\x0b",
        "\ufeff{}",
        "\xa0{}",
    ),
    *(
        '{"x": [1, {"y": "}"}], "i": 3}',
        '{"x": {"i": 1}, "i": 2}',
        r'{"\u0069": 1}',
        r'{"a\"b": 1}',
        '{"i":\x0b1}',
        '{"i": nan}',
    ),
]
# Lines with rows of their own, or none, and members that no column has.
PLAIN = [
    "{}",
    " { } ",
    "",
    "  ",
    "\t",
    '{"I": 1, "T": "a"}',
    '\t{"i"\t: 1 }\t',
    '{"x": 1, "x": "a"}',
    '{"": null}',
    '{"i.d": 1}',
]
MORE = ['"x": 1e-7', '"X y": "a"', '"I": 5', '"é": null', '"": true', '"n2": 1e5', '"N": 123456.789', '" n": "1e5"']
OPTIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "permissive": {"mode": "PERMISSIVE", "multiLine": "false"},
    "dropped": {"mode": "DROPMALFORMED", "encoding": "UTF-8"},
    "failing": {"mode": "FAILFAST", "charset": "utf-8"},
}


def _line(rng: random.Random, *, odd: str | None = None) -> str:
    """One object with some of the columns, in any order, and with a value of `odd` that Spark may read otherwise."""
    names = [name for name in COLUMNS if name == odd or rng.random() < 0.8]
    values = {name: "null" if rng.random() < 0.1 else rng.choice(USUAL[COLUMNS[name]]) for name in names}
    if odd is not None:
        values[odd] = rng.choice(ODD[COLUMNS[odd]])
    blank = rng.choice(["", " ", "\t", "  "])
    members = [f'"{name}"{blank}:{rng.choice(["", " "])}{value}{blank}' for name, value in values.items()]
    members += rng.sample(MORE, rng.randrange(3))
    if rng.random() < 0.3:
        rng.shuffle(members)
    return f"{blank}{{{blank}{f',{blank}'.join(members)}}}{blank}"


def _texts(rng: random.Random) -> Iterator[bytes]:
    """Files, each with one odd value or line, and some with random lines."""
    for name, kind in COLUMNS.items():
        for odd in ODD[kind]:
            yield f'{{"{name}": {odd}}}\n'.encode()
    for line in LINES:
        yield f"{line}\n".encode()
    yield b'{"t": "\xe9"}'
    for _ in range(depth(40, 400, 6_000)):
        lines = [rng.choice(PLAIN) if rng.random() < 0.2 else _line(rng) for _ in range(rng.randrange(1, 6))]
        if rng.random() < 0.3:
            lines.append(rng.choice([*LINES, _line(rng, odd=rng.choice(list(COLUMNS)))]))
        rng.shuffle(lines)
        end = rng.choice(["\n", "\r\n", "\r"])
        yield ("\ufeff" * (rng.random() < 0.1) + end.join(lines) + end * rng.randrange(2)).encode() or b"\n"


def values(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows, with times and dates as numbers: Spark may read one beyond all that Python has."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            whole = rows.column(number).cast(pa.int32() if pa.types.is_date(field.type) else pa.int64())
            rows = rows.set_column(number, field.name, whole)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


@pytest.mark.spark
@pytest.mark.seeded
@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("dropped", "UTC"),
        *in_long(
            "Spark reads files for each of the options",
            ("plain", "Europe/Berlin"),
            ("permissive", "UTC"),
            ("failing", "Europe/Berlin"),
        ),
    ],
)
def test_rows_that_are_read_here_are_those_that_spark_reads(
    spark: SparkSession, tmp_path: Path, name: str, zone: str
) -> None:
    from pyspark.sql import functions as F

    rng, options, folder, certain = random.Random(name), OPTIONS[name], tmp_path / "in", tmp_path / "certain"
    folder.mkdir()
    certain.mkdir()
    for number, text in enumerate(_texts(rng)):
        is_packed = not number % 5
        (folder / f"{number:04}.json{'.gz' * is_packed}").write_bytes(gzip.compress(text) if is_packed else text)
    # In the mode that fails at nothing: where all is certain the modes do not differ.
    reader = spark.read.options(**options | {"mode": "PERMISSIVE"}).schema(SCHEMA)
    with job_settings(spark, zone):
        frame = reader.json(str(folder)).select("*", F.input_file_name().alias("file")).toArrow()
    theirs: dict[str, list[str]] = {}
    for row in values(frame):
        theirs.setdefault(Path(str(row.pop("file"))).name, []).append(repr(row))
    for path in sorted(folder.iterdir()):
        ours = rows_read_here(
            tmp_path, FileView(format="json", path=str(path), options=options, schema=SCHEMA), {}, zone
        )
        if not isinstance(ours, str):
            assert sorted(map(repr, values(ours))) == sorted(theirs.get(path.name, [])), path.read_bytes()
            shutil.copy(path, certain)
    print(name, len(list(folder.iterdir())), len(list(certain.iterdir())), len(theirs))
    assert len(list(certain.iterdir())) > depth(25, 250, 3_500)
    # In the job's own mode, where Spark reads some columns as texts. A job without Spark reads no more files.
    for path in sorted(certain.iterdir())[1_000:]:
        path.unlink()
    source = {"format": "json", "path": str(certain), "options": options, "schema": SCHEMA}
    for table, session in (("ours", None), ("theirs", spark)):
        arguments = {"source": source, "properties": {"delta.feature.timestampNtz": "supported"}}
        spec = job_spec(operation="write", table_uri=str(tmp_path / table), arguments=arguments, time_zone=zone)
        committed(run_job(spec, session))
    assert bag(Table.open(str(tmp_path / "ours"))) == bag(Table.open(str(tmp_path / "theirs")))


@pytest.mark.parametrize("name", COLUMNS)
def test_usual_values_are_certain_and_odd_ones_are_not(name: str) -> None:
    kind = COLUMNS[name]
    columns = to_arrow(_columns(f"{name} {kind}"))
    found = rows_of_json(pa.array([f'{{"{name}": {value}}}' for value in USUAL[kind]]), columns)
    assert found.num_rows == len(USUAL[kind])
    assert not found.column(0).null_count
    for value in ODD[kind]:
        with pytest.raises(Uncertain) as caught:
            rows_of_json(pa.array(["{}", f'{{"{name}": {value}}}']), columns)
        assert len(value) < 4 or value.strip('"') not in str(caught.value)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_plain_object_is_not_certain(line: str) -> None:
    with pytest.raises(Uncertain):
        rows_of_json(pa.array(['{"i": 1}', line]), to_arrow(_columns("i INT, t STRING")))


def test_a_line_with_a_very_long_name_or_text_is_not_certain() -> None:
    columns = to_arrow(_columns("t STRING"))
    fits = [f'{{"t": "{"a" * 1_000_000}"}}', f'{{"t": "", "{"n" * 49_000}": 1}}']
    assert rows_of_json(pa.array(fits), columns).num_rows == 2
    for line in (f'{{"t": "{"a" * 2**24}"}}', f'{{"t": "", "{"n" * 50_001}": 1}}'):
        with pytest.raises(Uncertain, match="very long"):
            rows_of_json(pa.array([line]), columns)


def test_a_time_without_a_zone_is_certain_in_a_job_in_utc() -> None:
    columns = to_arrow(_columns("at TIMESTAMP"))
    lines = pa.array(['{"at": "2024-01-31T12:00:00"}', '{"at": "2024-01-31 13:00:00+01:00"}', '{"at": null}'])
    times = rows_of_json(lines, columns, is_utc=True).column(0).to_pylist()
    assert times == [dt.datetime(2024, 1, 31, 12, tzinfo=dt.UTC)] * 2 + [None]


def _columns(schema: str) -> StructType:
    found = columns_of_ddl(schema, TIMES)
    assert found is not None
    return found


# --- whole jobs -----------------------------------------------------------------------------------------------------

ORDERS = b"""{"id": 1, "day": "2024-01-31", "amount": 12.50, "at": "2024-01-31T10:00:00Z", "by": "web"}
{"id": 2, "day": "2024-01-31", "at": "2024-01-31T11:00:00.5Z"}
"""
VIEW = {"format": "json", "schema": "day DATE, id BIGINT, amount DECIMAL(10, 2), at TIMESTAMP"}


def job(table: Path, operation: str, **arguments: object) -> JobSpec:
    return job_spec(operation=operation, table_uri=str(table), arguments=arguments)


@pytest.mark.spark
def test_small_json_files_are_loaded_merged_and_deleted_by_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(ORDERS)
    other = ORDERS.replace(b'"id": 1', b'"id": 3').replace(b'"id": 2', b'"id": 4')
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(other[:9]) + gzip.compress(other[9:]))
    (tmp_path / "again.json").write_bytes(ORDERS.replace(b"12.50", b'"13.5"').replace(b'"id": 2', b'"id": 5'))
    (tmp_path / "gone.json").write_bytes(b'{"id": 2}\n{"id": 3, "why": "asked"}\n')
    source = {**VIEW, "path": str(tmp_path / "in")}
    gone = {"format": "json", "path": str(tmp_path / "gone.json"), "schema": "id BIGINT"}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("write", {"source": source, "mode": "overwrite_partitions", "partition_by": ["day"]}),
        ("delete", {"predicate": "id = 1 AND amount > 0", "keys": None}),
        ("upsert", {"source": {**source, "path": str(tmp_path / "again.json")}, "keys": ["id"]}),
        ("delete", {"predicate": None, "keys": {"column": "id", "source": gone}}),
    ]
    for operation, arguments in steps:
        ours, theirs = (job(tmp_path / name, operation, **arguments) for name in ("ours", "theirs"))
        assert ours.operation.likely_spares_spark(is_spark_here=True)
        committed(run_job(ours, None))
        committed(run_job(theirs, spark))
    tables = [Table.open(str(tmp_path / name)) for name in ("ours", "theirs")]
    assert sorted(tables[0].to_arrow().column("id").to_pylist()) == [1, 4, 5]
    assert bag(tables[0]) == bag(tables[1])
    assert str(tables[0].snapshot().delta_schema) == str(tables[1].snapshot().delta_schema)


@pytest.mark.spark
def test_a_job_whose_last_file_is_uncertain_writes_nothing_and_goes_on_with_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(ORDERS)
    (tmp_path / "in" / "b.json").write_bytes(ORDERS.replace(b'"web"', b'["web", "app"]'))
    spec = job(tmp_path / "t", "write", source={**VIEW, "path": str(tmp_path / "in")})
    error = error_of(run_job(spec, None))
    assert error["facts"]["needs_spark"]
    assert "not one flat object" in error["message"]
    assert not list(tmp_path.glob("t/**/*.parquet"))
    committed(run_job(spec, None, start=lambda: spark))
    assert Table.open(str(tmp_path / "t")).to_arrow().num_rows == 4
    (tmp_path / "in" / "b.json").write_bytes(b'{"id": 5}{"id": 6}\n')
    error = error_of(run_job(spec, None, start=lambda: spark))
    assert "several JSON objects in one line" in error["message"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        *(
            ({name: "true"}, f"option {name.lower()}")
            for name in ("allowComments", "allowSingleQuotes", "dropFieldIfAllNull")
        ),
        ({"allowNonNumericNumbers": "false"}, "option allownonnumericnumbers"),
        ({"primitivesAsString": "true"}, "option primitivesasstring"),
        ({"dateFormat": "dd.MM.yyyy"}, "option dateformat"),
        ({"timestampFormat": "yyyy"}, "option timestampformat"),
        ({"timeZone": "UTC"}, "option timezone"),
        ({"lineSep": ";"}, "option linesep"),
        ({"locale": "de"}, "option locale"),
        ({"multiLine": "true"}, "option multiline"),
        ({"mode": "other"}, "option mode"),
        ({"columnNameOfCorruptRecord": "bad"}, "option columnnameofcorruptrecord"),
        ({"encoding": "ISO-8859-1"}, "encoding"),
        ({"schema": "id INT NOT NULL"}, "plain types"),
        ({"schema": "id INT, a STRUCT<b: INT>"}, "plain types"),
        ({"schema": "id INT, _corrupt_record STRING"}, "plain types"),
        ({"name": "a.json.bz2"}, "compressed"),
        ({"conf": "spark.sql.json.enablePartialResults"}, "setting"),
        ({"conf": "spark.sql.legacy.timeParserPolicy"}, "setting"),
    ],
)
def test_other_views_are_left_to_spark(tmp_path: Path, options: dict[str, str], why: str) -> None:
    path = tmp_path / options.pop("name", "a.json")
    path.write_bytes(b'{"id": 1}\n')
    schema, setting = options.pop("schema", "id INT"), options.pop("conf", None)
    view = FileView(format="json", path=str(path), options=options, schema=schema)
    assert why in str(rows_read_here(tmp_path, view, {} if setting is None else {setting: "true"}))


def test_a_file_without_a_schema_that_is_no_text_or_expands_too_far_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json.gz"
    view = FileView(format="json", path=str(path), schema="t STRING")
    path.write_bytes(gzip.compress(b'{"t": "\xe9"}\n'))
    assert rows_read_here(tmp_path, view) == "it cannot be decoded"
    monkeypatch.setenv("TXLOG_SMALL_JOB_BYTES", str(2**20))
    path.write_bytes(gzip.compress(b'{"t": null}\n' * 2**18))
    assert "has more text" in str(rows_read_here(tmp_path, view))
    unknown = FileView(format="json", path=str(path))
    assert "CSV and JSON with one" in str(rows_read_here(tmp_path, unknown))
