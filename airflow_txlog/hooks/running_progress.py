"""The progress of a running job, for people: in Airflow's state store while the task runs, and as a bar in a terminal.

**Where it is.** The key STATE_KEY of the task's state store (Airflow 3.3 or later) holds `{"try_number": 1, "progress":
…}`, with the fields of `process.progress.JobProgress`. It is written at most every `WRITE_EVERY_S` seconds and deleted
when the job ends. The key of a worker that was killed stays until the next try or `_KEPT_FOR`, so a reader must look at
the state of the task first. Earlier releases of Airflow have no such store, and `dag.test()` and `airflow tasks test`
do not let a second thread write: there the task's log and the terminal alone show progress.

The invariant: showing never fails or delays a task. Another thread writes, and after a write that failed it writes no
more for `_PAUSE_S`, because Airflow repeats a request to a server that is gone, and the task's heartbeat waits for it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.contract.wording import size_text
from airflow_txlog.process.progress import JobProgress, listening

STATE_KEY = "txlog_progress"
WRITE_EVERY_S = 10.0
_PAUSE_S = 300.0
_KEPT_FOR = dt.timedelta(days=1)
_LONGEST_END_S = 5.0


@contextlib.contextmanager
def progress_shown(
    context: Mapping[str, Any] | None, log: Callable[[str], object], write_every_s: float = WRITE_EVERY_S
) -> Iterator[Callable[[str], None]]:
    """Show the progress of the job inside, in the state store of the task that `context` is of and in a terminal.

    Yields the log for the job: `log`, whose lines the bar in a terminal does not cover.
    """
    shown = _Shown(context or {}, write_every_s)

    def say(line: str) -> None:
        shown.clear()
        log(line)

    try:
        with listening(shown.hear):
            yield say
    finally:
        shown.end()


class _Shown:
    """The latest progress, and the thread that shows it: none before the first record."""

    def __init__(self, context: Mapping[str, Any], write_every_s: float) -> None:
        self._store = context.get("task_state_store") if _may_write_from_threads() else None
        self._try_number = getattr(context.get("ti"), "try_number", None)
        self._every_s = write_every_s
        self._latest: JobProgress | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar = _Bar() if sys.stderr.isatty() else None

    def hear(self, progress: JobProgress) -> None:
        """Remember the progress, and show it soon."""
        self._latest = progress
        if self._bar is not None:
            self._bar.show(progress)
        if self._store is not None and self._thread is None:
            self._thread = threading.Thread(target=self._write, name="txlog-shown", daemon=True)
            self._thread.start()

    def clear(self) -> None:
        """Remove the bar until the next record."""
        if self._bar is not None:
            self._bar.clear()

    def end(self) -> None:
        """Delete what was written, and remove the bar."""
        self.clear()
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=_LONGEST_END_S)

    def _write(self) -> None:
        store, has_written, paused_until_s = self._store, False, 0.0
        assert store is not None
        before: JobProgress | None = None
        while True:
            latest, now_s = self._latest, SYSTEM_CLOCK.monotonic_s()
            if latest is not before and latest is not None and now_s >= paused_until_s:
                before = latest
                value = {"try_number": self._try_number, "progress": latest.to_dict()}
                try:
                    store.set(STATE_KEY, value, retention=_KEPT_FOR)
                    has_written = True
                except Exception:
                    paused_until_s = SYSTEM_CLOCK.monotonic_s() + _PAUSE_S
            if self._over.wait(self._every_s):
                break
        if has_written and SYSTEM_CLOCK.monotonic_s() >= paused_until_s:
            with contextlib.suppress(Exception):
                store.delete(STATE_KEY)


def _may_write_from_threads() -> bool:
    """Return whether this task's requests to Airflow are locked. Those of `dag.test()` and `tasks test` are not."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    channel = getattr(runner, "SUPERVISOR_COMMS", None)
    return channel is None or hasattr(channel, "_thread_lock")


def progress_text(progress: JobProgress) -> str:
    """Return the progress as one line: `rewrite: 12 of 40 files, 85.0 MiB/s, 20 s left`."""
    parts = [f"{progress.done} of {progress.total} {progress.unit}" if progress.total else f"{progress.seconds:.0f} s"]
    if progress.bytes_per_s:
        parts.append(f"{size_text(progress.bytes_per_s)}/s")
    if progress.remaining_s is not None:
        parts.append(f"{progress.remaining_s} s left")
    if progress.conflicts:
        parts.append(f"attempt {progress.attempt}")
    return f"{progress.step}: {', '.join(parts)}"


class _Bar:
    """One line of a terminal, which is removed before a line of the log and drawn again below it."""

    _WIDTH = 30

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shown = False

    def show(self, progress: JobProgress) -> None:
        filled = self._WIDTH * progress.done // progress.total if progress.total else 0
        bar = f"[{'#' * filled}{'.' * (self._WIDTH - filled)}] " if progress.total else ""
        self._draw(f"{bar}{progress_text(progress)}")

    def clear(self) -> None:
        if self._is_shown:
            self._draw("")

    def _draw(self, text: str) -> None:
        with self._lock, contextlib.suppress(Exception):
            sys.stderr.write(f"\r\x1b[2K{text[:100]}")
            sys.stderr.flush()
            self._is_shown = bool(text)
