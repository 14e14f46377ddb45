"""Arrow in this process does a job's work, if it is certain to give Spark's results."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import AnySource
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.scan_and_write import RECORD_SCHEMA, FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import DecimalType, StructType
from airflow_txlog.errors import CorruptTable, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.executor.base import NeedsSpark
from airflow_txlog.jobs.files.scan import BinTask, run_here, work_of
from airflow_txlog.jobs.files.stage import WRITING, Work
from airflow_txlog.jobs.spark.session import has_settings_of_its_own
from airflow_txlog.jobs.sql.current_time import now_in_utc
from airflow_txlog.jobs.sql.expectations import why_spark_judges
from airflow_txlog.jobs.sql.plain_checks import rules_of_spark
from airflow_txlog.jobs.sql.scope import PLAIN_TYPES
from airflow_txlog.locations import LOCAL, scheme_of
from airflow_txlog.process.starting import cores
from airflow_txlog.storage import Store
from airflow_txlog.storage.kept_files import KEPT_BYTES
from airflow_txlog.storage.limits import SMALL_JOB, weight_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.jobs.executor.base import AcceptedRules, FoundSource
    from airflow_txlog.jobs.source.handed_out import HandedOut
    from airflow_txlog.jobs.source.materialized import MaterializedSource
    from airflow_txlog.jobs.sql.gate import SqlGate

T = TypeVar("T")

THREADS = 4
"""How many bins are processed at once without Spark, at most."""
# Reading less from a local disk takes a few milliseconds. Two threads would spend as many waiting for each other.
_BYTES_OF_THREAD = 1024 * 1024


def threads_for(root: str, size_bytes: int) -> int:
    """Return how many bins to process at once, for a job that reads this many bytes of data files.

    There is one for each core. In a store there are at least two. There is one more than there are cores if the store
    cannot keep all of the files in memory, because tasks then wait for files.
    """
    if scheme_of(root) == LOCAL:
        return min(THREADS, cores())
    return min(THREADS, max(2, cores() + (size_bytes > KEPT_BYTES)))


class LocalExecutor:
    """See `Executor`. It reads no more than `bytes_allowed` at once."""

    most_sent_rows = sys.maxsize

    def __init__(self, spec: JobSpec) -> None:
        self._root = spec.table_uri
        self._is_local = scheme_of(spec.table_uri) == LOCAL
        # Another process could not read rows of this one, so that it does the work whatever the table's size.
        self.bytes_allowed = sys.maxsize if spec.operation.holds_rows else SMALL_JOB.allowed
        self.bytes_planned = 0
        """The most that was read at once."""
        self._time_zone = spec.time_zone
        self._settings = spec.spark_conf

    @property
    def parallelism(self) -> int:
        return threads_for(self._root, self.bytes_planned)

    @property
    def spark(self) -> SparkSession:
        self.refuse("a step of the job is a query")

    def by_spark(self, why: str, evaluate: Callable[[], T]) -> T:
        self.refuse(why)

    def refuse(self, why: str) -> NoReturn:
        """Raise NeedsSpark: `why` is the rest of the sentence "Spark is needed: "."""
        raise NeedsSpark(why)

    def foresee(self, why_not: Callable[[], str | None]) -> None:
        why = why_not()
        if why is not None:
            self.refuse(why)

    def admit(self, sizes: Sequence[int | None], store: Store) -> None:
        weight = weight_of(sizes, is_remote=store.is_remote)
        if weight > self.bytes_allowed:
            self.refuse(
                f"{plural(len(sizes), 'file')} of {weight} bytes are to be read, and {SMALL_JOB.setting} allows "
                f"{self.bytes_allowed} (a tiny file, and one whose rows take much memory, counts more than on disk)"
            )
        self.bytes_planned = max(self.bytes_planned, sum(size or 0 for size in sizes))

    def runs_here(self, weight: int) -> bool:
        return True

    def run(self, tasks: Sequence[BinTask], schema: pa.Schema, what: str) -> pa.Table:
        threads = self.parallelism
        if self._is_local:
            threads = min(threads, 1 + sum(task.weight for task in tasks) // _BYTES_OF_THREAD)
        return run_here(work_of(tasks), schema, what, threads)

    def write(self, context: JobContext, work: Work) -> pa.Table:
        return self.run(work.tasks, RECORD_SCHEMA, WRITING)

    def rows_sharing_values(self, context: JobContext, scan: FileScan, columns: StructType) -> tuple[int, int]:
        for field in columns:
            is_plain = field.type in PLAIN_TYPES or isinstance(field.type, DecimalType)
            if not is_plain or field.is_char or field.is_collated:
                self.refuse(f"the values of the column {field.name} are compared in its own way")
        rows = self.run([Task(source=scan)], scan.output_schema, "look for rows that are not unique")
        # By number: Arrow would take a name that begins with a dot for a path.
        names = [f"c{number}" for number in range(rows.num_columns)]
        sizes = rows.rename_columns(names).drop_null().group_by(names).aggregate([([], "count_all")])
        shared = sizes.filter(pc.greater(sizes.column("count_all"), 1)).column("count_all")
        return rows.num_rows, pc.sum(shared, min_count=0).as_py()

    def answered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, text: str, name: str
    ) -> MaterializedSource:
        self.refuse("a condition on the source's rows is more than a plain one")

    @property
    def knows_settings(self) -> bool:
        """False if the installed Spark has a file of settings."""
        return not has_settings_of_its_own()

    def setting(self, name: str, default: str) -> str:
        """Return a setting from the job's own: there are no others."""
        return self._settings.get(name, default)

    def watched(self, step: str, log: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def now(self) -> Mapping[str, Any]:
        if self._time_zone != "UTC":
            self.refuse(f"its SQL names the current time, in {self._time_zone}")
        return now_in_utc()

    def instants(self, walls: Sequence[int]) -> list[int | None]:
        self.refuse(f"times without a zone are to be read as those of {self._time_zone}")

    def source(
        self, context: JobContext, gate: SqlGate, described: AnySource, argument: str, target: Snapshot | None
    ) -> FoundSource:
        from airflow_txlog.jobs.executor.local_rows import found_here  # noqa: PLC0415 - only with a source

        found = found_here(context, described, argument, target)
        if isinstance(found, str):
            self.refuse(found)
        return found

    def numbered(
        self, context: JobContext, gate: SqlGate, source: MaterializedSource, handed: HandedOut
    ) -> FoundSource:
        from airflow_txlog.jobs.executor.local_rows import FoundNumbered  # noqa: PLC0415

        return FoundNumbered(context, source, handed)

    def accepted_rules(self, context: JobContext, metadata: Metadata) -> AcceptedRules:
        from airflow_txlog.jobs.executor.local_rows import PlainRules  # noqa: PLC0415

        schema = table_schema(metadata, context.root)
        rules = rules_of_spark(context, schema, read_rules(metadata, schema, context.root))
        why = why_spark_judges(context, schema)
        if why is not None:
            self.refuse(why)
        if rules.has_texts or rules.defaults:
            self.refuse("the table has constraints, generated columns, defaults or lengths of text")
        return PlainRules(schema=schema, table=rules)

    def stored_columns(self, described: dict[str, Any]) -> pa.Schema:
        from airflow_txlog.jobs.executor.local_rows import stored_columns_of  # noqa: PLC0415

        columns = stored_columns_of(described)
        if columns is None:
            self.refuse("an earlier try has written down a source with columns of types that only Spark knows")
        return columns

    def check_columns(self, described: dict[str, Any]) -> None:
        try:
            parse_schema(json.dumps(described))
        except (CorruptTable, UnsupportedFeature) as error:
            raise ValueError("no schema of a table") from error
