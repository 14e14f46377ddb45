"""Which version a moment belongs to, the time of a version, and the errors at both ends."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table, changes_since
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.table.snapshot.commit_times import parse_moment
from tests.helpers.rows import append

SCHEMA = pa.schema([("id", pa.int64())])
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Versions 0 to 3, committed an hour apart by their file times."""
    table = Table.create(tmp_path / "t", SCHEMA)
    for number in range(3):
        append(table, [{"id": number}])
    for version in range(4):
        set_time(table, version, START_MS + version * HOUR_MS)
    return table


def set_time(table: Table, version: int, moment_ms: int) -> None:
    path = table.uri.removeprefix("file://") + "/" + commit_name(version)
    os.utime(path, ns=(moment_ms * 1_000_000, moment_ms * 1_000_000))


@pytest.mark.parametrize(
    ("after_start_ms", "version"),
    [(0, 0), (1, 0), (HOUR_MS - 1, 0), (HOUR_MS, 1), (2 * HOUR_MS + 5, 2), (3 * HOUR_MS, 3)],
)
def test_a_moment_belongs_to_the_last_version_at_or_before_it(table: Table, after_start_ms: int, version: int) -> None:
    assert table.snapshot(timestamp=START_MS + after_start_ms).version == version
    assert table.to_arrow(timestamp=START_MS + after_start_ms).num_rows == version


def test_a_moment_before_the_log_or_after_its_last_commit_is_refused(table: Table) -> None:
    with pytest.raises(errors.TimestampOutOfRange) as caught:
        table.snapshot(timestamp=START_MS - 1)
    assert caught.value.earliest_ms == START_MS
    with pytest.raises(errors.TimestampOutOfRange) as caught:
        table.snapshot(timestamp=START_MS + 3 * HOUR_MS + 1)
    assert caught.value.latest_ms == START_MS + 3 * HOUR_MS


def test_file_times_that_run_backwards_are_made_to_grow(table: Table) -> None:
    set_time(table, 2, START_MS)
    # Version 2 counts as one millisecond younger than version 1, whatever its file says.
    assert table.snapshot(timestamp=START_MS + HOUR_MS).version == 1
    assert table.snapshot(timestamp=START_MS + HOUR_MS + 1).version == 2
    times = [entry["timestamp"] for entry in table.history()]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == 4


def test_in_commit_timestamps_tell_the_time_where_the_table_has_them(memory_uri: str, clock: Any) -> None:
    clock.time_ms = START_MS
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableInCommitTimestamps": "true"}, clock=clock)
    for number in range(12):
        clock.time_ms += HOUR_MS
        append(table, [{"id": number}])
    assert table.snapshot().timestamp_ms == START_MS + 12 * HOUR_MS
    for version in (0, 1, 7, 12):
        assert table.snapshot(timestamp=START_MS + version * HOUR_MS).version == version
    assert table.snapshot(timestamp=START_MS + 7 * HOUR_MS - 1).version == 6
    with pytest.raises(errors.TimestampOutOfRange):
        table.snapshot(timestamp=START_MS + 12 * HOUR_MS + 1)
    # Version 10 comes whole from its checkpoint, and still has its own time.
    assert table.snapshot(10).timestamp_ms == START_MS + 10 * HOUR_MS


def test_in_commit_timestamps_grow_even_where_the_clock_runs_backwards(memory_uri: str, clock: Any) -> None:
    table = Table.create(memory_uri, SCHEMA, properties={"delta.enableInCommitTimestamps": "true"}, clock=clock)
    before = table.snapshot().timestamp_ms
    clock.time_ms -= HOUR_MS
    append(table, [{"id": 1}])
    assert table.snapshot().timestamp_ms == before + 1


@pytest.mark.parametrize(
    "moment",
    [
        START_MS,
        datetime.fromtimestamp(START_MS / 1000, UTC),
        datetime.fromtimestamp(START_MS / 1000, UTC).replace(tzinfo=None),
        datetime.fromtimestamp(START_MS / 1000, timezone(timedelta(hours=2))),
        "2023-11-14T22:13:20Z",
        "2023-11-14 22:13:20",
        "2023-11-14T23:13:20+01:00",
    ],
)
def test_a_moment_may_be_given_in_any_of_its_forms(moment: Any) -> None:
    assert parse_moment(moment) == START_MS


@pytest.mark.parametrize("moment", ["yesterday", "", True, 1.5, None, 10**30, -(10**15), "9999-12-31T23:59:59-01:00"])
def test_what_is_no_moment_is_refused(moment: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        parse_moment(moment)


def test_version_and_timestamp_together_are_refused(table: Table) -> None:
    with pytest.raises(errors.InvalidInput, match="not by both"):
        table.snapshot(version=1, timestamp=START_MS)


def test_a_version_that_does_not_exist_names_those_that_do(table: Table) -> None:
    with pytest.raises(errors.VersionNotFound) as caught:
        table.snapshot(9)
    assert (caught.value.version, caught.value.latest) == (9, 3)
    with pytest.raises(errors.VersionNotFound):
        table.snapshot(-1)


# --- the time of a version ------------------------------------------------------------------------------------------


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
