"""CONVERT: a folder of Parquet files becomes a table in one commit, and no file is moved.

The job takes the files that Spark reads from the folder, and columns and statistics from their footers. The invariants:
the table's rows are the rows that Spark reads from the folder with mergeSchema, or an error names a file; and the
folder is the same after the last footer was read as before the first one.
Source: delta-spark, ConvertToDeltaCommand and DeltaOperations.Convert; Spark, StructType.merge.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Convert
from airflow_txlog.contract.wording import files_text, plural
from airflow_txlog.datafiles.partitioning import encode_add_path, partition_string
from airflow_txlog.engine import Transaction
from airflow_txlog.engine.commit.content.property_names import of_new_table
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.table.columns.partitions import parse_partition_values
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY
from airflow_txlog.engine.table.schema.ddl import type_of_ddl
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructType
from airflow_txlog.engine.upkeep.vacuum_plan import is_leftover
from airflow_txlog.errors import (
    InvalidJobSpec,
    InvalidProperty,
    OutsideTable,
    PartitionMismatch,
    SchemaMismatch,
    SourceNotFound,
    TableAlreadyExists,
)
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.erased_subjects import guard_of
from airflow_txlog.jobs.operations.convert.file_facts import FileFacts, FileReader, changed_folder, refused_file
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.jobs.source.listing import SUMMARIES, SourceFile, as_deep_as_spark, files_of, is_hidden, table_among
from airflow_txlog.jobs.source.merging import merged
from airflow_txlog.locations import PRIVATE_PREFIX, shown_path, with_folders_above
from airflow_txlog.storage.base import FileInfo

_AT_ONCE = 8
_MOST_KINDS = 20
_PATHS_SHOWN = 20
# The first bytes of a Parquet file, and of one with an encrypted footer, which is refused by name.
_MAGIC = (b"PAR1", b"PARE")
_PARQUET_NAMES = (".parquet", ".parq", ".pq")
_NOT_YET = {"delta.constraints.": "no row was compared with it", "delta.feature.materialize": "files may lack columns"}


def convert(context: LogContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    # A folder does not show which table its files were of.
    context.table.guard = guard_of(context, every_table=True, may_leave_out=True)
    job, is_dry_run = _Convert(context), context.record(Convert).dry_run or None
    result = job.dry_run() if is_dry_run else run_attempts(context, job.plan, begin_absent=job.begin_absent)
    return dataclasses.replace(
        result, details=dataclasses.replace(result.details, files=job.left_out[:_PATHS_SHOWN], dry_run=is_dry_run)
    )


class _Convert:
    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._record = context.record(Convert)
        self._root_chars = len(context.root) + 1
        self._change: Change | None = None
        self.left_out: list[str] = []
        """The paths of files that the table does not get, ordered."""

    def dry_run(self) -> JobResult:
        """Return the result of a conversion that commits nothing."""
        context = self._context
        if context.table.is_there():
            raise self._is_a_table(context.root)
        self.begin_absent()
        assert self._change is not None
        return context.result(
            is_committed=False,
            version=None,
            read_version=None,
            metrics=self._change.metrics,
            files=self._change.files,
        )

    def plan(self, tx: Transaction) -> Change:
        """Return the change of `begin_absent`. Raises TableAlreadyExists for a folder that is a table."""
        if tx.snapshot is not None:
            raise self._is_a_table(self._context.root)
        assert self._change is not None
        return self._change

    def begin_absent(self) -> Transaction:
        """Return the transaction that creates the table, after all files were read and none has changed."""
        context, described = self._context, self._record
        self._check_properties()
        partitions = self._partitions
        with context.step("list"):
            before = self._listed()
            files = self._files(before)
        self._check_partitions(files)
        values = self._partition_values(files, partitions)
        with context.step("read"):
            footers = FileReader(context, partitions, before).read_all(files)
        schema = self._schema(footers, partitions)
        names = partitions.names
        adds = [
            Add(
                path=encode_add_path(self._relative(footer.file)),
                partition_values=dict(zip(names, of_file, strict=True)),
                size=footer.file.size_bytes,
                modification_time=before[self._relative(footer.file)].modified_ms,
                data_change=True,
                stats=footer.stats,
            )
            for footer, of_file in zip(footers, values, strict=True)
        ]
        visibility = Visibility(names)
        tx = context.table.begin_create(
            schema, names, described.properties, holds_others=any(map(visibility.is_visible, self.left_out))
        )
        with context.step("list"):
            self._check_unchanged(before)
        self._change = self._as_change(adds, partitions, footers)
        return tx

    def _as_change(self, adds: list[Add], partitions: StructType, footers: Sequence[FileFacts]) -> Change:
        self._context.log(
            f"{files_text([add.size for add in adds])} become the table at {self._context.root}, partitioned by "
            f"{', '.join(partitions.names) or 'nothing'}"
        )
        return Change(
            operation="CONVERT",
            parameters={
                "numFiles": len(adds),
                "partitionedBy": json.dumps(partitions.names),
                "collectStats": self._record.collect_statistics,
                "sourceFormat": "parquet",
            },
            adds=adds,
            metrics={
                "numConvertedFiles": len(adds),
                "numOutputRows": sum(footer.num_rows for footer in footers),
                "numOutputBytes": sum(add.size for add in adds),
                "numSkippedFiles": len(self.left_out),
            },
            files={"considered": len(adds) + len(self.left_out), "pruned": 0, "rewritten": 0, "added": len(adds)},
            is_creation=True,
        )

    # --- the folder -------------------------------------------------------------------------------------------------

    def _listed(self) -> dict[str, FileInfo]:
        """Return the files below the folder by their path in it.

        Raises TableAlreadyExists for files of a table, OutsideTable for a link that Spark would follow.
        """
        store, root = self._context.store, self._context.root
        # A conversion that was killed may have left a commit under a temporary name.
        found = {
            info.path: info
            for info in store.walk()
            if not info.path.startswith(PRIVATE_PREFIX) and not is_leftover(info.path)
        }
        link = next((shown_path(path) for path in store.links() if not is_hidden(path.split("/"))), None)
        if link is not None:
            raise OutsideTable(
                f"{root} cannot be converted: {link} in it is a link, or no file. Spark reads the files behind a "
                "link, and a table does not. Nothing was committed. Put the files themselves there, or delete it.",
                table=root,
                path=link,
                link=link,
            )
        mark = f"/{LOG_DIRECTORY}/"
        inner = next((path for path in found if mark in f"/{path}"), None)
        if inner is not None:
            raise self._is_a_table(shown_path(f"{root}/{f'/{inner}'.partition(mark)[0]}".rstrip("/")))
        _, *above = with_folders_above(root)
        around = table_among(above, dataclasses.replace(store.access, allow_absolute_paths=True))
        if around is not None:
            raise self._is_a_table(around)
        return found

    def _files(self, listed: Mapping[str, FileInfo]) -> list[SourceFile]:
        """Return the Parquet files that Spark would read, ordered by path, and note the others."""
        context, root = self._context, self._context.root
        sizes = {f"{root}/{path}": info.size_bytes for path, info in listed.items()}
        chosen = as_deep_as_spark(list(files_of(root, sizes, None, "table_uri", recurses=False)))
        found = [file for file in chosen if file.size_bytes and file.name not in SUMMARIES]
        # The order in which Spark merges schemas.
        files = sorted(filter(self._is_parquet, found), key=lambda file: file.path.encode("utf-16-be", "surrogatepass"))
        for path in map(self._relative, files):
            if shown_path(path) != path:
                raise refused_file(self._context.root, shown_path(path), "a name that is not UTF-8", "a name in UTF-8")
        self.left_out = sorted(map(shown_path, listed.keys() - {self._relative(file) for file in files}))
        if self.left_out:
            more = ", …" if len(self.left_out) > _PATHS_SHOWN else ""
            context.log(
                f"{plural(len(self.left_out), 'file')} left out, because they are hidden, empty, not Parquet, or in a "
                f"folder that names no column: {', '.join(self.left_out[:_PATHS_SHOWN])}{more}"
            )
        if not files:
            raise SourceNotFound(
                f"There is no Parquet file in {root} (yet), so it cannot become a table. Nothing was changed.",
                argument="table_uri",
            )
        return files

    def _is_parquet(self, file: SourceFile) -> bool:
        """Return whether a file claims to be Parquet by its name, or else by its first bytes."""
        if file.name.lower().endswith(_PARQUET_NAMES):
            return True
        try:
            with self._context.store.open_input(self._relative(file)) as source:
                return source.read(4) in _MAGIC
        except FileNotFoundError as error:
            raise changed_folder(self._context.root, self._relative(file), "vanished") from error

    def _check_unchanged(self, before: Mapping[str, FileInfo]) -> None:
        """Raise FolderChanged if the folder is not as it was before."""
        after = self._listed()
        if before == after:
            return
        path = min(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
        what = "appeared" if path not in before else "vanished" if path not in after else "changed"
        raise changed_folder(self._context.root, path, what)

    def _relative(self, file: SourceFile) -> str:
        return file.path[self._root_chars :]

    def _is_a_table(self, place: str) -> TableAlreadyExists:
        root = self._context.root
        where = "it is one already" if place == root else f"there is one at {place}, and no file belongs to two tables"
        return TableAlreadyExists(
            f"{root} cannot be converted to a Delta table: {where}. Nothing was changed.", table=place, retryable=False
        )

    # --- partitions -------------------------------------------------------------------------------------------------

    @cached_property
    def _partitions(self) -> StructType:
        """The columns of `partition_schema`. Raises InvalidJobSpec."""
        text = self._record.partition_schema
        if text is None:
            return StructType(())
        try:
            found = type_of_ddl(f"STRUCT<{text}>")
        except SchemaMismatch:
            found = None
        if isinstance(found, StructType) and all(isinstance(each.type, Primitive | DecimalType) for each in found):
            return found
        raise InvalidJobSpec(
            f"partition_schema is {text!r}, and must be columns with single-valued types, such as "
            '"day DATE, shop STRING". Nothing was read.',
            argument="arguments.partition_schema",
        )

    def _check_partitions(self, files: Sequence[SourceFile]) -> None:
        """Raise PartitionMismatch for folders that name other columns than `partition_schema`, or lie apart."""
        columns = self._partitions
        wanted = sorted(columns.by_name)
        first: dict[tuple[str, ...], str] = {}
        by_folder: dict[str, SourceFile] = {}
        for file in files:
            by_folder.setdefault(file.path.rpartition("/")[0], file)
        for file in by_folder.values():
            names = [name for name, _ in file.values]
            if sorted(name.lower() for name in names) != wanted:
                given = ", ".join(columns.names) or "no columns"
                example = ", ".join(f"{name} STRING" for name in names)
                advice = f' such as partition_schema="{example}", with the right types' if example else ""
                raise PartitionMismatch(
                    f"{self._context.root} cannot be converted: the folders of the file {self._relative(file)} name "
                    f"the columns {', '.join(names) or '(none)'}, and partition_schema has {given}. Nothing was "
                    f"committed. Give all partition columns{advice}.",
                    table=self._context.root,
                )
            first.setdefault((file.above_partitions, *map(str.lower, names)), self._relative(file))
        if len(first) > 1:
            raise PartitionMismatch(
                f"{self._context.root} cannot be converted: the files {' and '.join(list(first.values())[:2])} have "
                "their partitions in different folders or in another order, which Spark does not read together: one "
                "may hold copies of the other's rows. Nothing was committed. Move one of them away.",
                table=self._context.root,
            )

    def _partition_values(self, files: Sequence[SourceFile], columns: StructType) -> list[tuple[str | None, ...]]:
        """Return the partition values of each file, as the log has them. Raises PartitionMismatch."""
        by_file = [{name.lower(): value for name, value in file.values} for file in files]
        found: list[list[str | None]] = []
        for column in columns:
            texts = pa.array([values[column.name.lower()] for values in by_file], pa.string())
            parsed = parse_partition_values(texts, column.type, time_zone=self._context.spec.time_zone)
            if parsed.known.false_count:
                bad = files[parsed.known.to_pylist().index(False)]
                raise PartitionMismatch(
                    f"{self._context.root} cannot be converted: the folder of the file {self._relative(bad)} names a "
                    f"value of {column.name!r} that is no {column.type}. Nothing was committed. Rename the folder, or "
                    "give the column another type in partition_schema.",
                    table=self._context.root,
                )
            found.append(partition_string(parsed.values))
        return list(zip(*found, strict=True)) if found else [()] * len(files)

    def _schema(self, footers: Sequence[FileFacts], partitions: StructType) -> StructType:
        """Return the table's columns: those of all files, and of folders, as Spark orders them."""
        named = [(self._relative(footer.file), footer.columns) for footer in footers]
        in_files = merged(self._context.root, named, besides=self._partitions.by_name)
        # A column that folders and files name has the folders' values, in the place that it has in the files.
        fields = [partitions.find(field.name) or field for field in in_files]
        fields += [field for field in partitions if in_files.find(field.name) is None]
        return StructType(tuple(fields))

    def _check_properties(self) -> None:
        for name, value in of_new_table(self._record.properties, self._context.root).items():
            reasons = (why for start, why in _NOT_YET.items() if name.lower().startswith(start))
            is_mapping = name == MODE_PROPERTY and value.lower() != "none"
            why = "the files have their columns' own names" if is_mapping else next(reasons, None)
            if why is not None:
                raise InvalidProperty(
                    f"{self._context.root} cannot be converted with the property {name}: {why}. Nothing was read. Set "
                    "it on the table afterwards.",
                    table=self._context.root,
                    name=name,
                    value=value,
                )
