"""MERGE: source rows meet target rows; what acts on each pair, and on each row without one, the clauses say.

The source is materialized first. One Spark job finds the pairs (`pairs`); the driver judges ambiguity and knows which
source rows matched nothing; a second job copies the touched files without the acted rows and writes the new rows
(`images`). The invariant: which clause acts on which pair is decided once, in the first job, over all pairs that ON
matches. Source: delta-spark, MergeIntoCommand; soundness A2, A13, A14.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from airflow_txlog.contract import JobResult
from airflow_txlog.datafiles.tasks.source_rows import UnmatchedTask
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.reading import target_conjuncts
from airflow_txlog.errors import InvalidJobSpec, MatchNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.source import MaterializedSource, build_source, materialize, materialized_before
from airflow_txlog.jobs.files.stage import ComputedColumns
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses, Sides, check_clauses
from airflow_txlog.jobs.operations.merge.images import inserted_rows, plain_images, plain_inserts, updated_images
from airflow_txlog.jobs.operations.merge.pairs import check_unambiguous, find_pairs
from airflow_txlog.jobs.operations.merge.plain_merge import PlainClauses, plain_clauses
from airflow_txlog.jobs.operations.merge.source_scope import AutoScope, described
from airflow_txlog.jobs.resume.commit import predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.rows.metrics import vector_metrics
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.schema_evolution import assigned_columns, evolved_metadata
from airflow_txlog.jobs.sql.schemas import without_metadata
from airflow_txlog.jobs.sql.scope import both, check_may_remove_rows, either, partition_scope, read_condition
from airflow_txlog.jobs.sql.table_rules import accepted_rules
from airflow_txlog.records import Merge
from airflow_txlog.wording import plural


def merge(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    described = context.record(Merge)
    if described.target_alias.lower() == described.source_alias.lower():
        raise InvalidJobSpec("target_alias and source_alias must differ.", argument="source_alias")
    return run_row_operation(context, lambda job: MergeRows(job, described))


@dataclass(frozen=True, kw_only=True)
class PreparedMerge(Prepared):
    source: MaterializedSource
    sides: Sides
    clauses: Clauses
    plain: PlainClauses | None
    """What the clauses assign, where no value has to be computed."""


class MergeRows(RowOperation[PreparedMerge]):
    """A merge of the job's source, as `merge` describes it: the job's own record, or one that another operation made.

    The texts of `merge` have passed `JobContext.texts`, or read no clock.
    """

    name = "MERGE"

    def __init__(self, context: JobContext, merge: Merge) -> None:
        self._context = context
        self._merge = merge
        self.writes_rows = any(clause.then != "delete" for clause in merge.clauses)
        self._gate = SqlGate(context)
        self._materialized: MaterializedSource | None = None
        self._auto = AutoScope(context=context, gate=self._gate)

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> PreparedMerge:
        """The source materialized, every text accepted, every table rule kept, and the files registered as read."""
        context, gate = self._context, self._gate
        source = self._source(tx, snapshot, memory)
        with context.step("plan"):
            snapshot = self._evolved(tx, snapshot, source)
            sides = self._sides(snapshot, source)
            gate.condition(self._merge.on, sides.pair)
            clauses = check_clauses(gate, sides, self._merge.clauses)
            if clauses.on_target:
                check_may_remove_rows(snapshot, "a MERGE with WHEN MATCHED clauses")
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            # Read: all files that may hold a row which decides on them.
            candidates = scope.read_files(tx, self._of_interest(snapshot, sides, clauses, source))
            return PreparedMerge(
                snapshot=snapshot,
                scope=scope,
                candidates=candidates,
                whole=candidates.slice(0, 0),
                updates=frozenset(clause.number for clause in clauses.updates),
                source=source,
                sides=sides,
                clauses=clauses,
                plain=plain_clauses(self._merge, snapshot, context.parameters, sides, clauses, source),
            )

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """The source, materialized once for all attempts and tries; in each attempt where it reads the target."""
        context = self._context
        if self._materialized is None:
            self._materialized = materialized_before(context, self._gate)
        if self._materialized is not None and not self._materialized.reads_target:
            return self._materialized
        with context.step("materialize"):
            source = build_source(context, self._gate, snapshot)
            if source.reads_target:
                tx.read_whole_table()
            # Other source rows: nothing that was found about the last ones holds.
            memory.forget()
            self._materialized = materialize(context, source, self._gate)
        context.log(f"the source has {plural(self._materialized.num_rows, 'row')}")
        return self._materialized

    def _evolved(self, tx: Transaction, snapshot: Snapshot, source: MaterializedSource) -> Snapshot:
        """The table with the columns that this merge gives it; itself where it gives it none."""
        columns = assigned_columns(source.schema.jsonValue(), self._merge.clauses, self._merge.target_alias)
        metadata = evolved_metadata(self._context, tx, columns)
        return snapshot if metadata is snapshot.metadata else snapshot.with_metadata(metadata)

    def _sides(self, snapshot: Snapshot, source: MaterializedSource) -> Sides:
        rules = accepted_rules(self._context, snapshot.metadata)
        target = rules.spark_schema
        return Sides(
            target=target,
            source=source.schema,
            target_alias=self._merge.target_alias,
            source_alias=self._merge.source_alias,
            target_shape=self._gate.shape(without_metadata(target, nullable=True)),
            source_shape=self._gate.shape(source.schema),
            ansi=self._context.is_ansi,
            table_uri=self._context.root,
            rules=rules,
            may_lack_columns=self._merge.schema_evolution,
        )

    def _of_interest(self, snapshot: Snapshot, sides: Sides, clauses: Clauses, source: MaterializedSource) -> Predicate:
        """Where a row can be that ON matches, or on which a clause acts because nothing matches it (soundness A14)."""
        context = self._context
        conditions = [clause.condition for clause in clauses.not_matched_by_source]
        if None in conditions:
            return Predicate.true()
        auto = self._auto.of(snapshot, sides, source, self._merge.on)
        read = both(self._on(snapshot, sides), auto)
        for text in filter(None, conditions):
            used = self._gate.parameters_in(text)
            read = either(read, read_condition(context, snapshot, text, used, alias=sides.target_alias))
        if auto is not None:
            context.log(f"what ON can match is bounded by the source, which names {described(auto)}")
        return read

    def _on(self, snapshot: Snapshot, sides: Sides) -> Predicate:
        """What ON demands of the target alone."""
        context = self._context
        return target_conjuncts(
            self._merge.on,
            snapshot.delta_schema,
            target_alias=sides.target_alias,
            source_alias=sides.source_alias,
            parameters=context.parameters,
            time_zone=context.spec.time_zone,
            source_columns=sides.source.names,
            lenient=True,
        )

    def find(self, prepared: PreparedMerge, plan: FilePlan) -> Matches:
        """All pairs, and the rows on which a clause acts because nothing matched."""
        schema = prepared.snapshot.delta_schema
        sides, clauses, source = prepared.sides, prepared.clauses, prepared.source
        return find_pairs(self._context, self._gate, plan, schema, self._merge.on, sides, clauses, source)

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        """Raises AmbiguousMerge, and MatchNotFound where every source row must match and one does not."""
        context = self._context
        check_unambiguous(context, found.matches, found.plan, prepared.clauses)
        given = prepared.source.num_rows
        matched = found.matches.source_rows.num_rows if self._merge.require_match else given
        if matched < given:
            raise MatchNotFound(
                f"{context.root}: {given - matched} of {plural(given, 'source row')} match no row at version "
                f"{prepared.snapshot.version}, and require_match asks for every one. Nothing was changed.",
                table=context.root,
                given=given,
                matched=matched,
            )

    def images(self, prepared: PreparedMerge, updated: FilePlan) -> DataFrame | ComputedColumns:
        """The new images of matched rows, and of rows that a clause updates because nothing matched."""
        if prepared.plain is not None and prepared.plain.updated is not None:
            return plain_images(self._context, updated, prepared.source, prepared.plain.updated)
        schema = prepared.snapshot.delta_schema
        clauses, sides = prepared.clauses, prepared.sides
        return updated_images(self._context, self._gate, updated, schema, sides, clauses, prepared.source)

    def inserts_wanted(self, prepared: PreparedMerge, matches: Matches) -> Mapping[int, str]:
        """Which rows of a bucket are inserted follows from those that matched."""
        if not prepared.clauses.not_matched or prepared.source.num_rows == 0:
            return {}
        matched, count = matches.source_rows, prepared.source.num_buckets
        if matched.num_rows == prepared.source.num_rows:
            return {}
        return {number: f"{number}/{count}:{digest}" for number, digest in enumerate(matched.fingerprints(count))}

    def inserts(self, prepared: PreparedMerge, matches: Matches, buckets: Collection[int]) -> DataFrame | UnmatchedTask:
        """What WHEN NOT MATCHED clauses make of the rest of these buckets."""
        clauses, sides, source = prepared.clauses, prepared.sides, prepared.source
        matched = matches.source_rows
        if prepared.plain is not None and prepared.plain.inserted is not None:
            return plain_inserts(self._context, source, matched, prepared.plain.inserted, buckets)
        return inserted_rows(self._context, self._gate, sides, clauses, source, matched, buckets)

    def parameters(self, prepared: PreparedMerge) -> dict[str, Any]:
        predicate = predicate_parameter([self._merge.on])
        return {"predicate": predicate, **prepared.clauses.parameters()}

    def metrics(self, prepared: PreparedMerge, found: Found, work: StagedWork) -> dict[str, int]:
        context, clauses = self._context, prepared.clauses

        def count(of: tuple[Clause, ...], action: str) -> int:
            return found.matches.count([c.number for c in of if c.action == action])

        by_source = {a: count(clauses.not_matched_by_source, a) for a in ("update", "delete")}
        updated, deleted = found.updated.num_rows, found.removed.num_rows - found.updated.num_rows
        return {
            "numSourceRows": prepared.source.num_rows,
            "numTargetRowsInserted": work.num_inserted,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsCopied": work.num_copied,
            "numTargetRowsMatchedUpdated": updated - by_source["update"],
            "numTargetRowsMatchedDeleted": deleted - by_source["delete"],
            "numTargetRowsNotMatchedBySourceUpdated": by_source["update"],
            "numTargetRowsNotMatchedBySourceDeleted": by_source["delete"],
            "numTargetChangeFilesAdded": len(work.changes),
            **vector_metrics("numTarget", work),
            "numOutputRows": work.num_inserted + updated + work.num_copied,
            "numTargetFilesAdded": len(work.files),
            "numTargetFilesRemoved": work.num_removed,
            "numTargetBytesAdded": work.num_bytes,
            "numTargetBytesRemoved": work.num_removed_bytes,
            "executionTimeMs": sum(context.step_ms(name) for name in ("materialize", "plan", "find", "rewrite")),
            "materializeSourceTimeMs": context.step_ms("materialize"),
            "scanTimeMs": context.step_ms("find"),
            "rewriteTimeMs": context.step_ms("rewrite"),
        }
