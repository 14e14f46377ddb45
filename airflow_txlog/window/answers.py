"""Answers that are computed once for all who ask, on threads that a dead store cannot use up.

One computation runs per key, on a separate thread, which does not keep the process alive. At most some run at once, and
at most half of them for one store, so that a bucket that hangs leaves room for the others. A caller waits until its
deadline; the computation continues, and its answer is kept. The invariant: nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """The bounds of the work and of the memory of a window."""

    deadline_s: float = 8.0
    """The longest time that a request waits."""
    fresh_s: float = 2.0
    """The time for which an answer is not computed again."""
    running: int = 8
    running_per_store: int = 4
    kept: int = 200
    """Answers in memory."""


USUAL_LIMITS = AnswerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The outcome of a computation, and when it ended, by the monotonic clock."""

    value: Any
    error: Exception | None
    at_s: float


class TooLate(Exception):
    """The store has not answered yet. The computation continues."""

    def __init__(self, stale: Any, waited_s: float) -> None:
        super().__init__(f"The table's store has not answered for {waited_s:.0f} seconds.")
        self.stale = stale
        """An earlier answer, or None."""
        self.waited_s = waited_s


class TooBusy(Exception):
    """Too many computations run, most of them for stores that do not answer."""


class Answers:
    """Kept answers, and the computations that run. Used from one event loop, or from several."""

    def __init__(self, limits: AnswerLimits = USUAL_LIMITS, clock: Clock = SYSTEM_CLOCK) -> None:
        self.limits = limits
        self._clock = clock
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._running: dict[Hashable, tuple[Future[Any], float]] = {}
        self._per_store: Counter[str] = Counter()
        self._lock = threading.Lock()

    def last(self, key: Hashable) -> Any:
        """Return the last good answer, however old; None without one."""
        known = self._known(key)
        return None if known is None else known.value

    async def get(self, key: Hashable, store: str, compute: Callable[[], Any], fresh_s: float | None = None) -> Any:
        """Return the answer, computed at most `fresh_s` ago (None: that of the limits).

        Raises TooLate, TooBusy, and the errors of `compute`.
        """
        fresh_s = self.limits.fresh_s if fresh_s is None else fresh_s
        known = self._known(key)
        now_s = self._clock.monotonic_s()
        if known is not None and now_s - known.at_s < fresh_s:
            if known.error is not None:
                raise known.error.with_traceback(None)
            return known.value
        future, since_s = self._start(key, store, compute, now_s)
        waiting = asyncio.wrap_future(future)
        # If this request gives up, the error of the computation is not reported as one that no code has seen.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A computation that has run for long is not waited for again.
        left_s = max(0.05, self.limits.deadline_s - (now_s - since_s))
        done, _ = await asyncio.wait({waiting}, timeout=left_s)
        if done:
            return waiting.result()
        stale = None if known is None else known.value
        raise TooLate(stale, self._clock.monotonic_s() - since_s)

    def _known(self, key: Hashable) -> Kept | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _start(self, key: Hashable, store: str, compute: Callable[[], Any], now_s: float) -> tuple[Future[Any], float]:
        with self._lock:
            if key in self._running:
                return self._running[key]
            limits = self.limits
            if len(self._running) >= limits.running or self._per_store[store] >= limits.running_per_store:
                raise TooBusy(
                    f"{len(self._running)} pages are being computed, {self._per_store[store]} of them from this store. "
                    "Try again in a few seconds."
                )
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()
            self._running[key] = future, now_s
            self._per_store[store] += 1
        arguments = (key, store, compute, future)
        threading.Thread(target=self._run, args=arguments, name="txlog-window", daemon=True).start()
        return future, now_s

    def _run(self, key: Hashable, store: str, compute: Callable[[], Any], future: Future[Any]) -> None:
        value, error = None, None
        try:
            value = compute()
        except Exception as raised:
            error = raised
        with self._lock:
            del self._running[key]
            self._per_store[store] -= 1
            if self._per_store[store] <= 0:
                del self._per_store[store]
            before = self._kept.get(key)
            # After an error the last good answer stays, for requests that come too late.
            kept = value if error is None or before is None else before.value
            self._kept[key] = Kept(value=kept, error=error, at_s=self._clock.monotonic_s())
            self._kept.move_to_end(key)
            while len(self._kept) > self.limits.kept:
                self._kept.popitem(last=False)
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
