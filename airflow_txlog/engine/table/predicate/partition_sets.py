"""Sets of partitions as predicates: what an overwrite of "the partitions of the new files" reads.

The invariant: values compare as typed values (`1` and `01` are one integer partition), null equals null, and where a
value is not known the answer is the careful one. Source: delta-spark, dynamic partition overwrite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import PartitionValues, parse_partition_values
from airflow_txlog.engine.table.predicate.exact import comparable
from airflow_txlog.engine.table.predicate.tree import FALSE, Node, PartitionSet, Predicate, any_of, describe
from airflow_txlog.engine.table.schema.schema import DataType, Primitive
from airflow_txlog.errors import PartitionMismatch


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
    children: list[Node] = [PartitionSet(columns, frozenset(rows)) for columns, rows in sorted(groups.items())]
    tree = any_of(children) if children else FALSE
    named = frozenset(name for columns in groups for name in columns)
    return Predicate(describe(tree), tree, named)


def in_set(node: PartitionSet, types: Sequence[DataType], values: Sequence[PartitionValues]) -> pa.BooleanArray:
    """Which files lie in the set, of those whose values are known; never null. The others are the caller's to judge.

    `types` and `values` belong to the set's columns, in their order.
    """
    rows = sorted(node.rows, key=str)
    file_codes: list[pa.Array] = []
    row_codes: list[pa.Array] = []
    for position, (data_type, column) in enumerate(zip(types, values, strict=True)):
        asked = parse_partition_values(pa.array([row[position] for row in rows], pa.string()), data_type)
        both = pa.concat_arrays([_normal(column.values, data_type), _normal(asked.values, data_type)])
        codes = pc.fill_null(both.dictionary_encode().indices.cast(pa.int64()), -1)
        file_codes.append(codes.slice(0, len(column.values)))
        # A text of the set that is not understood equals no known value.
        row_codes.append(pc.if_else(asked.known, codes.slice(len(column.values)), -2))
    return pc.is_in(_combined(file_codes), value_set=_combined(row_codes))


def understands(node: PartitionSet, types: Sequence[DataType]) -> bool:
    """Every text of the set is a value of its column's type."""
    for position, data_type in enumerate(types):
        texts = pa.array([row[position] for row in node.rows], pa.string())
        if not pc.all(parse_partition_values(texts, data_type).known, min_count=0).as_py():
            return False
    return True


def _normal(values: pa.Array, data_type: DataType) -> pa.Array:
    array = comparable(values, data_type)
    # -0.0 and 0.0 are one value, and adding zero leaves one of them.
    return pc.add(array, 0.0) if data_type in (Primitive.FLOAT, Primitive.DOUBLE) else array


def _combined(codes: list[pa.Array]) -> pa.Array:
    """One text a row, equal exactly where all the codes are."""
    texts = [code.cast(pa.string()) for code in codes]
    return reduce(lambda one, other: pc.binary_join_element_wise(one, other, "/"), texts)
