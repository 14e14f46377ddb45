"""Change rows: which of the rows that come with a change type are rows of the table, and where the others go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.datafiles.physical import FIELD_ID_KEY, MODE_KEY, PARQUET_ID_KEY, PHYSICAL_NAME_KEY
from airflow_txlog.datafiles.tasks import WriteTask, staged_or_error
from airflow_txlog.datafiles.writing import SEGMENT_COLUMN, Layout, PartitionedWriter
from airflow_txlog.errors import ConstraintViolation

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])
TYPES = [None, "insert", "update_postimage", "delete", "update_preimage"]


def layout(root: Path, schema: pa.Schema = SCHEMA, partitions: tuple[str, ...] = ()) -> Layout:
    return Layout(root=str(root), schema=schema, partition_columns=partitions, job_id="job")


def batch(**more: Any) -> pa.RecordBatch:
    columns = {"id": range(5), "p": ["a", "b", "a", "b", "a"], "_change_type": pa.array(TYPES, pa.string())}
    return pa.RecordBatch.from_pydict(columns | more)


def rows_of(target: Layout, staged: list[StagedFile], *, is_change: bool) -> list[dict[str, Any]]:
    found = [
        row | file.partition_values
        for file in staged
        if file.is_change == is_change
        for row in pq.ParquetFile(f"{target.root}/{unquote(file.path)}").read().to_pylist()
    ]
    return sorted(found, key=lambda row: row["id"])


def test_a_row_goes_to_the_table_to_the_change_rows_or_to_both_as_its_change_type_says(tmp_path: Path) -> None:
    target = layout(tmp_path)
    (record,) = WriteTask(layout=target)(iter([batch()]))
    staged = [staged_or_error(text) for text in record.column(0).to_pylist()]
    files = [file for file in staged if isinstance(file, StagedFile)]
    assert len(files) == len(staged) == 2
    assert [row["id"] for row in rows_of(target, files, is_change=False)] == [0, 1, 2]
    assert [(row["id"], row["_change_type"]) for row in rows_of(target, files, is_change=True)] == [
        (1, "insert"), (2, "update_postimage"), (3, "delete"), (4, "update_preimage")
    ]  # fmt: skip
    (change,) = (file for file in files if file.is_change)
    assert change.path.startswith("_change_data/cdc-job-")
    assert (change.num_records, json.loads(change.stats)["maxValues"]) == (4, {})
    (data,) = (file for file in files if not file.is_change)
    assert data.path.startswith("part-job-")
    assert pq.read_schema(data.location).names == ["id", "p"]


def test_change_rows_lie_by_partition_and_by_segment_as_rows_of_the_table_do(tmp_path: Path) -> None:
    target = layout(tmp_path, partitions=("p",))
    writer = PartitionedWriter(target)
    writer.write(batch(**{SEGMENT_COLUMN: pa.array([0, 0, 1, 1, 1], pa.int32())}))
    staged = writer.finish()
    changes = [file for file in staged if file.is_change]
    assert sorted((file.path.split("/")[1], file.segment) for file in changes) == [("p=a", 1), ("p=b", 0), ("p=b", 1)]
    assert all(file.path.startswith("_change_data/p=") for file in changes)
    assert [row["p"] for row in rows_of(target, staged, is_change=True)] == ["b", "a", "b", "a"]
    assert "p" not in pq.read_schema(changes[0].location).names


def test_change_rows_of_a_mapped_table_have_physical_names_and_ids(tmp_path: Path) -> None:
    marks = {PHYSICAL_NAME_KEY: b"col-1", FIELD_ID_KEY: b"7", MODE_KEY: b"id"}
    schema = pa.schema([pa.field("id", pa.int64(), metadata=marks)])
    writer = PartitionedWriter(layout(tmp_path, schema))
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "_change_type": ["delete"]}))
    (file,) = writer.finish()
    found = pq.read_schema(file.location)
    assert found.names == ["col-1", "_change_type"]
    assert found.field(0).metadata[PARQUET_ID_KEY] == b"7"
    assert file.path.split("/")[0] == "_change_data"
    assert len(file.path.split("/")[1]) == 2


def test_a_refused_row_leaves_no_file_of_either_kind(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    writer = PartitionedWriter(layout(tmp_path, schema))
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "_change_type": ["insert"]}))
    writer.finish()
    with pytest.raises(ConstraintViolation):
        writer.write(pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64()), "_change_type": ["insert"]}))
    writer.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_table_without_the_feed_may_have_a_column_of_that_name(tmp_path: Path) -> None:
    target = layout(tmp_path, pa.schema([("id", pa.int64()), ("_Change_Type", pa.string())]))
    writer = PartitionedWriter(target)
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "_change_type": ["delete"]}))
    (file,) = writer.finish()
    assert not file.is_change
    assert pq.ParquetFile(file.location).read().to_pylist() == [{"id": 1, "_Change_Type": "delete"}]
