"""Data files being written: row groups of a bounded size, statistics on the way, and a record of the staged file.

The invariant: a commit names a file only if `close` returned its record. A writer that fails before that deletes its
file, because no other process knows the name. Source: soundness A17, B10.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import occurring
from airflow_txlog.datafiles.dictionaries import without_unique_columns
from airflow_txlog.datafiles.moved_rows import count_rows
from airflow_txlog.datafiles.parquet.conversion import hides_nulls, without_hidden_nulls
from airflow_txlog.datafiles.parquet.footer_statistics import GroupChunks, chunks_by_group
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.locations import readable
from airflow_txlog.storage import Store
from airflow_txlog.storage.base import Output, name_file

# The rows of a file that is encoded in memory take less than these bytes.
_ENCODED_BYTES = 1024 * 1024
# Bytes read at once to compute a digest.
_DIGESTED_BYTES = 8 * 1024 * 1024


class DigestingOutput:
    """A binary file for pyarrow that hashes the bytes that it passes on to `sink`."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.closed = False

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._sink.write(data)
        return len(data)

    def tell(self) -> int:
        return int(self._sink.tell())

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self.closed = True
        self._sink.close()

    def digest(self) -> str:
        """Return the hexadecimal SHA-256 of all written bytes."""
        return self._hash.hexdigest()


class WrittenRows:
    """The footers of files that this process has written; and their rows, if all of them fit into `most_bytes`.

    Its threads share it. Another process, to which it is sent, has none of them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._groups: dict[str, list[pa.Table]] = {}
        self._footers: dict[str, pq.FileMetaData] = {}
        self._lock = threading.Lock()

    def add(self, path: str, group: pa.Table) -> None:
        """Add the next row group of a file. If the rows are too many, drop all of them."""
        with self._lock:
            self._most_bytes -= group.nbytes
            if self._most_bytes < 0:
                self._groups.clear()
            else:
                self._groups.setdefault(path, []).append(group)

    def end(self, path: str, footer: pq.FileMetaData) -> None:
        """Add the footer of a file."""
        self._footers[path] = footer

    def footer(self, path: str) -> pq.FileMetaData | None:
        """Return the footer of a finished file; None if this process has not written it."""
        return self._footers.get(path)

    def of(self, path: str) -> pa.Table | None:
        """Return all rows of a finished file, in its order; None if they are not here."""
        groups = self._groups.get(path)
        return None if groups is None else pa.concat_tables(groups)

    def __reduce__(self) -> tuple[Any, ...]:
        return WrittenRows, (0,)


class RowGroupWriter:
    """One Parquet file, written row group by row group. Not to be shared between threads.

    `write` gathers batches until a row group is full; `end_row_group` ends one earlier. The file appears with the first
    row group, so a writer without rows leaves nothing behind.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        schema: pa.Schema,
        *,
        options: Mapping[str, Any],
        key_values: Mapping[bytes, bytes] | None = None,
        statistics: StatisticsCollector,
        row_group_bytes: int | None = None,
        with_digest: bool = False,
        discards: bool = False,
        keeps: WrittenRows | None = None,
    ) -> None:
        """`discards`: count the bytes of the file, and write none. `keeps`: the rows are added to it."""
        self.path = path
        self._discards = discards
        self._keeps = keeps
        self.pending_bytes = 0
        self._num_records = 0
        self.schema = schema
        self._options = dict(options)
        self._key_values = dict(key_values or {})
        self._pending: list[pa.RecordBatch] = []
        self._store = store
        self._output: Output | None = None
        self._encoded: pa.Buffer | None = None
        self._is_finished = False
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._statistics = statistics
        self._with_digest = with_digest
        most = store.limits.row_group_bytes
        self._row_group_bytes = most if row_group_bytes is None else min(most, row_group_bytes)
        kinds = [field.type for field in schema]
        self._hiding_nulls = [number for number, kind in enumerate(kinds) if hides_nulls(kind)]
        self._dictionaries = [number for number, kind in enumerate(kinds) if pa.types.is_dictionary(kind)]

    def another(
        self, path: str, options: Mapping[str, Any], statistics: StatisticsCollector | None = None
    ) -> RowGroupWriter:
        """Return the writer of another file, before its first row. Call it before the first row of this one.

        `statistics`: one of `statistics_of`, for the rows of this file.
        """
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.path, found._options = path, dict(options)
        found._pending, found._statistics = [], statistics or self._statistics.empty()
        return found

    def statistics_of(self, parts: Sequence[pa.Table]) -> Iterator[StatisticsCollector]:
        """Yield what `another` gets for each of many small files, whose rows are these."""
        return self._statistics.of_parts(parts)

    @property
    def is_open(self) -> bool:
        """Whether a file handle is open."""
        return self._writer is not None

    @property
    def written_bytes(self) -> int:
        """The bytes that have gone to the file so far."""
        if self._encoded is not None:
            return int(self._encoded.size)
        return 0 if self._sink is None else int(self._sink.tell())

    def write(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> None:
        """Add rows with exactly the schema's columns; `size_bytes` are theirs, if they are known."""
        if batch.num_rows == 0:
            return
        self._pending.append(batch)
        self.pending_bytes += batch.nbytes if size_bytes is None else size_bytes
        if self.pending_bytes >= self._row_group_bytes:
            self.end_row_group()

    def end_row_group(self) -> None:
        """Write the gathered rows, if any, as one row group."""
        if not self._pending:
            return
        table = self._writable(pa.Table.from_batches(self._pending, self.schema))
        self._pending, self.pending_bytes = [], 0
        if self._writer is None and "use_dictionary" not in self._options:
            self._options["use_dictionary"] = without_unique_columns(table)
        self._encode_group(table)
        # The statistics in the footer of an encrypted file are encrypted too.
        self._statistics.update(table, is_group="encryption_properties" not in self._options)
        if self._keeps is not None:
            self._keeps.add(self.path, table)
        self._num_records += table.num_rows
        count_rows(written=table.num_rows)

    def _encode_group(self, table: pa.Table) -> None:
        try:
            self._write_group(self._begun(), table)
        except OSError as error:
            self._name(error)
            raise

    def encode(self) -> bool:
        """Encode the file in memory if it is small and not begun. Return whether only bytes are left for `close`."""
        if not self._pending or self._sink is not None or self.pending_bytes >= _ENCODED_BYTES or self._discards:
            return False
        stream = self._sink = pa.BufferOutputStream()
        self.end_row_group()
        self._end(self._begun())
        self._writer, self._sink, self._encoded = None, None, stream.getvalue()
        return True

    def skip_to(self, position: int) -> None:
        """Do nothing: the next row has this position in the file that is copied."""

    def _begun(self) -> pq.ParquetWriter:
        """Return the writer of the file, which it begins if that is not done."""
        if self._writer is None:
            self._sink = self._opened() if self._sink is None else self._sink
            # Arrow's own copy of the schema is left out: a reader that trusts it would misread the columns' types.
            self._writer = pq.ParquetWriter(self._stream(self._sink), self.schema, store_schema=False, **self._options)
        return self._writer

    def _name(self, error: OSError) -> None:
        """Let an error name the file: Arrow's names none."""
        name_file(error, readable(self._store.root, self.path))

    def _opened(self) -> Any:
        if self._discards:
            return pa.MockOutputStream()
        self._output = self._store.open_new(self.path)
        return DigestingOutput(self._output.sink) if self._with_digest else self._output.sink

    def close(
        self,
        partition_values: dict[str, str | None],
        *,
        source: int | None = None,
        segment: int | None = None,
        num_kept: int | None = None,
        is_change: bool = False,
    ) -> StagedFile | None:
        """Finish the file and return its record, or None if it has no rows. For the arguments see StagedFile."""
        self.end_row_group()
        if self._writer is None and self._encoded is None:
            return None
        try:
            size_bytes, modified_ms = self._published()
        except OSError as error:
            self._name(error)
            raise
        # The file's buffers are freed, though this writer is kept in case the file is to be dropped.
        digest, self._encoded, self._output, self._sink = self._digest(), None, None, None
        if modified_ms is None:
            found = self._store.stat(self.path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), readable(self._store.root, self.path))
            size_bytes, modified_ms = found.size_bytes, found.modified_ms
        return StagedFile(
            path=encode_add_path(self.path),
            partition_values=partition_values,
            size_bytes=size_bytes,
            modification_time_ms=modified_ms,
            num_records=self._num_records,
            stats=self._statistics.finish(),
            source=source,
            segment=segment,
            num_kept=num_kept,
            is_change=is_change,
            digest=digest,
        )

    def _published(self) -> tuple[int, int | None]:
        """Finish the file. Return its size, and its time, None if it must be looked up."""
        modified_ms: int | None = 0
        if self._encoded is not None:
            modified_ms = self._store.put_new(self.path, self._encoded)
        if self._writer is not None:
            self._end(self._writer)
            self._writer = None
        size_bytes = self.written_bytes
        if self._output is not None:
            self._output.close()
            modified_ms = self._output.modified_ms
        self._is_finished = not self._discards
        return size_bytes, modified_ms

    def _digest(self) -> str | None:
        if not self._with_digest:
            return None
        digest: str = self._sink.digest() if self._encoded is None else hashlib.sha256(self._encoded).hexdigest()
        return digest

    def _writable(self, table: pa.Table) -> pa.Table:
        """Return the same rows in a form that Arrow writes."""
        for number in self._hiding_nulls:
            field = self.schema.field(number)
            chunks = [without_hidden_nulls(chunk) for chunk in table.column(number).chunks]
            table = table.set_column(number, field, pa.chunked_array(chunks, field.type))
        return without_spare_values(table, self._dictionaries) if self._dictionaries else table

    def _stream(self, sink: Any) -> Any:
        """Return the stream to `sink` that Arrow writes to."""
        return sink

    def _write_group(self, writer: pq.ParquetWriter, table: pa.Table) -> None:
        """Write the rows as one row group."""
        writer.write_table(table, row_group_size=table.num_rows)

    def _end(self, writer: pq.ParquetWriter) -> None:
        """Write the footer."""
        if self._key_values:
            writer.add_key_value_metadata(self._key_values)
        writer.close()
        if self._statistics.lacks_bounds:
            self._statistics.add_bounds(self._group_chunks(writer.writer.metadata))
        if self._keeps is not None:
            self._keeps.end(self.path, writer.writer.metadata)

    def _group_chunks(self, written: pq.FileMetaData) -> list[GroupChunks]:
        """Return the statistics of the row groups that this writer encodes; `written` is the footer of Arrow's file."""
        return chunks_by_group(written)

    def abandon(self) -> None:
        """Drop the file, begun or finished, if its record was not handed on."""
        self._pending = []
        with contextlib.suppress(Exception):
            # Before the writer is closed: a store would be sent what it still holds.
            if self._output is not None:
                self._output.discard()
            # A failed close leaves no file: a file of that name would be another writer's.
            if self._is_finished:
                self._store.delete(self.path)
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        self._writer = None


def has_digest(store: Store, path: str, size_bytes: int, digest: str, chunk_bytes: int = _DIGESTED_BYTES) -> bool:
    """Return whether the file has exactly these bytes. Reads it whole, unless its size differs."""
    try:
        source = store.open_input(path)
    except OSError:
        return False
    found = hashlib.sha256()
    with source:
        if source.size() != size_bytes:
            return False
        left = size_bytes
        while left and (chunk := source.read(min(left, chunk_bytes))):
            found.update(chunk)
            left -= len(chunk)
    return found.hexdigest() == digest


def without_spare_values(table: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Return the table with each of these dictionary columns in one chunk, and only the values that a row has.

    No file may contain deleted values, dictionary pages included.
    """
    columns = table.columns
    for number in numbers:
        chunks = columns[number].chunks
        # Batches of one row group mostly have the same dictionary, and to compare it takes a fiftieth of the time.
        if not all(chunk.dictionary.equals(chunks[0].dictionary) for chunk in chunks[1:]):
            chunks = columns[number].unify_dictionaries().chunks
        columns[number] = _compacted(chunks)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _compacted(chunks: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    dictionary = chunks[0].dictionary
    indices = chunks[0].indices if len(chunks) == 1 else pa.concat_arrays([chunk.indices for chunk in chunks])
    is_used = occurring(indices, len(dictionary))
    if is_used.false_count:
        numbers = pc.subtract(pc.cumulative_sum(is_used.cast(pa.int32())), pa.scalar(1, pa.int32()))
        # To take by nulls takes longer.
        found = numbers.take(indices.fill_null(0))
        indices = pc.if_else(indices.is_valid(), found, pa.scalar(None, found.type)) if indices.null_count else found
        dictionary = dictionary.filter(is_used)
    elif len(chunks) == 1:
        return chunks[0]
    # Arrow would look at each index again.
    return pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)
