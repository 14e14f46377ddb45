"""The command `airflow txlog upkeep`: the due maintenance of one table, or of all tables of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_txlog.cli import printing
from airflow_txlog.cli.printing import ShownColumn
from airflow_txlog.engine import Table
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.hooks.upkeep import upkeep_here

if TYPE_CHECKING:
    from argparse import Namespace


def upkeep(table: Table, args: Namespace) -> printing.Answer:
    """`{"tables": [{"table", "status", "version", "steps", "metrics", "seconds"}], "failed", "left"}`."""
    if not args.dry_run:
        printing.confirm(f"Compact, checkpoint and vacuum what is due at {table.uri}?", args.yes)
    vacuum = None if args.vacuum == "none" else args.vacuum
    report = upkeep_here(
        TxlogHook(args.conn_id or None),
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
