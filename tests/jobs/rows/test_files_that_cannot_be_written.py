"""A table that asks for files which this engine does not write: rows can go, and checkpoints are made."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.parameters import encode_parameter
from tests.helpers.jobs import committed, error_of, files_on_disk, ids, rows, run, set_property
from tests.helpers.rows import make_table
from tests.helpers.vectors import allow_vectors, mask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODEC = "delta.parquet.compression.codec"


def test_a_checkpoint_is_made_in_the_usual_format(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(3))
    set_property(table, CODEC, "lz4")
    table.checkpoint()
    assert list((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
    assert ids(table) == [0, 1, 2]


@pytest.mark.spark
def test_rows_go_where_no_parquet_file_is_needed(tmp_path: Path, spark: SparkSession) -> None:
    next_day = dt.date(2024, 1, 2)
    table = make_table(tmp_path / "t", rows(4), rows(4, start=4, day=next_day), partition_by=["day"])
    set_property(table, CODEC, "lz4")
    # Files must be copied: refused by the property's name, and nothing is left behind.
    before = files_on_disk(table)
    error = error_of(run(spark, "delete", table, predicate="id = 1"))
    assert (error["type"], CODEC in error["message"]) == ("InvalidProperty", True)
    assert files_on_disk(table) == before
    committed(run(spark, "delete", table, predicate="day = DATE'2024-01-02'"))
    assert ids(table) == [0, 1, 2, 3]
    allow_vectors(table)
    set_property(table, "delta.enableDeletionVectors", "true")
    committed(run(spark, "delete", table, predicate="id = 1"))
    committed(run(spark, "delete", table, predicate=None, keys={"column": "id", "values": [encode_parameter(2)]}))
    assert ids(table) == [0, 3]
    source = {"sql": "SELECT 3 AS id"}
    only_deletes = [{"when": "matched", "then": "delete"}]
    committed(run(spark, "merge", table, source=source, on="t.id = s.id", clauses=only_deletes))
    assert ids(table) == [0]


@pytest.mark.spark
def test_a_file_without_rows_is_no_match(tmp_path: Path, spark: SparkSession) -> None:
    table = make_table(tmp_path / "t", rows(2), partition_by=["day"])
    allow_vectors(table)
    mask(table, {0: [0, 1]})
    # Beside it one without any row, and without a count of its rows.
    tx = table.begin()
    pq.write_table(rows(0).drop_columns(["day"]), tmp_path / "t" / "empty.parquet")
    size = (tmp_path / "t" / "empty.parquet").stat().st_size
    tx.add(path="empty.parquet", size=size, partition_values={"day": "2024-01-01"})
    tx.commit("WRITE")
    assert table.snapshot().num_files == 2
    result = run(spark, "delete", table, predicate="day = DATE'2024-01-01'", require_match=True)
    assert error_of(result)["type"] == "MatchNotFound"
