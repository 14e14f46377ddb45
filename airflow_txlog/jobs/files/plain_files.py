"""A source that is Parquet files as they are: read by Arrow in the task that writes its rows, so that no row goes
through the JVM.

Spark says which files there are and what their columns are; it reads none of their rows. The invariant: the rows are
those that Spark would read. Where that is not certain of every file, Spark reads them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType

from airflow_txlog.datafiles.parquet.calendars import calendar_of
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.tasks.rows_without_log import ParquetSourceTask
from airflow_txlog.datafiles.tasks.scan_and_write import ScanTask
from airflow_txlog.errors import InvalidJobSpec, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.footer_schemas import NotSpark, schema_of_footer
from airflow_txlog.jobs.files.own_readers import check_honoured
from airflow_txlog.jobs.files.scan import bins_for, plan_of
from airflow_txlog.jobs.spark.session import is_classic
from airflow_txlog.jobs.sql.schemas import without_metadata
from airflow_txlog.locations import LOCAL
from airflow_txlog.records import FileView
from airflow_txlog.storage import Store, open_store

# The footer of each file is looked at, on the driver.
MAX_FILES = 2_000
_READERS = 8


def plain_files(context: JobContext, view: FileView, frame: DataFrame) -> ScanTask | None:
    """A scan of the files of a view on a local disk, which gives the rows of `frame`, as Spark reads that view.

    None where only Spark can read them: they are no Parquet, or too many, some lack a column or have it from a folder
    or in a type that Arrow reads in another way, or Spark is behind Connect.
    """
    columns = {field.name.lower(): field.dataType for field in without_metadata(frame.schema, nullable=True)}
    # A Connect server may be on another machine, where other files have these names.
    if view.format != "parquet" or not columns or not is_classic(context.spark):
        return None
    try:
        check_honoured(context, view, "source")
    except InvalidJobSpec:
        return None
    places = [urlsplit(uri) for uri in frame.inputFiles()]
    if not 0 < len(places) <= MAX_FILES or any(place.scheme != LOCAL or place.netloc for place in places):
        return None
    paths = sorted(unquote(place.path) for place in places)
    if any(_of_folders(path) & columns.keys() for path in paths):
        return None
    store = open_store(paths[0].rpartition("/")[0] or "/", replace(context.store.access, allow_absolute_paths=True))
    files = [f"{LOCAL}://{path}" for path in paths]
    with ThreadPoolExecutor(_READERS) as pool:
        sizes = list(pool.map(lambda path: _size_of_plain(store, path, columns), files))
    found = [size for size in sizes if size is not None]
    if len(found) < len(files):
        return None
    schema = to_arrow_schema(without_metadata(frame.schema, nullable=True), timezone="UTC")
    plan = plan_of(store, schema, files, found)
    return ParquetSourceTask(bins=bins_for(context, plan, in_pieces=True), schema=schema)


def _of_folders(path: str) -> set[str]:
    """The names, in small letters, of the columns that Spark may find in the folders of a path."""
    return {unquote(part.partition("=")[0]).lower() for part in path.split("/")[:-1] if "=" in part}


def _size_of_plain(store: Store, path: str, columns: Mapping[str, DataType]) -> int | None:
    """The bytes of a file that has each of these columns, by names in small letters, in a type that Arrow reads as
    Spark does; None for another file.
    """
    try:
        info = store.stat(path)
        if info is None:
            return None
        with open_data_file(DataFile(store=store, path=path, size_bytes=info.size_bytes)) as parquet:
            calendar = calendar_of(parquet)
            found = [(field.name.lower(), field.dataType) for field in schema_of_footer(parquet)]
    except (TxlogError, NotSpark):
        return None
    names = dict(found)
    is_whole = len(names) == len(found) and columns.keys() <= names.keys()
    is_plain = is_whole and not calendar.is_legacy and all(columns.get(name, kind) == kind for name, kind in found)
    return info.size_bytes if is_plain else None
