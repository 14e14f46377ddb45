"""What was done to a table: the commitInfo of its versions."""

from __future__ import annotations

from typing import Any

from airflow_txlog.engine.log.wire import decode_commit_info
from airflow_txlog.engine.store.base import Store
from airflow_txlog.engine.table.time_travel import list_commits
from airflow_txlog.errors import TableNotFound


def history(store: Store, limit: int | None = None) -> list[dict[str, Any]]:
    """The commits that the log still holds, newest first, at most `limit` of them.

    Each is its commitInfo as it was written (operation, operationParameters, operationMetrics, …; nothing of it is
    promised, other engines write what they like) with `version`, and with `timestamp` in milliseconds since the epoch:
    the time that time travel goes by. Raises TableNotFound, CorruptCommit.
    """
    commits = list_commits(store)
    if not commits:
        raise TableNotFound(
            f"{store.root} holds no Delta table: there is no commit in its _delta_log.", table=store.root
        )
    found = []
    for listed in commits[: -limit - 1 : -1] if limit is not None else reversed(commits):
        info = decode_commit_info(store.read(listed.info.path), listed.info.path)
        in_commit = info.get("inCommitTimestamp")
        timestamp = in_commit if isinstance(in_commit, int) else listed.file_time_ms
        found.append({**info, "version": listed.version, "timestamp": timestamp})
    return found
