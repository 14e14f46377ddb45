"""Answers that are computed once for all who ask, on threads that a dead store cannot use up.

One computation runs per key, on a separate thread, which does not keep the process alive. At most some run at once, and
at most half of them for one store, so that a bucket that hangs leaves room for the others. A request waits for its
turn. A computation that has run past the deadline no longer counts for the other stores, up to a bound. A caller waits
until its deadline; the computation continues, and its answer is kept.

The invariant: nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import TxlogError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """The bounds of the work and of the memory of a window."""

    deadline_s: float = 8.0
    """The longest time that a request waits."""
    fresh_s: float = 2.0
    """The time for which an answer is not computed again."""
    failed_s: float = 5.0
    """The longest such time after an error, which may pass at once, unlike an answer that is kept for minutes."""
    running: int = 8
    """Computations at once, without those that have run past the deadline."""
    running_per_store: int = 4
    threads: int = 40
    """Computations at once in all."""
    waiting: int = 1000
    """Requests that wait for their turn."""
    kept: int = 200
    """Answers in memory."""
    kept_chars: int = 64 * 2**20
    """About their size."""


USUAL_LIMITS = AnswerLimits()
_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The outcome of a computation, and when it ended, by the monotonic clock."""

    value: Any
    error: Exception | None
    at_s: float
    chars: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Running:
    future: Future[Any]
    since_s: float
    store: str


class NotYet(Exception):
    """There is no answer now."""


class TooLate(NotYet):
    """The store has not answered yet. The computation continues."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"The table's store has not answered for {waited_s:.0f} seconds.")
        self.waited_s = waited_s


class TooBusy(NotYet):
    """Too many computations run, most of them for stores that do not answer."""


class Answers:
    """Kept answers, and the computations that run. Used from one event loop, or from several."""

    def __init__(
        self,
        limits: AnswerLimits = USUAL_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
        weigh: Callable[[Any], int] = lambda value: 0,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._weigh = weigh
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._chars = 0
        self._running: dict[Hashable, _Running] = {}
        self._waiting: list[Future[None]] = []
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
        asked_s = self._clock.monotonic_s()
        while True:
            known, now_s = self._known(key), self._clock.monotonic_s()
            if known is not None:
                kept_s = fresh_s if known.error is None else min(fresh_s, self.limits.failed_s)
                if now_s - known.at_s < kept_s:
                    if known.error is not None:
                        raise known.error.with_traceback(None)
                    return known.value
            started = self._start(key, store, compute, now_s)
            if isinstance(started, _Running):
                return await self._outcome(started, now_s)
            await self._wait(started, asked_s, store)

    async def _outcome(self, running: _Running, now_s: float) -> Any:
        waiting = asyncio.wrap_future(running.future)
        # If this request gives up, the error of the computation is not reported as one that no code has seen.
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A computation that has run for long is not waited for again.
        left_s = max(0.05, self.limits.deadline_s - (now_s - running.since_s))
        done, _ = await asyncio.wait({waiting}, timeout=left_s)
        if not done:
            raise TooLate(self._clock.monotonic_s() - running.since_s)
        return waiting.result()

    async def _wait(self, turn: Future[None], asked_s: float, store: str) -> None:
        """Wait until a computation ends, or some time for one to be overdue. Raises TooBusy at the deadline."""
        left_s = self.limits.deadline_s - (self._clock.monotonic_s() - asked_s)
        try:
            done, _ = await asyncio.wait({asyncio.wrap_future(turn)}, timeout=max(0.0, min(left_s, _LOOK_AGAIN_S)))
        finally:
            # Also if the request is cancelled: its place belongs to others.
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        if not done and left_s <= _LOOK_AGAIN_S:
            with self._lock:
                raise self._too_busy(store)

    def _too_busy(self, store: str) -> TooBusy:
        own = sum(1 for each in self._running.values() if each.store == store)
        return TooBusy(
            f"{len(self._running)} pages are being computed, {own} of them from this store. Try again in a few seconds."
        )

    def _known(self, key: Hashable) -> Kept | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _start(self, key: Hashable, store: str, compute: Callable[[], Any], now_s: float) -> _Running | Future[None]:
        """Return the computation of a key, started if it was not; or what ends when another one does."""
        with self._lock:
            if key in self._running:
                return self._running[key]
            limits, all_of_them = self.limits, self._running.values()
            recent = [each for each in all_of_them if now_s - each.since_s < limits.deadline_s]
            of_store = [each for each in all_of_them if each.store == store]
            if len(all_of_them) >= limits.threads or (
                len(of_store) >= limits.running_per_store and not any(each in recent for each in of_store)
            ):
                raise self._too_busy(store)
            if len(recent) >= limits.running or len(of_store) >= limits.running_per_store:
                if len(self._waiting) >= limits.waiting:
                    raise self._too_busy(store)
                self._waiting.append(Future())
                return self._waiting[-1]
            running = _Running(future=Future(), since_s=now_s, store=store)
            running.future.set_running_or_notify_cancel()
            self._running[key] = running
        thread = threading.Thread(target=self._run, args=(key, compute), name="txlog-window", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._end(key, None, error)
        return running

    def _run(self, key: Hashable, compute: Callable[[], Any]) -> None:
        value, error = None, None
        try:
            value = compute()
        except Exception as raised:
            error = raised
            if not isinstance(raised, TxlogError):
                log.warning("An answer of the window failed", exc_info=raised)
        except BaseException as raised:
            # A panic of an extension is no Exception. Without an end here, its key would be taken for ever.
            error = RuntimeError(type(raised).__name__)
        self._end(key, value, error)

    def _end(self, key: Hashable, value: Any, error: Exception | None) -> None:
        if error is not None:
            _drop_frames(error)
        with self._lock:
            future = self._running.pop(key).future
            self._keep(key, value, error)
            waiting, self._waiting = self._waiting, []
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
        for each in waiting:
            if each.set_running_or_notify_cancel():
                each.set_result(None)

    def _keep(self, key: Hashable, value: Any, error: Exception | None) -> None:
        before = self._kept.pop(key, None)
        self._chars -= 0 if before is None else before.chars
        # After an error the last good answer stays, for requests that come too late.
        kept = value if error is None or before is None else before.value
        chars = 0 if kept is None else self._weigh(kept)
        self._kept[key] = Kept(value=kept, error=error, at_s=self._clock.monotonic_s(), chars=chars)
        self._chars += chars
        while len(self._kept) > self.limits.kept or (len(self._kept) > 1 and self._chars > self.limits.kept_chars):
            self._chars -= self._kept.popitem(last=False)[1].chars


def _drop_frames(error: BaseException | None) -> None:
    """Let the tracebacks of an error and of its causes go: their frames would keep what was read in memory."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
