"""The source of a job: built from its description, and materialized where it is needed more than once.

*Materialized* means evaluated once, written down with a number for each row, and from then on read from the files: a
source with rand(), current_timestamp() or a moving table would otherwise give the finding and the writing different
rows. The invariant: nothing after `materialize` evaluates the author's query again. Source: soundness A2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import NullType, StructType

from airflow_txlog.datafiles.deletion_vectors.positions import POSITION_BITS, pack
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.parquet.physical import may_be_inside
from airflow_txlog.datafiles.parquet.writing import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.rows_without_log import MaterializedTask, bounds_of, not_as_written
from airflow_txlog.datafiles.tasks.scan_and_write import PART_COLUMN, ROW_ID_COLUMN, LoadTask, ScanTask
from airflow_txlog.engine import Snapshot
from airflow_txlog.errors import InvalidJobSpec, SchemaMismatch, SourceNotFound
from airflow_txlog.jobs.context import JobContext, SavedSource
from airflow_txlog.jobs.files.inputs import input_layout, input_scan
from airflow_txlog.jobs.files.own_readers import check_no_file_functions, read_files
from airflow_txlog.jobs.files.plain_files import plain_files, schema_by_footer
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_files, plan_of, scan_frame
from airflow_txlog.jobs.files.source_files import check_no_table, check_view, reads_table
from airflow_txlog.jobs.files.source_listing import find_files, is_listed_here
from airflow_txlog.jobs.files.stage import collect_records, load, records_of
from airflow_txlog.jobs.files.table_view import snapshot_of_view
from airflow_txlog.jobs.spark.causes import condition_of, describe
from airflow_txlog.jobs.sql.column_names import check_distinct, check_names_are_free
from airflow_txlog.jobs.sql.gate import NO_FILES, SqlGate, check_types, quoted
from airflow_txlog.jobs.sql.schemas import as_spark_schema, schema_of_json
from airflow_txlog.locations import readable
from airflow_txlog.records import AnySource, FileView, QuerySource, SourceOperation, TableView, View
from airflow_txlog.storage import Store

# About what one bucket of a materialized source takes.
BUCKET_BYTES = 128 * 1024 * 1024

_WRITING = "write down the source's rows"

# A slot in a table that is half full, and the head of the row in its page.
_HASHED_ROW_BYTES = 48
# What Arrow holds of each value by its type in the file, where Parquet has less: a null takes it too.
_HELD_BYTES = {"INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4, "INT64": 8, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": 16}


@dataclass(frozen=True, kw_only=True)
class Source:
    """The author's source as a frame that was not evaluated yet. `reads_target`: a row of it may be the target's.

    `scan` gives what reads the same columns and rows without Spark; None where only Spark can.
    """

    frame: DataFrame
    reads_target: bool
    scan: Callable[[], ScanTask | None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class MaterializedSource:
    """A source's rows, written down in `files`. `frame` reads them: the source's columns and ROW_ID_COLUMN."""

    frame: DataFrame
    files: tuple[StagedFile, ...]
    store: Store
    reads_target: bool

    @property
    def num_rows(self) -> int:
        return sum(file.num_records for file in self.files)

    @property
    def num_buckets(self) -> int:
        """Into how many parts the rows are cut where they are staged part by part: each gives a file of good size."""
        size_bytes = sum(file.size_bytes for file in self.files)
        return max(1, min(len(self.files), round(size_bytes / BUCKET_BYTES)))

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

    @property
    def schema(self) -> StructType:
        """The source's own columns."""
        return StructType([field for field in self.frame.schema if field.name != ROW_ID_COLUMN])

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
            for group in range(metadata.num_row_groups):
                for index in range(metadata.num_columns):
                    chunk = metadata.row_group(group).column(index)
                    if any(may_be_inside(chunk.path_in_schema.lower(), name) for name in wanted):
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


def build_source(
    context: JobContext,
    gate: SqlGate,
    target: Snapshot | None,
    described: AnySource | None = None,
    argument: str = "source",
) -> Source:
    """The frame of a described source (None: the operation's); views of our own tables are read at one version each.

    `target` is the version of the job's table that a source reading it sees; `argument` is how errors call the source.
    Raises InvalidJobSpec, also for a source that reads a Delta table's files as raw files, and what opening another
    table raises.
    """
    described = context.record(SourceOperation).source if described is None else described
    context.lineage |= {"views": {}, "versions": {}}
    if isinstance(described, QuerySource):
        reads_target = False
        if any(
            isinstance(view, FileView) and is_listed_here(view.paths, argument) for view in described.views.values()
        ):
            check_no_file_functions(described.sql, argument)
        for name, view in described.views.items():
            source = _view(context, view, f"{argument}.views.{name}", target)
            context.lineage["views"][name] = source.frame.columns
            reads_target |= source.reads_target
            _register(context, source.frame, name)
        source = Source(frame=gate.query(described.sql), reads_target=reads_target)
    else:
        source = _view(context, described, argument, target)
        context.lineage["views"][""] = source.frame.columns
    reads_target = reads_table(context.spark, source.frame, context.root, argument) or source.reads_target
    return replace(source, reads_target=reads_target)


def materialize(context: JobContext, source: Source, gate: SqlGate) -> MaterializedSource:
    """The source evaluated, once, and written down in the job's inputs folder. `gate` has built it.

    Raises SchemaMismatch for columns that cannot be written down, InvalidInput where the query fails on its data.
    """
    names = source.frame.schema.names
    check_distinct(names, "The source")
    check_names_are_free(names, "The source")
    schema = _with_row_id(_stored(source.frame.schema))
    layout = input_layout(context, schema)
    scan = source.scan()
    # A column that holds nothing but null is in no file of ours.
    if scan is None or [*scan.schema.names, ROW_ID_COLUMN] != schema.names:
        rows = source.frame.select(*(source.frame[quoted(name)] for name in schema.names if name != ROW_ID_COLUMN))
        # As many tasks as run at once, twice over: a task more costs more than it brings. The number of a task is part
        # of its rows' numbers, so it is taken after that.
        rows = rows.coalesce(2 * context.parallelism).withColumn(PART_COLUMN, F.spark_partition_id())
        staged = collect_records(context, [records_of(rows, layout, numbers_rows=True)], _WRITING)
    else:
        staged = load(context, LoadTask(scan=scan, layout=layout, numbers_rows=True), _WRITING)
    context.saved_inputs.source = SavedSource(
        files=tuple(staged), schema=source.frame.schema.jsonValue(), parameters=tuple(sorted(gate.used))
    )
    context.saved_inputs.reads_target = source.reads_target
    return MaterializedSource(
        frame=_read_back(context, staged, source.frame.schema),
        files=tuple(staged),
        store=context.store,
        reads_target=source.reads_target,
    )


def materialized_before(context: JobContext, gate: SqlGate) -> MaterializedSource | None:
    """The source that an earlier try of this work has materialized; None where `context.saved_inputs` has none."""
    saved = context.saved_inputs.source
    if saved is None or context.saved_inputs.reads_target:
        return None
    gate.used.update(saved.parameters)
    frame = _read_back(context, saved.files, schema_of_json(saved.schema))
    return MaterializedSource(frame=frame, files=saved.files, store=context.store, reads_target=False)


def scan_of(context: JobContext, source: MaterializedSource, names: Collection[str]) -> MaterializedTask:
    """What reads these of the source's columns and ROW_ID_COLUMN."""
    _, task = input_scan(context, source.files, _with_row_id(_stored(_chosen(source.schema, names))))
    return task


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
    plan = plan_of(context.store, _stored(_chosen(source.schema, names)), paths, sizes)
    plan = plan.with_column("deleted", [skipped[number] for number in chosen])
    return plan.with_column("segment", [source.bucket_of(number) for number in chosen])


def unmatched_rows(
    context: JobContext, source: MaterializedSource, matched: Mapping[int, RowPositions], buckets: Collection[int]
) -> DataFrame:
    """The rows of that plan, with all columns, and the bucket as SEGMENT_COLUMN."""
    plan = unmatched_plan(context, source, source.schema.names, matched, buckets)
    task = MaterializedTask(bins=bins_for(context, plan), schema=plan.schema, with_segment=True)
    frame = scan_frame(context, plan, task)
    return frame.select(*_columns(frame, source.schema), frame[SEGMENT_COLUMN])


def columns_of(context: JobContext, source: MaterializedSource, names: Collection[str] | None) -> DataFrame:
    """The rows of a materialized source with these of its columns, None for all, and ROW_ID_COLUMN."""
    return source.frame if names is None else _read_back(context, source.files, source.schema, names)


def _view(context: JobContext, view: View, argument: str, target: Snapshot | None) -> Source:
    if isinstance(view, TableView):
        return _table_view(context, view, target)
    try:
        if is_listed_here(view.paths, argument):
            found = find_files(context, view, argument)
            check_no_table(found, context.root, argument)
            frame, scan = read_files(context, view, found, argument)
            return Source(frame=frame, reads_target=False, scan=lambda: scan)
        reader = context.spark.read.format(view.format).options(**view.options)
        by_footer = schema_by_footer(context, view)
        columns = view.schema if by_footer is None else as_spark_schema(by_footer)
        if columns is not None:
            reader = reader.schema(columns)
        frame = reader.load(list(view.paths))
        check_types(frame, argument)
        _ = frame.schema
        check_view(context.spark, frame, view.paths, context.root, argument)
    except PySparkException as error:
        refusal = SourceNotFound if condition_of(error) in NO_FILES else InvalidJobSpec
        raise refusal(
            f"{argument}: Spark cannot read {view.format} at {', '.join(view.paths)}: {describe(error)}. Nothing was "
            "changed.",
            argument=argument,
        ) from error
    return Source(frame=frame, reads_target=False, scan=partial(plain_files, context, view, frame))


def _table_view(context: JobContext, view: TableView, target: Snapshot | None) -> Source:
    snapshot, reads_target = snapshot_of_view(context, view, target)
    plan = plan_files(snapshot, snapshot.files(), context.spec.time_zone, context.instants)
    frame = scan_frame(context, plan, ScanTask(bins=bins_for(context, plan), schema=snapshot.schema))
    return Source(frame=frame, reads_target=reads_target)


def _register(context: JobContext, frame: DataFrame, name: str) -> None:
    try:
        frame.createOrReplaceTempView(name)
    except PySparkException as error:
        raise InvalidJobSpec(f"source.views: {name!r} is no name for a view.", argument="source.views") from error
    context.views.append(name)


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise SchemaMismatch(
            f"The source has a column of a type that no table can hold: {describe(error)}. Cast it in the source's "
            "SQL. Nothing was staged.",
            columns=[],
        ) from error


def _read_back(
    context: JobContext, staged: Sequence[StagedFile], wanted: StructType, names: Collection[str] | None = None
) -> DataFrame:
    """The materialized rows, read as the table's own are: by Arrow, from the store that they were staged in.

    `names`: the columns that are wanted, None for all.
    """
    chosen = wanted if names is None else _chosen(wanted, names)
    schema = _with_row_id(_stored(chosen))
    frame = scan_frame(context, *input_scan(context, staged, schema))
    return frame.select(*_columns(frame, chosen), frame[ROW_ID_COLUMN])


def _columns(frame: DataFrame, wanted: StructType) -> list[Column]:
    """The columns of a frame over materialized rows; one that holds nothing but null is in no file."""
    have = set(frame.schema.names)
    return [frame[quoted(field.name)] if field.name in have else F.lit(None).alias(field.name) for field in wanted]


def _stored(schema: StructType) -> pa.Schema:
    """The columns that are written down of a source with this schema.

    A column without a type holds nothing but null, and Parquet has no such type: it is put back when read.
    """
    return _arrow_schema(StructType([field for field in schema if not isinstance(field.dataType, NullType)]))


def _with_row_id(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(ROW_ID_COLUMN, pa.int64()))


def _chosen(schema: StructType, names: Collection[str]) -> StructType:
    return StructType([field for field in schema if field.name in names])
