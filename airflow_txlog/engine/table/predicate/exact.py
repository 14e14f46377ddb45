"""One leaf asked of typed values: where it is true, in Spark's order of values.

Used for rows and for partition values, both of which are known exactly. The invariant: null is never true, NaN equals
NaN and is greater than every number, and -0.0 equals 0.0. Source: Spark, "NaN Semantics"; soundness A4.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.predicate.tree import Comparison, Membership, NullTest, Operator, Prefix, Value
from airflow_txlog.engine.table.schema.schema import DataType, Primitive, array_of, arrow_type

ColumnLeaf: TypeAlias = Comparison | Membership | NullTest | Prefix

COMPARE = {
    Operator.EQ: pc.equal,
    Operator.NE: pc.not_equal,
    Operator.LT: pc.less,
    Operator.LE: pc.less_equal,
    Operator.GT: pc.greater,
    Operator.GE: pc.greater_equal,
}
_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)


def true_where(leaf: ColumnLeaf, values: pa.Array) -> pa.BooleanArray:
    """Where the leaf holds, for values of the column's type (`comparable` of them); never null, in their order."""
    match leaf:
        case NullTest(_, is_null):
            return pc.is_null(values) if is_null else pc.is_valid(values)
        case Comparison(column, operator, value):
            if column.type in _FLOATS and isinstance(value, float):
                return pc.fill_null(_compare_floats(values, operator, value), False)
            return pc.fill_null(COMPARE[operator](values, scalar(value, column.type)), False)
        case Membership(column, members, negated):
            found = pc.is_in(values, value_set=value_array(members, column.type))
            return pc.and_not(pc.is_valid(values), found) if negated else found
        case Prefix(_, prefix, negated):
            found = pc.starts_with(values, prefix)
            return pc.fill_null(pc.invert(found) if negated else found, False)


def comparable(values: pa.Array | pa.ChunkedArray, data_type: DataType) -> pa.Array:
    """The values in one array, of the type in which they are compared: floats as doubles, the rest as it is."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    target = comparable_type(data_type)
    return array if array.type == target else array.cast(target)


def comparable_type(data_type: DataType) -> pa.DataType:
    """The Arrow type in which a column of this type is compared."""
    return pa.float64() if data_type is Primitive.FLOAT else arrow_type(data_type)


def value_array(values: tuple[Value, ...], data_type: DataType) -> pa.Array:
    """Constants of leaves as an array, comparable with a column of this type."""
    return array_of(list(values), Primitive.DOUBLE if data_type is Primitive.FLOAT else data_type)


def scalar(value: Value, data_type: DataType) -> pa.Scalar:
    """One constant, comparable with a column of this type."""
    return value_array((value,), data_type)[0]


def _compare_floats(values: pa.Array, operator: Operator, value: float) -> pa.Array:
    is_nan = pc.is_nan(values)
    if not math.isnan(value):
        compared = COMPARE[operator](values, value)
        # Arrow's NaN compares to nothing (and differs from everything, which is right); Spark's is the greatest.
        return pc.or_(compared, is_nan) if operator in (Operator.GT, Operator.GE) else compared
    match operator:
        case Operator.EQ | Operator.GE:
            return is_nan
        case Operator.NE | Operator.LT:
            return pc.invert(is_nan)
        case Operator.LE:
            return pc.or_(is_nan, pc.invert(is_nan))
        case Operator.GT:
            return pc.and_(is_nan, pc.invert(is_nan))
