"""Alone in showing append, overwrite and creation: rows of every type and format, once, where they belong."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from tests.helpers.jobs import committed, error_of, files_on_disk, ids, live_files, rows, run, spark_bag, spark_view
from tests.helpers.racing import winning
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def numbers(count: int, day: str = "2024-01-01", start: int = 0) -> dict[str, Any]:
    columns = f"id + {start} AS id, date'{day}' AS day, concat('n', id) AS name, 0D AS amount"
    return {"sql": f"SELECT {columns} FROM range({count})"}


# --- append ---------------------------------------------------------------------------------------------------------


def test_append_adds_rows_as_a_blind_append(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    result = committed(run(spark, "write", table, source=numbers(5, start=100)))
    assert ids(table) == [*range(10), *range(100, 105)]
    assert result.metrics["numOutputRows"] == 5
    (entry, *_) = table.history(1)
    assert (entry["operation"], entry["isBlindAppend"]) == ("WRITE", True)
    assert entry["operationParameters"] == {"mode": "Append", "partitionBy": '["day"]'}


def test_two_blind_appends_commit_and_the_second_is_rebased(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    staged: list[set[str]] = []

    def land() -> None:
        append(table, rows(5, start=50))
        staged.append(files_on_disk(table))

    log = winning("new file", land)
    result = committed(run(spark, "write", table, source=numbers(5, start=100), log=log))
    assert (result.attempts, result.version, result.read_version) == (1, 3, 1)
    assert ids(table) == [*range(10), *range(50, 55), *range(100, 105)]
    assert files_on_disk(table) == staged[0], "what was staged before the race is what was committed"


def test_columns_are_matched_by_name_and_missing_ones_are_null(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(1))
    committed(run(spark, "write", table, source={"sql": "SELECT 'x' AS NAME, 7 AS Id"}))
    assert {"id": 7, "day": None, "name": "x", "amount": None} in table.to_arrow().to_pylist()


def test_a_source_without_rows_commits_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(1))
    result = run(spark, "write", table, source=numbers(0))
    assert (result.status, table.snapshot().version) == ("nothing_to_do", 1)


@pytest.mark.parametrize("form", ["csv", "orc"])
def test_files_of_every_format_are_sources(tmp_path: Path, spark: SparkSession, form: str) -> None:
    frame = spark.sql("SELECT id, concat('n', id) AS name FROM range(7)")
    frame.write.format(form).option("header", "true").save(str(tmp_path / "in"))
    table = Table.create(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("name", pa.string())]))
    source = {"format": form, "path": str(tmp_path / "in"), "schema": "id BIGINT, name STRING"}
    if form == "csv":
        source["options"] = {"header": "true"}
    committed(run(spark, "write", table, source=source))
    assert bag(table) == spark_bag(frame)


EVERY_TYPE = """SELECT
  1Y AS b, 2S AS sh, 3 AS i, 4L AS l, 1.5F AS f, double('NaN') AS d, 12345678901234567.89BD AS de, true AS bo,
  'é\\0x' AS s, X'00FF' AS bi, date'0001-01-01' AS da, timestamp'9999-12-31 23:59:59.999999' AS ts,
  timestamp_ntz'1582-10-04 12:00:00.000001' AS ntz, array(1, NULL) AS a, map('k', 1.5D) AS m,
  named_struct('x', 1, 'y', array(named_struct('z', date'2024-01-01'))) AS st
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"""


def test_every_type_survives_the_way_in_and_back(tmp_path: Path, spark: SparkSession) -> None:
    committed(run(spark, "write", tmp_path / "t", source={"sql": EVERY_TYPE}, time_zone="Asia/Kolkata"))
    copied = run(spark, "write", tmp_path / "copy", source={"table": str(tmp_path / "t")}, time_zone="America/New_York")
    committed(copied)
    spark_view(spark, "ours", Table.open(str(tmp_path / "copy")).to_arrow())
    spark.sql(EVERY_TYPE).createOrReplaceTempView("theirs")
    texts = "SELECT to_json(struct(* EXCEPT (ts, bi))) AS js, hex(bi) AS bi FROM {}"
    assert spark_bag(spark.sql(texts.format("ours"))) == spark_bag(spark.sql(texts.format("theirs")))
    zones = Table.open(str(tmp_path / "copy")).to_arrow(columns=["ts"]).column("ts").cast(pa.int64()).to_pylist()
    kolkata = dt.timedelta(hours=5, minutes=30) // dt.timedelta(microseconds=1)
    assert sorted(zones, key=str) == sorted([253402300799999999 - kolkata, None], key=str)


# --- creation -------------------------------------------------------------------------------------------------------


def test_a_missing_table_is_created_with_its_rows_in_one_commit(tmp_path: Path, spark: SparkSession) -> None:
    result = committed(
        run(
            spark,
            "write",
            tmp_path / "t",
            source=numbers(4),
            partition_by=["DAY"],
            properties={"delta.checkpointInterval": "3"},
        )
    )
    table = Table.open(str(tmp_path / "t"))
    snapshot = table.snapshot()
    assert (result.version, result.read_version, snapshot.version) == (0, None, 0)
    assert snapshot.partition_columns == ["day"]
    assert snapshot.properties["delta.checkpointInterval"] == "3"
    assert all(field.nullable for field in snapshot.schema)
    assert ids(table) == [0, 1, 2, 3]
    committed(run(spark, "write", table, source=numbers(1, start=9), partition_by=["day"]))
    assert ids(table) == [0, 1, 2, 3, 9]


def test_a_missing_table_is_not_created_unasked(tmp_path: Path, spark: SparkSession) -> None:
    error = error_of(run(spark, "write", tmp_path / "t", source=numbers(4), create=False))
    assert error["type"] == "TableNotFound"
    assert not (tmp_path / "t").exists()


def test_the_loser_of_a_race_to_create_appends(tmp_path: Path, spark: SparkSession) -> None:
    log = winning("new file", lambda: make_table(tmp_path / "t", rows(3, start=50)))
    result = committed(run(spark, "write", tmp_path / "t", source=numbers(2), log=log))
    table = Table.open(str(tmp_path / "t"))
    assert (result.attempts, result.version) == (2, 2)
    assert ids(table) == [0, 1, 50, 51, 52]
    assert files_on_disk(table) == live_files(table)


# --- overwrite ------------------------------------------------------------------------------------------------------


def test_overwrite_replaces_every_row(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=50))
    result = committed(run(spark, "write", table, source=numbers(3, start=100), mode="overwrite"))
    assert result.metrics["numDeletedRows"] == 20
    assert ids(table) == [100, 101, 102]
    assert (result.files["removed"], result.metrics["numRemovedFiles"]) == (2, 2)
    assert table.history(1)[0]["operationParameters"]["mode"] == "Overwrite"


def test_overwrite_from_the_table_itself_reads_the_version_it_replaces(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10))
    source = {
        "sql": "SELECT id * 2 AS id, day, name, amount FROM me WHERE id < 3",
        "views": {"me": {"table": table.uri}},
    }
    committed(run(spark, "write", table, source=source, mode="overwrite"))
    assert ids(table) == [0, 2, 4]


def partitioned(folder: Path) -> Table:
    days = [rows(5, start=10 * k, day=dt.date(2024, 1, 1 + k)) for k in range(3)]
    return make_table(folder, *days, partition_by=["day"])


def test_a_scope_replaces_only_its_partitions(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")
    result = committed(
        run(
            spark,
            "write",
            table,
            source=numbers(2, day="2024-01-02", start=70),
            mode="overwrite",
            partition_predicate="day = :day",
            parameters={"day": "2024-01-02"},
        )
    )
    assert ids(table) == [*range(5), *range(20, 25), 70, 71]
    assert (result.metrics["numDeletedRows"], result.files["pruned"]) == (5, 2)
    assert table.history(1)[0]["operationParameters"]["predicate"] == "day = :day"


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_row_outside_the_scope_is_an_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession, mode: str) -> None:
    table = partitioned(tmp_path / "t")
    before = files_on_disk(table)
    error = error_of(
        run(
            spark,
            "write",
            table,
            source={"sql": "SELECT id, date_add(date'2024-01-01', CAST(id AS INT)) AS day FROM range(3)"},
            mode=mode,
            partition_predicate="day < date'2024-01-03'",
        )
    )
    assert (error["type"], error["facts"]["partition"]) == ("PartitionMismatch", {"day": "2024-01-03"})
    assert files_on_disk(table) == before


def test_disjoint_scopes_never_collide(tmp_path: Path, spark: SparkSession) -> None:
    table = partitioned(tmp_path / "t")

    def overwrite(day: str, start: int, **more: Any) -> Any:
        scope = {"mode": "overwrite", "partition_predicate": f"day = date'{day}'"}
        return committed(run(spark, "write", table, source=numbers(1, day=day, start=start), **scope, **more))

    log = winning("new file", lambda: overwrite("2024-01-01", 900))
    assert overwrite("2024-01-02", 800, log=log).attempts == 1
    assert ids(table) == [*range(20, 25), 800, 900]


def test_a_partition_gets_one_file(tmp_path: Path, spark: SparkSession) -> None:
    source = {"sql": "SELECT id, id % 5 AS p FROM range(0, 1000, 1, 8)"}
    result = committed(run(spark, "write", tmp_path / "t", source=source, partition_by=["p"]))
    assert result.files["added"] == 5


# --- errors leave nothing -------------------------------------------------------------------------------------------

BAD = [
    ("SchemaMismatch", {"source": {"sql": "SELECT 1L AS id, 'x' AS extra"}}),
    ("SchemaMismatch", {"source": {"sql": "SELECT 'text' AS id"}}),
    ("SchemaMismatch", {"source": {"sql": "SELECT 1.5D AS id"}}),
    ("SchemaMismatch", {"source": {"sql": "SELECT timestamp'2024-01-01' AS day"}}),
    ("SchemaMismatch", {"source": {"sql": "SELECT array(1) AS name"}}),
    ("SchemaMismatch", {"source": {"sql": "SELECT 1L AS id, 2L AS ID"}}),
    ("InvalidJobSpec", {"source": {"sql": "SELEC 1"}}),
    ("InvalidJobSpec", {"source": {"sql": "INSERT INTO x VALUES (1)"}}),
    ("InvalidJobSpec", {"source": {"sql": "SELECT nope FROM range(1)"}}),
    ("SourceNotFound", {"source": {"format": "parquet", "path": "/no/such/folder"}}),
    ("InvalidPredicate", {"parameters": {"unused": 1}}),
    ("InvalidPredicate", {"source": {"sql": "SELECT :missing AS id"}}),
    ("PartitionMismatch", {"partition_by": ["name"]}),
    ("UnknownColumn", {"partition_predicate": "name = 'x'"}),
    ("InvalidInput", {"source": {"sql": "SELECT CAST('x' AS BIGINT) AS id"}}),
]


def test_a_bad_write_is_a_clear_error_and_leaves_nothing(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(10), partition_by=["day"])
    before = files_on_disk(table)
    for kind, changes in BAD:
        error = error_of(run(spark, "write", table, **({"source": numbers(1)} | changes)))
        assert error["type"] == kind, (changes, error)
        assert (files_on_disk(table), table.snapshot().version) == (before, 1), changes


def test_a_value_that_a_narrower_type_cannot_hold_fails_instead_of_wrapping(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema([("b", pa.int8()), ("d", pa.decimal128(4, 2))]))
    committed(run(spark, "write", table, source={"sql": "SELECT 127L AS b, 99.99BD AS d"}))
    for source in ("SELECT 128L AS b, 1BD AS d", "SELECT 1L AS b, 100.00BD AS d"):
        assert error_of(run(spark, "write", table, source={"sql": source}))["type"] == "InvalidInput"
    assert table.snapshot().version == 1


def test_not_null_is_enforced(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    table = Table.create(str(tmp_path / "t"), schema)
    for source in ("SELECT 'x' AS name", "SELECT CAST(NULL AS BIGINT) AS id UNION ALL SELECT 1L"):
        error = error_of(run(spark, "write", table, source={"sql": source}))
        assert (error["type"], error["facts"]["column"]) == ("ConstraintViolation", "id")
    assert files_on_disk(table) == set()


def test_a_column_without_a_type_makes_no_table(tmp_path: Path, spark: SparkSession) -> None:
    error = error_of(run(spark, "write", tmp_path / "t", source={"sql": "SELECT 1 AS id, NULL AS x"}))
    assert (error["type"], error["facts"]["columns"]) == ("SchemaMismatch", ["x"])
    assert not (tmp_path / "t").exists()


def test_a_table_in_memory_is_refused_by_name(spark: SparkSession) -> None:
    error = error_of(run(spark, "write", "memory://jobs/t", source=numbers(1)))
    assert (error["type"], error["facts"]["filesystem"]) == ("UnsupportedStore", "memory")


def test_statistics_of_what_is_written_prune(tmp_path: Path, spark: SparkSession) -> None:
    committed(
        run(spark, "write", tmp_path / "t", source=numbers(10), properties={"delta.dataSkippingNumIndexedCols": "1"})
    )
    (stats,) = Table.open(str(tmp_path / "t")).snapshot().files().column("stats").to_pylist()[:1]
    assert set(json.loads(stats)["nullCount"]) == {"id"}
