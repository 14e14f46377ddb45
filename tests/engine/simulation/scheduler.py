"""One actor runs at a time, and the seed says which: what makes a schedule of threads replay exactly.

Every actor is a thread with a lock of its own. Whoever is about to call the store hands the baton to the actor that is
drawn, by releasing that actor's lock, and waits for its own. So a schedule has as many places to switch as calls of the
store, and between two of them an actor is alone.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

PATIENCE_S = 60.0


class Died(BaseException):
    """The process of an actor is gone: nothing of it runs any more. No `except Exception` may live through it."""


class Scheduler:
    """Runs actors to their end, one at a time, in an order that the chance draws."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._batons: list[threading.Lock] = []
        self._alive: list[int] = []
        self._done = threading.Event()
        self._here = threading.local()
        self._failure: BaseException | None = None
        self.steps = 0

    @property
    def current(self) -> int | None:
        """The number of the running actor; None outside of a schedule, and in threads that an actor started."""
        number: int | None = getattr(self._here, "number", None)
        return number

    def run(self, actors: list[Callable[[], None]]) -> None:
        """Raises the first error that an actor let escape; its own death is none."""
        threads = []
        for number, actor in enumerate(actors):
            baton = threading.Lock()
            baton.acquire()
            self._batons.append(baton)
            self._alive.append(number)
            threads.append(threading.Thread(target=self._life, args=(number, actor), daemon=True))
        for thread in threads:
            thread.start()
        self._batons[self._draw()].release()
        assert self._done.wait(PATIENCE_S), "the schedule does not end: an actor waits for another, or loops"
        for thread in threads:
            thread.join(PATIENCE_S)
        if self._failure is not None:
            raise self._failure

    def step(self) -> None:
        """A place where another actor may go on."""
        number = self.current
        if number is None:
            return
        self.steps += 1
        chosen = self._draw()
        if chosen != number:
            self._batons[chosen].release()
            self._batons[number].acquire()

    def _draw(self) -> int:
        return self._alive[int(self._chance.random() * len(self._alive))]

    def _life(self, number: int, actor: Callable[[], None]) -> None:
        self._here.number = number
        self._batons[number].acquire()
        try:
            actor()
        except Died:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._alive.remove(number)
            if self._alive:
                self._batons[self._draw()].release()
            else:
                self._done.set()
