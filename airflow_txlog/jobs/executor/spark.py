"""A Spark session does a job's work, by the same tasks as Arrow, or by queries if tasks cannot do it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_txlog.contract.operations import AnySource, ByKeys, Merge, Operation, Write
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.identities import IdentityColumn
from airflow_txlog.engine.table.schema.rules import keeps_as_they_are
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import InvalidInput
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import FrameRows, over_bins, scan_frame, shuffled_towards, union_of, write_work
from airflow_txlog.jobs.files.scan import BinTask, planned_by, run_here, work_of
from airflow_txlog.jobs.files.stage import NewRows, Staged, TaskRows, Work, stage, type_of_new
from airflow_txlog.jobs.source.answered import answered
from airflow_txlog.jobs.source.frames import Source, build_source, materialize, numbered_rows, stored_columns
from airflow_txlog.jobs.source.handed_out import HandedOut
from airflow_txlog.jobs.source.materialized import MaterializedSource, columns_of
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.spark.executors import MERGE_MEMORY_MIB, TASK_MEMORY_MIB, check_executors
from airflow_txlog.jobs.spark.progress import watched
from airflow_txlog.jobs.spark.session import default_parallelism, is_local
from airflow_txlog.jobs.spark.shipping import ship
from airflow_txlog.jobs.sql.columns import SchemaJson
from airflow_txlog.jobs.sql.current_time import instants_of, now_of
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import schema_of_json
from airflow_txlog.jobs.sql.table_rules import Rules, accepted_rules, fit_new_rows, only_inside
from airflow_txlog.locations import scheme_of
from airflow_txlog.storage import Store
from airflow_txlog.storage.limits import SMALL_JOB

T = TypeVar("T")


class SparkExecutor:
    """See `Executor`. The session must be in the job's time zone."""

    most_sent_rows = 10_000
    knows_settings = True

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.parallelism = default_parallelism(spark)
        self.bytes_allowed = SMALL_JOB.allowed

    def prepare(self, context: JobContext) -> None:
        """Make the cluster ready for the job's tasks. Raises UnfitExecutor."""
        with context.step("prepare"):
            ship(self.spark)
            task_mib = MERGE_MEMORY_MIB if _joins(context.operation.acting) else TASK_MEMORY_MIB
            scheme, conf = scheme_of(context.root), context.spec.spark_conf
            check_executors(self.spark, self.parallelism, scheme, context.log, task_mib, conf)

    def check_decodes(self, error: InvalidInput) -> None:
        """Raise the error of a file that Arrow cannot decode if Spark cannot decode it either."""
        try:
            self.spark.read.parquet(error.facts["unread_by_arrow"]).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as found:
            raise error from found

    def by_spark(self, why: str, evaluate: Callable[[], T]) -> T:
        return evaluate()

    def foresee(self, why_not: Callable[[], str | None]) -> None:
        """Do nothing: whatever needs Spark has it."""

    def admit(self, sizes: Sequence[int | None], store: Store) -> None:
        """Do nothing: no file is too large."""

    def runs_here(self, weight: int) -> bool:
        # A Spark on this machine alone would only start more processes here and pass the work to them.
        return weight <= self.bytes_allowed and is_local(self.spark)

    def run(self, tasks: Sequence[BinTask], schema: pa.Schema, what: str) -> pa.Table:
        if self.runs_here(sum(task.weight for task in tasks)):
            return run_here(work_of(tasks), schema, what, self.parallelism)
        planned_by(tasks)
        return collect(union_of(over_bins(self.spark, task, schema) for task in tasks), what)

    def write(self, context: JobContext, work: Work) -> pa.Table:
        return write_work(context, work)

    def rows_sharing_values(self, context: JobContext, scan: FileScan, columns: StructType) -> tuple[int, int]:
        frame = scan_frame(context, scan)
        frame = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        sizes = frame.groupBy(*frame.columns).agg(F.count(F.lit(1)).alias("rows"))
        are_values = reduce(lambda one, other: one & other, (F.col(name).isNotNull() for name in frame.columns))
        shared = F.when(are_values & (F.col("rows") > 1), F.col("rows")).otherwise(F.lit(0))
        totals = sizes.agg(F.coalesce(F.sum("rows"), F.lit(0)), F.coalesce(F.sum(shared), F.lit(0)))
        (found,) = collect(totals.toDF("rows", "shared"), "look for rows that are not unique").to_pylist()
        return found["rows"], found["shared"]

    def answered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, text: str, name: str
    ) -> MaterializedSource:
        return answered(context, gate, source, text, name)

    def setting(self, name: str, default: str) -> str:
        return str(self.spark.conf.get(name, default))

    def watched(self, step: str, log: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        return watched(self.spark, step, log)

    def now(self) -> Mapping[str, Any]:
        return now_of(self.spark)

    def instants(self, walls: Sequence[int]) -> list[int | None]:
        return instants_of(self.spark, walls)

    def source(
        self, context: JobContext, gate: SqlGate, described: AnySource, argument: str, target: Snapshot | None
    ) -> FoundBySpark:
        return FoundBySpark(context, gate, build_source(context, gate, target, described, argument))

    def numbered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, handed: HandedOut
    ) -> FoundBySpark:
        rows = Source(frame=numbered_rows(context, source, handed), reads_target=source.reads_target)
        return FoundBySpark(context, gate, rows)

    def accepted_rules(self, context: JobContext, metadata: Metadata) -> Rules:
        return accepted_rules(context, metadata)

    def stored_columns(self, described: dict[str, Any]) -> pa.Schema:
        return stored_columns(schema_of_json(described))

    def check_columns(self, described: dict[str, Any]) -> None:
        schema_of_json(described)


def _joins(operation: Operation) -> bool:
    return isinstance(operation, Merge | ByKeys) or (
        isinstance(operation, Write) and operation.replace_using is not None
    )


@dataclass(frozen=True)
class FoundBySpark:
    """A source of any kind. See `FoundSource`."""

    _context: JobContext
    _gate: SqlGate
    _found: Source

    @property
    def reads_target(self) -> bool:
        return self._found.reads_target

    @property
    def columns(self) -> StructType:
        return columns_of(self.described)

    @property
    def frame(self) -> DataFrame:
        return self._found.frame

    @property
    def described(self) -> SchemaJson:
        described: SchemaJson = self._found.frame.schema.jsonValue()
        return described

    def values_of(self, name: str, what: str) -> pa.ChunkedArray:
        frame = self._found.frame
        return collect(frame.select(frame[quoted(name)]), what).column(0)

    def foresee(self, rules: Rules, identities: Collection[IdentityColumn], inside: str | None) -> None:
        """Do nothing: Spark is here."""

    def materialize(self, parameters: Collection[str]) -> MaterializedSource:
        return materialize(self._context, self._found, parameters)

    def stage(self, rules: Rules, layout: Layout, inside: str | None) -> Staged:
        """Write the rows. Raises the errors of `fit_new_rows`."""
        rows = self._new_rows(rules, layout, inside)
        with shuffled_towards(self._context, layout.target_bytes):
            return stage(self._context, layout, [(rows, type_of_new(layout))])

    def _new_rows(self, rules: Rules, layout: Layout, inside: str | None) -> NewRows:
        """Return a frame, or the task that gives the same rows without it."""
        context, source = self._context, self._found
        rows = fit_new_rows(source.frame, rules, ansi=context.is_ansi)
        if inside is not None:
            return FrameRows(only_inside(self._gate, context.view_name(), rows, inside))
        if rules.must_check or layout.partition_columns:
            return FrameRows(rows)
        scan = source.scan()
        if scan is None or not keeps_as_they_are(rules.table, rules.schema, from_arrow(scan.schema)):
            return FrameRows(rows)
        return TaskRows(Task(source=scan))
