"""A step of a task that counts the rows which break new rules of the table. It yields no row."""

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
BROKEN_SCHEMA = pa.schema([pa.field(RULE_COLUMN, pa.int32()), pa.field(COUNT_COLUMN, pa.int64())])


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
