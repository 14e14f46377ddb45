"""The output of a job's process, made fit for a task's log.

The job writes its own lines to standard output; they hold no value. Everything else that the process and its children
write, above all Spark's JVM and Python workers, is standard error: banners, a progress bar, and Spark's messages of a
failure, which quote rows. Invariant: nothing of standard error is copied or kept, except what `shown` knows to be free
of values.
"""

from __future__ import annotations

import os
import re
import selectors
from collections.abc import Iterator
from typing import IO

from airflow_txlog.datafiles.failures import SENTENCES, is_exception, is_own_source

TAIL_LINES = 30
_READ_BYTES = 65_536

# Lines of every start of a JVM, whatever the job: "WARN NativeCodeLoader: Unable to load native-hadoop …", "Setting
# default log level to …", "Using Spark's default log4j profile …", incubator modules, JLine's complaints.
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
# Texts that explain why a JVM or a worker did not start, or how it ended.
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
    """Return one of the job's own lines for a task's log; None for an empty one and for a progress bar."""
    line = line.rstrip()
    return None if _NOISE.search(line) else line


def shown(line: str) -> str | None:
    """Return the part of a line of standard error that may be shown, or None: words of a fixed list, and places in our
    code.

    A value may contain line breaks and look like anything, so nothing of the line itself is copied.
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
    """Yield the lines of both streams as they arrive, progress bars too, each with whether it is the job's own."""
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
