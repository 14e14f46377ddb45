"""Time, chance and identity: the only module that reads them from the machine (enforced by ruff's TID251).

A test passes its own `Clock` and makes the engine repeatable. Standard library only, because executors import it.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """The time, chance and identity that the engine uses."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never run backwards, for deadlines within one process."""

    def sleep(self, seconds: float) -> None:
        """Wait; a test's clock only moves its hands."""

    def random(self) -> float:
        """Return a number in [0, 1), for jitter."""

    def unique_id(self) -> str:
        """Return a new UUID in its canonical text form."""


class SystemClock:
    """The machine's clock and entropy."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def unique_id(self) -> str:
        return str(uuid.uuid4())


SYSTEM_CLOCK = SystemClock()
