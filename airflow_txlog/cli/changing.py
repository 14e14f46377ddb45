"""The commands of `airflow txlog` that run the job of an operator: alter, convert, clone, rollback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_txlog.cli.alter_arguments import alteration_of, pairs_of
from airflow_txlog.cli.printing import Answer, ShownColumn, confirm, print_rows, say
from airflow_txlog.cli.usage import UsageError, hook_of, moment_of, uri_of
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.hooks.rollback import RunToUndo, roll_back_here

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_txlog.contract.job import JobResult


def alter(table: Table, args: Namespace) -> Answer:
    """Answer with `{"table", "version", "committed"}`: the version with the alteration, and whether it is new."""
    try:
        arguments = alteration_of(args)
    except ValueError as error:
        raise UsageError(str(error)) from error
    confirm(f"Alter {table.uri}?", args.yes)
    result = _job_done("alter", table, args, arguments)
    is_new = result.status == "committed"
    version = result.version if is_new else result.read_version
    document = {"table": table.uri, "version": version, "committed": is_new}
    answer = f"altered by version {version}" if is_new else f"as it should be at version {version}: nothing to do"
    return Answer(document, lambda: print(answer))


def convert(table: Table, args: Namespace) -> Answer:
    """Convert a folder of Parquet files. `left_out` has the first files that are left out.

    JSON: `{"table", "version", "committed", "dry_run", "num_files", "num_rows", "left_out"}`.
    """
    if not args.dry_run:
        confirm(f"Make the folder {table.uri} a Delta table?", args.yes)
    given = {"partition_schema": args.partition_schema, "dry_run": args.dry_run}
    result = _job_done("convert", table, args, given)
    metrics = result.metrics
    document = {
        "table": table.uri,
        "version": result.version,
        "committed": result.status == "committed",
        "dry_run": args.dry_run,
        "num_files": metrics["numConvertedFiles"],
        "num_rows": metrics["numOutputRows"],
        "left_out": result.details.files,
    }
    done = "would be converted" if args.dry_run else "converted"
    answer = f"{metrics['numConvertedFiles']} files with {metrics['numOutputRows']} rows {done}"
    return Answer(document, lambda: print(f"{answer}, {metrics['numSkippedFiles']} files left out"))


def clone(table: Table, args: Namespace) -> Answer:
    """Clone a table.

    JSON: `{"table", "version", "committed", "num_copied_files", "copied_size_bytes", "num_removed_files"}`.
    """
    moment = moment_of(args)
    try:
        properties = pairs_of("set_properties", args.set_properties)
    except ValueError as error:
        raise UsageError(str(error)) from error
    source = uri_of(hook_of(args), args.source, args)
    confirm(f"Make {table.uri} a clone of {source}?", args.yes)
    given = {
        "source": {"table": source, "version": args.table_version},
        "timestamp": moment_text(moment) if isinstance(moment, int) else moment,
        "shallow": args.shallow,
        "replace": args.replace,
        "properties": properties,
    }
    result = _job_done("clone", table, args, given)
    metrics, is_new = result.metrics, result.status == "committed"
    document = {
        "table": table.uri,
        "version": result.version if is_new else result.read_version,
        "committed": is_new,
        "num_copied_files": metrics["numCopiedFiles"],
        "copied_size_bytes": metrics["copiedFilesSize"],
        "num_removed_files": metrics["numRemovedFiles"],
    }
    answer = f"cloned by version {result.version}, {metrics['numCopiedFiles']} files copied"
    return Answer(document, lambda: print(answer if is_new else "a clone of that version already: nothing to do"))


def rollback(table: Table, args: Namespace) -> Answer:
    """Undo a run on all its tables or on none.

    JSON: `{"tables": [{"table_uri", "action", "undoes", "in_the_way", "status", "version"}], "dry_run"}`.
    """
    hook = hook_of(args)
    places = [table.uri, *(uri_of(hook, each, args) for each in args.others)]
    run = RunToUndo(dag_id=args.dag_id, run_id=args.run_id)
    if not args.dry_run:
        confirm(f"Roll back run {run.run_id} of DAG {run.dag_id}?", args.yes)
    # The jobs' log is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        entries = roll_back_here(hook, places, run, say, dry_run=args.dry_run)

    def show() -> None:
        names = ("table", "action", "undoes", "status", "in the way")
        columns = [ShownColumn(name=name, keeps="end" if name == "table" else None) for name in names]
        cells = [
            (
                each["table_uri"],
                each["action"],
                ", ".join(map(str, each["undoes"])),
                each["status"],
                "; ".join(each["in_the_way"]),
            )
            for each in entries
        ]
        print_rows(columns, cells)

    return Answer({"tables": entries, "dry_run": args.dry_run}, show)


def _job_done(operation: str, table: Table, args: Namespace, arguments: Mapping[str, Any]) -> JobResult:
    # Each call is work of its own: it is not done already because an earlier one did the same.
    key = f"airflow txlog {operation} {SYSTEM_CLOCK.unique_id()}"
    # The job's log is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        return hook_of(args).run(operation, table.uri, dict(arguments), idempotency_key=key)
