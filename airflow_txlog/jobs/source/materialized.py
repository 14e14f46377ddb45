"""Materialized rows: evaluated once, numbered, written to files of the job's inputs folder, and read back.

Without it, a source with rand(), current_timestamp() or a moving table could give different rows to the finding and the
writing. Keys of a DELETE are encrypted, because a killed process leaves its files and the keys may name persons whom
the table is to forget. Rows of other sources are not, because they become data files. The invariant: one task reads the
files on any machine, and detects a file that the job has not written. Source: soundness A2.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.ahead import ahead
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.judging import together
from airflow_txlog.datafiles.parquet.output import WrittenRows
from airflow_txlog.datafiles.parquet.physical import columns_of_leaf
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan, not_as_written, row_id_bounds
from airflow_txlog.datafiles.tasks.scan_and_write import (
    PART_COLUMN,
    RECORD_SCHEMA,
    ROW_ID_COLUMN,
    FileScan,
    Task,
    WriteTask,
)
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, walk_fields
from airflow_txlog.errors import CorruptDataFile, TxlogError
from airflow_txlog.jobs.context import JobContext, SavedSource
from airflow_txlog.jobs.files.scan import SMALLEST_BIN_BYTES, FilePlan, bins_for, plan_of, run_here, sent_bins, work_of
from airflow_txlog.jobs.files.stage import Staged, input_layout, load, quarantine_layout, staged_of
from airflow_txlog.jobs.sql.columns import check_source_names
from airflow_txlog.jobs.sql.expectations import Expectation, expectations_of
from airflow_txlog.locations import readable
from airflow_txlog.storage import Store

WRITING_SOURCE = "write down the source's rows"

# A slot in a half-full table, and the head of the row in its page.
_HASHED_ROW_BYTES = 48
# Bytes in Arrow of each value, null or not, by its type in the file.
_HELD_BYTES = {"INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4, "INT64": 8, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 16}


@dataclass(frozen=True, kw_only=True)
class MaterializedSource:
    """A source's rows in `files` of a store, numbered by ROW_ID_COLUMN.

    `described` is Spark's JSON of the source's own columns; `stored` are those in the files, which lack columns without
    a type. `reads_target`: a row may be the target's. `written`: those of the files that this process has written.
    """

    files: tuple[StagedFile, ...]
    store: Store
    described: Mapping[str, Any]
    stored: pa.Schema
    reads_target: bool = False
    written: WrittenRows | None = None

    @property
    def names(self) -> list[str]:
        return [field["name"] for field in self.described["fields"]]

    @cached_property
    def columns(self) -> StructType:
        """The source's own columns; void for a type that no table can have."""
        return columns_of(self.described)

    @property
    def num_rows(self) -> int:
        return sum(file.num_records for file in self.files)

    @property
    def num_buckets(self) -> int:
        """The number of parts for rows that are staged part by part: each gives a file of good size."""
        size_bytes = sum(file.size_bytes for file in self.files)
        return max(1, min(len(self.files), round(size_bytes / self.store.limits.bucket_bytes)))

    def bucket_of(self, number: int) -> int:
        """Return the bucket of the rows of a file. Files of one task share it."""
        return (self._numbers[number][0] >> POSITION_BITS) % self.num_buckets

    def among(self, rows: Mapping[int, RowPositions]) -> list[bytes | None]:
        """Return the bitmap of each file's rows that are among `rows`, by part of the source; None for no row."""
        found: list[bytes | None] = []
        for first, count in self._numbers:
            of_part, start = rows.get(first >> POSITION_BITS), first & ((1 << POSITION_BITS) - 1)
            chosen = pa.array([], pa.int64()) if of_part is None else of_part.positions(start, start + count)
            found.append(pack(pc.subtract(chosen, start)) if len(chosen) else None)
        return found

    @cached_property
    def _footers(self) -> list[pq.FileMetaData]:
        footers = []
        for file in self.files:
            footer = None if self.written is None else self.written.footer(file.store_path)
            if footer is None:
                with self._opened(file) as parquet:
                    footer = parquet.metadata
            footers.append(footer)
        return footers

    @contextlib.contextmanager
    def _opened(self, file: StagedFile) -> Iterator[OpenParquet]:
        """Yield an open file. Raises JobError, retryable, if it is not as the job has written it."""
        opened = DataFile(
            store=self.store, path=file.store_path, size_bytes=file.size_bytes, num_records=file.num_records
        )
        try:
            with open_data_file(opened) as parquet:
                yield parquet
        except CorruptDataFile as error:
            raise not_as_written(opened.name, is_missing=error.is_missing) from error

    @cached_property
    def _numbers(self) -> list[tuple[int, int]]:
        """The number of the first row of each file, and the number of its rows."""
        found = []
        for file, footer in zip(self.files, self._footers, strict=True):
            groups = range(footer.num_row_groups)
            ends = [ends for group in groups if (ends := row_id_bounds(footer, group)) is not None]
            first = ends[0][0] if ends else 0
            if len(ends) < len(groups) or (ends and ends[-1][1] - first + 1 != footer.num_rows):
                raise not_as_written(readable(self.store.root, file.store_path))
            found.append((first, footer.num_rows))
        return found

    def distinct(self, column: str, most: int) -> tuple[pa.Array, bool]:
        """Return the distinct values of a column, null too, in no order, and whether they are complete.

        Of more than `most` only some are returned, the least and the greatest among them.
        """
        found, are_all = pa.array([], pa.null()), True
        for file in self.files:
            with self._opened(file) as parquet:
                for group in range(parquet.num_row_groups):
                    read = parquet.read_row_group(group, columns=[column], use_threads=False).column(column)
                    found = pc.unique(pa.concat_arrays([found.cast(read.type), *read.chunks]))
                    if len(found) > most:
                        ends, are_all = pc.min_max(found), False
                        is_end = pc.or_(pc.equal(found, ends["min"]), pc.equal(found, ends["max"]))
                        found = found.filter(pc.fill_null(is_end, True))
        return found, are_all

    def bytes_of(self, columns: Iterable[str]) -> int:
        """Return the bytes of the values of these columns by the files' footers, at least those of nulls in Arrow."""
        wanted = {name.lower() for name in columns}
        total = 0
        for metadata in self._footers:
            leaves = [metadata.schema.column(index).path.lower() for index in range(metadata.num_columns)]
            chosen = [index for index, path in enumerate(leaves) if not wanted.isdisjoint(columns_of_leaf(path))]
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for chunk in map(group.column, chosen):
                    held = chunk.num_values * _HELD_BYTES.get(chunk.physical_type, 0)
                    total += max(chunk.total_uncompressed_size, held)
        return total

    def memory_bytes(self, columns: Iterable[str]) -> int:
        """Return the approximate bytes of these columns in a Spark hash table, at least those of their values."""
        names = list(columns)
        return hashed_bytes(self.num_rows, len(names)) + self.bytes_of(names)


def hashed_bytes(rows: int, columns: int) -> int:
    """Return the bytes of `rows` rows in a Spark hash table, without their texts and nested values."""
    return rows * (_HASHED_ROW_BYTES + 8 * columns)


def columns_of(described: Mapping[str, Any]) -> StructType:
    """Return the columns in Spark's JSON; void for a type that no table can have."""
    fields: list[StructField] = []
    for each in described["fields"]:
        try:
            fields += parse_schema(json.dumps({"type": "struct", "fields": [each]}))
        except TxlogError:
            fields.append(StructField(name=each["name"], type=Primitive.VOID, nullable=True))
    return StructType(tuple(fields))


def with_row_id(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a file of such rows."""
    return schema.append(pa.field(ROW_ID_COLUMN, pa.int64()))


def materialize_scan(
    context: JobContext,
    scan: FileScan,
    columns: StructType,
    parameters: Iterable[str],
    *,
    reads_target: bool = False,
    is_judged: bool = True,
) -> MaterializedSource:
    """Materialize the rows of a scan with these columns without Spark. Raises SchemaMismatch.

    `is_judged`: the expectations on the source, which are plain, drop rows.
    """
    check_source_names(columns.names)
    stored = to_arrow(columns)
    expectations = expectations_of(context, columns, source=True) if is_judged else []
    layout = judging_layout(context, stored, expectations)
    # A source that reads the target is materialized again: the rows of the previous one go.
    context.written_rows = WrittenRows(context.limits.held_source_bytes // 2)
    layout = replace(layout, keeps=context.written_rows)
    # A task that is alone decodes on another core. Rows of this process are in no file, and have no bytes to read.
    is_alone = len(scan.bins) == 1 < context.parallelism and scan.bins.amounts[0][1] >= SMALLEST_BIN_BYTES
    steps = (partial(ahead, most=4),) if is_alone else ()
    staged = load(context, Task(source=scan, steps=steps, layout=layout, numbers_rows=True), WRITING_SOURCE)
    described = json.loads(schema_to_json(columns))
    return materialized(context, staged, described, stored, parameters, reads_target=reads_target)


def materialized(
    context: JobContext,
    staged: Staged,
    described: dict[str, Any],
    stored: pa.Schema,
    parameters: Iterable[str],
    *,
    reads_target: bool,
) -> MaterializedSource:
    """Return the source in these files, which the saved work keeps. Its SQL has used the `parameters`."""
    saved = SavedSource(files=tuple(staged.files), schema=described, parameters=tuple(sorted(parameters)))
    context.saved_inputs.source, context.saved_inputs.reads_target = saved, reads_target
    context.saved_inputs.judged = together(staged.judged)
    context.saved_inputs.elsewhere = tuple(staged.elsewhere)
    return replace(read_again(context, saved, stored), reads_target=reads_target)


def saved_source(context: JobContext) -> SavedSource | None:
    """Return the source that an earlier try of this work has materialized, if it can be used again."""
    return None if context.saved_inputs.reads_target else context.saved_inputs.source


def plain_columns_of(described: Mapping[str, Any]) -> StructType | None:
    """Return the columns in Spark's JSON; None if one has no type, or one that no table can have."""
    try:
        columns = parse_schema(json.dumps(described))
    except TxlogError:
        return None
    return None if any(field.type is Primitive.VOID for field in walk_fields(columns)) else columns


def read_again(context: JobContext, saved: SavedSource, stored: pa.Schema) -> MaterializedSource:
    """Return the rows of a saved source, whose files hold the columns `stored`."""
    return MaterializedSource(
        files=saved.files,
        store=context.store,
        described=saved.schema,
        stored=stored,
        written=context.written_rows,
    )


def scan_of(context: JobContext, source: MaterializedSource, names: Collection[str]) -> MaterializedScan:
    """Return the scan of these columns of the source and of ROW_ID_COLUMN."""
    return input_scan(context, source.files, with_row_id(stored_of(source, names)))


def stored_of(source: MaterializedSource, names: Collection[str]) -> pa.Schema:
    """Return the columns among `names` that the files hold."""
    return pa.schema([field for field in source.stored if field.name in names])


def unmatched_plan(
    context: JobContext,
    source: MaterializedSource,
    names: Collection[str],
    matched: Mapping[int, RowPositions],
    buckets: Collection[int],
) -> FilePlan:
    """Return the plan that reads these columns of the buckets, its segments, without the `matched` rows.

    Its index is the number of the source's file.
    """
    files, skipped = source.files, source.among(matched)
    counts = [0 if data is None else RowPositions(data, "of rows that matched").num_rows for data in skipped]
    chosen = [
        number
        for number, file in enumerate(files)
        if counts[number] < file.num_records and source.bucket_of(number) in buckets
    ]
    paths, sizes = [files[n].store_path for n in chosen], [files[n].size_bytes for n in chosen]
    plan = plan_of(context.store, stored_of(source, names), paths, sizes)
    plan = plan.with_column("index", chosen).with_column("deleted", [skipped[number] for number in chosen])
    return plan.with_column("segment", [source.bucket_of(number) for number in chosen])


def judging_layout(context: JobContext, stored: pa.Schema, expectations: Iterable[Expectation]) -> Layout:
    """Return the layout of a source's rows with the columns `stored` and ROW_ID_COLUMN, of which some are dropped."""
    expected = tuple(each.expected for each in expectations)
    layout = input_layout(context, with_row_id(stored))
    return replace(layout, expectations=expected, elsewhere=quarantine_layout(context, stored, expected))


def write_input(context: JobContext, rows: pa.Table) -> tuple[StagedFile, ...]:
    """Write keys that this process has, numbered from 0 in their order; no file if there is no key."""
    if not rows.num_rows:
        return ()
    one_part = rows.append_column(PART_COLUMN, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    (batch,) = one_part.combine_chunks().to_batches()
    layout = replace(input_layout(context, with_row_id(rows.schema)), key=context.input_key)
    task = WriteTask(layout=layout, numbers_rows=True)
    return tuple(staged_of(context, run_here([(task, batch)], RECORD_SCHEMA, "write down the keys", 1)))


def read_input(
    context: JobContext, files: Sequence[StagedFile], schema: pa.Schema, what: str, key: bytes | None = None
) -> pa.Table:
    """Return these columns and ROW_ID_COLUMN of the files' rows, read in this process. Raises JobError, retryable."""
    scan = input_scan(context, files, with_row_id(schema), key)
    return run_here(work_of([Task(source=scan)]), scan.output_schema, what, context.parallelism)


def input_scan(
    context: JobContext,
    files: Sequence[StagedFile],
    schema: pa.Schema,
    key: bytes | None = None,
    *,
    in_one: bool = False,
) -> MaterializedScan:
    """Return the scan of these files, encrypted with the key if there is one; for one task if `in_one`."""
    plan = plan_of(context.store, schema, [file.store_path for file in files], [file.size_bytes for file in files])
    bins = sent_bins(context, plan, [range(plan.num_files)]) if in_one else bins_for(context, plan)
    return MaterializedScan(bins=bins, schema=schema, key=key, written=context.written_rows)
