"""The time of a simulated world: it moves with every step, and the actors' clocks disagree."""

from __future__ import annotations

import random
from collections.abc import Callable


class World:
    """The true time, in milliseconds; what is drawn and named is drawn from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.time_ms = 1_700_000_000_000
        self.names = 0
        self.wait: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return self.time_ms

    def tick(self, chance: random.Random) -> None:
        self.time_ms += int(chance.random() * 20)

    def sleep(self, seconds: float) -> None:
        self.time_ms += int(seconds * 1000)
        self.wait()

    def random(self) -> float:
        return self.chance.random()

    def unique_id(self) -> str:
        self.names += 1
        return f"00000000-0000-4000-8000-{self.names:012d}"


class SkewedClock:
    """One actor's clock: the true time and an error of its own."""

    def __init__(self, world: World, skew_ms: int) -> None:
        self._world = world
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._world.now_ms() + self._skew_ms

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def random(self) -> float:
        return self._world.random()

    def unique_id(self) -> str:
        return self._world.unique_id()
