"""New rows become data files: split by partition, checked against NOT NULL, bounded in memory and open files.

Rows come as record batches with the table's columns, in any order. Partition columns decide the directory and are left
out of the file. The invariant: when `finish` returns, every row is in exactly one staged file; if it never returns, no
process knows what was written. Source: protocol, "Add File", "Partition Values", "Column Invariants"; soundness B10.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.datafiles.parquet.conversion import conforming
from airflow_txlog.datafiles.parquet.encryption import writing_options
from airflow_txlog.datafiles.parquet.judging import Expected, Judge, Judged, Rule
from airflow_txlog.datafiles.parquet.output import RowGroupWriter, WrittenRows
from airflow_txlog.datafiles.parquet.physical import (
    DEFAULT_FORMAT,
    FileFields,
    ParquetFormat,
    codec_for,
    file_suffix,
    is_mapped,
    physical_name,
    physical_schema,
    stored_type,
)
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN, FileKey, split_by_partition
from airflow_txlog.datafiles.parquet.statistics import INDEXED_COLUMNS_DEFAULT, StatisticsCollector
from airflow_txlog.datafiles.partitioning import hive_directory
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

# Fewer files than these are closed one after the other.
_MANY_FILES = 8
# Many files of so few rows on average get their statistics together.
_FEW_ROWS = 16
_CLOSED_AT_ONCE = 4
_MOST_IN_TURN = 16
# A disk that takes so many times as long as the encoding is worth the threads, which then contend for the interpreter.
_SLOW = 4
# Runs of files that wait for the threads: those that are encoded take memory.
_MOST_WAITING = 16
# Without delta.targetFileSize: large enough to be read at full speed, small enough to be rewritten soon.
TARGET_BYTES_DEFAULT = 256 * 1024 * 1024


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
    `expectations` judge and count the new rows, and `rules` are those of the table that a row may break without Spark
    having judged it. `elsewhere` is the layout of rows for another table: those that an expectation quarantines or,
    with `samples`, the first `samples` change rows of each type instead of change files. `key_values` are entries of
    the footers. `discards`: the bytes of the files are counted, and none is written. `keeps`: the rows are added to it.
    `row_group_bytes`: the most bytes of a row group in memory. `in_halves`: a second core is free to encode columns.
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
    rules: tuple[Rule, ...] = ()
    elsewhere: Layout | None = None
    samples: int | None = None
    key_values: tuple[tuple[bytes, bytes], ...] = ()
    discards: bool = False
    keeps: WrittenRows | None = dataclasses.field(default=None, repr=False, compare=False)
    row_group_bytes: int = TARGET_BYTES_DEFAULT
    in_halves: bool = False

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
            rules=(),
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

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The same columns as a file holds them: by physical name."""
        return physical_schema(self.file_schema)

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

    def new_path(self, attempt: str, number: int, partition: Sequence[str | None], options: Mapping[str, Any]) -> str:
        """Return the path of a file of new rows, relative to the table and not encoded.

        `attempt` is the UUID of the task's attempt, and `options` are those of the file's writer.
        """
        directory = self._prefix(attempt) or hive_directory(self.partition_columns, partition)
        kinds = CHANGE_DIRECTORY if self.is_change else ""
        return self._path((self.folder, kinds, directory), attempt, f"{number:03d}", options)

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
        return attempt[:2] if self._is_mapped else ""

    @cached_property
    def _is_mapped(self) -> bool:
        return any(map(is_mapped, self.schema))


class PartitionedWriter:
    """Splits rows by partition and segment, and writes the files of each. Not to be shared between threads.

    Rows with a change type (see `routed`) go to files of change rows instead, or as well.
    """

    def __init__(self, layout: Layout, store: Store | None = None) -> None:
        """`store` is the open store of `layout.store`, if there is one already."""
        self._layout = layout
        self.store = store or layout.store.open()
        self._attempt = SYSTEM_CLOCK.unique_id()
        self._files = 0
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._split_bytes = min(self.store.limits.split_bytes, layout.target_bytes, layout.row_group_bytes)
        self._writers: dict[FileKey, RowGroupWriter] = {}
        self._first = self._kind_of_writer()(
            self.store,
            "",
            layout.stored_schema,
            options={},
            key_values=dict(layout.key_values),
            statistics=layout.statistics(),
            # A file must be able to end near a small target.
            row_group_bytes=min(layout.target_bytes, layout.row_group_bytes),
            with_digest=layout.with_digests,
            discards=layout.discards,
            keeps=layout.keeps,
        )
        """Writes no file: those that do are made from it."""
        self._staged: list[StagedFile] = []
        self._abandoned: list[RowGroupWriter] = []
        self._changes: PartitionedWriter | None = None
        self._samples = None if layout.samples is None else FirstOfTypes(layout.samples)
        self._elsewhere = PartitionedWriter(layout.elsewhere, self.store) if layout.elsewhere is not None else None
        self._judge: Judge | None = None
        if layout.expectations or layout.rules:
            quarantine = self._to_elsewhere if layout.samples is None else None
            self._judge = Judge(layout.expectations, layout.schema, SEGMENT_COLUMN, quarantine, layout.rules)
        # Without the feed a table may have a column of that name: then it is one like any other.
        self._has_change_types = FileFields(layout.schema).find_name(CHANGE_TYPE_COLUMN) is None

    def _kind_of_writer(self) -> type[RowGroupWriter]:
        layout = self._layout
        joins = layout.in_halves and layout.key is None and layout.keeps is None and not layout.discards
        if not joins or len(layout.stored_schema) < 2:
            return RowGroupWriter
        from airflow_txlog.datafiles.parquet.halves import HalvesWriter  # noqa: PLC0415 - only for such files

        return HalvesWriter

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
        return self._judge.counts() if self._judge is not None and self._layout.expectations else []

    def _to_elsewhere(self, rows: pa.RecordBatch) -> None:
        if self._elsewhere is not None and self._layout.elsewhere is not None:
            held = FileFields(self._layout.elsewhere.schema)
            self._elsewhere.write(rows.select([name for name in rows.schema.names if held.find_name(name) is not None]))

    def finish_elsewhere(self) -> list[StagedFile]:
        """Return the files of the rows for another table."""
        return [] if self._elsewhere is None else self._elsewhere.finish()

    def finish(self) -> list[StagedFile]:
        """Write the remaining rows and return every staged file, in no order. A second call returns the same."""
        self._split(is_last=True)
        self._close(list(self._writers))
        return self._staged if self._changes is None else [*self._staged, *self._changes.finish()]

    def abandon(self) -> None:
        """Delete every file of this writer; none was reported."""
        for writer in [*self._abandoned, *self._writers.values()]:
            writer.abandon()
        for other in (self._changes, self._elsewhere):
            if other is not None:
                other.abandon()

    def _split(self, *, is_last: bool = False) -> None:
        """Give the gathered rows to the writers of their files. `is_last`: no other rows follow."""
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        parts = list(split_by_partition(table, self._layout))
        statistics: Iterator[StatisticsCollector | None] = itertools.repeat(None)
        if is_last and len(parts) >= _MANY_FILES and table.num_rows <= _FEW_ROWS * len(parts):
            statistics = self._first.statistics_of([part for _, part in parts])
        for (key, part), of_part in zip(parts, statistics, strict=False):
            size_bytes = part.nbytes
            # A batch may be larger than a small target.
            most = max(1, part.num_rows * self._layout.target_bytes // max(1, size_bytes))
            batches = part.to_batches(max_chunksize=most)
            is_whole, size_of_all = len(batches) == 1, size_bytes if is_last else None
            for batch in batches:
                writer = self._writer(key, size_of_all, of_part if is_whole else None)
                writer.write(batch, size_bytes if is_whole else None)
        self._relieve()

    def _writer(self, key: FileKey, size_bytes: int | None, statistics: StatisticsCollector | None) -> RowGroupWriter:
        """Return the writer of a file; `size_bytes` are those of all its rows if it is new and no others follow.

        `statistics`: those of the same rows, if they are known.
        """
        if key in self._writers and self._writers[key].written_bytes >= self._layout.target_bytes:
            self._close([key])
        if key not in self._writers:
            options = self._options(size_bytes)
            path = self._layout.new_path(self._attempt, self._files, key.partition, options)
            self._files += 1
            self._writers[key] = self._first.another(path, options, statistics)
        return self._writers[key]

    def _options(self, size_bytes: int | None) -> dict[str, Any]:
        codec, key = codec_for(len(self._layout.stored_schema), size_bytes), self._layout.key
        options = self._layout.parquet.options(codec)
        if key is None:
            return options
        return {**options, **writing_options(key, self._layout.stored_schema)}

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
        """Finish these files."""
        writers = [self._writers.pop(key) for key in keys]
        self._abandoned += writers
        if len(keys) >= _MANY_FILES:
            self._staged += self._closed_at_once(keys, writers)
            return
        for key, writer in zip(keys, writers, strict=True):
            writer.encode()
            self._staged += self._closed_in_turn([key], [writer])

    def _closed_at_once(self, keys: Sequence[FileKey], writers: Sequence[RowGroupWriter]) -> list[StagedFile]:
        """Finish many files. Small ones are encoded here, in turn, because threads would wait for the interpreter.

        Others are finished several at a time, and so are the small ones if the disk or the store takes nearly all of
        the time: a file's system calls and requests leave the interpreter free.
        """
        at_once = _CLOSED_AT_ONCE if self.store.is_remote else min(_CLOSED_AT_ONCE, os.cpu_count() or 1)
        # Handing over a file takes about as long as encoding a tiny one.
        run = max(1, min(_MOST_IN_TURN, len(keys) // (4 * _CLOSED_AT_ONCE)))
        encoding_s = writing_s = 0.0
        found: list[list[StagedFile]] = []
        closing = []
        # Leaving the pool waits for the files that are being closed, so `abandon` never meets one of them.
        with ThreadPoolExecutor(at_once, thread_name_prefix="txlog-close") as pool:
            try:
                for start in range(0, len(keys), run):
                    some = keys[start : start + run], writers[start : start + run]
                    began = time.perf_counter()
                    are_encoded = [writer.encode() for writer in some[1]]
                    encoded = time.perf_counter()
                    encoding_s += encoded - began
                    if not all(are_encoded) or writing_s > _SLOW * encoding_s:
                        closing.append(pool.submit(self._closed_in_turn, *some))
                        if len(closing) > _MOST_WAITING:
                            closing[-1 - _MOST_WAITING].result()
                    else:
                        found.append(self._closed_in_turn(*some))
                        writing_s += time.perf_counter() - encoded
                found += [each.result() for each in closing]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return list(itertools.chain.from_iterable(found))

    def _closed_in_turn(self, keys: Sequence[FileKey], writers: Sequence[RowGroupWriter]) -> list[StagedFile]:
        return [staged for staged in map(self._closed, keys, writers) if staged is not None]

    def _closed(self, key: FileKey, writer: RowGroupWriter) -> StagedFile | None:
        values = dict(zip(self._layout.partition_keys, key.partition, strict=True))
        return writer.close(values, segment=key.segment, is_change=self._layout.is_change)


def _with_segment(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `conforming` rows, with the segments behind the table's columns if they have any."""
    if SEGMENT_COLUMN not in batch.schema.names:
        return conforming(batch, schema)
    checked = conforming(batch.drop_columns([SEGMENT_COLUMN]), schema)
    return checked.append_column(SEGMENT_COLUMN, batch.column(SEGMENT_COLUMN))
