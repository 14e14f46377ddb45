"""Turns to start Spark: a limit on the processes of one user on this machine that start one at the same time.

A start is a file in one folder, numbered in the order of arrival and locked from its registration until Spark is up. It
begins when fewer than the limit of older starts remain. Locks are flocks: the kernel releases the turn of a process
that is killed. Invariants: the order of the starts is that of arrival; no process waits for one that is dead, or has
hung for `STALE_S`; a folder that cannot be used limits nothing and fails no job.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import InvalidInput
from airflow_txlog.process.private_folder import make_own_folder

STARTS, FOLDER = "TXLOG_SPARK_STARTS", "TXLOG_SPARK_STARTS_FOLDER"
STALE_S = 240.0
"""A start without a sign of life for this long has hung. A busy machine takes minutes to start a JVM."""
_POLL_S, _LOG_EVERY_S = 0.2, 30.0

log = logging.getLogger(__name__)


class Turn:
    """A registered start of Spark. Without a file it need not wait."""

    def __init__(self, file: int | None = None, path: Path = Path(), most: int = 0, stale_s: float = STALE_S) -> None:
        self._file = file
        self._path = path
        self._most = most
        self._stale_s = stale_s

    @property
    def num_ahead(self) -> int:
        """How many older starts wait, or have begun and are not up; 0 if this one may begin."""
        if self._file is None:
            return 0
        try:
            # A sign of life, for those that wait for this one.
            os.utime(self._file)
            older = [path for number, path in _starts(self._path.parent) if number < int(self._path.name)]
            ahead = sum(self._is_live(path) for path in older)
        except OSError:
            return 0  # the folder is gone, for example
        return ahead if ahead >= self._most else 0

    def wait(self, say: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Wait until the start may begin, and log the wait. `check` is called during the wait, and may raise."""
        began_s = logged_s = SYSTEM_CLOCK.monotonic_s()
        if not (ahead := self.num_ahead):
            return
        say(f"waiting to start Spark, behind {ahead} on this machine: {self._most} at a time ({STARTS})")
        while ahead := self.num_ahead:
            check()
            now_s = SYSTEM_CLOCK.monotonic_s()
            if now_s - logged_s >= _LOG_EVERY_S:
                logged_s = now_s
                say(f"waiting to start Spark for {now_s - began_s:.0f} s, behind {ahead}")
            SYSTEM_CLOCK.sleep(_POLL_S)
        say(f"waited {SYSTEM_CLOCK.monotonic_s() - began_s:.0f} s to start Spark")

    def end(self) -> None:
        """Let the next start begin. May be called again."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(file)

    def _is_live(self, path: Path) -> bool:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two processes that check at the same time do not see each other's lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)  # its process was killed
            return False
        except BlockingIOError:
            return SYSTEM_CLOCK.now_ms() - os.fstat(file).st_mtime_ns // 1_000_000 <= 1000 * self._stale_s
        finally:
            os.close(file)


@contextlib.contextmanager
def start_turn(most: int | None = None, folder: Path | None = None, *, stale_s: float = STALE_S) -> Iterator[Turn]:
    """Register a start of Spark, which holds its turn until the end of the block or of this process.

    `most`: how many may start at the same time, 0 for any number; default: TXLOG_SPARK_STARTS, else one for each
    core, at least 2. Raises InvalidInput if that is not a whole number.
    """
    most = most_starts() if most is None else most
    turn = _registered(folder or _folder(), most, stale_s) if most else Turn()
    try:
        yield turn
    finally:
        turn.end()


def most_starts() -> int:
    """Return how many processes may start Spark at the same time; 0: any number. Raises InvalidInput."""
    text = os.environ.get(STARTS, "")
    if text and not text.isdecimal():
        raise InvalidInput(f"{STARTS} must be a whole number, 0 for no limit; found {text!r}.")
    # One alone leaves cores idle: five small jobs on two cores took 30 s one after another, and 22 s all at once.
    return int(text) if text else max(2, cores())


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may keep busy, at least 1. Source: Linux, cgroup v2, cpu.max."""
    try:
        found = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        found = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        allowed, period = quota.read_text().split()
        found = min(found, -(-int(allowed) // int(period)))
    return max(found, 1)


def _folder() -> Path:
    return Path(os.environ.get(FOLDER) or f"{tempfile.gettempdir()}/airflow-txlog-starts-{os.geteuid()}")


def _registered(folder: Path, most: int, stale_s: float) -> Turn:
    try:
        fault = make_own_folder(folder)
        if fault is not None:
            raise PermissionError(fault)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Held for a moment. Numbers only grow while a start is registered, so no process looks at the file of a
            # start that is not locked yet.
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = folder / str(max((number for number, _ in _starts(folder)), default=0) + 1)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(lock)
    except OSError as error:
        log.warning("starts of Spark are not limited: %s cannot be used (%s)", folder, error.strerror or error)
        return Turn()
    return Turn(file, path, most, stale_s)


def _starts(folder: Path) -> list[tuple[int, Path]]:
    return [(int(path.name), path) for path in folder.iterdir() if path.name.isdecimal()]
