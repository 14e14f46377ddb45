"""Sides that do the same work in turn, and the medians of what they took.

Every side of a case starts each round from the same untouched input, made outside the measured time, and what it
leaves is compared row for row with what the case expects. The order of the sides rotates, so that none is always
first after a pause. The first round warms caches and compilers, and does not count.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.benchmarks.peaks import family

if TYPE_CHECKING:
    from tests.benchmarks.relay import Relay

NOT_COUNTED: set[int] = set()
"""Processes that the benchmark started and that are no part of a side: their CPU time does not count."""


class Side(Protocol):
    """One implementation of a case's work."""

    @property
    def name(self) -> str:
        """`ours`, or the peer's name in the results."""

    def prepare(self) -> None:
        """Make the input of one round."""

    def run(self) -> None:
        """Do the work: the only part that is measured."""

    def result(self) -> Any:
        """What the work left, to be compared; not measured."""

    # `repeats`, where a side has it: how often `run` does the work; a second is then divided by it.


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the results: seconds are medians over the rounds; `ratio` is ours / peer.

    `ratio_by_round` is the median of the rounds' own ratios: on a machine that others use too, it moves least.
    `cpu_ratio` is the same of the CPU seconds, which other work on the machine changes even less.
    """

    case: str
    ours_s: float
    peer: str
    peer_s: float
    ratio: float
    ratio_by_round: float
    ours_min_s: float
    peer_min_s: float
    rounds: int
    scale: float
    ours_cpu_s: float
    peer_cpu_s: float
    cpu_ratio: float | None
    """None where a side took less than the kernel's clock can tell."""
    ours_requests: int | None = None
    """On S3 behind a relay: the median number of requests. `delay_ms` was added to each."""
    peer_requests: int | None = None
    delay_ms: float | None = None
    ours_peak_mb: dict[str, int] | None = None
    """The most memory of our side in any round, where the side tells it (see `peaks`)."""


def measure(
    case: str,
    sides: Sequence[Side],
    *,
    rounds: int,
    scale: float,
    check: Callable[[str, Any], None],
    relay: Relay | None = None,
) -> list[Line]:
    """Medians of `rounds` alternating rounds after one warm-up: one line for each side that is not `ours`.

    Without rounds the warm-up is what is measured: whether a case works at all. `relay`: it counts the sides' requests.
    """
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    cpu: dict[str, list[float]] = {side.name: [] for side in sides}
    requests: dict[str, list[int]] = {side.name: [] for side in sides}
    peaks: dict[str, int] = {}
    for number in range(rounds + 1):
        start = number % len(sides)
        for side in [*sides[start:], *sides[:start]]:
            side.prepare()
            if relay is not None:
                relay.take()
            used, began = cpu_seconds(), time.perf_counter()
            side.run()
            took = (time.perf_counter() - began) / getattr(side, "repeats", 1)
            used = (cpu_seconds() - used) / getattr(side, "repeats", 1)
            sent = None if relay is None else relay.take()
            check(side.name, side.result())
            if number > 0 or not rounds:
                seconds[side.name].append(took)
                cpu[side.name].append(used)
                requests[side.name].append(0 if sent is None else sent.total())
                for kind, peak in (getattr(side, "peak_mb", {}) if side.name == "ours" else {}).items():
                    peaks[kind] = max(peaks.get(kind, 0), peak)
            label = f"round {number}/{rounds}" if number else "warm-up"
            told = getattr(side, "told", "")
            if sent is not None:
                told += f"; {sent.total()} requests: {dict(sent.most_common())}"
            print(f"  {case}: {label}: {side.name} {took:.3g} s, CPU {used:.3g} s{told}", file=sys.stderr, flush=True)
    ours, our_cpu = seconds.pop("ours"), cpu.pop("ours")
    return [
        Line(
            case=case,
            ours_s=round(statistics.median(ours), 4),
            peer=peer,
            peer_s=round(statistics.median(theirs), 4),
            ratio=round(statistics.median(ours) / statistics.median(theirs), 3),
            ratio_by_round=round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
            ours_min_s=round(min(ours), 4),
            peer_min_s=round(min(theirs), 4),
            rounds=rounds,
            scale=scale,
            ours_cpu_s=round(statistics.median(our_cpu), 4),
            peer_cpu_s=round(statistics.median(cpu[peer]), 4),
            cpu_ratio=_median_ratio(our_cpu, cpu[peer]),
            ours_requests=None if relay is None else round(statistics.median(requests["ours"])),
            peer_requests=None if relay is None else round(statistics.median(requests[peer])),
            delay_ms=None if relay is None else 1000 * relay.delay_s,
            ours_peak_mb=peaks or None,
        )
        for peer, theirs in seconds.items()
    ]


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its descendants, including those that have ended."""
    ticks = 0
    for pid in set(family()) - NOT_COUNTED:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # utime and stime of this process come from a finer clock; cutime and cstime are of children that ended.
            ticks += sum(map(int, fields[13:15] if pid == os.getpid() else fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3) if min(theirs) > 0 else None
