"""Files in a store that Spark cannot read give the rows and the schema that Spark reads of the same files on a disk."""

from __future__ import annotations

import bz2
import datetime as dt
import decimal
import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from airflow_txlog.contract.operations import FileView
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidInput, InvalidJobSpec, SchemaMismatch, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.source.listing import files_in_store
from airflow_txlog.jobs.source.stores import read_files
from airflow_txlog.jobs.spark.errors import collect, translate
from airflow_txlog.jobs.spark.session import job_settings, session_settings
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.storage import PLAIN, Access
from tests.helpers import s3
from tests.helpers.depth import in_long
from tests.helpers.jobs import begin_job, spark_bag
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Files = Mapping[str, bytes]
Case = tuple[Files, dict[str, Any]]


class Readers:
    """Both ways to the files of one folder."""

    def __init__(self, spark: SparkSession, folder: Path, place: str, access: Access = PLAIN) -> None:
        """`place` names the same folder, or one with the same files, in a store that Spark cannot read."""
        self.spark, self.folder, self.place = spark, folder, place
        spec = job_spec(operation="write", table_uri=str(folder / "t"), arguments={"source": {"sql": "SELECT 1"}})
        self.context: JobContext = begin_job(spec, spark, Table.at(spec.table_uri, access), print)

    def put(self, files: Files) -> None:
        for path, data in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(data)

    def spark_s(self, format: str, path: str | list[str], options: dict[str, str], schema: str | None) -> DataFrame:
        paths = [f"{self.folder}/{each}" for each in ([path] if isinstance(path, str) else path)]
        options = {name: value.format(root=self.folder) for name, value in options.items()}
        reader = self.spark.read.format(format).options(**options)
        return (reader if schema is None else reader.schema(schema)).load(paths)

    def ours(self, format: str, path: str | list[str], options: dict[str, str], schema: str | None) -> DataFrame:
        view = self.view(format, path, options, schema)
        return read_files(self.context, files_in_store(self.context, view, "source"))[0]

    def view(self, format: str, path: str | list[str], options: dict[str, str], schema: str | None) -> FileView:
        paths = tuple(f"{self.place}/{each}" for each in ([path] if isinstance(path, str) else path))
        options = {name: value.format(root=self.place) for name, value in options.items()}
        return FileView(format=format, path=paths, options=options, schema=schema)  # type: ignore[arg-type]

    def alike(
        self, format: str, path: str | list[str], options: dict[str, str] | None = None, schema: str | None = None
    ) -> int:
        """How many rows both read. Their schemas and rows are asserted to be equal."""
        if format in ("csv", "json"):
            options = {"mode": "PERMISSIVE"} | (options or {})
        theirs, ours = (read(format, path, options or {}, schema) for read in (self.spark_s, self.ours))
        assert [(f.name, f.dataType, f.nullable) for f in ours.schema] == [
            (f.name, f.dataType, f.nullable) for f in theirs.schema
        ]
        found = spark_bag(ours)
        assert found == spark_bag(theirs)
        return sum(found.values())


@pytest.fixture
def readers(spark: SparkSession, tmp_path: Path, shelf: str) -> Iterator[Readers]:
    with job_settings(spark, "Europe/Berlin"):
        ship(spark)
        yield Readers(spark, tmp_path, f"{shelf}{tmp_path}")


# --- CSV ------------------------------------------------------------------------------------------------------------

TWO_ROWS = b"id,name\n1,a\n2,b\n"
MESSY = (
    b"\xef\xbb\xbfid;name;day\r\n1;'a;b';2024-01-01\r\n\r\n \t \r\n#no;row\r\n2; b ;NA\r\n3\r\n4;d;2024-01-02;more\r\n"
    b"x;'it''s';2024-13-01\r\nid;name;day"
)
CSV: dict[str, Case] = {
    "no header": ({"a.csv": TWO_ROWS}, {}),
    "a header": ({"a.csv": TWO_ROWS}, {"options": {"header": "true"}}),
    "a header that is also a row": ({"a.csv": b"a,b\n1,2\na,b\n"}, {"options": {"header": "TRUE"}}),
    "inference": (
        {"a.csv": b"i,d,t,s,b\n1,2024-01-01,2024-01-01 10:00:00,x,true\n2,,,,\n"},
        {"options": {"header": "true", "inferSchema": "true"}},
    ),
    "files with other headers": (
        {"a.csv": b"a,b\n1,2\n3,4\n", "b.csv": b"b,a\n5,6\n"},
        {"options": {"header": "true", "enforceSchema": "true"}, "path": ""},
    ),
    "an empty file beside": ({"a.csv": TWO_ROWS, "b.csv": b""}, {"options": {"header": "true"}, "path": ""}),
    "a header alone": ({"a.csv": b"a,b\n"}, {"options": {"header": "true"}}),
    "names twice and none": ({"a.csv": b"a,,a\n1,2,3\n"}, {"options": {"header": "true"}}),
    "messy": (
        {"a.csv": MESSY},
        {"options": {"header": "true", "sep": ";", "quote": "'", "escape": "'", "comment": "#", "nullValue": "NA"}},
    ),
    "messy, typed": (
        {"a.csv": MESSY},
        {
            "options": {"header": "true", "delimiter": ";", "quote": "'", "comment": "#", "nullValue": "NA"},
            "schema": "id INT, name STRING, day DATE",
        },
    ),
    "messy, with the corrupt records": (
        {"a.csv": MESSY},
        {
            "options": {"sep": ";", "quote": "'", "columnNameOfCorruptRecord": "bad"},
            "schema": "id INT, name STRING, bad STRING",
        },
    ),
    "messy, without the corrupt records": (
        {"a.csv": MESSY},
        {"options": {"sep": ";", "quote": "'", "mode": "DROPMALFORMED"}, "schema": "id INT, name STRING, day DATE"},
    ),
    "spaces": (
        {"a.csv": b"  a , b \n 1 , x \n"},
        {"options": {"header": "true", "ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}},
    ),
    "line ends of old": ({"a.csv": b"a,b\r1,2\r3,4"}, {"options": {"header": "true"}}),
    "other line ends": ({"a.csv": b"a,b|1,2\n|3,4|"}, {"options": {"header": "true", "lineSep": "|"}}),
    "latin": ({"a.csv": "é,ü\n1,ß\n".encode("latin-1")}, {"options": {"encoding": "ISO-8859-1"}}),
    "tabs alone on a line": ({"a.csv": b"a\tb\n\t\n1\t2\n"}, {"options": {"sep": "\t", "header": "true"}}),
    "compressed": (
        {"a.csv.gz": gzip.compress(TWO_ROWS) + gzip.compress(b"3,c\n"), "b.csv.bz2": bz2.compress(b"id,name\n4,d\n")},
        {"options": {"header": "true"}, "path": ""},
    ),
    "dates and zones": (
        {"a.csv": b"01/02/2024,2024-03-31T02:30:00\n"},
        {"options": {"dateFormat": "dd/MM/yyyy"}, "schema": "d DATE, t TIMESTAMP"},
    ),
    "members not null": ({"a.csv": b"1,\n"}, {"schema": "a INT NOT NULL, b STRING NOT NULL"}),
}


SHORT = (
    "inference",
    "files with other headers",
    "messy, typed",
    "messy, with the corrupt records",
    "compressed",
    "a document over lines",
)


def in_depth(cases: Mapping[str, Case]) -> list[Any]:
    """The names of the cases; those beside SHORT run in the long suite alone."""
    mark = pytest.mark.long("each option of Spark's own parsers takes two more Spark jobs")
    return [pytest.param(name, marks=[] if name in SHORT else mark) for name in cases]


@pytest.mark.parametrize("name", in_depth(CSV))
def test_csv_is_read_as_spark_reads_it(name: str, readers: Readers) -> None:
    files, more = CSV[name]
    readers.put({f"in/{path}": data for path, data in files.items()})
    path = more.get("path", next(iter(files)))
    readers.alike("csv", f"in/{path}", more.get("options"), more.get("schema"))


@pytest.mark.parametrize(
    ("value", "text"), [("12,50", "column 'a'"), ("abc9", "column 'a'"), ("1.5,7", "a row that does")]
)
def test_a_value_of_a_store_s_file_that_does_not_fit_is_an_error(readers: Readers, value: str, text: str) -> None:
    readers.put({"in/a.csv": f"a\n{value}\n".replace("12,50", '"12,50"').encode()})
    frame = readers.ours("csv", "in/a.csv", {"header": "true"}, "a DECIMAL(12, 2)")
    with pytest.raises(InvalidInput, match="A file of the source has") as caught:
        collect(frame, "read")
    assert text in str(caught.value)
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["12.505", "1e-7", '{"x": 1}', *in_long("more texts", '"12,50"', "125e-1", f"0.1{'0' * 40}1")]
)
def test_a_decimal_of_json_in_a_store_is_not_changed(readers: Readers, value: str) -> None:
    readers.put({"in/a.json": f'{{"a": {value}}}\n'.encode()})
    frame = readers.ours("json", "in/a.json", {}, "a DECIMAL(12, 2)")
    with pytest.raises(InvalidInput, match="column 'a' that is no DECIMAL"):
        collect(frame, "read")


def test_a_decimal_of_json_in_a_store_keeps_its_digits(readers: Readers) -> None:
    numbers = ("0.1234567890123456789", "12345678.25", "0.00012", "9876543210123456789.5", "1200000000.0", "-7")
    readers.put({"in/a.json": "".join(f'{{"a": {text}}}\n' for text in numbers).encode()})
    found = collect(readers.ours("json", "in/a.json", {}, "a DECIMAL(38, 19)"), "read")
    assert sorted(found.column("a").to_pylist()) == sorted(map(decimal.Decimal, numbers))


def test_a_header_of_a_store_s_file_is_compared(readers: Readers) -> None:
    readers.put({"in/a.csv": TWO_ROWS, "in/b.csv": b"name,id\n1,a\n"})
    for schema in ("id INT, name STRING", None):
        with pytest.raises(SchemaMismatch, match=r"b\.csv is not that of"):
            readers.ours("csv", "in", {"header": "true"}, schema)
        ends = {f"in/{name}.csv": text.replace(b"\n", b"\r\n") for name, text in (("a", TWO_ROWS), ("b", b"name,id\n"))}
        readers.put(ends)
        with pytest.raises(SchemaMismatch, match=r"b\.csv is not that of"):
            readers.ours("csv", "in", {"header": "true", "lineSep": "\r\n"}, schema)
    readers.put({"in/b.csv": b'"' + b"x" * 200_000 + b'",id\n1,a\n'})
    with pytest.raises(InvalidJobSpec, match="a header that cannot be found and compared"):
        readers.ours("csv", "in", {"header": "true"}, "id INT, name STRING")


# --- JSON -----------------------------------------------------------------------------------------------------------

LINES = b"""{"a": 1, "b": "x"}

{"a": 2.5, "c": [1, null], "d": {"e": "2024-01-01"}}
{"a": nonsense}
[{"a": 3}, {"a": 4}]
"""
JSON: dict[str, Case] = {
    "inference": ({"a.json": LINES}, {}),
    "a schema": ({"a.json": LINES}, {"schema": "a DOUBLE, b STRING, z INT"}),
    "a schema with the corrupt records": ({"a.json": LINES}, {"schema": "a DOUBLE, _corrupt_record STRING"}),
    "without the corrupt records": ({"a.json": LINES}, {"options": {"mode": "DROPMALFORMED"}}),
    "lenient": (
        {"a.json": b"{a: 01, 'b': NaN} // no\n"},
        {
            "options": {
                "allowComments": "true",
                "allowUnquotedFieldNames": "true",
                "allowNumericLeadingZeros": "true",
            }
        },
    ),
    "several files": ({"a.json": b'{"a": 1}', "b.json.gz": gzip.compress(b'{"b": true}\r\n{"a": 9}')}, {"path": ""}),
    "a document over lines": (
        {"a.json": b'\xef\xbb\xbf{"a":\n 1,\n "b": [1,\r\n2]}'},
        {"options": {"multiLine": "true"}},
    ),
    "an array over lines": ({"a.json": b'[{"a":\n 1},\n {"a": 2}]'}, {"options": {"multiLine": "true"}}),
    "texts": ({"a.json": b'{"a": 1, "t": "2024-01-01"}'}, {"options": {"primitivesAsString": "true"}}),
    "times": (
        {"a.json": b'{"t": "2024-03-31 02:30:00"}'},
        {"schema": "t TIMESTAMP", "options": {"timestampFormat": "yyyy-MM-dd HH:mm:ss"}},
    ),
}


@pytest.mark.parametrize("name", in_depth(JSON))
def test_json_is_read_as_spark_reads_it(name: str, readers: Readers) -> None:
    files, more = JSON[name]
    readers.put({f"in/{path}": data for path, data in files.items()})
    path = more.get("path", next(iter(files)))
    readers.alike("json", f"in/{path}", more.get("options"), more.get("schema"))


# --- which files ----------------------------------------------------------------------------------------------------

TREE = {
    path: f"{number}\n".encode()
    for number, path in enumerate(
        [
            "in/a.csv",
            "in/b.csv",
            "in/_hidden.csv",
            "in/.hidden.csv",
            "in/x=1.csv",
            "in/_kept=1.csv",
            "in/c.csv._COPYING_",
            "in/empty.csv",
            "in/sub/c.csv",
            "in/sub/deep/d.csv",
            "in/_sub/e.csv",
            "in2/a-1.csv",
        ]
    )
} | {"in/empty.csv": b""}
PATHS: dict[str, Any] = {
    "a folder": "in",
    "a folder and a slash": "in/",
    "a file": "in/a.csv",
    "several": ["in/a.csv", "in2", "in/sub"],
    "one twice": ["in/a.csv", "in/a.csv"],
    "a star": "in/*.csv",
    "a star for folders": "in/*",
    "a question mark": "in/?.csv",
    "a class": "in/[ab].csv",
    "a class that is not": "in/[!a].csv",
    "a range": "in*/a[-.]*",
    "either": "in/{a,sub/c}.csv",
    "either folder": "{in,in2}",
    "folders": "in/*/*.csv",
    "hidden folders": "in/_sub",
    "escaped": "in/\\a.csv",
}


def listed(frame: DataFrame) -> list[str]:
    """The files that Spark reads, empty ones left out."""
    found = (unquote(file.removeprefix("file://")) for file in frame.inputFiles())
    return sorted(file for file in found if Path(file).stat().st_size)


def test_paths_and_options_name_the_files_that_they_name_to_spark(readers: Readers) -> None:
    readers.put(TREE)
    cases: dict[str, tuple[Any, dict[str, str]]] = {name: (path, {}) for name, path in PATHS.items()}
    cases |= {
        "a name's glob": ("in", {"pathGlobFilter": "[a-c]*"}),
        "all below": ("in", {"recursiveFileLookup": "true"}),
        "both": ("in", {"PATHGLOBFILTER": "d*", "recursivefilelookup": "TRUE"}),
    }
    for name, (path, options) in cases.items():
        theirs = listed(readers.spark_s("csv", path, options, "n INT"))
        found = files_in_store(readers.context, readers.view("csv", path, options, "n INT"), "source")
        ours = sorted(file.path.removeprefix("shelf://") for file in found.files if file.size_bytes)
        # Of a file that is named twice, Spark lists the name once, and reads it twice.
        assert sorted(set(ours)) == theirs, name
    assert readers.alike("csv", ["in/a.csv", "in/a.csv", "in2"], schema="n INT") == 3


FOLDERS = {
    "whole numbers": ["k=1", "k=2", "k=-03"],
    "large numbers": ["k=1", "k=5000000000"],
    "fractions": ["k=1", "k=2.5"],
    "texts": ["k=a", "k=2024-01", "k=1"],
    "dates": ["k=2024-01-01", "k=__HIVE_DEFAULT_PARTITION__"],
    "dates and numbers": ["k=2024-01-01", "k=7"],
    "times": ["k=2024-01-01", "k=2024-01-01 10%3A00%3A00"],
    "hours": ["k=2024-01-01-05", "k=2024-01-01T05"],
    "nothing but null": ["k=__HIVE_DEFAULT_PARTITION__"],
    "escapes": ["k=a%2Fb c", "k=%C3%A9"],
    "addresses": ["k=10.0.0.1", "k=v1"],
    "two columns": ["k=1/l=x", "k=2/l=y"],
    "folders below": ["k=1/part/one", "k=2"],
}


@pytest.mark.long("Spark runs many jobs")
def test_folders_give_columns_of_the_types_that_spark_infers(readers: Readers) -> None:
    for number, (name, folders) in enumerate(FOLDERS.items()):
        readers.put({f"in{number}/{folder}/f.csv": b"1\n" for folder in folders})
        theirs, ours = (read("csv", f"in{number}", {}, "n INT") for read in (readers.spark_s, readers.ours))
        assert ours.schema == theirs.schema, name
        if name in ("times", "escapes", "two columns"):
            assert readers.alike("csv", f"in{number}", schema="n INT") == len(folders)
            assert readers.alike("csv", f"in{number}/{folders[0]}", {"basePath": f"{{root}}/in{number}"}) == 1


def test_the_given_schema_types_the_columns_of_folders(readers: Readers) -> None:
    readers.put({"in/k=01/day=2024-01-01/f.csv": b"1,x\n", "in/k=2/day=1e5/f.csv": b"2,y\n"})
    readers.alike("csv", "in", schema="K STRING, n INT, DAY STRING, s STRING")
    readers.put({"js/k=1/f.json": b'{"n": 1, "k": "x"}', "js/k=2/f.json": b'{"n": 2}'})
    readers.alike("json", "js")
    readers.alike("json", "js", schema="k BIGINT, n STRING")


# --- Parquet and ORC ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x", "12.7"])
def test_a_folder_s_name_of_another_type_is_an_error_whatever_the_session_s_casts(readers: Readers, value: str) -> None:
    readers.put({f"csv/k={value}/f": b"1\n", f"parquet/k={value}/f": parquet(pa.table({"n": [1]}))})
    with session_settings(readers.spark, {"spark.sql.ansi.enabled": "false"}):
        for format in ("csv", "parquet"):
            frame = readers.ours(format, format, {}, "n BIGINT, k INT")
            with pytest.raises(InvalidInput, match="a folder for column 'k' whose name has no INT") as caught:
                collect(frame, "read")
            assert value not in str(caught.value)


ROWS = pa.table(
    {
        "i8": pa.array([1, None], pa.int8()),
        "u8": pa.array([255, None], pa.uint8()),
        "u16": pa.array([65535, None], pa.uint16()),
        "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
        "f": pa.array([1.5, None], pa.float32()),
        "text": pa.array(["é", None]),
        "large": pa.array(["x", None], pa.large_string()),
        "dictionary": pa.array(["x", None]).dictionary_encode(),
        "bytes": pa.array([b"\x00", None]),
        "fixed": pa.array([b"ab", None], pa.binary(2)),
        "day": pa.array([dt.date(2024, 1, 1), None]),
        "ms": pa.array([dt.datetime(2024, 1, 1), None], pa.timestamp("ms")),
        "ntz": pa.array([dt.datetime(2024, 3, 31, 2, 30), None], pa.timestamp("us")),
        "ltz": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", tz="America/Lima")),
        "dec": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(20, 2)),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"a": 1, "b": [{"c": "x"}]}, None]),
    }
)


def parquet(rows: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def test_parquet_of_arrow_is_read_as_spark_reads_it(readers: Readers) -> None:
    readers.put({"in/a.parquet": parquet(ROWS, row_group_size=1)})
    assert readers.alike("parquet", "in") == 2
    old = ROWS.select(["ntz", "day", "text"]).rename_columns(["int96", "day", "text"])
    readers.put({"old/a.parquet": parquet(old, use_deprecated_int96_timestamps=True, version="1.0")})
    assert readers.alike("parquet", "old") == 2


@pytest.mark.long("Spark runs many jobs")
def test_parquet_and_orc_of_spark_are_read_as_spark_reads_them(readers: Readers) -> None:
    rows = readers.spark.sql(
        "SELECT 1Y AS b, 2S AS s, 3 AS i, 4L AS l, 1.5F AS f, 2.5D AS d, true AS t, 1.50BD AS dec, 'é' AS text, "
        "X'00' AS bytes, DATE'2024-01-01' AS day, TIMESTAMP_NTZ'2024-03-31 02:30:00' AS ntz, array(1, null) AS a, "
        "map('k', 1.5D) AS m, named_struct('x', 1, 'y', named_struct('z', 'w')) AS n, CAST('c' AS CHAR(3)) AS c, k "
        "FROM VALUES (1), (2), (null) AS v(k)"
    )
    rows.write.partitionBy("k").orc(f"{readers.folder}/orc")
    rows.withColumn("ltz", rows["day"].cast("timestamp")).write.partitionBy("k").parquet(f"{readers.folder}/pq")
    assert readers.alike("orc", "orc") == 3
    assert readers.alike("parquet", "pq") == 3
    for format, path in (("orc", "orc"), ("parquet", "pq")):
        assert readers.alike(format, path, schema="k STRING, text STRING, missing INT, i BIGINT") == 3


def test_files_of_other_columns_are_read_by_name(readers: Readers) -> None:
    readers.put(
        {
            "in/a.parquet": parquet(pa.table({"A": [1, 2], "b": ["x", "y"]})),
            "in/b.parquet": parquet(pa.table({"b": ["z"]})),
            "in/k=1.parquet": b"",
        }
    )
    assert readers.alike("parquet", "in") == 3
    assert readers.alike("parquet", "in", schema="b STRING, c DATE") == 3


@pytest.mark.parametrize(
    "summaries",
    [["_metadata"], ["_common_metadata", "_metadata"], *in_long("one of both", ["_common_metadata"])],
    ids=str,
)
def test_a_summary_of_files_has_their_columns_and_no_rows(readers: Readers, summaries: list[str]) -> None:
    """Spark takes the columns of a summary, where there is one, for those of all files."""
    readers.put({"in/a.parquet": parquet(pa.table({"id": [1]})), "in/b.parquet": parquet(pa.table({"late": [2.5]}))})
    for number, name in enumerate(summaries):
        columns = {"id": [1], "late": [2.5], f"n{number}": ["a"]}
        readers.put({f"in/{name}": parquet(pa.table(columns))})
    assert readers.alike("parquet", "in") == 2
    assert readers.alike("parquet", "in", {"pathGlobFilter": "*.parquet"}) == 2
    assert readers.alike("parquet", "in/*") == 2
    assert readers.alike("parquet", "in", schema="late DOUBLE") == 2


def test_files_on_s3_are_read_as_spark_reads_the_same_files(spark: SparkSession, tmp_path: Path) -> None:
    place = s3.new_folder()
    with job_settings(spark, "UTC"):
        ship(spark)
        readers = Readers(spark, tmp_path, place, Access(storage_options=s3.options()))
        spark.sql("SELECT id, id % 2 AS k FROM range(9)").write.partitionBy("k").orc(f"{tmp_path}/orc")
        readers.put(
            {
                "csv/k=1/a.csv.gz": gzip.compress(TWO_ROWS),
                "csv/k=2/b c.csv": TWO_ROWS,
                "json/a.json": b'{"a": 1}\n{"a": 2}',
                "pq/a.parquet": parquet(ROWS),
            }
        )
        for path in tmp_path.rglob("*"):
            if path.is_file() and not path.name.startswith((".", "_")):
                key = f"{place.removeprefix(f's3://{s3.BUCKET}/')}/{path.relative_to(tmp_path)}"
                s3.client().put_object(Bucket=s3.BUCKET, Key=key, Body=path.read_bytes())
        assert readers.alike("csv", "csv", {"header": "true", "inferSchema": "true"}) == 4
        assert readers.alike("csv", "csv/k=[2-3]/*", {"header": "true", "basePath": "{root}/csv"}) == 2
        assert readers.alike("json", "json/a.json") == 2
        assert readers.alike("orc", "orc") == 9
        assert readers.alike("parquet", "pq") == 2


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Files], str, dict[str, str], str | None, str]] = {
    "lines inside of values": (lambda: {"f": TWO_ROWS}, "csv", {"multiLine": "true"}, None, "CSV with multiLine"),
    "an option of another reader": (
        lambda: {"f": TWO_ROWS},
        "csv",
        {"modifiedAfter": "2024-01-01"},
        None,
        "modifiedafter",
    ),
    "a sample": (lambda: {"f": TWO_ROWS}, "csv", {"samplingRatio": "0.1"}, None, "samplingratio=0.1"),
    "an encoding": (lambda: {"f": TWO_ROWS}, "csv", {"encoding": "UTF-16"}, None, "the encoding UTF-16"),
    "an alias of an encoding": (lambda: {"f": TWO_ROWS}, "json", {"charset": "utf8"}, None, "the encoding utf8"),
    "a compression": (lambda: {"f.snappy": TWO_ROWS}, "csv", {}, None, "f.snappy"),
    "merged schemas": (lambda: {"f": parquet(ROWS)}, "parquet", {"mergeSchema": "true"}, None, "mergeschema=true"),
    "a padded text": (lambda: {"f": b"a\n"}, "csv", {}, "a CHAR(3)", "has no CHAR and VARCHAR"),
    "other characters": (lambda: {"f": b"\xff\n"}, "csv", {}, None, "cannot be read as CSV in UTF-8"),
    "wide characters": (lambda: {"f": '{"a": 1}'.encode("utf-16-le")}, "json", {"multiLine": "true"}, None, "JSON"),
    "no Parquet": (lambda: {"f": b"nothing of it"}, "parquet", {}, None, "cannot be read as Parquet"),
    "no ORC": (lambda: {"f": b"nothing of it"}, "orc", {}, "a INT", "cannot be read as ORC"),
    "half a gzip": (lambda: {"f.gz": gzip.compress(TWO_ROWS * 9)[:30]}, "csv", {}, "a INT", "cannot be read as CSV"),
    "nanoseconds": (
        lambda: {"f": parquet(pa.table({"t": pa.array([1], pa.timestamp("ns"))}))},
        "parquet",
        {},
        None,
        "column 't'",
    ),
    "an instant as a wall clock's time": (
        lambda: {"f": parquet(ROWS.select(["ltz"]))},
        "parquet",
        {},
        "ltz TIMESTAMP_NTZ",
        "an instant has a zone",
    ),
    "doubtful folders": (lambda: {"k=1e5/f": TWO_ROWS}, "csv", {}, None, "partition column 'k'"),
    "mixed folders": (lambda: {"k=1/f": TWO_ROWS, "f": TWO_ROWS}, "csv", {}, None, "different partition columns"),
    "folders apart": (lambda: {"a/k=1/f": TWO_ROWS, "b/k=2/f": TWO_ROWS}, "csv", {}, None, "in different folders"),
    "folders in a partition": (
        lambda: {"k=1/f": TWO_ROWS, "k=1/x/k=2/f": TWO_ROWS},
        "parquet",
        {},
        None,
        "in different folders",
    ),
    "another base": (lambda: {"f": TWO_ROWS}, "csv", {"basePath": "{root}/other"}, None, "basePath"),
}


def test_text_with_an_older_pyspark_is_refused_with_what_to_install(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.3")
    readers.put({"f.csv": TWO_ROWS, "f.parquet": parquet(ROWS)})
    with pytest.raises(InvalidInput, match=r"csv by PySpark 4\.1\.3.*Install PySpark 4\.2 or later"):
        readers.ours("csv", "f.csv", {}, None)
    assert readers.ours("parquet", "f.parquet", {}, None).count() == 2


@pytest.mark.parametrize("name", ["folders apart", "folders in a partition"])
def test_spark_refuses_partition_folders_in_different_folders_too(name: str, readers: Readers) -> None:
    files, format, options, schema, _ = REFUSED[name]
    readers.put({f"in/{path}": data for path, data in files().items()})
    with pytest.raises(Exception, match="CONFLICTING_DIRECTORY_STRUCTURES"):
        readers.spark_s(format, "in", options, schema)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_as_spark_reads_it_is_refused_by_name(name: str, readers: Readers) -> None:
    files, format, options, schema, words = REFUSED[name]
    readers.put({f"in/{path}": data for path, data in files().items()})
    with pytest.raises(Exception) as caught:
        readers.ours(format, "in", options, schema).collect()
    error: TxlogError = translate(caught.value, "read")
    assert isinstance(error, InvalidInput), error
    assert words in error.message
