"""A predicate asked of files: which may hold a matching row?

The invariant: a file is left out only if a partition value or a defended bound proves that no row matches. The
complement of the answer proves nothing (soundness A4). Vector operations only: a table has a million files.
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
    Node,
    Or,
    PartitionSet,
    Predicate,
    Truth,
    Unknown,
    columns_of,
    leaves,
)
from airflow_txlog.engine.table.schema.schema import DataType, DecimalType, Primitive, StructType


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
    """The columns that its leaves name."""
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
