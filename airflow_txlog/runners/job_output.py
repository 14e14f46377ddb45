"""The output of a job's process, made fit for a task's log.

The job writes its own lines to standard output, and they hold no value. Everything else that the process and those
below it write, Spark's JVM and Python workers above all, is standard error: banners, a progress bar, and what Spark
says of a failure, which quotes what a row holds. The invariant: of standard error nothing is copied but what `shown`
knows to be free of values, and nothing else of it is kept anywhere.
"""

from __future__ import annotations

import os
import re
import selectors
from collections import deque
from collections.abc import Iterator
from typing import IO

from airflow_txlog.datafiles.failures import SENTENCES, is_exception, is_own_source

TAIL_LINES = 30
_READ_BYTES = 65_536

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
    | ^(NOTE:\s)?Picked\sup\s(JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS)
    | \bWARN\s+(NativeCodeLoader|Utils|SparkConf|MemoryManager|GarbageCollectionMetrics|SparkStringUtils|
               MetricsConfig|ProcfsMetricsGetter)\b
    """,
    re.VERBOSE,
)
# What says why a JVM or a worker did not start, or how it ended.
_STARTS_AND_ENDS = (
    "JAVA_HOME is not set",
    "Cannot run program",
    "either HADOOP_CONF_DIR or YARN_CONF_DIR must be set",
    "Unable to locate a Java Runtime",
    "Could not reserve enough space",
    "Could not create the Java Virtual Machine",
    "Invalid maximum heap size",
    "Invalid initial heap size",
    "Unrecognized VM option",
    "Unrecognized option",
    "Could not find or load main class",
    "has been compiled by a more recent version of the Java Runtime",
    "insufficient memory for the Java Runtime Environment",
    "A fatal error has been detected by the Java Runtime Environment",
    "unresolved dependency",
    "UNRESOLVED DEPENDENCIES",
    "Address already in use",
    "Cannot allocate memory",
    "Fatal Python error: Segmentation fault",
    "Fatal Python error: Aborted",
)
_CLASSES = (
    "OutOfMemoryError",
    "StackOverflowError",
    "NoClassDefFoundError",
    "ClassNotFoundException",
    "NoSuchMethodError",
    "UnsupportedClassVersionError",
    "UnknownHostException",
    "ConnectException",
    "BindException",
    "IOException",
    "SparkException",
    "PythonException",
)
_KNOWN = (*_CLASSES, *_STARTS_AND_ENDS, *SENTENCES)
_PYTHON_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in\b')
_PYTHON_CLASS = re.compile(r"^((?:\w+\.)*\w+)(?::|$)")


def readable(line: str) -> str | None:
    """One of the job's own lines for a task's log; None for an empty one and for a progress bar."""
    line = line.rstrip()
    return None if _NOISE.search(line) else line


def shown(line: str) -> str | None:
    """What of a line of standard error may be shown: words that are written down here, and places in our code; or None.

    A value may have line breaks in it, and look like anything: so nothing that the line itself spells is copied.
    """
    line = line.rstrip()
    if _NOISE.search(line):
        return None
    place = _PYTHON_FRAME.match(line)
    if place is not None:
        own = is_own_source(place[1])
        return None if own is None else f"spark: at {own}:{place[2]}"
    raised = _PYTHON_CLASS.match(line)
    parts = [raised[1]] if raised is not None and is_exception(raised[1]) else []
    parts += [known for known in _KNOWN if known in line]
    return f"spark: {': '.join(dict.fromkeys(parts))}" if parts else None


def lines_of(own: IO[bytes], others: IO[bytes]) -> Iterator[tuple[bool, str]]:
    """The lines of both streams as they come, until the end of both, each with whether it is the job's own.

    A carriage return ends a line too: progress bars.
    """
    started = {own.fileno(): b"", others.fileno(): b""}
    with selectors.DefaultSelector() as selector:
        for stream in started:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, _READ_BYTES)
                *whole, started[key.fd] = (started[key.fd] + data).replace(b"\r", b"\n").split(b"\n")
                if not data:
                    selector.unregister(key.fd)
                    whole.append(started[key.fd])
                for line in whole:
                    if line:
                        yield key.fd == own.fileno(), line.decode("utf-8", "replace")


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
