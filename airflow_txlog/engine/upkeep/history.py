"""The history of a table: the commitInfo of its versions."""

from __future__ import annotations

import logging
from typing import Any

from airflow_txlog.engine.commit.content.met import meetings_of
from airflow_txlog.engine.log.actions import decode_commit_info
from airflow_txlog.engine.log.segment import warn_once
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import in_commit_ms, list_commits
from airflow_txlog.engine.table.snapshot.snapshot import latest_metadata
from airflow_txlog.errors import CorruptTable, TableNotFound
from airflow_txlog.storage.base import Store

log = logging.getLogger(__name__)


def history(store: Store, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the commits that the log still holds, newest first, at most `limit`.

    Each is its commitInfo as written (operation, operationParameters, operationMetrics, …; other engines may write
    anything) with `version`, with `met` (the other commits that it met, in the form of `commit.content.met`; None
    without any), and with `timestamp` in milliseconds since the epoch: the time that time travel uses. If the table's
    metadata cannot be read, it is the time of the commit's file, and a warning is logged. Raises TableNotFound,
    CorruptCommit.
    """
    commits = list_commits(store)
    if not commits:
        raise TableNotFound(
            f"{store.root} holds no Delta table: there is no commit in its _delta_log.", table=store.root
        )
    wanted = commits[: -limit - 1 : -1] if limit is not None else commits[::-1]
    infos = [decode_commit_info(store.read(listed.info.path), listed.info.path) for listed in wanted]
    # The table's metadata, which decides whether in-commit timestamps count, is read only if there are any.
    timed = any("inCommitTimestamp" in info for info in infos)
    properties = TableProperties(_configuration(store) if timed else {}, store.root)
    return [
        {
            **info,
            "met": meetings_of(info).as_json(),
            "version": listed.version,
            "timestamp": listed.file_time_ms
            if (own := in_commit_ms(properties, listed.version, info)) is None
            else own,
        }
        for listed, info in zip(wanted, infos, strict=True)
    ]


def _configuration(store: Store) -> dict[str, str]:
    """Return the table's properties; none, with a warning, if the log does not give them."""
    try:
        return latest_metadata(store).configuration
    except CorruptTable as error:
        what = f"{error} Whether in-commit timestamps are on is not known: times are those of the commit files."
        warn_once(log, store.root, "the table's metadata", what)
        return {}
