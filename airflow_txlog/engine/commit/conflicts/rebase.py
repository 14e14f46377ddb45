"""What a commit must adapt when it lands after another one that does not conflict with it.

Pure: the answer is another attempt.
Source: protocol, "Row Tracking" and "In-Commit Timestamps"; delta-spark, ConflictChecker.reassignOverlappingRowIds.
"""

from __future__ import annotations

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.in_commit_timestamps import after_winner
from airflow_txlog.engine.commit.content.row_tracking import high_water_mark, number_rows
from airflow_txlog.engine.log.actions import Commit


def rebase(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt as it must read to follow `winner` directly."""
    return after_winner(_after_row_ids(attempt, winner), winner)


def _after_row_ids(attempt: Attempt, winner: Commit) -> Attempt:
    if attempt.row_id_high_water is None:
        return attempt
    winners_mark = high_water_mark(winner.domains, attempt.table)
    mark = attempt.row_id_high_water if winners_mark is None else winners_mark
    return number_rows(attempt, mark, winner.version + 1)
