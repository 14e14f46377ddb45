"""INCREMENTAL: the versions of a source after a consumer's watermark, brought into the target by another operation.

A run chooses its range once, reads it as a source, and lets a write, an upsert or a merge do the work. Each attempt
first compares the watermark with the one that the range follows, and writes the next watermark with the rows. The
invariants: a range is committed with its watermark or not at all; and rows that were staged for a range are committed
only as the one that follows the same watermark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Iterator

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Incremental, QuerySource, TableView
from airflow_txlog.contract.operations.changes import SourceRange
from airflow_txlog.engine import DeltaTable, Snapshot, Transaction
from airflow_txlog.engine.commit.content.watermarks import Watermark, domain_of, watermarks_of
from airflow_txlog.engine.erasure.returns import ReturnGuard
from airflow_txlog.engine.log.tail import list_tail
from airflow_txlog.engine.table.changes.following import mark_at
from airflow_txlog.engine.table.changes.ranges import RangeBounds, commits_within
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.engine.table.snapshot.commit_times import parse_moment, version_at
from airflow_txlog.engine.upkeep.consumers import set_watermark, watermark_of
from airflow_txlog.errors import (
    CorruptTable,
    InvalidJobSpec,
    LogGap,
    SourceGap,
    SourceNotFound,
    TableNotFound,
    TimestampOutOfRange,
    VersionNotFound,
)
from airflow_txlog.exactly_once.transactions import done_in, remove_saved_work
from airflow_txlog.jobs.context import JobContext, Plan, SavedInputs
from airflow_txlog.jobs.files.erased_subjects import guard_of
from airflow_txlog.jobs.resume.attempts import Change
from airflow_txlog.jobs.source.tables import is_same_place
from airflow_txlog.jobs.source.view_rows import metadata_at, range_files
from airflow_txlog.locations import readable


class _Moved(Exception):
    """The watermark, or a source of which all rows are read, has moved since this run chose its range."""


def incremental(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    run = _Run(context)
    while True:
        done = run.choose()
        if done is not None:
            return done
        context.around = run.around
        try:
            with run.missing_files_are_gaps():
                return run.apply()
        except _Moved:
            context.log(f"the range of consumer {run.consumer!r} is no longer the next one: choosing again")
            run.forget()
        except SourceGap as error:
            if not run.may_rebuild:
                raise
            run.rebuild(error)


class _Run:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._rebuilds: SourceGap | None = None
        record = context.texts.operation
        assert isinstance(record, Incremental)
        self._record = record
        self.consumer = record.consumer
        self._table = DeltaTable.at(record.driving_table, context.store.access, limits=context.limits)

    @functools.cached_property
    def _guard(self) -> ReturnGuard | None:
        return guard_of(self._context)

    # --- the range --------------------------------------------------------------------------------------------------

    def choose(self) -> JobResult | None:
        """Choose the range of this run; return the result if there is none, or if the work is done already."""
        context = self._context
        with context.step("open"):
            target = self._target()
            done = None if target is None else done_in(context.store, target, context.spec, context.clock)
            if done is not None:
                return done
            mark = None if target is None else watermark_of(target, self.consumer)
            if context.saved_inputs.range is not None:
                return None
            chosen = self._next(target, mark)
        if chosen is None:
            return context.result(
                is_committed=False,
                version=None if target is None else target.version,
                read_version=None if target is None else target.version,
            )
        context.saved_inputs.range = chosen
        what = "all rows" if chosen.after is None else f"versions {chosen.after + 1} to {chosen.version}"
        fixed = "".join(f", {name} at version {version}" for name, version in chosen.others.items())
        at = f" at version {chosen.version}" if chosen.after is None else ""
        context.log(f"consumer {self.consumer!r} processes {what} of {chosen.source}{at}{fixed}")
        return None

    def _target(self) -> Snapshot | None:
        context = self._context
        if is_same_place(self._record.driving_table, context.root):
            raise InvalidJobSpec(
                f"{context.root} is the driving table and the target at once, so every run would process the rows of "
                "the one before. Nothing was read. Write to another table.",
                argument="arguments.source",
            )
        try:
            return context.table.snapshot()
        except TableNotFound:
            if self._record.mode == "append":
                return None
            raise

    def _next(self, target: Snapshot | None, mark: Watermark | None) -> SourceRange | None:
        """Return the range that follows the watermark; None if there is nothing new. Raises SourceGap."""
        try:
            # One listing from there on, whatever the log has before.
            if mark is not None and self._is_all(mark):
                self._context.log(f"nothing new: version {mark.version} of {self._table.uri} is processed")
                return None
            head = self._table.snapshot()
        except TableNotFound as error:
            raise SourceNotFound(
                f"The source table {self._record.driving_table} does not exist (yet). This run of the job "
                "changed nothing.",
                argument="source",
            ) from error
        if mark is None and target is not None:
            self._log_other_consumers(target, head)
        base = None if target is None else target.state.domains.get(domain_of(self.consumer))
        text = None if base is None else base.configuration

        def following(after: int | None, end: Snapshot, *, replaces: bool = False) -> SourceRange:
            return SourceRange(
                source=self._table.uri,
                table_id=head.metadata.id,
                after=after,
                version=end.version,
                base=text,
                mark=None if end.commit_file is None else end.store.mark_of(end.commit_file),
                others=self._others(),
                replaces=replaces,
            )

        try:
            if self._rebuilds is not None:
                raise self._rebuilds
            after = self._after(head, mark)
            if after is None:
                return following(None, head)
            if after >= head.version:
                self._context.log(f"nothing new after version {after} of {self._table.uri}")
                return None
            return following(after, self._end(head, after, is_first=mark is None))
        except SourceGap as error:
            if self._record.on_gap == "fail":
                raise
            self._context.log(f"{error} The target is rebuilt from all rows of the source (on_gap).")
            return following(None, head, replaces=target is not None)

    def _is_all(self, mark: Watermark) -> bool:
        """Return whether the source certainly is the one that was processed, and has no later version."""
        if mark.version < 0:
            return False
        tail = list_tail(self._table.store, mark.version)
        file = tail.commits.get(mark.version)
        return tail.latest == mark.version and file is not None and self._table.store.mark_of(file) == mark.mark

    def _log_other_consumers(self, target: Snapshot, head: Snapshot) -> None:
        """Log the consumers that bring rows of the same source into the target: a renamed one begins anew."""
        for consumer, other in watermarks_of(target.state.domains).items():
            if other.table_id == head.metadata.id:
                self._context.log(
                    f"warning: {self.consumer!r} is a new consumer of {head.uri}, whose rows up to version "
                    f"{other.version} consumer {consumer!r} has brought into this table"
                )

    def _after(self, head: Snapshot, mark: Watermark | None) -> int | None:
        """Return the version after which the range begins; None for all rows. Raises SourceGap."""
        if mark is None:
            return self._start(head)
        if mark.table_id != head.metadata.id or mark.version > head.version:
            raise self._gap(
                mark.version,
                "is another table than the one that was processed: it was recreated, or the task names another one",
            )
        # A copy at another place has other files.
        if mark.source == self._table.uri and self._is_another_log(mark.version, mark.mark):
            raise self._gap(
                mark.version,
                f"has another version {mark.version} than the one that was processed: an earlier copy of the table was "
                "brought back, or its log was rewritten",
            )
        return mark.version

    def _is_another_log(self, version: int, mark: str | None) -> bool:
        """Return whether another commit has taken the place of this version's; False if that is not known."""
        return mark is not None and mark_at(self._table.store, version) not in (None, mark)

    def _start(self, head: Snapshot) -> int | None:
        start, source = self._record.starting, self._table
        if start == "snapshot":
            return None
        if isinstance(start, int):
            return start - 1
        try:
            # The last version before that moment.
            return version_at(source.store, head, parse_moment(start) - 1)
        except TimestampOutOfRange as error:
            if error.facts.get("latest_ms") is not None and error.facts["timestamp_ms"] >= error.facts["latest_ms"]:
                return head.version
            return -1

    def _end(self, head: Snapshot, after: int, *, is_first: bool) -> Snapshot:
        """Return the last version of the range after `after`, once it is certain that its rows are known."""
        context, record = self._context, self._record
        bounds = RangeBounds(versions=record.max_versions, files=record.max_files, size_bytes=record.max_bytes)
        try:
            before = functools.partial(metadata_at, self._table, after)
            commits = list(commits_within(changes_since(head, after), bounds, before))
        except (VersionNotFound, LogGap) as error:
            what = f"no longer has the commits after version {after} in its log"
            raise self._gap(after, what, is_first=is_first) from error
        version = commits[-1].version
        end = head if version == head.version else self._table.snapshot(version)
        context.commits_read = (end.uri, after, version), commits
        view = TableView(table=record.driving_table, version=version, range=record.range_after(after))
        range_files(context, view, end)
        return end

    def _gap(self, version: int, what: str, *, is_first: bool = False) -> SourceGap:
        if is_first:
            since, choose = "it has processed none", "where to begin by `starting`"
        else:
            since = f"version {version} was processed last"
            command = f"reset {self._context.root} --consumer {self.consumer} --to-version N"
            choose = f"where to go on: `airflow txlog incremental {command}`"
        return SourceGap(
            f"{self._table.uri}, the source of consumer {self.consumer!r}, {what}; {since}. Nothing was processed. "
            f'Rebuild the target from the whole source by on_gap="full", or choose {choose}.',
            table=self._table.uri,
            version=version + 1,
        )

    def _others(self) -> dict[str, int]:
        """Return the newest versions of the other tables of the query, by the names of their views."""
        context, record = self._context, self._record
        views = record.source.views if isinstance(record.source, QuerySource) else {}
        found: dict[str, int] = {}
        versions: dict[str, int] = {}
        for name, view in views.items():
            if not isinstance(view, TableView) or name == record.driving_view or view.names_version:
                continue
            # Rows of the target are read as of the attempt that commits.
            if is_same_place(view.table, context.root):
                continue
            table = DeltaTable.at(view.table, context.store.access, limits=context.limits)
            try:
                found[name] = versions.setdefault(table.uri, table.latest_version())
            except TableNotFound as error:
                raise SourceNotFound(
                    f"The source table {view.table} does not exist (yet). This run of the job changed nothing.",
                    argument=f"source.views.{name}",
                ) from error
        return found

    # --- the attempts -----------------------------------------------------------------------------------------------

    @property
    def _chosen(self) -> SourceRange:
        chosen = self._context.saved_inputs.range
        assert chosen is not None
        return chosen

    def around(self, plan: Plan) -> Plan:
        """Return the plan that also compares the watermark, and moves it."""

        def planned(tx: Transaction) -> Change:
            snapshot = tx.snapshot
            if snapshot is not None:
                watermark_of(snapshot, self.consumer)
                self._take_columns(snapshot)
            domain = None if snapshot is None else snapshot.state.domains.get(domain_of(self.consumer))
            # The saved work of an earlier try brings its own range.
            if (None if domain is None else domain.configuration) != self._chosen.base:
                raise _Moved
            change = plan(tx)
            if self._chosen.after is None:
                # Rows that were deleted here may still be in the source.
                tx.guard = self._guard
            # The rows may have been read from a table that was created in the place of the chosen one.
            if self._is_another_log(self._chosen.version, self._chosen.mark):
                raise _Moved
            return change if change.report is not None else self._moved(tx, change)

        return planned

    def _take_columns(self, snapshot: Snapshot) -> None:
        if self._record.on_schema_change == "ignore":
            self._context.columns_taken = frozenset(map(str.lower, snapshot.delta_schema.names))

    def _moved(self, tx: Transaction, change: Change) -> Change:
        """Let the transaction move the watermark with the change."""
        chosen, context = self._chosen, self._context
        source = self._record.source
        views = source.views if isinstance(source, QuerySource) else {}
        places = {name: view.table for name, view in views.items() if isinstance(view, TableView)}
        others = {places[name]: version for name, version in chosen.others.items()}
        context.lineage.versions |= {self._record.driving_table: chosen.version, **others}
        watermark = Watermark(
            source=chosen.source,
            table_id=chosen.table_id,
            version=chosen.version,
            mark=chosen.mark,
            added=next((file.path for file in change.staged if not file.is_change), None),
            others=others,
        )
        for note in set_watermark(tx, self.consumer, watermark):
            context.log(note)
        metrics = dict(change.metrics)
        if "numTargetRowsInserted" not in metrics:
            metrics["numTargetRowsInserted"] = metrics.get("numOutputRows", 0)
            if "numDeletedRows" in metrics:
                metrics["numReplacedRows"] = metrics["numDeletedRows"]
        return dataclasses.replace(change, metrics=metrics, is_alteration=True)

    def apply(self) -> JobResult:
        """Run the operation that brings the range into the target."""
        module, _, name = self._context.operation.job_here.partition(":")
        result: JobResult = getattr(importlib.import_module(module), name)(self._context)
        return result

    @contextlib.contextmanager
    def missing_files_are_gaps(self) -> Iterator[None]:
        """Raise SourceGap if a VACUUM has deleted a file of the range that the block reads."""
        try:
            yield
        except CorruptTable as error:
            chosen, folder = self._chosen, readable(self._table.uri, "")
            if not error.is_missing or not str(error.path).startswith(folder):
                raise
            if chosen.after is None and self._table.latest_version() > chosen.version:
                # All rows were wanted, of whichever version has its files.
                raise _Moved from error
            if chosen.after is None:
                raise
            raise self._gap(
                chosen.after, f"no longer has the file {error.path} of this range: a VACUUM has deleted it"
            ) from error

    @property
    def may_rebuild(self) -> bool:
        """Whether a gap that was found while the range was read leads to a rebuild."""
        return self._record.on_gap == "full" and self._rebuilds is None

    def rebuild(self, error: SourceGap) -> None:
        """Forget the range; the next one is the whole source."""
        self._rebuilds = error
        self.forget()

    def forget(self) -> None:
        """Forget the range and everything that was staged or saved for it."""
        context = self._context
        context.saved_inputs, context.is_resumed, context.commits_read = SavedInputs(), False, None
        context.num_elsewhere = None
        context.lineage.forget_source()
        remove_saved_work(context.store, context.inputs_folder)
