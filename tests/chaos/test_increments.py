"""An increment under chaos for some seconds; `python -m tests.chaos.increments` makes 1,000 commits and 50 kills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.increments import chaos


@pytest.mark.long("two processes that are killed four times, and 60 commits")
def test_no_range_is_processed_twice_or_skipped_when_schedulers_are_killed(tmp_path: Path) -> None:
    figures, problems = chaos(60, 4, os.getpid(), tmp_path)
    assert (figures["processed_twice"], figures["skipped"], problems) == (0, 0, []), figures
    assert figures["kills"] == 4
    assert figures["ranges"] > 3
