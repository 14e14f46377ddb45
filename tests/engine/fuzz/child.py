"""Runs fuzzed cases in a process of its own, whose memory and processor time are bounded: `python -m … KIND START END`.

More kinds may follow, three arguments each. Each case is printed before it runs, so that a crash of native code names
its seed. The last line is a JSON report: for each kind its outcomes and its failures.
"""

from __future__ import annotations

import collections
import json
import resource
import signal
import sys
import traceback
from types import FrameType
from typing import Any

# Above what the process takes once everything is imported.
MEMORY_BYTES = 1024**3
CASE_CPU_S = 20


class TooLong(BaseException):
    """A case used more processor time than any sound or broken log may."""


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TooLong


def main(arguments: list[str]) -> None:
    from tests.engine.fuzz.cases import KINDS, run

    for kind in KINDS:
        run(kind, -1)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _too_long)
    report = {}
    for kind, start, end in zip(arguments[::3], arguments[1::3], arguments[2::3], strict=True):
        report[kind] = _cases(kind, range(int(start), int(end)))
    print(json.dumps(report))


def _cases(kind: str, seeds: range) -> dict[str, Any]:
    from tests.engine.fuzz.cases import run

    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    for seed in seeds:
        print(kind, seed, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
        try:
            outcomes[run(kind, seed)] += 1
        except BaseException as error:
            failures.append({"seed": seed, "error": repr(error)[:300], "where": traceback.format_exc(limit=-4)})
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return {"outcomes": outcomes, "failures": failures}


if __name__ == "__main__":
    main(sys.argv[1:])
