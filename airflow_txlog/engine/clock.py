"""Time, chance and identity: the only module of the engine that asks the machine for any of them.

A test passes its own `Clock`, and everything the engine does becomes repeatable.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """What the engine may ask of the outside world."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait; a test's clock only moves its hands."""

    def random(self) -> float:
        """A number in [0, 1), for jitter."""

    def unique_id(self) -> str:
        """A fresh UUID in its canonical text form."""


class SystemClock:
    """The machine's clock and entropy."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def unique_id(self) -> str:
        return str(uuid.uuid4())


SYSTEM_CLOCK = SystemClock()
