"""MERGE: source rows meet target rows, and the clauses decide what happens to each pair and to each row without one.

The source is materialized first. One step finds the pairs; the driver judges ambiguity and knows which source rows
matched nothing; a second step copies the touched files without the acted rows and writes the new rows. The tasks do
both for plain clauses (`clauses`), and Spark for others (`by_spark`). The invariant: the clause of a pair is decided
once, in the first step, over all pairs that ON matches. Source: delta-spark, MergeIntoCommand; soundness A1, A2, A13,
A14.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Merge
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.reading import target_conjuncts
from airflow_txlog.engine.table.predicate.tree import Operand, describe, null_test
from airflow_txlog.engine.table.schema.identities import IdentityColumn
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import AmbiguousMerge, InvalidJobSpec, MatchNotFound, UnsupportedPredicate
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.stage import NewRows
from airflow_txlog.jobs.operations.merge.clauses import (
    Clause,
    Clauses,
    PlainClauses,
    fit_for_tasks,
    plain_clauses,
    plain_images,
    plain_inserts,
)
from airflow_txlog.jobs.operations.merge.keys import SOURCE_ALIAS, PairColumns, find_by_keys, for_people, key_columns
from airflow_txlog.jobs.operations.merge.source_scope import AutoScope, described, keys_in_reach
from airflow_txlog.jobs.resume.attempts import check_may_remove_rows, predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork, vector_metrics
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.folded import deduplicated, first_row_wanted
from airflow_txlog.jobs.source.handed_out import HandedOut, Numbering
from airflow_txlog.jobs.source.materialized import MaterializedSource, read_again, saved_source
from airflow_txlog.jobs.sql.columns import assigned_columns, evolved_metadata
from airflow_txlog.jobs.sql.expectations import why_spark_judges
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.scope import both, either, partition_scope, read_condition

if TYPE_CHECKING:
    from airflow_txlog.jobs.operations.merge.by_spark import JudgedMerge


TOO_MANY_ROWS = "the source's rows are more than one process may look at"


def merge(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    described = context.record(Merge)
    check_aliases(described)
    return run_row_operation(context, lambda job: MergeRows(job, described))


def check_aliases(merge: Merge) -> None:
    """Raise InvalidJobSpec if both sides have one name."""
    if merge.target_alias.lower() == merge.source_alias.lower():
        raise InvalidJobSpec("target_alias and source_alias must differ.", argument="source_alias")


@dataclass(frozen=True, kw_only=True)
class PreparedMerge(Prepared):
    source: MaterializedSource
    pair: PairColumns
    clauses: Clauses
    plain: PlainClauses
    """The parts of the clauses that the tasks compute."""
    judged: Callable[[str], JudgedMerge]
    """Has Spark accept the texts, at most once; the argument is the reason. Raises NeedsSpark."""
    identities: tuple[IdentityColumn, ...] = ()
    """The identity columns that some new row leaves to the table."""


class MergeRows(RowOperation[PreparedMerge]):
    """A merge of the job's source. `merge` describes it: the job's own record, or one that another operation made.

    The texts of `merge` have passed `JobContext.texts`, or read no clock.
    """

    name = "MERGE"
    joins_files = True
    keys_not_plain = "ON is more than equalities of columns that have one plain type, and plain conditions on the table"
    clauses_not_plain = "the clauses have more than plain conditions and values"
    keeps_members = False
    """Whether an update that names its columns keeps the members of structs that the source lacks, as `*` does."""
    open_until: str | None = None
    """The column that is NULL in the rows of the table that take part; None: all rows do."""

    def __init__(self, context: JobContext, merge: Merge) -> None:
        self._context = context
        context.judges_source = True
        self._merge = merge
        self.writes_rows = any(clause.then != "delete" for clause in merge.clauses)
        self._gate = SqlGate(context)
        self._materialized: MaterializedSource | None = None
        self._auto = AutoScope(context=context)
        self._numbering = Numbering(context)
        self._last_plain: tuple[tuple[Merge, Metadata, PairColumns], PlainClauses] | None = None

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> PreparedMerge:
        """Materialize the source, accept every text, and register the files that are read."""
        context, gate = self._context, self._gate
        source = self._source(tx, snapshot, memory)
        with context.step("plan"):
            snapshot = self._evolved(tx, snapshot, source)
            pair = self._pair(snapshot, source.columns)
            judged = self._judging(snapshot, source)
            clauses = self._accepted(snapshot, pair, judged)
            if clauses.on_target:
                check_may_remove_rows(snapshot, "a MERGE with WHEN MATCHED clauses")
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            # Register as read all files that may hold a row which decides the merge.
            of_interest = both(self._of_interest(snapshot, pair, judged, clauses, source), self._taking_part(snapshot))
            candidates = scope.read_files(tx, of_interest)
            plain = fit_for_tasks(context, self._plain(snapshot, pair), self._merge, snapshot, pair, source)
            if None in (plain.acting, plain.updates, plain.inserts):
                judged("the source's rows are more than one task may write")
            return PreparedMerge(
                snapshot=snapshot,
                scope=scope,
                candidates=candidates,
                updates=frozenset(clause.number for clause in clauses.updates),
                source=source,
                pair=pair,
                clauses=clauses,
                plain=plain,
                judged=judged,
                identities=self._numbered(snapshot, clauses, plain, judged),
            )

    def _numbered(
        self, snapshot: Snapshot, clauses: Clauses, plain: PlainClauses, judged: Callable[[str], JudgedMerge]
    ) -> tuple[IdentityColumn, ...]:
        """Return the identity columns for which some insert has no value."""
        rules, uri = read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri), self._context.root
        if not rules.identities or not clauses.not_matched:
            return ()
        if plain.inserts is not None:
            # A plain insert leaves all of them to the table.
            return tuple(rules.identities.values())
        values = [clause.values for clause in judged(self.clauses_not_plain).clauses.not_matched]
        lacking = {each.name: each for assigned in values for each in rules.lacking(assigned, uri)}
        return tuple(lacking.values())

    def _pair(self, snapshot: Snapshot, source: StructType) -> PairColumns:
        return PairColumns(
            target=snapshot.delta_schema,
            source=source,
            target_alias=self._merge.target_alias,
            source_alias=self._merge.source_alias,
        )

    def _judging(self, snapshot: Snapshot, source: MaterializedSource) -> Callable[[str], JudgedMerge]:
        @functools.cache
        def judge() -> JudgedMerge:
            from airflow_txlog.jobs.operations.merge.by_spark import judge_merge  # noqa: PLC0415 - only with Spark

            return judge_merge(
                self._context, self._gate, self._merge, snapshot, source, keeps_members=self.keeps_members
            )

        return lambda why: self._context.executor.by_spark(why, judge)

    def _accepted(self, snapshot: Snapshot, pair: PairColumns, judged: Callable[[str], JudgedMerge]) -> Clauses:
        """Return the clauses once they and ON are accepted: plain ones without Spark, others by it."""
        why = self._why_spark(snapshot, pair)
        if why is not None:
            return judged(why).clauses
        for text in self._texts:
            self._gate.used |= set(self._gate.parameters_in(text))
        return Clauses.of(self._merge.clauses)

    def _why_spark(self, snapshot: Snapshot, pair: PairColumns) -> str | None:
        """Return why Spark has to judge or to evaluate the texts; None if they are plain.

        The size of the source is not considered, because it may not be known yet.
        """
        if not key_columns(self._context, self._merge, pair):
            return self.keys_not_plain
        why_not = self._plain(snapshot, pair).why_not
        if why_not is not None:
            return f"{self.clauses_not_plain}: {why_not}"
        try:
            for text in self._texts:
                self._gate.check_clocks(text, [*pair.target.names, *pair.source.names])
        except UnsupportedPredicate:
            # Only Spark knows which of the columns a clause sees.
            return "a text has a name that is a column and a clock"
        return None

    def _plain(self, snapshot: Snapshot, pair: PairColumns) -> PlainClauses:
        """Return the parts of the clauses that tasks compute, read once as long as columns and rules stay."""
        known, read = self._last_plain, (self._merge, snapshot.metadata, pair)
        if known is None or known[0] != read:
            self._last_plain = known = read, plain_clauses(self._context, self._merge, snapshot, pair)
        return known[1]

    @property
    def _texts(self) -> list[str]:
        return [self._merge.on, *self._merge.clause_texts]

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """Return the source: materialized once, or again in each attempt if it reads the target."""
        context = self._context
        if self._materialized is None:
            self._materialized = self._saved()
            if self._materialized is not None:
                self._materialized = deduplicated(context, self._materialized)
                self.meet(snapshot, self._materialized.columns)
        if self._materialized is not None and not self._materialized.reads_target:
            return self._materialized
        with context.step("materialize"):
            # Other source rows: no finding about the previous ones holds.
            written = self._written_down(tx, snapshot, memory.forget)
        self._materialized = deduplicated(context, written)
        context.log(f"the source has {plural(self._materialized.num_rows, 'row')}")
        return self._materialized

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Check the columns of the source, once they are known and before a row is read."""

    def columns_met(self, columns: StructType) -> StructType:
        """Return the columns of the rows that meet the table: those of the source, unless they are made of its rows."""
        return columns

    def _saved(self) -> MaterializedSource | None:
        """Return the source that an earlier try has materialized."""
        context = self._context
        saved = saved_source(context)
        if saved is None:
            return None
        self._gate.used.update(saved.parameters)
        return read_again(context, saved, context.executor.stored_columns(saved.schema))

    def _written_down(self, tx: Transaction, snapshot: Snapshot, forget: Callable[[], None]) -> MaterializedSource:
        """Materialize the source's rows. `forget` is called before they are evaluated. Raises NeedsSpark."""
        context, gate = self._context, self._gate
        source = context.executor.source(context, gate, self._merge.source, "source", snapshot)
        self.meet(snapshot, source.columns)
        first_row_wanted(context, source.columns)
        context.executor.foresee(lambda: why_spark_judges(context, source.columns, source=True))
        met = self.columns_met(source.columns)
        context.executor.foresee(lambda: self._why_spark(snapshot, self._pair(snapshot, met)))
        if source.reads_target:
            tx.read_whole_table()
        forget()
        return source.materialize(gate.used)

    def _evolved(self, tx: Transaction, snapshot: Snapshot, source: MaterializedSource) -> Snapshot:
        """Return the table with the columns that this merge gives it."""
        if not self._merge.schema_evolution:
            return snapshot
        from airflow_txlog.jobs.operations.merge.by_spark import columns_for_evolution  # noqa: PLC0415

        columns = assigned_columns(columns_for_evolution(source), self._merge.clauses, self._merge.target_alias)
        metadata = evolved_metadata(self._context, tx, columns)
        return snapshot if metadata is snapshot.metadata else snapshot.with_metadata(metadata)

    def _of_interest(
        self,
        snapshot: Snapshot,
        pair: PairColumns,
        judged: Callable[[str], JudgedMerge],
        clauses: Clauses,
        source: MaterializedSource,
    ) -> Predicate:
        """Return a predicate for rows that ON may match, or on which a clause acts without a match (soundness A14)."""
        context = self._context
        conditions = [clause.condition for clause in clauses.not_matched_by_source]
        if None in conditions:
            return Predicate.true()
        auto = self._auto.of(snapshot, pair, source, self._merge.on, judged)
        read = both(both(self._on(pair), auto), keys_in_reach(context, snapshot, pair, source, self._merge.on))
        for text in filter(None, conditions):
            used = self._gate.parameters_in(text)
            read = either(read, read_condition(context, snapshot, text, used, alias=pair.target_alias))
        if auto is not None:
            context.log(f"what ON can match is bounded by the source, which names {described(auto)}")
        return read

    def _taking_part(self, snapshot: Snapshot) -> Predicate | None:
        """Return the predicate for rows that take part; None if all do."""
        field = None if self.open_until is None else snapshot.delta_schema.find(self.open_until)
        if field is None:
            return None
        tree = null_test(Operand.of(field), is_null=True)
        return Predicate(describe(tree), tree, frozenset((field.name,)))

    def _on(self, pair: PairColumns) -> Predicate:
        """Return the condition that ON imposes on the target alone."""
        context = self._context
        return target_conjuncts(
            self._merge.on,
            pair.target,
            target_alias=pair.target_alias,
            source_alias=pair.source_alias,
            parameters=context.parameters,
            time_zone=context.spec.time_zone,
            source_columns=pair.source.names,
            lenient=True,
        )

    def find(self, prepared: PreparedMerge, plan: FilePlan) -> Matches:
        """Return all pairs, and the rows on which a clause acts because nothing matched."""
        clauses, pair, source = prepared.clauses, prepared.pair, prepared.source
        if plan.num_files == 0 or (source.num_rows == 0 and not clauses.not_matched_by_source):
            return Matches()
        acting, may_meet_many = prepared.plain.acting, clauses.tolerates_many_matches
        taking_part = self._taking_part(prepared.snapshot)
        only = None if taking_part is None else taking_part.tree
        if acting is not None:
            found = find_by_keys(
                self._context, plan, self._merge, pair, source, acting, may_meet_many=may_meet_many, only=only
            )
            if found is not None:
                return found
        return prepared.judged("the keys of the source are more than one task may hold").pairs(plan, pair, only)

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        """Raise AmbiguousMerge; and MatchNotFound if every source row must match and one does not."""
        context = self._context
        if not prepared.clauses.tolerates_many_matches:
            _check_unambiguous(context, found)
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

    def images(self, prepared: PreparedMerge, updated: FilePlan) -> NewRows:
        if prepared.plain.updates is not None:
            return plain_images(self._context, updated, prepared.source, prepared.plain.updates)
        return prepared.judged(TOO_MANY_ROWS).images(updated, prepared.snapshot.delta_schema, prepared.row_ids)

    def inserts_wanted(self, prepared: PreparedMerge, matches: Matches) -> Mapping[int, str]:
        """Return fingerprints of the matched rows and of the first values that the table gives, from which the inserted
        rows of a bucket follow.
        """
        if not prepared.clauses.not_matched or prepared.source.num_rows == 0:
            return {}
        left_out, count = self.inserts_nothing(matches), prepared.source.num_buckets
        if left_out.num_rows == prepared.source.num_rows:
            return {}
        handed = self._handed_out(prepared, matches)
        return {
            number: f"{number}/{count}:{digest}" + ("" if handed is None else handed.first_values(number))
            for number, digest in enumerate(left_out.fingerprints(count))
        }

    def inserts_nothing(self, matches: Matches) -> SourceRowSet:
        """Return the source rows that insert no row, because they matched one."""
        return matches.source_rows

    def _handed_out(self, prepared: PreparedMerge, matches: Matches) -> HandedOut | None:
        """Return the values of the identity columns for all rows that may be inserted; None if the table gives none."""
        if not prepared.identities:
            return None
        return self._numbering.hand_out(prepared.identities, prepared.source, self.inserts_nothing(matches).parts)

    def marks(self, prepared: PreparedMerge, matches: Matches) -> Mapping[str, int]:
        handed = self._handed_out(prepared, matches)
        return {} if handed is None else handed.marks

    def inserts(self, prepared: PreparedMerge, matches: Matches, buckets: Collection[int]) -> NewRows:
        source, left_out, handed = prepared.source, self.inserts_nothing(matches), self._handed_out(prepared, matches)
        if prepared.plain.inserts is not None:
            return plain_inserts(self._context, source, left_out, prepared.plain, buckets, handed)
        return prepared.judged(TOO_MANY_ROWS).inserts(left_out, buckets, handed)

    def parameters(self, prepared: PreparedMerge) -> dict[str, Any]:
        found = {"predicate": predicate_parameter([self._merge.on]), **prepared.clauses.parameters()}
        is_made_here = self._merge.source_alias == SOURCE_ALIAS
        return {name: for_people(text) for name, text in found.items()} if is_made_here else found

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


def _check_unambiguous(context: JobContext, found: Found) -> None:
    """Raise AmbiguousMerge if two source rows match one target row."""
    many, first = found.matches.met_by_many()
    if first is None:
        return
    file, row = first
    path = found.plan.name_of(file)
    raise AmbiguousMerge(
        f"{context.root}: at least {many} target rows are matched by more than one source row, the first of them row "
        f"{row} of {path}. It is not defined which one acts: make the source unique in the columns of ON, or choose "
        "one row of each key by deduplicate_by. Nothing was changed.",
        table=context.root,
        path=path,
        row=row,
    )
