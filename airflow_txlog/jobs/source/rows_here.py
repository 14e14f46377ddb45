"""A source that is Parquet files as they are: read by Arrow in the task that writes its rows, so that no row goes
through the JVM; and without Spark, where there is none, as one of our tables is.

With a Spark it says which files there are and what their columns are; it reads none of their rows. The invariant: the
rows are those that Spark would read. Where that is not certain of every file, Spark reads them all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from airflow_txlog.contract.operations import AnySource, FileView, TableView
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.rows_without_log import ParquetScan
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.schema import StructType, to_arrow
from airflow_txlog.engine.table.schema.types import Primitive, bare_columns, walk_fields
from airflow_txlog.errors import InvalidJobSpec, SourceNotFound, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, bins_for, plan_files, plan_of, sent_bins
from airflow_txlog.jobs.source.columns import (
    MAX_FILES,
    SourceColumns,
    SourceFooter,
    columns_of_source,
    first_of,
    footers_of,
    in_java,
    padded_columns,
)
from airflow_txlog.jobs.source.footers import Notes, NotSpark, has_notes, notes_in, without_void
from airflow_txlog.jobs.source.listing import (
    STREAM_LOG,
    SourceFiles,
    check_honoured,
    find_files,
    fixed_part,
    is_nothing_at,
    nothing_there,
    options_of,
)
from airflow_txlog.jobs.source.raw_tables import check_no_table
from airflow_txlog.jobs.source.tables import snapshot_of_view
from airflow_txlog.jobs.spark.installation import has_settings_of_its_own
from airflow_txlog.jobs.spark.needed import NeedsSpark
from airflow_txlog.jobs.spark.session import is_classic, reads_this_disk
from airflow_txlog.locations import LOCAL, local_path, scheme_of
from airflow_txlog.storage import STORES, Store, open_store
from airflow_txlog.storage.local_files import holds_nothing, names_below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A glob may begin in a folder that holds half a disk. Spark looks for it level by level.
MAX_NAMES = 20_000
# What decides a schema for Spark, and holds no row.
_SUMMARIES = ("_metadata", "_common_metadata")
# What Hadoop reads of a glob in ways of its own.
_ODD_IN_GLOB = frozenset("\\{}[]")


@dataclass(frozen=True, kw_only=True)
class PlainFiles:
    """Files that are read with these columns; `plan` has them all. `padded` and `defaults`: as of ParquetScan."""

    columns: StructType
    plan: FilePlan
    padded: Mapping[str, int]
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)

    def scan(self, context: JobContext, *, in_one: bool = False) -> FileScan:
        """What reads the rows; `in_one` task, all of them. Raises NeedsSpark where that is too much without."""
        if in_one:
            bins = sent_bins(context, self.plan, [list(range(self.plan.num_files))])
        else:
            bins = bins_for(context, self.plan, in_pieces=True)
        return ParquetScan(bins=bins, schema=self.plan.schema, padded=self.padded, defaults=self.defaults)


def plain_files(context: JobContext, view: FileView, frame: DataFrame) -> FileScan | None:
    """A scan of the files of a view on a local disk, which gives the rows of `frame`, as Spark reads that view.

    None where only Spark can read them: they are no Parquet, or too many, some lack a column or have it from a folder
    or in a type that Arrow reads in another way, or Spark is behind Connect.
    """
    # A Connect server may be on another machine, where other files have these names.
    if view.format != "parquet" or not is_classic(context.spark) or context.arrow_error:
        return None
    from airflow_txlog.jobs.sql.schemas import engine_schema  # noqa: PLC0415 - only with Spark

    try:
        check_honoured(context, view, "source")
        columns = engine_schema(frame.schema)
        notes = notes_in({each.name: each.metadata for each in frame.schema})
    except (TxlogError, NotSpark):
        return None
    paths = _paths_on_this_disk(frame)
    if not paths:
        return None
    store = open_store(paths[0].rpartition("/")[0] or "/", replace(context.store.access, allow_absolute_paths=True))
    files = [f"{LOCAL}://{path}" for path in paths]
    footers = footers_of(store, dict.fromkeys(files))
    if _lie_in_columns(files, columns) or not all(_holds(footer, columns, notes) for footer in footers):
        return None
    plan = _plan(store, columns, {each.path: each.size_bytes for each in footers}, [each.cost for each in footers])
    return PlainFiles(columns=columns, plan=plan, padded=padded_columns(context, notes.chars)).scan(context)


def size_on_this_disk(context: JobContext, frame: DataFrame) -> dict[str, int]:
    """The number of `files` that Spark reads for a view and their `bytes`; none where they lie elsewhere or are many.

    Spark has listed them, and reads none for this.
    """
    paths = _paths_on_this_disk(frame) if is_classic(context.spark) else []
    if not paths:
        return {}
    store = open_store(paths[0].rpartition("/")[0] or "/", replace(context.store.access, allow_absolute_paths=True))
    found = [store.stat(f"{LOCAL}://{path}") for path in paths]
    sizes = [info.size_bytes for info in found if info is not None]
    return {"bytes": sum(sizes), "files": len(sizes)} if len(sizes) == len(paths) else {}


def _paths_on_this_disk(frame: DataFrame) -> list[str]:
    """The files of a frame, in order; none where some are elsewhere, or they are too many to be looked at."""
    places = [urlsplit(uri) for uri in frame.inputFiles()]
    if len(places) > MAX_FILES or any(place.scheme != LOCAL or place.netloc for place in places):
        return []
    return sorted(unquote(place.path) for place in places)


@dataclass(frozen=True, kw_only=True)
class FilesOnDisk:
    """The files of a view on this machine's disk, with their columns. `for_spark`: those that Spark's reader is given,
    None where it finds them out by itself."""

    found: SourceFiles
    source: SourceColumns
    for_spark: StructType | None

    @property
    def is_read_here(self) -> bool:
        """Whether Spark refuses the files, and this package reads them."""
        return self.source.only_here is not None and self.source.only_spark is None and self.source.apart is None


def files_on_disk(context: JobContext, view: FileView, argument: str) -> FilesOnDisk | None:
    """Return a view's files on this machine's disk, by their footers, which Spark would start a job to look into.

    None where only Spark can say which files or columns there are. Raises InvalidJobSpec (`argument`) for a type that
    no column can have.
    """
    if view.format != "parquet" or view.schema is not None or not reads_this_disk(context.spark):
        return None
    return files_by_footer(context, view, argument)


def files_by_footer(context: JobContext, view: FileView, argument: str) -> FilesOnDisk | None:
    """Return the Parquet files of a view, by their footers. None and errors are those of `files_on_disk`."""
    try:
        found = _found(context, view, argument)
        held = {file.path: file.size_bytes for file in found.files}
        if not held or any(file.values or not file.size_bytes for file in found.files):
            return None
        path = min(held, key=in_java)
        with open_data_file(DataFile(store=found.store, path=path)) as parquet:
            # Spark may pass over what another writer has noted in its name.
            names, is_noted = parquet.schema_arrow.names, has_notes(parquet)
        footers = footers_of(found.store, held if len(held) <= MAX_FILES else {path: held[path]})
    except (TxlogError, NotSpark, NeedsSpark, OSError):
        return None
    first = next(footer for footer in footers if footer.path == path)
    source = columns_of_source(found.store, footers, first, argument)
    is_given = first.columns is not None and source.apart is None and source.columns.names == names and not is_noted
    return FilesOnDisk(found=found, source=source, for_spark=source.columns if is_given else None)


def columns_by_footer(context: JobContext, view: FileView, argument: str) -> StructType | None:
    """Return the columns of a view of Parquet files; None if only Spark can say which they are, or where its files are.

    Raises InvalidJobSpec (`argument`) for a type that no column can have.
    """
    files = files_by_footer(context, view, argument)
    return None if files is None else files.for_spark


def check_is_there(context: JobContext, view: FileView, argument: str) -> None:
    """Raises SourceNotFound (`argument`) where Spark would certainly find no file at a path of the view.

    Nothing is read; of a glob only the folder is looked for that it begins in."""
    # A schema is all that Spark wants of an empty folder on a disk.
    may_be_empty = view.schema is not None
    for path in view.paths:
        is_local = scheme_of(path) == LOCAL
        if is_local and not (context.is_spark_here and not has_settings_of_its_own()):
            continue
        if (is_local and _reads_other_disks(context, view)) or (_ODD_IN_GLOB | {"%"}) & set(path):
            continue
        fixed = fixed_part(path)
        if is_local:
            on_disk = local_path(fixed)
            is_missing = on_disk is not None and holds_nothing(on_disk, may_be_empty=may_be_empty)
        else:
            is_missing = scheme_of(path) in STORES and is_nothing_at(fixed, context.store.access)
        if is_missing:
            raise nothing_there(path, argument)


@dataclass(frozen=True, kw_only=True)
class SourceHere:
    """A source that is read without Spark: a scan, its columns in their order, and the size of what it reads, as
    `Lineage.sizes` has it. `reads_target`: a row of it may be the target's."""

    scan: FileScan
    columns: StructType
    size: Mapping[str, int]
    reads_target: bool = False


def source_here(
    context: JobContext, described: AnySource, argument: str, target: Snapshot, *, reads_all: bool = True
) -> SourceHere:
    """Return the source as this process reads it: Parquet files, or a Delta table.

    `reads_all`: the caller reads every column. `target` is the version of the job's table that a source reading it
    sees. Raises NeedsSpark for any other source, and what `plain_source` and `snapshot_of_view` raise.
    """
    context.lineage.forget_source()
    source = _source_here(context, described, argument, target, reads_all=reads_all)
    context.lineage.views[""], context.lineage.sizes[""] = source.columns.names, dict(source.size)
    return source


def _source_here(
    context: JobContext, described: AnySource, argument: str, target: Snapshot, *, reads_all: bool
) -> SourceHere:
    if isinstance(described, FileView):
        files = plain_source(context, described, argument, reads_all=reads_all)
        return SourceHere(scan=files.scan(context), columns=files.columns, size=files.plan.size)
    if not isinstance(described, TableView):
        raise NeedsSpark("the source is a query")
    snapshot, reads_target = snapshot_of_view(context, described, target)
    plan = plan_files(snapshot, snapshot.files(), context.spec.time_zone, context.executor.instants)
    columns = bare_columns(snapshot.delta_schema)
    if any(field.type is Primitive.VOID for field in walk_fields(columns)):
        raise NeedsSpark("the source has a column of the type void, which no file holds")
    scan = FileScan(bins=bins_for(context, plan), schema=snapshot.schema)
    return SourceHere(scan=scan, columns=columns, size=plan.size, reads_target=reads_target)


def plain_source(context: JobContext, view: FileView, argument: str, *, reads_all: bool = True) -> PlainFiles:
    """The files of a view, without Spark. Raises NeedsSpark where only Spark can read them, or say what they are.

    Raises InvalidJobSpec (`argument`) for the files of a Delta table, SourceNotFound where there are none.
    """
    if not view.may_be_plain:
        raise NeedsSpark("the source is other files than Parquet, or names its schema as SQL")
    found = _found(context, view, argument)
    check_no_table(found, context.root, argument)
    # As Spark does, which passes over files without a byte.
    held = [file for file in found.files if file.size_bytes]
    files = {file.path: file.size_bytes for file in held}
    if not files:
        raise SourceNotFound(
            f"{argument}: the files at {', '.join(view.paths)} are empty (yet). Nothing was changed.",
            argument=argument,
        )
    if any(file.values for file in found.files) or len(files) > MAX_FILES or len(files) < len(held):
        raise NeedsSpark("the source has columns that folders name, or very many files, or files that are named twice")
    context.executor.admit(list(files.values()))
    store, files = found.store, dict(sorted(files.items()))
    footers = footers_of(store, files)
    first = first_of(store, found.summary, footers)
    source = columns_of_source(store, footers, first, argument)
    if source.only_spark is not None:
        raise NeedsSpark(source.only_spark)
    if source.apart is not None:
        raise source.apart if reads_all else NeedsSpark("a column of the source is not of one type in all files")
    if _lie_in_columns(list(files), source.columns):
        raise NeedsSpark("a folder of the source may name one of its columns, or a column has a collation")
    plan = _plan(store, source.columns, files, source.costs)
    context.executor.admit(plan.reading_costs())
    padded = padded_columns(context, source.padded)
    return PlainFiles(columns=source.columns, plan=plan, padded=padded, defaults=source.defaults)


def _found(context: JobContext, view: FileView, argument: str) -> SourceFiles:
    """The files of a view, where this process finds what Spark would. Raises NeedsSpark, SourceNotFound."""
    if has_settings_of_its_own():
        raise NeedsSpark("Spark is installed with settings of its own, which may say how files are read")
    are_local = [scheme_of(path) == LOCAL for path in view.paths]
    if not any(are_local):
        return find_files(context, view, argument)
    folders = [local_path(fixed_part(path)) for path in view.paths]
    if not (all(are_local) and None not in folders and context.is_spark_here):
        raise NeedsSpark("the source lies on the disk of the machine that Spark runs on")
    if _reads_other_disks(context, view):
        raise NeedsSpark("Hadoop may be set to find paths without a scheme elsewhere")
    # Columns of folders are found before names are filtered.
    if "pathglobfilter" in options_of(view) or any(_ODD_IN_GLOB & set(path) for path in view.paths):
        raise NeedsSpark("the source's files are named by a filter, or by a glob with more than * and ?")
    try:
        for folder in folders:
            assert folder is not None
            for number, (name, is_odd) in enumerate(names_below(folder)):
                if is_odd or name.startswith((*_SUMMARIES, STREAM_LOG)) or number >= MAX_NAMES:
                    raise NeedsSpark(
                        "the source's folder holds links, summaries of files, a stream's log, names that are no text, "
                        "or very many names"
                    )
        return find_files(context, view, argument)
    except (InvalidJobSpec, OSError) as error:
        # Spark has options of its own for its own files, and words of its own for what it cannot open.
        raise NeedsSpark("an option of the source is for Spark's own reader, or a folder cannot be listed") from error


def _reads_other_disks(context: JobContext, view: FileView) -> bool:
    """Whether a path without a scheme may be none of this machine's for the Spark of the job."""
    is_set = "HADOOP_CONF_DIR" in os.environ or any("defaultfs" in name.lower() for name in context.spec.spark_conf)
    return is_set and any(path.startswith("/") for path in view.paths)


def _plan(store: Store, columns: StructType, files: Mapping[str, int], costs: Sequence[int]) -> FilePlan:
    return plan_of(store, to_arrow(columns), list(files), list(files.values()), costs=costs)


def _lie_in_columns(paths: Sequence[str], columns: StructType) -> bool:
    """Whether only Spark knows the columns' values: those of folders, and texts with a collation; or there are none."""
    names = {field.name.lower() for field in columns}
    if not names or any(field.is_collated for field in walk_fields(columns)):
        return True
    return any(_of_folders(path) & names for path in paths)


def _of_folders(path: str) -> set[str]:
    """The names, in small letters, of the columns that Spark may find in the folders of a path."""
    return {unquote(part.partition("=")[0]).lower() for part in path.split("/")[:-1] if "=" in part}


def _holds(footer: SourceFooter, columns: StructType, notes: Notes) -> bool:
    """Whether a file has each of these columns, by name in any case, in a type that Arrow reads as Spark does."""
    if footer.columns is None or footer.why is not None or any(n.lower() not in footer.held for n in notes.defaults):
        return False
    found = without_void(footer.columns)
    held = [found.find(field.name) for field in columns]
    return all(other is not None and other.type == field.type for field, other in zip(columns, held, strict=True))
