"""Tests that run alone, and those that wait for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.helpers.turns import turn


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("door", "room")}
    for each in found.values():
        each.touch()
    return found


def test_one_that_is_alone_waits_for_those_at_work_and_later_ones_wait_for_it(places: dict[str, Path]) -> None:
    events: list[str] = []
    is_alone, may_leave = threading.Event(), threading.Event()

    def alone() -> None:
        with turn(is_alone=True, **places):
            events.append("alone")
            is_alone.set()
            may_leave.wait(60)
            events.append("left")

    def later() -> None:
        with turn(is_alone=False, **places):
            events.append("later")

    waiting = threading.Thread(target=alone)
    with turn(is_alone=False, **places), turn(is_alone=False, **places):
        waiting.start()
        assert not is_alone.wait(0.1)
        events.append("ended")
    assert is_alone.wait(60)
    after = threading.Thread(target=later)
    after.start()
    after.join(0.1)
    assert events == ["ended", "alone"]
    may_leave.set()
    for each in (waiting, after):
        each.join(60)
    assert events == ["ended", "alone", "left", "later"]


def test_a_test_that_fails_ends_its_turn(places: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="failed"), turn(is_alone=True, **places):
        raise ValueError("failed")
    with turn(is_alone=True, **places):
        pass
