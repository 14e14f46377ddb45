"""The progress of a running job: one record, measured by the process that does the work, shown by the one that waits.

**The channel.** A process that wants progress calls `listening`. A job in the same process reports to it directly. A
job in a child process, whose environment has LINES_VARIABLE, writes each record as one line of its own output: PREFIX
and the JSON of the record. The runner takes these lines out of the output, so that no log contains one. A job on a
cluster that runs its driver reports nothing.

The invariant: measuring never fails or delays a job. The job's threads only set numbers. One thread per job looks at
them every EVERY_S seconds, so a job that takes less reports nothing. A record holds names of steps and numbers, no
value, no path and no name of a table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK

PREFIX = "txlog-progress "
LINES_VARIABLE = "TXLOG_PROGRESS_LINES"
EVERY_S = 2.0
_MOST_CHARS = 2000
_LEAST_SECONDS_FOR_RATE = 0.5


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """What a job was doing at one moment.

    `step` is the name in `JobResult.steps`, and `seconds` how long it has taken so far. `done` and `total` count files
    of this step, or Spark's tasks if `unit` is "tasks"; a large file may be read in parts that count as files, and with
    Spark, files are estimated from its tasks. `total` is 0 if it is unknown. `bytes_per_s` and `remaining_s` are of
    this step, None if unknown. `attempt` is how often the work was planned, `conflicts` how many of the attempts lost
    to another commit. `at_ms` is the moment, in milliseconds since the epoch.
    """

    step: str
    seconds: float = 0.0
    done: int = 0
    total: int = 0
    unit: str = "files"
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: int | None = None
    remaining_s: int | None = None
    attempt: int = 1
    conflicts: int = 0
    at_ms: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> JobProgress | None:
        """Return the record that `to_dict` wrote, without fields of a newer release; None for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("step"), str):
            return None
        known = {each.name: data[each.name] for each in dataclasses.fields(cls) if each.name in data}
        texts = ("step", "unit")
        for name, value in known.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            may_be_none = name in ("bytes_per_s", "remaining_s") and value is None
            if not (may_be_none or (isinstance(value, str) and len(value) <= 100 if name in texts else is_number)):
                return None
        return cls(**known)

    def line(self) -> str:
        """Return the line in which a child process reports it."""
        return PREFIX + json.dumps(self.to_dict(), separators=(",", ":"))


def in_line(line: str) -> JobProgress | None:
    """Return the record in a line that begins with PREFIX; None if it holds none."""
    if not line.startswith(PREFIX) or len(line) > _MOST_CHARS:
        return None
    try:
        return JobProgress.from_dict(json.loads(line.removeprefix(PREFIX)))
    except (ValueError, RecursionError):
        return None


Listener = Callable[[JobProgress], None]

_listener: Listener | None = None
_every_s = EVERY_S


@contextlib.contextmanager
def listening(listener: Listener, every_s: float = EVERY_S) -> Iterator[None]:
    """Give the progress of the jobs inside to `listener` every `every_s` seconds.

    It returns at once. Any thread may call it.
    """
    global _listener, _every_s
    before = _listener, _every_s
    _listener, _every_s = listener, every_s
    try:
        yield
    finally:
        _listener, _every_s = before


def environment() -> dict[str, str]:
    """Return the variable by which a child process reports; none if nothing listens here."""
    return {} if _listener is None else {LINES_VARIABLE: str(_every_s)}


def hear_line(line: str) -> None:
    """Give the record in a line of a child to what listens. Ignore its errors, and a line of another form."""
    found = in_line(line)
    if _listener is not None and found is not None:
        with contextlib.suppress(Exception):
            _listener(found)


def report_in_lines(say: Callable[[str], None]) -> None:
    """Report by lines that `say` writes, until this process ends, if its parent wants that."""
    global _listener, _every_s
    wanted = os.environ.pop(LINES_VARIABLE, None)
    if wanted:
        _listener, _every_s = lambda found: say(found.line()), float(wanted)


# --- in the process that does the work --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Step:
    name: str
    began_s: float = field(default_factory=SYSTEM_CLOCK.monotonic_s)
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    share: tuple[int, int] | None = None
    """The tasks of Spark that are done, and all, in place of `done`."""


class _Meter:
    """The numbers of one job. Set by its threads, read by the thread that reports."""

    def __init__(self) -> None:
        self.steps: list[_Step] = []
        self.attempt, self.conflicts = 1, 0
        self.lock = threading.Lock()

    def now(self) -> JobProgress | None:
        """Return the progress at this moment; None before the first step and between two."""
        step = next(reversed(self.steps), None)
        if step is None:
            return None
        seconds = max(0.0, SYSTEM_CLOCK.monotonic_s() - step.began_s)
        done, total, num_bytes, unit = step.done, step.total, step.bytes_done, "files"
        if step.share is not None:
            part, whole = step.share
            done, num_bytes = total * part // max(1, whole), step.bytes_total * part // max(1, whole)
            if not total:
                done, total, unit = part, whole, "tasks"
        is_measured = seconds >= _LEAST_SECONDS_FOR_RATE
        fraction = num_bytes / step.bytes_total if step.bytes_total else done / total if total else 0.0
        return JobProgress(
            step=step.name,
            seconds=round(seconds, 1),
            done=done,
            total=total,
            unit=unit,
            bytes_done=num_bytes,
            bytes_total=step.bytes_total,
            bytes_per_s=int(num_bytes / seconds) if is_measured and num_bytes else None,
            remaining_s=round(seconds * (1 - fraction) / fraction) if is_measured and fraction else None,
            attempt=self.attempt,
            conflicts=self.conflicts,
            at_ms=SYSTEM_CLOCK.now_ms(),
        )


_meter: _Meter | None = None


@contextlib.contextmanager
def measured() -> Iterator[None]:
    """Report the progress of the job inside to what listens in this process. A job inside another's is part of it."""
    global _meter
    hear, every_s = _listener, _every_s
    if hear is None or _meter is not None:
        yield
        return
    meter, over = _Meter(), threading.Event()

    def report() -> None:
        while not over.wait(every_s):
            # The interpreter may be ending, and a report that is missing is harmless.
            with contextlib.suppress(Exception):
                found = meter.now()
                if found is not None:
                    hear(found)

    _meter = meter
    thread = threading.Thread(target=report, name="txlog-reports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _meter = None
        over.set()
        thread.join(timeout=EVERY_S)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Count what is done inside as this step. A step inside another one hides it until it ends."""
    meter = _meter
    if meter is None:
        yield
        return
    own = _Step(name)
    meter.steps.append(own)
    try:
        yield
    finally:
        if own in meter.steps:
            meter.steps.remove(own)


def _current() -> tuple[_Meter, _Step] | None:
    meter = _meter
    return (meter, meter.steps[-1]) if meter is not None and meter.steps else None


def planned(files: int, num_bytes: int) -> None:
    """Add to the work of the current step."""
    found = _current()
    if found is not None:
        meter, current = found
        with meter.lock:
            current.total += files
            current.bytes_total += num_bytes


def done(files: int, num_bytes: int) -> None:
    """Add to what is done of the current step. Any thread may call it."""
    found = _current()
    if found is not None:
        meter, current = found
        with meter.lock:
            current.done += files
            current.bytes_done += num_bytes


def tasks_done(part: int, whole: int) -> None:
    """Set how many tasks of Spark are done, from which the share of the planned files follows."""
    found = _current()
    if found is not None:
        found[1].share = (part, whole)


def attempt(number: int) -> None:
    """Set how often the work was planned, which is once more than it lost to other commits."""
    meter = _meter
    if meter is not None:
        meter.attempt, meter.conflicts = number, number - 1
