"""Small files that are read together give the rows, addresses and errors of the same files read one by one."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.failures import TaskFailed
from airflow_txlog.datafiles.parquet.footer_forms import FooterForm
from airflow_txlog.datafiles.parquet.footers import check_footer
from airflow_txlog.datafiles.parquet.reading import open_data_file
from airflow_txlog.datafiles.tasks.plans import CONSTANT_PREFIX, planned_files
from airflow_txlog.datafiles.tasks.rows_without_log import ParquetScan
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.datafiles.tasks.small_files import fetched_ahead, in_runs
from airflow_txlog.errors import CorruptDataFile
from airflow_txlog.sql.expression import Call, Column, Values
from airflow_txlog.storage import LocalStore
from tests.helpers.arrow import needs_arrow
from tests.helpers.files import bins_of, plan_of_files

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("added", pa.int32())])
FILES = 120


class AloneScan(FileScan):
    joins_files = False


def rows_of(number: int) -> pa.Table:
    keys = range(7 * number, 7 * number + number % 7)
    return pa.table(
        {"k": pa.array(keys, pa.int64()), "text": pa.array([f"t{k % 5}" * (k % 9) or None for k in keys], pa.string())}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        pq.write_table(rows_of(number), tmp_path / f"{number:03}.parquet", store_schema=number % 20 > 9)
    return tmp_path


def plan_of(folder: Path, **more: Any) -> pa.Table:
    paths = sorted(folder.glob("*.parquet"))
    return plan_of_files(
        *(
            {
                "index": index,
                "path": path.name,
                "size_bytes": path.stat().st_size,
                **{name: values[index] for name, values in more.items()},
            }
            for index, path in enumerate(paths)
        )
    )


def read(folder: Path, plan: pa.Table, kind: type[FileScan] = FileScan, **options: Any) -> pa.Table:
    bins = bins_of(folder, plan, [list(range(plan.num_rows))])
    options = {"schema": SCHEMA, "with_address": True, **options}
    numbers = pa.record_batch({"id": pa.array([0], pa.int64())})
    scan = kind(bins=bins, **options)
    return pa.Table.from_batches(list(Task(source=scan)(iter([numbers]))), scan.output_schema).combine_chunks()


def joined_counts(folder: Path, plan: pa.Table, schema: pa.Schema = SCHEMA) -> list[int]:
    """The number of files in each run."""
    found = in_runs(planned_files(plan, LocalStore(str(folder))), schema)
    return [0 if run.rows is None else len(run.files) for run in found]


class FarStore(LocalStore):
    """A remote store that answers none of the first four requests before all four are under way."""

    is_remote = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.opened: list[str] = []
        self._lock, self._together = threading.Lock(), threading.Barrier(4, timeout=30)

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        with self._lock:
            self.opened.append(path)
            is_early = len(self.opened) <= self._together.parties
        if is_early:
            self._together.wait()
        return super().open_whole(path, size_bytes, is_read_again=is_read_again)


def test_small_files_of_a_remote_store_are_fetched_several_at_once_and_once_each(folder: Path) -> None:
    store, plan = FarStore(str(folder)), plan_of(folder)
    runs = list(in_runs(planned_files(plan, store), SCHEMA))
    assert [each.file.path for run in runs for each in run.files] == plan.column("path").to_pylist()
    assert sorted(store.opened) == plan.column("path").to_pylist()
    assert joined_counts(folder, plan) == [0 if run.rows is None else len(run.files) for run in runs]


class FailingStore(LocalStore):
    """A remote store that refuses one file, and tells of each that it is asked for."""

    is_remote = True

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.last_is_opened = threading.Event()

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        if path == "002.parquet":
            raise PermissionError(f"no access to {path}")
        if path == "004.parquet":
            self.last_is_opened.set()
        return super().open_whole(path, size_bytes, is_read_again=is_read_again)


def test_files_are_fetched_while_earlier_ones_are_used_and_a_failure_comes_in_its_turn(folder: Path) -> None:
    store = FailingStore(str(folder))
    files = list(planned_files(plan_of(folder), store))[:5]
    fetched = fetched_ahead(files, reads_all=True, is_read_again=False)
    assert [next(fetched).file.path, next(fetched).file.path] == ["000.parquet", "001.parquet"]
    assert store.last_is_opened.wait(30)
    with pytest.raises(PermissionError, match="002"):
        next(fetched)


def test_a_file_of_a_remote_store_that_is_gone_is_left_to_the_reader_who_names_it(folder: Path) -> None:
    store, plan = LocalStore(str(folder)), plan_of(folder)
    store.is_remote = True
    (folder / "005.parquet").unlink()
    files = [planned.file for run in in_runs(planned_files(plan, store), SCHEMA) for planned in run.files]
    assert [file.path for file in files if file.content is None] == ["005.parquet"]
    with pytest.raises(CorruptDataFile, match=r"005\.parquet"), open_data_file(files[5]):
        pass


@pytest.mark.parametrize("filtered", [None, Call("=", (Column("text"), Values(pa.array(["t3"]))))])
def test_rows_and_addresses_are_those_of_the_files_read_alone(folder: Path, filtered: Any) -> None:
    plan = plan_of(folder)
    found = read(folder, plan, row_filter=filtered)
    assert found == read(folder, plan, AloneScan, row_filter=filtered)
    assert found.num_rows > 0
    if filtered is None:
        expected = pa.concat_tables(map(rows_of, range(FILES)))
        assert found.select(["k", "text"]) == expected
        wanted = [(n << POSITION_BITS) + row for n in range(FILES) for row in range(n % 7)]
        assert found.column(ADDRESS_COLUMN).to_pylist() == wanted
        assert max(joined_counts(folder, plan)) >= 5


def test_a_column_that_some_files_lack_or_hold_narrower_is_read_as_from_each_alone(folder: Path) -> None:
    for number in range(60, FILES):
        old = rows_of(number)
        wide = old.append_column("added", pa.array([number] * old.num_rows, pa.int8()))
        pq.write_table(wide if number % 2 else old.select(["text", "k"]), folder / f"{number:03}.parquet")
    plan = plan_of(folder)
    found = read(folder, plan)
    assert found == read(folder, plan, AloneScan)
    assert found.column("added").null_count < found.num_rows


def test_files_of_other_partitions_or_with_deleted_rows_keep_their_own_values(folder: Path) -> None:
    # Files without a row, every seventh, have a form of their own: a run may end there anyway.
    parts = pa.array([f"p{number // 5}" for number in range(FILES)])
    plan = plan_of(folder).append_column(CONSTANT_PREFIX + "text", parts)
    assert read(folder, plan) == read(folder, plan, AloneScan)
    counts = joined_counts(folder, plan)
    assert 1 < max(counts) <= 5
    deleted = [pack([0, 2]) if number == 101 else None for number in range(FILES)]
    plan = plan_of(folder, deleted=deleted)
    assert read(folder, plan).num_rows == sum(n % 7 for n in range(FILES)) - 2
    assert 101 % 7 == 3


def _shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"2")


def _of_another_type(path: Path) -> None:
    pq.write_table(pa.table({"k": ["a"], "text": ["b"]}), path)


def _of_unreadable_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:40] = bytes(36)
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [_shorter, _of_another_type, _of_unreadable_pages, Path.unlink])
@pytest.mark.parametrize("kind", [FileScan, ParquetScan])
def test_a_bad_file_among_small_ones_is_named_as_if_it_were_read_alone(
    folder: Path, harm: Callable[[Path], None], kind: type[FileScan]
) -> None:
    plan = plan_of(folder)
    harm(folder / "115.parquet")
    if harm is _of_another_type:
        plan = plan_of(folder)
    with pytest.raises(TaskFailed) as joined:
        read(folder, plan, kind)
    assert "115.parquet" in str(joined.value)
    if kind is FileScan:
        with pytest.raises(TaskFailed) as alone:
            read(folder, plan, AloneScan)
        assert str(joined.value) == str(alone.value)


def test_a_file_of_another_size_or_row_count_than_its_action_says_is_refused(folder: Path) -> None:
    counts = [number % 7 for number in range(FILES)]
    assert read(folder, plan_of(folder, num_records=counts)).num_rows == sum(counts)
    changed = 110
    assert 0 < counts[changed] < 6, "one of those that are read together"
    with pytest.raises(TaskFailed, match="its statistics say 9 rows"):
        read(folder, plan_of(folder, num_records=[9 if n == changed else count for n, count in enumerate(counts)]))
    sizes = plan_of(folder).column("size_bytes").to_pylist()
    wrong = plan_of(folder, size_bytes=[size + (n == changed) for n, size in enumerate(sizes)])
    with pytest.raises(TaskFailed, match=r"110\.parquet") as joined:
        read(folder, wrong)
    with pytest.raises(TaskFailed) as alone:
        read(folder, wrong, AloneScan)
    assert str(joined.value) == str(alone.value)


def test_a_date_of_the_old_calendar_is_refused_in_a_small_file_too(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32())], metadata={"org.apache.spark.version": "2.4.8"})
    for number in range(60):
        rows = pa.table({"d": pa.array([-200_000 if number == 50 else 0], pa.date32())}, schema=schema)
        pq.write_table(rows, tmp_path / f"{number:03}.parquet")
    with pytest.raises(TaskFailed, match=r"050\.parquet.*Julian calendar"):
        read(tmp_path, plan_of(tmp_path), schema=schema)


class _Opened(io.BytesIO):
    """A file of which no byte is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise AssertionError("it was read before its size was compared")


class _Replaced(LocalStore):
    """A store in which a large file has taken the place of a small one."""

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> Any:
        if path != "119.parquet":
            return super().open_whole(path, size_bytes)
        return pa.PythonFile(_Opened(bytes(size_bytes + 1)), mode="r")


def test_a_file_of_another_size_is_not_read(folder: Path) -> None:
    """It may be larger than memory."""
    found = list(in_runs(planned_files(plan_of(folder), _Replaced(str(folder))), SCHEMA))
    assert [(len(run.files), run.rows) for run in found[-1:]] == [(1, None)]
    assert max(len(run.files) for run in found) > 1


def test_a_small_file_whose_rows_would_take_much_memory_is_left_alone(tmp_path: Path) -> None:
    for number in range(30):
        text = pa.array(["a" * (400_000 if number == 25 else 1)])
        repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), text)
        rows = pa.table({"k": range(3000), "text": repeated})
        pq.write_table(
            rows, tmp_path / f"{number:03}.parquet", compression="zstd", write_statistics=False, store_schema=False
        )
    assert (tmp_path / "025.parquet").stat().st_size < 64 * 1024
    schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
    # Some alone, one whose form is learned, those before the large one, it, and those behind it.
    assert joined_counts(tmp_path, plan_of(tmp_path), schema) == [*[0] * 5, 11, 9, 0, 4]


def test_a_footer_that_understates_its_texts_loses_no_rows(tmp_path: Path) -> None:
    """Texts of more than two gigabytes would be two batches, and only the first one would be passed on."""
    for number in range(30):
        texts = pa.array(["a" * (40_000 if number == 25 else 1)])
        repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), texts)
        sink = pa.BufferOutputStream()
        rows = pa.table({"k": range(3000), "text": repeated})
        pq.write_table(rows, sink, compression="zstd", write_statistics=False, store_schema=False)
        data = sink.getvalue().to_pybytes()
        (tmp_path / f"{number:03}.parquet").write_bytes(_with_one_byte_of_texts(data) if number == 25 else data)
    schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
    assert joined_counts(tmp_path, plan_of(tmp_path), schema) == [*[0] * 5, 11, 9, 0, 4]


def _with_one_byte_of_texts(data: bytes) -> bytes:
    """Return the file with 1 as the uncompressed bytes of its second column, in as many bytes as before."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    true = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(1).total_uncompressed_size
    # Thrift stores a positive number doubled, seven bits a byte.
    number = bytes([2 * true & 0x7F | 0x80, 2 * true >> 7 & 0x7F | 0x80, 2 * true >> 14])
    assert true < 2**20
    assert data[-footer:].count(number) == 1
    changed = data[:-footer] + data[-footer:].replace(number, b"\x82\x80\x00")
    metadata = pq.ParquetFile(pa.BufferReader(changed)).metadata
    assert metadata.row_group(0).column(1).total_uncompressed_size == 1
    return changed


@needs_arrow(21, "views of texts are not written")
def test_files_whose_texts_are_views_are_read_among_others(folder: Path) -> None:
    """Writers in Rust note views of texts in the footer."""
    for number in range(FILES):
        rows = rows_of(number)
        views = rows.set_column(1, "text", rows.column("text").cast(pa.string_view()))
        pq.write_table(views if number // 5 % 2 else rows, folder / f"{number:03}.parquet")
    plan = plan_of(folder)
    assert read(folder, plan) == read(folder, plan, AloneScan)
    assert max(joined_counts(folder, plan)) > 1


def _footers() -> list[pa.Table]:
    nested = pa.array([{"x": [1, 2], "y": {"z": "a"}}, None])
    return [
        pa.table({"k": [1, 2], "text": ["a", None]}),
        pa.table({"nested": nested, "d": pa.array([1.5, 2.5]), "b": pa.array([True, False])}),
    ]


@pytest.mark.parametrize("number", [0, 1])
def test_whatever_footer_a_form_accepts_passes_the_check(number: int) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(_footers()[number], sink)
    data = sink.getvalue().to_pybytes()
    source = pa.BufferReader(data)
    form, _ = FooterForm.of(source)
    assert form.read(data) is not None
    parquet = pq.ParquetFile(source)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chance, accepted = random.Random(number), 0
    for at in range(start, len(data) - 8):
        for value in chance.sample(range(256), 6):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            if form.read(changed) is not None:
                check_footer(pa.BufferReader(changed), parquet)
                accepted += changed != data
    assert accepted > 30


@pytest.mark.parametrize("rows", ["only", "others"])
def test_rows_named_by_positions_are_those_of_the_files_alone(folder: Path, rows: str) -> None:
    chosen = random.Random(4)
    counts = [number % 7 for number in range(FILES)]
    positions = [None if n % 3 == 0 else pack(sorted(chosen.sample(range(n), chosen.randint(0, n)))) for n in counts]
    plan = plan_of(folder, positions=positions, segment=[number // 50 for number in range(FILES)])
    assert max(joined_counts(folder, plan)) > 1
    options = {"rows": rows, "with_segment": True}
    found = read(folder, plan, **options)
    assert found.equals(read(folder, plan, AloneScan, **options))
    assert 0 < found.num_rows < sum(counts)
    hidden = plan.set_column(plan.schema.get_field_index("deleted"), "deleted", pa.array(positions, pa.binary()))
    assert read(folder, hidden, **options).equals(read(folder, hidden, AloneScan, **options))
