"""What a commit must adapt when it lands after another one that does not conflict with it.

Pure: each function answers with another attempt.
Source: protocol, "Row Tracking" and "In-Commit Timestamps"; delta-spark, ConflictChecker.reassignOverlappingRowIds.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_txlog.engine.commit.attempt import Attempt
from airflow_txlog.engine.commit.row_tracking import high_water_mark, number_rows
from airflow_txlog.engine.log.actions import Commit
from airflow_txlog.engine.table.properties import TableProperties
from airflow_txlog.errors import CorruptTable


def rebase(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt as it must read to follow `winner` directly."""
    return _after_timestamp(_after_row_ids(attempt, winner), winner)


def _after_timestamp(attempt: Attempt, winner: Commit) -> Attempt:
    metadata = attempt.current_metadata
    # The winner may be the commit that switched in-commit timestamps on: its metadata was adopted before this.
    enabled = metadata is not None and TableProperties(metadata.configuration, attempt.table).in_commit_timestamps
    if not enabled and attempt.in_commit_timestamp_ms is None:
        return attempt
    winners = (winner.info or {}).get("inCommitTimestamp")
    if not isinstance(winners, int):
        # Guessing a time here would break the order that every later reader relies on.
        raise CorruptTable(
            f"{attempt.table}: version {winner.version} carries no inCommitTimestamp, though the table has in-commit "
            "timestamps enabled. Another writer broke the rule; this commit was not made.",
            table=attempt.table,
        )
    own = attempt.in_commit_timestamp_ms or attempt.prepared_ms
    return replace(attempt, in_commit_timestamp_ms=max(own, winners + 1))


def _after_row_ids(attempt: Attempt, winner: Commit) -> Attempt:
    if attempt.row_id_high_water is None:
        return attempt
    winners_mark = high_water_mark(winner.domains, attempt.table)
    mark = attempt.row_id_high_water if winners_mark is None else winners_mark
    return number_rows(attempt, mark, winner.version + 1)
