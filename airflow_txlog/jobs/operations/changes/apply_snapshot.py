"""APPLY SNAPSHOT: a MERGE by keys that gives a table the rows of a whole snapshot.

It changes a row only if a column differs, so that a file whose rows are all the same stays as it is. The table has the
rows of the newest snapshot, or keeps each version of a row (slowly changing dimension, type 2). The invariant: a
snapshot without rows deletes or ends none, whatever the limits allow: it is the mark of an export that has failed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import AnyClause, ApplySnapshot, DeleteClause, InsertClause, Merge, UpdateClause
from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.tasks.history_rows import WithGoneRows
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.table.predicate import Predicate
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
    bare_columns,
    bare_type,
)
from airflow_txlog.engine.table.snapshot.commit_times import parse_moment
from airflow_txlog.errors import ExpectationFailed, InvalidInput, UnsupportedFeature
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.operations.merge.by_keys import MergeByKeys, kept_as_null, merge_by_keys
from airflow_txlog.jobs.operations.merge.job import PreparedMerge
from airflow_txlog.jobs.operations.merge.keys import SOURCE_ALIAS, TARGET_ALIAS, source_values
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.checked_change import check_ended_rows
from airflow_txlog.jobs.rows.matches import Matches, SourceRowSet
from airflow_txlog.jobs.rows.operation import Found
from airflow_txlog.jobs.rows.pipeline import run_row_operation
from airflow_txlog.jobs.source.folded import check_compared, folded, rows_in_scope
from airflow_txlog.jobs.source.materialized import MaterializedSource, input_scan, stored_of
from airflow_txlog.jobs.sql.columns import check_has_columns, no_such_column, rows_do_not_fit, shown_type, shown_types
from airflow_txlog.jobs.sql.current_time import NOW
from airflow_txlog.jobs.sql.gate import quoted

_AT = "_txlog_snapshot_at"
"""The parameter for the time of the snapshot."""
_NO_BYTES = "_txlog_no_bytes"
"""The parameter for an empty binary value."""
# Bytes of rows in memory, about, for a byte of their files.
_DECODED = 4
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def apply_snapshot(context: JobContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    described = context.record(ApplySnapshot)
    kind = _Snapshot if described.stored_as_scd_type == 1 else _History
    # The columns to compare are known once the source is found.
    return run_row_operation(context, lambda job: kind(job, described, as_merge(described, None)))


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


@dataclass(frozen=True, kw_only=True)
class HistoryMerge:
    """A merge that keeps each version of a row, and the numbers of its clauses by their effect.

    `early`: they must not act, because they would end rows that began too late. `ending`: they end a row in whose place
    the row of the source is inserted. `revived` and `gone` are those of them for rows that are marked as deleted, and
    for rows that are to be marked.
    """

    merge: Merge
    early: tuple[int, ...]
    ending: tuple[int, ...]
    revived: tuple[int, ...]
    gone: tuple[int, ...]


def as_history_merge(
    operation: ApplySnapshot, columns: Sequence[str], begins: str | None, updated: Sequence[str], differs: str | None
) -> HistoryMerge:
    """Return the merge that ends the current rows which differ or are gone, and inserts rows with these columns.

    `begins`: the condition under which a row of the source begins a new version. `updated`: the other columns, which
    the current version takes from it if it `differs`.
    """
    at, start = f":{_AT}", quoted(operation.start_column)
    is_early = f"{TARGET_ALIAS}.{start} >= {at}"
    end = {quoted(operation.end_column): at}
    begin = {start: at}
    if operation.current_column is not None:
        end[quoted(operation.current_column)], begin[quoted(operation.current_column)] = "FALSE", "TRUE"
    marks, found = operation.hard_deletes == "new_record", dict[str, list[int]]()
    clauses: list[AnyClause] = []

    def add(clause: AnyClause, *kinds: str) -> None:
        for kind in kinds:
            found.setdefault(kind, []).append(len(clauses))
        clauses.append(clause)

    deleted = quoted(operation.deleted_column)
    ends = [(f"{TARGET_ALIAS}.{deleted}", "revived"), (f"{SOURCE_ALIAS}.{deleted}", "gone")] if marks else []
    ends += [] if begins is None else [(begins, "changed")]
    for condition, _ in ends:
        add(UpdateClause(when="matched", set=end, condition=f"{condition} AND {is_early}"), "early")
    for condition, kind in ends:
        add(UpdateClause(when="matched", set=end, condition=condition), kind, "ending")
    if differs is not None:
        add(UpdateClause(when="matched", set=source_values(updated), condition=differs))
    add(InsertClause(values={**source_values([*columns, *([operation.deleted_column] if marks else [])]), **begin}))
    if operation.hard_deletes == "invalidate":
        add(UpdateClause(when="not_matched_by_source", set=end, condition=is_early), "early")
        add(UpdateClause(when="not_matched_by_source", set=end), "gone")
    kinds = {kind: tuple(found.get(kind, ())) for kind in ("early", "ending", "revived", "gone")}
    return HistoryMerge(merge=merge_by_keys(operation, *clauses), **kinds)


def differing(
    table: StructType,
    source: StructType,
    left_out: Iterable[str],
    nulls: Container[str],
    root: str,
) -> str | None:
    """Return the condition under which rows with equal keys differ in a common column; None without such a column.

    `left_out`: the keys, and other columns that do not count. `nulls`: the columns that store an empty value as NULL.
    Raises UnsupportedFeature for a column of a type whose values Spark does not compare.
    """
    known, same = {name.lower() for name in left_out}, []
    for held in source:
        field = table.find(held.name)
        if field is not None and field.name.lower() not in known:
            ours, theirs = (f"{alias}.{quoted(field.name)}" for alias in (TARGET_ALIAS, SOURCE_ALIAS))
            if isinstance(field.type, Primitive | DecimalType) and field.type != held.type:
                # As the table will store it: the text 07 is not the number 7.
                theirs = f"CAST({theirs} AS {field.type})"
            ours, theirs = _compared(ours, field, root), _compared(theirs, field, root)
            is_same = f"{ours} <=> {theirs}"
            if field.name in nulls:
                # A task reads no literal of bytes.
                empty = "''" if field.type is Primitive.STRING else f":{_NO_BYTES}"
                is_same = f"({is_same} OR {ours} IS NULL AND {theirs} = {empty})"
            same.append(is_same)
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


def _time_of(context: JobContext, described: ApplySnapshot) -> dt.datetime:
    """Return the time of the snapshot, the same in all attempts and tries. Raises NeedsSpark for a clock in a zone."""
    if described.snapshot_at is None:
        now: dt.datetime = context.current_time.values()[NOW]
        return now
    return _EPOCH + dt.timedelta(milliseconds=parse_moment(described.snapshot_at))


class _Snapshot(MergeByKeys):
    """A table that has the rows of the newest snapshot."""

    def __init__(self, context: JobContext, described: ApplySnapshot, merge: Merge) -> None:
        self._described = described
        # The gate takes the parameters of the job over.
        context.texts.parameters[_NO_BYTES] = b""
        super().__init__(context, described, merge)

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Compare the columns that both sides have."""
        super().meet(snapshot, columns)
        table = snapshot.delta_schema
        if self._described.schema_evolution:
            # The table gets these columns before its rows are compared.
            table = StructType((*table, *(field for field in columns if table.find(field.name) is None)))
        differs = differing(table, columns, self._keys, kept_as_null(snapshot), self._context.root)
        self._merge = as_merge(self._described, differs)

    def gone_by(self, prepared: PreparedMerge) -> Sequence[int]:
        """Return the numbers of the clauses that act on rows which are not in the snapshot."""
        return [clause.number for clause in prepared.clauses.not_matched_by_source]

    def num_given(self, prepared: PreparedMerge) -> int:
        """Return the number of rows in the snapshot."""
        return prepared.source.num_rows

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        super().check(prepared, found)
        gone = found.matches.count(self.gone_by(prepared))
        if gone and not self.num_given(prepared):
            root = self._context.root
            raise ExpectationFailed(
                f"{root}: the snapshot has no rows, and would delete {plural(gone, 'row')}. Nothing was committed. To "
                "empty the table, use DeltaTruncateOperator or DeltaDeleteOperator.",
                table=root,
                name="max_deleted_fraction",
                found=1.0,
                allowed=self._described.max_deleted_fraction,
            )


class _History(_Snapshot):
    """A table that keeps each version of a row. Only current rows take part in the merge.

    A row that differs ends, and its row in the snapshot is inserted, as if it had matched nothing.
    """

    def __init__(self, context: JobContext, described: ApplySnapshot, merge: Merge) -> None:
        context.texts.parameters[_AT] = _time_of(context, described)
        super().__init__(context, described, merge)
        self.open_until = described.end_column
        self._kinds = HistoryMerge(merge=merge, early=(), ending=(), revived=(), gone=())
        self._given: MaterializedSource | None = None

    @property
    def _marks(self) -> bool:
        """Whether rows that are not in the snapshot are inserted again with a mark."""
        return self._described.hard_deletes == "new_record"

    def meet(self, snapshot: Snapshot, columns: StructType) -> None:
        """Check that the table has the columns of a history, and those of the snapshot."""
        described, root, table = self._described, self._context.root, snapshot.delta_schema
        for argument in ("start_column", "end_column", "current_column", *(["deleted_column"] if self._marks else [])):
            named = getattr(described, argument)
            check_has_columns(argument, () if named is None else (named,), table.names, root)
        own = {name.lower() for name in described.history_columns}
        data = StructType(tuple(field for field in table if field.name.lower() not in own))
        fills = read_rules(snapshot.metadata, table, root).fills
        problems = [no_such_column(each.name) for each in columns if data.find(each.name) is None]
        problems += [
            f"{each.name}: the snapshot has no such column"
            for each in data
            if columns.find(each.name) is None and each.name not in fills
        ]
        if self._marks and not problems:
            check_compared("keys", self._keys, table, root, "find the rows that are gone", root)
            # The rows of both sides become rows of one source.
            held = [(each, data.by_name[each.name.lower()].type) for each in columns]
            problems += [
                f"{each.name}: {shown_type(each.type)} is not {shown_type(kind)}"
                for each, kind in held
                if bare_type(each.type) != bare_type(kind)
            ]
            mark = table.by_name[described.deleted_column.lower()]
            if mark.type is not Primitive.BOOLEAN:
                problems.append(
                    f"{mark.name}: the table has {shown_type(mark.type)}, and deleted_column must be boolean"
                )
        if problems:
            raise rows_do_not_fit(problems, shown_types(columns), shown_types(data), root)
        tracked, nulls = described.track_history_column_list, kept_as_null(snapshot)
        check_has_columns("track_history_column_list", tracked or (), columns.names, "The snapshot")
        counted = {name.lower() for name in tracked or columns.names} - {name.lower() for name in self._keys}
        others = [name for name in columns.names if name.lower() not in counted]
        begins = differing(data, columns, others, nulls, root)
        updated = [name for name in others if name.lower() not in {key.lower() for key in self._keys}]
        differs = differing(data, columns, [*counted, *self._keys], nulls, root) if updated else None
        self._kinds = as_history_merge(described, columns.names, begins, updated, differs)
        self._merge = self._kinds.merge

    def columns_met(self, columns: StructType) -> StructType:
        if not self._marks:
            return columns
        return bare_columns(StructType((*columns, StructField(self._described.deleted_column, Primitive.BOOLEAN))))

    def _source(self, tx: Transaction, snapshot: Snapshot, memory: Memory) -> MaterializedSource:
        """Return the rows of the snapshot and, if they get a mark, the rows of the table that it lacks."""
        given = super()._source(tx, snapshot, memory)
        if not self._marks:
            return given
        context, described, table = self._context, self._described, snapshot.delta_schema
        # The findings so far are of other rows.
        memory.forget()
        self._given = given
        columns = tuple(given.columns.names)
        names = [
            table.by_name[name.lower()].name for name in (*columns, described.end_column, described.deleted_column)
        ]
        keys = [given.columns.by_name[name.lower()].name for name in self._keys]
        fold = WithGoneRows(
            keys=tuple(keys),
            columns=columns,
            of_row=tuple(names[:-2]),
            end=names[-2],
            deleted=names[-1],
        )
        rows = rows_in_scope(context, self._gate, tx, snapshot, names, Predicate.true())
        inputs = [
            (input_scan(context, given.files, stored_of(given, columns)), tuple(keys)),
            (rows, tuple(table.by_name[name.lower()].name for name in self._keys)),
        ]
        size_bytes = given.bytes_of(columns) + _DECODED * rows.bins.weight
        with context.step("fold"):
            return folded(context, inputs, fold, self.columns_met(given.columns), size_bytes=size_bytes, needs_all=True)

    def inserts_nothing(self, matches: Matches) -> SourceRowSet:
        """Return the rows of the snapshot that match a current row and do not differ from it."""
        return matches.source_rows_without(self._kinds.ending)

    def gone_by(self, prepared: PreparedMerge) -> Sequence[int]:
        return self._kinds.gone

    def num_given(self, prepared: PreparedMerge) -> int:
        return super().num_given(prepared) if self._given is None else self._given.num_rows

    def check(self, prepared: PreparedMerge, found: Found) -> None:
        """Check as for a snapshot; raise InvalidInput if a row would end before it has begun."""
        super().check(prepared, found)
        matches, root, kinds = found.matches, self._context.root, self._kinds
        early = matches.count(kinds.early)
        if early:
            raise InvalidInput(
                f"{root}: {plural(early, 'row')} would end, and began at the time of the snapshot or later. Nothing "
                "was changed. Apply snapshots in the order of their times: give snapshot_at a later time, or restore "
                "the table to the version before the later snapshots, and apply them again."
            )
        gone, met = matches.count(kinds.gone), matches.source_rows.num_rows
        total = met - matches.count(kinds.revived) if self._marks else met + gone
        check_ended_rows(self._context, gone, total)
