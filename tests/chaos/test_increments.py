"""An increment under chaos for some seconds; `python -m tests.chaos.increments` makes 1,000 commits and 50 kills."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chaos.increments import chaos
from tests.chaos.replay import Journal, compare


@pytest.mark.spark
@pytest.mark.long("two processes that are killed four times, and 60 commits")
def test_no_range_is_processed_twice_or_skipped_when_schedulers_are_killed(spark: Any, tmp_path: Path) -> None:
    figures, problems = chaos(60, 4, os.getpid(), tmp_path, lambda: spark)
    assert (figures["processed_twice"], figures["skipped"], problems) == (0, 0, []), figures
    assert figures["kills"] == 4
    assert figures["ranges"] > 3


@pytest.mark.spark
@pytest.mark.long("some queries of Spark")
def test_the_replay_finds_a_change_that_is_missing_or_doubled(spark: Any, tmp_path: Path) -> None:
    journal = Journal(restores={4: 2}, columns={"c1": 1}, last=5)
    journal.put(1, 1, "a")
    journal.put(1, 2, "b", "c1")
    journal.put(2, 1, "A")
    journal.delete(3, 2)
    journal.put(5, 3, "c")
    rows = [(1, 1, "a"), (1, 2, "b"), (2, -1, "a"), (2, 1, "A"), (3, -2, "b"), (4, 2, "b"), (5, 3, "c")]
    changes = [
        {
            "id": abs(key),
            "name": name,
            "c1": 7 if key in (2, -2) else None,
            "_change_type": "insert" if key > 0 else "delete",
            "_commit_version": version,
        }
        for version, key, name in rows
    ]

    def compared(found: list[dict[str, Any]]) -> tuple[list[int], list[int], bool]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        done = compare(spark, journal, pa.Table.from_pylist(found), 5, path)
        assert done.versions == 5
        return list(done.doubled), list(done.skipped), done.is_whole

    assert compared(changes) == ([], [], True)
    assert compared([*changes, changes[3]]) == ([2], [], False)
    assert compared(changes[:4] + changes[5:]) == ([], [3], False)
    # The rows are right in sum, and two versions are not.
    assert compared(changes[:4] + changes[6:]) == ([], [3, 4], True)
