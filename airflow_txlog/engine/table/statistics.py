"""Statistics of files as bounds that we can defend, for pruning and for conflicts.

The invariant: for every writer that exists, no value of a file lies outside the bounds given here for it; where that
cannot be defended, the bound is null, which means not known. Statistics of one file never touch another's.
Source: protocol, "Per-file Statistics".
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """What is known of one column in each of the files, in the files' order. A null means: not known.

    `lower`, `upper` are of the column's own Arrow type and speak of the values that are not null: none is smaller
    than `lower`, none is greater than `upper`. They are bounds, not values: the file need not hold them, so equal
    bounds prove that every value equals them, and nothing proves that some value does.

    `upper_is_exclusive` (strings): no value equals `upper` either. To ignore it is sound.

    `may_hold_nan` (float, double): `upper` speaks of the values that are not NaN; NaN is greater than every number,
    equals itself, and may stand in any file. So `upper` may rule out `= < <= IN` with a constant that is not NaN;
    it must not rule out `> >= !=` or a negation, and never proves that all rows match. `lower` is free of this.

    `null_count` and `num_records` (int64) count rows as the data file has them, also those that a deletion vector
    masks; where one may, `null_count` is given only as 0 or as `num_records`: all rows or none are null.
    """

    lower: pa.Array
    upper: pa.Array
    null_count: pa.Array
    num_records: pa.Array
    upper_is_exclusive: bool
    may_hold_nan: bool
