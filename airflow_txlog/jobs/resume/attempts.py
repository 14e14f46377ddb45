"""Attempts: a job that lost to another commit continues with its valid work until it commits or runs out of time.

An attempt opens a transaction on the newest snapshot, reads the application transaction first, plans, stages and
commits. The findings and staged files of earlier attempts are the job's memory; the plan decides how much of it holds.
The invariants: a commit removes and adds exactly the files that the plan found and the stage wrote, and the application
transaction is part of it, never committed alone. A staged file is deleted only when no version of the table holds it,
and none ever will: not before its commit's fate is known, and not while another try of the same work may know of it.
Source: docs/decisions/retries.md; soundness A10, A11, A17, B5; delta-spark, DeltaOperations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.commit.content.met import How, Meeting, operation_name
from airflow_txlog.engine.log.actions import Add, Cdc
from airflow_txlog.engine.table.schema.properties import SERIALIZABLE
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.errors import (
    AppendOnlyViolation,
    CommitConflict,
    CommitContention,
    DuplicateActions,
    InvalidInput,
    JobError,
    LimitExceeded,
    OutsideTable,
    TableAlreadyExists,
    TableNotFound,
    TxlogError,
    UnsupportedFeature,
    UnsupportedStore,
    VersionNotFound,
)
from airflow_txlog.exactly_once.transactions import Seal, done_in, earlier_run
from airflow_txlog.jobs.context import LogContext, Plan
from airflow_txlog.jobs.files.staged import check_not_swept, unstage
from airflow_txlog.jobs.resume.first_version import NO_TABLE, first_version, forget_first_version, landed_since
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.resume.missing_files import missing_files_are_conflicts
from airflow_txlog.jobs.resume.unpublished import longest_wait_ms, prepared, seal_to_wait, stage, staged_before
from airflow_txlog.process import progress

if TYPE_CHECKING:
    from airflow_txlog.jobs.resume.saved_work import SavedWork

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

# Errors of a commit that prove that no version of the table holds it: found before the put, by reading another's bytes
# at every version that was tried, or by a store that refused the put and has nothing at that version.
_PROVES_UNCOMMITTED = (
    CommitConflict,
    CommitContention,
    InvalidInput,
    LimitExceeded,
    OutsideTable,
    OSError,
    UnsupportedFeature,
    UnsupportedStore,
)
_NEEDS_TABLE = "publish=False stages a change of a table that exists. Create it first, empty or by another task."
_WORTH_ANOTHER_ATTEMPT = (CommitConflict, CommitContention, TableAlreadyExists)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The change that a job wants to commit.

    `staged` are new files, of change rows too. `removed` are rows of a table `FILES`. `adds` are whole actions: of
    files of the table with another deletion vector, which is in one of the staged `vector_files`, or of a clone's
    files. `add_fields` are further fields of the add actions of staged files, by path. `parameters` and `metrics` are
    spelled as delta-spark does; `files` are counts for the result. Without `data_change`, rows only moved. With
    `is_alteration` the transaction has new metadata, protocol or domains already. With `is_recorded` the commit is made
    if it has no files. `before_commit` is called before it. With a `report`, nothing else is done.
    """

    operation: str
    parameters: Mapping[str, Any]
    staged: Sequence[StagedFile] = ()
    removed: pa.Table | None = None
    adds: Sequence[Add] = ()
    vector_files: Sequence[StagedFile] = ()
    metrics: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    add_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_creation: bool = False
    is_alteration: bool = False
    is_recorded: bool = False
    never_rebases: bool = False
    data_change: bool = True
    before_commit: Callable[[], None] | None = None
    report: Sequence[Mapping[str, Any]] | None = None

    @property
    def all_staged(self) -> list[StagedFile]:
        """All files that were staged for the commit."""
        return [*self.staged, *self.vector_files]

    @property
    def changes_nothing(self) -> bool:
        has_files = self.staged or (self.removed is not None and self.removed.num_rows)
        return not (has_files or self.is_creation or self.is_alteration or self.is_recorded)


BeginAbsent = Callable[[], Transaction]


def run_attempts(
    context: LogContext,
    plan: Plan,
    *,
    memory: Memory | None = None,
    saved_work: SavedWork | None = None,
    begin_absent: BeginAbsent | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> JobResult:
    """Plan and commit until it succeeds, for at most `conflict_deadline_s` after the first conflict.

    `plan` reads through the transaction, stages into `memory`, and returns the change; on an error it has deleted files
    that it had not yet put there. `begin_absent` begins the transaction that creates a missing table. A job that does
    not publish stages its change in place of the commit, and needs the table. Work that counts
    from its first try is planned on the version that this try met, and any conflict ends it for good. Raises the last
    conflict when the time is over, and every other error at once.
    """
    planned = plan if context.around is None else context.around(plan)
    attempts = _Attempts(context, planned, begin_absent, clock, Memory() if memory is None else memory)
    try:
        result = attempts.run()
    except BaseException:
        if memory is not None and attempts.fate_is_known and not (saved_work and saved_work.is_published):
            unstage(context.store, memory.staged_files())
        raise
    if memory is not None:
        is_published = saved_work is not None and saved_work.is_published
        # Another try that knows of our files has the same application transaction: once that is in the table with
        # *our* commit, none of them can land. Where another's commit has it, our files may be in use.
        if attempts.has_landed and (not is_published or context.spec.application is not None):
            unstage(context.store, memory.leftovers())
        elif not attempts.has_landed and not is_published:
            unstage(context.store, memory.staged_files())
    if context.spec.operation.counts_from_first_try:
        forget_first_version(context)
    return result


class _Attempts:
    def __init__(
        self, context: LogContext, plan: Plan, begin_absent: BeginAbsent | None, clock: Clock, memory: Memory
    ) -> None:
        self._context = context
        self._memory = memory
        # A job may commit in several parts.
        self._met_before = context.met
        self._plan = plan
        self._begin_absent = begin_absent
        self._clock = clock
        # One table for all attempts: the next one reads only the commits that it lost to.
        self._table = context.table
        self._has_looked_back = False
        self._counts_from_first_try = context.spec.operation.counts_from_first_try
        self._first: int | None = None
        self._seal = None if context.spec.publish else seal_to_wait(context)
        self.fate_is_known = True
        """Whether it is certain that no commit of these attempts is in the table, and no staged change names it."""
        self.has_landed = False
        """Whether these attempts have committed their change, or staged it for a later job."""

    def run(self) -> JobResult:
        context, clock = self._context, self._clock
        # Counts from the first conflict: the work before it may have taken longer than the whole time allowed.
        deadline_ms: int | None = None
        number = 1
        while True:
            try:
                return self._round(number)
            except _WORTH_ANOTHER_ATTEMPT as error:
                # A source may have lost files too, which does not concern the rows that the author meant.
                if self._counts_from_first_try and isinstance(error, CommitConflict) and error.table == context.root:
                    return self._done_by_another_copy(error)
                pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(number - 1, 10)) * (0.5 + clock.random())
                deadline_ms = deadline_ms or clock.now_ms() + context.spec.conflict_deadline_s * 1000
                if not error.retryable or clock.now_ms() + pause_s * 1000 > deadline_ms:
                    raise
                context.log(
                    f"attempt {number} lost: {type(error).__name__}: {error} Planning again in {pause_s:.1f} s."
                )
                self._memory.lost(self._lost_to(error))
                clock.sleep(pause_s)
                number += 1

    def _round(self, number: int) -> JobResult:
        context = self._context
        progress.attempt(number)
        with missing_files_are_conflicts(context.tables_read):
            tx = self._begin()
            done = self._done(tx)
            if done is not None:
                return done
            if self._counts_from_first_try:
                tx = self._from_first_version(tx)
            if tx.snapshot is not None:
                context.tables_read.append((self._table, tx.snapshot))
            change = self._plan(tx)
        self._memory.settle()
        if change.all_staged and change.report is None:
            check_not_swept(self._table.store, change.all_staged)
        if self._seal is not None:
            return self._stage(self._seal, tx, change, number)
        if change.before_commit is not None:
            change.before_commit()
        if change.report is not None:
            result = context.result(
                is_committed=False,
                version=None,
                read_version=None if tx.snapshot is None else tx.read_version,
                metrics=change.metrics,
                files=change.files,
            )
            details = replace(result.details, dry_run=True, partitions=list(map(dict, change.report)))
            return replace(result, details=details)
        tx.met = self._memory.met
        with context.step("commit"):
            is_committed = self._commit(tx, change)
        if tx.outcome is not None and tx.outcome.rebased_over:
            context.log(f"rebased over {plural(len(tx.outcome.rebased_over), 'commit')} without a conflict")
        return self._result(tx, change, number, is_committed=is_committed)

    def _result(self, tx: Transaction, change: Change, number: int, *, is_committed: bool) -> JobResult:
        version = None if tx.outcome is None else tx.outcome.version
        own = tx.outcome.met if is_committed and tx.outcome is not None else self._memory.met
        self._context.met = self._met_before.followed_by(own)
        return self._context.result(
            is_committed=is_committed,
            version=version if is_committed else tx.read_version,
            read_version=None if tx.snapshot is None else tx.read_version,
            metrics=change.metrics,
            files=change.files,
            attempts=number,
        )

    def _lost_to(self, error: TxlogError) -> Meeting:
        is_here = error.facts.get("table") == self._context.root
        return Meeting(
            version=error.facts.get("winning_version") if is_here else None,
            how=How.REDONE,
            operation=operation_name({"operation": error.facts.get("winning_operation")}),
            conflict=type(error).__name__,
        )

    def _begin(self) -> Transaction:
        with self._context.step("open"):
            try:
                return self._table.begin()
            except TableNotFound as error:
                if self._begin_absent is None:
                    raise
                if self._seal is not None:
                    raise TableNotFound(f"{error.message} {_NEEDS_TABLE}", **error.facts) from error
        if self._counts_from_first_try and self._first is None:
            # Before the evaluation of the source, which may take long.
            self._first = first_version(self._context, None)
        return self._begin_absent()

    def _from_first_version(self, tx: Transaction) -> Transaction:
        """Return the transaction on the version that the first try met: its commit is checked against all since."""
        context = self._context
        if self._first is None:
            self._first = first_version(context, tx.snapshot)
        if tx.read_version == self._first:
            return tx
        if self._first == NO_TABLE:
            raise landed_since(context, self._first, tx.read_version)
        with context.step("open"):
            try:
                earlier = self._table.begin(self._first)
            except VersionNotFound as error:
                # The commits since then cannot be compared any more.
                raise landed_since(context, self._first, tx.read_version) from error
        context.log(f"on version {self._first}, which the first try met: what has landed since is a conflict")
        if context.spec.application is not None:
            earlier.read_application(context.spec.application.app_id)
        return earlier

    def _done_by_another_copy(self, error: CommitConflict) -> JobResult:
        """Return the result of a job whose conflict is another copy's commit. Raises any other conflict, for good."""
        context = self._context
        if context.spec.application is not None:
            done = done_in(self._table.store, self._table.snapshot(), context.spec, self._clock)
            if done is not None:
                return done
        if not error.retryable:
            raise error
        message = f"{error.message} It is not planned again, because the job says on_conflict: fail."
        raise type(error)(message, **(error.facts | {"retryable": False})) from error

    def _done(self, tx: Transaction) -> JobResult | None:
        """Return the result of work that is done. This comes first, whatever conflict led here."""
        spec = self._context.spec
        if spec.application is None:
            return None
        tx.read_application(spec.application.app_id)
        if tx.snapshot is None:
            return None
        done = done_in(self._table.store, tx.snapshot, spec, self._clock)
        if done is None and self._seal is not None:
            longest_wait_ms(tx.snapshot)
            done = staged_before(self._context, self._seal, tx.snapshot)
        if done is None and not self._has_looked_back:
            self._has_looked_back = True
            earlier = earlier_run(self._table.store, tx.snapshot, spec)
            if earlier is not None:
                self._context.log(earlier)
        return done

    def _stage(self, seal: Seal, tx: Transaction, change: Change, number: int) -> JobResult:
        """Stage the change, and return the result with its handle. A change of nothing is not staged."""
        context, known = self._context, self.fate_is_known
        if change.changes_nothing:
            return self._result(tx, change, number, is_committed=False)
        with context.step("stage"):
            fill(tx, change)
            ready = prepared(
                context,
                seal,
                tx,
                operation=change.operation,
                parameters=change.parameters,
                metrics=change.metrics,
                files=change.files,
                staged=change.all_staged,
            )
            # An error may hide that the document is there.
            self.fate_is_known = False
            result = stage(context, ready)
        if result is not None:
            self.has_landed = True
            return dataclasses.replace(result, attempts=number)
        self.fate_is_known = known
        assert tx.snapshot is not None
        found = staged_before(context, seal, tx.snapshot)
        if found is None:
            raise JobError(
                f"{context.root}: what another copy of this work has staged is gone, or was not written by it. Nothing "
                "was published. Run the task again.",
                retryable=True,
            )
        return found

    def _commit(self, tx: Transaction, change: Change) -> bool:
        try:
            is_committed = commit_change(self._context, tx, change)
        except BaseException as error:
            # Files at paths that are live already may be the files that we staged, in another copy's commit.
            if isinstance(error, DuplicateActions) or not isinstance(error, _PROVES_UNCOMMITTED):
                self.fate_is_known = False
            raise
        if is_committed:
            # Whatever fails from here on, even a log line: the staged files belong to the table.
            self.fate_is_known, self.has_landed = False, True
        return is_committed


def commit_change(context: LogContext, tx: Transaction, change: Change) -> bool:
    """Commit the change through `tx`; return whether a version was made. Raises the errors of `Transaction.commit`.

    Under Serializable a change of nothing makes no commit: a retry may find rows that arrived later. Under
    WriteSerializable the empty commit carries the application transaction (soundness B5).
    """
    snapshot = tx.snapshot
    is_serializable = snapshot is not None and snapshot.table_properties.isolation_level == SERIALIZABLE
    if change.changes_nothing and (is_serializable or not change.data_change):
        return False
    fill(tx, change)
    application = context.spec.application
    if application is not None:
        tx.set_application(application.app_id, application.version)
    if tx.metadata is not None:
        schema = parse_schema(tx.metadata.schema_string)
        context.lineage.columns = {field.name: str(field.type) for field in schema}
    tags = context.spec.commit_tags()
    never, always = change.never_rebases, change.is_recorded
    tx.commit(change.operation, change.parameters, change.metrics, tags=tags, never_rebases=never, record_empty=always)
    return tx.outcome is not None and tx.outcome.committed


def fill(tx: Transaction, change: Change) -> None:
    """Give the files of the change to `tx`."""
    fields_of = change.add_fields
    new_files = (
        added(file, change.data_change, fields_of.get(file.path, {})) for file in change.staged if not file.is_change
    )
    tx.add([*new_files, *change.adds])
    tx.add_changes([_cdc(file) for file in change.staged if file.is_change])
    if change.removed is not None and change.removed.num_rows:
        tx.remove(change.removed, data_change=change.data_change)


def check_may_remove_rows(snapshot: Snapshot, operation: str) -> None:
    """Raise AppendOnlyViolation, before anything is staged, if rows may only be added to the table."""
    if snapshot.table_properties.append_only:
        raise AppendOnlyViolation(
            f"Table {snapshot.uri} is append-only (delta.appendOnly), so {operation} cannot remove or change rows. "
            "Nothing was staged.",
            table=snapshot.uri,
        )


def predicate_parameter(texts: Sequence[str]) -> str:
    """Return conditions as operationParameters have them, a JSON array. Parameters stay names, never values."""
    return json.dumps(list(texts), ensure_ascii=False)


def _cdc(file: StagedFile) -> Cdc:
    return Cdc(path=file.path, partition_values=file.partition_values, size=file.size_bytes, data_change=False)


def added(file: StagedFile, data_change: bool = True, others: Mapping[str, Any] | None = None) -> Add:
    """Return the action that adds a staged file to the table, with the values of `others` for further fields."""
    return Add(
        path=file.path,
        partition_values=file.partition_values,
        size=file.size_bytes,
        modification_time=file.modification_time_ms,
        data_change=data_change,
        stats=file.stats,
        **(others or {}),
    )
