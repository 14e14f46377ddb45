"""The limits and the expectations of a job, checked in each attempt before its commit.

Rows that leave, and rows that change, are counted before anything is staged; new rows while they are written. An
attempt is checked as a whole: it counts what it reuses of earlier attempts and tries. The invariant: no count is an
estimate, so a limit that needs a count which the log does not have is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import pyarrow as pa

from airflow_txlog.contract.operations import CheckedOperation, LimitedOperation
from airflow_txlog.contract.wording import expectation_metrics, plural
from airflow_txlog.datafiles.parquet.judging import Judged
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.columns import FILES
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.errors import ExpectationFailed, JobError
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.resume.attempts import Change
from airflow_txlog.jobs.resume.memory import Memory
from airflow_txlog.jobs.rows.dry_run import report_of
from airflow_txlog.jobs.rows.quarantine import check_quarantine, to_quarantine
from airflow_txlog.jobs.rows.uniqueness import check_unique, unique_columns
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


def check_arguments(context: JobContext, tx: Transaction, schema: StructType) -> None:
    """Raise the errors of checks that can be found before anything is staged; `schema` is the table's."""
    assert tx.metadata is not None
    check_quarantine(context, tx.metadata.id)
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
    removed = FILES.empty_table() if change.removed is None else change.removed
    staged = [file for file in change.staged if not file.is_change]
    counts = check_new_rows(context, memory.judged, written=written, inserted=num_inserted)
    counts |= check_unique(context, tx, scope, removed=removed, staged=staged, adds=change.adds)
    return replace(
        change,
        metrics={**change.metrics, **expectation_metrics(counts)},
        before_commit=to_quarantine(context),
        report=report_of(context, tx, removed=removed, leaving=leaving, staged=staged, new=new),
    )


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
            f"{context.root}: the rows that the {operation.name} adds or changes fail "
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
        f"{context.root}: the {context.operation.name} would {what}, and {name} {limit}. Nothing was committed. If the "
        "change is meant, adjust the limit.",
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
