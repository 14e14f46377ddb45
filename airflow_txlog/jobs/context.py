"""The state that all steps of one job share: its executor, its table, its settings, its current time and its log.

The invariant: a job has one id, which is part of the name of everything it stages.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import Details, JobResult, JobSpec, Lineage
from airflow_txlog.contract.operations import Incremental, LimitedOperation, Operation
from airflow_txlog.contract.operations.changes import SourceRange
from airflow_txlog.datafiles.parquet.judging import Judged
from airflow_txlog.datafiles.parquet.output import WrittenRows
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import DeltaTable, Snapshot, Transaction
from airflow_txlog.engine.commit.content.met import NONE_MET, Meetings
from airflow_txlog.errors import InvalidInput
from airflow_txlog.exactly_once.transactions import Seal, folder_named, seal_of, work_folder
from airflow_txlog.process import progress
from airflow_txlog.storage import Store
from airflow_txlog.storage.limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_txlog.engine.table.changes.versions import VersionChanges
    from airflow_txlog.jobs.executor.base import Executor
    from airflow_txlog.jobs.resume.attempts import Change
    from airflow_txlog.jobs.sql.current_time import CurrentTime

Log = Callable[[str], None]

Record = TypeVar("Record", bound=Operation)

Plan = Callable[[Transaction], "Change"]
"""Reads through a transaction, stages, and returns the change to commit."""

MOST_LINEAGE_BYTES = 32_768
"""The size above which lineage is left out of `JobResult.details`."""


@dataclass(frozen=True, kw_only=True)
class SavedSource:
    """A materialized source: its files, the parameters used, and Spark's JSON of the source's columns.

    `num_duplicates`: how many rows deduplication has left out; None as long as it has not run.
    """

    files: tuple[StagedFile, ...]
    schema: dict[str, Any]
    parameters: tuple[str, ...]
    num_duplicates: int | None = None


@dataclass(kw_only=True)
class SavedInputs:
    """The inputs that were evaluated once for all attempts and tries of this work. Its saved work keeps them.

    `reads_target`: rows of the source may be the target's, so the next attempt evaluates it again. `source_schema` is
    Spark's JSON of the columns of a source whose rows are staged as the table's own.
    """

    source: SavedSource | None = None
    reads_target: bool = False
    source_schema: dict[str, Any] | None = None
    num_keys_given: int = 0
    judged: Judged = field(default_factory=Judged)
    """How the expectations judged the rows of the source."""
    elsewhere: tuple[StagedFile, ...] = ()
    """Files with rows for another table: those that an expectation quarantines, or samples of a dry run."""
    range: SourceRange | None = None
    """The versions of the source that an increment processes."""
    tombstones: int | None = None
    """The manifest of the tombstones to which the findings so far belong; None if there was none."""


class StepTimes:
    """How long each step of a job took, in the order in which they ended; a step that ran twice occurs twice."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block, also when it fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._taken.append((name, round(time.perf_counter() - start, 3)))

    def seconds(self, name: str) -> float:
        """Return the total seconds of the steps of this name so far."""
        return sum(seconds for each, seconds in self._taken if each == name)

    def as_json(self) -> list[dict[str, Any]]:
        """Return the steps as `JobResult.steps` has them."""
        return [{"name": name, "seconds": seconds} for name, seconds in self._taken]


@dataclass(kw_only=True)
class LogContext:
    """One running job, without the parts that need Spark. Used by one thread."""

    spec: JobSpec
    table: DeltaTable
    """The job's table, opened once with its connection's settings. Nothing is read before a step needs it."""
    log: Log
    clock: Clock = SYSTEM_CLOCK
    times: StepTimes = field(default_factory=StepTimes)
    tables_read: list[tuple[DeltaTable, Snapshot]] = field(default_factory=list)
    """The tables that are read at their newest version, the job's own and its sources', with the snapshot of each."""
    versions_read: list[tuple[DeltaTable, Snapshot]] = field(default_factory=list)
    """The tables that sources read at a version that they name, each with its snapshot."""
    lineage: Lineage = field(default_factory=Lineage)
    """Facts about the data that the job has found."""
    met: Meetings = NONE_MET
    """The other commits that the job's commits have met."""
    around: Callable[[Plan], Plan] | None = None
    """Returns the plan of an attempt that also does what the job adds to each: to check, and to commit."""
    saved_files: tuple[str, ...] = ()
    """The files of its saved work: the memory, and the source."""
    kept_inputs: frozenset[str] = frozenset()
    """Those that stay when it ends, because a staged change may be made again from them."""
    run: Callable[[JobSpec], JobResult] | None = None
    """Runs another job on the same table, in this process, with a Spark if it needs one. For `Operation.runs_jobs`."""

    @property
    def operation(self) -> Operation:
        return self.spec.operation

    def record(self, kind: type[Record]) -> Record:
        """Return the job's operation, as the record type that the caller expects."""
        operation = self.operation
        assert isinstance(operation, kind)
        return operation

    @property
    def root(self) -> str:
        """The table's canonical URI."""
        return self.table.uri

    @property
    def store(self) -> Store:
        """The table's store, which holds every file of the job."""
        return self.table.store

    @property
    def limits(self) -> Limits:
        return self.store.limits

    @property
    def seal(self) -> Seal | None:
        """The signatures of this work's tries; None if no saved work is trusted."""
        return seal_of(self.root, self.spec.application, self.spec.saved_work_key)

    @property
    def work_folder(self) -> str | None:
        """The folder, inside the table, that all tries of this work share; None if no saved work is trusted."""
        return work_folder(self.root, self.spec.application, self.spec.saved_work_key)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block as a step of the result, also when it fails, and report it as the current one."""
        with self.times.step(name), progress.step(name):
            yield

    def result(
        self,
        *,
        is_committed: bool,
        version: int | None,
        read_version: int | None,
        metrics: Mapping[str, int] | None = None,
        files: Mapping[str, int] | None = None,
        attempts: int = 1,
    ) -> JobResult:
        """Return the job's result; without a commit there was nothing to do."""
        # The result must fit in the room that the job's process has reserved, however many columns there are.
        is_short = len(json.dumps(vars(self.lineage))) <= MOST_LINEAGE_BYTES
        return JobResult(
            status="committed" if is_committed else "nothing_to_do",
            operation=self.spec.operation.name,
            table_uri=self.spec.table_uri,
            version=version,
            read_version=read_version,
            metrics=dict(metrics or {}),
            files=dict(files or {}),
            steps=self.times.as_json(),
            attempts=attempts,
            details=Details(
                met=self.met.as_json(), lineage=self.lineage if is_short and self.lineage != Lineage() else None
            ),
        )

    def step_ms(self, name: str) -> int:
        """Return the milliseconds of the steps of this name so far."""
        return int(self.times.seconds(name) * 1000)


@dataclass(frozen=True, kw_only=True)
class FixedTexts:
    """A job's operation, with SQL texts that take the current time as a parameter, and the parameters of these texts.

    `bare` are the replaced names without parentheses: the author could have meant a column of that name.
    """

    operation: Operation
    parameters: dict[str, Any]
    bare: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class JobContext(LogContext):
    """One running job, with the executor that does its work. Used by one thread."""

    executor: Executor
    current_time: CurrentTime
    """The time in the job's texts and the table's rules: of its start, or of the earlier try that it continues."""
    texts: FixedTexts
    """The author's texts, with the current time fixed."""
    is_spark_here: bool = True
    """Whether Spark reads this machine's disk."""
    job_id: str = field(init=False)
    views: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    """The session's variables that hold values of parameters; `drop_views` drops them with the views."""
    saved_inputs: SavedInputs = field(default_factory=SavedInputs)
    arrow_error: InvalidInput | None = None
    """Why Arrow could not decode a file of the source: Spark reads the source by its own reader then."""
    leaves_values_to_spark: bool = False
    """Whether the job has met a value that only Spark computes. Then it evaluates nothing that may meet one again."""
    written_rows: WrittenRows | None = None
    """The rows of the source that this process has materialized and still has."""
    has_inputs: bool = False
    """Whether this job may have put a file into its inputs folder."""
    is_resumed: bool = False
    """Whether it continues from the saved work of an earlier try, and so uses its inputs and its current time."""
    num_elsewhere: int | None = None
    """How many rows this process has appended to another table; None if it has not done so."""
    judges_source: bool = False
    """Whether `expect_or_drop` judges the rows of the source before they meet the table, and not the new rows."""
    is_continued: bool = False
    """Whether this process has tried it without Spark before."""
    columns_taken: frozenset[str] | None = None
    """The lower-case names of the columns that are taken from the source; None for all."""
    commits_read: tuple[tuple[str, int, int], list[VersionChanges]] | None = None
    """The commits of a range (of a table, after a version, up to a version) that was read last."""
    _over_range: tuple[Operation, SourceRange, Operation] | None = None

    def __post_init__(self) -> None:
        self.job_id = self.clock.unique_id().replace("-", "")[:16]

    def go_on_from(self, tried: JobContext) -> None:
        """Become the job that was tried without Spark: its materialized source is kept, its saved work loaded again."""
        self.job_id, self.input_key, self.is_continued = tried.job_id, tried.input_key, True
        self.has_inputs = tried.has_inputs
        if tried.is_resumed:
            return
        if tried.saved_inputs.source is not None and not tried.saved_inputs.reads_target:
            self.saved_inputs, self.lineage = tried.saved_inputs, tried.lineage

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block as a step of the result; while it runs long, log its progress."""
        with super().step(name), self.executor.watched(name, self.log):
            yield

    @property
    def spark(self) -> SparkSession:
        """The executor's session. Raises NeedsSpark."""
        return self.executor.spark

    @property
    def parallelism(self) -> int:
        return self.executor.parallelism

    @property
    def is_ansi(self) -> bool:
        """Whether a cast that does not fit fails."""
        return self.executor.setting("spark.sql.ansi.enabled", "true").lower() == "true"

    @property
    def operation(self) -> Operation:
        """The operation that does the work, with texts that read no clock; `spec.operation` is the author's."""
        operation, chosen = self.texts.operation, self.saved_inputs.range
        if chosen is None or not isinstance(operation, Incremental):
            return operation
        known = self._over_range
        if known is None or known[0] is not operation or known[1] is not chosen:
            known = self._over_range = (operation, chosen, operation.over(chosen))
        return known[2]

    @property
    def is_dry_run(self) -> bool:
        """Whether the job reports its change and writes no file of the table."""
        return isinstance(self.operation, LimitedOperation) and self.operation.dry_run

    @property
    def takes_samples(self) -> bool:
        """Whether the job is a dry run that appends some of the changed rows to another table."""
        return isinstance(self.operation, LimitedOperation) and self.operation.samples_to is not None

    @property
    def parameters(self) -> dict[str, Any]:
        """The values of `:name` in the texts of `operation`: the author's, and the current time."""
        return self.texts.parameters

    @property
    def inputs_folder(self) -> str:
        """The folder, relative to the table, of the rows that the job materializes, of large plans and of its memory.

        All tries of work with an application transaction and a key share one, whose name no other process can know.
        It has no underscore: another engine's vacuum would never sweep files in a hidden folder.
        """
        return self.work_folder or folder_named(self.job_id)

    @functools.cached_property
    def input_key(self) -> bytes:
        """The 32 bytes that encrypt a DELETE's keys in the inputs folder; tries that share saved work share them."""
        return secrets.token_bytes(32) if self.seal is None else bytes.fromhex(self.seal.sign("encryption", b""))

    def view_name(self) -> str:
        """Return an unused name for a temporary view, which `drop_views` drops."""
        name = f"txlog_{self.job_id}_{len(self.views)}"
        self.views.append(name)
        return name

    def drop_views(self) -> None:
        """Drop the temporary views and the variables of this job."""
        with contextlib.suppress(Exception):  # the session may be gone
            for variable in self.variables:
                self.spark.sql(f"DROP TEMPORARY VARIABLE IF EXISTS {variable}")
        for name in self.views:
            with contextlib.suppress(Exception):
                self.spark.catalog.dropTempView(name)
        self.variables.clear()
        self.views.clear()
