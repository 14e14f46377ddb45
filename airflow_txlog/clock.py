"""Time, chance and identity: the only module that asks the machine for any of them (ruff's TID251 holds that).

A test passes its own `Clock`, and everything the engine does becomes repeatable. Imports the standard library alone:
executors import it too.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """What may be asked of the machine."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never run backwards, for deadlines within one process."""

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

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def unique_id(self) -> str:
        return str(uuid.uuid4())


SYSTEM_CLOCK = SystemClock()
