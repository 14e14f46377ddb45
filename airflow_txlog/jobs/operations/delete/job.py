"""DELETE by a condition, and by a list of keys.

Rows for which the predicate is TRUE are deleted; a row for which it is NULL stays. If the predicate names only
partition columns, whole files are removed unread; otherwise files that hold a matching row are copied without it.

Keys are given as a list, a file, a table or a query. They are evaluated once, converted to the exact type of their
column (`key_values`), materialized and encrypted: a subject who is added to the list while the job runs is in all of it
or in none of it. Each found row has the number of its key, so the keys without a match follow from the matches in all
live files. The invariant: a row is deleted exactly if its column equals a key by value, and every key is accounted
for. Source: delta-spark, DeleteCommand; soundness A2, A9, B7.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Delete, KeySource, KeyValues
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import Acting, HeldKeys, pairs_of_keys
from airflow_txlog.datafiles.tasks.row_values import ActingClauses
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN, Task
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json, to_arrow
from airflow_txlog.engine.table.schema.types import StructField, StructType
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.errors import KeysNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import scan_frame, through
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan
from airflow_txlog.jobs.files.stage import Staged
from airflow_txlog.jobs.operations.delete.key_values import check_key_column, convert_keys
from airflow_txlog.jobs.operations.merge.keys import join_hint
from airflow_txlog.jobs.operations.merge.source_scope import keys_predicate
from airflow_txlog.jobs.resume.attempts import check_may_remove_rows, predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.by_condition import ByCondition, PreparedByCondition
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork, file_metrics
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.given_keys import given_keys
from airflow_txlog.jobs.source.materialized import (
    MaterializedSource,
    hashed_bytes,
    input_scan,
    materialized,
    read_again,
    read_input,
    saved_source,
    write_input,
)
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.columns import columns_named, missing_column
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.scope import Partitions, accepted_by_spark, is_exact, partition_scope, row_filter_of

KEY = "key"
_DOING = "find the rows of the keys"


@dataclass(frozen=True, kw_only=True)
class _Keys:
    """The materialized keys, and their rows: KEY and ROW_ID_COLUMN."""

    source: MaterializedSource
    rows: pa.Table

    @property
    def values(self) -> pa.Array:
        return whole(self.rows.column(KEY))


@dataclass(frozen=True, kw_only=True)
class _Prepared(Prepared):
    given: _Keys
    values: pa.Array
    """The given keys in the column's type in this version, in the same order."""
    field: StructField
    read: Predicate


class DeleteByKeys(RowOperation[_Prepared]):
    """DELETE of a job with `keys`."""

    name = "DELETE"
    writes_rows = False

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._gate = SqlGate(context)
        keys = context.record(Delete).keys
        assert keys is not None
        self._described = keys
        self._keys: _Keys | None = None

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """Return the materialized keys in their column's type, and the files that may hold one."""
        context, gate = self._context, self._gate
        check_may_remove_rows(snapshot, "DELETE")
        field = key_field(self._described, snapshot, context.root)
        given = self._materialized(tx, snapshot, field, memory)
        with context.step("plan"):
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            # A column may have been widened since the keys were materialized; any other type is refused here.
            values = convert_keys(given.values, field, context.root)
            read = keys_predicate(values, field, context.limits.delete_keys)
            files = scope.read_files(tx, read)
        return _Prepared(
            snapshot=snapshot, scope=scope, candidates=files, given=given, values=values, field=field, read=read
        )

    def _materialized(self, tx: Transaction, snapshot: Snapshot, field: StructField, memory: Memory) -> _Keys:
        """Return the keys: materialized once, or again in each attempt if the target holds them."""
        context, saved = self._context, saved_source(self._context)
        if self._keys is None and saved is not None:
            self._gate.used.update(saved.parameters)
            self._keys = self._read(read_again(context, saved, to_arrow(parse_schema(json.dumps(saved.schema)))))
        if self._keys is not None and not self._keys.source.reads_target:
            return self._keys
        with context.step("materialize"):
            given, reads_target = given_keys(context, self._gate, self._described, snapshot, called="keys")
            if reads_target:
                tx.read_whole_table()
            keys = convert_keys(given, field, context.root)
            # Other keys: no finding about the previous ones holds.
            memory.forget()
            column = StructType(fields=(StructField(name=KEY, type=field.type, nullable=True),))
            files = write_input(context, pa.table({KEY: keys}))
            described, stored = json.loads(schema_to_json(column)), to_arrow(column)
            source = materialized(
                context, Staged([*files], []), described, stored, self._gate.used, reads_target=reads_target
            )
            context.saved_inputs.num_keys_given = len(given)
            self._keys = self._read(source)
        context.log(f"{plural(len(given), 'key')} given, {len(keys)} of them different")
        return self._keys

    def _read(self, source: MaterializedSource) -> _Keys:
        context, what = self._context, "read the keys that were written down"
        return _Keys(source=source, rows=read_input(context, source.files, source.stored, what, context.input_key))

    def find(self, prepared: _Prepared, plan: FilePlan) -> Matches:
        """Return every row that has a key, with the key's number, to be deleted by the only clause."""
        context, rows, name = self._context, prepared.given.rows, prepared.field.name
        if plan.num_files == 0 or rows.num_rows == 0:
            return Matches()
        if not is_exact(prepared.field.type) or rows.num_rows > context.executor.most_sent_rows:
            why = f"the keys are of the type {prepared.field.type}, whose values it compares in its own way"
            return context.executor.by_spark(why, lambda: self._joined(prepared, plan))
        scan = addressed_scan(context, plan, frozenset({name}))
        keys = HeldKeys(
            columns=(prepared.values.cast(scan.schema.field(0).type),), numbers=whole(rows.column(ROW_ID_COLUMN))
        )
        acting = Acting(matched=ActingClauses(conditions={0: None}))
        task = Task(source=scan, steps=(partial(pairs_of_keys, keys, acting), pairs_packed))
        return Matches.of_packed(context.executor.run([task], PAIRS_SCHEMA, _DOING))

    def _joined(self, prepared: _Prepared, plan: FilePlan) -> Matches:
        """Return the same by a join in Spark: for a type with Spark's own comparison, or for very many keys."""
        context, given, name = self._context, prepared.given, prepared.field.name
        target_view, source_view = context.view_name(), context.view_name()
        # This filter drops most rows before they reach Spark, which decides about the others.
        row_filter = row_filter_of(prepared.read, {name})
        scan_frame(context, addressed_scan(context, plan, frozenset({name}), row_filter)).createOrReplaceTempView(
            target_view
        )
        scan = input_scan(context, given.source.files, given.rows.schema, context.input_key)
        scan_frame(context, scan).createOrReplaceTempView(source_view)
        hint = join_hint(context, hashed_bytes(given.rows.num_rows, 2) + given.rows.nbytes, "s")
        query = (
            f"SELECT /*+ {hint} */ t.{ADDRESS_COLUMN}, s.{ROW_ID_COLUMN}, CAST(0 AS INT) AS {CLAUSE_COLUMN} "
            f"FROM {quoted(target_view)} AS t JOIN {quoted(source_view)} AS s ON t.{quoted(name)} = s.{KEY}"
        )
        found = through(context.spark.sql(query), pairs_packed, PAIRS_SCHEMA)
        return Matches.of_packed(collect(found, _DOING))

    def check(self, prepared: _Prepared, found: Found) -> None:
        """Raise KeysNotFound if every key must match and one does not."""
        context = self._context
        matched, count = found.matches.source_rows.num_rows, prepared.given.rows.num_rows
        context.log(f"{matched} of {plural(count, 'key')} matched")
        if context.record(Delete).require_match and matched < count:
            within = "" if prepared.scope.text is None else f" within {prepared.scope.text}"
            raise KeysNotFound(
                f"{context.root}: {count - matched} of {plural(count, 'key')} are in no row's {prepared.field.name!r}"
                f"{within} at version {prepared.snapshot.version}, and require_match requires all of them. "
                "Nothing was changed.",
                table=context.root,
                column=prepared.field.name,
                given=count,
                matched=matched,
            )

    def parameters(self, prepared: _Prepared) -> dict[str, Any]:
        """Return the number of keys, and never one of them."""
        scope = prepared.scope.text
        keys = f"{prepared.field.name} IN ({plural(prepared.given.rows.num_rows, 'key')})"
        return {"predicate": predicate_parameter([keys if scope is None else f"({scope}) AND {keys}"])}

    def metrics(self, prepared: _Prepared, found: Found, work: StagedWork) -> dict[str, int]:
        return {
            **file_metrics(self._context, work),
            "numDeletedRows": found.removed.num_rows,
            "numKeysGiven": self._context.saved_inputs.num_keys_given,
            "numKeys": prepared.given.rows.num_rows,
            "numKeysMatched": found.matches.source_rows.num_rows,
        }


def key_field(described: KeyValues | KeySource, snapshot: Snapshot, root: str) -> StructField:
    """Return the table's column of the keys. Raises UnknownColumn, and as `check_key_column`."""
    name = described.column
    field = snapshot.delta_schema.find(name)
    if field is None:
        raise missing_column(f"{root} has no column {name!r} for the keys", name, snapshot.delta_schema.names)
    check_key_column(field, root)
    return field


def delete(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    if context.record(Delete).keys is None:
        return run_row_operation(context, _Delete)
    return run_row_operation(context, DeleteByKeys)


class _Delete(ByCondition[PreparedByCondition]):
    name = "DELETE"
    writes_rows = False

    def __init__(self, context: JobContext) -> None:
        super().__init__(context, SqlGate(context), context.record(Delete).predicate or "TRUE")

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> PreparedByCondition:
        """Accept the predicate; return the files that it may touch, and those that leave as a whole."""
        context, gate, condition = self._context, self._gate, self._condition
        with context.step("plan"):
            check_may_remove_rows(snapshot, "DELETE")
            partitions = Partitions(context, gate, snapshot.delta_schema, snapshot.partition_columns)
            condition_read = self._accepted(snapshot, lambda: accepted_by_spark(gate, snapshot, condition))
            scope = partition_scope(context, gate, snapshot, partitions)
            gate.check_all_used()
            files = scope.read_files(tx, condition_read)
            whole = files.slice(0, 0)
            named = columns_named(condition, snapshot.delta_schema)
            # A text that names no data column is worth the question to Spark.
            if named <= set(scope.partitions.columns) and scope.partitions.speaks_of_partitions_only(condition):
                files, whole = whole, scope.files_accepted(condition, files)
                if context.record(Delete).require_match or context.record(Delete).limits_old_rows:
                    # Whether a file without a count holds a row is known only after reading it.
                    counted = pa.array([count is not None for count in live_row_counts(whole)], pa.bool_())
                    files, whole = whole.filter(pc.invert(counted)), whole.filter(counted)
            return PreparedByCondition(
                snapshot=snapshot, scope=scope, candidates=files, whole=whole, condition=condition_read
            )

    def check(self, prepared: PreparedByCondition, found: Found) -> None:
        """Raise MatchNotFound if a row must match and none does."""
        # A file of which all rows are deleted already holds none.
        rows = found.removed.num_rows + sum(count or 0 for count in live_row_counts(prepared.whole))
        self._check_matched(prepared, rows, self._context.record(Delete).require_match)

    def metrics(self, prepared: PreparedByCondition, found: Found, work: StagedWork) -> dict[str, int]:
        deleted = known_sum([*live_row_counts(prepared.whole), found.removed.num_rows])
        # A delete that reads no file cannot always know how many rows went.
        return file_metrics(self._context, work) | ({} if deleted is None else {"numDeletedRows": deleted})
