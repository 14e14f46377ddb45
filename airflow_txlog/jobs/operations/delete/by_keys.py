"""DELETE by keys: the rows of the subjects that a list, a file, a table or a query names.

The keys are evaluated once, brought to the exact type of their column (`key_values`) and materialized like a merge's
source: a subject who is added to the list while the job runs is in all of it or in none of it. What is found is, for
each row, which key it has; so which keys matched nothing follows from the matches in all live files. The invariant: a
row goes exactly where its column equals a key by value, and every key is accounted for. Source: soundness A2, B7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, CLAUSE_COLUMN, ROW_ID_COLUMN
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.predicate.tree import FALSE, Column, Comparison, Membership, Node, Operator, all_of
from airflow_txlog.engine.table.schema.types import Primitive, StructField
from airflow_txlog.errors import InvalidJobSpec, KeysNotFound, UnknownColumn
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.files.source import MaterializedSource, Source, build_source, materialize, materialized_before
from airflow_txlog.jobs.operations.delete.key_values import Keys, check_key_column, convert_keys
from airflow_txlog.jobs.operations.merge.pairs import join_hint
from airflow_txlog.jobs.resume.commit import predicate_parameter
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.find import scan_columns
from airflow_txlog.jobs.rows.matches import ADDRESSED, Matches
from airflow_txlog.jobs.rows.metrics import file_metrics
from airflow_txlog.jobs.rows.operation import Found, Prepared, RowOperation, StagedWork
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.row_filters import row_filter_of
from airflow_txlog.jobs.sql.schemas import spark_schema
from airflow_txlog.jobs.sql.scope import check_may_remove_rows, partition_scope
from airflow_txlog.parameters import decode_parameter
from airflow_txlog.records import Delete, KeySource, KeyValues
from airflow_txlog.wording import plural

# Above so many keys, files are pruned and conflicts judged by the least and the greatest.
MOST_KEYS = 10_000

KEY = "key"
# Types whose values lie in one order that all engines share; other types are compared row by row only.
_UNBOUNDED = (Primitive.BINARY, Primitive.BOOLEAN)
_BY_NUMBER = {Primitive.DATE: pa.int32(), Primitive.TIMESTAMP: pa.int64(), Primitive.TIMESTAMP_NTZ: pa.int64()}


@dataclass(frozen=True, kw_only=True)
class _Prepared(Prepared):
    source: MaterializedSource
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
        self._materialized: MaterializedSource | None = None
        self._values: pa.Array | None = None

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> _Prepared:
        """The keys materialized in their column's type, and the files that may hold one."""
        context, gate = self._context, self._gate
        check_may_remove_rows(snapshot, "DELETE")
        field = self._field(snapshot)
        source = self._source(tx, snapshot, field, memory)
        with context.step("plan"):
            scope = partition_scope(context, gate, snapshot)
            gate.check_all_used()
            # A column may have been widened since the keys were materialized; any other type is refused here.
            keys = convert_keys(self._key_values(source), field, context.root)
            read = keys_predicate(keys, field)
            files = scope.read_files(tx, read)
        return _Prepared(
            snapshot=snapshot,
            scope=scope,
            candidates=files,
            whole=files.slice(0, 0),
            source=source,
            field=field,
            read=read,
        )

    def _field(self, snapshot: Snapshot) -> StructField:
        name = self._described.column
        field = snapshot.delta_schema.find(name)
        if field is None:
            columns = snapshot.delta_schema.names
            raise UnknownColumn(
                f"{self._context.root} has no column {name!r} for the keys. Its columns are: {', '.join(columns)}. "
                "Nothing was read.",
                column=name,
                columns=columns,
            )
        check_key_column(field, self._context.root)
        return field

    def _source(self, tx: Transaction, snapshot: Snapshot, field: StructField, memory: Memory) -> MaterializedSource:
        """The keys, materialized once for all attempts and tries, but in each attempt where the target holds them."""
        context = self._context
        if self._materialized is None:
            self._materialized = materialized_before(context, self._gate)
        if self._materialized is not None and not self._materialized.reads_target:
            return self._materialized
        with context.step("materialize"):
            given, reads_target = self._given(snapshot)
            if reads_target:
                tx.read_whole_table()
            keys = convert_keys(given, field, context.root)
            # Other keys: nothing that was found about the last ones holds.
            memory.forget()
            self._values = keys.values
            self._materialized = materialize(
                context, Source(frame=self._frame(keys), reads_target=reads_target), self._gate
            )
            context.saved_inputs.num_keys_given = keys.num_given
        context.log(f"{plural(keys.num_given, 'key')} given, {len(keys.values)} of them different")
        return self._materialized

    def _given(self, snapshot: Snapshot) -> tuple[pa.ChunkedArray | list[Any], bool]:
        """The keys as they came, and whether they were read of the target."""
        described = self._described
        if isinstance(described, KeyValues):
            return [decode_parameter(value) for value in described.values], False
        source = build_source(self._context, self._gate, snapshot, described.source, "keys.source")
        name = _source_column(described, source.frame)
        return collect(source.frame.select(source.frame[quoted(name)]), "read the keys").column(0), source.reads_target

    def _frame(self, keys: Keys) -> DataFrame:
        table = pa.table({KEY: keys.values})
        return self._context.spark.createDataFrame(table, spark_schema(table.schema))

    def _key_values(self, source: MaterializedSource) -> pa.Array:
        if self._values is None:
            self._values = collect(source.frame.select(KEY), "read the materialized keys").column(0).combine_chunks()
        return self._values

    def find(self, prepared: _Prepared, plan: FilePlan) -> Matches:
        """Every row that has a key, with the key's number, to be deleted by the only clause there is."""
        context, source, name = self._context, prepared.source, prepared.field.name
        if plan.num_files == 0 or source.num_rows == 0:
            return Matches()
        target_view, source_view = context.view_name(), context.view_name()
        # By this most rows are dropped before they reach Spark, which has the last word on the others.
        row_filter = row_filter_of(prepared.read, {name})
        scan_columns(context, plan, frozenset({name}), row_filter).createOrReplaceTempView(target_view)
        source.frame.createOrReplaceTempView(source_view)
        hint = join_hint(source.memory_bytes([KEY, ROW_ID_COLUMN]), "s")
        query = (
            f"SELECT /*+ {hint} */ t.{ADDRESS_COLUMN}, s.{ROW_ID_COLUMN}, CAST(0 AS INT) AS {CLAUSE_COLUMN} "
            f"FROM {quoted(target_view)} AS t JOIN {quoted(source_view)} AS s ON t.{quoted(name)} = s.{KEY}"
        )
        return Matches(pairs=collect(context.spark.sql(query), "find the rows of the keys").cast(ADDRESSED))

    def check(self, prepared: _Prepared, found: Found) -> None:
        """Raises KeysNotFound where every key must match and one does not."""
        context = self._context
        matched, count = len(found.matches.matched_source_rows()), prepared.source.num_rows
        context.log(f"{matched} of {plural(count, 'key')} matched")
        if context.record(Delete).require_match and matched < count:
            within = "" if prepared.scope.text is None else f" within {prepared.scope.text}"
            raise KeysNotFound(
                f"{context.root}: {count - matched} of {plural(count, 'key')} are in no row's {prepared.field.name!r}"
                f"{within} at version {prepared.snapshot.version}, and require_match asks for every one. "
                "Nothing was changed.",
                table=context.root,
                column=prepared.field.name,
                given=count,
                matched=matched,
            )

    def parameters(self, prepared: _Prepared) -> dict[str, Any]:
        """How many keys there were, and never one of them."""
        scope = prepared.scope.text
        keys = f"{prepared.field.name} IN ({plural(prepared.source.num_rows, 'key')})"
        return {"predicate": predicate_parameter([keys if scope is None else f"({scope}) AND {keys}"])}

    def metrics(self, prepared: _Prepared, found: Found, work: StagedWork) -> dict[str, int]:
        return {
            **file_metrics(self._context, work),
            "numDeletedRows": found.removed.num_rows,
            "numKeysGiven": self._context.saved_inputs.num_keys_given,
            "numKeys": prepared.source.num_rows,
            "numKeysMatched": len(found.matches.matched_source_rows()),
        }


def keys_predicate(keys: Keys, field: StructField) -> Predicate:
    """What rows with one of the keys satisfy: the keys themselves, or the range that they span.

    Its text, which errors show, contains no key.
    """
    text = f"{field.name} IN ({plural(len(keys.values), 'key')})"
    return Predicate(text, _tree(keys.values, field), frozenset({field.name}))


def _tree(values: pa.Array, field: StructField) -> Node:
    if len(values) == 0:
        return FALSE
    column = Column(field.name, field.type)
    if isinstance(field.type, Primitive) and field.type in _BY_NUMBER:
        values = values.cast(_BY_NUMBER[field.type])
    plain = values.to_pylist()
    # Lists of floats are not compared as single floats are, where zeros are concerned.
    is_float = field.type in (Primitive.FLOAT, Primitive.DOUBLE)
    if field.type in _UNBOUNDED or (len(plain) <= MOST_KEYS and not is_float):
        return Membership(column, tuple(plain))
    return all_of([Comparison(column, Operator.GE, min(plain)), Comparison(column, Operator.LE, max(plain))])


def _source_column(described: KeySource, frame: DataFrame) -> str:
    names: list[str] = frame.schema.names
    if described.source_column is None and len(names) == 1:
        return names[0]
    wanted = described.column if described.source_column is None else described.source_column
    found = [name for name in names if name.lower() == wanted.lower()]
    if len(found) != 1:
        raise InvalidJobSpec(
            f"keys.source has {'no' if not found else 'more than one'} column {wanted!r}; its columns are: "
            f"{', '.join(names)}. Name the one that holds the keys as keys.source_column. Nothing was changed.",
            argument="keys.source_column",
        )
    return found[0]
