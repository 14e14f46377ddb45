"""A file whose rows get new values in some columns is copied as bytes but for those columns, and only if it is fit."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import addresses_of, pack
from airflow_txlog.datafiles.parquet.physical import FIELD_ID_KEY, MODE_KEY, PARQUET_ID_KEY, PHYSICAL_NAME_KEY
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.splicing import Pages, Splice
from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.datafiles.parquet.thrift import fields_of, integer, integer_of, struct, struct_list, structs_of
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.copies import ImageTask, SentColumns
from airflow_txlog.datafiles.tasks.row_values import NewImages, RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, report_of
from airflow_txlog.errors import ConstraintViolation, CorruptDataFile, TxlogError
from airflow_txlog.sql.expression import Column, Converted, Expression, Values
from tests.helpers.files import bins_of, plan_of_files, store_of
from tests.helpers.spliced_files import KINDS, WRITERS, chunks, rows, start_of

NEW: dict[str, Any] = {
    "id": -5,
    "small": None,
    "text": "new",
    "number": float("nan"),
    "price": Decimal("-9999999999.99"),
    "at": 7,
    "flag": True,
    "pair": {"a": None, "b": "new"},
}


def values_of(**new: Any) -> RowValues:
    """Constants as new values."""
    found: dict[str, Expression] = {name: Values(pa.array([value], KINDS[name])) for name, value in new.items()}
    return RowValues(values=found)


def ran(
    root: Path,
    values: RowValues,
    positions: list[int] | None,
    *,
    schema: pa.Schema | None = None,
    layout: Mapping[str, Any] | None = None,
    limits: Mapping[str, int] | None = None,
    **planned: Any,
) -> list[StagedFile]:
    """The files that the task makes of `root/old.parquet`. Raises its error."""
    folder = root / "table"
    folder.mkdir(exist_ok=True)
    packed = None if positions is None else pack(positions)
    plan = plan_of_files({"path": "old.parquet", "positions": packed, "is_copied": True, "segment": 4} | planned)
    task = ImageTask(
        bins=bins_of(root, plan),
        layout=Layout(
            store=store_of(folder, changed_in_place_bytes=0, **(limits or {})),
            schema=schema or pa.schema(list(KINDS.items())),
            partition_columns=(),
            job_id="job",
            **(layout or {}),
        ),
        values=NewImages(clauses={0: values}),
    )
    numbers = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    reported = [report_of(text) for batch in task(iter([numbers])) for text in batch.column(0).to_pylist()]
    for each in reported:
        if isinstance(each, TxlogError):
            raise each
    return [each for each in reported if isinstance(each, StagedFile)]


def content(root: Path, file: StagedFile) -> pa.Table:
    return pq.ParquetFile(root / "table" / file.store_path).read()


@pytest.mark.parametrize("assigned", [*([name] for name in NEW), ["pair", "id"], ["text", "number", "flag"]], ids=str)
@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS)
def test_a_copy_has_the_new_values_in_their_places_and_the_bytes_of_the_other_columns(
    tmp_path: Path, options: dict[str, Any], assigned: list[str]
) -> None:
    old = rows(300)
    pq.write_table(old, tmp_path / "old.parquet", **options)
    positions = sorted(random.Random(2).sample(range(300), 110))
    (file,) = ran(tmp_path, values_of(**{name: NEW[name] for name in assigned}), positions)
    assert (file.num_records, file.num_kept, file.source, file.segment) == (300, 190, 0, 4)
    is_new = pa.array([row in set(positions) for row in range(300)])
    expected = old
    for name in assigned:
        new = pa.array([NEW[name]] * 300, KINDS[name])
        places = pc.if_else(is_new, pa.array(range(300, 600)), pa.array(range(300)))
        merged = pa.concat_arrays([old[name].combine_chunks(), new]).take(places)
        expected = expected.set_column(expected.column_names.index(name), name, merged)
    found = content(tmp_path, file)
    assert found.schema.equals(old.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    place = tmp_path / "table" / file.store_path
    for name in KINDS.keys() - set(assigned):
        assert chunks(place, name) == chunks(tmp_path / "old.parquet", name)
    before, after = pq.read_metadata(tmp_path / "old.parquet"), pq.read_metadata(place)
    assert after.created_by == before.created_by
    assert [after.row_group(n).num_rows for n in range(after.num_row_groups)] == [
        before.row_group(n).num_rows for n in range(before.num_row_groups)
    ]
    for group in map(after.row_group, range(after.num_row_groups)):
        sizes = [group.column(leaf).total_uncompressed_size for leaf in range(group.num_columns)]
        assert (group.total_byte_size, group.sorting_columns) == (sum(sizes), ())
        assert not any(group.column(leaf).has_offset_index for leaf in range(group.num_columns))
        # Java's readers look for the middle of a row group behind its first column.
        starts = [start_of(group.column(leaf)) for leaf in range(group.num_columns)]
        assert starts[0] == min(starts)


@pytest.mark.parametrize("seed", range(5))
def test_the_statistics_are_those_of_the_rows(tmp_path: Path, seed: int) -> None:
    """Lists and maps have no null count: a footer does not give it."""
    old = rows(200, seed)
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=64)
    (file,) = ran(tmp_path, values_of(text="zz", id=3), list(range(0, 200, 2)))
    flat = content(tmp_path, file).drop_columns(["list", "map"])
    assert file.stats == file_statistics(flat)


def test_new_values_may_come_from_columns_that_stay(tmp_path: Path) -> None:
    old = rows(50)
    pq.write_table(old, tmp_path / "old.parquet")
    values = RowValues(
        values={"id": Converted(Column("small"), pa.int64()), "small": Values(pa.array([9], pa.int16()))}
    )
    (file,) = ran(tmp_path, values, [3, 4])
    found = content(tmp_path, file)
    assert found["id"].to_pylist()[3:5] == old["small"].to_pylist()[3:5]
    assert found["small"].to_pylist()[2:6] == [old["small"][2].as_py(), 9, 9, old["small"][5].as_py()]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_values_that_spark_sends_take_the_places_of_their_rows(tmp_path: Path, size: int) -> None:
    old = rows(50)
    pq.write_table(old, tmp_path / "old.parquet", row_group_size=20)
    positions = [0, 3, 19, 20, 49]
    plan = plan_of_files({"path": "old.parquet", "positions": pack(positions), "is_copied": True, "segment": 4})
    numbers = addresses_of(0, pa.array(positions, pa.int64()))
    sent = pa.RecordBatch.from_arrays([pa.array(["a", None, "c", "d", "e"]), numbers], names=["c0", "c1"])
    (tmp_path / "table").mkdir()
    store = store_of(tmp_path / "table", changed_in_place_bytes=0)
    task = ImageTask(
        bins=bins_of(tmp_path, plan),
        layout=Layout(store=store, schema=pa.schema(list(KINDS.items())), partition_columns=(), job_id="job"),
        values=SentColumns(names=("text", ADDRESS_COLUMN), first_files=(0,)),
    )
    batches = iter([sent.slice(start, size) for start in range(0, 5, size)])
    (text,) = [text for batch in task(batches) for text in batch.column(0).to_pylist()]
    file = report_of(text)
    assert isinstance(file, StagedFile)
    assert file.num_kept == 45
    found = content(tmp_path, file)
    assert found.drop_columns(["text"]).equals(old.drop_columns(["text"]))
    texts = old["text"].to_pylist()
    for position, new in zip(positions, ["a", None, "c", "d", "e"], strict=True):
        texts[position] = new
    assert found["text"].to_pylist() == texts


def test_all_rows_of_a_file_that_no_other_task_copies(tmp_path: Path) -> None:
    pq.write_table(rows(20), tmp_path / "old.parquet")
    (file,) = ran(tmp_path, values_of(text="all"), None, is_copied=False)
    assert (set(content(tmp_path, file)["text"].to_pylist()), file.num_kept) == ({"all"}, 0)


def test_images_alone_are_written_if_another_task_copies_the_other_rows(tmp_path: Path) -> None:
    pq.write_table(rows(20), tmp_path / "old.parquet")
    (file,) = ran(tmp_path, values_of(text="some"), [1, 5], is_copied=False)
    assert (file.num_records, file.num_kept, file.source) == (2, None, None)


UNFIT: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "an old form of timestamps": (rows(20), {"use_deprecated_int96_timestamps": True}),
    "milliseconds": (rows(20).set_column(6, "at", pa.array(range(20), pa.timestamp("ms", "UTC"))), {}),
    "a narrower type": (rows(20).set_column(0, "id", pa.array(range(20), pa.int32())), {}),
    "a column that the file lacks": (rows(20).drop_columns(["text"]), {}),
}


@pytest.mark.parametrize(("old", "options"), UNFIT.values(), ids=UNFIT)
def test_a_file_of_another_form_is_rewritten(tmp_path: Path, old: pa.Table, options: dict[str, Any]) -> None:
    pq.write_table(old, tmp_path / "old.parquet", **options)
    found = ran(tmp_path, values_of(text="new"), [2, 3])
    assert sorted((file.num_records, file.source is None, file.num_kept) for file in found) == [
        (2, True, None),
        (18, False, None),
    ]


class Reads:
    """A file that counts how often it is read."""

    def __init__(self, source: Any) -> None:
        self.seek, self._read, self.count = source.seek, source.read, 0

    def read(self, size: int) -> bytes:
        self.count += 1
        return bytes(self._read(size))


def test_neighbouring_chunks_are_read_at_once(tmp_path: Path) -> None:
    """On an object store each read is a request."""
    pq.write_table(rows(50), tmp_path / "old.parquet")
    with open_data_file(DataFile(store=store_of(tmp_path).open(), path="old.parquet")) as parquet:
        splice = Splice.of(parquet, frozenset({2}), [0])
        assert splice is not None
        parquet.source = reads = Reads(parquet.source)
        splice.copy(0, pa.BufferOutputStream())
    # Those before the third column, and those behind it.
    assert reads.count == 2


def test_long_new_values_are_not_gathered_for_a_whole_row_group(tmp_path: Path) -> None:
    """New rows that are written alone are written as soon as they fill a row group."""
    pq.write_table(rows(200), tmp_path / "old.parquet", row_group_size=100)
    values, limits = values_of(text="x" * 1_000), {"row_group_bytes": 50_000}
    (file,) = ran(tmp_path, values, list(range(40)), limits=limits)
    assert file.num_kept == 160
    found = ran(tmp_path, values, list(range(60)), limits=limits)
    assert sorted((file.num_records, file.num_kept) for file in found) == [(60, None), (140, None)]


def test_long_texts_that_stay_are_counted_without_being_held_for_a_whole_row_group(tmp_path: Path) -> None:
    """A footer has no bounds of texts of more than 4 KiB."""
    texts = pa.array(["a" * 100_000, "b" * 100_000] * 800)
    old = pa.table({"id": range(1_600), "text": texts})
    pq.write_table(old, tmp_path / "old.parquet")
    (file,) = ran(tmp_path, values_of(id=3), [7], schema=old.schema)
    assert file.num_kept == 1_599
    assert chunks(tmp_path / "table" / file.store_path, "text") == chunks(tmp_path / "old.parquet", "text")
    assert file.stats == file_statistics(content(tmp_path, file))


def test_a_chunk_is_longer_than_an_old_writer_counts(tmp_path: Path) -> None:
    """Before version 1.2.9, parquet-mr left the header of the dictionary out of the size: Arrow reads further."""
    old = rows(300).select(["id", "text", "flag"])
    pq.write_table(old, tmp_path / "old.parquet", compression="none")
    data = (tmp_path / "old.parquet").read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = fields_of(data[end:-8])
    (group,) = structs_of(footer, 4)
    chunks = []
    for chunk in map(fields_of, structs_of(fields_of(group), 1)):
        metadata = fields_of(chunk[3][1])
        metadata[7] = integer((integer_of(metadata, 7) or 0) - 14)
        chunks.append(struct({**chunk, 3: (chunk[3][0], struct(metadata))}))
    footer[4] = struct_list([struct({**fields_of(group), 1: struct_list(chunks)})])
    by = b"parquet-mr version 1.2.8 (build 1)"
    footer[6] = footer[6][0], bytes([len(by)]) + by
    new = struct(footer)
    (tmp_path / "old.parquet").write_bytes(data[:end] + new + len(new).to_bytes(4, "little") + b"PAR1")
    found = ran(tmp_path, values_of(flag=True), [2, 3], schema=old.schema)
    kept = sorted(str((each["id"], each["text"])) for file in found for each in content(tmp_path, file).to_pylist())
    assert kept == sorted(map(str, zip(old["id"].to_pylist(), old["text"].to_pylist(), strict=True)))


def test_the_statistics_of_a_column_that_is_found_by_its_id_are_its_own(tmp_path: Path) -> None:
    """Two columns have exchanged their names since the file was written."""

    def field(name: str, number: int) -> pa.Field:
        keys = {PHYSICAL_NAME_KEY: name, FIELD_ID_KEY: str(number), MODE_KEY: b"id"}
        return pa.field(name, pa.int64(), metadata=keys)

    def held(name: str, number: int, first: int) -> tuple[pa.Field, pa.Array]:
        written = pa.field(name, pa.int64(), metadata={PARQUET_ID_KEY: str(number)})
        return written, pa.array(range(first, first + 20), pa.int64())

    fields, columns = zip(held("a", 1, 0), held("b", 2, 500), held("id", 3, 0), strict=True)
    pq.write_table(pa.Table.from_arrays(list(columns), schema=pa.schema(fields)), tmp_path / "old.parquet")
    schema = pa.schema([field("b", 1), field("a", 2), field("id", 3)])
    for file in ran(tmp_path, values_of(id=7), [2, 3], schema=schema):
        stats = json.loads(file.stats or "")
        assert stats["maxValues"].get("b", 0) < 500
        assert stats["minValues"].get("a", 500) >= 500


@pytest.mark.parametrize(
    "planned", [{"leaving": pack([2, 3, 4])}, {"deleted": pack([7])}], ids=["rows leave", "rows are deleted"]
)
def test_a_file_that_loses_rows_is_rewritten(tmp_path: Path, planned: dict[str, Any]) -> None:
    pq.write_table(rows(20), tmp_path / "old.parquet")
    found = ran(tmp_path, values_of(text="new"), [2, 3], **planned)
    assert sum(file.num_records for file in found) == 19
    assert all(file.num_kept is None for file in found)


def test_a_new_null_in_a_column_that_is_not_null_fails_and_leaves_nothing(tmp_path: Path) -> None:
    pq.write_table(rows(20), tmp_path / "old.parquet")
    schema = pa.schema([pa.field(name, kind, name != "text") for name, kind in KINDS.items()])
    with pytest.raises(ConstraintViolation):
        ran(tmp_path, values_of(text=None), [2, 3], schema=schema)
    assert list((tmp_path / "table").iterdir()) == []


def test_a_footer_that_puts_chunks_elsewhere_is_not_trusted(tmp_path: Path) -> None:
    """Chunks that overlap, or reach into the footer, would copy bytes that are not theirs: the rows are decoded."""
    pq.write_table(rows(20), tmp_path / "old.parquet", compression="none", use_dictionary=False)
    data = (tmp_path / "old.parquet").read_bytes()
    metadata = pq.read_metadata(tmp_path / "old.parquet")
    one, two = (metadata.row_group(0).column(leaf).data_page_offset for leaf in (0, 1))

    def varint(value: int) -> bytes:
        value, parts = value << 1, bytearray()
        while value >= 0x80:
            parts.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*parts, value])

    assert one == 4
    moved, end = varint(two), len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place = data.index(moved, end)
    # The second chunk begins one byte early: within the first.
    damaged = data[:place] + varint(two - 1) + data[place + len(moved) :]
    (tmp_path / "old.parquet").write_bytes(damaged)
    with open_data_file(DataFile(store=store_of(tmp_path).open(), path="old.parquet")) as parquet:
        assert Splice.of(parquet, frozenset({2}), [0]) is None
    with pytest.raises(TxlogError):
        ran(tmp_path, values_of(text="new"), [2, 3])
    assert list((tmp_path / "table").iterdir()) == []


@pytest.mark.parametrize(("assigned", "is_rewritten"), [("text", True), ("small", False)])
def test_a_file_of_which_nearly_all_changes_is_rewritten(tmp_path: Path, assigned: str, is_rewritten: bool) -> None:
    """A rewrite keeps the dictionaries of columns, and is faster then."""
    old = rows(300).set_column(2, "text", pa.array([f"a long text {number}" * 80 for number in range(300)]))
    pq.write_table(old, tmp_path / "old.parquet", compression="none", use_dictionary=False)
    found = ran(tmp_path, values_of(**{assigned: NEW[assigned]}), [1, 2])
    assert (found[0].num_kept is None) == is_rewritten


def with_changed_chunk(path: Path, number: int, by: int) -> None:
    """Change an integer in the metadata of the file's second column chunk."""
    data = path.read_bytes()
    footer = fields_of(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    (group,) = map(fields_of, structs_of(footer, 4))
    chunks = list(map(fields_of, structs_of(group, 1)))
    metadata = fields_of(chunks[1][3][1])
    metadata[number] = integer((integer_of(metadata, number) or 0) + by)
    chunks[1][3] = chunks[1][3][0], struct(metadata)
    group[1] = struct_list(list(map(struct, chunks)))
    footer[4] = struct_list([struct(group)])
    made = struct(footer)
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:end] + made + len(made).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(("number", "by"), [(7, -1), (9, 1), (5, 1)], ids=["size", "place", "values"])
def test_a_chunk_that_is_not_what_the_footer_states_is_not_copied(tmp_path: Path, number: int, by: int) -> None:
    """As writers do that leave a page out of the size: the copy could not be read."""
    path = tmp_path / "old.parquet"
    pq.write_table(rows(20), path, compression="none", use_dictionary=False)
    with_changed_chunk(path, number, by)
    if number == 9:
        with_changed_chunk(path, 7, -1)
    with pytest.raises(CorruptDataFile, match=r"column chunk|page"):
        ran(tmp_path, values_of(text="new"), [2, 3])
    assert list((tmp_path / "table").iterdir()) == []


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_headers_of_pages_are_read_however_the_bytes_come(tmp_path: Path, at_once: int) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(rows(200), path, data_page_size=100, write_batch_size=10)
    group, data = pq.read_metadata(path).row_group(0), path.read_bytes()
    ends, end = {}, 4
    for leaf in range(group.num_columns):
        end += group.column(leaf).total_compressed_size
        ends[end] = group.column(leaf).num_values
    pages = Pages(ends)
    pages.begin(4)
    for start in range(4, end, at_once):
        pages.pass_by(data[start : min(start + at_once, end)])
    pages.end()
    pages.check_all()
