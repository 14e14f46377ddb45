"""What a table on the tests' S3 server must be after a fault: nothing is left that VACUUM does not sweep."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from airflow_txlog.clock import SystemClock
from airflow_txlog.engine import Table
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.table.changes.versions import changes_since
from airflow_txlog.storage import open_store
from tests.helpers import s3
from tests.helpers.fault_proxy import FAULTS

_DAY_MS = 24 * 3600 * 1000


class Later(SystemClock):
    """Three days from now."""

    def now_ms(self) -> int:
        return int(time.time() * 1000) + 3 * _DAY_MS


class Earlier(SystemClock):
    """Three days ago."""

    def now_ms(self) -> int:
        return int(time.time() * 1000) - 3 * _DAY_MS


def three_days_later(table: Table) -> Table:
    """The table as a machine and a store see it whose clocks say so."""
    store = open_store(table.uri, table.store.access)
    store.now_ms = Later().now_ms  # type: ignore[method-assign]
    return Table(store, clock=Later())


def left_over(table: Table) -> set[str]:
    """The files beside the log that no version names after a VACUUM three days later; change files count as named."""
    later = three_days_later(table)
    later.vacuum(timedelta(0), check_retention=False, orphan_retention=timedelta(days=1))
    snapshot = later.snapshot()
    adds = list(table_to_adds(snapshot.files(), data_change=False))
    vectors = [add.deletion_vector for add in adds if add.deletion_vector is not None]
    named = {add.path for add in adds} | {vector_file(v.storage_type, v.path_or_inline_dv, table.uri) for v in vectors}
    if snapshot.table_properties.change_data_feed:
        named |= {file.path for commit in changes_since(snapshot, -1) for file in commit.cdc}
    return {key for key in s3.keys_under(table.uri) if not key.startswith("_delta_log/")} - named


def is_drawn(row: int, column: int) -> bool:
    """Whether this kind of request meets this fault in this run: one of nine does, all with TXLOG_TEST_FAULTS=all."""
    return os.environ.get("TXLOG_TEST_FAULTS") == "all" or (column - row) % len(FAULTS) == 1
