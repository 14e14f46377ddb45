"""The row filter of a MERGE: target rows whose key no source row has, dropped by the workers that read them.

Where a conjunct of ON is `t.k = s.k` with columns of one plain type, ON is not TRUE of a target row whose `k` is none
of the source's, whatever the rest of ON says. The invariant: a row that ON matches with some source row passes.
Source: soundness A14 (what an equality is), `sql.evaluation`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.jobs.operations.merge.equalities import Equality, scoping_equalities
from airflow_txlog.jobs.operations.merge.plain_merge import PairColumns, is_plain, source_column
from airflow_txlog.jobs.source.materialized import MaterializedSource
from airflow_txlog.sql.expression import Call, Column, Expression, Values, all_of, any_of


def key_filter(on: str, arrow_schema: pa.Schema, pair: PairColumns, source: MaterializedSource) -> Expression | None:
    """What the accepted condition `on` says of target rows by the source's keys; None where it says nothing certain.

    `arrow_schema` is the types in which the target's rows are read.
    """
    equalities = scoping_equalities(
        on,
        target_alias=pair.target_alias,
        columns=[field.name for field in pair.target if is_plain(field)],
        target_columns=pair.target.names,
        source_columns=pair.source.names,
    )
    limits, parts = source.store.limits, list[Expression]()
    for equality in equalities:
        key = source_column(equality.sql, pair)
        if key is None or not pair.is_of_one_type(equality.column, key):
            continue
        if source.bytes_of([key]) <= limits.filter_key_bytes:
            values, are_all = source.distinct(key, limits.filter_keys)
            parts.append(_one_of(equality, values.cast(arrow_schema.field(equality.column).type), are_all))
    return all_of(parts) if parts else None


def _one_of(equality: Equality, values: pa.Array, are_all: bool) -> Expression:
    present = values.drop_null()
    column = Column(equality.column)
    if are_all:
        found: Expression = Call("in", (column, Values(present)))
    else:
        ends = pc.min_max(present)
        least, greatest = (pa.array([ends[end]], present.type) for end in ("min", "max"))
        found = all_of([Call(">=", (column, Values(least))), Call("<=", (column, Values(greatest)))])
    # By `<=>` a null meets a null.
    return any_of([found, Call("is null", (column,))]) if equality.null_safe and values.null_count else found
