"""Append and overwrite: a source's rows become new files of the table, which is created if there is none.

An append reads nothing and never conflicts with rows of others. An overwrite removes the files that are live in its
scope when it commits, also those that landed since it began; with `on_conflict="fail"` it fails instead. The scope is
the whole table, the partitions of `partition_predicate` or those of a `replace_where` over partition columns, and no
new row may be outside of it. An overwrite of partitions replaces those of the new rows. The rows are staged once: a
lost race, or a retry, continues with the existing files as long as the table's rules are the same and no row came from
the table itself. The invariant: a file leaves only if Spark, or the equality of typed partition values, proves that
every row of it is to leave. Source: delta-spark, WriteIntoDelta; soundness, section 0, B11.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Write
from airflow_txlog.contract.wording import files_text, plural
from airflow_txlog.datafiles.parquet.judging import together
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.columns import no_files
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.errors import PartitionMismatch
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import layout_for
from airflow_txlog.jobs.files.staged import unstage
from airflow_txlog.jobs.operations.write.numbered import NumberedRows, keep_numbered, move_marks
from airflow_txlog.jobs.operations.write.target_columns import check_layout, created_schema, spelled
from airflow_txlog.jobs.resume.attempts import Change, check_may_remove_rows, run_attempts
from airflow_txlog.jobs.resume.memory import ROWS, Memory, Segment, log_reuse, rules_at
from airflow_txlog.jobs.resume.saved_work import SavedWork
from airflow_txlog.jobs.rows.checked_change import check_arguments, check_old_rows, checked
from airflow_txlog.jobs.rows.other_table import begin_samples
from airflow_txlog.jobs.rows.pipeline import RowAttempts
from airflow_txlog.jobs.rows.tiny_files import joined
from airflow_txlog.jobs.source.folded import first_row_wanted
from airflow_txlog.jobs.source.handed_out import NOT_NUMBERED
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.jobs.sql.columns import (
    check_has_columns,
    evolved_by_source,
)
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import (
    NOT_OF_PARTITIONS,
    Partitions,
    PartitionScope,
    accepted_by_spark,
    both,
    partition_scope,
    read_condition,
)

if TYPE_CHECKING:
    from airflow_txlog.jobs.executor.base import AcceptedRules, FoundSource


@dataclass(frozen=True, kw_only=True)
class WriteScope(PartitionScope):
    """The part of a table that a write may touch.

    `rows`: a condition over data columns that every row of a new table must satisfy.
    """

    rows: str | None = None


def scope_of_new_table(context: JobContext, partitions: Partitions) -> WriteScope:
    """Return the scope on a table that is created here: nothing is read, and the new rows must be inside."""
    text = context.record(Write).partition_predicate
    if text is not None:
        partitions.check_scope(text)
    replaced = context.record(Write).replace_where
    if replaced is None:
        return WriteScope(partitions=partitions, text=text)
    if not partitions.speaks_of_partitions_only(replaced):
        return WriteScope(partitions=partitions, text=text, rows=replaced)
    return WriteScope(partitions=partitions, text=_joined(text, replaced))


def scope_of(context: JobContext, gate: SqlGate, snapshot: Snapshot, partitions: Partitions) -> WriteScope:
    """Accept `partition_predicate`, and `replace_where` over partition columns. Raises InvalidPredicate and its
    siblings.
    """
    scope = partition_scope(context, gate, snapshot, partitions)
    text, read = scope.text, scope.read
    replaced = context.record(Write).replace_where
    if replaced is None:
        return WriteScope(partitions=partitions, text=text, read=read)
    if partitions.is_plain(replaced):
        used = partitions.check_scope(replaced)
        gate.check_clocks(replaced, snapshot.delta_schema.names)
    else:
        used = accepted_by_spark(gate, snapshot, replaced)
    read = both(read_condition(context, snapshot, replaced, used), read)
    return WriteScope(partitions=partitions, text=_joined(text, replaced), read=read)


def check_has_partitions(context: JobContext, columns: Sequence[str]) -> None:
    """Raise PartitionMismatch for an overwrite of the partitions of a table that has none."""
    if not columns:
        raise PartitionMismatch(
            f'{context.root} is not partitioned, so mode "overwrite_partitions" has nothing to go by. Use mode '
            '"overwrite" for the whole table, or replace_where for a part of it. Nothing was staged.',
            table=context.root,
        )


def files_of_partitions(
    tx: Transaction, partitions: Partitions, staged: Sequence[StagedFile], using: Sequence[str] | None = None
) -> pa.Table:
    """Return the live files of the partitions of the staged files: a dynamic partition overwrite removes them.

    `using`: partition columns that alone are compared; then a null among their values is that of no partition.
    """
    columns = partitions.columns if using is None else list(using)
    tuples = (partitions.tuple_of(file.partition_values, columns) for file in staged)
    chosen = [values for values in dict.fromkeys(tuples) if using is None or all(values)]
    if not chosen:
        return tx.read_partitions([])
    read = tx.read_partitions([dict(zip(columns, values, strict=True)) for values in chosen])
    # All files that may be in these partitions were read; only a file whose values are certainly equal is removed.
    found = partitions.tuples_of(read, columns)
    return read.filter(pa.array(partitions.among(found, chosen, columns), pa.bool_()))


def _joined(scope: str | None, replaced: str) -> str:
    return replaced if scope is None else f"(\n{scope}\n) AND (\n{replaced}\n)"


def write(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    saved_work = SavedWork(context)
    memory = saved_work.load()
    job = _Write(context, memory, saved_work)
    return run_attempts(
        context,
        job.plan,
        memory=memory,
        saved_work=saved_work,
        begin_absent=job.begin_absent if context.record(Write).create else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The table of the rows: rules and layout, and whether it is created for them."""

    rules: AcceptedRules
    layout: Layout
    is_new: bool


class _Write:
    def __init__(self, context: JobContext, memory: Memory, saved_work: SavedWork) -> None:
        self._context = context
        self._memory = memory
        self._saved_work = saved_work
        self._gate = SqlGate(context)
        self._mode = context.record(Write).mode
        # A row that an expectation drops must not be the one that is kept of its key.
        context.judges_source = context.record(Write).deduplicate_by is not None
        self._source: FoundSource | MaterializedSource | None = None
        self._numbered = NumberedRows(context, self._gate)
        self._created: _Target | None = None
        self._replaced_rows: RowAttempts[Any] | None = None

    def begin_absent(self) -> Transaction:
        """Return the transaction that creates the table with the source's columns and rows."""
        context, described = self._context, self._context.record(Write)
        with context.step("plan"):
            # Before the evaluation of the source, which may take long and leaves its rows in the folder.
            asked = list(described.partition_by or ())
            holds_others = context.table.check_folder(asked, allow_non_empty=described.allow_non_empty)
            self._source = self._found(None)
            schema = created_schema(self._source.described)
            partition_by = spelled(asked, schema)
            cluster_by = described.cluster_by or ()
            tx = context.table.begin_create(
                schema,
                partition_by,
                described.properties,
                cluster_by=cluster_by,
                allow_non_empty=described.allow_non_empty,
                # Which files belong to partitions depends on the spelling.
                holds_others=holds_others if partition_by == asked else None,
            )
            assert tx.metadata is not None
            # The schema of the log: with the ids and physical names that column mapping assigned.
            self._created = self._target(tx, tx.metadata, is_new=True)
        context.saved_inputs.reads_target = False
        layout = f"clustered by {list(cluster_by)}" if cluster_by else f"partitioned by {partition_by or 'nothing'}"
        context.log(f"there is no table at {context.root}: it will be created, {layout}")
        return tx

    def plan(self, tx: Transaction) -> Change:
        """Stage the source's rows, unless they are staged already; return the change to commit."""
        context = self._context
        if self._memory.rules is None:
            # Rows staged for a table that another writer then created first do not belong in it.
            self._memory.forget()
        if tx.snapshot is not None and self._replaces_rows(tx.snapshot):
            from airflow_txlog.jobs.operations.write.replace_rows import ReplaceRows  # noqa: PLC0415 - only with Spark

            self._check(tx.snapshot)
            self._replaced_rows = self._replaced_rows or RowAttempts(
                context, ReplaceRows(context, self._gate), self._memory, self._saved_work
            )
            return self._replaced_rows.plan(tx)
        if tx.snapshot is not None and self._replaces_rows_of_values(tx.snapshot):
            from airflow_txlog.jobs.operations.write.replace_using import ReplaceUsing  # noqa: PLC0415 - only with it

            self._check(tx.snapshot)
            self._replaced_rows = self._replaced_rows or RowAttempts(
                context, ReplaceUsing(context), self._memory, self._saved_work
            )
            return self._replaced_rows.plan(tx)
        self._begin_memory(tx)
        with context.step("plan"):
            must_stage, target = self._target_of(tx)
            check_arguments(context, tx, target.rules.schema)
            partitions = Partitions(context, self._gate, target.rules.schema, target.layout.partition_columns)
            if tx.snapshot is None:
                scope = scope_of_new_table(context, partitions)
            else:
                scope = scope_of(context, self._gate, tx.snapshot, partitions)
            if self._mode == "overwrite_partitions":
                check_has_partitions(context, target.layout.partition_columns)
        if must_stage:
            self._stage(target, scope)
        segments = [segment for segment in self._memory.segments if segment.kind == ROWS]
        if not must_stage:
            log_reuse(context, self._memory, segments, ())
        move_marks(tx, target.rules.table, segments)
        staged = [file for segment in segments for file in segment.files]
        replaced = self._replaced(tx, scope, staged)
        change = self._checked(tx, scope, self._change(tx, target, scope, staged, replaced), staged, replaced)
        if must_stage and tx.snapshot is not None:
            self._saved_work.save(self._memory)
        return change

    def _checked(
        self, tx: Transaction, scope: WriteScope, change: Change, staged: Sequence[StagedFile], replaced: pa.Table
    ) -> Change:
        """Return the change with the results of all checks. Raises as `check_old_rows` and `checked` do."""
        context, within = self._context, PartitionScope(partitions=scope.partitions)
        if tx.snapshot is not None:
            within = partition_scope(context, self._gate, tx.snapshot, scope.partitions)
            files = replaced.num_rows
            check_old_rows(context, tx.snapshot, within, whole=replaced, rows=0, updated=0, files=files)
        rows = sum(file.num_records for file in staged)
        return checked(context, tx, within, change, self._memory, new=staged, num_inserted=rows, leaving={})

    def _using(self, partition_columns: Sequence[str]) -> list[str] | None:
        """Return the columns of `replace_using` as the table spells them, if all of them are partition columns."""
        spelled = {name.lower(): name for name in partition_columns}
        names = [spelled.get(name.lower()) for name in self._context.record(Write).replace_using or ()]
        return [name for name in names if name is not None] if None not in names else None

    def _replaces_rows(self, snapshot: Snapshot) -> bool:
        """Return whether `replace_where` names more than partition columns, so that rows must be read.

        Raises NeedsSpark unless it is a plain condition on partition columns.
        """
        context, text = self._context, self._context.record(Write).replace_where
        partitions = Partitions(context, self._gate, snapshot.delta_schema, snapshot.partition_columns)
        if text is None or partitions.is_plain(text):
            return False

        def asked_of_spark() -> bool:
            from airflow_txlog.jobs.operations.write.replace_rows import replaces_rows  # noqa: PLC0415

            return replaces_rows(context, self._gate, snapshot)

        return context.executor.by_spark(NOT_OF_PARTITIONS, asked_of_spark)

    def _replaces_rows_of_values(self, snapshot: Snapshot) -> bool:
        """Return whether `replace_using` names more than partition columns, so that rows must be read."""
        using = self._context.record(Write).replace_using
        check_has_columns("replace_using", using or (), snapshot.delta_schema.names, self._context.root)
        return using is not None and self._using(snapshot.partition_columns) is None

    def _begin_memory(self, tx: Transaction) -> None:
        """Forget staged rows that no longer hold: under other rules, or if they are the table's own rows."""
        snapshot, memory = tx.snapshot, self._memory
        begin_samples(self._context, memory)
        sizes = [file.size_bytes for segment in memory.segments for file in segment.files]
        why = None
        if snapshot is None or self._context.saved_inputs.reads_target:
            memory.forget()
            why = "there is no table" if snapshot is None else "the source reads the table, which may have changed"
        if snapshot is not None and not memory.begin(rules_at(snapshot)):
            why = "the table's rules have changed"
        if snapshot is not None and not keep_numbered(memory, snapshot):
            why = "other rows have got the values of the table's identity columns"
        if sizes and why is not None:
            self._context.log(f"not used of what was staged before: {files_text(sizes)}, as {why}")

    def _stage(self, target: _Target, scope: WriteScope) -> None:
        context = self._context
        self._gate.check_all_used()
        source, first_values = self._numbered_source(target, scope.rows)
        with context.step("write"):
            new, judged, elsewhere = source.stage(target.rules, target.layout, scope.rows)
            if elsewhere:
                context.saved_inputs.elsewhere = tuple(elsewhere)
            staged = joined(context, target.layout, new)
        try:
            scope.check_inside(staged)
        except BaseException:
            unstage(context.store, staged)
            raise
        segment = Segment(
            kind=ROWS, inputs=frozenset(), fingerprint=first_values, files=tuple(staged), judged=together(judged)
        )
        self._memory.add([segment])
        context.log(f"{plural(sum(file.num_records for file in staged), 'row')} in {plural(len(staged), 'new file')}")

    def _numbered_source(self, target: _Target, inside: str | None) -> tuple[FoundSource, str]:
        """Return the source, with values of the identity columns that it lacks, and the first of them."""
        context, source = self._context, self._source
        assert source is not None
        found = self._numbered.of(target.rules, source, inside)
        if found is None:
            assert not isinstance(source, MaterializedSource)
            return source, NOT_NUMBERED
        written, handed = found
        return context.executor.numbered(context, self._gate, written, handed), handed.first_values()

    def _replaced(self, tx: Transaction, scope: WriteScope, staged: Sequence[StagedFile]) -> pa.Table:
        """Return the live files (a table `FILES`) that the staged ones replace."""
        if self._context.record(Write).replace_using is not None:
            using = self._using(scope.partitions.columns)
            return (
                no_files()
                if using is None
                else scope.files_inside(files_of_partitions(tx, scope.partitions, staged, using))
            )
        if self._mode == "overwrite":
            return scope.files_inside(tx.read_whole_table() if scope.read is None else tx.read(scope.read))
        if self._mode == "overwrite_partitions":
            return files_of_partitions(tx, scope.partitions, staged)
        return no_files()

    def _found(self, target: Snapshot | None) -> FoundSource:
        """Find the source. `target`: the table's version for a source that reads it."""
        context = self._context
        write = context.record(Write)
        found = context.executor.source(context, self._gate, write.source, "source", target)
        check_has_columns("replace_using", write.replace_using or (), found.columns.names, "The source")
        first_row_wanted(context, found.columns)
        return found

    def _target(self, tx: Transaction, metadata: Metadata, *, is_new: bool) -> _Target:
        protocol = tx.protocol
        assert protocol is not None
        rules = self._context.executor.accepted_rules(self._context, metadata)
        return _Target(rules=rules, layout=layout_for(self._context, protocol, metadata, tx.clustering), is_new=is_new)

    def _target_of(self, tx: Transaction) -> tuple[bool, _Target]:
        """Return whether the source's rows are still to be staged, and the target. The source is found then."""
        context, snapshot = self._context, tx.snapshot
        if snapshot is None:
            assert self._created is not None
            return True, self._created
        self._check(snapshot)
        if any(segment.kind == ROWS for segment in self._memory.segments):
            return False, self._target(tx, evolved_by_source(context, tx, None), is_new=False)
        source = self._source = self._numbered.written_before(snapshot) or self._found(snapshot)
        context.saved_inputs.reads_target = source.reads_target
        if source.reads_target:
            tx.read_whole_table()
        return True, self._target(tx, evolved_by_source(context, tx, source.described), is_new=False)

    def _check(self, snapshot: Snapshot) -> None:
        check_layout(self._context, snapshot)
        if self._mode != "append":
            check_may_remove_rows(snapshot, "an overwrite")

    def _change(
        self, tx: Transaction, target: _Target, scope: WriteScope, staged: list[StagedFile], replaced: pa.Table
    ) -> Change:
        num_files = 0 if tx.snapshot is None else tx.snapshot.num_files
        replaces = self._mode != "append"
        # No row moves: rows leave with whole files, and all staged rows are new.
        tx.keep_row_ids()
        return Change(
            operation="WRITE",
            parameters=self._parameters(target, scope),
            staged=staged,
            removed=replaced,
            metrics=self._metrics(scope, staged, replaced),
            files={
                "considered": num_files if replaces else 0,
                "pruned": num_files - replaced.num_rows if replaces else 0,
                "rewritten": 0,
                "added": len(staged),
                "removed": replaced.num_rows,
            },
            is_creation=target.is_new,
        )

    def _parameters(self, target: _Target, scope: WriteScope) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "mode": "Append" if self._mode == "append" else "Overwrite",
            "partitionBy": json.dumps(list(target.layout.partition_columns)),
        }
        cluster_by = self._context.record(Write).cluster_by
        if target.is_new and cluster_by:
            parameters["clusterBy"] = json.dumps(list(cluster_by))
        if self._mode == "overwrite" and scope.text is not None:
            parameters["predicate"] = scope.text
        using = self._context.record(Write).replace_using
        if using is not None:
            parameters["replaceUsing"] = json.dumps(list(using))
        if self._mode == "overwrite_partitions":
            parameters["isDynamicPartitionOverwrite"] = True
        return parameters

    def _is_partial(self, scope: WriteScope) -> bool:
        """Return whether the overwrite leaves files outside of a part of the table."""
        write = self._context.record(Write)
        return scope.text is not None or self._mode == "overwrite_partitions" or write.replace_using is not None

    def _metrics(self, scope: WriteScope, staged: Sequence[StagedFile], replaced: pa.Table) -> dict[str, int]:
        metrics = {
            "numFiles": len(staged),
            "numOutputRows": sum(file.num_records for file in staged),
            "numOutputBytes": sum(file.size_bytes for file in staged),
        }
        if self._mode == "append":
            return metrics
        metrics["numRemovedFiles"] = replaced.num_rows
        metrics["numRemovedBytes"] = sum(replaced.column("size").to_pylist())
        if self._is_partial(scope):
            metrics |= {"numAddedChangeFiles": 0, "numCopiedRows": 0}
        if self._is_partial(scope) or replaced.num_rows:
            deleted = known_sum(live_row_counts(replaced))
            if deleted is not None:
                metrics["numDeletedRows"] = deleted
        return metrics
