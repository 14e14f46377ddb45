"""The report of a dry run: the change by partition, and the partitions in which other commits would conflict.

Everything is counted as for a commit; the writers discard the files. With samples, the first changed rows of each type
are kept for another table (`other_table`). The invariant: a report has names of columns, values of partitions and
numbers, and no row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.columns import FILES, adds_to_table
from airflow_txlog.engine.table.predicate import FileQuestion
from airflow_txlog.engine.table.schema.column_mapping import partition_keys, table_schema
from airflow_txlog.engine.table.snapshot.files import live_row_counts
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import plan_files
from airflow_txlog.jobs.files.stage import MOST_SAMPLES, layout_of, stage
from airflow_txlog.jobs.resume.attempts import added

MOST_PARTITIONS = 100
"""The most partitions that a report lists; the first ones in the order of their values."""


def report_of(
    context: JobContext,
    tx: Transaction,
    *,
    removed: pa.Table,
    leaving: Mapping[int, int],
    staged: Sequence[StagedFile],
    new: Iterable[StagedFile],
) -> list[dict[str, Any]] | None:
    """Return the report if the job is a dry run, else None.

    `removed` (a table `FILES`) are the files that leave or get a deletion vector. `leaving` counts the rows that leave
    a file, by its row number in `removed`; a file that is not in it loses all. `new` are those of the `staged` files
    that have new rows or new images.
    """
    if not context.is_dry_run:
        return None
    if context.takes_samples and tx.snapshot is not None:
        context.saved_inputs.elsewhere += tuple(_samples_of_whole_files(context, tx.snapshot, removed, leaving))
    live = FILES.empty_table() if tx.snapshot is None else tx.snapshot.files()
    counts = live_row_counts(removed)
    gone = [leaving.get(row, count) for row, count in enumerate(counts)]
    figures: dict[str, Counter[str]] = {}

    def add(name: str, files: pa.Table, amounts: Sequence[int | None]) -> None:
        for values, amount in zip(_partitions(files), amounts, strict=True):
            figures.setdefault(values, Counter())[name] += amount or 0

    as_files = adds_to_table([added(file) for file in staged])
    add("rows_before", live, live_row_counts(live))
    add("rows_removed", removed, gone)
    add("files_removed", removed, [1] * removed.num_rows)
    add("rows_added", adds_to_table([added(file) for file in new]), [file.num_records for file in new])
    add("files_added", as_files, [1] * len(staged))
    add("bytes_added", as_files, [file.size_bytes for file in staged])
    every = pa.concat_tables([live, as_files])
    add("locked", every, _locked(tx, every))
    metadata = tx.metadata
    assert metadata is not None
    columns = metadata.partition_columns
    named = dict(zip(partition_keys(table_schema(metadata, context.root), columns), columns, strict=True))
    names = ("rows_before", "rows_removed", "rows_added", "files_removed", "files_added", "bytes_added")
    found = [
        {
            "partition": {named[key]: value for key, value in json.loads(values)},
            **{name: amounts[name] for name in names},
            "rows_after": amounts["rows_before"] - amounts["rows_removed"] + amounts["rows_added"],
            "is_locked": amounts["locked"] > 0,
        }
        for values, amounts in sorted(figures.items())
        if amounts["locked"] or amounts["files_removed"] or amounts["files_added"]
    ]
    if len(found) > MOST_PARTITIONS:
        context.log(f"the report lists {MOST_PARTITIONS} of {len(found)} partitions")
    for each in found[:MOST_PARTITIONS]:
        context.log(_line(each))
    return found[:MOST_PARTITIONS]


def _samples_of_whole_files(
    context: JobContext, snapshot: Snapshot, removed: pa.Table, leaving: Mapping[int, int]
) -> Sequence[StagedFile]:
    """Return files with the first rows of the removed files that lose all of their rows."""
    chosen, found = [], 0
    for row, count in enumerate(live_row_counts(removed)):
        if row not in leaving and found < MOST_SAMPLES:
            chosen.append(row)
            found += MOST_SAMPLES if count is None else count
    files = removed.take(pa.array(chosen, pa.int64()))
    plan = plan_files(snapshot, files, context.spec.time_zone, context.executor.instants)
    return stage(context, layout_of(context, snapshot), [], leaving=plan).elsewhere


def _locked(tx: Transaction, files: pa.Table) -> list[int]:
    """Return for each file 1 if another commit that adds a file to its partition may be a conflict, else 0."""
    if tx.snapshot is None or tx.reads.whole_table:
        return [int(tx.reads.whole_table)] * files.num_rows
    schema, columns = tx.snapshot.delta_schema, tx.snapshot.partition_columns
    asked = (FileQuestion(predicate, schema, columns) for predicate in tx.reads.predicates)
    found = [question.by_partitions(files).to_pylist() for question in asked]
    return [int(any(answers)) for answers in zip(*found, strict=True)] or [0] * files.num_rows


def _partitions(files: pa.Table) -> list[str]:
    return [json.dumps(sorted(dict(values or ()).items())) for values in files.column("partition_values").to_pylist()]


def _line(each: Mapping[str, Any]) -> str:
    place = ", ".join(f"{name}={value}" for name, value in each["partition"].items()) or "the table"
    locked = "; rows that others add there are a conflict" if each["is_locked"] else ""
    return (
        f"{place}: {each['rows_before']} rows, {each['rows_removed']} leave, {each['rows_added']} are new, "
        f"{each['rows_after']} afterwards; files: {each['files_removed']} leave, {each['files_added']} are new "
        f"({each['bytes_added']} bytes){locked}"
    )
