"""Alone in showing DELETE's own texts: which rows and which partitions go, which files are touched, what is refused.

Random tables, against an oracle, are in `equality`; the files of other writers are read and copied here.
"""

from __future__ import annotations

import datetime as dt
import decimal
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import (
    committed,
    error_of,
    files_on_disk,
    ids,
    live_files,
    random_rows,
    rows,
    run,
    spark_bag,
    spark_view,
)
from tests.helpers.rows import bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Each on what the ones before it left.
PREDICATES = [
    "i > NULL",
    "i % 5 = 4 OR s = 'O''Brien' -- a comment at the end",
    "s LIKE 'ab%' OR f = double('NaN') AND NOT (i > 2) OR l <=> NULL AND i IN (1, 2, NULL)",
    "d < date'2000-01-01' AND b OR ts >= timestamp'2024-06-01 12:00:00' AND size(a) = 0",
    "ntz = timestamp_ntz'9999-12-31 23:59:59' OR dec * 2 > 1.01 AND n.x = 1 OR exists(a, v -> v > i)",
]


def test_delete_removes_the_rows_of_which_spark_says_true(tmp_path: Path, spark: SparkSession) -> None:
    rng = random.Random("delete")
    parts = [random_rows(rng, 60) for _ in range(3)]
    # Each row twice somewhere: a bag is compared, not a set.
    table = make_table(tmp_path / "t", *parts, parts[0])
    spark_view(spark, "before", pa.concat_tables([*parts, parts[0]]))
    stays, left = "TRUE", 240
    for predicate in PREDICATES:
        stays += f" AND NOT coalesce((\n{predicate}\n), false)"
        expected = spark_bag(spark.sql(f"SELECT * FROM before WHERE {stays}"))
        result = run(spark, "delete", table, predicate=predicate)
        gone = left - sum(expected.values())
        assert result.status == ("committed" if predicate != "i > NULL" else "nothing_to_do"), (predicate, result.error)
        assert bag(table) == expected, predicate
        assert result.metrics["numDeletedRows"] == gone, predicate
        left -= gone
    assert left > 20


def test_only_touched_files_are_rewritten_and_only_possible_ones_are_read(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100), rows(10, start=200))
    before = live_files(table)
    result = committed(run(spark, "delete", table, predicate="id = :id", parameters={"id": 105}))
    assert len(live_files(table) & before) == 2
    assert result.files == {"considered": 3, "pruned": 2, "rewritten": 1, "added": 1, "removed": 1}
    assert (result.metrics["numDeletedRows"], result.metrics["numCopiedRows"]) == (1, 9)
    assert (result.version, result.read_version) == (4, 3)
    assert ids(table) == [k for k in [*range(10), *range(100, 110), *range(200, 210)] if k != 105]
    # A file that loses all its rows is removed, and not copied.
    result = committed(run(spark, "delete", table, predicate="id < 10"))
    assert (result.files["removed"], result.files["added"], ids(table)[0]) == (1, 0, 100)


def test_nothing_to_delete_makes_no_version(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    result = run(spark, "delete", table, predicate="id = 3 AND name = 'n4'")
    assert (result.status, result.version, result.files["pruned"]) == ("nothing_to_do", 1, 0)
    assert table.snapshot().version == 1


def test_the_history_tells_the_predicate_without_its_values(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    committed(run(spark, "delete", table, predicate="name = :who", parameters={"who": "n3"}))
    (entry, *_) = table.history(1)
    assert entry["operation"] == "DELETE"
    assert entry["operationParameters"]["predicate"] == '["name = :who"]'
    assert "n3" not in repr(entry)
    assert int(entry["operationMetrics"]["numDeletedRows"]) == 1


@pytest.mark.parametrize("partition_by", [[], ["flag"]])
def test_a_bare_boolean_column_filters_and_is_not_taken_for_an_alias(
    tmp_path: Path, spark: SparkSession, partition_by: list[str]
) -> None:
    # Spark reads `FROM v WHERE (flag)` as `FROM v AS where(flag)`, which keeps every row.
    schema = pa.schema([("flag", pa.bool_())])
    if partition_by:
        schema = schema.append(pa.field("x", pa.int32()))
    data = pa.table({"flag": [True, False, None]} | ({"x": [1, 1, 1]} if partition_by else {}), schema=schema)
    table = make_table(tmp_path / "t", data, partition_by=partition_by)
    committed(run(spark, "delete", table, predicate="flag"))
    assert bag(table, "flag") == bag(pa.table({"flag": [False, None]}))


# --- partitions -----------------------------------------------------------------------------------------------------


def partitioned(folder: Path) -> Table:
    days = [rows(5, start=10 * k, day=dt.date(2024, 1, 1 + k)) for k in range(3)]
    return make_table(folder, *days, rows(5, start=90, day=None), partition_by=["day"])


@pytest.mark.usefixtures("each_way")
def test_a_predicate_on_partitions_removes_files_without_reading_them(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    for path in live_files(table):
        # Were one of them read, the job would fail: the sizes in the log no longer hold.
        with open(tmp_path / "t" / path, "ab") as file:
            file.write(b"x")
    result = committed(run(spark, "delete", table, predicate="day < :day", parameters={"day": "2024-01-03"}))
    assert result.files == {"considered": 4, "pruned": 2, "rewritten": 0, "added": 0, "removed": 2}
    assert result.metrics["numDeletedRows"] == 10


@pytest.mark.usefixtures("each_way")
def test_a_null_partition_stays_where_the_predicate_is_null(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    committed(run(spark, "delete", table, predicate="NOT (day = date'2024-01-01')"))
    assert ids(table) == [0, 1, 2, 3, 4, 90, 91, 92, 93, 94]
    committed(run(spark, "delete", table, predicate="day IS NULL"))
    assert ids(table) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    ("kind", "values", "predicate", "kept"),
    [
        (pa.string(), ["01", "1", "2", None], "p = 1", ["2", None]),
        (pa.float64(), [1.0, float("nan"), 2.0], "p > 5", [1.0, 2.0]),
        (pa.decimal128(5, 2), [decimal.Decimal("1.50"), decimal.Decimal("2.00")], "p = 1.5", [decimal.Decimal("2.00")]),
        (
            pa.timestamp("us"),
            [dt.datetime(1, 1, 1), dt.datetime(2024, 1, 1, 1)],
            "year(p) = 1",
            [dt.datetime(2024, 1, 1, 1)],
        ),
    ],
    ids=str,
)
def test_a9_spark_says_which_partitions_a_predicate_takes(
    tmp_path: Path, spark: SparkSession, kind: pa.DataType, values: list[Any], predicate: str, kept: list[Any]
) -> None:
    data = pa.table({"id": pa.array(range(len(values)), pa.int64()), "p": pa.array(values, kind)})
    table = make_table(tmp_path / "t", data, partition_by=["p"])
    result = committed(run(spark, "delete", table, predicate=predicate))
    assert result.metrics["numCopiedRows"] == 0
    assert bag(table, "p") == bag(pa.table({"p": pa.array(kept, kind)}))


@pytest.mark.usefixtures("each_way")
def test_a_timestamp_partition_without_a_zone_is_read_in_the_jobs_zone(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.timestamp("us", tz="UTC"))])
    table = Table.create(str(tmp_path / "t"), schema, ["p"])
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t" / "f.parquet")
    size = (tmp_path / "t" / "f.parquet").stat().st_size
    tx = table.begin()
    tx.add(path="f.parquet", size=size, partition_values={"p": "2024-03-01 00:30:00"})
    tx.commit("WRITE")
    at = "p = timestamp'2024-02-29 23:30:00Z'"
    assert run(spark, "delete", table, predicate=at).status == "nothing_to_do"
    assert committed(run(spark, "delete", table, predicate=at, time_zone="Europe/Berlin")).files["removed"] == 1


@pytest.mark.usefixtures("each_way")
def test_a_scope_bounds_what_is_deleted(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    result = committed(
        run(
            spark,
            "delete",
            table,
            predicate="pmod(id, 5) = :rest",
            partition_predicate="day = :day",
            parameters={"day": "2024-01-02", "rest": 0},
        )
    )
    assert result.files["pruned"] == 3
    assert ids(table) == sorted({*range(5), *range(11, 15), *range(20, 25), *range(90, 95)})
    told = table.history(1)[0]["operationParameters"]["predicate"]
    assert "day = :day" in told


# --- the time of the job --------------------------------------------------------------------------------------------


def test_the_jobs_time_zone_reads_the_predicates_timestamps(tmp_path: Path, spark: SparkSession) -> None:
    moments = pa.array([dt.datetime(2024, 1, 1, 0, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)])
    data = pa.table({"id": [1, 2], "ts": moments.cast(pa.timestamp("us", tz="UTC"))})
    table = make_table(tmp_path / "t", data)
    zone_before = spark.conf.get("spark.sql.session.timeZone")
    committed(
        run(
            spark,
            "delete",
            table,
            predicate="ts < :moment",
            parameters={"moment": "2024-01-01 00:00:00"},
            time_zone="America/New_York",
        )
    )
    assert ids(table) == [2]
    assert spark.conf.get("spark.sql.session.timeZone") == zone_before


def test_an_unknown_time_zone_is_a_clear_error(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(1))
    error = error_of(run(spark, "delete", table, predicate="TRUE", time_zone="Mars/Olympus"))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "time_zone")


# --- files of other writers -----------------------------------------------------------------------------------------


def test_files_that_lack_a_column_or_hold_an_older_type_are_found_and_copied(
    tmp_path: Path, spark: SparkSession
) -> None:
    schema = pa.schema([("id", pa.int64()), ("added", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema)
    pq.write_table(pa.table({"ID": pa.array([1, 2, 3], pa.int32())}), tmp_path / "t" / "old.parquet")
    tx = table.begin()
    tx.add(path="old.parquet", size=(tmp_path / "t" / "old.parquet").stat().st_size, stats='{"numRecords":3}')
    tx.commit("WRITE")
    committed(run(spark, "delete", table, predicate="id = 2 AND added IS NULL"))
    assert bag(table) == bag(pa.table({"id": [1, 3], "added": pa.array([None, None], pa.string())}))
    (path,) = live_files(table)
    assert pq.read_schema(tmp_path / "t" / path) == pa.schema([("ID", pa.int32())])


# --- errors leave nothing -------------------------------------------------------------------------------------------

BAD = [
    ("InvalidPredicate", {"predicate": "id = = 1"}),
    ("InvalidPredicate", {"predicate": "id = 1) UNION SELECT 1, DATE'2024-01-01', 'x', 0 WHERE (1 = 1"}),
    ("InvalidPredicate", {"predicate": "id = 1; DROP TABLE x"}),
    ("InvalidPredicate", {"predicate": "id = 1 AS z"}),
    ("InvalidPredicate", {"predicate": "id = :id"}),
    ("InvalidPredicate", {"predicate": "id = 1", "parameters": {"id": 1}}),
    ("InvalidPredicate", {"predicate": "id = ':id'", "parameters": {"id": 1}}),
    ("InvalidPredicate", {"predicate": "name"}),
    ("UnknownColumn", {"predicate": "idd = 1"}),
    ("UnsupportedPredicate", {"predicate": "rand() < 0.5"}),
    ("UnsupportedPredicate", {"predicate": "id IN (SELECT 1)"}),
    ("UnsupportedPredicate", {"predicate": "EXISTS (SELECT 1)"}),
    ("UnsupportedPredicate", {"predicate": "sum(id) > 1"}),
    ("UnsupportedPredicate", {"predicate": "row_number() OVER (ORDER BY id) = 1"}),
    ("UnsupportedPredicate", {"predicate": "java_method('java.lang.System', 'exit', 1) = 1"}),
    ("UnsupportedPredicate", {"predicate": "input_file_name() = ''"}),
    ("UnsupportedPredicate", {"predicate": "concat_ws(',', *) = 'x'"}),
    ("UnsupportedPredicate", {"predicate": "hash(name, struct(*)) = 1"}),
    ("UnknownColumn", {"predicate": "id = 1", "partition_predicate": "name = 'n1'"}),
    ("InvalidInput", {"predicate": "id / 0 = 1"}),
    ("InvalidInput", {"predicate": "CAST(name AS INT) = 1"}),
]


def test_a_bad_predicate_is_a_clear_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    before = files_on_disk(table)
    for kind, arguments in BAD:
        error = error_of(run(spark, "delete", table, **arguments))
        assert (error["type"], error["retryable"]) == (kind, False), (arguments, error)
        assert (files_on_disk(table), table.snapshot().version) == (before, 1), arguments


def test_a_table_that_is_missing_or_keeps_its_rows_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    assert error_of(run(spark, "delete", tmp_path / "nothing", predicate="TRUE"))["type"] == "TableNotFound"
    assert not (tmp_path / "nothing").exists()
    table = make_table(tmp_path / "t", rows(10), properties={"delta.appendOnly": "true"})
    assert error_of(run(spark, "delete", table, predicate="id = 7"))["type"] == "AppendOnlyViolation"
    assert files_on_disk(table) == live_files(table)


def test_a_damaged_data_file_is_named_before_anything_is_written(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=5))
    (path, _) = sorted(live_files(table))
    (tmp_path / "t" / path).write_bytes(b"not parquet at all")
    before = files_on_disk(table)
    error = error_of(run(spark, "delete", table, predicate="id = 7"))
    assert error["type"] == "CorruptDataFile"
    assert path in error["facts"]["path"]
    assert files_on_disk(table) == before


def test_a_list_is_an_array_for_array_contains_and_never_the_values_of_in(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", pa.table({"id": pa.array(range(6), pa.int64())}))
    wrong = run(spark, "delete", table, predicate="id IN (:ids)", parameters={"ids": [1, 3]})
    assert error_of(wrong)["type"] == "InvalidPredicate"
    committed(run(spark, "delete", table, predicate="array_contains(:ids, id)", parameters={"ids": [1, 3]}))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2, 4, 5]
    committed(run(spark, "delete", table, predicate="NOT array_contains(:ids, id)", parameters={"ids": [0, 2]}))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2]
