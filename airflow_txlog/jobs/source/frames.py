"""The source of a job with Spark: a frame built from its description, materialized if it is needed more than once.

The invariant: nothing after `materialize` evaluates the author's query again. Source: soundness A2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import NullType, StructField, StructType

from airflow_txlog.contract.operations import (
    AnySource,
    FileView,
    QuerySource,
    RowsInProcess,
    SourceOperation,
    TableView,
    View,
)
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.splitting import SEGMENT_COLUMN
from airflow_txlog.datafiles.tasks.rows_without_log import IdentityValues, MaterializedScan
from airflow_txlog.datafiles.tasks.scan_and_write import PART_COLUMN, ROW_ID_COLUMN, FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.errors import InvalidJobSpec, SchemaMismatch, SourceNotFound, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import collect_records, records_of, scan_frame
from airflow_txlog.jobs.files.scan import bins_for
from airflow_txlog.jobs.files.stage import load
from airflow_txlog.jobs.source.columns import MAX_FILES, SourceColumns, columns_as_given, found_with_columns
from airflow_txlog.jobs.source.footers import NotSpark, notes_in
from airflow_txlog.jobs.source.handed_out import HandedOut, numbered_scan
from airflow_txlog.jobs.source.headers import (
    check_headers_on_disk,
    check_separator,
    has_checked_header,
    names_in_files,
)
from airflow_txlog.jobs.source.held_rows import GivenRows, given_rows
from airflow_txlog.jobs.source.json_on_disk import check_objects_on_disk
from airflow_txlog.jobs.source.listing import (
    OnlySpark,
    SourceFiles,
    files_in_store,
    find_files,
    is_listed_here,
    is_strict,
    options_of,
)
from airflow_txlog.jobs.source.materialized import (
    WRITING_SOURCE,
    MaterializedSource,
    columns_of,
    input_scan,
    judging_layout,
    materialize_scan,
    materialized,
    stored_of,
    unmatched_plan,
    with_row_id,
)
from airflow_txlog.jobs.source.rows_here import RowsHere, rows_of_files, why_spark_reads
from airflow_txlog.jobs.source.stores import check_no_file_functions, read_files
from airflow_txlog.jobs.source.strict_values import (
    StrictColumns,
    check_cuts_lines,
    check_shows_quotes,
    given_columns,
    strict_columns,
    text_options,
)
from airflow_txlog.jobs.source.tables import check_no_table, check_view, reads_table, snapshot_of_view
from airflow_txlog.jobs.source.view_rows import rows_of_view
from airflow_txlog.jobs.spark.causes import analysis_text, causes_of, condition_of, describe
from airflow_txlog.jobs.spark.session import is_classic, names_this_disk
from airflow_txlog.jobs.sql.columns import check_source_names
from airflow_txlog.jobs.sql.expectations import expectations_of
from airflow_txlog.jobs.sql.gate import NO_FILES, SqlGate, check_types, quoted
from airflow_txlog.jobs.sql.schemas import (
    as_spark_schema,
    engine_schema,
    nullable_columns,
    spark_schema,
    without_metadata,
)
from airflow_txlog.jobs.sql.table_rules import accepted_expectations
from airflow_txlog.locations import GLOB, LOCAL
from airflow_txlog.storage.local_files import stat_linked


@dataclass(frozen=True, kw_only=True)
class Source:
    """The author's source as a frame that is not evaluated yet. `reads_target`: a row of it may be the target's.

    `size`: of the files, as `Lineage.sizes` has it; empty if unknown. `scan` returns the scan of the same rows without
    Spark, or None. `is_read_here`: this package reads the files.
    """

    frame: DataFrame
    reads_target: bool
    size: Mapping[str, int] = field(default_factory=dict)
    scan: Callable[[], FileScan | None] = lambda: None
    is_read_here: bool = False


def build_source(
    context: JobContext,
    gate: SqlGate,
    target: Snapshot | None,
    described: AnySource | None = None,
    argument: str = "source",
) -> Source:
    """Return a described source (None: the operation's); each Delta table among its views is read at one version.

    `target` is the version of the job's table that a source reading it sees. Raises InvalidJobSpec (`argument`), also
    for the raw files of a Delta table, and the errors of opening a table.
    """
    described = context.record(SourceOperation).source if described is None else described
    lineage = context.lineage
    lineage.forget_source()
    if isinstance(described, QuerySource):
        reads_target = False
        for name, view in described.views.items():
            source = _view(context, view, f"{argument}.views.{name}", target)
            lineage.views[name], lineage.sizes[name] = source.frame.columns, dict(source.size)
            reads_target |= source.reads_target
            if source.is_read_here:
                check_no_file_functions(described.sql, argument)
            try:
                source.frame.createOrReplaceTempView(name)
            except PySparkException as error:
                message = f"source.views: {name!r} is no name for a view."
                raise InvalidJobSpec(message, argument="source.views") from error
            context.views.append(name)
        source = Source(frame=gate.query(described.sql), reads_target=reads_target)
    else:
        # Of a source of keys one column is read, of any other source all columns.
        source = _view(context, described, argument, target, reads_all=argument == "source")
        lineage.views[""], lineage.sizes[""] = source.frame.columns, dict(source.size)
    reads_target = reads_table(context.spark, source.frame, context.root, argument) or source.reads_target
    if argument == "source" and context.columns_taken is not None:
        frame = source.frame
        taken = [name for name in frame.columns if name.lower() in context.columns_taken]
        source = replace(source, frame=frame.select(*(frame[quoted(name)] for name in taken)), scan=lambda: None)
    return replace(source, reads_target=reads_target)


def materialize(context: JobContext, source: Source, parameters: Collection[str]) -> MaterializedSource:
    """Evaluate the source, once, into files of the job's inputs folder. Raises SchemaMismatch, InvalidInput."""
    wanted = source.frame.schema
    check_source_names(wanted.names)
    stored = stored_columns(wanted)
    schema = with_row_id(stored)
    columns = columns_of(wanted.jsonValue())
    layout = judging_layout(context, stored, expectations_of(context, columns, source=True))
    answered_by_spark = accepted_expectations(context, columns, source=True)
    scan = source.scan()
    # Our files have no column that holds only null.
    if scan is None or [*scan.schema.names, ROW_ID_COLUMN] != schema.names or answered_by_spark.texts:
        frame = answered_by_spark.answered(source.frame)
        kept = [name for name in frame.schema.names if name in stored.names or name not in wanted.names]
        rows = frame.select(*(frame[quoted(name)] for name in kept))
        # Twice as many tasks as run at once: more would cost more than they gain. The task's number is part of its
        # rows' numbers, so it follows the coalesce.
        rows = rows.coalesce(2 * context.parallelism).withColumn(PART_COLUMN, F.spark_partition_id())
        staged = collect_records(context, records_of(rows, layout, numbers_rows=True), WRITING_SOURCE)
    else:
        staged = load(context, Task(source=scan, layout=layout, numbers_rows=True), WRITING_SOURCE)
    return materialized(context, staged, wanted.jsonValue(), stored, parameters, reads_target=source.reads_target)


def schema_of(source: MaterializedSource) -> StructType:
    """Return the source's own columns as Spark reads them back."""
    held = {field.name: field for field in spark_schema(source.stored)}
    return StructType([held.get(name, StructField(name, NullType())) for name in source.names])


def unmatched_rows(
    context: JobContext,
    source: MaterializedSource,
    matched: Mapping[int, RowPositions],
    buckets: Collection[int],
    identities: IdentityValues | None,
) -> DataFrame:
    """Return the rows of `unmatched_plan` with all columns, the bucket as SEGMENT_COLUMN, and values of identities."""
    plan = unmatched_plan(context, source, source.names, matched, buckets)
    scan = MaterializedScan(bins=bins_for(context, plan), schema=plan.schema, with_segment=True, identities=identities)
    frame = scan_frame(context, scan)
    added = [] if identities is None else [frame[quoted(field.name)] for field in identities.fields]
    return frame.select(*_columns(frame, source.names), frame[SEGMENT_COLUMN], *added)


def numbered_rows(context: JobContext, source: MaterializedSource, handed: HandedOut) -> DataFrame:
    """Return all rows of a materialized source with values of identity columns."""
    frame = scan_frame(context, numbered_scan(context, source, handed))
    added = (frame[quoted(each.name)] for each in handed.identities)
    return frame.select(*_columns(frame, source.names), *added)


def frame_of(
    context: JobContext,
    source: MaterializedSource,
    names: Collection[str] | None = None,
    frame_by: Callable[[JobContext, FileScan], DataFrame] = scan_frame,
) -> DataFrame:
    """Return the rows of a materialized source with these of its columns (None: all) and ROW_ID_COLUMN."""
    chosen = [name for name in source.names if names is None or name in names]
    schema = with_row_id(stored_of(source, chosen))
    frame = frame_by(context, input_scan(context, source.files, schema))
    return frame.select(*_columns(frame, chosen), frame[ROW_ID_COLUMN])


def _view(
    context: JobContext, view: View | RowsInProcess, argument: str, target: Snapshot | None, *, reads_all: bool = False
) -> Source:
    if isinstance(view, TableView):
        return _table_view(context, view, target)
    if isinstance(view, RowsInProcess):
        return _written_down(context, given_rows(context, argument, target))
    try:
        check_separator(view, argument)
        check_shows_quotes(view, argument)
        if is_listed_here(view.paths, argument):
            return _read_here(context, files_in_store(context, view, argument))
        return _on_disk(context, view, argument, reads_all=reads_all)
    except PySparkException as error:
        found = next((cause.found for cause in causes_of(error) if cause.found is not None), None)
        if found is not None:
            # Of a worker that read lines, from which Spark was to infer a schema.
            raise found from error
        condition = condition_of(error) or ""
        if view.schema is not None and condition.startswith(("PARSE", "UNSUPPORTED_DATATYPE")):
            raise InvalidJobSpec(
                f"{argument}.schema {view.schema!r} is not a list of columns: {analysis_text(error)}. Nothing was "
                'read. Write names with types, such as "id BIGINT, day DATE".',
                argument=f"{argument}.schema",
            ) from error
        refusal = SourceNotFound if condition in NO_FILES else InvalidJobSpec
        raise refusal(
            f"{argument}: Spark cannot read {view.format} at {', '.join(view.paths)}: {describe(error)}. This run "
            "of the job changed nothing.",
            argument=argument,
        ) from error


def _on_disk(context: JobContext, view: FileView, argument: str, *, reads_all: bool) -> Source:
    """Return files that Spark reads, or that it refuses and this package reads."""
    check_cuts_lines(view, argument)
    is_plain = view.format == "parquet" and names_this_disk(context.spark)
    known = found_with_columns(context, view, argument) if is_plain and view.schema is None else None
    columns: str | StructType | None = view.schema
    if known is not None:
        found, source = known
        if source.apart is not None:
            if reads_all:
                raise source.apart
            # A query may not use that column.
            context.log(f"warning: {source.apart.message.removesuffix(' Nothing was read.')}")
        elif source.only_here is not None and source.left is None:
            context.log(f"{argument}: this package reads the files, and not Spark: {source.only_here}")
            return _read_here(context, found, source)
        columns = None if source.inferred is None else as_spark_schema(source.inferred)
    reader = context.spark.read.format(view.format).options(**text_options(view))
    strict = StrictColumns({})
    if is_strict(view):
        given = None if view.schema is None else given_columns(view.schema, argument)
        exact = context.executor.setting("spark.sql.json.enableExactStringParsing", "true").lower()
        has_bytes = view.format == "csv" or exact == "true"
        strict = strict_columns(view, given, has_bytes=has_bytes)
        columns = strict.read_as(given) if given is not None and strict.fields else columns
    if columns is not None:
        reader = reader.schema(columns)
    frame = reader.load(list(view.paths))
    of_folders = _of_folders(view, frame, strict)
    is_read_again = not of_folders.isdisjoint(map(str.lower, strict.fields))
    strict = strict.without(of_folders)
    if is_read_again and view.schema is not None:
        # Spark leaves out folders by a column that it has itself.
        reader = reader.schema(strict.read_as(given_columns(view.schema, argument)))
        frame = reader.load(list(view.paths))
    check_types(frame, argument)
    _ = frame.schema
    check_view(context.spark, frame, view.paths, context.root, argument)
    if view.format == "json" and names_this_disk(context.spark):
        check_objects_on_disk(view, frame.inputFiles())
    if has_checked_header(view) and not _has_header(context, view, frame):
        # Its workers find the headers. Spark names the columns by a single file, also those without a name.
        is_alone = columns is None and len(frame.inputFiles()) == 1
        frame = frame if is_alone else reader.option("enforceSchema", "false").load(list(view.paths))
    frame = strict.converted(frame, names_files=True)
    scan = partial(_scan_of, context, view, frame, known) if is_plain else lambda: None
    size = _size_of(frame) if is_classic(context.spark) else {}
    return Source(frame=frame, reads_target=False, size=size, scan=scan)


def _of_folders(view: FileView, frame: DataFrame, strict: StrictColumns) -> set[str]:
    """Return the names, in lower case, of the columns that are certainly of folders and not of files."""
    is_certain = not {"basepath", "recursivefilelookup"} & options_of(view).keys() and all(
        "=" not in path and GLOB.search(path) is None and (path.startswith("/") or ":/" in path) for path in view.paths
    )
    if not strict.checks_any or not is_certain:
        return set()
    parts = {part for uri in frame.inputFiles() for part in uri.split("/")[:-1] if "=" in part}
    return {unquote(part.partition("=")[0]).lower() for part in parts}


def _has_header(context: JobContext, view: FileView, frame: DataFrame) -> bool:
    """Return whether the headers of the files were found and compared. Raises SchemaMismatch."""
    if not names_this_disk(context.spark):
        return False
    names = None if view.schema is None else names_in_files(view, frame.schema.names)
    return check_headers_on_disk(view, frame.inputFiles(), names) is None


def _scan_of(
    context: JobContext, view: FileView, frame: DataFrame, known: tuple[SourceFiles, SourceColumns] | None
) -> FileScan | None:
    """Return the scan without Spark of a frame over Parquet files of a disk; None if only Spark can read it."""
    if context.arrow_error is not None or (known is None and view.schema is None):
        return None
    try:
        columns = engine_schema(frame.schema)
        if known is None:
            found = find_files(context, view, "source")
            if isinstance(found, OnlySpark) or why_spark_reads(found) is not None:
                return None
            source = columns_as_given(found, columns, notes_in({each.name: each.metadata for each in frame.schema}))
        else:
            found, source = known
            one, other = (without_metadata(s, nullable=True) for s in (as_spark_schema(source.columns), frame.schema))
            if why_spark_reads(found) is not None or one != other:
                return None
    except (TxlogError, NotSpark, OSError):
        return None
    rows = rows_of_files(context, found, replace(source, columns=columns))
    return rows.scan(context) if isinstance(rows, RowsHere) else None


def _size_of(frame: DataFrame) -> dict[str, int]:
    """Return the `bytes` and number of `files` that Spark has listed; nothing if one is elsewhere or they are many."""
    places = [urlsplit(uri) for uri in frame.inputFiles()]
    if len(places) > MAX_FILES or any(place.scheme != LOCAL or place.netloc for place in places):
        return {}
    sizes = [found.st_size for place in places if (found := stat_linked(unquote(place.path))) is not None]
    return {"bytes": sum(sizes), "files": len(sizes)} if sizes and len(sizes) == len(places) else {}


def _read_here(context: JobContext, found: SourceFiles, source: SourceColumns | None = None) -> Source:
    check_no_table(found, context.root)
    frame, scan = read_files(context, found, source)
    size = {"bytes": sum(file.size_bytes for file in found.filled), "files": len(found.files)}
    return Source(frame=frame, reads_target=False, size=size, scan=lambda: scan, is_read_here=True)


def _table_view(context: JobContext, view: TableView, target: Snapshot | None) -> Source:
    snapshot, reads_target = snapshot_of_view(context, view, target)
    found = rows_of_view(context, view, snapshot)
    plan = found.plan
    frame = scan_frame(context, FileScan(bins=bins_for(context, plan), schema=plan.schema, rows=found.rows))
    return Source(frame=frame, reads_target=reads_target, size=plan.size)


def _written_down(context: JobContext, given: GivenRows) -> Source:
    """Return rows of this process as Spark reads them: from files of the job, into which they are written here."""
    written = materialize_scan(context, given.scan(context), given.columns, (), is_judged=False)
    frame = frame_of(context, written)
    scan = input_scan(context, written.files, stored_of(written, written.names))
    return Source(frame=frame.drop(ROW_ID_COLUMN), reads_target=False, scan=lambda: scan)


def _columns(frame: DataFrame, names: Collection[str]) -> list[Column]:
    """Return the columns of a frame over materialized rows; a column that holds only null is in no file."""
    have = set(frame.schema.names)
    return [frame[quoted(name)] if name in have else F.lit(None).alias(name) for name in names]


def stored_columns(schema: StructType) -> pa.Schema:
    """Return the columns that files of a source hold: those that have a type. Raises SchemaMismatch."""
    kept = StructType([field for field in schema if not isinstance(field.dataType, NullType)])
    try:
        # The elements of `array()` are NOT NULL and have no type; Arrow has no such type.
        return to_arrow_schema(nullable_columns(kept), timezone="UTC")
    except (PySparkException, TypeError) as error:
        raise SchemaMismatch(
            f"The source has a column of a type that no table can hold: {describe(error)}. Cast it in the source's "
            "SQL. Nothing was staged.",
            columns=[],
        ) from error
