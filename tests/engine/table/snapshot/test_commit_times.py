"""A version has one time, whichever way one asks for it and wherever one starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_txlog.engine import Table, changes_since
from airflow_txlog.engine.log.names import commit_name

SCHEMA = pa.schema([("id", pa.int64())])
START_MS = 1_700_000_000_000


def make(folder: Path, file_times: list[int], *, in_commit: dict[int, int], enabled_from: int | None = None) -> Table:
    """A table whose commit files have these times (after START_MS), and some commits an in-commit timestamp.

    The last version but one has a checkpoint, so that a reader of the newest does not look at what lies before.
    """
    table = Table.create(str(folder), SCHEMA)
    for _ in file_times[1:]:
        tx = table.begin()
        tx.commit("SET TBLPROPERTIES")
    for version, after in enumerate(file_times):
        path = folder / commit_name(version)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line and version in in_commit:
                line["commitInfo"]["inCommitTimestamp"] = START_MS + in_commit[version]
        if version == enabled_from:
            lines.append({"metaData": _with_in_commit_timestamps(folder, version, START_MS + in_commit[version])})
        path.write_text("\n".join(map(json.dumps, lines)))
        moment = (START_MS + after) * 1_000_000
        os.utime(path, ns=(moment, moment))
    Table.open(str(folder)).checkpoint(len(file_times) - 2)
    return Table.open(str(folder))


def _with_in_commit_timestamps(folder: Path, version: int, moment_ms: int) -> dict[str, object]:
    lines = [json.loads(line) for line in (folder / commit_name(0)).read_text().splitlines()]
    [metadata] = [line["metaData"] for line in lines if "metaData" in line]
    properties = {"delta.enableInCommitTimestamps": "true"}
    if version:
        properties["delta.inCommitTimestampEnablementVersion"] = str(version)
        properties["delta.inCommitTimestampEnablementTimestamp"] = str(moment_ms)
    return {**metadata, "configuration": {**metadata["configuration"], **properties}}


@pytest.mark.parametrize(
    ("file_times", "in_commit", "enabled_from", "expected"),
    [
        ([0, 10, 20, 30, 40, 50], {}, None, [0, 10, 20, 30, 40, 50]),
        ([0, 10, 10, 10, 10, 10], {}, None, [0, 10, 11, 12, 13, 14]),
        # A file that is older than those before it, as after a copy of the table or with two clocks.
        ([0, 100, 20, 30, 40, 101], {}, None, [0, 100, 101, 102, 103, 104]),
        ([100, 0, 0, 0, 0, 0], {}, None, [100, 101, 102, 103, 104, 105]),
        # An in-commit timestamp counts for nothing where the table has not enabled them.
        ([0, 10, 20, 30, 40, 50], {2: 7, 5: 9000}, None, [0, 10, 20, 30, 40, 50]),
        ([0, 10, 20, 30, 40, 50], {1: 7, 3: 300, 4: 301, 5: 302}, 3, [0, 10, 20, 300, 301, 302]),
        ([90, 10, 20, 30, 40, 50], {1: 7, 3: 300, 4: 301, 5: 302}, 3, [90, 91, 92, 300, 301, 302]),
    ],
)
def test_every_way_to_ask_for_a_version_s_time_gives_the_same(
    tmp_path: Path, file_times: list[int], in_commit: dict[int, int], enabled_from: int | None, expected: list[int]
) -> None:
    """Source: delta-spark, DeltaHistoryManager; protocol, "In-Commit Timestamps"."""
    uri = str(tmp_path / "t")
    table = make(Path(uri), file_times, in_commit=in_commit, enabled_from=enabled_from)
    times = [START_MS + each for each in expected]
    versions = range(len(times))
    assert [entry["timestamp"] for entry in reversed(table.history())] == times
    for limit in (0, 2, 5):
        assert [entry["timestamp"] for entry in reversed(table.history(limit + 1))] == times[-limit - 1 :]
    for version in versions:
        # Read afresh, and from what a table knows already.
        assert Table.open(uri).snapshot(version).timestamp_ms == times[version]
        assert table.snapshot(version).timestamp_ms == times[version]
        assert table.snapshot(timestamp=times[version]).version == version
        for start in {-1, version - 2, version - 1} & {-1, *versions}:
            changes = changes_since(Table.open(uri).snapshot(version), start)
            assert [each.timestamp_ms for each in changes] == times[start + 1 : version + 1]


def test_a_newer_snapshot_has_the_time_of_the_whole_log(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(Path(uri), [100, 0, 0], in_commit={})
    known = Table.open(uri).snapshot(1)
    assert known.refresh().timestamp_ms == START_MS + 102
    assert table.snapshot().timestamp_ms == START_MS + 102
