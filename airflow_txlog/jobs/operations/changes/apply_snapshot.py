"""APPLY SNAPSHOT: a MERGE by keys that gives a table the rows of a whole snapshot.

It updates a row only if a column differs, so that a file whose rows are all the same stays as it is. The invariant:
a snapshot without rows deletes none, whatever the limits allow: it is the mark of an export that has failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import AnyClause, ApplySnapshot, DeleteClause, InsertClause, Merge, UpdateClause
from airflow_txlog.contract.wording import plural
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
)
from airflow_txlog.errors import ExpectationFailed, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge.by_keys import MergeByKeys, merge_by_keys
from airflow_txlog.jobs.operations.merge.job import PreparedMerge
from airflow_txlog.jobs.operations.merge.keys import SOURCE_ALIAS, TARGET_ALIAS
from airflow_txlog.jobs.rows.operation import Found
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.sql.gate import quoted


def apply_snapshot(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    return run_row_operation(context, _Snapshot)


def as_merge(operation: ApplySnapshot, differs: str | None) -> Merge:
    """Return the merge that does what the operation describes.

    `differs`: the condition for a row and its row in the snapshot to differ; None if they have only keys.
    """
    clauses: list[AnyClause] = []
    if differs is not None:
        clauses.append(UpdateClause(when="matched", set="*", condition=differs))
    clauses.append(InsertClause(values="*"))
    if operation.hard_deletes == "delete":
        clauses.append(DeleteClause(when="not_matched_by_source"))
    return merge_by_keys(operation, *clauses)


def differing(table: StructType, source: StructType, keys: Iterable[str], root: str) -> str | None:
    """Return the condition for rows with equal keys to differ in a column that both have; None if there is none.

    Raises UnsupportedFeature for a column of a type whose values Spark does not compare.
    """
    known, same = {key.lower() for key in keys}, []
    for held in source:
        field = table.find(held.name)
        if field is not None and field.name.lower() not in known:
            ours, theirs = (f"{alias}.{quoted(field.name)}" for alias in (TARGET_ALIAS, SOURCE_ALIAS))
            if isinstance(field.type, Primitive | DecimalType) and field.type != held.type:
                # As the table will store it: the text 07 is not the number 7.
                theirs = f"CAST({theirs} AS {field.type})"
            same.append(f"{_compared(ours, field, root)} <=> {_compared(theirs, field, root)}")
    return f"NOT ({' AND '.join(same)})" if same else None


def _compared(value: str, field: StructField, root: str) -> str:
    """Return SQL for a value of the column that is equal to another one exactly if nothing has changed."""
    if field.type is Primitive.STRING and field.is_collated:
        return f"CAST({value} AS BINARY)"
    kind = field.type
    if isinstance(kind, MapType) and _has_equality(kind.key) and _has_equality(kind.value) and not field.is_collated:
        # Entries in another order count as a change.
        return f"map_entries({value})"
    if field.is_collated or not _has_equality(kind):
        raise UnsupportedFeature(
            f"{root}: the column {field.name!r} is {kind}, and no expression compares all parts of its values, so the "
            "rows that have changed are not known. DeltaUpsertOperator updates them all. Nothing was changed.",
            table=root,
            feature="columns of this type in a snapshot",
            needed_to="compare rows",
        )
    return value


def _has_equality(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_has_equality(member.type) and not member.is_collated for member in kind)
        case ArrayType():
            return _has_equality(kind.element)
    return not isinstance(kind, MapType | VariantType)


class _Snapshot(MergeByKeys):
    def __init__(self, context: JobContext) -> None:
        self._described = context.record(ApplySnapshot)
        super().__init__(context, self._described, as_merge(self._described, None))

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Compare the columns that both sides have."""
        super().meet(snapshot, columns)
        root, table = self._context.root, snapshot.delta_schema
        if self._described.schema_evolution:
            # The table gets these columns before its rows are compared.
            table = StructType((*table, *(field for field in columns if table.find(field.name) is None)))
        self._merge = as_merge(self._described, differing(table, columns, self._keys, root))

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        super().check(prepared, found)
        gone = found.matches.count([clause.number for clause in prepared.clauses.not_matched_by_source])
        if gone and not prepared.source.num_rows:
            root = self._context.root
            raise ExpectationFailed(
                f"{root}: the snapshot has no rows, and would delete {plural(gone, 'row')}. Nothing was committed. To "
                "empty the table, use DeltaTruncateOperator or DeltaDeleteOperator.",
                table=root,
                name="max_deleted_fraction",
                found=1.0,
                allowed=self._described.max_deleted_fraction,
            )
