"""Parquet files of a source that Arrow reads where their rows are written: the rows are those of Spark."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from airflow_txlog.contract.operations import FileView
from airflow_txlog.datafiles.tasks.rows_without_log import ParquetScan
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import ConstraintViolation, InvalidInput
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import over_bins
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.source import frames
from airflow_txlog.jobs.source.columns import found_with_columns
from airflow_txlog.jobs.source.frames import build_source
from airflow_txlog.jobs.source.listing import OnlySpark
from airflow_txlog.jobs.source.rows_here import rows_here
from airflow_txlog.jobs.spark.session import job_settings, names_this_disk
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schemas import as_spark_schema, without_metadata
from airflow_txlog.storage import PLAIN
from tests.helpers import layouts
from tests.helpers.depth import in_long
from tests.helpers.jobs import begin_job, random_rows, spark_bag
from tests.helpers.specs import job_spec
from tests.jobs.source.test_stores import ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TEXTS = pa.table({"id": [1, 2], "name": ["a", None]})


@pytest.fixture
def context(spark: SparkSession, tmp_path: Path) -> Iterator[JobContext]:
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": {"sql": "SELECT 1"}})
    with job_settings(spark, "Europe/Berlin"):
        ship(spark)
        yield begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print)


def put(path: Path, rows: pa.Table, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **options)


def given(context: JobContext, view: FileView) -> StructType | None:
    """The columns that Spark's reader is given."""
    known = found_with_columns(context, view, "source") if names_this_disk(context.spark) else None
    return None if known is None else known[1].inferred


def both(
    context: JobContext, folder: Path | str, schema: str | None = None, **options: str
) -> tuple[DataFrame, FileScan | None]:
    """The frame that Spark reads of the files, and our scan of them, where there is one."""
    view = FileView(format="parquet", path=str(folder), options=options, schema=schema)
    reader = context.spark.read.format("parquet").options(**options)
    frame = (reader if schema is None else reader.schema(schema)).load(str(folder))
    columns = None if schema else given(context, view)
    assert columns is None or as_spark_schema(columns) == without_metadata(frame.schema)
    return frame, build_source(context, SqlGate(context), None, view).scan()


def check_alike(context: JobContext, folder: Path | str, schema: str | None = None, **options: str) -> int:
    """How many rows both read. Their schemas and rows are asserted to be equal."""
    frame, scan = both(context, folder, schema, **options)
    assert scan is not None
    ours = over_bins(context.spark, Task(source=scan), scan.output_schema)
    assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in frame.schema]
    found = spark_bag(ours)
    assert found == spark_bag(frame)
    return sum(found.values())


def test_the_rows_are_those_that_spark_reads(context: JobContext, tmp_path: Path) -> None:
    put(tmp_path / "types" / "a.parquet", ROWS, row_group_size=1)
    put(tmp_path / "types" / "b.parquet", ROWS.slice(1))
    assert check_alike(context, tmp_path / "types") == 3
    put(tmp_path / "many" / "é %25 +=.parquet", random_rows(random.Random(7), 500), row_group_size=100)
    assert check_alike(context, tmp_path / "many") == 500
    old = ROWS.select(["ntz", "day", "text"]).rename_columns(["int96", "day", "text"])
    put(tmp_path / "old" / "a.parquet", old, use_deprecated_int96_timestamps=True, version="1.0")
    assert check_alike(context, tmp_path / "old") == 2
    put(tmp_path / "lists" / "a.parquet", ROWS.select(["list", "struct"]), use_compliant_nested_type=False)
    assert check_alike(context, tmp_path / "lists") == 2
    written = (
        "SELECT 1Y AS b, 1.50BD AS d, map('k', array(1, null)) AS m, CAST('c' AS CHAR(3)) AS c, timestamp'2024-01-01' t"
    )
    context.spark.sql(written).write.parquet(str(tmp_path / "spark"))
    assert check_alike(context, tmp_path / "spark") == 1


def test_a_spark_whose_settings_are_known_leaves_files_to_the_tasks(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    (tmp_path / "spark-defaults.conf").touch()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert check_alike(context, tmp_path / "in") == 2


@pytest.mark.parametrize("name", [*list(layouts.ALIKE)[::2], *in_long("Spark reads each", *list(layouts.ALIKE)[1::2])])
def test_layouts_of_other_writers_are_read_as_spark_reads_them(context: JobContext, tmp_path: Path, name: str) -> None:
    columns, rows = layouts.ALIKE[name]
    layouts.write_layout(context.spark, tmp_path / "in" / "a.parquet", columns, rows)
    assert check_alike(context, tmp_path / "in") == len(rows)


@pytest.mark.parametrize(
    "name", [*list(layouts.SPARK_ALONE)[::2], *in_long("Spark reads each", *list(layouts.SPARK_ALONE)[1::2])]
)
def test_layouts_that_spark_reads_in_its_own_way_are_left_to_it(context: JobContext, tmp_path: Path, name: str) -> None:
    layouts.write_layout(context.spark, tmp_path / "in" / "a.parquet", layouts.SPARK_ALONE[name], [])
    view = FileView(format="parquet", path=str(tmp_path / "in"))
    rows = rows_here(context, view, "source", None)
    assert isinstance(rows, OnlySpark)
    assert "not certain" in rows.why
    if name != "a map of keys alone":
        assert both(context, tmp_path / "in")[1] is None


def test_nulls_in_a_list_of_fixed_size_are_none_of_its_neighbour_s(context: JobContext, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", pa.table({"c": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))}))
    assert check_alike(context, tmp_path / "in") == 3


def test_a_schema_that_spark_noted_for_another_file_is_no_schema_of_this_one(
    context: JobContext, tmp_path: Path
) -> None:
    context.spark.sql("SELECT 'ab' AS c").write.parquet(str(tmp_path / "noted"))
    [noted] = (tmp_path / "noted").glob("*.parquet")
    rows = pa.table({"c": pa.array([b"ab"], pa.binary(2))})
    put(tmp_path / "in" / "a.parquet", rows.replace_schema_metadata(pq.read_schema(noted).metadata))
    assert both(context, tmp_path / "in")[1] is None


def test_a_decimal_of_more_digits_than_its_type_is_refused(context: JobContext, tmp_path: Path) -> None:
    layouts.write_layout(
        context.spark, tmp_path / "in" / "a.parquet", "optional int32 c (DECIMAL(5,2));", [{"c": 12345678}]
    )
    with pytest.raises(InvalidInput, match="more digits"):
        write(context.spark, tmp_path / "new", tmp_path / "in")


def test_paths_options_and_a_schema_name_the_same_rows(context: JobContext, tmp_path: Path) -> None:
    put(tmp_path / "in" / "day=1" / "a.parquet", TEXTS)
    put(tmp_path / "in" / "day=1" / "_hidden.parquet", TEXTS)
    put(tmp_path / "in" / "day=1" / "other", pa.table({"id": [7], "name": ["z"], "more": [1.5]}))
    # Of this folder alone Spark makes no column.
    assert check_alike(context, tmp_path / "in" / "day=1", schema="NAME STRING, id BIGINT") == 3
    assert check_alike(context, tmp_path / "in" / "*" / "*.parquet") == 2
    assert check_alike(context, tmp_path / "in" / "day=1", pathGlobFilter="o*") == 1


def _julian(rows: pa.Table) -> pa.Table:
    return rows.replace_schema_metadata({"org.apache.spark.version": "2.4.8"})


def _with_folders(folder: Path) -> None:
    put(folder / "id=5" / "a.parquet", TEXTS)


def _not_parquet(folder: Path) -> None:
    put(folder / "a.parquet", TEXTS)
    (folder / "b.parquet").write_bytes(b"nothing of it")


SPARK_ALONE: dict[str, tuple[Callable[[Path], None], dict[str, str]]] = {
    "a column that a folder has too": (_with_folders, {}),
    "a column of a folder": (lambda folder: put(folder / "k=5" / "a.parquet", TEXTS), {}),
    "an old calendar": (lambda folder: put(folder / "a.parquet", _julian(ROWS.select(["day"]))), {}),
    "a type that Arrow reads in another way": (
        lambda folder: put(folder / "a.parquet", pa.table({"id": [1], "t": pa.array([1], pa.time64("us"))})),
        {"schema": "id BIGINT"},
    ),
    "a type that was asked for": (lambda folder: put(folder / "a.parquet", TEXTS), {"schema": "id INT"}),
    "what is no Parquet": (_not_parquet, {}),
    "names that differ in case": (
        lambda folder: put(folder / "a.parquet", pa.table({"id": [1], "ID": [2], "name": ["a"]})),
        {"schema": "name STRING"},
    ),
}


@pytest.mark.parametrize("name", SPARK_ALONE)
def test_what_is_not_certain_is_left_to_spark(context: JobContext, tmp_path: Path, name: str) -> None:
    make, options = SPARK_ALONE[name]
    make(tmp_path / "in")
    assert both(context, tmp_path / "in", **options)[1] is None


def write(spark: SparkSession, table: Path, source: Path, **arguments: Any) -> Any:
    arguments = {"source": {"format": "parquet", "path": str(source)}, **arguments}
    result = run_job(job_spec(operation="write", table_uri=str(table), arguments=arguments), spark)
    error = result.typed_error()
    if error is not None:
        raise error
    return result


def test_an_append_writes_them_without_spark_s_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def seen(*given: Any) -> FileScan | None:
        taken.append(scan_of(*given))
        return taken[-1]

    scan_of = frames._scan_of
    monkeypatch.setattr(frames, "_scan_of", seen)
    put(tmp_path / "in" / "a.parquet", TEXTS)
    put(tmp_path / "more" / "a.parquet", pa.table({"NAME": ["c"]}))
    write(spark, tmp_path / "t", tmp_path / "in")
    result = write(spark, tmp_path / "t", tmp_path / "more")

    assert [type(scan) for scan in taken] == [ParquetScan, ParquetScan]
    assert result.metrics["numOutputRows"] == 1
    rows = Table.open(str(tmp_path / "t")).to_arrow().sort_by("name").to_pylist()
    assert rows == [{"id": 1, "name": "a"}, {"id": None, "name": "c"}, {"id": 2, "name": None}]


def noted(context: JobContext, view: FileView) -> list[str] | None:
    columns = given(context, view)
    return None if columns is None else [f"{field.name} {field.type}" for field in columns]


def test_spark_starts_no_job_for_the_columns(context: JobContext, tmp_path: Path) -> None:
    put(tmp_path / "in" / "b.parquet", TEXTS)
    put(tmp_path / "in" / "a.parquet", TEXTS.select(["id"]))
    view = FileView(format="parquet", path=str(tmp_path / "in"))
    assert noted(context, view) == ["id long"]

    before = context.spark.sparkContext.statusTracker().getJobIdsForGroup()
    source = build_source(context, SqlGate(context), None, view)
    assert source.frame.columns == ["id"] == context.spark.read.parquet(str(tmp_path / "in")).columns
    during = context.spark.sparkContext.statusTracker().getJobIdsForGroup()
    # That of the line above.
    assert len(set(during) - set(before)) == 1


def _marked_as_char(context: JobContext, folder: Path) -> FileView:
    context.spark.sql("SELECT 1 AS id").select(F.lit("a").alias("c", metadata={"comment": "a"})).write.parquet(
        str(folder)
    )
    return FileView(format="parquet", path=str(folder))


def _of_no_byte(context: JobContext, folder: Path) -> FileView:
    put(folder / "a.parquet", TEXTS)
    (folder / "b.parquet").write_bytes(b"")
    return FileView(format="parquet", path=str(folder))


def _below_a_value(context: JobContext, folder: Path) -> FileView:
    put(folder / "k=1" / "a.parquet", TEXTS)
    return FileView(format="parquet", path=str(folder))


def _nothing(context: JobContext, folder: Path) -> FileView:
    folder.mkdir()
    return FileView(format="parquet", path=str(folder))


def _with_another_s_note(context: JobContext, folder: Path) -> FileView:
    context.spark.sql("SELECT 1L AS id, 'a' AS other").write.parquet(str(folder / "noted"))
    [noted] = (folder / "noted").glob("*.parquet")
    put(folder / "in" / "a.parquet", TEXTS.replace_schema_metadata(pq.read_schema(noted).metadata))
    return FileView(format="parquet", path=str(folder / "in"))


LEFT_TO_SPARK = (
    _with_another_s_note,
    _marked_as_char,
    _of_no_byte,
    _below_a_value,
    _nothing,
)


@pytest.mark.parametrize("make", LEFT_TO_SPARK)
def test_spark_says_the_columns_where_the_footer_may_not(
    context: JobContext, tmp_path: Path, make: Callable[[JobContext, Path], FileView]
) -> None:
    assert noted(context, make(context, tmp_path / "in")) is None


OTHER_WAYS = {
    "spark.sql.parquet.int96AsTimestamp": "false",
    "spark.sql.legacy.parquet.datetimeRebaseModeInRead": "LEGACY",
    "fs.defaultFS": "hdfs://nowhere",
}


@pytest.mark.parametrize(("name", "value"), OTHER_WAYS.items())
def test_a_session_that_reads_in_another_way_says_the_columns(
    context: JobContext, tmp_path: Path, name: str, value: str
) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    view = FileView(format="parquet", path=str(tmp_path / "in"))
    assert noted(context, view) == ["id long", "name string"]
    context.spark.conf.set(name, value)
    try:
        assert noted(context, view) is None
    finally:
        context.spark.conf.unset(name)


def test_a_file_that_breaks_while_it_is_read_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    write(spark, tmp_path / "t", tmp_path / "in")
    before = sorted(path.name for path in (tmp_path / "t").glob("*.parquet"))
    put(tmp_path / "in" / "b.parquet", pa.table({"id": list(range(9)), "name": ["x"] * 9}), compression="none")
    data = bytearray((tmp_path / "in" / "b.parquet").read_bytes())
    # The head of the first page, not the footer.
    data[4:16] = struct.pack("<12B", *[0xFF] * 12)
    (tmp_path / "in" / "b.parquet").write_bytes(data)

    with pytest.raises(InvalidInput, match=r"The source's file .*b\.parquet cannot be read as Parquet"):
        write(spark, tmp_path / "t", tmp_path / "in")
    assert sorted(path.name for path in (tmp_path / "t").glob("*.parquet")) == before


def test_a_null_where_the_table_forbids_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.parquet", TEXTS)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    Table.create(str(tmp_path / "t"), schema)
    with pytest.raises(ConstraintViolation, match="'name' is NOT NULL"):
        write(spark, tmp_path / "t", tmp_path / "in")
    assert Table.open(str(tmp_path / "t")).latest_version() == 0
