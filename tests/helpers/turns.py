"""Turns of tests: one that shows how processes share the machine runs alone, while other processes of pytest wait."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

# Who wants to be alone closes the door, and waits until the room is empty. Any file will do to hold a lock.
_DOOR, _ROOM = Path(__file__), Path(__file__).parents[1] / "conftest.py"


@contextlib.contextmanager
def turn(*, is_alone: bool, door: Path = _DOOR, room: Path = _ROOM) -> Iterator[None]:
    """Wait for the turn of a test, and hold it for the block."""
    kind = fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH
    with door.open("rb") as first, room.open("rb") as second:
        fcntl.flock(first, kind)
        fcntl.flock(second, kind)
        if not is_alone:
            fcntl.flock(first, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # To close the files is not enough: a process that was forked meanwhile has them too.
            for held in (second, first):
                fcntl.flock(held, fcntl.LOCK_UN)
