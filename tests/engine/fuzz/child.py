"""Runs fuzzed cases in a process of its own, whose memory and patience are bounded: `python -m … kind start end`.

Each case is told before it runs, so that a crash of native code names its seed. The last line is a JSON report.
"""

from __future__ import annotations

import collections
import json
import resource
import signal
import sys
import traceback
from types import FrameType

# Above what the process takes once everything is imported.
MEMORY_BYTES = 1024**3
CASE_CPU_S = 20


class TooLong(BaseException):
    """A case used more processor time than any sound or broken log may."""


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TooLong


def main(kind: str, start: int, end: int) -> None:
    from tests.engine.fuzz.cases import run

    run(kind, -1)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _too_long)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    for seed in range(start, end):
        print(seed, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
        try:
            outcomes[run(kind, seed)] += 1
        except BaseException as error:
            failures.append({"seed": seed, "error": repr(error)[:300], "where": traceback.format_exc(limit=-4)})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"outcomes": outcomes, "failures": failures}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
