"""Sets of partitions as predicates: what an overwrite of "the partitions of the new files" reads.

The invariant: values compare as typed values (`1` and `01` are one integer partition), null equals null, and where a
value is not known the answer is the careful one. Source: delta-spark, dynamic partition overwrite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import PartitionValues, parse_partition_values
from airflow_txlog.engine.table.predicate.tree import IN_PARTITIONS, Predicate, comparable_type, describe
from airflow_txlog.engine.table.schema.schema import DataType, Primitive
from airflow_txlog.errors import PartitionMismatch
from airflow_txlog.sql.evaluation import aligned
from airflow_txlog.sql.expression import Call, Column, Expression, Values, any_of


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
