"""What a hostile log makes a reader take in is bounded before the work: checkpoints, commits, lines, vectors."""

from __future__ import annotations

import struct
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.rows import PORTABLE_MAGIC, RowPositions
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.checkpoints.bounded import Decoded, batches, open_parquet
from airflow_txlog.engine.log.names import checkpoint_name, checksum_name, commit_name
from airflow_txlog.engine.log.vectors import read_vectors
from airflow_txlog.errors import CorruptDeletionVector, InvalidInput, LimitExceeded
from airflow_txlog.storage import MemoryStore
from airflow_txlog.storage.limits import CHECKPOINT, LOG_FILE, LOG_LINE, VECTOR, Limit
from tests.helpers.vectors import bitmap, decode_vector, z85

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table whose log begins with a checkpoint of version 1."""
    made = Table.create(tmp_path / "t", SCHEMA)
    tx = made.begin()
    tx.add(path="f", partition_values={}, size=1)
    tx.commit("WRITE")
    made.checkpoint()
    for version in (0, 1):
        made.store.delete(commit_name(version))
    return made


def _path(table: Table, path: str) -> Path:
    return Path(table.uri.removeprefix("file://")) / path


def _grow(table: Table, action: str, count: int, groups: int = 1, **members: pa.Array) -> int:
    """Put so many actions into the checkpoint, all alike; the bytes of the file."""
    path = _path(table, checkpoint_name(1))
    sound = pq.read_table(path)
    kind = sound.schema.field(action).type
    arrays = [members.get(each.name, pa.nulls(count, each.type)) for each in kind]
    column = pa.StructArray.from_arrays(arrays, fields=list(kind))
    rows = [column if each.name == action else pa.nulls(count, each.type) for each in sound.schema]
    with pq.ParquetWriter(path, sound.schema, compression="zstd", dictionary_pagesize_limit=1 << 30) as writer:
        writer.write_table(sound)
        for _ in range(groups):
            writer.write_table(pa.table(rows, schema=sound.schema))
    return path.stat().st_size


def _alike(text: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([text])).cast(
        pa.string()
    )


def _lists_alike(text: str, count: int) -> pa.Array:
    """One list of many texts."""
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), _alike(text, count))


def _number(value: int, width: int | None = None) -> bytes:
    """As Thrift's compact protocol writes it, and in so many bytes."""
    rest, found = value << 1, b""
    while rest > 0x7F or len(found) + 1 < (width or 1):
        found, rest = found + bytes([rest & 0x7F | 0x80]), rest >> 7
    return found + bytes([rest])


def _without_places(path: Path) -> int:
    """Have the footer lack where dictionaries are: data begins with them, as some old writers say; the file's bytes."""
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            if chunk.has_dictionary_page:
                place = _number(chunk.dictionary_page_offset)
                of_data = _number(chunk.data_page_offset)
                # The field becomes the one before it, and so do those after it, which nothing needs.
                found = b"\x26" + of_data + b"\x26" + place
                assert data.count(found) == 1
                at_dictionary = _number(chunk.dictionary_page_offset, len(of_data))
                data = data.replace(found, b"\x26" + at_dictionary + b"\x16" + place)
    path.write_bytes(data)
    assert not pq.read_metadata(path).row_group(1).column(0).has_dictionary_page
    return len(data)


def _grow_without_places(table: Table) -> int:
    _grow(table, "add", 2000, path=_alike("x" * 10_000, 2000), size=pa.array([1] * 2000))
    return _without_places(_path(table, checkpoint_name(1)))


BOMBS: dict[str, Any] = {
    "a dictionary that the footer does not name": _grow_without_places,
    "statistics in a dictionary": lambda table: _grow(
        table, "add", 2000, path=_alike("p", 2000), size=pa.array([1] * 2000), stats=_alike("x" * 10_000, 2000)
    ),
    "paths in a dictionary, over many row groups": lambda table: _grow(
        table, "add", 50, 40, path=_alike("x" * 10_000, 50), size=pa.array([1] * 50)
    ),
    "removes": lambda table: _grow(table, "remove", 2000, path=_alike("x" * 10_000, 2000)),
    "schemas": lambda table: _grow(table, "metaData", 2000, id=_alike("x" * 10_000, 2000)),
    "a list in one row": lambda table: _grow(
        table, "metaData", 1, id=pa.array(["x"]), partitionColumns=_lists_alike("c" * 10_000, 2000)
    ),
    "one long text": lambda table: _grow(table, "txn", 1, appId=pa.array(["x" * 10_000_000])),
    "rows without an action": lambda table: _grow(table, "add", 1 << 18),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_checkpoint_that_decodes_to_too_much_is_refused_before_it_is_decoded(
    table: Table, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes = BOMBS[name](table)
    assert size_bytes < 1_000_000
    monkeypatch.setenv(CHECKPOINT.setting, str(8 << 20))
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), pool.max_memory()
    with pytest.raises(LimitExceeded, match=rf"decoded, of .*{CHECKPOINT.setting} allows 8388608") as error:
        Table.open(table.uri)
    assert error.value.setting == CHECKPOINT.setting
    assert error.value.found > 8 << 20
    assert pool.max_memory() <= max(peak, before + (16 << 20))


def test_a_checkpoint_within_the_limit_is_read_whatever_is_kept_in_dictionaries(table: Table) -> None:
    _grow(table, "add", 300, 2, path=pa.array([f"p{n % 3}" for n in range(300)]), size=pa.array([1] * 300))
    files = Table.open(table.uri).snapshot().files()
    assert files.num_rows == 601
    assert set(files.column("path").to_pylist()) == {"f", "p0", "p1", "p2"}


def test_one_long_text_among_many_short_ones_is_no_reason_to_refuse_a_checkpoint(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = pa.array(["{}"] * 999 + ['{"numRecords":%s1}' % (" " * 100_000)])
    paths = pa.array([f"p{n}" for n in range(1000)])
    _grow(table, "add", 1000, path=paths, size=pa.array([1] * 1000), stats=stats)
    monkeypatch.setenv(CHECKPOINT.setting, str(8 << 20))
    assert Table.open(table.uri).snapshot().num_files == 1001


def test_a_commit_that_is_too_large_is_refused_unread(table: Table) -> None:
    path = _path(table, commit_name(2))
    with path.open("wb") as file:
        file.truncate(LOG_FILE.default + 1)  # takes no room on the disk
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match=rf"00002\.json of file://\S+ has \d+ bytes, and {LOG_FILE.setting}"):
            Table.open(table.uri)
        assert tracemalloc.get_traced_memory()[1] < LOG_FILE.default // 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["_last_checkpoint", "_last_vacuum_info"])
def test_a_hint_that_is_too_large_is_no_hint(table: Table, name: str) -> None:
    with _path(table, f"_delta_log/{name}").open("wb") as file:
        file.truncate(LOG_FILE.default + 1)
    assert Table.open(table.uri).snapshot().version == 1
    Table.open(table.uri).vacuum(dry_run=True)


def test_a_checksum_that_is_too_large_is_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    _path(table, checksum_name(1)).write_bytes(b" " * 100_000)
    monkeypatch.setenv(LOG_FILE.setting, "50000")
    with pytest.raises(LimitExceeded):
        Table.open(table.uri).snapshot().verify_checksum()


def test_a_line_that_is_too_long_is_refused_undecoded(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"txn":{"appId":"' + b"x" * 3000 + b'","version":1}}'
    _path(table, commit_name(2)).write_bytes(b'{"commitInfo":{}}\n' + line)
    monkeypatch.setenv(LOG_LINE.setting, "2000")
    with pytest.raises(LimitExceeded, match=rf"line 2 of .*00002\.json has {len(line)} bytes") as error:
        Table.open(table.uri)
    assert error.value.path == commit_name(2)
    monkeypatch.setenv(LOG_LINE.setting, "4000")
    assert Table.open(table.uri).snapshot().application_version("x" * 3000) == 1


def test_a_commit_of_ours_that_no_reader_would_take_is_not_made(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Table.open(table.uri)
    monkeypatch.setenv(LOG_FILE.setting, "2000")
    tx = opened.begin()
    tx.add(path="x" * 3000, partition_values={}, size=1)
    with pytest.raises(LimitExceeded, match="the commit of version 2"):
        tx.commit("WRITE")
    assert not _path(table, commit_name(2)).exists()


def test_a_limit_is_read_from_the_environment_and_refused_where_it_is_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = Limit("TXLOG_MAX_TEST_BYTES", 5)
    assert limit.allowed == 5
    monkeypatch.setenv(limit.setting, " 70 ")
    assert limit.allowed == 70
    for wrong in ("-1", "0", "1e9", "2 GB", "٣", "9" * 30):
        monkeypatch.setenv(limit.setting, wrong)
        with pytest.raises(InvalidInput, match=f"{limit.setting} must be a whole number"):
            limit.check(1, "it")


# --- deletion vectors -------------------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parts of vectors that are decoded from here on."""
    found: list[Any] = []
    values = RowPositions._values
    monkeypatch.setattr(RowPositions, "_values", lambda self, part: found.append(part) or values(self, part))
    return found


def _parts(count: int) -> bytes:
    """A bitmap of so many parts of one row each: ten bytes a part."""
    groups = []
    for key, start in enumerate(range(0, count, 65536)):
        size = min(65536, count - start)
        headers = b"".join(struct.pack("<HH", number, 0) for number in range(size))
        groups.append(struct.pack("<III", key, 12346, size) + headers + bytes(4 * size) + bytes(2 * size))
    return struct.pack("<IQ", PORTABLE_MAGIC, len(groups)) + b"".join(groups)


@pytest.mark.parametrize("num_records", [10, None])
def test_a_vector_with_more_parts_than_its_file_has_is_refused_before_they_are_decoded(
    num_records: int | None, decoded: list[Any]
) -> None:
    data = _parts(300_000)
    with pytest.raises(CorruptDeletionVector, match=r"or a later one of a file that has|more rows than a data file"):
        decode_vector(data, cardinality=300_000, num_records=num_records)
    assert decoded == []


def test_a_vector_that_leaves_its_file_is_refused_before_it_is_decoded(decoded: list[Any]) -> None:
    data = bitmap(list(range(0, 65536 * 40, 9000)))
    with pytest.raises(CorruptDeletionVector, match="of a file that has"):
        decode_vector(data, num_records=65536 * 39 + 5)
    assert len(decoded) == 1


def test_a_vector_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore("memory://large-vectors")
    monkeypatch.setenv(VECTOR.setting, "100")
    inline = z85(bitmap(list(range(0, 400, 2))))
    place = z85(bytes(16))
    store.put(f"deletion_vector_{uuid.UUID(int=0)}.bin", bytes(200))
    for vector in (
        DeletionVector(storage_type="u", path_or_inline_dv=place, offset=1, size_in_bytes=101, cardinality=1),
        DeletionVector(storage_type="i", path_or_inline_dv=inline, size_in_bytes=4, cardinality=1),
    ):
        with pytest.raises(LimitExceeded, match=f"{VECTOR.setting} allows 100"):
            read_vectors(store, [(vector, None)])


def test_texts_that_are_kept_as_differences_are_decoded_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DELTA_BYTE_ARRAY: a row takes a byte in the file, and the whole text before it once it is read."""
    limit = 8 * 1024 * 1024
    monkeypatch.setenv(CHECKPOINT.setting, str(limit))
    texts = pa.StructArray.from_arrays([pa.array(["x" * 20_000] * 1_000)], ["path"])
    path = tmp_path / "c.parquet"
    pq.write_table(
        pa.table({"add": texts}),
        path,
        use_dictionary=False,
        column_encoding={"add.path": "DELTA_BYTE_ARRAY"},
        compression="zstd",
    )
    assert path.stat().st_size < 100_000
    sizes: list[int] = []
    decoded = Decoded(MemoryStore("memory://t"), "c")
    with path.open("rb") as source, pytest.raises(LimitExceeded):
        sizes.extend(batch.nbytes for batch in batches(source, open_parquet(source, decoded), ["add"], decoded))
    assert 0 < max(sizes) <= limit


def test_numbers_are_counted_at_their_width_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINT.setting, str(8 * 1024 * 1024))
    numbers = pa.array([7] * 20_000, pa.int64())
    stats = pa.StructArray.from_arrays([numbers] * 100, [f"c{number}" for number in range(100)])
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"add": pa.StructArray.from_arrays([stats], ["stats_parsed"])}), path)
    decoded = Decoded(MemoryStore("memory://t"), "c")
    with path.open("rb") as source, pytest.raises(LimitExceeded):
        next(batches(source, open_parquet(source, decoded), ["add"], decoded))
