"""MERGE: source rows meet target rows; matched target rows are updated or deleted, unmatched source rows inserted.

The source is pinned first. One Spark job finds every pair that ON matches and the clause that acts on it; the driver
holds the pairs as numbers, judges ambiguity and knows which source rows matched nothing; a second job copies the
touched files without the acted rows and writes the new images and the inserted rows. The invariant: which clause acts
on which pair is decided once, in the first job, over all pairs that ON matches. Source: protocol notes 6.4;
soundness A2, A13; run notes 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import NullType
from pyspark.sql.types import StructType as SparkSchema

from airflow_txlog.datafiles.positions import POSITION_BITS
from airflow_txlog.datafiles.tasks import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, ScanTask
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate, target_conjuncts
from airflow_txlog.engine.table.schema import StructType, parse_schema
from airflow_txlog.errors import AmbiguousMerge, InvalidJobSpec
from airflow_txlog.jobs.clauses import (
    Clauses,
    Sides,
    check_clauses,
    clause_of_row,
    columns_for_images,
    deciding_sql,
    image_sql,
)
from airflow_txlog.jobs.commit import Change, predicate_parameter
from airflow_txlog.jobs.context import JobContext, plural
from airflow_txlog.jobs.find import FoundRows, by_file, files_outside, scan_columns
from airflow_txlog.jobs.inputs import PinnedSource, build_source, pin
from airflow_txlog.jobs.partitions import Partitions
from airflow_txlog.jobs.rounds import Outcome, run_rounds
from airflow_txlog.jobs.running import collect
from airflow_txlog.jobs.scan import FilePlan, bins_for, plan_files, scan_frame
from airflow_txlog.jobs.schemas import is_ansi, spark_table_schema, without_metadata
from airflow_txlog.jobs.scope import both, check_may_remove_rows, files_inside, read_scope
from airflow_txlog.jobs.sql import SqlGate, columns_named, quoted
from airflow_txlog.jobs.stage import layout_of, stage, unstage

# Below this the source's columns are sent to every task; above it both sides are shuffled. Spark cannot choose: it does
# not know how many rows a scan of ours yields.
BROADCAST_BYTES = 64 * 1024 * 1024


def merge(context: JobContext) -> Outcome:
    """Run the job of `context.spec`; raises TxlogError."""
    if context.arguments["target_alias"].lower() == context.arguments["source_alias"].lower():
        raise InvalidJobSpec("target_alias and source_alias must differ.", argument="source_alias")
    job = _Merge(context)
    return run_rounds(context, job.plan)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The pairs that ON matches, collected: an address, a source row and the acting clause (or null) each."""

    rows: pa.Table

    def acted(self, numbers: Iterable[int]) -> FoundRows:
        """The target rows on which these clauses act, by file."""
        acting = pc.is_in(self.rows.column(CLAUSE_COLUMN), value_set=pa.array(list(numbers), pa.int32()))
        rows = self.rows.filter(acting)
        if len(pc.unique(rows.column(ADDRESS_COLUMN))) < rows.num_rows:
            # Only a merge that tolerates many matches gets here: any of them says the same.
            one = rows.group_by(ADDRESS_COLUMN).aggregate([(ROW_ID_COLUMN, "min"), (CLAUSE_COLUMN, "min")])
            rows = one.rename_columns([ADDRESS_COLUMN, ROW_ID_COLUMN, CLAUSE_COLUMN])
        return by_file(rows)

    def matched_files(self) -> list[int]:
        """The plan's row numbers of the files in which ON matches some row, acted upon or not."""
        addresses = pc.unique(self.rows.column(ADDRESS_COLUMN))
        files: list[int] = pc.unique(pc.shift_right(addresses, pa.scalar(POSITION_BITS, pa.int64()))).to_pylist()
        return files

    def matched_source_rows(self) -> pa.Array:
        """The source rows that matched some target row, once each."""
        return pc.unique(self.rows.column(ROW_ID_COLUMN))


class _Merge:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context, context.spec.bound_parameters)
        self._pinned: PinnedSource | None = None

    def plan(self, tx: Transaction) -> Change:
        """Find, stage, and say what the commit shall be."""
        context, snapshot = self._context, tx.snapshot
        assert snapshot is not None
        source = self._source(tx, snapshot)
        with context.step("plan"):
            sides = self._sides(snapshot, source)
            self._gate.condition(context.arguments["on"], sides.pair)
            clauses = check_clauses(self._gate, sides, context.arguments["clauses"])
            if clauses.matched:
                check_may_remove_rows(snapshot, "a MERGE with WHEN MATCHED clauses")
            partitions = Partitions(context, self._gate, snapshot.delta_schema, snapshot.partition_columns)
            scope, candidates = self._read(tx, snapshot, sides, partitions)
        pruned = snapshot.num_files - candidates.num_rows
        context.log(f"{plural(snapshot.num_files, 'file')} considered, {pruned} pruned, {candidates.num_rows} to scan")
        with context.step("find"):
            plan = plan_files(snapshot, candidates, context.spec.time_zone)
            pairs = self._find(plan, snapshot, sides, clauses, source)
            # A compaction of files that ON matches nowhere, and that lands first, does not concern us.
            tx.read_files(files_outside(candidates, pairs.matched_files()), matched=False)
        removed_rows = pairs.acted(clause.number for clause in clauses.matched)
        updated = pairs.acted(clause.number for clause in clauses.updates)
        context.log(
            f"{pairs.rows.num_rows} matches; {plural(updated.num_rows, 'row')} to update, "
            f"{removed_rows.num_rows - updated.num_rows} to delete, in {plural(len(removed_rows.positions), 'file')}"
        )
        with context.step("rewrite"):
            copies = removed_rows.plan(plan, _partly(plan, removed_rows))
            new_rows = self._new_rows(snapshot, sides, clauses, source, updated.plan(plan), pairs)
            staged = stage(context, layout_of(context, snapshot), copies=copies, rows=new_rows)
            new_files = [file for file in staged if file.source is None]
            try:
                if scope is not None:
                    partitions.check_inside(scope, [tuple(file.partition_values.values()) for file in new_files])
            except BaseException:
                unstage(staged)
                raise
        touched = candidates.take(pa.array(sorted(removed_rows.positions), pa.int64()))
        metrics = self._metrics(source, updated.num_rows, removed_rows.num_rows - updated.num_rows)
        copied = sum(file.num_records for file in staged if file.source is not None)
        inserted = sum(file.num_records for file in new_files) - updated.num_rows
        metrics |= {
            "numTargetRowsInserted": inserted,
            "numTargetRowsCopied": copied,
            "numOutputRows": inserted + updated.num_rows + copied,
            "numTargetFilesAdded": len(staged),
            "numTargetFilesRemoved": touched.num_rows,
            "numTargetBytesAdded": sum(file.size_bytes for file in staged),
            "numTargetBytesRemoved": sum(touched.column("size").to_pylist()),
        }
        return Change(
            operation="MERGE",
            parameters={"predicate": predicate_parameter([context.arguments["on"]]), **clauses.parameters()},
            staged=staged,
            removed=touched,
            metrics=metrics,
            files={
                "considered": snapshot.num_files,
                "pruned": pruned,
                "rewritten": copies.num_files,
                "added": len(staged),
                "removed": touched.num_rows,
            },
        )

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
        conjuncts: Predicate = target_conjuncts(
            context.arguments["on"],
            snapshot.delta_schema,
            snapshot.partition_columns,
            target_alias=sides.target_alias,
            source_alias=sides.source_alias,
            parameters=context.spec.bound_parameters,
            time_zone=context.spec.time_zone,
            source_columns=sides.source.names,
            lenient=True,
        )
        files = tx.read(both(conjuncts, scope_read))
        return scope, files_inside(partitions, scope, files)

    def _find(self, plan: FilePlan, snapshot: Snapshot, sides: Sides, clauses: Clauses, source: PinnedSource) -> _Pairs:
        """Every pair that ON matches, with the clause that acts on it. Raises AmbiguousMerge."""
        if plan.num_files == 0 or source.num_rows == 0:
            return _Pairs(rows=_PAIR_SCHEMA.empty_table())
        context = self._context
        texts = [context.arguments["on"], *clauses.texts_on_pairs()]
        target_view, source_view = context.view_name(), context.view_name()
        scan_columns(context, plan, _named(texts, snapshot.delta_schema)).createOrReplaceTempView(target_view)
        source.frame.createOrReplaceTempView(source_view)
        named = _named(texts, _delta(source))
        size = source.bytes_of(source.schema.names if named is None else named)
        s, t = quoted(sides.source_alias), quoted(sides.target_alias)
        query = (
            f"SELECT /*+ {_hint(size, s)} */ {t}.{ADDRESS_COLUMN}, {s}.{ROW_ID_COLUMN}, "
            f"{deciding_sql(clauses.matched)} AS {CLAUSE_COLUMN} "
            f"FROM {quoted(target_view)} AS {t} JOIN {quoted(source_view)} AS {s} ON (\n{context.arguments['on']}\n)"
        )
        rows = collect(self._gate.run(query), "match source and target").cast(_PAIR_SCHEMA)
        return _Pairs(rows=self._judged(rows, plan, clauses))

    def _judged(self, rows: pa.Table, plan: FilePlan, clauses: Clauses) -> pa.Table:
        """The pairs, at most one for each target row where clauses act on it; insert-only merges do not care."""
        addresses = rows.column(ADDRESS_COLUMN)
        if not clauses.matched or len(pc.unique(addresses)) == len(addresses):
            return rows
        if not clauses.tolerates_many_matches:
            raise self._ambiguous(addresses, plan)
        return rows

    def _ambiguous(self, addresses: pa.ChunkedArray, plan: FilePlan) -> AmbiguousMerge:
        counts = pc.value_counts(addresses).to_pylist()
        first = min(entry["values"] for entry in counts if entry["counts"] > 1)
        many = sum(entry["counts"] > 1 for entry in counts)
        file, row = first >> POSITION_BITS, first & ((1 << POSITION_BITS) - 1)
        path = plan.table.column("location")[file].as_py()
        return AmbiguousMerge(
            f"{self._context.root}: {many} target rows are matched by more than one source row, the first of them row "
            f"{row} of {path}. Which one shall act cannot be told: make the source unique in the columns of ON. "
            "Nothing was changed.",
            table=self._context.root,
            path=path,
            row=row,
        )

    def _new_rows(
        self,
        snapshot: Snapshot,
        sides: Sides,
        clauses: Clauses,
        source: PinnedSource,
        updated: FilePlan,
        pairs: _Pairs,
    ) -> DataFrame | None:
        """Updated images and inserted rows, as the table's columns; None where there is neither."""
        images = self._images(snapshot, sides, clauses, source, updated) if updated.num_files else None
        inserts = self._inserts(sides, clauses, source, pairs) if clauses.not_matched and source.num_rows else None
        if images is not None and inserts is not None:
            return _typed(images, sides.target).unionByName(_typed(inserts, sides.target))
        rows = images if inserts is None else inserts
        return None if rows is None else _typed(rows, sides.target)

    def _images(
        self, snapshot: Snapshot, sides: Sides, clauses: Clauses, source: PinnedSource, updated: FilePlan
    ) -> DataFrame:
        context = self._context
        needed = columns_for_images(clauses.updates, snapshot.delta_schema)
        schema = pa.schema([field for field in updated.schema if needed is None or field.name in needed])
        task = ScanTask(bins=bins_for(context, updated), schema=schema, rows="only", with_row_id=True, with_clause=True)
        target_view, source_view = context.view_name(), context.view_name()
        scan_frame(context, updated, task).createOrReplaceTempView(target_view)
        source.frame.createOrReplaceTempView(source_view)
        s, t = quoted(sides.source_alias), quoted(sides.target_alias)
        columns = image_sql(sides, clauses.updates, clause_of_row(sides.target_alias), is_update=True)
        hint = _hint(source.bytes_of([ROW_ID_COLUMN, *source.schema.names]), s)
        return self._gate.run(
            f"SELECT /*+ {hint} */ {', '.join(columns)} FROM {quoted(target_view)} AS {t} "
            f"JOIN {quoted(source_view)} AS {s} ON {t}.{ROW_ID_COLUMN} = {s}.{ROW_ID_COLUMN}"
        )

    def _inserts(self, sides: Sides, clauses: Clauses, source: PinnedSource, pairs: _Pairs) -> DataFrame:
        context = self._context
        matched = pairs.matched_source_rows()
        unmatched = source.frame
        if len(matched):
            ids = context.spark.createDataFrame(pa.table({ROW_ID_COLUMN: matched}))
            hint = "broadcast" if matched.nbytes < BROADCAST_BYTES else "shuffle_hash"
            unmatched = unmatched.join(ids.hint(hint), ROW_ID_COLUMN, "left_anti")
        view = context.view_name()
        unmatched.createOrReplaceTempView(view)
        s = quoted(sides.source_alias)
        deciding = deciding_sql(clauses.not_matched)
        columns = image_sql(sides, clauses.not_matched, f"({deciding})", is_update=False)
        return self._gate.run(f"SELECT {', '.join(columns)} FROM {quoted(view)} AS {s} WHERE ({deciding}) IS NOT NULL")

    def _metrics(self, source: PinnedSource, updated: int, deleted: int) -> dict[str, int]:
        context = self._context
        zeros = (
            "numTargetRowsNotMatchedBySourceUpdated",
            "numTargetRowsNotMatchedBySourceDeleted",
            "numTargetChangeFilesAdded",
            "numTargetDeletionVectorsAdded",
            "numTargetDeletionVectorsRemoved",
            "numTargetDeletionVectorsUpdated",
        )
        return {
            "numSourceRows": source.num_rows,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
            "numTargetRowsMatchedUpdated": updated,
            "numTargetRowsMatchedDeleted": deleted,
            **dict.fromkeys(zeros, 0),
            "executionTimeMs": sum(context.step_ms(name) for name in ("pin", "plan", "find", "rewrite")),
            "materializeSourceTimeMs": context.step_ms("pin"),
            "scanTimeMs": context.step_ms("find"),
            "rewriteTimeMs": context.step_ms("rewrite"),
        }


_PAIR_SCHEMA = pa.schema([(ADDRESS_COLUMN, pa.int64()), (ROW_ID_COLUMN, pa.int64()), (CLAUSE_COLUMN, pa.int32())])


def _typed(frame: DataFrame, target: SparkSchema) -> DataFrame:
    """The frame with a type for each column that is only NULL: a union or a shuffle takes none without one."""
    have = {field.name: field.dataType for field in frame.schema}
    return frame.select(
        *(
            frame[quoted(field.name)].cast(field.dataType).alias(field.name)
            if isinstance(have[field.name], NullType)
            else frame[quoted(field.name)]
            for field in target
        )
    )


def _partly(plan: FilePlan, found: FoundRows) -> list[int]:
    counts = plan.table.column("num_records").to_pylist()
    return [number for number, positions in found.positions.items() if counts[number] != len(positions)]


def _named(texts: Iterable[str], schema: StructType) -> frozenset[str] | None:
    """The schema's columns that some of the texts may mean; None for any."""
    named: frozenset[str] = frozenset()
    for text in texts:
        found = columns_named(text, schema)
        if found is None:
            return None
        named |= found
    return named


def _delta(source: PinnedSource) -> StructType:
    return parse_schema(without_metadata(source.schema).json())


def _hint(size_bytes: int, alias: str) -> str:
    return f"BROADCAST({alias})" if size_bytes < BROADCAST_BYTES else f"SHUFFLE_HASH({alias})"
