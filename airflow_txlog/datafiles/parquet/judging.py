"""New rows on their way into data files: judged by the table's rules and by a job's expectations.

A row that breaks a rule of the table is an error. Expectations count rows: a row passes a condition only if
it is TRUE, and one that fails may be dropped. The counts belong to the segment of the rows, whose files are kept or
forgotten together. The invariant: each row that a writer gets is counted once, in the segment of its file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_columns, unfit_rows
from airflow_txlog.errors import ConstraintViolation, JobError
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Expression, columns_of

Condition: TypeAlias = Expression | None
"""A condition bound to the columns of rows. None: the rows come with a column of Spark's answers (`answer_column`)."""

_ANSWER = "_txlog_passes_"
# The places in the counts of a segment.
_ROWS, _DROPPED, _FIRST = range(3)


def answer_column(number: int) -> str:
    """Return the name of the column with Spark's answers to the expectation of this number."""
    return f"{_ANSWER}{number}"


class Expected(NamedTuple):
    """An expectation on rows: its condition, and whether a row that fails it is dropped.

    `quarantines`: its name, if such a row is kept elsewhere.
    """

    condition: Condition
    drops: bool = False
    quarantines: str | None = None


class Rule(NamedTuple):
    """A rule of the table: a condition that must be true of each new row, and the text of `_violation`."""

    condition: Expression
    violation: str


FAILED_COLUMN = "failed_expectations"
"""The column of a row in quarantine with the names of the expectations that sent it there, separated by commas."""


def quarantine_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of rows in quarantine. Any of them may be null, and none has a mark of its table."""
    fields = [pa.field(field.name, field.type) for field in schema]
    return pa.schema([*fields, pa.field(FAILED_COLUMN, pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How many rows of a segment were judged, how many of them were dropped, and how many failed each expectation."""

    segment: int | None = None
    num_rows: int = 0
    num_dropped: int = 0
    failed: tuple[int, ...] = ()


def together(parts: Iterable[Judged]) -> Judged:
    """Return the counts of all parts."""
    found = list(parts)
    failed = zip(*(part.failed for part in found if part.failed), strict=True)
    return Judged(
        num_rows=sum(part.num_rows for part in found),
        num_dropped=sum(part.num_dropped for part in found),
        failed=tuple(map(sum, failed)),
    )


class Judge:
    """Counts the rows of one writer, drops some, and refuses those that break a rule. Used by one thread."""

    def __init__(
        self,
        expectations: Sequence[Expected],
        schema: pa.Schema,
        segment_column: str,
        quarantine: Callable[[pa.RecordBatch], None] | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        """`schema` has the columns of the conditions. `quarantine` gets rows as sent, with FAILED_COLUMN."""
        self._expectations = expectations
        self._rules = rules
        self._quarantine = quarantine
        self._segment_column = segment_column
        conditions = [each.condition for each in expectations if each.condition is not None]
        conditions += [rule.condition for rule in rules]
        read = frozenset[str]().union(*map(columns_of, conditions))
        self._read = pa.schema([field for field in schema if field.name in read])
        self._counts: dict[int | None, list[int]] = {}

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that no expectation drops, without Spark's answers, and count all of them.

        Raises InvalidInput with the fact `left_to_spark` as `evaluation.passing` does, SchemaMismatch, JobError;
        ConstraintViolation if a row that is not dropped breaks a rule.
        """
        return map(self._judged, batches)

    def _judged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows, answers = self._without_answers(batch)
        has_segments = self._segment_column in rows.schema.names
        segments = rows.column(self._segment_column) if has_segments else None
        self._add(_ROWS, rows.num_rows, segments)
        try:
            # As the table will hold them.
            read = pa.RecordBatch.from_arrays(convert_columns(rows, self._read), schema=self._read)
        except ColumnMismatch as error:
            raise unfit_rows(error) from error
        dropped: pa.BooleanArray | None = None
        reasons: list[pa.Array] = []
        for number, (condition, drops, name) in enumerate(self._expectations):
            passes = answers[number] if condition is None else self._passing(condition, read, rows.num_rows)
            if passes.true_count == rows.num_rows:
                continue
            fails = pc.invert(passes)
            self._add(_FIRST + number, fails.true_count, segments, fails)
            if drops:
                dropped = fails if dropped is None else pc.or_(dropped, fails)
            if name is not None:
                reasons.append(pc.if_else(fails, f", {name}", ""))
        if reasons and self._quarantine is not None:
            why = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*reasons, ""), 2)
            is_kept = pc.and_(dropped, pc.not_equal(why, ""))
            self._quarantine(rows.append_column(FAILED_COLUMN, why).filter(is_kept))
        for condition, violation in self._rules:
            passes = self._passing(condition, read, rows.num_rows)
            broken = rows.num_rows - (passes if dropped is None else pc.or_(passes, dropped)).true_count
            if broken:
                raise _violation(violation, broken)
        if dropped is None:
            return rows
        self._add(_DROPPED, dropped.true_count, segments, dropped)
        return rows.filter(pc.invert(dropped))

    def _passing(self, condition: Expression, read: pa.RecordBatch, num_rows: int) -> pa.BooleanArray:
        if read.num_columns:
            return passing(condition, read)
        # Arrow counts rows by a column.
        return passing(condition, pa.RecordBatch.from_arrays([pa.nulls(num_rows)], names=[_ANSWER]))

    def _without_answers(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, pa.BooleanArray]]:
        answers = {}
        for number, (condition, *_) in enumerate(self._expectations):
            if condition is None:
                name = answer_column(number)
                if name not in batch.schema.names:
                    raise JobError(
                        "New rows reached the writer without Spark's answers to the expectations. Nothing was "
                        "committed. Report this as a bug."
                    )
                answers[number] = pc.fill_null(batch.column(name), False)
                batch = batch.drop_columns([name])
        return batch, answers

    def _add(self, at: int, count: int, segments: pa.Array | None, chosen: pa.BooleanArray | None = None) -> None:
        """Add the chosen rows of a batch (None: all), `count` in number, to one count of each segment."""
        if segments is None:
            found = [(None, count)]
        else:
            of = segments if chosen is None else segments.filter(chosen)
            found = [(each["values"], each["counts"]) for each in pc.value_counts(of).to_pylist()]
        for segment, number in found:
            self._counts.setdefault(segment, [0] * (_FIRST + len(self._expectations)))[at] += number

    def counts(self) -> list[Judged]:
        """Return the counts of each segment."""
        return [
            Judged(segment=segment, num_rows=num_rows, num_dropped=num_dropped, failed=tuple(failed))
            for segment, (num_rows, num_dropped, *failed) in self._counts.items()
        ]


# --- rules of the table ---------------------------------------------------------------------------------------------

VIOLATION_COLUMN = "_txlog_violation"


def without_violations(batch: pa.RecordBatch, *, must_check: bool) -> pa.RecordBatch:
    """Return the batch without VIOLATION_COLUMN, in which Spark puts JSON if a row breaks a rule of the table.

    Raises ConstraintViolation for the first such row: an error in Spark itself would be retried and leave files behind.
    Raises JobError if the column is missing and `must_check` is true.
    """
    index = batch.schema.get_field_index(VIOLATION_COLUMN)
    if index < 0:
        if must_check:
            raise JobError("New rows reached the writer without a check of the table's rules. Nothing was committed.")
        return batch
    column = batch.column(index)
    if column.null_count < len(column):
        broken = column.drop_null()
        first = broken[0]
        raise _violation(first.as_py(), pc.sum(pc.equal(broken, first)).as_py())
    return batch.remove_column(index)


def _violation(text: str, count: int) -> ConstraintViolation:
    """Return the error that names the rule, its columns and how many rows of the batch break it, without any value.

    `text`: `{"constraint", "column", "what", "columns": [names]}`.
    """
    violation = json.loads(text)
    columns = ", ".join(violation.get("columns") or [])
    return ConstraintViolation(
        f"{f'{count} rows or more break' if count > 1 else 'A row breaks'} {violation['what']}"
        f"{f' (it reads {columns})' if columns else ''}. Nothing was committed. Correct such rows, or leave them out, "
        "in the SQL that makes them.",
        constraint=violation["constraint"],
        column=violation.get("column"),
    )
