"""The columns and statistics of the files of a folder that becomes a table, read from their footers.

Files with footers of one form are of one kind: its columns are found once, and of the other files only the numbers and
bounds are read. Source: Spark, ParquetToSparkSchemaConverter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq

from airflow_txlog.contract.operations import Convert
from airflow_txlog.datafiles.parquet.footer_statistics import (
    Chunks,
    FooterLeaves,
    are_plain,
    chunks_of,
    chunks_of_form,
    leaves_of_footer,
)
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.datafiles.tasks.small_files import KnownForms
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import to_arrow
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import CorruptDataFile, FolderChanged, SchemaMismatch
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.source.footers import NoColumnType, NotSpark, columns_of_footer, is_in_nanoseconds, without_void
from airflow_txlog.jobs.source.listing import SourceFile
from airflow_txlog.locations import shown_path
from airflow_txlog.storage.base import FileInfo

_AT_ONCE = 8
_MOST_KINDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The common facts of files with equal schemas and equal metadata. `statistics` has seen no file."""

    schema: pq.ParquetSchema
    metadata: object
    columns: StructType
    leaves: FooterLeaves
    statistics: StatisticsCollector

    def is_of(self, parquet: pq.ParquetFile) -> bool:
        return self.metadata == _metadata_of(parquet) and bool(self.schema.equals(parquet.schema))


def _metadata_of(parquet: pq.ParquetFile) -> object:
    # pandas notes its index there, with the number of rows; no column has its type by that.
    noted = {name: value for name, value in (parquet.metadata.metadata or {}).items() if name != b"pandas"}
    return parquet.metadata.created_by, noted


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file's facts in its footer. `columns` are shared by files of equal columns."""

    file: SourceFile
    columns: StructType
    num_rows: int
    stats: str


class FileReader:
    """Reads the footers of the files in a folder that becomes a table."""

    def __init__(self, context: LogContext, partitions: StructType, listed: Mapping[str, FileInfo]) -> None:
        """`listed`: the files of the folder by their path in it."""
        self._context, self._partitions, self._listed = context, partitions, listed
        self._record = context.record(Convert)
        self._properties = TableProperties(self._record.properties, context.root)
        self._kinds: list[_Kind] = []
        self._forms: KnownForms[_Kind] = KnownForms(reads_ends=True)

    def read_all(self, files: Sequence[SourceFile]) -> list[FileFacts]:
        """Return the facts of these files, in order.

        Raises CorruptDataFile, SchemaMismatch for columns that no table has, FolderChanged.
        """
        if not self._context.store.is_remote:
            # Nothing waits for a disk: threads would only take turns.
            return list(map(self._read, files))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                return list(pool.map(self._read, files))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _read(self, file: SourceFile) -> FileFacts:
        path = file.path[len(self._context.root) + 1 :]
        store, size_bytes = self._context.store, self._listed[path].size_bytes
        alike = self._forms.find(DataFile(store=store, path=path, size_bytes=size_bytes))
        if alike is not None:
            return self._as_facts(file, alike.facts, alike.footer.num_rows, chunks_of_form(alike.footer))
        try:
            with open_data_file(DataFile(store=store, path=path)) as parquet:
                if parquet.source.size() != size_bytes:
                    raise changed_folder(self._context.root, path, "changed")
                kind = next((each for each in self._kinds if each.is_of(parquet)), None) or self._new_kind(
                    path, parquet
                )
                if self._forms.wants_more:
                    leaves = kind.leaves
                    self._forms.learn(parquet, kind, lambda footer: are_plain(parquet, footer, leaves))
                return self._as_facts(file, kind, parquet.metadata.num_rows, chunks_of(parquet))
        except CorruptDataFile as error:
            if error.is_missing:
                raise changed_folder(self._context.root, path, "vanished") from error
            raise
        except NoColumnType as error:
            raise refused_file(self._context.root, path, str(error), error.instead) from error
        except NotSpark as error:
            raise refused_file(
                self._context.root, path, str(error), "a type that Spark and Arrow read alike"
            ) from error

    def _new_kind(self, path: str, parquet: pq.ParquetFile) -> _Kind:
        for held in parquet.schema_arrow:
            if is_in_nanoseconds(held.type):
                raise refused_file(self._context.root, path, f"column {held.name!r} in nanoseconds", "microseconds")
        columns = without_void(columns_of_footer(parquet))
        inside = StructType(tuple(field for field in columns if field.name.lower() not in self._partitions.by_name))
        kind = _Kind(
            schema=parquet.schema,
            metadata=_metadata_of(parquet),
            columns=columns,
            leaves=leaves_of_footer(parquet),
            statistics=StatisticsCollector(
                to_arrow(inside), self._properties.stats_columns, self._properties.num_indexed_columns
            ),
        )
        if len(self._kinds) < _MOST_KINDS:
            self._kinds.append(kind)
        return kind

    def _as_facts(self, file: SourceFile, kind: _Kind, num_rows: int, chunks: Chunks) -> FileFacts:
        if self._record.collect_statistics:
            stats = kind.statistics.of_footer(num_rows, chunks, kind.leaves)
        else:
            stats = json.dumps({"numRecords": num_rows})
        return FileFacts(file=file, columns=kind.columns, num_rows=num_rows, stats=stats)


def changed_folder(root: str, path: str, what: str) -> FolderChanged:
    """Return the error for a file that appeared, vanished or changed."""
    path = shown_path(path)
    return FolderChanged(
        f"The file {path} {what} while {root} was converted to a table. Nothing was committed. Let the writer of "
        "the folder finish or stop it, and run the task again.",
        table=root,
        path=path,
    )


def refused_file(root: str, path: str, what: str, instead: str) -> SchemaMismatch:
    """Return the error for a file that no table can have."""
    return SchemaMismatch(
        f"{root} cannot be converted: the file {path} has {what}, which a table cannot store with Spark's values. "
        f"Nothing was committed. Write the file with {instead}.",
        table=root,
    )
