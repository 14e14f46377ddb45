"""A few random histories without Spark; `make histories` applies 10,000 of each kind by both executors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.histories import SUBJECTS, check


@pytest.mark.parametrize("subject", SUBJECTS)
def test_histories_and_their_change_feed_are_those_of_the_reference(subject: str, tmp_path: Path) -> None:
    figures = check(subject, 30, os.getpid(), tmp_path, None)
    assert (figures["rows_wrong"], figures["feed_wrong"]) == (0, 0), figures
    assert figures["changes_in_feed"] > 30
