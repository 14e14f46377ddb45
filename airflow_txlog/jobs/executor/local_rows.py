"""The rows of a source that this process reads: Parquet files, one of our tables, or rows that its caller holds."""

from __future__ import annotations

import abc
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.contract.operations import AnySource, RowsInProcess
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.identities import IdentityColumn
from airflow_txlog.engine.table.schema.rules import RowRules, keeps_as_they_are
from airflow_txlog.engine.table.schema.schema import schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import Staged, TaskRows, stage, type_of_new
from airflow_txlog.jobs.source.handed_out import HandedOut, numbered_scan, with_identities
from airflow_txlog.jobs.source.held_rows import GivenRows, given_rows
from airflow_txlog.jobs.source.materialized import MaterializedSource, materialize_scan, plain_columns_of
from airflow_txlog.jobs.source.rows_here import RowsHere, rows_here
from airflow_txlog.process.starting import cores

if TYPE_CHECKING:
    from airflow_txlog.jobs.sql.columns import SchemaJson


@dataclass(frozen=True)
class _PlainRows(abc.ABC):
    """Rows that this process reads, of whichever origin. See `FoundSource`."""

    _context: JobContext

    @property
    @abc.abstractmethod
    def reads_target(self) -> bool:
        """Whether they may be rows of the target."""

    @property
    @abc.abstractmethod
    def columns(self) -> StructType:
        """The source's columns."""

    @abc.abstractmethod
    def _scan(self, *, in_one: bool) -> FileScan:
        """Return the scan of all rows, for one task if `in_one`."""

    @property
    def described(self) -> SchemaJson:
        described: SchemaJson = json.loads(schema_to_json(self.columns))
        return described

    def foresee(self, rules: PlainRules, identities: Collection[IdentityColumn], inside: str | None) -> None:
        columns = with_identities(self.columns, identities)
        kept = replace(rules, table=rules.table.numbered(identities))
        self._context.executor.foresee(lambda: why_not_as_they_are(kept, columns, inside))

    def materialize(self, parameters: Collection[str]) -> MaterializedSource:
        scan = self._scan(in_one=False)
        return materialize_scan(self._context, scan, self.columns, parameters, reads_target=self.reads_target)

    def stage(self, rules: PlainRules, layout: Layout, inside: str | None) -> Staged:
        """Write the rows as they are. Raises NeedsSpark."""
        context = self._context
        self.foresee(rules, (), inside)
        # A single task writes one file per partition; several tasks would each write a file per partition.
        scan = self._scan(in_one=bool(layout.partition_columns))
        is_alone = len(scan.bins) == 1
        scan, layout = replace(scan, is_alone=is_alone), replace(layout, in_halves=is_alone and cores() > 1)
        return stage(context, layout, [(TaskRows(Task(source=scan)), type_of_new(layout))])


@dataclass(frozen=True)
class FoundHere(_PlainRows):
    """A source of Parquet files, or one of our tables."""

    _found: RowsHere

    @property
    def reads_target(self) -> bool:
        return self._found.reads_target

    @property
    def columns(self) -> StructType:
        return self._found.columns

    def values_of(self, name: str, what: str) -> pa.ChunkedArray:
        scan = self._scan(in_one=False)
        only = replace(scan, schema=pa.schema([scan.schema.field(name)]))
        return self._context.executor.run([Task(source=only)], only.output_schema, what).column(0)

    def _scan(self, *, in_one: bool) -> FileScan:
        return self._found.scan(self._context, in_one=in_one)


@dataclass(frozen=True)
class FoundNumbered(_PlainRows):
    """The rows of a materialized source with values of identity columns."""

    _found: MaterializedSource
    _handed: HandedOut

    @property
    def reads_target(self) -> bool:
        return self._found.reads_target

    @property
    def columns(self) -> StructType:
        return self._found.columns

    def values_of(self, name: str, what: str) -> pa.ChunkedArray:
        raise NotImplementedError("numbered rows are no keys")

    def foresee(self, rules: PlainRules, identities: Collection[IdentityColumn], inside: str | None) -> None:
        super().foresee(rules, self._handed.identities, inside)

    def _scan(self, *, in_one: bool) -> FileScan:
        return numbered_scan(self._context, self._found, self._handed, in_one=in_one)


@dataclass(frozen=True)
class FoundInProcess(_PlainRows):
    """Rows that the caller of the job holds."""

    _found: GivenRows

    @property
    def reads_target(self) -> bool:
        return False

    @property
    def columns(self) -> StructType:
        return self._found.columns

    def values_of(self, name: str, what: str) -> pa.ChunkedArray:
        return self._found.values_of(name)

    def _scan(self, *, in_one: bool) -> FileScan:
        return self._found.scan(self._context, 1 if in_one else self._context.parallelism)


def why_not_as_they_are(rules: PlainRules, given: StructType, inside: str | None) -> str | None:
    """Return why rows with these columns are no rows of the table as they are; None if they are.

    `inside`: a condition that each of them must satisfy.
    """
    schema = rules.schema
    lacks = any(not field.nullable and given.find(field.name) is None for field in schema)
    unknown = any(schema.find(field.name) is None for field in given)
    if inside is not None or lacks or unknown or not keeps_as_they_are(rules.table, schema, given):
        return "the source's columns are not those of the table, in the same types"
    return None


def found_here(
    context: JobContext, described: AnySource, argument: str, target: Snapshot | None
) -> FoundHere | FoundInProcess | str:
    """Find a source that this process can read; return the reason if only Spark can."""
    if isinstance(described, RowsInProcess):
        return FoundInProcess(context, given_rows(context, argument, target))
    # Of a source of keys one column is read, of any other source all columns.
    found = rows_here(context, described, argument, target, reads_all=argument == "source")
    return FoundHere(context, found) if isinstance(found, RowsHere) else found.why


def stored_columns_of(described: Mapping[str, Any]) -> pa.Schema | None:
    """Return the columns that files with the rows of a source hold, by Spark's JSON of its columns; None for types that
    only Spark has."""
    columns = plain_columns_of(described)
    return None if columns is None else to_arrow(columns)


@dataclass(frozen=True, kw_only=True)
class PlainRules:
    """The rules of a table that has no rule in SQL."""

    schema: StructType
    table: RowRules
