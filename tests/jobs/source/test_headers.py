"""A header of a CSV file has the names of the columns that its values become, or no row of the source is read."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import FileView
from airflow_txlog.engine import Table
from airflow_txlog.errors import TableNotFound
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.headers import check_headers_on_disk
from airflow_txlog.jobs.spark.session import names_this_disk
from tests.helpers.connected import connect_server, run_connected
from tests.helpers.jobs import committed, error_of
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, day DATE, amount DECIMAL(12, 2), customer STRING"
ROW = b"1,2026-11-27,12.50,a\n"
SAME = b"id,day,amount,customer\n"
EXECUTORS = [None, pytest.param("spark", marks=pytest.mark.spark)]

TAKEN: dict[str, dict[str, bytes]] = {
    "other letters": {"a.csv": b"ID,Day,AMOUNT,Customer\n" + ROW},
    "a byte order mark": {"a.csv": b"\xef\xbb\xbf" + SAME + ROW},
    "quoted names": {"a.csv": b'"id","day","amount","customer"\n' + ROW},
    "a blank line first": {"a.csv": b"\n  \n" + SAME + ROW},
    "windows": {"a.csv": (SAME + ROW).replace(b"\n", b"\r\n")},
    "a header alone, an empty file and rows": {"a.csv": SAME, "b.csv": b"", "c.csv": SAME + ROW},
    "gzip": {"a.csv.gz": gzip.compress(SAME + ROW)},
}
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "two columns changed": ({"a.csv": b"id,day,customer,amount\n" + ROW}, "column 3 is 'customer' in the file, and"),
    "one file of three": (
        {"a.csv": SAME + ROW, "b.csv": b"id,day,customer,amount\n" + ROW, "c.csv": SAME + ROW},
        "b.csv is not that of the schema",
    ),
    "no rows": ({"a.csv": b"id,day,customer,amount\n"}, "a.csv is not that"),
    "no rows, beside rows": ({"a.csv": b"id,day,customer,amount\n", "b.csv": SAME + ROW}, "a.csv is not that"),
    "a byte order mark": ({"a.csv": b"\xef\xbb\xbfid,day,customer,amount\n" + ROW}, "column 3"),
    "quoted names": ({"a.csv": b'"id","day","customer","amount"\n' + ROW}, "column 3"),
    "gzip": ({"a.csv.gz": gzip.compress(b"id,day,customer,amount\n" + ROW)}, "a.csv.gz"),
    "bzip2": ({"a.csv.bz2": bz2.compress(b"id,day,customer,amount\n" + ROW)}, "a.csv.bz2"),
    "a name twice": ({"a.csv": b"id,day,amount,amount\n" + ROW}, "column 4 is 'amount' in the file, and 'customer'"),
    "a column less": ({"a.csv": b"id,day,amount\n1,2026-11-27,12.50\n"}, "column 4 is missing in the file"),
    "a column more": (
        {"a.csv": SAME.strip() + b",x\n1,2026-11-27,12.50,a,b\n"},
        "column 5 is another in the file, and m",
    ),
    "an unnamed index": ({"a.csv": b"," + SAME + b"0," + ROW}, "column 1 is another in the file, and 'id'"),
    "another separator": ({"a.csv": SAME.replace(b",", b";")}, "with another separator"),
    "a separator in a quoted name": ({"a.csv": b'id,"day,first",amount\n' + ROW}, "column 2 is another in the file"),
    "a row with the name of a column": ({"a.csv": b"4711,secret,amount,secret\n" + ROW}, "column 1 is another"),
    "some other names": (
        {"a.csv": b"id,day,Betrag,customer\n" + ROW},
        "If the first line is a header with other names, write the schema with the names of the "
        "file, in its order, or set the option enforceSchema=true",
    ),
    "an index without a name": (
        {"a.csv": b",id,day,amount,customer\n0," + ROW},
        "in its order, with one of your own for each without a name, and set the option enforceSchema=true.",
    ),
    "no header": (
        {"a.csv": b"7,2026-01-01,4711.25,secret\n" + ROW},
        'customer). Nothing was read. If the file has no header, leave out the option "header". If the first line is a '
        "header with other names",
    ),
    "no header, and another separator": (
        {"a.csv": b"7;2026-01-01;4711,25;secret\n" + ROW},
        'leave out the option "header". If ";" separates its values, set the option "sep": ";". If the first',
    ),
    "no header, and another separator and number": (
        {"a.csv": b"7\tsecret\n" + ROW},
        'If "\\t" separates its values, set the option "sep": "\\t".',
    ),
    "some of the names, and another separator": (
        {"a.csv": b"id|day|x\n" + ROW},
        'a.csv has columns of the schema, with another separator than the source\'s. Nothing was read. If "|" sep',
    ),
}


def load(tmp_path: Path, session: SparkSession | None, files: dict[str, bytes], **options: str) -> JobResult:
    (tmp_path / "in").mkdir(exist_ok=True)
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
    source = {"format": "csv", "path": str(tmp_path / "in"), "schema": SCHEMA, "options": {"header": "true", **options}}
    return run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source}), session)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession | None:
    found: Any = None if request.param is None else request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
@pytest.mark.parametrize("name", TAKEN)
def test_a_header_of_the_same_names_is_taken(tmp_path: Path, session: SparkSession | None, name: str) -> None:
    committed(load(tmp_path, session, TAKEN[name]))
    [row] = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
    assert (row["id"], str(row["amount"]), row["customer"]) == (1, "12.50", "a")


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
@pytest.mark.parametrize("name", REFUSED)
def test_a_header_of_other_names_is_refused_before_a_row_is_read(
    tmp_path: Path, session: SparkSession | None, name: str
) -> None:
    files, text = REFUSED[name]
    if session is None and "a.csv.bz2" in files:
        pytest.skip("only Spark reads it")
    error = error_of(load(tmp_path, session, files))
    assert error["type"] == "SchemaMismatch"
    assert text in error["message"]
    assert "secret" not in str(error)
    assert "4711" not in str(error)
    # By position, a column would become another, or a row would be lost.
    is_safe = "enforceSchema" not in error["message"] or "If the first line is a header with" in error["message"]
    assert is_safe
    if name in ("two columns changed", "quoted names", "gzip"):
        assert error["message"].endswith("Write the schema in the order of the file: id, day, customer, amount.")
    assert error["facts"]["columns"] == ["id", "day", "amount", "customer"]
    assert Path(error["facts"]["file"].removeprefix("file://")).name in files
    with pytest.raises(TableNotFound):
        Table.open(str(tmp_path / "t")).snapshot()
    assert not list(tmp_path.glob("t/**/*.parquet"))


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_enforce_schema_takes_the_columns_by_position(tmp_path: Path, session: SparkSession | None) -> None:
    files = {"a.csv": b"Nr,Tag,Betrag,Kunde\n" + ROW}
    assert "enforceSchema=true" in error_of(load(tmp_path, session, files, enforceSchema="false"))["message"]
    committed(load(tmp_path, session, files, enforceSchema="true"))
    assert Table.open(str(tmp_path / "t")).to_arrow().column("customer").to_pylist() == ["a"]


@pytest.mark.spark
def test_files_of_one_folder_without_a_schema_must_have_one_header(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b",id,amount\n0,1,2\n")
    source = {"format": "csv", "path": str(tmp_path / "in"), "options": {"header": "true"}}
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": source})
    # An index of pandas has no name.
    committed(run_job(spec, spark))
    (tmp_path / "in" / "b.csv").write_bytes(b",amount,id\n0,2,1\n")
    error = error_of(run_job(spec, spark))
    assert "b.csv is not that of the file" in error["message"]
    assert "a.csv: column 2 differs. The file has 3 columns, and the other 3." in error["message"]
    assert error["message"].endswith(
        "Write all files with one header, or read the files of each header by a separate path."
    )
    # The first line of a file may be a row.
    assert (error["facts"]["columns"], error["facts"]["found"]) == ([], [])
    assert "amount" not in str(error)


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_a_header_that_is_not_found_is_not_taken_for_equal(tmp_path: Path, session: SparkSession | None) -> None:
    error = error_of(load(tmp_path, session, {"a.csv": b'"' + b"x" * 200_000 + b'",day,customer,amount\n' + ROW}))
    assert error["facts"].get("needs_spark") if session is None else error["type"] == "SchemaMismatch"


OTHER_BYTES: dict[str, tuple[bytes, str]] = {
    "UTF-16 with a mark": (
        (SAME + ROW).decode().encode("utf-16"),
        "is text in UTF-16, and not in the encoding of the ",
    ),
    "UTF-16": ((SAME + ROW).decode().encode("utf-16-le"), 'or set the options "encoding": "UTF-16LE" and'),
    "UTF-32": ((SAME + ROW).decode().encode("utf-32"), "is text in UTF-32"),
    "gzip": (
        gzip.compress(SAME + ROW),
        "is compressed with gzip, and its name has no .gz at its end. Nothing was read",
    ),
    "zip": (b"PK\x03\x04\x14\x00\x08\x00\x08\x00\xe9\n", "is a zip archive. Nothing was read. Unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00\xe9\n", "is compressed with zstd"),
}


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
@pytest.mark.parametrize("name", OTHER_BYTES)
def test_another_encoding_and_a_compression_without_its_ending_are_named(
    tmp_path: Path, session: SparkSession | None, name: str
) -> None:
    data, text = OTHER_BYTES[name]
    for options in ({}, {"multiLine": "true"}) if session is not None else ({},):
        error = error_of(load(tmp_path, session, {"a.csv": data}, **options))
        assert error["type"] == "InvalidInput"
        assert text in error["message"]
        assert error["facts"]["file"].endswith("a.csv")


@pytest.mark.parametrize(
    ("data", "options", "why"),
    [
        (SAME + b"1,2026-11-27,1,\xe9\n", {}, "a.csv has bytes that are not UTF-8"),
        (b'"' + b"x" * 200_000 + b'",day,customer,amount\n', {}, "quotes or escapes of its first line are unusual"),
    ],
)
def test_the_reason_for_spark_says_why_a_header_is_not_found(
    tmp_path: Path, data: bytes, options: dict[str, str], why: str
) -> None:
    error = error_of(load(tmp_path, None, {"a.csv": data}, **options))
    assert error["facts"].get("needs_spark")
    assert why in error["message"]


@pytest.mark.parametrize("more", ["", "\0\xe9"])
def test_a_separator_that_is_nul_is_not_taken_for_an_encoding(tmp_path: Path, more: str) -> None:
    (tmp_path / "a.csv").write_bytes(f"a\0b{more}\n".encode("latin-1"))
    view = FileView(format="csv", path=f"{tmp_path}/a.csv", options={"header": "true", "sep": "\0"})
    found = check_headers_on_disk(view, [f"file:{tmp_path}/a.csv"], ["a", "b"])
    assert ("has bytes that are not UTF-8" in str(found)) if more else found is None


@pytest.mark.parametrize("session", EXECUTORS, indirect=True)
def test_a_file_without_line_ends_is_not_read_for_its_header(tmp_path: Path, session: SparkSession | None) -> None:
    for name, data in (("a.csv.gz", gzip.compress(b"x" * 50_000_000, 1)), ("a.csv", b"x" * 2_000_000)):
        (tmp_path / name).mkdir()
        error = error_of(load(tmp_path / name, session, {name: data}))
        assert error["type"] == "InvalidInput"
        assert f"{name} has no header in its first MiB of text" in error["message"]


@pytest.mark.spark
def test_the_column_of_a_folder_is_in_no_header(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "in" / "day=2026-11-27"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_bytes(b"id,amount,customer\n1,12.50,a\n")
    for path in (tmp_path / "in", folder):
        if path == folder:
            (folder / "a.csv").write_bytes(SAME + ROW)
        source = {"format": "csv", "path": str(path), "schema": SCHEMA, "options": {"header": "true"}}
        arguments = {"source": source, "mode": "overwrite"}
        committed(run_job(job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments=arguments), spark))
        [row] = Table.open(str(tmp_path / "t")).to_arrow().to_pylist()
        assert (str(row["day"]), str(row["amount"])) == ("2026-11-27", "12.50")


@pytest.mark.spark
def test_a_header_that_only_spark_finds_is_compared_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    assert names_this_disk(spark)
    text = "id,day,customer,amount\n1,2026-11-27,12.50,a\n".encode("utf-16")
    error = error_of(load(tmp_path, spark, {"a.csv": text}, encoding="UTF-16", multiLine="true"))
    assert error["type"] == "SchemaMismatch"
    assert "a.csv does not have the names of the schema's columns" in error["message"]
    assert "LEGACY" not in error["message"]


@pytest.mark.spark
def test_headers_that_only_spark_finds_are_compared_without_a_schema(tmp_path: Path, spark: SparkSession) -> None:
    def result(table: str, *texts: str) -> JobResult:
        for name, text in zip(("a.csv", "b.csv"), texts, strict=False):
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / name).write_bytes(text.encode("utf-16-le"))
        options = {"header": "true", "encoding": "UTF-16LE", "multiLine": "true"}
        source = {"format": "csv", "path": str(tmp_path / "in"), "options": options}
        spec = job_spec(operation="write", table_uri=str(tmp_path / table), arguments={"source": source})
        return run_job(spec, spark)

    committed(result("t0", ",a\n0,1\n"))
    committed(result("t1", "a,b\n1,2\n", "A,b\n3,4\n"))
    error = error_of(result("t2", "a,b\n1,2\n", "b,a\n3,4\n"))
    assert error["type"] == "SchemaMismatch"
    assert ".csv does not have the names" in error["message"]


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.long("Spark runs two jobs over Connect")
@pytest.mark.slow("a Spark Connect server")
def test_a_connect_server_compares_the_headers(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "in" / "b.csv").write_text("b,a\n3,4\n")
    source = {"format": "csv", "path": str(tmp_path / "in"), "options": {"header": "true"}}
    specs = [
        job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": {**source, **more}})
        for more in ({}, {"schema": "a INT, b INT"})
    ]
    with connect_server(tmp_path / "server") as new_session:
        results = run_connected(new_session(), specs)
    # Without a schema, Spark takes the names of either file, so the other one is named.
    for result, named in zip(results, (".csv", "b.csv"), strict=True):
        assert error_of(result)["type"] == "SchemaMismatch"
        assert f"{named} does not have the names" in error_of(result)["message"]
