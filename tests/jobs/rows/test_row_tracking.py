"""Alone in showing jobs on tables that track rows: new files are numbered, ids that stand in a file stay."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import commit_name
from tests.helpers.jobs import committed, ids, insert, merge, run, update
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROW_ID, ROW_VERSION = "_row-id-col-1", "_row-commit-version-col-1"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Rows 0 to 3 with default ids; rows 10 to 12 in a file of another engine, two of them with ids of their own."""
    properties = {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": ROW_ID,
        "delta.rowTracking.materializedRowCommitVersionColumnName": ROW_VERSION,
    }
    rows = pa.table({"id": [0, 1, 2, 3], "name": ["a"] * 4}, schema=SCHEMA)
    table = make_table(tmp_path / "t", rows, properties=properties)
    moved = pa.table({"id": [10, 11, 12], "name": ["b"] * 3}, schema=SCHEMA)
    moved = moved.append_column(ROW_ID, pa.array([100, 101, None], pa.int64()))
    moved = moved.append_column(ROW_VERSION, pa.array([1, None, None], pa.int64()))
    pq.write_table(moved, tmp_path / "t" / "moved.parquet")
    tx = table.begin()
    size = (tmp_path / "t" / "moved.parquet").stat().st_size
    tx.add(path="moved.parquet", size=size, stats=json.dumps({"numRecords": 3}))
    tx.commit("WRITE")
    return table


def row_ids(table: Table) -> dict[int, int]:
    """The stable row id of each row: the one in the file, else the file's base and the row's ordinal."""
    found: dict[int, int] = {}
    for file in table.snapshot().files().select(["path", "base_row_id"]).to_pylist():
        rows = pq.ParquetFile(Path(table.uri.removeprefix("file://"), file["path"])).read().to_pylist()
        for ordinal, row in enumerate(rows):
            kept = row.get(ROW_ID)
            found[row["id"]] = file["base_row_id"] + ordinal if kept is None else kept
    return found


def preserved(table: Table) -> str:
    version = table.snapshot().version
    info: dict[str, Any] = decode_commit(version, table.store.read(commit_name(version)), "x").info or {}
    return str(info["tags"]["delta.rowTracking.preserved"])


def test_a_delete_keeps_the_ids_that_stand_in_the_file_and_says_that_others_are_new(
    spark: SparkSession, table: Table
) -> None:
    before = row_ids(table)
    assert before == {0: 0, 1: 1, 2: 2, 3: 3, 10: 100, 11: 101, 12: 6}
    committed(run(spark, "delete", table, predicate="id IN (1, 10)"))
    after = row_ids(table)
    assert sorted(after) == ids(table) == [0, 2, 3, 11, 12]
    assert after[11] == 101
    assert len(set(after.values())) == len(after)
    # Nobody ever had the new ones.
    assert min(after[row] for row in (0, 2, 3, 12)) > 6
    assert preserved(table) == "false"


def test_appends_and_merges_are_numbered(spark: SparkSession, table: Table) -> None:
    source = {"sql": "SELECT id, 'new' AS name FROM VALUES (2L), (20L) AS v(id)", "views": {}}
    committed(run(spark, "write", table, source=source, mode="append"))
    assert preserved(table) == "true"
    source = "SELECT * FROM VALUES (3L, 'merged'), (30L, 'merged') AS v(id, name)"
    committed(merge(spark, table, source, update(), insert()))
    assert preserved(table) == "false"
    files = table.snapshot().files()
    assert files.column("base_row_id").null_count == files.column("default_row_commit_version").null_count == 0
    spans = sorted(
        (base, base + json.loads(stats)["numRecords"])
        for base, stats in zip(files.column("base_row_id").to_pylist(), files.column("stats").to_pylist(), strict=True)
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    mark = json.loads(table.snapshot().state.domains["delta.rowTracking"].configuration)["rowIdHighWaterMark"]
    assert mark >= spans[-1][1] - 1
