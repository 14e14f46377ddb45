"""Operations on the rows for which one text is TRUE: DELETE, UPDATE, and an overwrite with `replace_where`.

The invariant: a row is found exactly if Spark evaluates the author's text to TRUE. For a plain text, the
engine computes that (`predicate.binding`). For any other text, it only skips files and rows for which it cannot be
TRUE. Source: soundness A2, A9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.found_rows import (
    PACKED_SCHEMA,
    distinct_values,
    held_rows,
    is_too_much,
    rows_packed,
    united,
)
from airflow_txlog.datafiles.tasks.scan_and_write import ADDRESS_COLUMN, FileScan, Task
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.predicate import Predicate, plain_condition
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY, StructType
from airflow_txlog.errors import MatchNotFound
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.frames import few_held, scan_frame, through
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan, run_here
from airflow_txlog.jobs.resume.attempts import predicate_parameter
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.rows.operation import Prepared, RowOperation
from airflow_txlog.jobs.spark.errors import collect
from airflow_txlog.jobs.sql.columns import columns_named
from airflow_txlog.jobs.sql.gate import ROWS_ALIAS, SqlGate, aliased, quoted
from airflow_txlog.jobs.sql.scope import read_condition, row_filter_of
from airflow_txlog.sql.expression import Call, Column, Expression, Values, any_of, columns_of
from airflow_txlog.storage.limits import weight_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DOING = "find the matching rows"
# Estimated bytes of values whose type does not bound their size.
_WIDTH_OF_TEXT, _WIDTH_OF_NESTED = 16, 64

ONLY_CLAUSE = 0
"""The number of the only clause, which acts on every row that is found."""


@dataclass(frozen=True, kw_only=True)
class PreparedByCondition(Prepared):
    """`condition` is the text as the engine reads it."""

    condition: Predicate


C = TypeVar("C", bound=PreparedByCondition)


class ByCondition(RowOperation[C]):
    """The shared steps. `prepare` must have accepted the condition before `find` is called."""

    def __init__(self, context: JobContext, gate: SqlGate, condition: str, alias: str = ROWS_ALIAS) -> None:
        """`alias` is the table's name in the text."""
        self._context = context
        self._gate = gate
        self._condition = condition
        self._alias = alias
        self._last_read: tuple[StructType, tuple[Predicate, Expression] | str] | None = None

    def _accepted(self, snapshot: Snapshot, in_spark: Callable[[], dict[str, Any]]) -> Predicate:
        """Return the accepted condition as the engine reads it. A plain one is accepted here, any other by `in_spark`.

        `in_spark` returns the parameters that the condition uses. Raises NeedsSpark.
        """
        plain = self._plain(snapshot)
        if isinstance(plain, str):
            why = f"the predicate is more than a plain condition: it has {plain}"
            used = self._context.executor.by_spark(why, in_spark)
            return read_condition(self._context, snapshot, self._condition, used)
        self._gate.check_clocks(self._condition, snapshot.delta_schema.names)
        self._gate.used |= set(self._gate.parameters_in(self._condition))
        return plain[0]

    def _plain(self, snapshot: Snapshot) -> tuple[Predicate, Expression] | str:
        """Return the condition as the engine reads it, and the filter that passes exactly its rows; or the reason why
        it is not plain.
        """
        schema, known = snapshot.delta_schema, self._last_read
        if known is None or known[0] is not schema:
            # A list may have thousands of values: it is not read again to find the rows.
            known = self._last_read = (schema, self._read_plain(snapshot))
        return known[1]

    def _read_plain(self, snapshot: Snapshot) -> tuple[Predicate, Expression] | str:
        condition, schema = self._condition, snapshot.delta_schema
        used = self._gate.parameters_in(condition)
        may_fail, zone = not self._context.leaves_values_to_spark, self._context.spec.time_zone
        exact = plain_condition(condition, schema, used, alias=self._alias, may_fail=may_fail, time_zone=zone)
        if isinstance(exact, str):
            return exact
        return read_condition(self._context, snapshot, condition, used, alias=self._alias), exact

    def find(self, prepared: C, plan: FilePlan) -> Matches:
        """Return every row for which the condition is TRUE, with the only clause. Raises NeedsSpark."""
        context, plain = self._context, self._plain(prepared.snapshot)
        if isinstance(plain, str):
            columns = columns_named(self._condition, prepared.snapshot.delta_schema)
            found = self._find_by_spark(plan, columns, prepared.condition)
        else:
            found = _passing(context, plan, addressed_scan(context, plan, columns_of(plain[1]), plain[1]))
        return Matches.of_clause(ONLY_CLAUSE, found)

    def _find_by_spark(self, plan: FilePlan, columns: frozenset[str], read: Predicate) -> Mapping[int, RowPositions]:
        """Return the rows for which the accepted condition is TRUE, by the plan's numbers of the files.

        The condition names only `columns`. The tasks drop rows that cannot match, by `read`, before they
        reach Spark, and pack the addresses into bitmaps, so that the driver collects no rows. It sends few rows itself.
        """
        context = self._context
        row_filter = row_filter_of(read, columns)
        scan = addressed_scan(context, plan, columns, row_filter)
        by_value = self._filter_by_value(plan, scan)
        if by_value is not None:
            return _passing(context, plan, replace(scan, row_filter=by_value))
        held = few_held(context, scan, _DOING)
        if held is not None:
            found = collect(self._where(held, ADDRESS_COLUMN), _DOING).combine_chunks().to_batches()
            return united(run_here([(rows_packed, batch) for batch in found], PACKED_SCHEMA, _DOING, 1))
        rows = self._where(scan_frame(context, scan), ADDRESS_COLUMN)
        return united(collect(through(rows, rows_packed, PACKED_SCHEMA), _DOING))

    def _where(self, rows: DataFrame, column: str) -> DataFrame:
        """Return one column of the rows for which the condition is TRUE."""
        view = self._context.view_name()
        rows.createOrReplaceTempView(view)
        query = f"SELECT {quoted(column)} FROM {aliased(view, self._alias)} WHERE (\n{self._condition}\n)"
        return self._gate.run(query)

    def _filter_by_value(self, plan: FilePlan, addressed: FileScan) -> Expression | None:
        """Return a filter that passes exactly the rows for which the condition is TRUE, by the values of the one column
        that `addressed` scans.

        Spark evaluates the condition once for each distinct value: a condition is deterministic and depends on one row
        alone. Returns None if several columns are scanned, if there are few rows or many values, or if two values
        of the column's type may be equal and yet differ (`-0.0` and `0.0`).
        """
        context, limits = self._context, self._context.limits
        num_rows = pc.sum(plan.table.column("num_records")).as_py() or 0
        if num_rows < limits.many_rows or len(addressed.schema) != 1:
            return None
        field = addressed.schema.field(0)
        if not _is_one_value_where_equal(field):
            return None
        name, scan = field.name, replace(addressed, with_address=False)
        most = limits.distinct_values, limits.distinct_value_bytes
        task = Task(source=_weighed(scan, plan), steps=(partial(distinct_values, *most),))
        values = pc.unique(context.executor.run([task], scan.output_schema, _DOING).column(0).combine_chunks())
        if is_too_much(values, *most):
            return None
        held = partial(held_rows, pa.RecordBatch.from_arrays([values], schema=scan.output_schema))
        rows = through(context.spark.range(0, 1, 1, 1), held, scan.output_schema)
        found = collect(self._where(rows, name), _DOING).column(0).cast(field.type).combine_chunks()
        context.log(f"the predicate was evaluated for each of {plural(len(values), 'value')} of {name}")
        wanted = Call("in", (Column(name), Values(found.drop_null())))
        return any_of([wanted, Call("is null", (Column(name),))]) if found.null_count else wanted

    def parameters(self, prepared: C) -> dict[str, Any]:
        return {"predicate": predicate_parameter([prepared.scope.with_condition(self._condition)])}

    def _check_matched(self, prepared: C, matched: int, require_match: bool) -> None:
        """Raise MatchNotFound if `require_match` demands a matching row and there is none."""
        if require_match and not matched:
            root, condition = self._context.root, prepared.scope.with_condition(self._condition)
            raise MatchNotFound(
                f"{root}: {condition!r} is true of no row at version {prepared.snapshot.version}, and require_match "
                "asks for one. Nothing was changed. Check that the parameters have the values that you expect.",
                table=root,
                matched=0,
            )


def _passing(context: JobContext, plan: FilePlan, scan: FileScan) -> Mapping[int, RowPositions]:
    """Return the rows that pass the filter of a scan of the plan's files."""
    task = Task(source=_weighed(scan, plan), steps=(rows_packed,))
    return united(context.executor.run([task], PACKED_SCHEMA, _DOING))


def _is_one_value_where_equal(field: pa.Field) -> bool:
    """Return whether equal values of the column are identical, and Spark compares them as they are stored."""
    kind = field.type
    is_plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)
    is_padded = CHAR_VARCHAR_KEY.encode() in (field.metadata or {})
    return (is_plain or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)) and not is_padded


def _weighed(scan: FileScan, plan: FilePlan) -> FileScan:
    """Return the scan of some columns of the planned files, with an estimate of their share as its weight."""
    share = _width(scan.schema) / max(1, _width(plan.schema))
    sizes = (int((size or 0) * share) for size in plan.table.column("size_bytes").to_pylist())
    weight = weight_of(sizes, is_remote=plan.store.is_remote)
    return replace(scan, bins=replace(scan.bins, weight=weight))


def _width(schema: pa.Schema) -> int:
    """Return about how many bytes of a row these columns take."""
    return sum(map(_width_of_value, schema.types))


def _width_of_value(kind: pa.DataType) -> int:
    if pa.types.is_nested(kind):
        return _WIDTH_OF_NESTED
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _WIDTH_OF_TEXT
