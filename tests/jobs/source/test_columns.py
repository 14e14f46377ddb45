"""Parquet sources whose footers say more than types, or differ: the rows are those of plain Spark, whoever reads them.

Each case is read in four ways: without Spark, by Spark's reader in a query, by the scan that takes its place in a load,
and as files of a store that Spark cannot read.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.executor.base import NeedsSpark
from airflow_txlog.jobs.files.scan import run_here, work_of
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source.frames import build_source
from airflow_txlog.jobs.source.listing import OnlySpark, files_in_store
from airflow_txlog.jobs.source.rows_here import rows_here
from airflow_txlog.jobs.source.stores import read_files
from airflow_txlog.jobs.spark.session import job_settings
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.storage import PLAIN
from tests.helpers.depth import depth
from tests.helpers.jobs import begin_job, committed, error_of
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seeded]

WAYS = ("without Spark", "in a load", "in a query", "in a store")[: depth(1, 4)]
CHAR, DEFAULT = "__CHAR_VARCHAR_TYPE_STRING", "EXISTS_DEFAULT"
US, NS = pa.timestamp("us"), pa.timestamp("ns")
NOON = dt.datetime(2024, 5, 6, 12, 0, 0, 123456)

Rows = list[tuple[Any, ...]]


def noted(table: pa.Table, *columns: tuple[str, Any, dict[str, str]]) -> pa.Table:
    """The table with the schema that Spark notes in a footer, as pyarrow keeps it of a file that it rewrites."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": noted} for name, kind, noted in columns]
    text = json.dumps({"type": "struct", "fields": fields})
    return table.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": text})


@dataclass(frozen=True)
class Case:
    """Files by their names, and the rows of a source of them: those of Spark (None), or these where it fails."""

    files: Mapping[str, pa.Table]
    rows: Rows | None = None
    spark_alone: bool = False
    """Whether a job without Spark asks for it, and a store's files are refused."""


def of(**arrays: pa.Array) -> Case:
    """A file for each array, in their order, with the one column `v`."""
    return Case({f"{name}.parquet": pa.table({"v": array}) for name, array in arrays.items()})


def read_as(rows: list[Any], case: Case) -> Case:
    return Case(case.files, [(value,) for value in rows])


def marked(mark: str, *texts: str | None) -> Case:
    return Case({"a.parquet": noted(pa.table({"v": list(texts)}), ("v", "string", {CHAR: mark}))})


def with_default(text: str, kind: Any, **more: str) -> Case:
    note = {DEFAULT: text, **more}
    return Case({"a.parquet": noted(pa.table({"id": [1, 2]}), ("id", "long", {}), ("d", kind, note))})


CASES: dict[str, Case] = {
    # What Spark has noted beside the types.
    "char": Case(
        {"a.parquet": noted(pa.table({"v": ["a", "é😀", "abcdefgh", "", None]}), ("v", "string", {CHAR: "char(5)"}))}
    ),
    "CHAR": marked(" CHAR( 3 ) ", "a"),
    "varchar": marked("varchar(5)", "a", None),
    "char of the first file alone": Case(
        {
            "a.parquet": noted(pa.table({"v": ["a"]}), ("v", "string", {CHAR: "char(3)"})),
            "b.parquet": pa.table({"v": ["b"]}),
        }
    ),
    "char of another file": Case(
        {
            "a.parquet": pa.table({"v": ["a"]}),
            "b.parquet": noted(pa.table({"v": ["b"]}), ("v", "string", {CHAR: "char(3)"})),
        }
    ),
    "char inside of a struct": Case(
        {
            "a.parquet": noted(
                pa.table({"v": [{"c": "a"}]}),
                (
                    "v",
                    {"type": "struct", "fields": [{"name": "c", "type": "string", "nullable": True, "metadata": {}}]},
                    {CHAR: "struct<c:char(5)>"},
                ),
            )
        },
        spark_alone=True,
    ),
    "a default of whole numbers": with_default("42", "integer"),
    "a default of long numbers": with_default("-42L", "long"),
    "a default of text": with_default("'x y'", "string"),
    "a default that is padded": with_default("'x'", "string", **{CHAR: "char(4)"}),
    "a default of dates": with_default("DATE '2020-01-02'", "date"),
    "a default of booleans": with_default("true", "boolean"),
    "a default of doubles": with_default("1.5D", "double"),
    "a default that is null": with_default("NULL", "integer"),
    "a default that is a calculation": with_default("1 + 1", "integer"),
    "a default that only Spark computes": Case(with_default("pmod(5, 3)", "integer").files, spark_alone=True),
    "a default that a newer file needs": Case(
        {
            "a.parquet": noted(pa.table({"v": [1], "d": ["a"]}), ("v", "long", {}), ("d", "string", {DEFAULT: "'x'"})),
            "b.parquet": pa.table({"v": [2]}),
        }
    ),
    "a default of no use": Case(
        {"a.parquet": noted(pa.table({"d": pa.array([None, 1])}), ("d", "long", {DEFAULT: "9"}))}
    ),
    "a column that a file lacks": Case(
        {"a.parquet": pa.table({"v": [1], "d": ["a"]}), "b.parquet": pa.table({"v": [2]})}
    ),
    # Files that differ.
    "long, int": of(a=pa.array([1]), b=pa.array([2], pa.int32())),
    "double, int": of(a=pa.array([1.5]), b=pa.array([2], pa.int32())),
    "double, float": of(a=pa.array([1.5]), b=pa.array([2.5], pa.float32())),
    "decimals of another scale": of(
        a=pa.array([Decimal("1.5000")], pa.decimal128(12, 4)), b=pa.array([Decimal("2.25")], pa.decimal128(10, 2))
    ),
    "decimal, int": of(a=pa.array([Decimal("1.50")], pa.decimal128(12, 2)), b=pa.array([3], pa.int32())),
    "time, date": of(a=pa.array([NOON], US), b=pa.array([NOON.date()])),
    "milliseconds": of(a=pa.array([NOON], US), b=pa.array([1], pa.timestamp("ms"))),
    "lists": of(a=pa.array([[1]]), b=pa.array([[2]], pa.list_(pa.int32()))),
    "int, nothing but null": of(a=pa.array([1], pa.int32()), b=pa.nulls(1)),
    "nothing but null": of(a=pa.nulls(2)),
    "other types without a row": of(a=pa.array([1]), b=pa.array([], pa.string())),
    # Those of which Spark reads no row.
    "int, long": read_as([1, 2**40], of(a=pa.array([1], pa.int32()), b=pa.array([2**40]))),
    "float, double": read_as([1.5, 2.25], of(a=pa.array([1.5], pa.float32()), b=pa.array([2.25]))),
    "short, int": read_as([1, 70_000], of(a=pa.array([1], pa.int16()), b=pa.array([70_000], pa.int32()))),
    "decimals of a wider scale": read_as(
        [Decimal("2.2500"), Decimal("1.5000")],
        of(a=pa.array([Decimal("2.25")], pa.decimal128(10, 2)), b=pa.array([Decimal("1.5000")], pa.decimal128(12, 4))),
    ),
    "lists of wider numbers": read_as(
        [[1], [2**40]], of(a=pa.array([[1]], pa.list_(pa.int32())), b=pa.array([[2**40]]))
    ),
    "null first": read_as([None, "b"], of(a=pa.nulls(1), b=pa.array(["b"]))),
    "null last": read_as(["a", None], of(a=pa.array(["a"]), b=pa.nulls(1))),
    "null among lists": read_as([None, [1]], of(a=pa.nulls(1), b=pa.array([[1]]))),
    "nanoseconds": read_as([NOON, None], of(a=pa.array([NOON, None], NS))),
    "nanoseconds with a zone": read_as(
        ["2024-05-06 12:00:00.123456Z"], of(a=pa.array([NOON.replace(tzinfo=dt.UTC)], pa.timestamp("ns", "UTC")))
    ),
    "microseconds, nanoseconds": read_as([NOON, NOON], of(a=pa.array([NOON], US), b=pa.array([NOON], NS))),
    "nanoseconds in lists": read_as([[NOON]], of(a=pa.array([[NOON]], pa.list_(NS)))),
}


def put(folder: Path, files: Mapping[str, pa.Table]) -> FileView:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in files.items():
        pq.write_table(table, folder / name)
    return FileView(format="parquet", path=str(folder))


def sorted_rows(table: pa.Table) -> list[str]:
    zoned = [pa.types.is_timestamp(each.type) and each.type.tz is not None for each in table.schema]
    columns = [
        (column.cast(pa.timestamp("us", "UTC")).cast(pa.string()) if has_zone else column).to_pylist()
        for column, has_zone in zip(table.columns, zoned, strict=True)
    ]
    return sorted(repr(row) for row in zip(*columns, strict=True))


def scanned(scan: FileScan) -> pa.Table:
    return run_here(work_of([Task(source=scan)]), scan.output_schema, "read the source", 1)


@pytest.fixture
def context(spark: SparkSession, tmp_path: Path) -> Iterator[JobContext]:
    with job_settings(spark, "UTC"):
        ship(spark)
        yield context_of(tmp_path, spark)


def context_of(tmp_path: Path, session: SparkSession | None) -> JobContext:
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": {"sql": "SELECT 1"}})
    return begin_job(spec, session, Table.at(spec.table_uri, PLAIN), print)


def read(way: str, context: JobContext, view: FileView, shelf: str) -> pa.Table:
    if way == "without Spark":
        rows = rows_here(context_of(Path(context.root).parent, None), view, "source", None)
        if isinstance(rows, OnlySpark):
            raise NeedsSpark(rows.why)
        return scanned(rows.scan(context))
    if way == "in a store":
        there = FileView(format="parquet", path=f"{shelf}{view.paths[0]}")
        return read_files(context, files_in_store(context, there, "source"))[0].toArrow()
    source = build_source(context, SqlGate(context), None, view)
    if way == "in a query":
        return source.frame.toArrow()
    scan = source.scan()
    return source.frame.toArrow() if scan is None else scanned(scan)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_the_rows_are_those_of_plain_spark_or_the_values_of_the_files(
    context: JobContext, tmp_path: Path, shelf: str, name: str, way: str
) -> None:
    case = CASES[name]
    view = put(tmp_path / "in", case.files)
    if case.spark_alone and way in ("without Spark", "in a store"):
        with pytest.raises((NeedsSpark, InvalidJobSpec)):
            read(way, context, view, shelf)
        return
    found = sorted_rows(read(way, context, view, shelf))
    if case.rows is not None:
        assert found == sorted(map(repr, case.rows))
    else:
        assert found == sorted_rows(context.spark.read.parquet(view.paths[0]).toArrow())


def test_a_padded_text_is_compared_without_its_padding(context: JobContext, tmp_path: Path, shelf: str) -> None:
    view = put(tmp_path / "in", CASES["char"].files)
    there = FileView(format="parquet", path=f"{shelf}{tmp_path}/in")
    frame, _ = read_files(context, files_in_store(context, there, "source"))
    for each in (frame, build_source(context, SqlGate(context), None, view).frame):
        assert [row.v for row in each.where("v = 'a'").collect()] == ["a    "]


REFUSED = {
    "UUID": (pa.array([b"0123456789abcdef"], pa.uuid()), "text"),
    "FLOAT16": (pa.array([np.float16(1.5)], pa.float16()), "float32"),
    "TIME": (pa.array([dt.time(1)], pa.time64("us")), "text or a whole number"),
    "TIME of nanoseconds": (pa.array([dt.time(1)], pa.time64("ns")), "text or a whole number"),
    "DECIMAL(40,2)": (pa.array([Decimal(1)], pa.decimal256(40, 2)), "at most 38 digits"),
    "a member": (pa.array([{"u": dt.time(1)}]), "text or a whole number"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_no_table_has_is_refused_by_the_names_of_file_column_and_type(
    context: JobContext, tmp_path: Path, shelf: str, name: str, way: str
) -> None:
    array, instead = REFUSED[name]
    view = put(tmp_path / "in", {"a.parquet": pa.table({"id": [1], "odd": array})})
    with pytest.raises(InvalidJobSpec) as error:
        read(way, context, view, shelf)
    kind = "TIME" if name == "a member" else name.partition(" of")[0]
    for part in (f"{tmp_path}/in/a.parquet", "'odd", f"of the type {kind}", instead):
        assert part in str(error.value)


APART = {
    "text": of(a=pa.array([1]), b=pa.array(["2"])),
    "double": of(a=pa.array([1]), b=pa.array([2.5])),
    "a list": of(a=pa.array([1]), b=pa.array([[2]])),
    "digits": of(a=pa.array([Decimal(1)], pa.decimal128(38, 0)), b=pa.array([Decimal("0.5")], pa.decimal128(38, 30))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", APART)
def test_files_that_no_type_holds_are_refused_by_the_names_of_file_and_column(
    context: JobContext, tmp_path: Path, shelf: str, name: str, way: str
) -> None:
    view = put(tmp_path / "in", APART[name].files)
    if way in ("in a query", "in a load"):
        files = {"format": "parquet", "path": view.path}
        in_query = {"sql": "SELECT * FROM v", "views": {"v": files}}
        arguments = {"source": in_query if way == "in a query" else files}
        spec, lines = job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments=arguments), list[str]()
        error = error_of(run_job(spec, context.spark, log=lines.append))
        # Of a nested column Spark names the file alone, and the job's log has the column.
        is_known = not (way == "in a query" and name == "a list")
        assert error["type"] in (("InvalidInput", "InvalidJobSpec") if is_known else ("JobError",))
        found = " ".join([error["message"], *lines])
    else:
        with pytest.raises(InvalidJobSpec) as raised:
            read(way, context, view, shelf)
        found = str(raised.value)
    assert "b.parquet" in found
    assert "'v'" in found or "[v]" in found


@pytest.mark.parametrize("way", WAYS)
def test_nanoseconds_that_microseconds_do_not_hold_are_refused_and_never_cut(
    context: JobContext, tmp_path: Path, shelf: str, way: str
) -> None:
    view = put(tmp_path / "in", {"a.parquet": pa.table({"t": pa.array([1_000, 1_001], NS)})})
    if way in ("in a query", "in a load"):
        files = {"format": "parquet", "path": view.path}
        in_query = {"sql": "SELECT * FROM v", "views": {"v": files}}
        arguments = {"source": in_query if way == "in a query" else files}
        error = error_of(
            run_job(job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments=arguments), context.spark)
        )
        found = error["message"]
        assert error["type"] == "InvalidInput"
    else:
        with pytest.raises(Exception, match="nanoseconds") as raised:
            read(way, context, view, shelf)
        found = str(raised.value)
    assert "a.parquet" in found
    assert "'t'" in found
    assert "datetime64[us]" in found


def levels_of_nothing(path: Path) -> None:
    """A file as DuckDB writes a NULL array of two elements: two levels of nothing, where one would do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"id": [7], "c": pa.array([[None, None]], pa.list_(pa.bool_()))})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(rows, path, **options)
    data, levels = path.read_bytes(), b"\x02\x00\x00\x00\x04"
    assert data.count(levels + b"\x02") == 1
    path.write_bytes(data.replace(levels + b"\x02", levels + b"\x00"))


def write_of(tmp_path: Path, source: Any) -> Any:
    return job_spec(operation="write", table_uri=f"{tmp_path}/t", arguments={"source": source})


@pytest.mark.parametrize("begun", ["with Spark", "without"])
def test_what_arrow_cannot_decode_is_read_by_spark(spark: SparkSession, tmp_path: Path, begun: str) -> None:
    levels_of_nothing(tmp_path / "in" / "a.parquet")
    [expected] = spark.read.parquet(f"{tmp_path}/in").collect()
    spec, said = write_of(tmp_path, {"format": "parquet", "path": f"{tmp_path}/in"}), []
    if begun == "with Spark":
        committed(run_job(spec, spark, log=said.append))
    else:
        committed(run_job(spec, None, start=lambda: spark, log=said.append))
    assert Table.open(f"{tmp_path}/t").to_arrow().to_pylist() == [{"id": expected.id, "c": expected.c}]
    assert any("Arrow cannot decode" in line and "a.parquet" in line for line in said)


def test_a_merge_goes_on_with_spark_where_arrow_cannot_decode_the_source(spark: SparkSession, tmp_path: Path) -> None:
    levels_of_nothing(tmp_path / "in" / "a.parquet")
    schema = pa.schema([("id", pa.int64()), ("c", pa.list_(pa.bool_()))])
    Table.create(f"{tmp_path}/t", schema)
    arguments = {"source": {"format": "parquet", "path": f"{tmp_path}/in"}, "keys": ["id"]}
    spec = job_spec(operation="upsert", table_uri=f"{tmp_path}/t", arguments=arguments)
    committed(run_job(spec, None, start=lambda: spark))
    assert Table.open(f"{tmp_path}/t").to_arrow().to_pylist() == [{"id": 7, "c": None}]


def test_in_a_store_the_message_does_not_blame_the_file(spark: SparkSession, tmp_path: Path, shelf: str) -> None:
    levels_of_nothing(tmp_path / "in" / "a.parquet")
    spec = write_of(tmp_path, {"format": "parquet", "path": f"{shelf}{tmp_path}/in"})
    for session in (spark, None):
        error = error_of(run_job(spec, session))
        assert error["type"] == "InvalidInput"
        assert "pyarrow" in error["message"]
        assert "Other readers may read it" in error["message"]
        assert "Correct the file" not in error["message"]


def test_a_file_that_neither_reads_is_called_unreadable_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", {"a.parquet": pa.table({"id": list(range(9))})})
    data = bytearray((tmp_path / "in" / "a.parquet").read_bytes())
    data[4:16] = bytes([0xFF] * 12)
    (tmp_path / "in" / "a.parquet").write_bytes(data)
    spec = write_of(tmp_path, {"format": "parquet", "path": f"{tmp_path}/in"})
    for job in (lambda: run_job(spec, spark), lambda: run_job(spec, None, start=lambda: spark)):
        error = error_of(job())
        assert error["type"] == "InvalidInput"
        assert f"{tmp_path}/in/a.parquet cannot be read as Parquet" in error["message"]
    assert not (tmp_path / "t").exists()
