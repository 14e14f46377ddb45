"""Alone in showing that what a job finds stays small on its way to the driver, on it, and into saved work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.jobs.executor import spark as executor
from airflow_txlog.jobs.files import frames
from airflow_txlog.jobs.operations.merge import by_spark
from airflow_txlog.jobs.resume import saved_work
from airflow_txlog.jobs.rows import by_condition, staging
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.storage.limits import SMALL_JOB, Limits
from tests.helpers.jobs import BY_SOURCE, application, committed, delete, ids, merge, run
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# More than a part of a bitmap; and in all of its forms, as rows go: a run, every second one, a few.
ROWS = 70_000
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
GOES = "id < 69000 AND (id < 40000 OR pmod(id, 2) = 0 OR pmod(id, 1000) = 7)"
# A bit for each row of the file's two parts of 65,536, and a little around it.
FILE_BYTES = 2 * 65_536 // 8 + 1_000
# Fewer rows than these would be sent to Spark and back.
BY_TASKS = Limits(sent_bytes=0)


def goes(number: int) -> bool:
    return number < 69_000 and (number < 40_000 or number % 2 == 0 or number % 1000 == 7)


def numbered(start: int = 0) -> pa.Table:
    ids = pa.array(range(start, start + ROWS), pa.int64())
    return pa.table([ids, ids], schema=SCHEMA)


def two_files(folder: Path, **properties: str) -> Table:
    """Of the first file many rows go; of the second, whose values are negative, none or all."""
    table = make_table(folder, numbered(), properties=properties)
    below = pa.array(range(-ROWS, 0), pa.int64())
    append(table, pa.table([pa.array(range(ROWS, 2 * ROWS), pa.int64()), below], schema=SCHEMA))
    return table


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """What a find step brings to the driver."""
    found: list[pa.Table] = []

    def collect(frame: Any, what: str) -> pa.Table:
        found.append(real(frame, what))
        return found[-1]

    real = by_condition.collect
    monkeypatch.setattr(by_condition, "collect", collect)
    monkeypatch.setattr(by_spark, "collect", collect)
    return found


def is_small(collected: list[pa.Table]) -> None:
    [found] = collected
    assert found.num_rows <= 2, "a row for each file"
    assert found.nbytes < 2 * FILE_BYTES


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({}, id="copying", marks=pytest.mark.long("as with vectors")),
        pytest.param({"delta.enableDeletionVectors": "true"}, id="vectors"),
    ],
)
def test_a_delete_collects_a_bitmap_a_file_however_many_rows_go(
    tmp_path: Path, spark: SparkSession, collected: list[pa.Table], properties: dict[str, str]
) -> None:
    table = two_files(tmp_path / "t", **properties)
    result = committed(run(spark, "delete", table, predicate=f"{GOES} OR value * 2 < 0", limits=BY_TASKS))
    is_small(collected)
    left = [number for number in range(ROWS) if not goes(number)]
    assert ids(table) == left
    assert result.metrics["numDeletedRows"] == 2 * ROWS - len(left)
    # Rows that are masked already are found by no later job.
    committed(run(spark, "delete", table, predicate="pmod(id, 2) = 1 AND value * 2 >= 0"))
    assert ids(table) == [number for number in left if number % 2 == 0]


def test_an_update_collects_a_bitmap_a_file_and_a_change_feed_has_every_row(
    tmp_path: Path, spark: SparkSession, collected: list[pa.Table]
) -> None:
    table = two_files(tmp_path / "t", **{"delta.enableChangeDataFeed": "true"})
    result = committed(run(spark, "update", table, predicate=GOES, set={"value": "value + 1"}, limits=BY_TASKS))
    is_small(collected)
    changed = {number for number in range(ROWS) if goes(number)}
    found = table.to_arrow()
    values = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert values == {
        number: number - 2 * ROWS if number >= ROWS else number + (number in changed) for number in range(2 * ROWS)
    }
    assert result.metrics["numUpdatedRows"] == len(changed)
    commit = max((tmp_path / "t" / "_delta_log").glob("*.json")).read_text().splitlines()
    told = [tmp_path / "t" / action["cdc"]["path"] for action in map(json.loads, commit) if "cdc" in action]
    changes = pa.concat_tables([pa.parquet.read_table(path) for path in told])
    kinds = changes["_change_type"].to_pylist()
    assert kinds.count("update_preimage") == kinds.count("update_postimage") == len(changed)
    assert len(kinds) == 2 * len(changed)


def test_a_merge_collects_the_rows_that_match_nothing_as_bitmaps(
    tmp_path: Path, spark: SparkSession, collected: list[pa.Table]
) -> None:
    table = two_files(tmp_path / "t")
    clauses = [
        {"when": "matched", "then": "update", "set": {"value": "-1"}},
        delete("pmod(id, 2) = 0", BY_SOURCE),
        {"when": BY_SOURCE, "then": "update", "set": {"value": "0"}, "condition": "pmod(id, 3) = 0"},
    ]
    result = committed(merge(spark, table, "SELECT id * 5000 AS id FROM range(8)", *clauses))
    [found] = collected
    # A row for each file and clause, and one for each pair.
    assert found.num_rows <= 2 * 2 + 8
    assert found.nbytes < 4 * FILE_BYTES
    matched = {number * 5000 for number in range(8)}
    rows = table.to_arrow()
    values = dict(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))
    expected = {number: number - 2 * ROWS * (number >= ROWS) for number in range(2 * ROWS)}
    by_source = {number for number in expected if number not in matched}
    expected = {
        number: -1 if number in matched else 0 if number % 3 == 0 else value
        for number, value in expected.items()
        if number in matched or number % 2
    }
    assert values == expected
    assert result.metrics["numTargetRowsNotMatchedBySourceDeleted"] == sum(n % 2 == 0 for n in by_source)
    assert result.metrics["numTargetRowsNotMatchedBySourceUpdated"] == sum(n % 2 == 1 and n % 3 == 0 for n in by_source)
    assert result.metrics["numTargetRowsMatchedUpdated"] == len(matched)


def test_a_file_whose_rows_all_go_travels_without_positions_and_saved_work_is_small(
    tmp_path: Path, spark: SparkSession, collected: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_files(tmp_path / "t")
    plans: list[pa.Table] = []
    saved: list[int] = []
    real_stage, real_encode = staging.stage, saved_work.encode

    def stage(*args: Any, **named: Any) -> Any:
        plans.append(named["copies"].table)
        return real_stage(*args, **named)

    def encode(*args: Any) -> bytes:
        data = real_encode(*args)
        saved.append(len(data))
        return data

    monkeypatch.setattr(staging, "stage", stage)
    monkeypatch.setattr(saved_work, "encode", encode)
    result = run(spark, "delete", table, predicate=f"{GOES} OR value < 0", application=application())
    committed(result)
    [plan] = plans
    # The second file is removed, and no task hears of it.
    assert plan.column("num_records").to_pylist() == [ROWS]
    assert plan.num_rows == 1
    sizes = [len(positions) for positions in plan.column("positions").to_pylist()]
    assert sum(sizes) < FILE_BYTES
    assert saved
    assert max(saved) < FILE_BYTES + 10_000


@pytest.mark.parametrize(("column", "by_spark"), [("id", ["write"]), ("text", ["find", "write"])])
def test_rows_are_found_in_this_process_by_a_column_that_is_little_of_large_files(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, column: str, by_spark: list[str]
) -> None:
    texts = [f"{number:064d}" for number in range(2000)]
    data = pa.table({"id": pa.array(range(2000), pa.int64()), **dict.fromkeys(("text", "b", "c", "d"), texts)})
    table = make_table(tmp_path / "t", data)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / "t").glob("*.parquet"))
    monkeypatch.setenv(SMALL_JOB.setting, str(size_bytes // 5))
    monkeypatch.setattr(
        "airflow_txlog.storage.limits.LOCAL_FILE_BYTES", 1
    )  # of a file that is less, too, the bytes count
    collected: list[str] = []

    def counted(frame: DataFrame, what: str) -> pa.Table:
        collected.append(what.split(" ")[0])
        return collect(frame, what)

    for module in (executor, frames):
        monkeypatch.setattr(module, "collect", counted)
    value = "3" if column == "id" else f"'{texts[3]}'"
    committed(run(spark, "delete", table, predicate=f"{column} = {value}"))
    assert collected == by_spark
    assert ids(table) == [number for number in range(2000) if number != 3]
