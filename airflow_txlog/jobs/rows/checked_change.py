"""The limits and the expectations of a job, and its unique columns, checked in each attempt before its commit.

Rows that leave, and rows that change, are counted before anything is staged; new rows while they are written. An
attempt is checked as a whole: it counts what it reuses of earlier attempts and tries. The invariant: no count is an
estimate, so a limit that needs a count which the log does not have is not kept.

For unique columns the attempt reads the files of the scope after the commit: live files that stay, and the staged ones.
The scope is registered as read: a commit that adds rows to it during the operation is a conflict, and the next attempt
looks again. A row with a null in one of the columns equals no row, as in SQL's UNIQUE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import CheckedOperation, LimitedOperation
from airflow_txlog.contract.wording import expectation_metrics, plural
from airflow_txlog.datafiles.parquet.judging import Judged
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.datafiles.tasks.scan_and_write import FileScan
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table, no_files
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.files import file_keys, known_sum, live_row_counts
from airflow_txlog.engine.table.snapshot.replay import TableState
from airflow_txlog.errors import ExpectationFailed, JobError, UnknownColumn
from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import bins_for, plan_files
from airflow_txlog.jobs.resume.attempts import Change, added
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.dry_run import report_of
from airflow_txlog.jobs.rows.other_table import check_other_table, to_other_table
from airflow_txlog.jobs.sql.expectations import names_judging
from airflow_txlog.jobs.sql.scope import PartitionScope


def check_old_rows(
    context: JobContext,
    snapshot: Snapshot,
    scope: PartitionScope,
    *,
    whole: pa.Table,
    rows: int,
    updated: int,
    files: int,
) -> None:
    """Raise ExpectationFailed if more rows would be deleted or updated, or more files replaced, than the limits allow.

    All rows of the files `whole` (a table `FILES`) leave, and `rows` of others, of which `updated` get a new image. In
    all, `files` are replaced.
    """
    operation = context.operation
    if not isinstance(operation, LimitedOperation):
        return
    most_rows, share = operation.max_deleted_rows, operation.max_deleted_fraction
    if most_rows is not None or share is not None:
        name = "max_deleted_rows" if share is None else "max_deleted_fraction"
        deleted = _counted(context, name, whole) + rows - updated
        _check_most(context, "max_deleted_rows", most_rows, deleted, "delete", "row")
        _check_share(context, "max_deleted_fraction", share, deleted, "delete", snapshot, scope)
    _check_most(context, "max_files_rewritten", operation.max_files_rewritten, files, "replace", "file")
    if isinstance(operation, CheckedOperation):
        share = operation.max_updated_fraction
        _check_most(context, "max_updated_rows", operation.max_updated_rows, updated, "update", "row")
        _check_share(context, "max_updated_fraction", share, updated, "update", snapshot, scope)


def check_ended_rows(context: JobContext, ended: int, total: int) -> None:
    """Raise ExpectationFailed if more rows of a history would end than the limits on deleted rows allow.

    `total`: the rows that are current before the change.
    """
    operation = context.record(LimitedOperation)
    _check_most(context, "max_deleted_rows", operation.max_deleted_rows, ended, "end", "row")
    most = operation.max_deleted_fraction
    if most is not None and ended > Fraction(str(most)) * total:
        what = f"end {ended} of {plural(total, 'current row')} ({_percent(ended / total)})"
        raise _refused(context, "max_deleted_fraction", ended / total, most, what, f"allows {_percent(most)}")


def check_arguments(context: JobContext, tx: Transaction, schema: StructType) -> None:
    """Raise the errors of checks that can be found before anything is staged; `schema` is the table's."""
    assert tx.metadata is not None
    check_other_table(context, tx.metadata.id)
    unique_columns(context, schema)


def checked(
    context: JobContext,
    tx: Transaction,
    scope: PartitionScope,
    change: Change,
    memory: Memory,
    *,
    new: Sequence[StagedFile],
    num_inserted: int,
    leaving: Mapping[int, int],
) -> Change:
    """Return the change with the results of all checks, to be called before its files are in saved work.

    `new` are the files with new rows, which `memory` has judged; `num_inserted` of the rows are no images. `leaving`:
    see `report_of`. Raises ExpectationFailed.
    """
    written = sum(file.num_records for file in new)
    removed = no_files() if change.removed is None else change.removed
    staged = [file for file in change.staged if not file.is_change]
    counts = check_new_rows(context, memory.judged, written=written, inserted=num_inserted)
    counts |= check_unique(context, tx, scope, removed=removed, staged=staged, adds=change.adds)
    return replace(
        change,
        metrics={**change.metrics, **_duplicates(context), **expectation_metrics(counts)},
        before_commit=to_other_table(context),
        report=report_of(context, tx, removed=removed, leaving=leaving, staged=staged, new=new),
    )


def _duplicates(context: JobContext) -> dict[str, int]:
    """Return the number of the source's rows that deduplication has left out; nothing without it."""
    saved = context.saved_inputs.source
    return {} if saved is None or saved.num_duplicates is None else {"numDuplicateSourceRows": saved.num_duplicates}


def check_new_rows(context: JobContext, judged: Judged, *, written: int, inserted: int) -> dict[str, dict[str, int]]:
    """Return the counts of the expectations on the `written` rows of the attempt, `inserted` of which are no images.

    Raises ExpectationFailed if a limit or an expectation does not allow the commit.
    """
    operation = context.operation
    if not isinstance(operation, CheckedOperation):
        return {}
    _check_most(context, "max_inserted_rows", operation.max_inserted_rows, inserted, "insert", "row")
    least = operation.min_inserted_rows
    if least is not None and inserted < least:
        raise _refused(
            context, "min_inserted_rows", inserted, least, f"insert {plural(inserted, 'row')}", f"demands {least}"
        )
    names, of_source = names_judging(context), names_judging(context, source=True)
    kept = judged.num_rows - judged.num_dropped
    if names and kept != written:
        raise JobError(
            f"Of {written} new rows {kept} were judged by the expectations. Nothing was committed. Report this as a "
            "bug."
        )
    counts = _counts(names, judged) | _counts(of_source, context.saved_inputs.judged)
    forbidden = {name: counts[name] for name in operation.expect_or_fail if counts[name]["failed"]}
    if forbidden:
        rows = plural(judged.num_rows, "row")
        listed = ", ".join(f"{name!r} by {each['failed']} of {rows}" for name, each in forbidden.items())
        raise ExpectationFailed(
            f"{context.root}: the rows that this task adds or changes fail "
            f"{plural(len(forbidden), 'expectation')}: {listed}. A row passes only if the condition is TRUE; NULL "
            f"fails. Nothing was committed. Correct the rows at their origin, or count them by expect.",
            table=context.root,
            expectations=forbidden,
        )
    return counts


def _counts(names: Sequence[str], judged: Judged) -> dict[str, dict[str, int]]:
    failed = zip(names, judged.failed or (0,) * len(names), strict=True)
    return {name: {"passed": judged.num_rows - count, "failed": count} for name, count in failed}


def _check_most(context: JobContext, name: str, most: int | None, found: int, verb: str, noun: str) -> None:
    if most is not None and found > most:
        raise _refused(context, name, found, most, f"{verb} {plural(found, noun)}", f"allows {most}")


def _check_share(
    context: JobContext,
    name: str,
    most: float | None,
    found: int,
    verb: str,
    snapshot: Snapshot,
    scope: PartitionScope,
) -> None:
    if most is None or not found:
        return
    total = _counted(context, name, scope.files_inside(snapshot.files()))
    # The number as the author wrote it: in floating point, 29 rows are more than 0.29 of 100.
    if found > Fraction(str(most)) * total:
        what = f"{verb} {found} of the {plural(total, 'row')} in its scope ({_percent(found / total)})"
        raise _refused(context, name, found / total, most, what, f"allows {_percent(most)}")


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"


def _refused(context: JobContext, name: str, found: float, allowed: float, what: str, limit: str) -> ExpectationFailed:
    return ExpectationFailed(
        f"{context.root}: this task would {what}, and {name} {limit}. Nothing was committed. If the change is meant, "
        "adjust the limit.",
        table=context.root,
        name=name,
        found=found,
        allowed=allowed,
    )


def _counted(context: JobContext, name: str, files: pa.Table) -> int:
    """Return the live rows in the files. Raises ExpectationFailed if the log does not have the count of one."""
    count = known_sum(live_row_counts(files))
    if count is None:
        raise ExpectationFailed(
            f"{context.root}: {name} cannot be kept, because the log does not have the number of rows of some files. "
            "Nothing was committed. A compaction (OPTIMIZE) of these files counts their rows.",
            table=context.root,
            name=name,
        )
    return count


# --- unique columns ---------------------------------------------------------------------------------------------------


def unique_columns(context: JobContext, schema: StructType) -> list[str]:
    """Return the columns of `unique` as a table with this schema spells them; none without it. Raises UnknownColumn."""
    operation = context.operation
    given = (operation.unique or ()) if isinstance(operation, CheckedOperation) else ()
    found = []
    for name in given:
        field = schema.find(name)
        if field is None:
            raise UnknownColumn(
                f"unique names {name!r}, and {context.root} has no such column.{did_you_mean(name, schema.names)} "
                "Nothing was staged.",
                column=name,
                columns=schema.names,
            )
        found.append(field.name)
    return found


def check_unique(
    context: JobContext,
    tx: Transaction,
    scope: PartitionScope,
    *,
    removed: pa.Table,
    staged: Iterable[StagedFile],
    adds: Sequence[Add] = (),
) -> dict[str, dict[str, int]]:
    """Return how many rows of the scope passed and failed, by the name of the check; nothing without `unique`.

    `removed` (a table `FILES`) leave, `staged` files are new, and `adds` are live files with new deletion vectors.
    Raises ExpectationFailed for rows that share their values.
    """
    snapshot = _after(context, tx)
    columns = unique_columns(context, snapshot.delta_schema)
    if not columns:
        return {}
    live = scope.files_inside(tx.read(scope.read))
    gone = pc.is_in(file_keys(live, context.root), value_set=file_keys(removed, context.root))
    new = adds_to_table([*map(added, staged), *adds])
    counts = _passed_and_failed(context, snapshot, pa.concat_tables([live.filter(pc.invert(gone)), new]), columns)
    name = f"unique({', '.join(columns)})"
    if counts["failed"]:
        raise ExpectationFailed(
            f"{context.root}: this task would leave {plural(counts['failed'], 'row')} of {sum(counts.values())} that "
            f"share their values of {', '.join(columns)} with another row, and unique forbids that. Nothing was "
            "committed. Correct the rows at their origin, or delete the rows that are in the way.",
            table=context.root,
            expectations={name: counts},
        )
    return {name: counts}


def _after(context: JobContext, tx: Transaction) -> Snapshot:
    """Return the snapshot with the metadata that the transaction leaves; an empty one of a table that it creates."""
    protocol, metadata = tx.protocol, tx.metadata
    assert protocol is not None
    assert metadata is not None
    if tx.snapshot is not None:
        return tx.snapshot.with_metadata(metadata)
    return Snapshot(
        context.store, TableState(version=-1, protocol=protocol, metadata=metadata, in_commit_ms=None), None
    )


def _passed_and_failed(context: JobContext, snapshot: Snapshot, files: pa.Table, columns: list[str]) -> dict[str, int]:
    plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
    scan = FileScan(bins=bins_for(context, plan), schema=pa.schema([snapshot.schema.field(name) for name in columns]))
    fields = StructType(tuple(snapshot.delta_schema.by_name[name.lower()] for name in columns))
    rows, shared = context.executor.rows_sharing_values(context, scan, fields)
    return {"passed": rows - shared, "failed": shared}
