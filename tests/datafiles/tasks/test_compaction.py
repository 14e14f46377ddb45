"""Compaction: whatever the age of the files of a bin, the one that they become holds what a reader sees in them."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.dictionaries import repeated_columns
from airflow_txlog.datafiles.parquet.physical import FIELD_ID_KEY, MODE_KEY, PHYSICAL_NAME_KEY
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.row_ids import BASE_ROW_ID_CONSTANT, ROW_VERSION_CONSTANT, RowIds
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks import compaction
from airflow_txlog.datafiles.tasks.compaction import (
    CompactTask,
)
from airflow_txlog.datafiles.tasks.plans import planned_files
from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_COLUMN, FileScan, report_of
from airflow_txlog.errors import CorruptDataFile, TxlogError, UnsupportedFeature
from airflow_txlog.storage import LocalStore
from tests.helpers.files import bins_of, plan_of_files, store_of
from tests.helpers.vectors import bitmap


def layout(root: Path, schema: pa.Schema, **more: Any) -> Layout:
    return Layout(store=store_of(root), schema=schema, partition_columns=(), job_id="job", **more)


def compact(
    target: Layout,
    *bins: Sequence[Path],
    masked: dict[Path, bytes] | None = None,
    constants: dict[str, dict[Path, int]] | None = None,
    read_ahead: bool = False,
    counted: bool = False,
) -> list[StagedFile | TxlogError]:
    """What one task tells that compacts these bins."""
    given = [(number, path) for number, files in enumerate(bins) for path in files]
    rows = [
        {
            "path": path.name,
            "size_bytes": path.stat().st_size,
            "num_records": pq.read_metadata(path).num_rows if counted else None,
            "segment": number,
            "deleted": (masked or {}).get(path),
        }
        for number, path in given
    ]
    ids = {
        name: pa.array([by_file[path] for _, path in given], pa.int64()) for name, by_file in (constants or {}).items()
    }
    task = CompactTask(
        bins=bins_of(bins[0][0].parent, plan_of_files(*rows, **ids)),
        layout=target,
        read_ahead=read_ahead,
    )
    ranges = iter([pa.record_batch({"id": pa.array([0], pa.int64())})])
    return [report_of(record) for batch in task(ranges) for record in batch.column(RECORD_COLUMN).to_pylist()]


def staged(found: Sequence[StagedFile | TxlogError]) -> list[StagedFile]:
    assert all(isinstance(each, StagedFile) for each in found), found
    return [each for each in found if isinstance(each, StagedFile)]


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, store_schema=False, **options)
    return path


FAR = [dt.datetime(1, 1, 1), dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 31, 12)]


@pytest.mark.parametrize("read_ahead", [False, True])
def test_a7_a19_files_of_all_ages_become_one_file_of_the_tables_types(tmp_path: Path, read_ahead: bool) -> None:
    member = pa.struct([("x", pa.int64()), ("y", pa.string())])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("ts", pa.timestamp("us", "UTC")),
            ("ntz", pa.timestamp("us")),
            ("dec", pa.decimal128(20, 3)),
            ("s", member),
            ("l", pa.list_(pa.int64())),
            ("added", pa.string()),
        ]
    )
    far = pa.array(FAR, pa.timestamp("us"))
    old = {
        "ID": pa.array([1, 2, 3], pa.int16()),
        "ts": far,
        "ntz": far,
        "dec": pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("-9.9")], pa.decimal128(4, 1)),
        "s": pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int32())])),
        "l": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "dropped": ["a", "b", "c"],
    }
    first = write(tmp_path / "int96.parquet", pa.table(old), use_deprecated_int96_timestamps=True)
    second = write(tmp_path / "ms.parquet", pa.table({"id": [4], "ts": pa.array(FAR[:1], pa.timestamp("ms", "UTC"))}))
    now = {"id": [5], "ts": [FAR[2]], "ntz": [FAR[0]], "dec": [None], "s": [{"x": 7, "y": "q"}], "l": [[9]]}
    third = write(tmp_path / "now.parquet", pa.Table.from_pydict({**now, "added": ["new"]}, schema))
    target = layout(tmp_path / "out", schema)
    (file,) = staged(compact(target, [first, second, third], read_ahead=read_ahead))
    found = pq.ParquetFile(tmp_path / "out" / file.store_path)
    assert [(field.name, field.type) for field in found.schema_arrow] == [(f.name, f.type) for f in schema]
    assert {found.schema.column(index).physical_type for index in (1, 2)} == {"INT64"}
    assert found.read().to_pylist() == [
        {"id": 1, "ts": _utc(FAR[0]), "ntz": FAR[0], "dec": decimal.Decimal("1.500"), "s": {"x": 1, "y": None},
         "l": [1, None], "added": None},
        {"id": 2, "ts": _utc(FAR[1]), "ntz": FAR[1], "dec": None, "s": None, "l": [], "added": None},
        {"id": 3, "ts": _utc(FAR[2]), "ntz": FAR[2], "dec": decimal.Decimal("-9.900"), "s": {"x": None, "y": None},
         "l": None, "added": None},
        {"id": 4, "ts": _utc(FAR[0]), "ntz": None, "dec": None, "s": None, "l": None, "added": None},
        {"id": 5, "ts": _utc(FAR[2]), "ntz": FAR[0], "dec": None, "s": {"x": 7, "y": "q"}, "l": [9], "added": "new"},
    ]  # fmt: skip
    assert found.metadata.num_row_groups == 1
    stats = json.loads(file.stats)
    assert stats["numRecords"] == file.num_records == 5
    assert (stats["minValues"]["id"], stats["maxValues"]["id"], stats["nullCount"]["added"]) == (1, 5, 4)


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


def test_deleted_rows_go_and_a_bin_without_rows_becomes_no_file(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    one = write(tmp_path / "1.parquet", pa.table({"id": list(range(10))}, schema), row_group_size=3)
    two = write(tmp_path / "2.parquet", pa.table({"id": [10, 11]}, schema))
    three = write(tmp_path / "3.parquet", pa.table({"id": [20, 21]}, schema))
    vectors = {one: bitmap([0, 4, 9]), three: bitmap([0, 1])}
    found = staged(compact(layout(tmp_path / "out", schema), [three], [one, two], masked=vectors))
    assert [file.segment for file in found] == [1]
    assert pq.read_table(tmp_path / "out" / found[0].store_path).column("id").to_pylist() == [
        1,
        2,
        3,
        5,
        6,
        7,
        8,
        10,
        11,
    ]
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_row_ids_are_kept_by_base_ordinal_and_what_a_file_has(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("_rid", pa.int64()), ("_rv", pa.int64())])
    plain = write(tmp_path / "1.parquet", pa.table({"id": [0, 1, 2]}))
    moved = {"id": [3, 4], "_rid": pa.array([77, None], pa.int64()), "_rv": pa.array([2, None], pa.int64())}
    other = write(tmp_path / "2.parquet", pa.table(moved))
    (file,) = staged(
        compact(
            layout(tmp_path / "out", schema, num_indexed_columns=1, row_ids=RowIds(row_id="_rid", row_version="_rv")),
            [plain, other],
            masked={plain: bitmap([1])},
            constants={BASE_ROW_ID_CONSTANT: {plain: 100, other: 200}, ROW_VERSION_CONSTANT: {plain: 5, other: 9}},
        )
    )
    # An ordinal counts the masked rows too.
    assert pq.read_table(tmp_path / "out" / file.store_path).to_pylist() == [
        {"id": 0, "_rid": 100, "_rv": 5},
        {"id": 2, "_rid": 102, "_rv": 5},
        {"id": 3, "_rid": 77, "_rv": 2},
        {"id": 4, "_rid": 201, "_rv": 9},
    ]
    assert set(json.loads(file.stats)["nullCount"]) == {"id"}


def test_columns_of_a_mapped_table_are_found_and_written_by_their_physical_names_and_ids(tmp_path: Path) -> None:
    def mapped(name: str, physical: str, number: int, kind: pa.DataType) -> pa.Field:
        marks = {MODE_KEY: b"name", PHYSICAL_NAME_KEY: physical.encode(), FIELD_ID_KEY: str(number).encode()}
        return pa.field(name, kind, metadata=marks)

    inner = pa.struct([mapped("now", "p-x", 3, pa.int64())])
    schema = pa.schema([mapped("a", "p-a", 1, pa.int64()), mapped("s", "p-s", 2, inner)])
    # `a` was another column once: its values must not come back under the name.
    file = {"a": [9, 9], "p-a": pa.array([1, 2], pa.int32()), "p-s": [{"p-x": 5}, None]}
    source = write(tmp_path / "1.parquet", pa.table(file))
    (found,) = staged(compact(layout(tmp_path / "out", schema), [source, source]))
    rows = pq.ParquetFile(tmp_path / "out" / found.store_path)
    assert rows.read().to_pylist() == 2 * [{"p-a": 1, "p-s": {"p-x": 5}}, {"p-a": 2, "p-s": None}]
    assert [field.metadata[b"PARQUET:field_id"] for field in rows.schema_arrow] == [b"1", b"2"]
    # A random directory, as every file of a mapped table has.
    assert found.path.count("/") == 1
    assert json.loads(found.stats)["maxValues"] == {"p-a": 2, "p-s": {"p-x": 5}}


def test_an_error_leaves_no_file_of_its_bin_and_other_bins_are_told(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    good = write(tmp_path / "1.parquet", pa.table({"id": [1]}, schema))
    bad = write(tmp_path / "2.parquet", pa.table({"id": ["text"]}))
    target = layout(tmp_path / "out", schema)
    for read_ahead in (False, True):
        first, second = compact(target, [good, bad], [good], read_ahead=read_ahead)
        assert isinstance(first, CorruptDataFile)
        assert isinstance(second, StagedFile)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [second.path]
        (tmp_path / "out" / second.store_path).unlink()


def test_a8_a_file_with_old_dates_of_the_julian_calendar_is_refused_by_name(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32())])
    old = pa.table({"d": [dt.date(1500, 1, 1)]}, schema)
    source = tmp_path / "1.parquet"
    with pq.ParquetWriter(source, schema, store_schema=False) as writer:
        writer.write_table(old)
        writer.add_key_value_metadata({"org.apache.spark.version": "2.4.8"})
    (error,) = compact(layout(tmp_path / "out", schema), [source])
    assert isinstance(error, UnsupportedFeature)
    assert error.facts["feature"] == "legacy calendar"


def test_memory_is_bounded_by_a_row_group_and_small_batches_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_JOINED_ROWS", 100)
    monkeypatch.setattr(FileScan, "joins_files", False)
    schema = pa.schema([("id", pa.int64())])
    files = [
        write(tmp_path / f"{number}.parquet", pa.table({"id": list(range(number * 10, number * 10 + 10))}, schema))
        for number in range(200)
    ]
    target = replace(layout(tmp_path / "out", schema), store=store_of(tmp_path / "out", row_group_bytes=4000))
    (file,) = staged(compact(target, files))
    found = pq.ParquetFile(tmp_path / "out" / file.store_path)
    assert found.read().column("id").to_pylist() == list(range(2000))
    # 100 rows are 800 bytes, so five joined batches fill a row group.
    assert [found.metadata.row_group(group).num_rows for group in range(4)] == [500] * 4


def test_a_file_has_eight_row_groups_where_one_is_encoded_while_the_next_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_JOINED_ROWS", 100)
    monkeypatch.setattr(compaction, "_LEAST_GROUP_BYTES", 1000)
    monkeypatch.setattr(FileScan, "joins_files", False)
    schema = pa.schema([("id", pa.int64())])
    rows = pa.table({"id": list(range(1600))}, schema)
    files = [write(tmp_path / f"{start}.parquet", rows.slice(start, 100)) for start in range(0, 1600, 100)]

    def groups(*, read_ahead: bool, counted: bool) -> list[int]:
        """Their rows."""
        target = layout(tmp_path / "out", schema)
        (file,) = staged(compact(target, files, read_ahead=read_ahead, counted=counted))
        found = pq.ParquetFile(tmp_path / "out" / file.store_path)
        assert found.read().equals(rows)
        return [found.metadata.row_group(group).num_rows for group in range(found.num_row_groups)]

    assert groups(read_ahead=True, counted=True) == [200] * 8
    assert groups(read_ahead=True, counted=False) == groups(read_ahead=False, counted=True) == [1600]
    monkeypatch.setattr(compaction, "_LEAST_GROUP_BYTES", 6400)
    assert groups(read_ahead=True, counted=True) == [800] * 2


def test_the_codec_of_the_files_is_followed_and_a_dictionary_made_where_values_repeat(tmp_path: Path) -> None:
    schema = pa.schema([("few", pa.string()), ("many", pa.int64()), ("flag", pa.bool_()), ("l", pa.list_(pa.int64()))])
    rows = pa.table(
        {"few": ["a", "b"] * 500, "many": list(range(1000)), "flag": [True] * 1000, "l": [[1]] * 1000}, schema
    )
    assert repeated_columns(rows.to_batches()[0]) == ["few", "l.list.element"]
    source = write(tmp_path / "1.parquet", rows, compression="zstd")
    (file,) = staged(compact(layout(tmp_path / "out", schema), [source, source]))
    assert file.path.endswith(".zstd.parquet")
    group = pq.ParquetFile(tmp_path / "out" / file.store_path).metadata.row_group(0)
    chunks = {group.column(index).path_in_schema: group.column(index) for index in range(4)}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    with_dictionary = {path for path, chunk in chunks.items() if chunk.has_dictionary_page}
    assert with_dictionary == {"few", "l.list.element"}


def test_small_files_of_ours_are_compacted_in_the_default_codec_and_those_of_others_in_theirs(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("id", pa.int64())])
    for folder, name, codec in (
        ("ours", f"part-{'0' * 16}-{uuid.UUID(int=1)}.c000.snappy.parquet", "ZSTD"),
        ("other", "part-00000.snappy.parquet", "SNAPPY"),
    ):
        (tmp_path / folder).mkdir()
        source = write(tmp_path / folder / name, pa.table({"id": [1, 2]}, schema), compression="snappy")
        target = layout(tmp_path / folder, schema)
        (file,) = staged(compact(target, [source, source]))
        metadata = pq.read_metadata(tmp_path / folder / file.store_path)
        assert metadata.row_group(0).column(0).compression == codec


def test_nested_dictionaries_are_named_as_parquet_names_leaves(tmp_path: Path) -> None:
    kind = pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int64())]))))])
    schema = pa.schema([("s", kind)])
    rows = pa.table({"s": [{"m": [("k", [{"x": 1}])]}] * 100}, schema)
    source = write(tmp_path / "1.parquet", rows)
    (file,) = staged(compact(layout(tmp_path / "out", schema), [source]))
    metadata = pq.ParquetFile(tmp_path / "out" / file.store_path).metadata
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    assert repeated_columns(rows.to_batches()[0]) == paths
    assert pq.read_table(tmp_path / "out" / file.store_path).to_pylist() == rows.to_pylist()


def test_a_column_may_hold_nulls_that_the_table_forbids(tmp_path: Path) -> None:
    """They are in the table, whoever wrote them; a compaction neither loses rows nor stands in the way for ever."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", inner, nullable=False)])
    source = write(tmp_path / "1.parquet", pa.table({"id": [1, None], "s": [{"x": None}, None]}, pa.schema(
        [("id", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])))  # fmt: skip
    (file,) = staged(compact(layout(tmp_path / "out", schema), [source]))
    assert pq.read_table(tmp_path / "out" / file.store_path).to_pylist() == [
        {"id": 1, "s": {"x": None}},
        {"id": None, "s": None},
    ]


class CountingStore(LocalStore):
    """A remote store that tells which files it was asked for."""

    is_remote = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        self.opened.append(path)
        return super().open_whole(path, size_bytes, is_read_again=is_read_again)


def test_large_files_behind_a_small_one_are_fetched_in_their_turn(tmp_path: Path) -> None:
    # Nine megabytes, of which no two should be in memory.
    large = pa.table({"id": pa.array(range(1_200_000), pa.int64())})
    tables = [large.slice(0, 100), *[large] * 4]
    files = [
        write(tmp_path / f"{number}.parquet", table, compression="NONE", use_dictionary=False)
        for number, table in enumerate(tables)
    ]
    plan = plan_of_files(
        *({"path": path.name, "size_bytes": path.stat().st_size, "segment": 0, "deleted": None} for path in files)
    )
    task = CompactTask(bins=bins_of(tmp_path, plan), layout=layout(tmp_path, large.schema))
    store = CountingStore(str(tmp_path))
    planned = list(planned_files(plan, store))
    rows = task._rows(planned, compaction._CompactedFile(task.layout, store, planned[0], "attempt"))
    assert next(rows).num_rows == 100
    assert store.opened == ["0.parquet"]
    assert next(rows).num_rows > 0
    assert store.opened == ["0.parquet", "1.parquet"]
    assert 100 + sum(batch.num_rows for batch in rows) > 4_000_000
    assert sorted(store.opened) == [path.name for path in files]
