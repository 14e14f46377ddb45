"""The commands `airflow txlog upkeep`, `staged` and `traces`: due maintenance, waiting changes, and remaining traces of
a value."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_txlog.cli import printing
from airflow_txlog.cli.printing import ShownColumn
from airflow_txlog.cli.usage import UsageError, hook_of
from airflow_txlog.contract.job import ANNOTATION_TAG_PREFIX
from airflow_txlog.contract.wording import commit_rows, plural
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.values.key_columns import key_path
from airflow_txlog.engine.staged_changes import DISCARD, REFUSED, StagedChange, fate_of, staged_in
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.engine.table.snapshot.commit_times import moment_text
from airflow_txlog.hooks.upkeep import upkeep_here

if TYPE_CHECKING:
    from argparse import Namespace


def upkeep(table: Table, args: Namespace) -> printing.Answer:
    """Maintain the tables of a folder.

    JSON: `{"tables": [{"table", "status", "version", "steps", "metrics", "seconds"}], "failed", "left"}`.
    """
    if not args.dry_run:
        printing.confirm(f"Compact, checkpoint and vacuum what is due at {table.uri}?", args.yes)
    vacuum = None if args.vacuum == "none" else args.vacuum
    report = upkeep_here(
        hook_of(args),
        [table.uri],
        {"purge_above": args.purge_above, "vacuum": vacuum, "dry_run": args.dry_run},
        printing.say,
        max_bytes=args.max_bytes,
        max_minutes=args.max_minutes,
    )

    def show() -> None:
        columns = [
            ShownColumn(name="table", keeps="end"),
            ShownColumn(name="status"),
            ShownColumn(name="steps"),
        ]
        cells = [
            (entry["table"], entry["status"], ", ".join(step["step"] for step in entry.get("steps", ())))
            for entry in report.tables
        ]
        printing.print_rows(columns, cells)

    return printing.Answer(report.to_dict(), show, has_failed=bool(report.errors))


_ENDS: dict[str | None, str] = {DISCARD: "discarded", REFUSED: "refused"}


def staged(table: Table, args: Namespace) -> printing.Answer:
    """List the staged changes of a table, by time.

    JSON: `{"table", "staged": [{"id", "operation", "base_version", "state", "metrics", "files", "bytes", "staged_at",
    "expires_at", "task"}]}`. `state`: "waits", "expired", "published", "discarded" (files may be left) or
    "refused" (a conflict forbids the publication).
    """
    head, now_ms = table.snapshot(), table.clock.now_ms()
    found = sorted(staged_in(table.store), key=lambda each: (each[1].staged_ms, each[0]))
    changes = [
        _staged_change(id, change, fate_of(table.store, id), head.application_version(change.app_id), now_ms)
        for id, change in found
    ]

    def show() -> None:
        columns = [ShownColumn(name=name) for name in ("id", "operation", "base", "state", "rows", "expires", "task")]
        names = ("id", "operation", "base_version", "state")
        cells = [
            (
                *(each[name] for name in names),
                commit_rows(each["operation"], each["metrics"]),
                each["expires_at"],
                each["task"],
            )
            for each in changes
        ]
        printing.print_rows(columns, cells)

    return printing.Answer({"table": table.uri, "staged": changes}, show)


def _staged_change(
    id: str, change: StagedChange, fate: str | None, recorded: int | None, now_ms: int
) -> dict[str, Any]:
    is_published = recorded is not None and recorded >= change.app_version
    state = "waits" if now_ms < change.expires_ms else "expired"
    if is_published or fate in _ENDS:
        state = "published" if is_published else _ENDS[fate]
    return {
        "id": id,
        "operation": change.operation,
        "base_version": change.base_version,
        "state": state,
        "metrics": change.metrics,
        "files": len(change.content.adds),
        "bytes": sum(add.size for add in change.content.adds),
        "staged_at": moment_text(change.staged_ms),
        "expires_at": moment_text(change.expires_ms),
        "task": "/".join(change.tags.get(f"{ANNOTATION_TAG_PREFIX}{name}", "") for name in ("dag_id", "task_id")),
    }


def traces(table: Table, args: Namespace) -> printing.Answer:
    """Search the objects of a table for values. `left`: those that hold one or could not be read.

    JSON: `{"table", "num_objects", "is_complete", "left": [{"path", "size_bytes", "digest", "method", "verdict",
    "traces", "reason"}]}`. `is_complete`: nothing is left.
    """
    values = _lines(args.values)
    verdicts = list(table.find_traces(args.column, values))
    left = [verdict for verdict in verdicts if not verdict.passes]
    is_text = key_path(table.snapshot(), args.column)[-1].type is Primitive.STRING
    document = {
        "table": table.uri,
        "num_objects": len(verdicts),
        "is_complete": not left,
        "left": [dataclasses.asdict(verdict) for verdict in left],
    }

    def show() -> None:
        columns = [ShownColumn(name="object", keeps="end"), ShownColumn(name="verdict"), ShownColumn(name="where")]
        cells = [
            (each.path, each.verdict, each.reason or ", ".join(trace.place for trace in each.traces)) for each in left
        ]
        if left:
            printing.print_rows(columns, cells)
        passed = len(verdicts) - len(left)
        print(f"{plural(len(verdicts), 'object')} read: {passed} without a trace, {len(left)} with one or not readable")
        if is_text:
            print(
                f"The column {args.column} was compared by whole values, and other columns were searched inside of "
                f"their texts. To search inside of {args.column}, name another column of texts as --column."
            )

    return printing.Answer(document, show, has_failed=bool(left))


def _lines(path: str) -> list[str]:
    """Return the values in a file, one a line; "-" is the standard input."""
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    found = [line for line in text.splitlines() if line]
    if not found:
        raise UsageError("--values names a file without a value. Write one value on each line.")
    return found
