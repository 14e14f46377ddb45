"""New rows become data files: split by partition, checked against NOT NULL, bounded in memory and open files.

Rows come as record batches with the table's columns, in any order. Partition columns decide the directory and are left
out of the file. The invariant: when `finish` returns, every row is in exactly one staged file; if it never returns, no
process knows what was written. Source: protocol, "Add File", "Partition Values", "Column Invariants"; soundness B10.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.parquet.conversion import conforming, convert_array, null_in, relabel
from airflow_txlog.datafiles.parquet.encryption import writing_options
from airflow_txlog.datafiles.parquet.judging import Expected, Judge, Judged
from airflow_txlog.datafiles.parquet.output import RowGroupWriter, WrittenRows
from airflow_txlog.datafiles.parquet.physical import (
    DEFAULT_FORMAT,
    FileFields,
    ParquetFormat,
    file_suffix,
    is_mapped,
    physical_name,
    physical_schema,
    stored_type,
)
from airflow_txlog.datafiles.parquet.statistics import INDEXED_COLUMNS_DEFAULT, StatisticsCollector
from airflow_txlog.datafiles.partitioning import hive_directory, partition_string
from airflow_txlog.datafiles.row_ids import RowIds
from airflow_txlog.datafiles.staged_files import (
    CHANGE_DIRECTORY,
    CHANGE_TYPE_COLUMN,
    CHANGE_TYPE_FIELD,
    FirstOfTypes,
    StagedFile,
    routed,
)
from airflow_txlog.storage import Store, StoreReference

# Fewer files than these are closed one after the other; more are closed in parallel, because stores answer slowly.
_MANY_FILES = 8
_CLOSED_AT_ONCE = 4
# Without delta.targetFileSize: large enough to be read at full speed, small enough to be rewritten soon.
TARGET_BYTES_DEFAULT = 256 * 1024 * 1024

# Rows may come with this column (int32) after the table's: files never mix rows of two segments.
SEGMENT_COLUMN = "_txlog_segment"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where and how new files of one table are written: the part of a plan that all tasks of a job share.

    `store` is the table's, and `folder` a path in it. `schema` holds the table's columns with nullability and the marks
    of a column mapping (see `physical`). `job_id` is part of every file name, so that people can trace an orphan.
    `partition_columns` are logical names; for `indexed_columns` see `StatisticsCollector`. `must_check`
    means that new rows can break a rule of the table, so they come with the column that `violations` checks. At
    `target_bytes` a task begins another file; a file exceeds it by one row group at most. `is_change` marks files of
    change rows (`for_changes`). `row_ids` are the last columns of `schema` if rows keep their ids. `with_digests`
    records the digest of each file. `key` encrypts the files. `materializes`: files contain the partition columns too.
    `expectations` judge and count the new rows. `elsewhere` is the layout of rows for another table: those that an
    expectation quarantines or, with `samples`, the first `samples` change rows of each type instead of change files.
    `key_values` are entries of the footers. `discards`: the bytes of the files are counted, and none is written.
    `keeps`: the rows are added to it.
    """

    store: StoreReference
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    job_id: str
    folder: str = ""
    indexed_columns: tuple[tuple[str, ...], ...] | None = None
    num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT
    must_check: bool = False
    target_bytes: int = TARGET_BYTES_DEFAULT
    parquet: ParquetFormat = DEFAULT_FORMAT
    is_change: bool = False
    row_ids: RowIds | None = None
    with_digests: bool = False
    materializes: bool = False
    key: bytes | None = dataclasses.field(default=None, repr=False)
    expectations: tuple[Expected, ...] = ()
    elsewhere: Layout | None = None
    samples: int | None = None
    key_values: tuple[tuple[bytes, bytes], ...] = ()
    discards: bool = False
    keeps: WrittenRows | None = dataclasses.field(default=None, repr=False, compare=False)

    def for_changes(self) -> Layout:
        """Return the layout of change rows: their type as the last column, in `_change_data`, without statistics."""
        # An old row may lack a column that is NOT NULL now.
        plain = self.without_row_ids()
        fields = [*(field.with_nullable(True) for field in plain.schema), CHANGE_TYPE_FIELD]
        fields_of_change = pa.schema(fields)
        return replace(
            plain,
            schema=fields_of_change,
            indexed_columns=(),
            is_change=True,
            materializes=False,
            expectations=(),
            elsewhere=None,
        )

    def without_row_ids(self) -> Layout:
        """Return the layout of files in which rows do not keep their ids."""
        if self.row_ids is None:
            return self
        return replace(self, schema=pa.schema(list(self.schema)[: -len(self.row_ids.fields)]), row_ids=None)

    @cached_property
    def data_schema(self) -> pa.Schema:
        """The columns of a file that are no partition columns, by logical name, without void columns or members."""
        partition = set(self.partition_columns)
        held = [f for f in self.schema if f.name not in partition and not pa.types.is_null(f.type)]
        return pa.schema([field.with_type(stored_type(field.type)) for field in held])

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns of a file, by logical name: after the others those of the partition, if files contain them.

        Source: protocol, "Materialize Partition Columns".
        """
        return pa.schema([*self.data_schema, *self.materialized])

    @property
    def materialized(self) -> list[pa.Field]:
        """The partition columns that files contain."""
        return [self.schema.field(name) for name in self.partition_columns] if self.materializes else []

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The names of the partition columns in partition values."""
        return tuple(physical_name(self.schema.field(name)) for name in self.partition_columns)

    def statistics(self) -> StatisticsCollector:
        """Return a collector for a file of new rows, which holds every column of the table."""
        return self._statistics_of(self.data_schema)

    def statistics_for(self, file_schema: pa.Schema) -> StatisticsCollector:
        """Return a collector for the columns that a file shares with the table, in the table's order and types."""
        held_fields = FileFields(file_schema)
        held = [field for field in self.data_schema if held_fields.find(field) is not None]
        return self._statistics_of(pa.schema(held))

    def _statistics_of(self, schema: pa.Schema) -> StatisticsCollector:
        return StatisticsCollector(
            schema, indexed_columns=self.indexed_columns, num_indexed_columns=self.num_indexed_columns
        )

    def new_path(self, attempt: str, number: int, partition: Sequence[str | None]) -> str:
        """Return the path of a file of new rows, relative to the table and not encoded.

        `attempt` is the UUID of the task's attempt.
        """
        directory = self._prefix(attempt) or hive_directory(self.partition_columns, partition)
        kinds = CHANGE_DIRECTORY if self.is_change else ""
        return self._path((self.folder, kinds, directory), attempt, f"{number:03d}", self.parquet.options())

    def path_in(self, directory: str, attempt: str, number: str, options: Mapping[str, Any]) -> str:
        """Return the path of a file that replaces others in `directory` ("" for the root).

        `options` are those of its writer.
        """
        return self._path((directory or self._prefix(attempt),), attempt, number, options)

    def _path(self, folders: Sequence[str], attempt: str, number: str, options: Mapping[str, Any]) -> str:
        kind = "cdc" if self.is_change else "part"
        name = f"{kind}-{self.job_id}-{attempt}.c{number}{file_suffix(options['compression'])}"
        return "/".join(part for part in (*folders, name) if part)

    def _prefix(self, attempt: str) -> str:
        """Return the directory of a new file in a table with column mapping, "" in any other.

        As in delta-spark it has two characters: a directory `name=value` would keep a name that the column has lost.
        """
        return attempt[:2] if any(map(is_mapped, self.schema)) else ""


class FileKey(NamedTuple):
    """The values that all rows of one file share: the partition's strings, and the segment if rows have one."""

    partition: tuple[str | None, ...]
    segment: int | None = None


class PartitionedWriter:
    """Splits rows by partition and segment, and writes the files of each. Not to be shared between threads.

    Rows with a change type (see `routed`) go to files of change rows instead, or as well.
    """

    def __init__(self, layout: Layout, store: Store | None = None) -> None:
        """`store` is the open store of `layout.store`, if there is one already."""
        self._layout = layout
        self.store = store or layout.store.open()
        self._attempt = SYSTEM_CLOCK.unique_id()
        self._file_schema = physical_schema(layout.file_schema)
        self._statistics = layout.statistics()
        self._files = 0
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._split_bytes = min(self.store.limits.split_bytes, layout.target_bytes)
        self._writers: dict[FileKey, RowGroupWriter] = {}
        self._staged: list[StagedFile] = []
        self._abandoned: list[RowGroupWriter] = []
        self._changes: PartitionedWriter | None = None
        self._samples = None if layout.samples is None else FirstOfTypes(layout.samples)
        self._elsewhere = PartitionedWriter(layout.elsewhere, self.store) if layout.elsewhere is not None else None
        self._judge: Judge | None = None
        if layout.expectations:
            quarantine = self._to_elsewhere if layout.samples is None else None
            self._judge = Judge(layout.expectations, layout.schema, SEGMENT_COLUMN, quarantine)
        # Without the feed a table may have a column of that name: then it is one like any other.
        self._has_change_types = FileFields(layout.schema).find_name(CHANGE_TYPE_COLUMN) is None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, with or without SEGMENT_COLUMN and CHANGE_TYPE_COLUMN.

        Raises SchemaMismatch or ConstraintViolation; the caller then calls `abandon`.
        """
        if self._has_change_types:
            batch, changes = routed(batch)
            if changes is not None and changes.num_rows and self._samples is not None:
                self._to_elsewhere(self._samples.of(changes))
            elif changes is not None and changes.num_rows:
                self._changes = self._changes or PartitionedWriter(self._layout.for_changes(), self.store)
                ids = self._layout.row_ids
                self._changes.write(changes if ids is None else ids.dropped_from(changes))
        checked = _with_segment(batch, self._layout.schema)
        self._gathered.append(checked)
        self._gathered_bytes += checked.nbytes
        if self._gathered_bytes >= self._split_bytes:
            self._split()

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the new rows that no expectation of the layout drops. Raises as `Judge.kept` does."""
        return batches if self._judge is None else self._judge.kept(batches)

    @property
    def judged(self) -> list[Judged]:
        """How the rows so far were judged by the expectations of the layout."""
        return [] if self._judge is None else self._judge.counts()

    def _to_elsewhere(self, rows: pa.RecordBatch) -> None:
        if self._elsewhere is not None and self._layout.elsewhere is not None:
            held = FileFields(self._layout.elsewhere.schema)
            self._elsewhere.write(rows.select([name for name in rows.schema.names if held.find_name(name) is not None]))

    def finish_elsewhere(self) -> list[StagedFile]:
        """Return the files of the rows for another table."""
        return [] if self._elsewhere is None else self._elsewhere.finish()

    def finish(self) -> list[StagedFile]:
        """Write the remaining rows and return every staged file, in no order."""
        self._split()
        self._close(list(self._writers))
        return self._staged if self._changes is None else [*self._staged, *self._changes.finish()]

    def abandon(self) -> None:
        """Delete every file of this writer; none was reported."""
        for writer in [*self._abandoned, *self._writers.values()]:
            writer.abandon()
        for other in (self._changes, self._elsewhere):
            if other is not None:
                other.abandon()

    def _split(self) -> None:
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        for key, part in split_by_partition(table, self._layout):
            # A batch may be larger than a small target.
            most = max(1, part.num_rows * self._layout.target_bytes // max(1, part.nbytes))
            for batch in part.to_batches(max_chunksize=most):
                self._writer(key).write(as_in_file(batch, self._layout.file_schema, self._file_schema))
        self._relieve()

    def _writer(self, key: FileKey) -> RowGroupWriter:
        if key in self._writers and self._writers[key].written_bytes >= self._layout.target_bytes:
            self._close([key])
        if key not in self._writers:
            path = self._layout.new_path(self._attempt, self._files, key.partition)
            self._files += 1
            self._writers[key] = RowGroupWriter(
                self.store,
                path,
                self._file_schema,
                options=self._options(),
                key_values=dict(self._layout.key_values),
                statistics=self._statistics.empty(),
                # A file must be able to end near a small target.
                row_group_bytes=self._layout.target_bytes,
                with_digest=self._layout.with_digests,
                discards=self._layout.discards,
                keeps=self._layout.keeps,
            )
        return self._writers[key]

    def _options(self) -> dict[str, Any]:
        options, key = self._layout.parquet.options(), self._layout.key
        if key is None:
            return options
        return {**options, **writing_options(key, self._file_schema)}

    def _relieve(self) -> None:
        """Write out the largest partitions until the rest fits, and close the files above `limits.open_files`."""
        waiting = sorted(self._writers, key=lambda key: self._writers[key].pending_bytes)
        total = sum(writer.pending_bytes for writer in self._writers.values())
        while total > self.store.limits.buffered_bytes:
            writer = self._writers[waiting.pop()]
            total -= writer.pending_bytes
            writer.end_row_group()
        opened = [key for key, writer in self._writers.items() if writer.is_open]
        # A later row of a closed partition begins another file: more files, never too many handles.
        self._close(opened[: max(0, len(opened) - self.store.limits.open_files)])

    def _close(self, keys: Sequence[FileKey]) -> None:
        """Finish these files, several at a time: most of the time is the disk's or the store's."""
        writers = [self._writers.pop(key) for key in keys]
        self._abandoned += writers
        if len(keys) < _MANY_FILES:
            found = list(map(self._closed, keys, writers))
        else:
            # Leaving the pool waits for the files that are being closed, so `abandon` never meets one of them.
            with ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="txlog-close") as pool:
                closing = [pool.submit(self._closed, key, writer) for key, writer in zip(keys, writers, strict=True)]
                try:
                    found = [each.result() for each in closing]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        self._staged += [staged for staged in found if staged is not None]

    def _closed(self, key: FileKey, writer: RowGroupWriter) -> StagedFile | None:
        values = dict(zip(self._layout.partition_keys, key.partition, strict=True))
        return writer.close(values, segment=key.segment, is_change=self._layout.is_change)


def _with_segment(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `conforming` rows, with the segments behind the table's columns if they have any."""
    if SEGMENT_COLUMN not in batch.schema.names:
        return conforming(batch, schema)
    checked = conforming(batch.drop_columns([SEGMENT_COLUMN]), schema)
    return checked.append_column(SEGMENT_COLUMN, batch.column(SEGMENT_COLUMN))


def as_in_file(batch: pa.RecordBatch, schema: pa.Schema, file_schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the columns of `schema` as they are stored."""
    stored = [
        convert_array(column, field.type, field.name) for column, field in zip(batch.columns, schema, strict=True)
    ]
    columns = [relabel(column, field.type) for column, field in zip(stored, file_schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=file_schema)


def split_by_partition(table: pa.Table, layout: Layout) -> Iterator[tuple[FileKey, pa.Table]]:
    """Yield the rows of each partition and segment without these columns, in their order.

    Raises ConstraintViolation for a null, or a value that is stored as one, in a NOT NULL partition column.
    """
    names = layout.file_schema.names
    table = _with_null_for_empty(table, layout)
    codes: list[_Codes] = [_partition_codes(table, layout, name) for name in layout.partition_columns]
    has_segments = SEGMENT_COLUMN in table.schema.names
    if has_segments:
        codes.append(_segment_codes(table))
    if not codes:
        yield FileKey(()), table.select(names)
        return
    numbers, combinations = _combined(codes)
    keys = [FileKey(values[:-1], values[-1]) if has_segments else FileKey(values) for values in combinations]
    if len(keys) == 1:
        yield keys[0], table.select(names)
        return
    # Sorting integers groups the rows in one pass, however many partitions there are.
    grouped = table.select(names).take(pc.sort_indices(numbers))
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(numbers).to_pylist()}
    start = 0
    for number in sorted(counts):
        yield keys[number], grouped.slice(start, counts[number])
        start += counts[number]


def _with_null_for_empty(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows with the values that partition columns will have for readers, if files contain them."""
    for field in layout.materialized:
        index = table.schema.get_field_index(field.name)
        column = table.column(index)
        if field.nullable and (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
            is_empty = pc.equal(pc.binary_length(column), 0)
            table = table.set_column(index, field, pc.if_else(is_empty, pa.scalar(None, column.type), column))
    return table


class _Codes(NamedTuple):
    """A column as numbers: the place of each row's value among `values`."""

    numbers: pa.Array
    values: list[Any]


def _combined(codes: Sequence[_Codes]) -> _Codes:
    """Return the columns as one, whose values are the combinations that occur, as tuples."""
    numbers, combinations = codes[0].numbers, [(value,) for value in codes[0].values]
    for code in codes[1:]:
        # There are never more combinations than rows, so a number stays below rows x values: 64 bits always hold it.
        # A product over all columns would not fit.
        found = pc.add(pc.multiply(numbers, len(code.values)), code.numbers).dictionary_encode()
        pairs = (divmod(number, len(code.values)) for number in found.dictionary.to_pylist())
        combinations = [(*combinations[before], code.values[value]) for before, value in pairs]
        numbers = found.indices.cast(pa.int64())
    return _Codes(numbers, combinations)


def _partition_codes(table: pa.Table, layout: Layout, name: str) -> _Codes:
    encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
    texts = partition_string(encoded.dictionary)
    # An empty string is stored as null, so it breaks NOT NULL just as a null does.
    if None in texts and not layout.schema.field(name).nullable:
        raise null_in(name, " (an empty string in a partition column is stored as null)")
    # Two values of one text (null and the empty string, 0.0 written two ways) are one partition.
    places: dict[str | None, int] = {}
    place_of = pa.array([places.setdefault(text, len(places)) for text in texts], pa.int64())
    return _Codes(place_of.take(encoded.indices), list(places))


def _segment_codes(table: pa.Table) -> _Codes:
    encoded = table.column(SEGMENT_COLUMN).combine_chunks().dictionary_encode(null_encoding="encode")
    return _Codes(encoded.indices.cast(pa.int64()), encoded.dictionary.to_pylist())
