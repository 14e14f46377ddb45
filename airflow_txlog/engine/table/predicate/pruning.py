"""A predicate asked of files: which may hold a matching row, and which certainly hold nothing else.

Two questions, two functions: the complement of one is not the other (soundness A4, A9). The invariants: a file is
given up only if a partition value or a defended bound proves that no row matches, and a file counts as wholly matching
only if equality of an exactly known partition value says so. Vector operations only: a table has a million files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import PartitionValues, typed_partition_columns
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.predicate.bounds import may_be_true
from airflow_txlog.engine.table.predicate.exact import ColumnLeaf, comparable, true_where
from airflow_txlog.engine.table.predicate.partition_sets import in_set, understands
from airflow_txlog.engine.table.predicate.tree import (
    And,
    Comparison,
    Membership,
    Node,
    Operator,
    Or,
    PartitionSet,
    Predicate,
    Truth,
    Unknown,
    columns_of,
    leaves,
)
from airflow_txlog.engine.table.schema.schema import DataType, DecimalType, Primitive, StructType

# Types of partition columns for which equality is the same to every reader of the strings (soundness A9).
_PLAIN_TYPES = (
    Primitive.STRING,
    Primitive.BYTE,
    Primitive.SHORT,
    Primitive.INTEGER,
    Primitive.LONG,
    Primitive.DATE,
    Primitive.BOOLEAN,
)


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
    facts = _Facts.of_partitions(predicate, files, schema, partition_columns)
    kept = _may(predicate.tree, facts)
    wanted = [name for name in _named(predicate) if _has_bounds(schema, facts, name)] if trust_statistics else []
    count = kept.true_count
    if not wanted or count == 0:
        return kept
    # Statistics are JSON, and reading them is what costs: only those of files that the partitions leave.
    narrowed = files if count == len(kept) else files.filter(kept)
    facts = _Facts.of_partitions(predicate, narrowed, schema, partition_columns)
    facts.bounds.update({path[0]: found for path, found in bounds(narrowed, schema, [(n,) for n in wanted]).items()})
    answers = _may(predicate.tree, facts)
    return answers if count == len(kept) else pc.replace_with_mask(kept, kept, answers)


def all_rows_match(
    predicate: Predicate, files: pa.Table, schema: StructType, partition_columns: Sequence[str]
) -> pa.BooleanArray:
    """Which of the files hold no row but those that the predicate selects; one boolean a file, never null.

    True is a proof, and is given only for TRUE itself, for partition columns of type string, integer, date or boolean
    that equal a constant of that very type, and for AND and OR of these; everything else is asked of Spark.
    Source: soundness A9.
    """
    return _all(predicate.tree, _Facts.of_partitions(predicate, files, schema, partition_columns))


@dataclass(slots=True)
class _Facts:
    """What is known of the files: typed partition values and, when asked for, bounds of data columns."""

    count: int
    types: dict[str, DataType]
    partitions: dict[str, PartitionValues]
    bounds: dict[str, ColumnBounds]

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
    """The columns that its leaves speak of."""
    return sorted({name for leaf in leaves(predicate.tree) for name in columns_of(leaf)})


def _has_bounds(schema: StructType, facts: _Facts, name: str) -> bool:
    """A data column whose statistics can say something; nested ones are counted differently by every writer."""
    return name not in facts.partitions and isinstance(facts.types.get(name), Primitive | DecimalType)


def _may(node: Node, facts: _Facts) -> pa.BooleanArray:
    match node:
        case And(children):
            return reduce(pc.and_, (_may(child, facts) for child in children))
        case Or(children):
            return reduce(pc.or_, (_may(child, facts) for child in children))
        case Truth(value):
            return facts.everywhere(value)
        case Unknown():
            return facts.everywhere(True)
        case PartitionSet():
            return _may_be_in_set(node, facts)
    return _leaf_may(node, facts)


def _leaf_may(leaf: ColumnLeaf, facts: _Facts) -> pa.BooleanArray:
    column = leaf.column
    # Another type than when the predicate was read: its constant is of the old one.
    if facts.types.get(column.name) != column.type:
        return facts.everywhere(True)
    partition = facts.partitions.get(column.name)
    if partition is not None and column.type is Primitive.BINARY:
        # Every writer has its own way to make text of bytes.
        return facts.everywhere(True)
    if partition is not None:
        return pc.or_(true_where(leaf, comparable(partition.values, column.type)), pc.invert(partition.known))
    known = facts.bounds.get(column.name)
    return facts.everywhere(True) if known is None else may_be_true(leaf, known)


def _may_be_in_set(node: PartitionSet, facts: _Facts) -> pa.BooleanArray:
    found = [facts.partitions.get(name) for name in node.columns]
    values = [each for each in found if each is not None]
    if len(values) < len(found):
        return facts.everywhere(True)
    types = [facts.types[name] for name in node.columns]
    if not understands(node, types):
        return facts.everywhere(True)
    return pc.or_(in_set(node, types, values), pc.invert(reduce(pc.and_, (each.known for each in values))))


def _all(node: Node, facts: _Facts) -> pa.BooleanArray:
    match node:
        case And(children):
            return reduce(pc.and_, (_all(child, facts) for child in children))
        case Or(children):
            return reduce(pc.or_, (_all(child, facts) for child in children))
        case Truth(value):
            return facts.everywhere(value)
        case PartitionSet():
            return _all_in_set(node, facts)
        case Comparison(operator=Operator.EQ, same_type=True) | Membership(negated=False, same_type=True):
            partition = facts.partitions.get(node.column.name)
            same = facts.types.get(node.column.name) == node.column.type
            if partition is not None and same and node.column.type in _PLAIN_TYPES:
                return pc.and_(true_where(node, partition.values), partition.known)
    return facts.everywhere(False)


def _all_in_set(node: PartitionSet, facts: _Facts) -> pa.BooleanArray:
    found = [facts.partitions.get(name) for name in node.columns]
    values = [each for each in found if each is not None]
    types = [facts.types[name] for name in node.columns if name in facts.types]
    if len(values) < len(found) or not all(each in _PLAIN_TYPES for each in types):
        return facts.everywhere(False)
    return pc.and_(in_set(node, types, values), reduce(pc.and_, (each.known for each in values)))
