"""Which version a moment belongs to, and the errors at both ends."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog import errors
from airflow_txlog.engine import Table
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
