"""A predicate asked of files: which may hold a matching row?

The invariant: a file is left out only if a partition value or a defended bound proves that no row matches. The
complement of the answer proves nothing (soundness A4). Vector operations only: a table has a million files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import PartitionValues, typed_partition_columns
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.predicate.bounds import may_be_true
from airflow_txlog.engine.table.predicate.partition_sets import in_set, understands
from airflow_txlog.engine.table.predicate.tree import (
    IN_PARTITIONS,
    Predicate,
    comparable_type,
    constants_of,
    leaves,
)
from airflow_txlog.engine.table.schema.schema import DataType, DecimalType, Primitive, StructType
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Call, Expression, Literal, Opaque, columns_of


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
