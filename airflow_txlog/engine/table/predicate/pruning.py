"""A predicate asked of files: which may hold a matching row?

The invariant: a file is left out only if a partition value or a defended bound proves that no row matches. The
complement of the answer proves nothing (soundness A4). Vector operations only: a table has a million files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import (
    PartitionValues,
    parse_partition_values,
    typed_partition_columns,
)
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.predicate.tree import (
    IN_PARTITIONS,
    Operator,
    Predicate,
    comparable_type,
    constants_of,
    describe,
    leaves,
)
from airflow_txlog.engine.table.schema.schema import DataType, DecimalType, Primitive, StructType
from airflow_txlog.errors import PartitionMismatch
from airflow_txlog.sql.confinement import unsupported
from airflow_txlog.sql.evaluation import aligned, passing
from airflow_txlog.sql.expression import Call, Column, Expression, Literal, Opaque, Values, any_of, columns_of


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """A predicate as it is asked of the files of one version."""

    predicate: Predicate
    schema: StructType
    partition_columns: Sequence[str]
    trust_statistics: bool = True

    @property
    def columns(self) -> list[str]:
        """The data columns whose statistics can rule a file out; none where they are not to be trusted."""
        if not self.trust_statistics:
            return []
        partitions = {name.lower() for name in self.partition_columns}
        members = {name: self.schema.find(name) for name in _named(self.predicate) if name.lower() not in partitions}
        # Nested columns are counted differently by every writer.
        return [name for name, each in members.items() if each and isinstance(each.type, Primitive | DecimalType)]

    def by_partitions(self, files: pa.Table) -> pa.BooleanArray:
        """Which files may hold a match by their partition values alone."""
        return _may(self.predicate.tree, self._facts(files))

    def by_bounds(self, files: pa.Table, found: Mapping[str, ColumnBounds]) -> pa.BooleanArray:
        """Which of them may by these bounds of `columns` too, in the order of the files."""
        return _may(self.predicate.tree, replace(self._facts(files), bounds=found))

    def by_statistics(self, files: pa.Table) -> pa.BooleanArray:
        """The same, the statistics read from the files (with their column `stats`)."""
        found = bounds(files, self.schema, [(name,) for name in self.columns])
        return self.by_bounds(files, {path[0]: each for path, each in found.items()})

    def _facts(self, files: pa.Table) -> _Facts:
        return _Facts.of_partitions(self.predicate, files, self.schema, self.partition_columns)


def may_hold_match(
    predicate: Predicate,
    files: pa.Table,
    schema: StructType,
    partition_columns: Sequence[str],
    trust_statistics: bool = True,
) -> pa.BooleanArray:
    """Which of the files (a FILES table) may hold a row that the predicate selects; one boolean a file, never null.

    False is a proof, by typed partition values or by defended statistics; without `trust_statistics` by partition
    values alone. A file without statistics is kept, and so is one with a partition value that is no value of its type
    or a timestamp without a zone. Source: protocol, "Per-file Statistics"; soundness A4, A5, A13.
    """
    question = FileQuestion(predicate, schema, partition_columns, trust_statistics)
    kept = question.by_partitions(files)
    if not question.columns or not kept.true_count:
        return kept
    # Statistics are JSON, and reading them is what costs: only those of files that the partitions leave.
    if kept.true_count == len(kept):
        return question.by_statistics(files)
    return pc.replace_with_mask(kept, kept, question.by_statistics(files.filter(kept)))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of the files: typed partition values and, when asked for, bounds of data columns."""

    count: int
    types: dict[str, DataType]
    partitions: dict[str, PartitionValues]
    bounds: Mapping[str, ColumnBounds]

    @classmethod
    def of_partitions(
        cls, predicate: Predicate, files: pa.Table, schema: StructType, partition_columns: Sequence[str]
    ) -> _Facts:
        named = _named(predicate)
        found = {name: schema.find(name) for name in named}
        types = {name: field.type for name, field in found.items() if field is not None}
        typed = typed_partition_columns(files, schema, partition_columns, only=named) if named else {}
        lower = {name.lower(): values for name, values in typed.items()}
        return cls(files.num_rows, types, {name: lower[name.lower()] for name in named if name.lower() in lower}, {})

    def everywhere(self, value: bool) -> pa.BooleanArray:
        return pa.repeat(pa.scalar(value), self.count)


def _named(predicate: Predicate) -> list[str]:
    """The columns that its leaves name."""
    return sorted({name for leaf in leaves(predicate.tree) for name in columns_of(leaf)})


def _may(node: Expression, facts: _Facts) -> pa.BooleanArray:
    match node:
        case Call("and", children):
            return reduce(pc.and_, (_may(child, facts) for child in children))
        case Call("or", children):
            return reduce(pc.or_, (_may(child, facts) for child in children))
        case Literal(_, text):
            return facts.everywhere(text == "true")
        case Opaque():
            return facts.everywhere(True)
        case Call(operator) if operator == IN_PARTITIONS:
            return _may_be_in_set(node, facts)
    return _leaf_may(node, facts)


def _leaf_may(leaf: Expression, facts: _Facts) -> pa.BooleanArray:
    columns = columns_of(leaf)
    if len(columns) != 1:
        return facts.everywhere(True)
    (column,) = columns
    data_type, constants = facts.types.get(column), constants_of(leaf)
    # Another type than when the predicate was read: its constants are of the old one.
    if data_type is None or (constants is not None and constants.type != comparable_type(data_type)):
        return facts.everywhere(True)
    partition = facts.partitions.get(column)
    if partition is not None and data_type is Primitive.BINARY:
        # Every writer has its own way to make text of bytes.
        return facts.everywhere(True)
    if partition is not None:
        values = pa.RecordBatch.from_arrays([partition.values], [column])
        return pc.or_(passing(leaf, values), pc.invert(partition.known))
    known = facts.bounds.get(column)
    return facts.everywhere(True) if known is None else may_be_true(leaf, known)


def _may_be_in_set(node: Call, facts: _Facts) -> pa.BooleanArray:
    found = {name: facts.partitions.get(name) for name in columns_of(node)}
    values = {name: each for name, each in found.items() if each is not None}
    if len(values) < len(found) or not understands(node, facts.types):
        return facts.everywhere(True)
    return pc.or_(
        in_set(node, facts.types, values), pc.invert(reduce(pc.and_, (each.known for each in values.values())))
    )


# So many members of a list are compared one by one; more are sorted together with the bounds, once.
_MEMBERS_ONE_BY_ONE = 16


def may_be_true(leaf: Expression, bounds: ColumnBounds) -> pa.BooleanArray:
    """False where no row of the file can match; never null, in the order of the bounds."""
    only_nulls = _proven(
        pc.and_(pc.equal(bounds.null_count, bounds.num_records), pc.greater(bounds.num_records, 0)),
    )
    match leaf:
        case Call("is null"):
            return pc.invert(_proven(pc.equal(bounds.null_count, 0)))
        case Call("not", (Call("is null"),)):
            return pc.invert(only_nulls)
    return pc.and_not(_value_in_reach(leaf, bounds), only_nulls)


def _value_in_reach(leaf: Expression, bounds: ColumnBounds) -> pa.BooleanArray:
    match leaf:
        case Call("not", (Call("in", (Column(), Values(members))),)):
            return _some_other(members, bounds)
        case Call("in", (Column(), Values(members))):
            if len(members) > _MEMBERS_ONE_BY_ONE:
                return _some_member(members, bounds)
            return reduce(
                pc.or_, (_comparison(Operator.EQ, members.slice(at, 1), bounds) for at in range(len(members)))
            )
        case Call("starts with", (Column(), Values(prefix))):
            return _prefix(prefix[0].as_py(), bounds)
        case Call(operator, (Column(), Values(constant))):
            return _comparison(Operator(operator), constant, bounds)
    return _everywhere(bounds)


def _comparison(operator: Operator, constant: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    value = constant[0]
    if pa.types.is_floating(constant.type) and math.isnan(value.as_py()):
        # Nothing is greater than NaN; it may stand in any file, below no bound.
        return pc.invert(_everywhere(bounds)) if operator is Operator.GT else _everywhere(bounds)
    lower, upper = aligned(bounds.lower, constant.type), aligned(bounds.upper, constant.type)
    reaches = pc.greater if bounds.upper_is_exclusive else pc.greater_equal
    match operator:
        case Operator.EQ:
            return pc.and_(_possible(pc.less_equal(lower, value)), _possible(reaches(upper, value)))
        case Operator.NE:
            return _some_other(constant, bounds)
        case Operator.LT:
            return _possible(pc.less(lower, value))
        case Operator.LE:
            return _possible(pc.less_equal(lower, value))
    if bounds.may_hold_nan:
        return _everywhere(bounds)
    return _possible((pc.greater if operator is Operator.GT else reaches)(upper, value))


def _some_other(values: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    """A value that is none of these: ruled out only where every value is one and the same of them."""
    if bounds.may_hold_nan or bounds.upper_is_exclusive:
        return _everywhere(bounds)
    single = pc.equal(bounds.lower, bounds.upper)
    listed = pc.is_in(aligned(bounds.lower, values.type), value_set=values)
    return pc.invert(_proven(pc.and_(single, listed)))


def _some_member(members: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    """Whether one of many values lies within the bounds: fewer lie below the lower than not above the upper."""
    lower, upper = aligned(bounds.lower, members.type), aligned(bounds.upper, members.type)
    # The sort is stable, so what stands first in here comes first among equals.
    parts = [lower, upper, members] if bounds.upper_is_exclusive else [lower, members, upper]
    sizes = [len(part) for part in parts]
    everything = pa.concat_arrays(parts)
    is_member = pa.concat_arrays([pa.repeat(pa.scalar(int(part is members)), len(part)) for part in parts])
    order = pc.array_sort_indices(everything)
    counted = pc.cumulative_sum(is_member.take(order))
    # The sort indices of a permutation are its inverse.
    members_before = counted.take(pc.array_sort_indices(order))
    below_lower = members_before.slice(0, sizes[0])
    up_to_upper = members_before.slice(sizes[0] if bounds.upper_is_exclusive else sizes[0] + sizes[1], len(upper))
    known = pc.and_(pc.is_valid(lower), pc.is_valid(upper))
    within = pc.greater(up_to_upper, below_lower)
    ends = reduce(
        pc.and_,
        (
            _possible(pc.less_equal(lower, pc.max(members))),
            _possible(pc.greater_equal(upper, pc.min(members))),
        ),
    )
    return pc.and_(ends, pc.or_(within, pc.invert(known)))


def _prefix(prefix: str, bounds: ColumnBounds) -> pa.BooleanArray:
    """Strings with a prefix lie at or after it, and before every string without it that is greater."""
    lower, upper = bounds.lower, bounds.upper
    starts_early = pc.or_(pc.less_equal(lower, prefix), pc.starts_with(lower, prefix))
    reaches = pc.greater if bounds.upper_is_exclusive else pc.greater_equal
    return pc.and_(_possible(starts_early), _possible(reaches(upper, prefix)))


def _possible(compared: pa.Array) -> pa.BooleanArray:
    """Where the bound is not known, everything is possible."""
    return pc.fill_null(compared, True)


def _proven(compared: pa.Array) -> pa.BooleanArray:
    """Where the count is not known, nothing is proven."""
    return pc.fill_null(compared, False)


def _everywhere(bounds: ColumnBounds) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(True), len(bounds.num_records))


def partitions_of(partitions: Sequence[Mapping[str, str | None]]) -> Predicate:
    """Rows whose partition values are one of these, given as strings of the log; "" and None are null.

    Columns that a mapping leaves out may have any value. Raises PartitionMismatch for a mapping without a column.
    """
    groups: dict[tuple[str, ...], set[tuple[str | None, ...]]] = {}
    for values in partitions:
        if not values:
            raise PartitionMismatch("A partition needs at least one column. Use Predicate.true() for a whole table.")
        columns = tuple(sorted(values))
        groups.setdefault(columns, set()).add(tuple(values[name] or None for name in columns))
    tree = any_of([_partition_set(columns, sorted(rows, key=str)) for columns, rows in sorted(groups.items())])
    named = frozenset(name for columns in groups for name in columns)
    return Predicate(describe(tree), tree, named)


def _partition_set(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Expression:
    texts = [Values(pa.array([row[position] for row in rows], pa.string())) for position in range(len(columns))]
    return Call(IN_PARTITIONS, (*map(Column, columns), *texts))


def num_partitions(leaf: Expression) -> int:
    """How many partitions a set has; none for another leaf."""
    last = leaf.operands[-1] if isinstance(leaf, Call) and leaf.operator == IN_PARTITIONS else None
    return len(last.array) if isinstance(last, Values) else 0


def _columns(node: Call) -> Iterator[tuple[str, pa.Array]]:
    """The columns of a set, each with the texts of its values."""
    names = [part.name for part in node.operands if isinstance(part, Column)]
    yield from zip(names, (part.array for part in node.operands if isinstance(part, Values)), strict=True)


def in_set(node: Call, types: Mapping[str, DataType], values: Mapping[str, PartitionValues]) -> pa.BooleanArray:
    """Which files lie in the set, of those whose values are known; never null. The others are the caller's to judge.

    `types` and `values` are those of the set's columns.
    """
    file_codes: list[pa.Array] = []
    row_codes: list[pa.Array] = []
    for name, texts in _columns(node):
        data_type, column = types[name], values[name]
        asked = parse_partition_values(texts, data_type)
        both = pa.concat_arrays([_normal(column.values, data_type), _normal(asked.values, data_type)])
        codes = pc.fill_null(both.dictionary_encode().indices.cast(pa.int64()), -1)
        file_codes.append(codes.slice(0, len(column.values)))
        # A text of the set that is not understood equals no known value.
        row_codes.append(pc.if_else(asked.known, codes.slice(len(column.values)), -2))
    return pc.is_in(_combined(file_codes), value_set=_combined(row_codes))


def understands(node: Call, types: Mapping[str, DataType]) -> bool:
    """Every text of the set is a value of its column's type."""
    known = (parse_partition_values(texts, types[name]).known for name, texts in _columns(node))
    return all(pc.all(each, min_count=0).as_py() for each in known)


def _normal(values: pa.Array, data_type: DataType) -> pa.Array:
    array = aligned(values, comparable_type(data_type))
    # -0.0 and 0.0 are one value, and adding zero leaves one of them.
    return pc.add(array, 0.0) if data_type in (Primitive.FLOAT, Primitive.DOUBLE) else array


def _combined(codes: list[pa.Array]) -> pa.Array:
    """One text a row, equal exactly where all the codes are."""
    texts = [code.cast(pa.string()) for code in codes]
    return reduce(lambda one, other: pc.binary_join_element_wise(one, other, "/"), texts)


def rows_matching(predicate: Predicate, rows: pa.Table) -> pa.BooleanArray:
    """Which rows the predicate selects, in their order; never null: a row for which it is null is not selected.

    `rows` has the columns that the predicate names, with the schema's names and types. Raises UnsupportedPredicate,
    naming the construct, when some part lies outside the closed grammar.
    """
    for what in predicate.unknown:
        raise _undecided(predicate, what)
    if any(map(num_partitions, leaves(predicate.tree))):
        raise _undecided(predicate, "a set of partitions")
    return passing(predicate.tree, rows)


def _undecided(predicate: Predicate, construct: str) -> Exception:
    why = "Only Spark can evaluate it on rows; without Spark, compare single columns with constants."
    return unsupported(predicate.sql, construct, why)
