"""Vacuums that may be deleting files at this moment, as the log shows them.

A vacuum reads the log once after its VACUUM START, and deletes no file that a commit has brought back by then. A commit
that brings files back later must see no START without its END: those files may be deleted next. A START that lands
between is one more commit, over which neither a restore nor a rollback is rebased. Source: soundness A16.
"""

from __future__ import annotations

from airflow_txlog.engine.log.actions import decode_commit_info
from airflow_txlog.engine.log.tail import read_files
from airflow_txlog.engine.table.schema.properties import HOUR_MS
from airflow_txlog.engine.table.snapshot.commit_times import list_commits
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import ConcurrentWrite

LONGEST_VACUUM_MS = 6 * HOUR_MS
"""A vacuum without an END that began earlier was killed."""


def check_no_vacuum_runs(snapshot: Snapshot) -> None:
    """Raise ConcurrentWrite if a vacuum of the table has begun and may not have ended."""
    store = snapshot.store
    since_ms = store.now_ms() - LONGEST_VACUUM_MS
    commits = [
        each for each in list_commits(store) if each.file_time_ms > since_ms and each.version <= snapshot.version
    ][::-1]
    ended = 0
    files = [each.info for each in commits]
    for commit, file, data in zip(commits, files, read_files(store, files), strict=True):
        operation = (decode_commit_info(data, file.path) or {}).get("operation")
        if operation == "VACUUM END":
            ended += 1
        elif operation == "VACUUM START" and ended:
            ended -= 1
        elif operation == "VACUUM START":
            raise ConcurrentWrite(
                f"{snapshot.uri}: a VACUUM began with version {commit.version} and has not ended. It may delete files "
                "that would come back. Nothing was committed. Try again when it has ended. If it was killed, wait for "
                f"{LONGEST_VACUUM_MS // HOUR_MS} hours, or restore with ignore_missing=True, which may "
                "lose files.",
                table=snapshot.uri,
                read_version=snapshot.version,
                winning_version=commit.version,
                winning_operation="VACUUM START",
            )
