"""Folders that many writers leave: converted, the rows are those that Spark reads there, or an error names a file."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.depth import in_long
from tests.helpers.jobs import committed, error_of, random_rows, run
from tests.helpers.readers import rows_by_delta_rs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def put(folder: Path, name: str, rows: pa.Table = PLAIN, **options: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / name, **options)


def by_spark(sql: str, *partition_by: str, **conf: str) -> Callable[[Path, SparkSession], None]:
    def make(folder: Path, spark: SparkSession) -> None:
        for name, value in conf.items():
            spark.conf.set(name.replace("__", "."), value)
        try:
            spark.sql(sql).write.partitionBy(*partition_by).parquet(str(folder))
        finally:
            for name in conf:
                spark.conf.unset(name.replace("__", "."))

    return make


def by_pandas(folder: Path, _: SparkSession) -> None:
    frame = PLAIN.to_pandas().assign(at=dt.datetime(2024, 1, 1, 12), day=["x", "y y", "x"])
    frame["at"] = frame["at"].astype("datetime64[us]")
    frame.to_parquet(folder, partition_cols=["day"])


def by_arrow(*files: tuple[str, pa.Table], **options: Any) -> Callable[[Path, SparkSession], None]:
    def make(folder: Path, _: SparkSession) -> None:
        for name, rows in files:
            put(folder, name, rows, **options)

    return make


def by_deltalake(folder: Path, _: SparkSession) -> None:
    """Files of a writer in Rust, without its log."""
    from deltalake import write_deltalake

    write_deltalake(folder, PLAIN)
    shutil.rmtree(folder / "_delta_log")


def of_dataset(folder: Path, _: SparkSession) -> None:
    parts = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    rows = PLAIN.append_column("p", pa.array(["a/b", "50%", None], pa.string()))
    ds.write_dataset(rows, folder, format="parquet", partitioning=parts)


def corrupt(folder: Path, _: SparkSession) -> None:
    put(folder, "a.parquet")
    (folder / "bad.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-9] + b"x" * 9)


DECIMALS = [pa.table({"m": pa.array([Decimal("1.50")], pa.decimal128(size, 2))}) for size in (5, 30)]
STRUCTS = [pa.table({"n": [{"x": 1}]}), pa.table({"n": [{"y": "q", "x": 2}]})]
SPARK = "SELECT id, IF(id = 1, NULL, CAST(id AS STRING)) AS name, DATE'2024-01-01' + INT(id) AS day FROM range(4)"
INT96 = {"spark__sql__parquet__outputTimestampType": "INT96"}
LEGACY = {"spark__sql__parquet__writeLegacyFormat": "true"}

# The maker of a folder, its partition columns, and None or the start of the error's class.
FOLDERS: dict[str, tuple[Callable[[Path, SparkSession], None], str | None, str | None]] = {
    "Spark": (by_spark(SPARK), None, None),
    "Spark by days": (by_spark(SPARK, "day"), "day DATE", None),
    "Spark by two columns": (
        by_spark(f"SELECT *, id % 2 AS odd FROM ({SPARK})", "day", "odd"),
        "odd INT, day DATE",
        None,
    ),
    "Spark by nulls": (by_spark(SPARK, "name"), "name INT", None),
    "Spark by odd texts": (
        by_spark("SELECT id, concat('a:b=%/', id, ' ü+\"') AS s FROM range(3)", "s"),
        "s STRING",
        None,
    ),
    "Spark by times": (
        by_spark(
            "SELECT id, TIMESTAMP'2024-01-01 10:00:00' + make_interval(0,0,0,0,INT(id)) AS at FROM range(3)", "at"
        ),
        "at TIMESTAMP",
        None,
    ),
    "INT96": (by_spark("SELECT id, TIMESTAMP'2024-01-01 10:00:00' AS at FROM range(3)", **INT96), None, None),
    "legacy decimals": (by_spark("SELECT CAST(id AS DECIMAL(10,2)) AS m FROM range(3)", **LEGACY), None, None),
    "nested by Spark": (
        by_spark("SELECT id, named_struct('x', id, 'l', array(id)) AS n, map('k', id) AS m FROM range(3)"),
        None,
        None,
    ),
    "char by Spark": (by_spark("SELECT CAST('ab' AS VARCHAR(5)) AS c, id FROM range(2)"), None, None),
    "Spark without rows": (by_spark(f"{SPARK} WHERE id < 0"), None, None),
    "pandas": (by_pandas, "day STRING", None),
    "deltalake's files": (by_deltalake, None, None),
    "an Arrow dataset": (of_dataset, "p STRING", None),
    "Hive's names": (
        by_arrow(("day=2024-01-01/000000_0", PLAIN), ("day=2024-01-02/000000_0", PLAIN)),
        "day DATE",
        None,
    ),
    "percent in names": (by_arrow(("a%20b c#d.parquet", PLAIN), ("é?.parquet", PLAIN)), None, None),
    "other columns": (by_arrow(("a.parquet", PLAIN), ("b.parquet", pa.table({"x": [1.5], "id": [9]}))), None, None),
    "decimals of two sizes": (by_arrow(("a.parquet", DECIMALS[0]), ("b.parquet", DECIMALS[1])), None, None),
    "structs of two kinds": (by_arrow(("a.parquet", STRUCTS[0]), ("b.parquet", STRUCTS[1])), None, None),
    "dictionaries": (by_arrow(("a.parquet", pa.table({"d": pa.array(["x", "y"]).dictionary_encode()}))), None, None),
    "unsigned numbers": (by_arrow(("a.parquet", pa.table({"u": pa.array([1, 2**32 - 1], pa.uint32())}))), None, None),
    "no row in one": (by_arrow(("a.parquet", PLAIN), ("b.parquet", PLAIN.slice(0, 0))), None, None),
    "old pages": (
        by_arrow(("a.parquet", PLAIN), version="1.0", data_page_version="1.0", compression="gzip"),
        None,
        None,
    ),
    "two types": (by_arrow(("a.parquet", PLAIN), ("b.parquet", pa.table({"id": ["x"]}))), None, "SchemaMismatch"),
    "only nulls": (
        by_arrow(("a.parquet", PLAIN), ("b.parquet", pa.table({"name": pa.nulls(1)}))),
        None,
        "SchemaMismatch",
    ),
    "one corrupt": (corrupt, None, "CorruptDataFile"),
}


def normal(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, normal(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(normal, value))
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def rows_by_spark(spark: SparkSession, folder: Path, schema: str | None) -> tuple[list[str], Counter[Any]]:
    frame = spark.read.option("mergeSchema", "true").parquet(str(folder))
    for column in [] if schema is None else schema.split(", "):
        name, kind = column.split(" ")
        frame = frame.withColumn(name, frame[name].cast(kind))
    found = frame.toArrow()
    return found.schema.names, Counter(normal(list(row.values())) for row in found.to_pylist())


@pytest.mark.parametrize(
    "name", [*list(FOLDERS)[::2], *in_long("Spark writes each of the folders", *list(FOLDERS)[1::2])]
)
def test_a_converted_folder_has_the_rows_that_spark_reads_there(name: str, tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "t"
    make, schema, refused = FOLDERS[name]
    make(folder, spark)
    if refused is not None:
        with pytest.raises(Exception):  # noqa: B017 - of Spark or of the JVM
            spark.read.option("mergeSchema", "true").parquet(str(folder)).collect()
        error = error_of(run(None, "convert", folder, partition_schema=schema))
        assert error["type"] == refused
        assert "b.parquet" in error["message"] or "bad.parquet" in error["message"]
        return
    names, expected = rows_by_spark(spark, folder, schema)
    committed(run(None, "convert", folder, partition_schema=schema))
    rows = Table.open(folder).to_arrow()
    assert rows.schema.names == [name for name in rows.schema.names if name in names]
    assert set(rows.schema.names) == set(names)
    assert Counter(normal(list(row.values())) for row in rows.select(names).to_pylist()) == expected
    other = rows_by_delta_rs(str(folder))
    assert other is not None
    assert other.num_rows == rows.num_rows


@pytest.mark.long("Spark runs many jobs")
def test_statistics_of_footers_skip_no_row(tmp_path: Path) -> None:
    random_of = random.Random(7)
    for number in range(12):
        put(tmp_path / "t", f"{number}.parquet", random_rows(random_of, 9), row_group_size=random_of.choice([2, 100]))
    committed(run(None, "convert", tmp_path / "t"))
    table = Table.open(tmp_path / "t")
    every = table.to_arrow().to_pylist()
    assert len(every) == 108
    for name in ("i", "l", "f", "s", "d", "ts", "dec"):
        held = Counter(row[name] for row in every)
        assert table.to_arrow(f"{name} IS NULL").num_rows == held.pop(None)
        for value, count in held.items():
            if value == value:
                assert table.to_arrow(f"{name} = :v", parameters={"v": value}).num_rows == count, (name, value)
