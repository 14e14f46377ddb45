"""MERGE: source rows meet target rows; matched target rows are updated or deleted, unmatched source rows inserted.

The source is pinned first. One Spark job finds the pairs (`pairs`); the driver judges ambiguity and knows which source
rows matched nothing; a second job copies the touched files without the acted rows and writes the new rows (`images`).
The invariant: which clause acts on which pair is decided once, in the first job, over all pairs that ON matches.
Source: delta-spark, MergeIntoCommand; soundness A2, A13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from airflow_txlog.datafiles.output import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.files import vectors_of
from airflow_txlog.engine.table.predicate import target_conjuncts
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.clauses import Clauses, Sides, check_clauses
from airflow_txlog.jobs.commit import Change, predicate_parameter
from airflow_txlog.jobs.context import JobContext, plural
from airflow_txlog.jobs.find import FoundRows, files_outside
from airflow_txlog.jobs.images import inserted_rows, updated_images
from airflow_txlog.jobs.inputs import PinnedSource, build_source, pin
from airflow_txlog.jobs.pairs import Pairs, find_pairs
from airflow_txlog.jobs.partitions import Partitions
from airflow_txlog.jobs.rounds import Outcome, run_rounds
from airflow_txlog.jobs.scan import FilePlan, plan_files
from airflow_txlog.jobs.schemas import check_takes_new_rows, is_ansi, spark_table_schema, without_metadata
from airflow_txlog.jobs.scope import both, check_may_remove_rows, files_inside, read_scope
from airflow_txlog.jobs.sql import SqlGate
from airflow_txlog.jobs.stage import layout_of, stage, unstage

# Counters of delta-spark's for what this engine never does.
_NEVER = (
    "numTargetRowsNotMatchedBySourceUpdated",
    "numTargetRowsNotMatchedBySourceDeleted",
    "numTargetChangeFilesAdded",
    "numTargetDeletionVectorsAdded",
    "numTargetDeletionVectorsUpdated",
)


def merge(context: JobContext) -> Outcome:
    """Run the job of `context.spec`; raises TxlogError."""
    if context.arguments["target_alias"].lower() == context.arguments["source_alias"].lower():
        raise InvalidJobSpec("target_alias and source_alias must differ.", argument="source_alias")
    job = _Merge(context)
    return run_rounds(context, job.plan)


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """One round after everything was checked and before anything was read.

    `candidates` are the files (rows of a table `FILES`) that may hold a matching row inside the `scope`.
    """

    snapshot: Snapshot
    source: PinnedSource
    sides: Sides
    clauses: Clauses
    partitions: Partitions
    scope: str | None
    candidates: pa.Table


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What the first Spark job found: all pairs, the target rows that leave their files, and those that come back."""

    plan: FilePlan
    pairs: Pairs
    removed: FoundRows
    updated: FoundRows

    @property
    def num_deleted(self) -> int:
        return self.removed.num_rows - self.updated.num_rows


class _Merge:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context, context.parameters)
        self._pinned: PinnedSource | None = None

    def plan(self, tx: Transaction) -> Change:
        """Find, stage, and say what the commit shall be."""
        context, snapshot = self._context, tx.snapshot
        assert snapshot is not None
        source = self._source(tx, snapshot)
        with context.step("plan"):
            prepared = self._prepare(tx, snapshot, source)
        pruned = snapshot.num_files - prepared.candidates.num_rows
        context.log(
            f"{plural(snapshot.num_files, 'file')} considered, {pruned} pruned, {prepared.candidates.num_rows} to scan"
        )
        with context.step("find"):
            found = self._find(tx, prepared)
        context.log(
            f"{found.pairs.rows.num_rows} matches; "
            f"{plural(found.updated.num_rows, 'row')} to update, {found.num_deleted} to delete, "
            f"in {plural(len(found.removed.positions), 'file')}"
        )
        with context.step("rewrite"):
            staged = self._stage(prepared, found)
        return self._change(prepared, found, staged)

    def _source(self, tx: Transaction, snapshot: Snapshot) -> PinnedSource:
        """The pinned source: pinned once for all rounds, but afresh in each round where it reads the target."""
        context = self._context
        if self._pinned is not None and not self._pinned.reads_target:
            return self._pinned
        with context.step("pin"):
            source = build_source(context, self._gate, snapshot)
            if source.reads_target:
                tx.read_whole_table()
            self._pinned = pin(context, source)
        context.log(f"the source has {plural(self._pinned.num_rows, 'row')}")
        return self._pinned

    def _prepare(self, tx: Transaction, snapshot: Snapshot, source: PinnedSource) -> _Prepared:
        """Every text accepted, every rule of the table kept, and the files registered as read."""
        context = self._context
        sides = self._sides(snapshot, source)
        self._gate.condition(context.arguments["on"], sides.pair)
        clauses = check_clauses(self._gate, sides, context.arguments["clauses"])
        if clauses.matched:
            check_may_remove_rows(snapshot, "a MERGE with WHEN MATCHED clauses")
        if clauses.updates or clauses.not_matched:
            check_takes_new_rows(snapshot)
        partitions = Partitions(context, self._gate, snapshot.delta_schema, snapshot.partition_columns)
        scope, candidates = self._read(tx, snapshot, sides, partitions)
        return _Prepared(
            snapshot=snapshot,
            source=source,
            sides=sides,
            clauses=clauses,
            partitions=partitions,
            scope=scope,
            candidates=candidates,
        )

    def _sides(self, snapshot: Snapshot, source: PinnedSource) -> Sides:
        target = spark_table_schema(snapshot)
        return Sides(
            target=target,
            source=source.schema,
            target_alias=self._context.arguments["target_alias"],
            source_alias=self._context.arguments["source_alias"],
            target_shape=self._gate.shape(without_metadata(target, nullable=True)),
            source_shape=self._gate.shape(source.schema),
            ansi=is_ansi(self._context.spark),
            table_uri=self._context.root,
        )

    def _read(
        self, tx: Transaction, snapshot: Snapshot, sides: Sides, partitions: Partitions
    ) -> tuple[str | None, pa.Table]:
        """The scope, and the files that may hold a matching row, registered as read by the whole ON condition."""
        context = self._context
        scope, scope_read = read_scope(context, self._gate, snapshot, partitions)
        self._gate.check_all_used()
        conjuncts = target_conjuncts(
            context.arguments["on"],
            snapshot.delta_schema,
            snapshot.partition_columns,
            target_alias=sides.target_alias,
            source_alias=sides.source_alias,
            parameters=context.parameters,
            time_zone=context.spec.time_zone,
            source_columns=sides.source.names,
            lenient=True,
        )
        files = tx.read(both(conjuncts, scope_read))
        return scope, files_inside(partitions, scope, files)

    def _find(self, tx: Transaction, prepared: _Prepared) -> _Found:
        context, clauses, schema = self._context, prepared.clauses, prepared.snapshot.delta_schema
        plan = plan_files(prepared.snapshot, prepared.candidates, context.spec.time_zone)
        pairs = find_pairs(context, self._gate, plan, schema, prepared.sides, clauses, prepared.source)
        # A compaction of files that ON matches nowhere, and that lands first, does not concern us.
        tx.read_files(files_outside(prepared.candidates, pairs.matched_files()), matched=False)
        return _Found(
            plan=plan,
            pairs=pairs,
            removed=pairs.acted(clause.number for clause in clauses.matched),
            updated=pairs.acted(clause.number for clause in clauses.updates),
        )

    def _stage(self, prepared: _Prepared, found: _Found) -> list[StagedFile]:
        """Copies and new files, in one Spark job. Raises PartitionMismatch for a new row outside the scope."""
        context = self._context
        copies = found.removed.plan(found.plan, found.removed.partly(found.plan))
        layout = layout_of(context, prepared.snapshot)
        staged = stage(context, layout, copies=copies, rows=self._new_rows(prepared, found))
        try:
            if prepared.scope is not None:
                tuples = [prepared.partitions.tuple_of(file.partition_values) for file in _new(staged)]
                prepared.partitions.check_inside(prepared.scope, tuples)
        except BaseException:
            unstage(staged)
            raise
        return staged

    def _new_rows(self, prepared: _Prepared, found: _Found) -> DataFrame | None:
        """Updated images and inserted rows; None where there is neither."""
        context, gate, sides, clauses = self._context, self._gate, prepared.sides, prepared.clauses
        frames = []
        if found.updated.num_rows:
            updated = found.updated.plan(found.plan)
            schema = prepared.snapshot.delta_schema
            frames.append(updated_images(context, gate, updated, schema, sides, clauses, prepared.source))
        if clauses.not_matched and prepared.source.num_rows:
            frames.append(inserted_rows(context, gate, sides, clauses, prepared.source, found.pairs))
        if not frames:
            return None
        return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])

    def _change(self, prepared: _Prepared, found: _Found, staged: Sequence[StagedFile]) -> Change:
        context, snapshot = self._context, prepared.snapshot
        touched = prepared.candidates.take(pa.array(sorted(found.removed.positions), pa.int64()))
        return Change(
            operation="MERGE",
            parameters={"predicate": predicate_parameter([context.arguments["on"]]), **prepared.clauses.parameters()},
            staged=staged,
            removed=touched,
            metrics=self._metrics(prepared.source, found, staged, touched),
            files={
                "considered": snapshot.num_files,
                "pruned": snapshot.num_files - prepared.candidates.num_rows,
                "rewritten": len(staged) - len(_new(staged)),
                "added": len(staged),
                "removed": touched.num_rows,
            },
        )

    def _metrics(
        self, source: PinnedSource, found: _Found, staged: Sequence[StagedFile], touched: pa.Table
    ) -> dict[str, int]:
        context, updated, deleted = self._context, found.updated.num_rows, found.num_deleted
        inserted = sum(file.num_records for file in _new(staged)) - updated
        copied = sum(file.num_records for file in staged if file.source is not None)
        return {
            "numSourceRows": source.num_rows,
            "numTargetRowsInserted": inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsCopied": copied,
            "numTargetRowsMatchedUpdated": updated,
            "numTargetRowsMatchedDeleted": deleted,
            **dict.fromkeys(_NEVER, 0),
            "numTargetDeletionVectorsRemoved": len(vectors_of(touched)),
            "numOutputRows": inserted + updated + copied,
            "numTargetFilesAdded": len(staged),
            "numTargetFilesRemoved": touched.num_rows,
            "numTargetBytesAdded": sum(file.size_bytes for file in staged),
            "numTargetBytesRemoved": sum(touched.column("size").to_pylist()),
            "executionTimeMs": sum(context.step_ms(name) for name in ("pin", "plan", "find", "rewrite")),
            "materializeSourceTimeMs": context.step_ms("pin"),
            "scanTimeMs": context.step_ms("find"),
            "rewriteTimeMs": context.step_ms("rewrite"),
        }


def _new(staged: Sequence[StagedFile]) -> list[StagedFile]:
    """The files of new rows; the others are copies."""
    return [file for file in staged if file.source is None]
