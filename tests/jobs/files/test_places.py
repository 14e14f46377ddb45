"""Alone in showing jobs in folders of any name, plans too large to send along, and what a column stores by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.files.scan import SCANNED_PIECE_BYTES, parts_of, task_count
from airflow_txlog.jobs.sql.schemas import can_store
from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import committed, files_on_disk, ids, insert, merge, rows, run, update
from tests.helpers.rows import bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = "SELECT id, 'new' AS name FROM VALUES (3L), (77L) AS v(id)"
UPSERT = [update({"name": "s.name"}), insert({"id": "s.id", "name": "s.name"})]


@pytest.mark.spark
def test_folders_may_have_any_name(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "_hidden" / "a[1]{b,c}*" / "per%20cent" / "with space" / "p=1" / "a#b?c" / "é+ü" / "t"
    source = {"sql": "SELECT id, concat('n', id) AS name, id % 2 AS p FROM range(10)"}
    committed(run(spark, "write", folder, source=source, partition_by=["p"]))
    table = Table.open(str(folder))
    committed(run(spark, "delete", table, predicate="id = 4"))
    committed(merge(spark, table, SOURCE, *UPSERT))
    committed(run(spark, "write", table, source={"table": str(folder)}, mode="overwrite"))
    assert ids(table) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 77]
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]


@pytest.mark.spark
def test_partition_values_of_any_text_survive_every_job(tmp_path: Path, spark: SparkSession) -> None:
    values = ["a/b", "x:y", "per%20cent", "é ü", "p=1", "#?", "'quoted'", "\n", " ", None]
    data = pa.table({"id": pa.array(range(10), pa.int64()), "name": values, "p": pa.array(values)})
    table = make_table(tmp_path / "t", data, partition_by=["p"])
    committed(merge(spark, table, "SELECT id FROM range(0, 10)", update({"id": "t.id + 100"})))
    committed(run(spark, "delete", table, predicate="p = :p", parameters={"p": "x:y"}))
    committed(run(spark, "write", table, source={"table": table.uri}, mode="overwrite"))
    found = table.to_arrow().to_pylist()
    assert sorted(row["id"] for row in found) == [k for k in range(100, 110) if k != 101]
    assert all(row["name"] == row["p"] for row in found)


@pytest.mark.spark
def test_a_plan_too_large_to_send_along_is_left_in_files(tmp_path: Path, spark: SparkSession) -> None:
    limits = Limits(inline_plan_bytes=10)
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50))
    seen: set[str] = set()

    def log(line: str) -> None:
        seen.update(files_on_disk(table))

    committed(run(spark, "delete", table, predicate="id IN (3, 55)", log=log, limits=limits))
    committed(merge(spark, table, SOURCE, *UPSERT, limits=limits))
    assert any(path.startswith("txlog-inputs-") and path.endswith(".arrow") for path in seen)
    assert not [path for path in files_on_disk(table) if "txlog-inputs" in path]
    assert ids(table) == sorted({*range(10), *range(50, 60), 77} - {3, 55} | {3})


def test_there_are_one_or_two_tasks_a_core_and_fewer_for_little_work() -> None:
    mib = 1024 * 1024
    assert task_count(2, [1000] * 50) == 1
    assert task_count(2, [16 * mib] * 16) == 2
    assert task_count(2, [16 * mib]) == 1
    assert task_count(2, [128 * mib] * 16) == 4
    assert task_count(100, [5 * mib] * 1000) == 100
    assert task_count(4, []) == 1


def test_a_file_that_is_much_of_the_work_goes_to_several_tasks() -> None:
    mib = 1024 * 1024
    assert parts_of(2, [16 * mib] * 16) == [1] * 16
    assert parts_of(2, [1024 * mib]) == [4]
    # The straggler alone is cut, into what the others are.
    assert parts_of(4, [1024 * mib, *[128 * mib] * 8]) == [4, *[1] * 8]
    assert parts_of(100, [1024 * mib, 0, 100 * mib]) == [8, 1, 1]
    assert parts_of(4, []) == []
    # A task that writes nothing takes smaller parts.
    assert parts_of(2, [40 * mib]) == [1]
    assert parts_of(2, [40 * mib], SCANNED_PIECE_BYTES) == [2]
    assert parts_of(2, [40 * mib] * 2, SCANNED_PIECE_BYTES) == [1, 1]


STORED = [
    ("int", "bigint", True, True),
    ("bigint", "int", True, False),
    ("bigint", "decimal(5,0)", True, False),
    ("bigint", "double", True, True),
    ("double", "bigint", False, False),
    ("double", "float", False, False),
    ("float", "double", True, True),
    ("decimal(5,2)", "decimal(7,3)", True, True),
    ("decimal(7,2)", "decimal(5,2)", True, False),
    ("decimal(7,3)", "decimal(9,2)", False, False),
    ("decimal(5,2)", "double", True, True),
    ("double", "decimal(5,2)", False, False),
    ("date", "timestamp", True, True),
    ("timestamp", "date", False, False),
    ("timestamp", "timestamp_ntz", True, True),
    ("int", "string", True, True),
    ("string", "int", False, False),
    ("string", "date", False, False),
    ("array<int>", "string", False, False),
    ("array<int>", "array<int>", True, True),
    ("array<int>", "array<bigint>", True, True),
    ("array<bigint>", "array<int>", True, False),
    ("array<string>", "array<int>", False, False),
    ("map<string,int>", "map<string,double>", True, True),
    ("map<string,int>", "array<int>", False, False),
    ("struct<a:int>", "struct<b:string,a:bigint>", True, True),
    ("struct<a:int>", "struct<b:string not null,a:bigint>", False, False),
    ("struct<a:int,c:int>", "struct<b:string,a:bigint>", False, False),
    ("void", "array<int>", True, True),
    ("struct<a:int>", "struct<A:int>", True, True),
    ("struct<a:int>", "struct<b:int>", False, False),
    ("boolean", "int", False, False),
    ("binary", "string", False, False),
]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # types are parsed by the JVM
@pytest.mark.parametrize(("found", "wanted", "ansi", "lenient"), STORED)
def test_a_value_is_stored_by_itself_only_where_nothing_is_lost_unnoticed(
    found: str, wanted: str, ansi: bool, lenient: bool
) -> None:
    from pyspark.sql.types import DataType

    one, other = DataType.fromDDL(found), DataType.fromDDL(wanted)
    assert (can_store(one, other, ansi=True), can_store(one, other, ansi=False)) == (ansi, lenient)


@pytest.mark.spark
def test_casts_by_themselves_give_what_sparks_insert_gives(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema(
        [("a", pa.string()), ("b", pa.float64()), ("c", pa.timestamp("us", tz="UTC")), ("d", pa.decimal128(12, 4))]
    )
    table = Table.create(str(tmp_path / "t"), schema)
    query = "SELECT 1.50BD AS a, 7L AS b, date'2024-03-31' AS c, 12.5BD AS d"
    committed(run(spark, "write", table, source={"sql": query}, time_zone="Europe/Berlin"))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        casts = "CAST(a AS STRING) a, CAST(b AS DOUBLE) b, CAST(c AS TIMESTAMP) c, CAST(d AS DECIMAL(12, 4)) d"
        expected = spark.sql(f"SELECT {casts} FROM ({query})").toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert bag(table) == bag(expected.cast(table.snapshot().schema))
