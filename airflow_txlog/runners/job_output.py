"""The output of a Spark process, made fit for a task's log.

Spark's JVM writes banners, warnings and a progress bar to the stream that the job's own lines share. Invariant: a line
is dropped only when it is known to say nothing about the work; anything else is kept, relabelled at most.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import IO

TAIL_LINES = 30

# What the JVM says on every start, whatever the job: "WARN NativeCodeLoader: Unable to load native-hadoop …",
# "Setting default log level to …", "Using Spark's default log4j profile …", incubator modules, JLine's complaints.
_NOISE = re.compile(
    r"""
    ^\s*$
    | ^\[Stage\s\d+.*                             # the progress bar
    | ^WARNING:\sUsing\sincubator\smodules
    | ^WARNING:\s(A\sterminally|An\sillegal|Please\sconsider|Use\s--|All\sillegal|sun\.misc|Restricted|java\.lang)
    | ^Using\sSpark's\sdefault\slog4j\sprofile
    | ^Setting\sdefault\slog\slevel\sto
    | ^To\sadjust\slogging\slevel
    | ^Picked\sup\s(JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS)
    | \bWARN\s+(NativeCodeLoader|Utils|SparkConf|MemoryManager|GarbageCollectionMetrics|SparkStringUtils|
               MetricsConfig|ProcfsMetricsGetter)\b
    """,
    re.VERBOSE,
)
_JVM_LINE = re.compile(
    r"^(\d\d/\d\d/\d\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*)\s+(WARN|ERROR|INFO|DEBUG)\s"
)
_CAST_VALUE = re.compile(r"The value .* of the type")
_JAVA_FRAME = re.compile(r"^\s+at [\w$.<>/]+\(")


def readable(line: str) -> str | None:
    """The line for a task's log: None for noise, `spark: …` for the JVM's own, the line itself otherwise."""
    line = line.rstrip()
    if _NOISE.search(line):
        return None
    if _JVM_LINE.match(line) or _JAVA_FRAME.match(line):
        return f"spark: {line.strip()}"
    return line


def lines_of(stream: IO[bytes]) -> Iterator[str]:
    """The lines of a byte stream as they come, until its end. A carriage return ends a line too: progress bars.

    A value that Spark could not cast is left out of its line: it may be a row's, or a subject's key.
    """
    for raw in stream:
        for part in raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n"):
            if part:
                yield _CAST_VALUE.sub("The value (not shown) of the type", part)


class Tail:
    """The last lines of an output that a human may want after a failure."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, line: str) -> None:
        """Remember one line, forgetting the oldest."""
        self._lines.append(line)

    def text(self) -> str:
        """The remembered lines, oldest first."""
        return "\n".join(self._lines)
