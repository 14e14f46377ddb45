"""A merge by key columns, whose source must have each key once.

A MERGE refuses two source rows of one key only if they match a row, and inserts both if they match none. It inserts a
row with a NULL key on every run. A merge by keys refuses both before it looks for matches. The invariant: it puts no
key into the table twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import AnyClause, ByKeys, KeyedOperation, Merge
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.positions import places_of_different, whole
from airflow_txlog.datafiles.tasks.key_rows import NEAR
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.schema.types import DataType, Primitive
from airflow_txlog.errors import AmbiguousMerge, SchemaMismatch, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge.job import TOO_MANY_ROWS, MergeRows, PreparedMerge
from airflow_txlog.jobs.operations.merge.keys import (
    NOT_AS_THEY_ARE,
    SOURCE_ALIAS,
    TARGET_ALIAS,
    equal_columns,
    key_columns,
)
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.source.materialized import MaterializedSource, read_input, stored_of
from airflow_txlog.jobs.sql.columns import check_has_columns

if TYPE_CHECKING:
    from airflow_txlog.jobs.operations.merge.by_spark import JudgedMerge
    from airflow_txlog.jobs.operations.merge.clause_sql import Sides

_CHECKING = "check the keys of the source"
_EMPTY: dict[DataType, str] = {Primitive.STRING: "''", Primitive.BINARY: "X''"}


def kept_as_null(snapshot: Snapshot) -> dict[str, str]:
    """Return the partition columns whose empty value the log keeps as null, with SQL for that value.

    Source: protocol, "Partition Value Serialization".
    """
    fields = map(snapshot.delta_schema.find, snapshot.partition_columns)
    return {field.name: _EMPTY[field.type] for field in fields if field is not None and field.type in _EMPTY}


def check_key_columns(operation: ByKeys, snapshot: Snapshot, root: str) -> None:
    """Raise an error unless each key is a column of the table whose values are equal exactly if they are equal in SQL.

    Raises UnknownColumn, also for other columns that the table must have, and UnsupportedFeature.
    """
    for argument, names in operation.columns_named.items():
        if argument == "keys" or not operation.schema_evolution:
            check_has_columns(argument, names, snapshot.delta_schema.names, root)
    for field in map(snapshot.delta_schema.find, operation.keys):
        assert field is not None
        if field.is_char or field.is_collated:
            what = "is a char(n), which is stored padded" if field.is_char else "has a collation"
            raise UnsupportedFeature(
                f"{root}: the column {field.name!r} cannot be a key of this operation: it {what}, so that different "
                "texts may be equal. Use DeltaMergeOperator. Nothing was read.",
                table=root,
                feature="keys of this column",
                needed_to=f"{operation.name} by keys",
            )


def check_source_columns(operation: ByKeys, names: Sequence[str]) -> None:
    """Raise UnknownColumn for columns that an argument names and a source with these columns does not have."""
    for argument, wanted in operation.columns_named.items():
        check_has_columns(argument, wanted, names, "The source")


def merge_by_keys(operation: KeyedOperation, *clauses: AnyClause) -> Merge:
    """Return the merge with these clauses that matches rows with equal keys."""
    return Merge(
        source=operation.source,
        schema_evolution=operation.schema_evolution,
        partition_predicate=operation.partition_predicate,
        parameters=operation.parameters,
        target_alias=TARGET_ALIAS,
        source_alias=SOURCE_ALIAS,
        on=equal_columns(operation.keys),
        clauses=clauses,
    )


class MergeByKeys(MergeRows):
    """A merge that a record with keys describes: `merge` has the ON of `equal_columns` and one clause that inserts."""

    keys_not_plain = "the keys are not of one plain type in the table and in the source"
    clauses_not_plain = NOT_AS_THEY_ARE
    keeps_members = True

    def __init__(self, context: JobContext, operation: KeyedOperation, merge: Merge) -> None:
        super().__init__(context, merge)
        self._keys = operation.keys
        self._operation = operation
        self._checked: MaterializedSource | None = None

    def prepare(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> PreparedMerge:
        """Prepare as the merge does; raise AmbiguousMerge and SchemaMismatch for keys that do not identify one row."""
        check_key_columns(self._operation, snapshot, self._context.root)
        prepared = super().prepare(tx, snapshot, memory)
        # Every attempt has the same source, unless it reads the table.
        if prepared.source is not self._checked:
            self._check_keys(prepared)
            self._checked = prepared.source
        return prepared

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        source = super()._source(tx, snapshot, memory)
        check_source_columns(self._operation, source.names)
        return source

    def _check_keys(self, prepared: PreparedMerge) -> None:
        """Raise an error if a key is NULL or occurs in two rows of the source, as the table stores keys."""
        source = prepared.source
        columns = key_columns(self._context, self._merge, prepared.pair)
        if not columns:
            self._check_types(prepared.judged(self.keys_not_plain).sides)
        if source.num_rows == 0:
            return
        is_small = source.bytes_of(columns.values()) <= self._context.limits.scope_bytes
        with self._context.step("check keys"):
            if columns and is_small:
                nulls, repeated = self._counted_here(prepared, columns)
            else:
                nulls, repeated = self._counted_by_spark(prepared, prepared.judged(TOO_MANY_ROWS))
        self._refuse(nulls, repeated, source.num_rows)

    def _counted_here(self, prepared: PreparedMerge, columns: Mapping[str, str]) -> tuple[int, int]:
        """Return the number of rows with a NULL key, and of keys that several other rows have, for keys of plain types.

        `columns`: the source's by the target's.
        """
        source, empty = prepared.source, kept_as_null(prepared.snapshot)
        rows = read_input(self._context, source.files, stored_of(source, columns.values()), _CHECKING)
        arrays = [
            pc.if_else(pc.equal(pc.binary_length(rows.column(held)), 0), None, rows.column(held))
            if name in empty
            else rows.column(held)
            for name, held in columns.items()
        ]
        # Groups take ten times as long.
        if len(arrays) == 1 and places_of_different(whole(arrays[0]), NEAR * len(rows)) is not None:
            return arrays[0].null_count, 0
        keys = pa.table(arrays, names=[f"k{number}" for number in range(len(arrays))])
        known = keys.drop_null()
        counts = known.group_by(keys.column_names).aggregate([([], "count_all")]).column("count_all")
        repeated = pc.sum(pc.greater(counts, pa.scalar(1, pa.int64()))).as_py() or 0
        return keys.num_rows - known.num_rows, repeated

    def _counted_by_spark(self, prepared: PreparedMerge, judged: JudgedMerge) -> tuple[int, int]:
        """Return the same for keys of any type."""
        (insert,) = judged.clauses.not_matched
        stored = {name.lower(): sql for name, sql in insert.values.items()}
        keys = [f"k{number}" for number in range(len(self._keys))]
        empty = {name.lower(): literal for name, literal in kept_as_null(prepared.snapshot).items()}
        texts = [
            f"nullif({stored[name]}, {empty[name]})" if name in empty else stored[name]
            for name in map(str.lower, self._keys)
        ]
        values = ", ".join(f"{text} AS {key}" for text, key in zip(texts, keys, strict=True))
        has_null = " OR ".join(f"{key} IS NULL" for key in keys)
        rows = f"SELECT {values} FROM {judged.source_rows()}"
        groups = f"SELECT count(*) AS n, ({has_null}) AS has_null FROM ({rows}) GROUP BY {', '.join(keys)}"
        counts = (
            "SELECT coalesce(sum(n) FILTER (WHERE has_null), 0) AS nulls, "
            f"count_if(n > 1 AND NOT has_null) AS repeated FROM ({groups})"
        )
        (found,) = judged.ask(counts, _CHECKING).to_pylist()
        return found["nulls"], found["repeated"]

    def _check_types(self, sides: Sides) -> None:
        """Raise SchemaMismatch for numbers as keys of texts: Spark would compare both as numbers, `007` as 7."""
        from pyspark.sql.types import NullType, StringType  # noqa: PLC0415 - only with Spark

        have = {field.name.lower(): field.dataType for field in sides.source}
        wanted = {field.name.lower(): field.dataType for field in sides.target}
        for key in self._keys:
            found = have[key.lower()]
            if isinstance(wanted[key.lower()], StringType) and not isinstance(found, StringType | NullType):
                raise SchemaMismatch(
                    f"{sides.table_uri}: the key column {key!r} is text in the table and {found.simpleString()} in "
                    "the source, and a text may stand for the same value in several ways. Cast it in the source's SQL. "
                    "Nothing was changed.",
                    table=sides.table_uri,
                    columns=[key],
                )

    def _refuse(self, nulls: int, repeated: int, given: int) -> None:
        root, keys = self._context.root, ", ".join(self._keys)
        if nulls:
            raise SchemaMismatch(
                f"{root}: {nulls} of {plural(given, 'source row')} have NULL in a key column ({keys}), or an empty "
                "text where the table is partitioned by it, which is kept as NULL. NULL equals nothing, so that such "
                "a row would be inserted again by each run. Leave these rows out in the source's SQL, or give them a "
                "key. Nothing was changed.",
                table=root,
                columns=list(self._keys),
            )
        if repeated:
            raise AmbiguousMerge(
                f"{root}: {plural(repeated, 'key')} ({keys}) of the source stand in more than one of its rows. It is "
                "not defined which one acts: make the source unique in the key columns, or choose one row of each key "
                "by deduplicate_by. Nothing was changed.",
                table=root,
            )
