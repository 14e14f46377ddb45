"""The interface of a job's executors. The planner chooses an executor once; an operation never branches on its kind.

The invariant: every executor returns the same rows and refuses the same inputs. Work that an executor cannot do ends
the job's try on it with NeedsSpark, and the planner continues with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from airflow_txlog.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.contract.operations import AnySource
    from airflow_txlog.datafiles.parquet.writing import Layout
    from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
    from airflow_txlog.engine import Snapshot
    from airflow_txlog.engine.log.actions import Metadata
    from airflow_txlog.engine.table.schema.identities import IdentityColumn
    from airflow_txlog.engine.table.schema.rules import RowRules
    from airflow_txlog.engine.table.schema.types import StructType
    from airflow_txlog.jobs.context import JobContext
    from airflow_txlog.jobs.files.scan import BinTask
    from airflow_txlog.jobs.files.stage import Staged, Work
    from airflow_txlog.jobs.source.handed_out import HandedOut
    from airflow_txlog.jobs.source.materialized import MaterializedSource
    from airflow_txlog.jobs.sql.columns import SchemaJson
    from airflow_txlog.jobs.sql.gate import SqlGate
    from airflow_txlog.storage import Store

T = TypeVar("T")


class NeedsSpark(Exception):
    """Work needs Spark, and the executor has none. `args[0]` completes the sentence "Spark is needed: ".

    `unread` is the error of a file of the source that Arrow cannot decode but Spark's own reader might. `for_value`:
    the job has met a value that only Spark computes.
    """

    def __init__(self, why: str, unread: InvalidInput | None = None, *, for_value: bool = False) -> None:
        super().__init__(why)
        self.unread = unread
        self.for_value = for_value


class FoundSource(Protocol):
    """A source that was found, but whose rows are not read yet."""

    @property
    def reads_target(self) -> bool:
        """Whether its rows may be rows of the target."""

    @property
    def columns(self) -> StructType:
        """Its columns; void for a type that no table can have."""

    @property
    def described(self) -> SchemaJson:
        """Spark's JSON of its columns."""

    def values_of(self, name: str, what: str) -> pa.ChunkedArray:
        """Return the values of one of the columns. `what` names the work in errors."""

    def foresee(self, rules: Any, identities: Collection[IdentityColumn], inside: str | None) -> None:
        """Raise NeedsSpark if only Spark can write the rows once they have values of these identity columns."""

    def materialize(self, parameters: Collection[str]) -> MaterializedSource:
        """Read the rows, once, and write them to files. `parameters` are those that its SQL has used."""

    def stage(self, rules: Any, layout: Layout, inside: str | None) -> Staged:
        """Write the rows, all within the condition `inside`, as new rows of a table with these accepted `rules`."""


class AcceptedRules(Protocol):
    """The rules of a table, every text of them accepted by the executor."""

    @property
    def schema(self) -> StructType:
        """The table's columns."""

    @property
    def table(self) -> RowRules:
        """The rules as the table's metadata states them."""


class Executor(Protocol):
    """Does the work of one job. Used by one thread."""

    bytes_allowed: int
    """How many bytes of files a job reads at once in this process."""
    most_sent_rows: int
    """How many rows may travel to the tasks."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at once."""

    @property
    def spark(self) -> SparkSession:
        """The session. Raises NeedsSpark without one."""

    def by_spark(self, why: str, evaluate: Callable[[], T]) -> T:
        """Return what `evaluate` returns by Spark. Raises NeedsSpark without one, for the reason `why`."""

    def foresee(self, why_not: Callable[[], str | None]) -> None:
        """Raise NeedsSpark before anything is written, if there is no Spark and `why_not` returns what needs one."""

    def admit(self, sizes: Sequence[int | None], store: Store) -> None:
        """Raise NeedsSpark if files of this store, whose rows cost `sizes` bytes to read, need Spark."""

    def runs_here(self, weight: int) -> bool:
        """Return whether tasks that read files of this weight, and no Spark frame, run in this process."""

    def run(self, tasks: Sequence[BinTask], schema: pa.Schema, what: str) -> pa.Table:
        """Return the tasks' results for all bins, evaluated once. Raises the first TxlogError; `what` is for errors."""

    def write(self, context: JobContext, work: Work) -> pa.Table:
        """Write the files of the work, all at once; return a record of each."""

    def rows_sharing_values(self, context: JobContext, scan: FileScan, columns: StructType) -> tuple[int, int]:
        """Return the number of rows of the scan, and of those with values that another row has in all `columns`, which
        the scan reads. A row with a null equals no row.
        """

    def answered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, text: str, name: str
    ) -> MaterializedSource:
        """Return the rows of a source with whether a condition that is not plain is TRUE, in a column `name`.

        Raises InvalidPredicate.
        """

    @property
    def knows_settings(self) -> bool:
        """Whether `setting` knows every setting that Spark would read files under."""

    def setting(self, name: str, default: str) -> str:
        """Return a setting of Spark SQL under which the job's texts are read."""

    def watched(self, step: str, log: Callable[[str], None]) -> AbstractContextManager[None]:
        """Log the progress of the block while it runs long."""

    def now(self) -> Mapping[str, Any]:
        """Return the current time, as `CurrentTime.values` has it. Raises NeedsSpark for the clocks of most zones."""

    def instants(self, walls: Sequence[int]) -> list[int | None]:
        """Return the instants (µs since 1970) at which clocks of the job's time zone show these times, also in µs."""

    def source(
        self, context: JobContext, gate: SqlGate, described: AnySource, argument: str, target: Snapshot | None
    ) -> FoundSource:
        """Find a source. `argument` is its name in errors; `target` is the job's table, which it may read."""

    def numbered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, handed: HandedOut
    ) -> FoundSource:
        """Return the rows of a materialized source with values of identity columns, as a source."""

    def accepted_rules(self, context: JobContext, metadata: Metadata) -> AcceptedRules:
        """Return the rules of a table with this metadata, for `FoundSource.stage`."""

    def stored_columns(self, described: dict[str, Any]) -> pa.Schema:
        """Return the columns that files with the rows of a source hold, by Spark's JSON of its columns."""

    def check_columns(self, described: dict[str, Any]) -> None:
        """Raise an error if this is not Spark's JSON of columns."""
