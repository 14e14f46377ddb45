"""The change feed of a table of ours, read by `deltalake`: change files, whole files, partitions.

Its feed does not decode the paths of files (`load_cdf` of 1.6.6), so the partitions have names that need no encoding.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_txlog.engine import Table
from tests.helpers.rows import append, stage, stage_changes

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def comparable(rows: pa.Table) -> list[tuple[Any, ...]]:
    """Without the moments: deltalake takes them from commitInfo, and not from the commit's file."""
    names = ("_commit_version", "_change_type", "id", "day")
    return sorted((tuple(row[name] for name in names) for row in rows.to_pylist()), key=repr)


def test_deltalake_reads_the_change_feed_as_we_do(uri: str) -> None:
    table = Table.create(uri, SCHEMA, ["day"], {"delta.enableChangeDataFeed": "true"})
    append(table, [{"id": k, "day": f"d{k % 2}"} for k in range(6)])
    tx = table.begin()
    tx.remove(tx.read("day = 'd1'"))
    tx.add(stage(table, pa.table({"id": [1, 30], "day": ["d1", None]}, schema=SCHEMA)))
    changes = [
        {"id": 3, "day": "d1", "_change_type": "update_preimage"},
        {"id": 30, "day": None, "_change_type": "update_postimage"},
        {"id": 5, "day": "d1", "_change_type": "delete"},
    ]
    tx.add_changes(stage_changes(table, changes))
    tx.commit("MERGE")
    tx = table.begin()
    tx.remove(tx.read("day = 'd0'"))
    tx.commit("DELETE")
    theirs = pa.table(DeltaTable(uri).load_cdf(starting_version=0).read_all())
    ours = table.changes(0)
    assert ours.num_rows == 6 + 3 + 3
    assert comparable(theirs) == comparable(ours)
