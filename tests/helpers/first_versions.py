"""The note of the version that the first try of a job met, and what others can do to it."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake

from airflow_txlog.engine import Table


def notes(table: Table) -> list[Path]:
    """Return the notes beside the table, one for each piece of work that has one."""
    return list(Path(table.uri.removeprefix("file://")).glob("txlog-inputs-*/first-version"))


def lose_by_hand(table: Table) -> None:
    """Delete the notes."""
    for path in notes(table):
        path.unlink()


def lose_by_vacuum_of_delta_rs(table: Table) -> None:
    """Delete the notes as another engine's VACUUM does that retains nothing."""
    deltalake.DeltaTable(table.uri).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    assert notes(table) == []


def move_to_the_head(table: Table) -> None:
    """Let the notes name the latest version, under the signature of another."""
    for path in notes(table):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": table.snapshot().version}))
