"""One leaf asked of a data column's statistics: may a file hold a row where it is true?

The invariant: the answer is False only if the defended bounds prove that no row matches; a bound that is null proves
nothing. Source: soundness A4, A5; `statistics.ColumnBounds` says what each bound is worth.
"""

from __future__ import annotations

import math
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.statistics import ColumnBounds
from airflow_txlog.engine.table.predicate.tree import Operator
from airflow_txlog.sql.evaluation import aligned
from airflow_txlog.sql.expression import Call, Column, Expression, Values

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
