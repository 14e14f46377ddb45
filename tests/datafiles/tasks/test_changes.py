"""Change rows: which of the rows that come with a change type are rows of the table, and where the others go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import PAIRS, pack, pack_pairs
from airflow_txlog.datafiles.parquet.physical import FIELD_ID_KEY, MODE_KEY, PARQUET_ID_KEY, PHYSICAL_NAME_KEY
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import leaving_task
from airflow_txlog.datafiles.tasks.plans import Bins, in_parts
from airflow_txlog.datafiles.tasks.scan_and_write import Task, WriteTask, report_of
from airflow_txlog.errors import ConstraintViolation, CorruptDataFile, TxlogError
from tests.helpers.files import bins_of, place_of, plan_of_files, store_of
from tests.helpers.vectors import bitmap

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])
TYPES = [None, "insert", "update_postimage", "delete", "update_preimage"]


def layout(root: Path, schema: pa.Schema = SCHEMA, partitions: tuple[str, ...] = ()) -> Layout:
    return Layout(store=store_of(root), schema=schema, partition_columns=partitions, job_id="job")


def batch(**more: Any) -> pa.RecordBatch:
    columns = {"id": range(5), "p": ["a", "b", "a", "b", "a"], "_change_type": pa.array(TYPES, pa.string())}
    return pa.RecordBatch.from_pydict(columns | more)


def rows_of(target: Layout, staged: list[StagedFile], *, is_change: bool) -> list[dict[str, Any]]:
    found = [
        row | file.partition_values
        for file in staged
        if file.is_change == is_change
        for row in pq.ParquetFile(place_of(target, file)).read().to_pylist()
    ]
    return sorted(found, key=lambda row: row["id"])


def test_a_row_goes_to_the_table_to_the_change_rows_or_to_both_as_its_change_type_says(tmp_path: Path) -> None:
    target = layout(tmp_path)
    (record,) = WriteTask(layout=target)(iter([batch()]))
    staged = [report_of(text) for text in record.column(0).to_pylist()]
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
    assert pq.read_schema(place_of(target, data)).names == ["id", "p"]


def test_change_rows_lie_by_partition_and_by_segment_as_rows_of_the_table_do(tmp_path: Path) -> None:
    target = layout(tmp_path, partitions=("p",))
    writer = PartitionedWriter(target)
    writer.write(batch(**{SEGMENT_COLUMN: pa.array([0, 0, 1, 1, 1], pa.int32())}))
    staged = writer.finish()
    changes = [file for file in staged if file.is_change]
    assert sorted((file.path.split("/")[1], file.segment) for file in changes) == [("p=a", 1), ("p=b", 0), ("p=b", 1)]
    assert all(file.path.startswith("_change_data/p=") for file in changes)
    assert [row["p"] for row in rows_of(target, staged, is_change=True)] == ["b", "a", "b", "a"]
    assert "p" not in pq.read_schema(place_of(target, changes[0])).names


def test_change_rows_of_a_mapped_table_have_physical_names_and_ids(tmp_path: Path) -> None:
    marks = {PHYSICAL_NAME_KEY: b"col-1", FIELD_ID_KEY: b"7", MODE_KEY: b"id"}
    schema = pa.schema([pa.field("id", pa.int64(), metadata=marks)])
    target = layout(tmp_path, schema)
    writer = PartitionedWriter(target)
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "_change_type": ["delete"]}))
    (file,) = writer.finish()
    found = pq.read_schema(place_of(target, file))
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
    assert pq.ParquetFile(place_of(target, file)).read().to_pylist() == [{"id": 1, "_Change_Type": "delete"}]


# --- rows that leave their files ------------------------------------------------------------------------------------


def plan(folder: Path, *files: dict[str, Any], **constants: pa.Array) -> Bins:
    return bins_of(folder, plan_of_files(*files, **constants))


def ran(task: Task) -> list[StagedFile | TxlogError]:
    (record,) = task(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    return [report_of(text) for text in record.column(0).to_pylist()]


def stored_rows(folder: Path, name: str, start: int) -> str:
    pq.write_table(pa.table({"id": pa.array(range(start, start + 10), pa.int32())}), folder / name, row_group_size=4)
    return name


def test_rows_that_leave_their_files_become_change_rows_of_the_clause_that_took_them(tmp_path: Path) -> None:
    pairs = pack_pairs(pa.table([[1, 5, 9], [7, 7, 7], [0, 2, 0]], schema=PAIRS))
    bins = plan(
        tmp_path,
        {"path": stored_rows(tmp_path, "a", 0), "positions": pack([1, 5, 9]), "pairs": pairs},
        {"path": stored_rows(tmp_path, "b", 100), "positions": pack([8]), "clause": 2},
        p=pa.array(["x", None]),
    )
    target = layout(tmp_path, partitions=("p",))
    staged = ran(leaving_task(bins, target, frozenset({2})))
    files = [file for file in staged if isinstance(file, StagedFile)]
    assert len(files) == len(staged) == 2
    assert all(file.is_change and file.segment is None for file in files)
    # Whole rows in the table's types of today, also where the file holds narrower ones.
    assert [tuple(row.values()) for row in rows_of(target, files, is_change=True)] == [
        (1, "delete", "x"), (5, "update_preimage", "x"), (9, "delete", "x"), (108, "update_preimage", None)
    ]  # fmt: skip
    assert pq.read_schema(place_of(target, files[0])).field("id").type == pa.int64()


def test_deleted_rows_need_no_clause_and_keep_to_their_segment(tmp_path: Path) -> None:
    bins = plan(
        tmp_path,
        {"path": stored_rows(tmp_path, "a", 0), "positions": pack([1, 5]), "segment": 3},
        {"path": stored_rows(tmp_path, "b", 100), "deleted": bitmap(range(8)), "segment": 4},
    )
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("late", pa.string(), nullable=False)])
    target = layout(tmp_path, schema)
    files = [file for file in ran(leaving_task(bins, target)) if isinstance(file, StagedFile)]
    found = {file.segment: [row["id"] for row in rows_of(target, [file], is_change=True)] for file in files}
    assert found == {3: [1, 5], 4: [108, 109]}
    # The column came later and is NOT NULL now: the old row is told as it was.
    assert rows_of(target, files, is_change=True)[0] == {"id": 1, "late": None, "_change_type": "delete"}


def test_a_file_that_cannot_be_read_leaves_no_change_file(tmp_path: Path) -> None:
    bins = plan(
        tmp_path,
        {"path": stored_rows(tmp_path, "a", 0), "positions": pack([1])},
        {"path": "gone", "positions": pack([1])},
    )
    (error,) = ran(leaving_task(bins, layout(tmp_path, SCHEMA)))
    assert isinstance(error, CorruptDataFile)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]


@pytest.mark.parametrize("positions", [[0, 3, 5, 9], None], ids=["some rows", "the whole file"])
def test_a_file_in_pieces_is_told_once(tmp_path: Path, positions: list[int] | None) -> None:
    packed = None if positions is None else pack(positions)
    whole = plan_of_files({"path": stored_rows(tmp_path, "a", 0), "positions": packed, "segment": 0})
    bins = bins_of(tmp_path, in_parts(whole, [3]), [[0], [1], [2]])
    target = layout(tmp_path, pa.schema([("id", pa.int64())]))
    found = []
    for number in range(3):
        task = leaving_task(bins, target)
        for record in task(iter([pa.RecordBatch.from_pydict({"id": [number]})])):
            found += [report_of(text) for text in record.column(0).to_pylist()]
    files = [file for file in found if isinstance(file, StagedFile)]
    assert len(files) == len(found) == 3
    told = [row["id"] for row in rows_of(target, files, is_change=True)]
    assert told == (list(range(10)) if positions is None else positions)
