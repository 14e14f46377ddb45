"""The partitions and the keys that a merge's materialized source can meet.

If a conjunct of ON is `t.p = expr(s)` or `t.p <=> expr(s)` of a partition column, or `t.k = s.k` of any column, a row
with another value than the source's matches nothing. So its file is not read, and changes there are no conflict. The
scope bounds what is read; inserts and updates may land outside of it. The invariant: a row that ON matches is in the
scope, whatever the types, nulls and precedences. If that is not certain, or if `expr(s)` fails on a source row that the
rest of ON excludes, there is no scope. Source: soundness A14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.positions import whole
from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate import Predicate, partitions_of
from airflow_txlog.engine.table.predicate.pruning import num_partitions
from airflow_txlog.engine.table.predicate.tree import (
    Operand,
    Operator,
    Value,
    compared,
    describe,
    leaves,
    member_of,
    null_test,
)
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.engine.table.schema.schema import INTEGERS, arrow_type, codec
from airflow_txlog.errors import InvalidPredicate, TxlogError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge.keys import (
    Equality,
    PairColumns,
    equalities,
    plain_columns,
    source_column,
)
from airflow_txlog.jobs.source.materialized import MaterializedSource, read_input, stored_of
from airflow_txlog.jobs.spark.causes import condition_of
from airflow_txlog.jobs.sql.scope import both
from airflow_txlog.sql.expression import FALSE, Expression, Opaque, all_of, any_of

if TYPE_CHECKING:
    from airflow_txlog.jobs.operations.merge.by_spark import JudgedMerge
_LOOKING = "find the partitions that the source names"
_LOOKING_AT_KEYS = "find the keys that the source names"
# Types without an order that all engines share; their values are compared row by row only.
_UNBOUNDED = (delta.Primitive.BINARY, delta.Primitive.BOOLEAN)

_SCOPING = (*INTEGERS, delta.Primitive.DATE, delta.Primitive.STRING, delta.Primitive.BOOLEAN)


# Equalities that scope, each with the column that it compares.
Chosen = Sequence[tuple[Equality, delta.StructField]]


@dataclass(kw_only=True)
class AutoScope:
    """Finds the scope of one merge job, in each of its attempts; the source's values are looked up once."""

    context: JobContext
    _found: tuple[MaterializedSource, object, Predicate | None] | None = None

    def of(
        self,
        snapshot: Snapshot,
        pair: PairColumns,
        source: MaterializedSource,
        on: str,
        judged: Callable[[str], JudgedMerge],
    ) -> Predicate | None:
        """Return the partitions whose rows the accepted condition `on` may match with some row of the source.

        The predicate is over partition columns; None if nothing bounds it. Raises NeedsSpark.
        """
        chosen = self._chosen(snapshot, pair, on, judged)
        if not chosen:
            return None
        key = [(equality, field.name, field.type) for equality, field in chosen]
        if self._found is None or self._found[0] is not source or self._found[1] != key:
            self._found = (source, key, self._look(chosen, pair, source, judged))
        return self._found[2]

    def _chosen(self, snapshot: Snapshot, pair: PairColumns, on: str, judged: Callable[[str], JudgedMerge]) -> Chosen:
        fields = [snapshot.delta_schema.find(name) for name in snapshot.partition_columns]
        able = {field.name: field for field in fields if field is not None and can_scope(field)}
        chosen: dict[str, tuple[Equality, delta.StructField]] = {}
        for equality in filter(None, equalities(on, pair, able)):
            field = able[equality.column]
            if equality.column not in chosen and self._compares_plainly(equality, field, pair, judged):
                chosen[equality.column] = (equality, field)
        return list(chosen.values())

    def _compares_plainly(
        self, equality: Equality, field: delta.StructField, pair: PairColumns, judged: Callable[[str], JudgedMerge]
    ) -> bool:
        """Return whether the other side names columns of the source alone, and is compared without a lossy cast."""
        name = source_column(equality.sql, pair)
        held = None if name is None else pair.source.find(name)
        if held is not None:
            return _is_compared_uncast(held, field)
        by_spark = judged("ON compares with more than columns of the source")
        try:
            found = by_spark.type_in_source(equality.sql)
        except InvalidPredicate:
            return False
        return found is not None and _is_compared_uncast(found, field)

    def _look(
        self, chosen: Chosen, pair: PairColumns, source: MaterializedSource, judged: Callable[[str], JudgedMerge]
    ) -> Predicate | None:
        read = _read_values(self.context, chosen, pair, source)
        if read is not None and read.num_rows <= self.context.limits.scope_values:
            return values_of(chosen, read)
        by_spark = judged("ON names very many partitions of the table")
        try:
            return _evaluated(by_spark, chosen, self.context.limits.scope_values)
        except TxlogError as error:
            # The expression is evaluated here on every source row, even on rows that the rest of ON excludes.
            # The join reads the same rows, so a fault of the rows fails it. Spark's message may show a value.
            cause = None if error.__cause__ is None else condition_of(error.__cause__)
            columns = ", ".join(field.name for _, field in chosen)
            self.context.log(
                f"the source's values for {columns} cannot be computed alone ({cause or type(error).__name__}), so "
                "they do not bound what is read"
            )
            return None


def _evaluated(by_spark: JudgedMerge, chosen: Chosen, most: int) -> Predicate:
    """Return the same by Spark jobs over the source's rows. Raises as `collect` does."""
    columns = ", ".join(f"(\n{equality.sql}\n) AS c{number}" for number, (equality, _) in enumerate(chosen))
    rows = by_spark.source_rows()
    values = by_spark.ask(f"SELECT DISTINCT {columns} FROM {rows} LIMIT {most + 1}", _LOOKING)
    if values.num_rows <= most:
        return values_of(chosen, values)
    ends = ", ".join(f"min(c{n}), max(c{n}), max(c{n} IS NULL)" for n in range(len(chosen)))
    return ranges_of(chosen, by_spark.ask(f"SELECT {ends} FROM (SELECT {columns} FROM {rows})", _LOOKING))


def values_of(chosen: Chosen, values: pa.Table) -> Predicate:
    """Return the partitions that distinct values (a column for each equality, in order) name.

    A null names the null partition by `<=>` and nothing by `=`. An empty text names nothing, because tables keep it as
    null; neither does a number that the column cannot hold.
    """
    texts = []
    keep = pa.array([True] * values.num_rows, pa.bool_())
    for (equality, field), column in zip(chosen, values.columns, strict=True):
        array, can_equal = _in_column_type(column.combine_chunks(), field)
        keep = pc.and_(keep, can_equal if equality.null_safe else pc.and_(can_equal, pc.is_valid(array)))
        texts.append(partition_string(array))
    names = [field.name for _, field in chosen]
    rows = zip(zip(*texts, strict=True), keep.to_pylist(), strict=True)
    found = partitions_of([dict(zip(names, row, strict=True)) for row, kept in rows if kept])
    return Predicate(found.sql, found.tree, frozenset(names))


def ranges_of(chosen: Chosen, ends: pa.Table) -> Predicate:
    """Return the partitions between two ends. `ends` is one row: least, greatest and "is one null" of each equality."""
    children: list[Expression] = []
    for number, (equality, field) in enumerate(chosen):
        low, high = (ends.column(3 * number + end)[0] for end in (0, 1))
        inside = _between(field, low, high)
        if equality.null_safe and ends.column(3 * number + 2)[0].as_py():
            inside = any_of([inside, null_test(Operand.of(field), is_null=True)])
        children.append(inside)
    return _all_of(children, [field for _, field in chosen])


def inside_of(fields: Sequence[delta.StructField], values: Sequence[pa.ChunkedArray]) -> Predicate:
    """Return a predicate for rows in which each of the fields lies between the least and the greatest of its values.

    The fields have passed `can_scope`, and the values have their types.
    """
    ends = map(pc.min_max, values)
    return _all_of([_between(field, *each.values()) for field, each in zip(fields, ends, strict=True)], fields)


def _between(field: delta.StructField, low: pa.Scalar, high: pa.Scalar) -> Expression:
    column, (least, greatest) = Operand.of(field), (_plain(end, field) for end in (low, high))
    if least is None or greatest is None:
        return FALSE
    return all_of([compared(column, Operator.GE, least), compared(column, Operator.LE, greatest)])


def _all_of(children: Sequence[Expression], fields: Sequence[delta.StructField]) -> Predicate:
    tree = all_of(children)
    return Predicate(describe(tree), tree, frozenset(field.name for field in fields))


def keys_in_reach(
    context: JobContext, snapshot: Snapshot, pair: PairColumns, source: MaterializedSource, on: str
) -> Predicate | None:
    """Return a predicate for all rows that the accepted condition `on` may match with some row of the source, by the
    columns that it compares with a column of the source; None if nothing bounds them.
    """
    partitions, limits = {name.lower() for name in snapshot.partition_columns}, context.limits
    names = [name for name in plain_columns(pair) if name.lower() not in partitions]
    found: Predicate | None = None
    for equality in filter(None, equalities(on, pair, names)):
        held = None if equality.null_safe else source_column(equality.sql, pair)
        if (
            held is None
            or not pair.is_of_one_type(equality.column, held)
            or source.bytes_of([held]) > limits.scope_bytes
        ):
            continue
        field = pair.target.by_name[equality.column.lower()]
        rows = read_input(context, source.files, stored_of(source, [held]), _LOOKING_AT_KEYS)
        values = whole(rows.column(held)).drop_null().cast(arrow_type(field.type))
        if len(values) <= limits.delete_keys:
            values = pc.unique(values)
        inside = keys_predicate(values, field, limits.delete_keys)
        found = inside if found is None else both(found, inside)
    return found


def keys_predicate(values: pa.Array, field: delta.StructField, most: int) -> Predicate:
    """Return a predicate that rows with one of the keys satisfy: an IN list, or for more than `most` keys their range.

    Its text, which errors show, contains no key.
    """
    text = f"{field.name} IN ({plural(len(values), 'key')})"
    return Predicate(text, _tree(values, field, most), frozenset({field.name}))


def _tree(values: pa.Array, field: delta.StructField, most: int) -> Expression:
    if len(values) == 0:
        return FALSE
    column = Operand.of(field)
    of_type = codec(field.type)
    assert of_type is not None
    # Floats in a list are compared differently from single floats if they are zeros.
    is_float = field.type in (delta.Primitive.FLOAT, delta.Primitive.DOUBLE)
    is_list = field.type in _UNBOUNDED or (len(values) <= most and not is_float)
    if not is_list and not is_float:
        ends = pc.min_max(values)
        values = pa.array([ends["min"], ends["max"]], values.type)
    try:
        plain = of_type.plain_of(values).to_pylist()
    except UnicodeDecodeError:
        return Opaque("a key that is not UTF-8")
    if is_list:
        return member_of(column, tuple(plain))
    return all_of([compared(column, Operator.GE, min(plain)), compared(column, Operator.LE, max(plain))])


def described(scope: Predicate) -> str:
    """Return the partitions that the source names, in words for people."""
    names = ", ".join(sorted(scope.columns or ()))
    count = sum(map(num_partitions, leaves(scope.tree)))
    if count or scope.tree == FALSE:
        return f"{plural(count, 'value')} of {names}"
    return f"a range of {names}"


def _is_compared_uncast(given: delta.StructField, wanted: delta.StructField) -> bool:
    """Return whether both types are compared as they are, or as whole numbers."""
    both_whole = given.type in INTEGERS and wanted.type in INTEGERS
    return both_whole or (given.type == wanted.type and not given.is_collated)


def _read_values(context: JobContext, chosen: Chosen, pair: PairColumns, source: MaterializedSource) -> pa.Table | None:
    """Return the distinct values, a column for each equality, from the materialized files without a Spark job.

    None if an equality has more than a column of the source, or if there are many bytes to read.
    """
    found = [source_column(equality.sql, pair) for equality, _ in chosen]
    columns = [name for name in found if name is not None]
    if len(columns) < len(found) or source.bytes_of(columns) > context.limits.scope_bytes:
        return None
    distinct = list(dict.fromkeys(columns))
    rows = read_input(context, source.files, stored_of(source, distinct), _LOOKING)
    # By number: Arrow would take a name with a dot in it for a path.
    numbered = [f"c{number}" for number in range(len(distinct))]
    values = rows.select(distinct).rename_columns(numbered).group_by(numbered).aggregate([])
    by_name = dict(zip(distinct, values.select(numbered).columns, strict=True))
    return pa.table([by_name[name] for name in columns], names=[f"c{number}" for number in range(len(columns))])


def can_scope(field: delta.StructField) -> bool:
    """Return whether two values of the column are equal to all engines exactly if their texts in the log are."""
    if field.is_collated or "__CHAR_VARCHAR_TYPE_STRING" in field.metadata:
        return False
    return isinstance(field.type, delta.DecimalType) or field.type in _SCOPING


def _in_column_type(array: pa.Array, field: delta.StructField) -> tuple[pa.Array, pa.BooleanArray]:
    """Return the values in the column's type, and which of them a row of the column may equal, nulls included."""
    if field.type in INTEGERS:
        whole = INTEGERS[field.type]
        fits = pc.and_(pc.greater_equal(array, whole.least), pc.less_equal(array, whole.greatest))
        array = pc.if_else(pc.fill_null(fits, False), array, None).cast(arrow_type(field.type))
    elif field.type is delta.Primitive.STRING:
        fits = pc.not_equal(array, "")
    else:
        fits = pa.repeat(pa.scalar(True), len(array))
    return array, pc.fill_null(fits, True)


def _plain(scalar: pa.Scalar, field: delta.StructField) -> Value | None:
    """Return one end of a range as a predicate holds it: days for a date, whole numbers clamped to the column's."""
    if not scalar.is_valid:
        return None
    if field.type is delta.Primitive.DATE:
        scalar = scalar.cast(pa.int32())
    value: Value = scalar.as_py()
    if field.type in INTEGERS and isinstance(value, int):
        # Beyond the last value, the nearest one keeps at most one partition too many.
        value = min(max(value, INTEGERS[field.type].least), INTEGERS[field.type].greatest)
    return value
