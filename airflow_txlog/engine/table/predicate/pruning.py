"""A predicate applied to files (which may hold a matching row?) and to rows.

The invariant: a file is left out only if a partition value or a defended bound proves that no row matches. The
complement proves nothing (soundness A4, A5); `statistics.ColumnBounds` defines what each bound is worth. Vector
operations only, because a table has a million files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    operand_of,
    type_of_call,
)
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructType
from airflow_txlog.errors import PartitionMismatch
from airflow_txlog.sql.confinement import unsupported
from airflow_txlog.sql.evaluation import aligned, known_as, passing
from airflow_txlog.sql.expression import Call, Column, Expression, Literal, Opaque, Values, any_of, columns_of

# Longer IN lists are sorted together with the bounds, once, instead of being compared member by member.
_MEMBERS_ONE_BY_ONE = 16


def rows_matching(predicate: Predicate, rows: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
    """Return which rows satisfy the predicate, in their order; never null.

    `rows` has the columns that the predicate names. Raises UnsupportedPredicate, naming the construct.
    """
    outside = predicate.unknown or ["a set of partitions" for leaf in leaves(predicate.tree) if num_partitions(leaf)]
    if outside:
        why = "Only Spark can evaluate it on rows; without Spark, compare single columns with constants."
        raise unsupported(predicate.sql, outside[0], why)
    return passing(predicate.tree, rows)


def may_hold_match(
    predicate: Predicate,
    files: pa.Table,
    schema: StructType,
    partition_columns: Sequence[str],
    trust_statistics: bool = True,
) -> pa.BooleanArray:
    """Return which files (a FILES table) may hold a row that satisfies the predicate; never null.

    False is a proof by typed partition values or, with `trust_statistics`, by defended statistics. Kept are files
    without statistics and with partition values that are not known.
    Source: protocol, "Per-file Statistics"; soundness A4, A5, A13.
    """
    question = FileQuestion(predicate, schema, partition_columns, trust_statistics)
    kept = question.by_partitions(files)
    if not question.columns or not kept.true_count:
        return kept
    # Statistics are JSON and expensive to read, so read only those of files that the partitions leave.
    if kept.true_count == len(kept):
        return question.by_statistics(files)
    return pc.replace_with_mask(kept, kept, question.by_statistics(files.filter(kept)))


@dataclass(frozen=True, slots=True)
class FileQuestion:
    """A predicate to be applied to the files of one version."""

    predicate: Predicate
    schema: StructType
    partition_columns: Sequence[str]
    trust_statistics: bool = True

    @property
    def columns(self) -> list[str]:
        """The data columns whose statistics can rule a file out; none if statistics are not trusted."""
        if not self.trust_statistics:
            return []
        partitions = {name.lower() for name in self.partition_columns}
        members = {name: self.schema.find(name) for name in self._named() if name.lower() not in partitions}
        # Writers count nested columns differently.
        return [name for name, each in members.items() if each and isinstance(each.type, Primitive | DecimalType)]

    def by_partitions(self, files: pa.Table) -> pa.BooleanArray:
        """Return which files may hold a match by their partition values alone."""
        return self.by_bounds(files, {})

    def by_statistics(self, files: pa.Table) -> pa.BooleanArray:
        """Return which files may hold a match, with bounds read from their column `stats`."""
        found = bounds(files, self.schema, [(name,) for name in self.columns])
        return self.by_bounds(files, {name: each for (name,), each in found.items()})

    def by_bounds(self, files: pa.Table, found: Mapping[str, ColumnBounds]) -> pa.BooleanArray:
        """Return which files may hold a match, by partition values and by these bounds of `columns`."""
        named = self._named()
        types = {name: field.type for name in named if (field := self.schema.find(name)) is not None}
        typed = typed_partition_columns(files, self.schema, self.partition_columns, only=named) if named else {}
        lower = {name.lower(): values for name, values in typed.items()}
        partitions = {name: lower[name.lower()] for name in named if name.lower() in lower}
        return _Facts(files.num_rows, types, partitions, found).may(self.predicate.tree)

    def _named(self) -> list[str]:
        return sorted({name for leaf in leaves(self.predicate.tree) for name in columns_of(leaf)})


@dataclass(frozen=True, slots=True)
class _Facts:
    """The known facts of some files, by the names that the predicate uses."""

    count: int
    types: Mapping[str, DataType]
    partitions: Mapping[str, PartitionValues]
    bounds: Mapping[str, ColumnBounds]

    def may(self, node: Expression) -> pa.BooleanArray:
        match node:
            case Call("and", children):
                return reduce(pc.and_, map(self.may, children))
            case Call("or", children):
                return reduce(pc.or_, map(self.may, children))
            case Literal(_, text):
                return _everywhere(self.count, text == "true")
            case Opaque():
                return _everywhere(self.count)
            case Call(operator) if operator == IN_PARTITIONS:
                return self._may_be_in_set(node)
            case Call():
                return self._leaf_may(node)
        raise TypeError(f"no node of a predicate: {node!r}")

    def _leaf_may(self, leaf: Call) -> pa.BooleanArray:
        columns = columns_of(leaf)
        if len(columns) != 1:
            return _everywhere(self.count)
        (column,) = columns
        data_type, constants = self._type_of(operand_of(leaf)), constants_of(leaf)
        # The type may have changed since the predicate was read: its constants and functions are of the old one.
        if data_type is None or (constants is not None and constants.type != comparable_type(data_type)):
            return _everywhere(self.count)
        partition = self.partitions.get(column)
        if partition is None:
            known = self.bounds.get(column)
            return _everywhere(self.count) if known is None else may_be_true(leaf, known)
        if self.types[column] is Primitive.BINARY:
            # Every writer has its own way to make text of bytes.
            return _everywhere(self.count)
        values = pa.RecordBatch.from_arrays([partition.values], [column])
        return pc.or_(passing(leaf, values), pc.invert(partition.known))

    def _type_of(self, operand: Expression) -> DataType | None:
        """Return the type of a column or of a function of columns; None if no type is known."""
        match operand:
            case Column(name):
                return self.types.get(name)
            case Call(_, operands) if (known := known_as(operand)) is not None:
                types = [kind for each in operands if (kind := self._type_of(each)) is not None]
                return type_of_call(known, types) if len(types) == len(operands) else None
        return None

    def _may_be_in_set(self, node: Call) -> pa.BooleanArray:
        values = {name: self.partitions[name] for name in columns_of(node) if name in self.partitions}
        asked = {
            name: parse_partition_values(texts, self.types[name]) for name, texts in _columns(node) if name in values
        }
        # A text that is no value of its column's type may mean any value.
        if len(values) < len(columns_of(node)) or not all(each.known.false_count == 0 for each in asked.values()):
            return _everywhere(self.count)
        known = reduce(pc.and_, (each.known for each in values.values()))
        return pc.or_(_in_set(self.types, values, asked), pc.invert(known))


def _everywhere(count: int, value: bool = True) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(value), count)


# --- sets of partitions ----------------------------------------------------------------------------------------------
# The rows that an overwrite of "the partitions of the new files" reads. Values compare as typed values (`1` and `01`
# are one integer partition), and null equals null. Source: delta-spark, dynamic partition overwrite.


def partitions_of(partitions: Sequence[Mapping[str, str | None]]) -> Predicate:
    """Return the predicate of rows in one of these partitions, as texts of the log. Raises PartitionMismatch."""
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
    texts = [Values(pa.array(column, pa.string())) for column in zip(*rows, strict=True)]
    return Call(IN_PARTITIONS, (*map(Column, columns), *texts))


def num_partitions(leaf: Expression) -> int:
    """Return the number of partitions in a set, 0 for another leaf."""
    last = leaf.operands[-1] if isinstance(leaf, Call) and leaf.operator == IN_PARTITIONS else None
    return len(last.array) if isinstance(last, Values) else 0


def _columns(node: Call) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of a set, each with the texts of its values."""
    names = [part.name for part in node.operands if isinstance(part, Column)]
    yield from zip(names, (part.array for part in node.operands if isinstance(part, Values)), strict=True)


def _in_set(
    types: Mapping[str, DataType], values: Mapping[str, PartitionValues], asked: Mapping[str, PartitionValues]
) -> pa.BooleanArray:
    """Return which files lie in the set, for files whose values are known; never null."""
    file_codes: list[pa.Array] = []
    row_codes: list[pa.Array] = []
    for name, rows in asked.items():
        files = values[name].values
        both = pa.concat_arrays([_normal(files, types[name]), _normal(rows.values, types[name])])
        codes = pc.fill_null(both.dictionary_encode().indices.cast(pa.int64()), -1).cast(pa.string())
        file_codes.append(codes.slice(0, len(files)))
        row_codes.append(codes.slice(len(files)))
    # The joined codes of two rows are equal exactly if all codes are.
    file_keys, row_keys = (pc.binary_join_element_wise(*codes, "/") for codes in (file_codes, row_codes))
    return pc.is_in(file_keys, value_set=row_keys)


def _normal(values: pa.Array, data_type: DataType) -> pa.Array:
    array = aligned(values, comparable_type(data_type))
    # Adding zero makes 0.0 of -0.0.
    return pc.add(array, 0.0) if data_type in (Primitive.FLOAT, Primitive.DOUBLE) else array


# --- leaves and statistics -------------------------------------------------------------------------------------------


def may_be_true(leaf: Expression, bounds: ColumnBounds) -> pa.BooleanArray:
    """Return False for files without a row that can satisfy the leaf; never null, in the order of the bounds."""
    only_nulls = _proven(pc.and_(pc.equal(bounds.null_count, bounds.num_records), pc.greater(bounds.num_records, 0)))
    match leaf:
        case Call("is null", (Column(),)):
            return pc.invert(_proven(pc.equal(bounds.null_count, 0)))
        case Call("is null"):
            # A function may be null for a value: `nullif(trim(name), name)`.
            return _everywhere(len(bounds.num_records))
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
            each = (members.slice(at, 1) for at in range(len(members)))
            return reduce(pc.or_, (_comparison(Operator.EQ, member, bounds) for member in each))
        case Call("starts with", (Column(), Values(prefix))):
            return _prefix(prefix[0].as_py(), bounds)
        case Call("like", (Column(), Values(pattern))):
            return _prefix(pattern[0].as_py().partition("%")[0], bounds)
        case Call(operator, (Column(), Values(constant))):
            return _comparison(Operator(operator), constant, bounds)
    return _everywhere(len(bounds.num_records))


def _comparison(operator: Operator, constant: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    value = constant[0]
    if pa.types.is_floating(constant.type) and math.isnan(value.as_py()):
        # NaN may be in any file, below no bound; only `> NaN` never holds.
        return _everywhere(len(bounds.num_records), operator is not Operator.GT)
    lower, upper = aligned(bounds.lower, constant.type), aligned(bounds.upper, constant.type)
    match operator:
        case Operator.EQ:
            return pc.and_(_possible(pc.less_equal(lower, value)), _reaches(bounds, upper, value))
        case Operator.NE:
            return _some_other(constant, bounds)
        case Operator.LT:
            return _possible(pc.less(lower, value))
        case Operator.LE:
            return _possible(pc.less_equal(lower, value))
    if bounds.may_hold_nan:
        return _everywhere(len(bounds.num_records))
    if operator is Operator.GT:
        return _possible(pc.greater(upper, value))
    return _reaches(bounds, upper, value)


def _some_other(values: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    """Return whether a value may differ from all of these: not if every value is one and the same of them."""
    if bounds.may_hold_nan or bounds.upper_is_exclusive:
        return _everywhere(len(bounds.num_records))
    single = pc.equal(bounds.lower, bounds.upper)
    listed = pc.is_in(aligned(bounds.lower, values.type), value_set=values)
    return pc.invert(_proven(pc.and_(single, listed)))


def _some_member(members: pa.Array, bounds: ColumnBounds) -> pa.BooleanArray:
    """Return whether one of many values lies within the bounds, by counting those below either bound."""
    lower, upper = aligned(bounds.lower, members.type), aligned(bounds.upper, members.type)
    # The sort is stable: of equal values, the one in the earlier part comes first.
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
    from_lower = _possible(pc.less_equal(lower, pc.max(members)))
    to_upper = _possible(pc.greater_equal(upper, pc.min(members)))
    return pc.and_(pc.and_(from_lower, to_upper), pc.or_(within, pc.invert(known)))


def _prefix(prefix: str, bounds: ColumnBounds) -> pa.BooleanArray:
    """Return whether a string with the prefix may lie within the bounds."""
    lower, upper = bounds.lower, bounds.upper
    starts_early = pc.or_(pc.less_equal(lower, prefix), pc.starts_with(lower, prefix))
    return pc.and_(_possible(starts_early), _reaches(bounds, upper, prefix))


def _reaches(bounds: ColumnBounds, upper: pa.Array, value: object) -> pa.BooleanArray:
    """Return whether the upper bound admits the value."""
    return _possible((pc.greater if bounds.upper_is_exclusive else pc.greater_equal)(upper, value))


def _possible(compared: pa.Array) -> pa.BooleanArray:
    """Return the comparison, true for an unknown bound."""
    return pc.fill_null(compared, True)


def _proven(compared: pa.Array) -> pa.BooleanArray:
    """Return the comparison, false for an unknown count."""
    return pc.fill_null(compared, False)
