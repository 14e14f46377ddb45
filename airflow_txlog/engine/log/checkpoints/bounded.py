"""The batches of one Parquet file of a checkpoint, never decoded to more than the limit for checkpoints.

A few kilobytes of Parquet can stand for gigabytes: pages compress a thousandfold, and a dictionary holds a long text
once for a million rows. Two bounds hold both. The sizes that the footer claims are added up before anything is read.
For text in dictionaries, the longest entry bounds the size of a row; if that bound is too high, the text is first read
as dictionaries, which takes little memory and shows the size of its rows.
The invariant: a batch that is yielded is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.ahead import ahead
from airflow_txlog.datafiles.parquet.decoded_sizes import longest_texts
from airflow_txlog.datafiles.parquet.footers import check_footer
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.limits import CHECKPOINT

# The least size of an action once it is read.
_LEAST_ROW_BYTES = 64
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12, "BYTE_ARRAY": 4}
_DICTIONARIES = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY"))
# As nanoseconds, INT96 would wrap around after the year 2262, in silence. Page checksums (ours have them, and those of
# delta-spark) distinguish a path or a size with a flipped bit from a true one.
_OPTIONS: dict[str, Any] = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
_BUFFER_BYTES = 64 * 1024


@dataclass(slots=True)
class Decoded:
    """How many bytes of one checkpoint were claimed and decoded so far, from all its files."""

    store: Store
    path: str
    claimed_bytes: int = 0
    decoded_bytes: int = 0

    def claim(self, size_bytes: int) -> None:
        self.claimed_bytes += size_bytes
        self._refuse_beyond(self.claimed_bytes)

    def check(self, size_bytes: int) -> None:
        self._refuse_beyond(self.decoded_bytes + size_bytes)

    def has_room_for(self, size_bytes: int) -> bool:
        return self.decoded_bytes + size_bytes <= CHECKPOINT.allowed

    def count(self, size_bytes: int) -> None:
        self.decoded_bytes += size_bytes
        self._refuse_beyond(self.decoded_bytes)

    def _refuse_beyond(self, size_bytes: int) -> None:
        CHECKPOINT.check(size_bytes, f"checkpoint {self.path}, decoded,", self.store.root, self.path)


def open_parquet(source: Any, decoded: Decoded) -> pq.ParquetFile:
    """Open a seekable binary file object. Raises ValueError for a footer that `check_footer` refuses."""
    file = pq.ParquetFile(source, **_options(decoded))
    check_footer(source, file)
    return file


def _options(decoded: Decoded) -> dict[str, Any]:
    # A pre-buffer holds the wanted columns of the whole file and reads neighbours in one request. A disk needs none.
    return {**_OPTIONS, "pre_buffer": decoded.store.is_remote, "buffer_size": _BUFFER_BYTES}


def batches(source: Any, file: pq.ParquetFile, columns: Sequence[str], decoded: Decoded) -> Generator[pa.RecordBatch]:
    """Yield the rows of these columns, each named by its path or one above it. Raises LimitExceeded."""
    found = _batches(source, file, columns, decoded)
    is_large = file.metadata.num_rows > decoded.store.limits.checkpoint_batch_rows
    return ahead(found) if is_large else found


def _batches(source: Any, file: pq.ParquetFile, columns: Sequence[str], decoded: Decoded) -> Generator[pa.RecordBatch]:
    chunks = _chunks(file, columns)
    decoded.claim(_claimed_bytes(file, chunks))
    texts = [each for each in chunks if each.leaf.is_text and each.has_dictionary]
    if texts:
        decoded.check(_bytes_of_texts(source, file, texts, decoded))
    # One thread: each decoding thread holds additional memory, and two are no faster.
    for batch in file.iter_batches(_rows_at_once(chunks, decoded), columns=columns, use_threads=False):
        decoded.count(batch.nbytes)
        yield batch


def _bytes_of_texts(source: Any, file: pq.ParquetFile, texts: Sequence[_Chunk], decoded: Decoded) -> int:
    """Return the decoded size of the texts in dictionaries, or less if it is certainly within the limit."""
    as_dictionaries = pq.ParquetFile(
        source, metadata=file.metadata, read_dictionary=sorted({each.leaf.name for each in texts}), **_options(decoded)
    )
    # Only the data shows how many texts there are in lists and maps.
    size_bytes = sum(_text_bytes(as_dictionaries, {each.leaf.name for each in texts if each.leaf.is_repeated}, decoded))
    flat = [each for each in texts if not each.leaf.is_repeated]
    most = _most_bytes(source, flat)
    if most is None or not decoded.has_room_for(size_bytes + most):
        size_bytes += sum(_text_bytes(as_dictionaries, {each.leaf.name for each in flat}, decoded))
    return size_bytes


def _text_bytes(file: pq.ParquetFile, names: Collection[str], decoded: Decoded) -> Iterator[int]:
    if not names:
        return
    rows = decoded.store.limits.checkpoint_batch_rows
    for group in range(file.num_row_groups):
        # One row group at a time: Arrow cannot put the dictionaries of two into one batch.
        for batch in file.iter_batches(rows, row_groups=[group], columns=sorted(names), use_threads=False):
            yield from map(_decoded_bytes, batch.columns)


def _most_bytes(source: Any, texts: Sequence[_Chunk]) -> int | None:
    """Return the largest possible size: each row takes the longest entry of the dictionary, or a text outside of it."""
    longest = longest_texts(source, [each.chunk for each in texts])
    if None in longest:
        return None
    rows = zip(texts, longest, strict=True)
    return int(sum(text.rows * (4 + (each or 0)) + text.chunk.total_uncompressed_size for text, each in rows))


def _rows_at_once(chunks: Iterable[_Chunk], decoded: Decoded) -> int:
    """Return how many rows an uncounted batch may have: a delta-encoded text may be as long as its whole chunk."""
    sizes = (each.chunk.total_uncompressed_size for each in chunks if "DELTA_BYTE_ARRAY" in each.chunk.encodings)
    longest = max(sizes, default=0)
    most = decoded.store.limits.checkpoint_batch_rows
    return most if not longest else max(1, min(most, CHECKPOINT.allowed // longest))


def _claimed_bytes(file: pq.ParquetFile, chunks: Iterable[_Chunk]) -> int:
    """Return the size of the chunks by the footer, each value of a known width at that width."""
    total = sum(max(each.chunk.total_uncompressed_size, each.chunk.num_values * each.leaf.width) for each in chunks)
    return int(max(total, file.metadata.num_rows * _LEAST_ROW_BYTES))


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the schema. `width`: the bytes of a value, 0 if they are not known."""

    name: str
    is_text: bool
    is_repeated: bool
    width: int

    @staticmethod
    def of(column: Any) -> _Leaf:
        kind, is_repeated = column.physical_type, bool(column.max_repetition_level)
        is_text = kind == "BYTE_ARRAY"
        if kind == "FIXED_LEN_BYTE_ARRAY":
            width = int(column.length)
        else:
            width = _WIDTHS[kind] if is_repeated or not is_text else 0
        return _Leaf(column.path, is_text, is_repeated, width)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column chunk, its column in the schema, and the number of rows of its row group."""

    chunk: Any
    leaf: _Leaf
    rows: int

    @property
    def has_dictionary(self) -> bool:
        # Arrow also reads a dictionary whose place the footer lacks, as some old writers leave it.
        return self.chunk.has_dictionary_page or not _DICTIONARIES.isdisjoint(self.chunk.encodings)


def _chunks(file: pq.ParquetFile, columns: Sequence[str]) -> list[_Chunk]:
    """Return the chunks of these columns, and of those below them."""
    prefixes = tuple(f"{name}." for name in columns)
    schema = file.schema
    all_columns = map(schema.column, range(len(schema)))
    leaves = {index: _Leaf.of(each) for index, each in enumerate(all_columns) if f"{each.path}.".startswith(prefixes)}
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    return [_Chunk(group.column(index), leaf, group.num_rows) for group in groups for index, leaf in leaves.items()]


def _decoded_bytes(array: pa.Array) -> int:
    """Return the size of the array once its dictionaries are decoded."""
    is_a = pa.types
    if is_a.is_dictionary(array.type):
        values = array.dictionary
        # The index of a null may point anywhere if the dictionary is empty.
        lengths = pc.binary_length(values).take(array.indices) if len(values) else pa.array([], pa.int32())
        return int(pc.sum(lengths).as_py() or 0) + 4 * len(array)
    if is_a.is_struct(array.type):
        return sum(_decoded_bytes(array.field(index)) for index in range(array.type.num_fields))
    if is_a.is_map(array.type):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items) + 4 * len(array)
    if is_a.is_list(array.type) or is_a.is_large_list(array.type):
        return _decoded_bytes(array.values) + 4 * len(array)
    return int(array.nbytes)
