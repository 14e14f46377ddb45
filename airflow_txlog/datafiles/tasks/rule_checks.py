"""Steps of tasks that read the rows of a table for an ALTER: rows that break new rules, and the furthest values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.tasks.scan_and_write import use_one_thread
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Expression

RULE_COLUMN, COUNT_COLUMN = "_txlog_rule", "_txlog_count"
VALUE_COLUMN = "_txlog_value"
BROKEN_SCHEMA = pa.schema([pa.field(RULE_COLUMN, pa.int32()), pa.field(COUNT_COLUMN, pa.int64())])

FURTHEST_SCHEMA = pa.schema([pa.field(RULE_COLUMN, pa.int32()), pa.field(VALUE_COLUMN, pa.int64())])


@dataclass(frozen=True, slots=True)
class NotNull:
    """The column, or the member of structs at this path, is not null; a struct that is null has no members."""

    path: tuple[str, ...]


Rule: TypeAlias = NotNull | Expression
"""An expression is a bound condition that must be true; null is not."""


def broken_rules(rules: Sequence[Rule], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield, as BROKEN_SCHEMA, the number of each rule that some row breaks, with the number of these rows."""
    use_one_thread()
    counts = [0] * len(rules)
    for batch in batches:
        for number, rule in enumerate(rules):
            counts[number] += _broken(rule, batch)
    found = [(number, count) for number, count in enumerate(counts) if count]
    columns = [pa.array([each[at] for each in found], field.type) for at, field in enumerate(BROKEN_SCHEMA)]
    yield pa.RecordBatch.from_arrays(columns, schema=BROKEN_SCHEMA)


def _broken(rule: Rule, batch: pa.RecordBatch) -> int:
    if not isinstance(rule, NotNull):
        return int(passing(rule, batch).false_count)
    values = batch.column(rule.path[0])
    nulls = values.is_null()
    for name in rule.path[1:]:
        has_members = values.is_valid()
        # A text that begins with a dot would be taken for a path, and lead to another member.
        values = pc.struct_field(values, [name])
        nulls = pc.and_(has_members, values.is_null())
    return int(nulls.true_count)


def furthest_values(columns: Sequence[tuple[str, bool]], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield, as FURTHEST_SCHEMA, the number of each BIGINT column that has a value, with its furthest value.

    That is the greatest, or the least if the flag of the column is False.
    """
    use_one_thread()
    furthest: dict[int, int] = {}
    for batch in batches:
        for number, (name, is_rising) in enumerate(columns):
            value = (pc.max if is_rising else pc.min)(batch.column(name)).as_py()
            if value is not None:
                known = furthest.get(number, value)
                furthest[number] = max(known, value) if is_rising else min(known, value)
    found = [pa.array(list(furthest), pa.int32()), pa.array(list(furthest.values()), pa.int64())]
    yield pa.RecordBatch.from_arrays(found, schema=FURTHEST_SCHEMA)
