"""Files of the job's inputs folder: rows that were evaluated once, written down with a number each, and read back.

*Materialized* means just that: a source with rand(), current_timestamp() or a moving table would otherwise give the
finding and the writing different rows. Keys of a DELETE are encrypted: a process that is killed deletes nothing, and
they may name the persons that the table is to forget. Rows of other sources are not, as the data files that they become
are not. The invariant: they are read by the same task wherever it runs, so that a file that is not what the job has
written is found out. Source: soundness A2.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.physical import ParquetFormat, columns_of_leaf
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedScan, bounds_of, not_as_written
from airflow_txlog.datafiles.tasks.scan_and_write import PART_COLUMN, ROW_ID_COLUMN, FileScan, Task, WriteTask
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, walk_fields
from airflow_txlog.errors import TxlogError
from airflow_txlog.jobs.context import JobContext, SavedSource
from airflow_txlog.jobs.files.here import run_here
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_of, work_of
from airflow_txlog.jobs.files.stage import load, staged_here
from airflow_txlog.jobs.sql.column_names import check_distinct, check_names_are_free
from airflow_txlog.locations import readable
from airflow_txlog.storage import Store, StoreReference

WRITING_SOURCE = "write down the source's rows"

# A slot in a table that is half full, and the head of the row in its page.
_HASHED_ROW_BYTES = 48
# What Arrow holds of each value by its type in the file, where Parquet has less: a null takes it too.
_HELD_BYTES = {"INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4, "INT64": 8, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 16}


@dataclass(frozen=True, kw_only=True)
class MaterializedSource:
    """A source's rows, written down in `files` of a store, numbered by ROW_ID_COLUMN.

    `described` is Spark's JSON of the source's own columns, and `stored` those of them that the files hold: one that
    holds nothing but null is in none. `reads_target`: a row may be the target's.
    """

    files: tuple[StagedFile, ...]
    store: Store
    described: Mapping[str, Any]
    stored: pa.Schema
    reads_target: bool = False

    @property
    def names(self) -> list[str]:
        """The source's own columns."""
        return [field["name"] for field in self.described["fields"]]

    @cached_property
    def columns(self) -> StructType:
        """The same with their types; void for a type that no table can have."""
        return columns_of(self.described)

    @property
    def num_rows(self) -> int:
        return sum(file.num_records for file in self.files)

    @property
    def num_buckets(self) -> int:
        """Into how many parts the rows are cut where they are staged part by part: each gives a file of good size."""
        size_bytes = sum(file.size_bytes for file in self.files)
        return max(1, min(len(self.files), round(size_bytes / self.store.limits.bucket_bytes)))

    def bucket_of(self, number: int) -> int:
        """The bucket of the rows of a file: those that one task has written share it."""
        return (self._numbers[number][0] >> POSITION_BITS) % self.num_buckets

    def among(self, rows: Mapping[int, RowPositions]) -> list[bytes | None]:
        """For each file the bitmap of its rows that are among `rows`, a bitmap for each part of the source's; None for
        none."""
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
            with self.store.open_input(file.store_path) as source:
                footers.append(pq.read_metadata(source))
        return footers

    @cached_property
    def _numbers(self) -> list[tuple[int, int]]:
        """The number of the first row of each file, and how many rows follow it."""
        found = []
        for file, footer in zip(self.files, self._footers, strict=True):
            groups = range(footer.num_row_groups)
            ends = [ends for group in groups if (ends := bounds_of(footer, ROW_ID_COLUMN, group)) is not None]
            first = ends[0][0] if ends else 0
            if len(ends) < len(groups) or (ends and ends[-1][1] - first + 1 != footer.num_rows):
                raise not_as_written(readable(self.store.root, file.store_path))
            found.append((first, footer.num_rows))
        return found

    def distinct(self, column: str, most: int) -> tuple[pa.Array, bool]:
        """The values of one of the source's columns, once each and in no order, and whether these are all: where there
        are more than `most`, the least and the greatest are among them. Null is where there is one."""
        found, are_all = pa.array([], pa.null()), True
        for file in self.files:
            with self.store.open_input(file.store_path) as source:
                parquet = pq.ParquetFile(source)
                for group in range(parquet.num_row_groups):
                    read = parquet.read_row_group(group, columns=[column], use_threads=False).column(column)
                    found = pc.unique(pa.concat_arrays([found.cast(read.type), *read.chunks]))
                    if len(found) > most:
                        ends, are_all = pc.min_max(found), False
                        is_end = pc.or_(pc.equal(found, ends["min"]), pc.equal(found, ends["max"]))
                        found = found.filter(pc.fill_null(is_end, True))
        return found, are_all

    def bytes_of(self, columns: Iterable[str]) -> int:
        """Bytes of the values of these columns, by the footers of the files, and no less than Arrow takes for nulls."""
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
        """About what these columns take in a hash table of Spark's, and no less than their values."""
        names = list(columns)
        return hashed_bytes(self.num_rows, len(names)) + self.bytes_of(names)


def hashed_bytes(rows: int, columns: int) -> int:
    """What so many rows take in a hash table of Spark's, their texts and nested values aside."""
    return rows * (_HASHED_ROW_BYTES + 8 * columns)


def columns_of(described: Mapping[str, Any]) -> StructType:
    """Return the columns of this JSON of Spark's; void for a type that no table can have."""
    return StructType(tuple(map(_field_of, described["fields"])))


def _field_of(described: Mapping[str, Any]) -> StructField:
    try:
        (field,) = parse_schema(json.dumps({"type": "struct", "fields": [described]}))
    except TxlogError:
        return StructField(name=described["name"], type=Primitive.VOID, nullable=True)
    return field


def with_row_id(schema: pa.Schema) -> pa.Schema:
    """The columns of a file of such rows."""
    return schema.append(pa.field(ROW_ID_COLUMN, pa.int64()))


def check_names(names: Sequence[str]) -> None:
    """Raises SchemaMismatch for names by which the columns of a source cannot be written down."""
    check_distinct(names, "The source")
    check_names_are_free(names, "The source")


def materialize_scan(
    context: JobContext, scan: FileScan, columns: StructType, parameters: Iterable[str], *, reads_target: bool = False
) -> MaterializedSource:
    """What a scan reads, a source with these columns, written down without Spark. `parameters`: as `materialized` has
    them. Raises SchemaMismatch."""
    check_names(columns.names)
    layout = input_layout(context, with_row_id(to_arrow(columns)))
    staged = load(context, Task(source=scan, layout=layout, numbers_rows=True), WRITING_SOURCE)
    return materialized(
        context, staged, json.loads(schema_to_json(columns)), to_arrow(columns), parameters, reads_target=reads_target
    )


def materialized(
    context: JobContext,
    staged: Sequence[StagedFile],
    described: dict[str, Any],
    stored: pa.Schema,
    parameters: Iterable[str],
    *,
    reads_target: bool,
) -> MaterializedSource:
    """A source that was written down in these files, which the saved work keeps. `parameters` were used by its SQL."""
    context.saved_inputs.source = SavedSource(
        files=tuple(staged), schema=described, parameters=tuple(sorted(parameters))
    )
    context.saved_inputs.reads_target = reads_target
    return MaterializedSource(
        files=tuple(staged), store=context.store, described=described, stored=stored, reads_target=reads_target
    )


def saved_source(context: JobContext) -> SavedSource | None:
    """What an earlier try of this work has written down of its source, if it may be used again."""
    return None if context.saved_inputs.reads_target else context.saved_inputs.source


def plain_columns_of(described: Mapping[str, Any]) -> StructType | None:
    """The columns of this JSON of Spark's as a table may have them; None where one has another type, or none."""
    try:
        columns = parse_schema(json.dumps(described))
    except TxlogError:
        return None
    return None if any(field.type is Primitive.VOID for field in walk_fields(columns)) else columns


def read_again(context: JobContext, saved: SavedSource, stored: pa.Schema) -> MaterializedSource:
    """The source that an earlier try has written down."""
    return MaterializedSource(files=saved.files, store=context.store, described=saved.schema, stored=stored)


def scan_of(context: JobContext, source: MaterializedSource, names: Collection[str]) -> MaterializedScan:
    """What reads these of the source's columns and ROW_ID_COLUMN."""
    return input_scan(context, source.files, with_row_id(stored_of(source, names)))


def stored_of(source: MaterializedSource, names: Collection[str]) -> pa.Schema:
    """Those of the columns that the files hold."""
    return pa.schema([field for field in source.stored if field.name in names])


def unmatched_plan(
    context: JobContext,
    source: MaterializedSource,
    names: Collection[str],
    matched: Mapping[int, RowPositions],
    buckets: Collection[int],
) -> FilePlan:
    """The files of these buckets, of these columns, without the rows that are among `matched` (a bitmap for each part
    of the source's); the bucket is the segment."""
    files, skipped = source.files, source.among(matched)
    counts = [0 if data is None else RowPositions(data, "of rows that matched").num_rows for data in skipped]
    chosen = [
        number
        for number, file in enumerate(files)
        if counts[number] < file.num_records and source.bucket_of(number) in buckets
    ]
    paths, sizes = [files[n].store_path for n in chosen], [files[n].size_bytes for n in chosen]
    plan = plan_of(context.store, stored_of(source, names), paths, sizes)
    plan = plan.with_column("deleted", [skipped[number] for number in chosen])
    return plan.with_column("segment", [source.bucket_of(number) for number in chosen])


def input_layout(context: JobContext, schema: pa.Schema) -> Layout:
    """How rows with these columns, ROW_ID_COLUMN among them, are written down."""
    return Layout(
        store=StoreReference.of(context.store),
        folder=context.inputs_folder,
        schema=schema,
        partition_columns=(),
        job_id=context.job_id,
        indexed_columns=(),
        # These files are read back at once and then deleted: small is not worth slow. Without dictionaries the footers
        # say how many bytes the values take, however often they repeat.
        parquet=ParquetFormat(codec="SNAPPY", with_dictionaries=False),
        with_digests=context.seal is not None,
    )


def write_input(context: JobContext, rows: pa.Table, what: str) -> tuple[StagedFile, ...]:
    """Files with keys that this process has, numbered from 0 in their order; none where there is no key."""
    if not rows.num_rows:
        return ()
    one_part = rows.append_column(PART_COLUMN, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    (batch,) = one_part.combine_chunks().to_batches()
    layout = replace(input_layout(context, with_row_id(rows.schema)), key=context.input_key)
    task = WriteTask(layout=layout, numbers_rows=True)
    return tuple(staged_here(context, task, batch, what))


def read_input(
    context: JobContext, files: Sequence[StagedFile], schema: pa.Schema, what: str, key: bytes | None = None
) -> pa.Table:
    """The rows of these files, with these columns and ROW_ID_COLUMN, in this process. Raises JobError, retryable."""
    scan = input_scan(context, files, with_row_id(schema), key)
    return run_here(work_of([Task(source=scan)]), scan.output_schema, what, context.parallelism)


def input_scan(
    context: JobContext, files: Sequence[StagedFile], schema: pa.Schema, key: bytes | None = None
) -> MaterializedScan:
    """What reads these files, which were encrypted with the key."""
    plan = plan_of(context.store, schema, [file.store_path for file in files], [file.size_bytes for file in files])
    return MaterializedScan(bins=bins_for(context, plan), schema=schema, key=key)
