"""New rows as data files: partitions, NOT NULL, bounded memory, and the tasks that Spark's workers run."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import PAIRS, pack, pack_pairs
from airflow_txlog.datafiles.failures import TaskFailed, error_in
from airflow_txlog.datafiles.parquet import writing
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.physical import ParquetFormat
from airflow_txlog.datafiles.parquet.writing import Layout, PartitionedWriter
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import CopyTask
from airflow_txlog.datafiles.tasks.plans import Bins, pack_bins
from airflow_txlog.datafiles.tasks.scan_and_write import (
    PART_COLUMN,
    ROW_ID_COLUMN,
    FileScan,
    Task,
    WriteTask,
    report_of,
)
from airflow_txlog.errors import ConstraintViolation, CorruptDataFile, CorruptDeletionVector, SchemaMismatch, TxlogError
from airflow_txlog.storage import LocalStore
from tests.helpers.arrow import needs_arrow
from tests.helpers.files import bins_of, place_of, plan_of_files, store_of
from tests.helpers.vectors import bitmap

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string())])


def layout(root: Path, schema: pa.Schema = SCHEMA, partitions: tuple[str, ...] = ("day",), **more: Any) -> Layout:
    return Layout(store=store_of(root), schema=schema, partition_columns=partitions, job_id="job", **more)


def write(target: Layout, *batches: pa.RecordBatch) -> list[StagedFile]:
    writer = PartitionedWriter(target)
    for batch in batches:
        writer.write(batch)
    return writer.finish()


def rows_of(target: Layout, staged: list[StagedFile]) -> list[dict[str, Any]]:
    """The rows of staged files, partition values (raw) included."""
    return [
        row | file.partition_values
        for file in staged
        for row in pq.ParquetFile(place_of(target, file)).read().to_pylist()
    ]


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- codecs ---------------------------------------------------------------------------------------------------------


def test_a_small_file_is_written_in_the_codec_that_begins_fastest_and_a_large_one_in_that_of_the_protocol(
    tmp_path: Path,
) -> None:
    target = layout(tmp_path, pa.schema([("id", pa.int64()), ("p", pa.int64())]), ("p",))
    ids = list(range(4000))
    # One partition has 12 rows, the other the remaining ones.
    staged = write(target, pa.record_batch({"id": ids, "p": [int(n >= 12) for n in ids]}, target.schema))
    codecs = {
        file.partition_values["p"]: pq.read_metadata(place_of(target, file)).row_group(0).column(0).compression
        for file in staged
    }
    assert codecs == {"0": "SNAPPY", "1": "ZSTD"}
    assert {file.partition_values["p"]: file.path.split(".", 2)[2] for file in staged} == {
        "0": "snappy.parquet",
        "1": "zstd.parquet",
    }
    assert sorted(row["id"] for row in rows_of(target, staged)) == ids


def test_a_file_whose_rows_come_bit_by_bit_is_not_taken_for_a_small_one(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    target = replace(layout(tmp_path, schema, ()), store=store_of(tmp_path, split_bytes=64))
    (file,) = write(target, *(pa.record_batch({"id": [n] * 8}, schema) for n in range(2000)))
    assert pq.read_metadata(place_of(target, file)).row_group(0).column(0).compression == "ZSTD"


def test_a_codec_of_the_table_is_that_of_small_files_too(tmp_path: Path) -> None:
    target = layout(tmp_path, pa.schema([("id", pa.int64())]), (), parquet=ParquetFormat(codec="GZIP"))
    (file,) = write(target, pa.record_batch({"id": [1]}, target.schema))
    assert pq.read_metadata(place_of(target, file)).row_group(0).column(0).compression == "GZIP"


# --- partitions -----------------------------------------------------------------------------------------------------


def test_rows_go_to_the_directory_of_their_partition_and_lose_its_columns(tmp_path: Path) -> None:
    day = dt.date(2024, 1, 1)
    first = pa.record_batch({"id": [1, 2, 3], "day": [day, None, day], "name": ["a", "b", "c"]})
    second = pa.record_batch({"NAME": ["d"], "Day": [dt.date(9999, 12, 31)], "ID": [4]})
    target = layout(tmp_path)
    staged = write(target, first, second)
    assert sorted(file.path.split("/")[0] for file in staged) == [
        "day=2024-01-01",
        "day=9999-12-31",
        "day=__HIVE_DEFAULT_PARTITION__",
    ]
    found = sorted(rows_of(target, staged), key=lambda row: row["id"])
    assert [(row["id"], row["day"], row["name"]) for row in found] == [
        (1, "2024-01-01", "a"),
        (2, None, "b"),
        (3, "2024-01-01", "c"),
        (4, "9999-12-31", "d"),
    ]
    for file in staged:
        assert file.store_path == unquote(file.path)
        assert place_of(target, file).stat().st_size == file.size_bytes
        assert json.loads(file.stats)["numRecords"] == file.num_records
        assert "day" not in json.loads(file.stats)["nullCount"]
        assert StagedFile.from_json(file.to_json()) == file


def test_a_strange_partition_value_is_escaped_on_disk_and_again_in_the_path(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("q", pa.int32())])
    target = layout(tmp_path, schema, ("p", "q"))
    batch = pa.record_batch({"id": [1, 2], "p": ["a:b/c %é", ""], "q": pa.array([1, None], pa.int32())})
    staged = write(target, batch)
    values = {tuple(file.partition_values.items()) for file in staged}
    assert values == {(("p", "a:b/c %é"), ("q", "1")), (("p", None), ("q", None))}
    paths = sorted(file.path for file in staged)
    assert paths[1].startswith("p=a%253Ab%252Fc%20%2525é/q=1/part-job-")
    assert {row["id"] for row in rows_of(target, staged)} == {1, 2}


def test_null_and_the_empty_string_are_one_partition(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    (file,) = write(layout(tmp_path, schema, ("p",)), pa.record_batch({"id": [1, 2], "p": ["", None]}))
    assert (file.num_records, file.partition_values) == (2, {"p": None})


def test_many_partitions_are_split_without_losing_a_row(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.int32()), ("q", pa.bool_())])
    few = store_of(tmp_path, split_bytes=50_000, buffered_bytes=100_000, open_files=4)
    target = replace(layout(tmp_path, schema, ("p", "q")), store=few)
    batches = [
        pa.record_batch(
            {
                "id": range(start, start + 5000),
                "p": pa.array([k % 37 for k in range(5000)], pa.int32()),
                "q": [k % 2 == 0 for k in range(5000)],
            }
        )
        for start in range(0, 50_000, 5000)
    ]
    staged = write(target, *batches)
    assert len({tuple(file.partition_values.values()) for file in staged}) == 74
    found = rows_of(target, staged)
    assert sorted(row["id"] for row in found) == list(range(50_000))
    assert all((row["p"], row["q"]) == (str(row["id"] % 5000 % 37), str(row["id"] % 2 == 0).lower()) for row in found)
    assert len({file.path for file in staged}) == len(staged)


def test_tiny_files_of_a_slow_store_are_closed_by_several_threads(tmp_path: Path) -> None:
    threads = set()

    class SlowStore(LocalStore):
        def put_new(self, path: str, data: pa.Buffer) -> int | None:
            threads.add(threading.get_ident())
            time.sleep(0.02)
            return super().put_new(path, data)

    target = layout(tmp_path, pa.schema([("id", pa.int64()), ("p", pa.int32())]), ("p",))
    writer = PartitionedWriter(target, SlowStore(str(tmp_path)))
    writer.write(pa.record_batch({"id": range(80), "p": pa.array([k % 40 for k in range(80)], pa.int32())}))
    staged = writer.finish()
    assert len(staged) == 40
    assert sorted(row["id"] for row in rows_of(target, staged)) == list(range(80))
    assert len(threads) > 2


def test_few_encoded_files_wait_for_a_slow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, encoded, waiting = RowGroupWriter.encode, [0], []

    def counted(writer: RowGroupWriter) -> bool:
        encoded[0] += 1
        return encode(writer)

    class SlowStore(LocalStore):
        def put_new(self, path: str, data: pa.Buffer) -> int | None:
            waiting.append(encoded[0] - len(waiting))
            time.sleep(0.005)
            return super().put_new(path, data)

    monkeypatch.setattr(RowGroupWriter, "encode", counted)
    monkeypatch.setattr(writing, "_MOST_IN_TURN", 1)
    monkeypatch.setattr(writing, "_CLOSED_AT_ONCE", 2)
    monkeypatch.setattr(writing, "_MOST_WAITING", 4)
    target = layout(tmp_path, pa.schema([("id", pa.int64()), ("p", pa.int32())]), ("p",))
    writer = PartitionedWriter(target, SlowStore(str(tmp_path)))
    writer.write(pa.record_batch({"id": range(100), "p": pa.array(range(100), pa.int32())}))
    assert len(writer.finish()) == 100
    assert 2 < max(waiting) < 10


def test_a_file_is_ended_near_its_target_and_another_begun(tmp_path: Path) -> None:
    target = 100_000
    rng = random.Random(7)
    rows = [pa.record_batch({"id": [rng.getrandbits(62) for _ in range(1000)]}) for _ in range(200)]
    staged = write(layout(tmp_path, pa.schema([("id", pa.int64())]), (), target_bytes=target), *rows)
    sizes = sorted(file.size_bytes for file in staged)
    # Eight bytes a row, that nothing makes smaller: 1.6 MB. A file goes on until it has its size, by row groups.
    assert 7 <= len(sizes) <= 16, sizes
    assert all(target <= size <= 2.2 * target for size in sizes[1:])
    found = [row["id"] for file in staged for row in pq.read_table(tmp_path / file.store_path).to_pylist()]
    assert Counter(found) == Counter(value for batch in rows for value in batch.column(0).to_pylist())


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    assert write(layout(tmp_path)) == []
    assert write(layout(tmp_path), pa.record_batch([[], [], []], schema=SCHEMA)) == []
    assert files_under(tmp_path) == []


def test_b10_two_attempts_never_share_a_name(tmp_path: Path) -> None:
    target = layout(tmp_path, pa.schema([("id", pa.int64())]), ())
    one, two = (write(target, pa.record_batch({"id": [1]}))[0].path for _ in range(2))
    assert one != two


# --- rules of the table ---------------------------------------------------------------------------------------------

NOT_NULL_CASES = [
    (pa.field("c", pa.int64(), nullable=False), [1, None], "c"),
    (pa.field("c", pa.struct([pa.field("x", pa.int64(), nullable=False)])), [{"x": None}], "c.x"),
    (pa.field("c", pa.list_(pa.field("element", pa.int64(), nullable=False))), [[1, None]], "c.element"),
    (pa.field("c", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))), [[("k", None)]], "c.value"),
]


@pytest.mark.parametrize(("field", "values", "name"), NOT_NULL_CASES, ids=lambda value: str(value))
def test_a_null_where_the_table_forbids_it_is_refused(
    tmp_path: Path, field: pa.Field, values: list[Any], name: str
) -> None:
    loose = pa.array(values, _nullable(field.type))
    with pytest.raises(ConstraintViolation) as caught:
        write(layout(tmp_path, pa.schema([field]), ()), pa.record_batch({"c": loose}))
    assert (caught.value.constraint, caught.value.column) == ("NOT NULL", name)


@pytest.mark.parametrize("field", [field for field, _, _ in NOT_NULL_CASES[1:]], ids=str)
def test_a_null_above_a_forbidden_null_is_allowed(tmp_path: Path, field: pa.Field) -> None:
    (file,) = write(layout(tmp_path, pa.schema([field]), ()), pa.record_batch({"c": pa.array([None], field.type)}))
    assert pq.read_table(tmp_path / file.store_path).to_pylist() == [{"c": None}]


def test_what_is_stored_as_null_breaks_not_null_in_a_partition_column(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("p", pa.string(), nullable=False), pa.field("id", pa.int64())])
    with pytest.raises(ConstraintViolation):
        write(layout(tmp_path, schema, ("p",)), pa.record_batch({"p": [""], "id": [1]}))


def test_a_missing_column_is_null(tmp_path: Path) -> None:
    target = layout(tmp_path, SCHEMA, ())
    staged = write(target, pa.record_batch({"id": [1]}))
    assert rows_of(target, staged) == [{"id": 1, "day": None, "name": None}]


def test_a_column_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="other"):
        write(layout(tmp_path), pa.record_batch({"id": [1], "other": [2]}))


def test_a_value_that_does_not_fit_the_type_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("small", pa.int8())])
    with pytest.raises(SchemaMismatch, match="small"):
        write(layout(tmp_path, schema, ()), pa.record_batch({"small": [300]}))


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_nullable(True) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_type)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_type)
    return kind


# --- plans and tasks ------------------------------------------------------------------------------------------------


def test_bins_hold_every_file_once_and_are_balanced() -> None:
    sizes = [100, 90, 80, 10, 10, 10, 0]
    bins = pack_bins(sizes, 3)
    assert sorted(row for rows in bins for row in rows) == list(range(7))
    assert max(sum(sizes[row] for row in rows) for rows in bins) == 100
    assert pack_bins([], 4) == []
    assert len(pack_bins([1], 4)) == 1


def all_of(folder: Path, table: pa.Table, count: int = 1) -> Bins:
    return bins_of(folder, table, pack_bins([1] * table.num_rows, count))


def numbers(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": list(range(count))})


def two_files(folder: Path) -> list[dict[str, Any]]:
    for name, start in (("a", 0), ("b", 100)):
        rows = pa.table({"id": range(start, start + 10), "day": ["never read"] * 10})
        pq.write_table(rows, folder / f"{name}.parquet", row_group_size=4)
    return [{"path": "a.parquet"}, {"path": "b.parquet"}]


def test_a_scan_yields_rows_with_addresses_and_typed_partition_values(tmp_path: Path) -> None:
    days = pa.array([dt.date(2024, 1, 1), dt.date(9999, 12, 31)])
    scan = FileScan(
        bins=all_of(tmp_path, plan_of_files(*two_files(tmp_path), day=days), 2), schema=SCHEMA, with_address=True
    )
    rows = [row for batch in Task(source=scan)(numbers(2)) for row in batch.to_pylist()]
    assert len(rows) == 20
    for row in rows:
        file, position = divmod(row["_txlog_address"], 1 << 40)
        assert row["id"] == file * 100 + position
        assert row["day"] == days[file].as_py()
        assert row["name"] is None


def test_a_scan_of_positions_carries_their_row_ids_and_clauses(tmp_path: Path) -> None:
    positions, ids, clauses = [1, 5, 9], [70, 50, 90], [0, 1, 2]
    files = two_files(tmp_path)[:1]
    files[0] |= {
        "positions": pack(positions),
        "pairs": pack_pairs(pa.table([positions, ids, clauses], schema=PAIRS)),
    }
    schema = pa.schema([("id", pa.int64())])
    scan = FileScan(
        bins=all_of(tmp_path, plan_of_files(*files)), schema=schema, rows="only", with_row_id=True, with_clause=True
    )
    rows = [row for batch in Task(source=scan)(numbers(1)) for row in batch.to_pylist()]
    expected = list(zip(positions, ids, clauses, strict=True))
    assert [(row["id"], row["_txlog_row"], row["_txlog_clause"]) for row in rows] == expected
    # Where no column of the file is wanted, the file is not even opened.
    (tmp_path / files[0]["path"]).unlink()
    bare = FileScan(
        bins=all_of(tmp_path, plan_of_files(*files)),
        schema=pa.schema([]),
        rows="only",
        with_row_id=True,
        with_clause=True,
    )
    found = [row for batch in Task(source=bare)(numbers(1)) for row in batch.to_pylist()]
    assert [(row["_txlog_row"], row["_txlog_clause"]) for row in found] == list(zip(ids, clauses, strict=True))


def test_a19_a_scan_leaves_out_masked_rows_and_addresses_count_them(tmp_path: Path) -> None:
    files = two_files(tmp_path)
    files[0] |= {"deleted": bitmap([0, 3, 4, 9])}
    files[1] |= {"deleted": bitmap(range(10), "runs")}
    for schema in (pa.schema([("id", pa.int64())]), pa.schema([])):
        scan = FileScan(bins=all_of(tmp_path, plan_of_files(*files)), schema=schema, with_address=True)
        rows = [row for batch in Task(source=scan)(numbers(1)) for row in batch.to_pylist()]
        assert [row["_txlog_address"] for row in rows] == [1, 2, 5, 6, 7, 8]
        assert [row.get("id") for row in rows] == ([1, 2, 5, 6, 7, 8] if schema.names else [None] * 6)


def test_a_copy_has_neither_masked_rows_nor_those_at_the_positions(tmp_path: Path) -> None:
    files = two_files(tmp_path)
    files[0] |= {"deleted": bitmap([0, 3, 4, 9]), "positions": pack([1, 5])}
    files[1] |= {"deleted": bitmap(range(8)), "positions": pack([8, 9])}
    (copied,) = records(CopyTask(bins=all_of(tmp_path, plan_of_files(*files)), layout=layout(tmp_path)), numbers(1))
    assert isinstance(copied, StagedFile)
    assert pq.read_table(tmp_path / copied.store_path).column("id").to_pylist() == [2, 6, 7, 8]
    stats = json.loads(copied.stats)
    assert (stats["numRecords"], stats["minValues"]["id"], stats["maxValues"]["id"]) == (4, 2, 8)
    assert stats.get("tightBounds", True) is True


@pytest.mark.parametrize("broken", [bitmap([10]), bitmap([1, 2])[:-1], b"no bitmap"])
def test_a_bitmap_that_does_not_fit_its_file_stops_a_scan_and_a_copy(tmp_path: Path, broken: bytes) -> None:
    files = two_files(tmp_path)[:1]
    files[0] |= {"deleted": broken}
    with pytest.raises(TaskFailed) as caught:
        list(Task(source=FileScan(bins=all_of(tmp_path, plan_of_files(*files)), schema=SCHEMA))(numbers(1)))
    assert isinstance(error_in(str(caught.value)), CorruptDeletionVector)
    before = files_under(tmp_path)
    (failed,) = records(CopyTask(bins=all_of(tmp_path, plan_of_files(*files)), layout=layout(tmp_path)), numbers(1))
    assert isinstance(failed, CorruptDeletionVector)
    assert files_under(tmp_path) == before


def test_an_error_of_a_scan_can_be_read_back_from_any_text(tmp_path: Path) -> None:
    scan = FileScan(bins=all_of(tmp_path, plan_of_files({"path": "gone"})), schema=SCHEMA)
    with pytest.raises(TaskFailed) as caught:
        list(Task(source=scan)(numbers(1)))
    found = error_in(f"Traceback …\n  File x\nairflow_txlog.TaskFailed: {caught.value}\n SQLSTATE: 38000\n\tat java…")
    assert isinstance(found, CorruptDataFile)
    assert found.path == str(tmp_path / "gone")
    assert error_in("some other text") is None


def records(task: Any, batches: Iterator[pa.RecordBatch]) -> list[StagedFile | TxlogError]:
    return [report_of(text) for batch in task(batches) for text in batch.column("record").to_pylist()]


def test_a_rewrite_tells_each_copy_and_each_failure(tmp_path: Path) -> None:
    files = two_files(tmp_path)
    files[0] |= {"positions": pack([0]), "directory": "day=x", "partition_values": [("day", "x")]}
    files[1] |= {"positions": pack(list(range(10)))}
    files.append({"path": "gone", "positions": pack([0])})
    found = records(CopyTask(bins=all_of(tmp_path, plan_of_files(*files)), layout=layout(tmp_path)), numbers(1))
    copied, failed = found
    assert isinstance(copied, StagedFile)
    assert (copied.source, copied.num_records, copied.partition_values) == (0, 9, {"day": "x"})
    assert copied.path.startswith("day=x/part-job-")
    assert isinstance(failed, CorruptDataFile)
    assert len(files_under(tmp_path)) == 3


def test_a_failed_writing_task_deletes_what_it_wrote_and_tells_why(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    rows = [pa.record_batch({"id": pa.array([value], pa.int64())}) for value in (1, 2, None, 4)]
    source = iter(rows)
    target = replace(layout(tmp_path, schema, ()), store=store_of(tmp_path, split_bytes=1, buffered_bytes=1))
    (error,) = records(WriteTask(layout=target), source)
    assert isinstance(error, ConstraintViolation)
    assert files_under(tmp_path) == []
    assert next(source, None) is None, "Spark must be able to send all its rows"


def test_an_exception_from_upstream_leaves_no_file_of_this_task(tmp_path: Path) -> None:
    target = layout(tmp_path, pa.schema([("id", pa.int64())]), ())
    target = replace(target, store=store_of(tmp_path, split_bytes=1, buffered_bytes=1))

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise RuntimeError("upstream")

    with pytest.raises(TaskFailed, match="RuntimeError"):
        list(WriteTask(layout=target)(failing()))
    assert files_under(tmp_path) == []


def test_materialized_rows_are_numbered_by_task_and_order(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), (ROW_ID_COLUMN, pa.int64())])
    batches = [pa.record_batch({"id": [7, 8], PART_COLUMN: [3, 3]}), pa.record_batch({"id": [9], PART_COLUMN: [3]})]
    task = WriteTask(layout=layout(tmp_path, schema, (), indexed_columns=()), numbers_rows=True)
    (file,) = records(task, iter(batches))
    assert isinstance(file, StagedFile)
    found = pq.read_table(tmp_path / file.store_path).to_pylist()
    assert [(row["id"], row[ROW_ID_COLUMN]) for row in found] == [(7, 3 << 40), (8, 3 << 40 | 1), (9, 3 << 40 | 2)]


def test_files_never_mix_rows_of_two_segments(tmp_path: Path) -> None:
    one, two = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
    batch = pa.record_batch(
        {
            "id": [1, 2, 3, 4, 5],
            "day": [one, two, one, one, two],
            "name": ["a", "b", "c", "d", "e"],
            writing.SEGMENT_COLUMN: pa.array([7, 7, 3, 7, 3], pa.int32()),
        }
    )
    target = layout(tmp_path)
    staged = write(target, batch)
    found = {(file.segment, row["day"], row["id"]) for file in staged for row in rows_of(target, [file])}
    assert found == {
        (7, "2024-01-01", 1),
        (7, "2024-01-02", 2),
        (3, "2024-01-01", 3),
        (7, "2024-01-01", 4),
        (3, "2024-01-02", 5),
    }
    assert len(staged) == 4
    unpartitioned = layout(tmp_path / "u", partitions=())
    assert sorted(file.segment or 0 for file in write(unpartitioned, batch)) == [3, 7]


HIDING_TYPES = [
    pa.int32(),
    pa.string(),
    pa.bool_(),
    pa.decimal128(10, 2),
    pa.timestamp("us", tz="UTC"),
    pa.struct([pa.field("y", pa.string(), nullable=False), pa.field("z", pa.int64())]),
    pa.list_(pa.struct([pa.field("y", pa.string(), nullable=False)])),
    pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
]
VALUES_OF = {
    pa.int32(): 1,
    pa.string(): "hidden",
    pa.bool_(): True,
    pa.decimal128(10, 2): 1,
    pa.timestamp("us", tz="UTC"): 1,
}


def _value(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type) for field in kind}
    if pa.types.is_map(kind):
        return [("k", _value(kind.item_type))]
    return [_value(kind.value_type)] if pa.types.is_list(kind) else VALUES_OF.get(kind, 1)


@needs_arrow(25, "values below a null list are not written")
@pytest.mark.parametrize("kind", HIDING_TYPES, ids=str)
@pytest.mark.parametrize("is_in_list", [False, True])
def test_a_not_null_member_of_any_type_is_written_below_a_null_struct(
    tmp_path: Path, kind: pa.DataType, is_in_list: bool
) -> None:
    strict = pa.struct([pa.field("x", kind, nullable=False), pa.field("free", pa.int32())])
    members = [pa.array([_value(kind)] * 4, kind), pa.array([None, 1, None, 1], pa.int32())]
    # Values lie below the nulls, as `IF(…, NULL, s)` leaves them.
    found = pa.StructArray.from_arrays(members, fields=list(strict), mask=pa.array([True, False, True, False]))
    field = pa.field("c", strict)
    if is_in_list:
        found = pa.ListArray.from_arrays(pa.array([0, 2, 4, 4, 4], pa.int32()), found)
        field = pa.field("c", pa.list_(pa.field("element", strict)))
    # Any conversion gives the members the nulls of their struct.
    loose = found.cast(_nullable(field.type))
    expected = found.slice(1).to_pylist()
    batch = pa.record_batch({"c": loose}).slice(1)
    (file,) = write(layout(tmp_path, pa.schema([field]), ()), batch)
    assert pq.read_table(tmp_path / file.store_path).column("c").to_pylist() == expected


@needs_arrow(25, "values below a null list are not written")
def test_values_below_a_null_list_go_to_no_other_list(tmp_path: Path) -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3], pa.int32()), mask=pa.array([False, True, False])
    )
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array(["a", "b", "c"]),
        pa.array([1, 2, 3], pa.int32()),
        mask=pa.array([False, True, False]),
    )
    schema = pa.schema([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.string(), pa.int64()))])
    (file,) = write(layout(tmp_path, schema, ()), pa.record_batch({"l": lists, "m": maps}))
    assert pq.read_table(tmp_path / file.store_path).to_pylist() == [
        {"l": [1], "m": [("a", 1)]},
        {"l": None, "m": None},
        {"l": [3], "m": [("c", 3)]},
    ]
