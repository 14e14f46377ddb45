"""The Spark that this package starts on this machine: its defaults, its closed ports, its memory and its start.

*Closed ports.* Driver and executors are one process, and no other process can connect to it. Spark listens for
executors even if it has none. A process that connects could read blocks, with the values that a query binds, or have an
object deserialized. A secret (`spark.authenticate`) refuses both, but an open port still answers some requests first.
So the ports speak TLS with an empty key store: no connection is ever made. With a key in it every user could connect,
because Spark requires no certificate. Spark would connect to itself for three things: results of tasks above 1 MB,
which are sent directly; jars, which it reads in place (`jars_in_place`); and the artifacts of a Connect session, which
has none here (`shipping`). Every JVM that this package starts here has these settings, and no job changes them.

*Start.* PySpark would write every setting into the arguments of `spark-submit` and of the JVM, which every user of the
machine can read. Here they are in a properties file without a name, which ends with its reading or with this process.
Options of the JVM itself stay visible: its memory, Java options and class path, and the variables that it gives its
workers (`spark.executorEnv.*`).

The invariant: nothing of PySpark is imported before a JVM starts.
Source: Spark 4.2, TransportContext, SSLFactory, TaskResultGetter, SparkContext.addJar, ArtifactManager.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import quote, unquote

from airflow_txlog.errors import InvalidJobSpec

log = logging.getLogger(__name__)

# The settings of a local Spark, unless the job sets others.
LOCAL_DEFAULTS = {
    "spark.master": "local[*]",
    "spark.app.name": "airflow_txlog",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The machine's defaults may turn it on, and it keeps plans with the values that are bound in them.
    "spark.eventLog.enabled": "false",
    # The bar is drawn over the lines of the task's log.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    # The UI and the event log hide settings with such names. Spark's own default is shorter.
    "spark.redaction.regex": "(?i)secret|passw|token|credential|access[.]?key|account[.]?key|api[.]?key|sas|signature",
}

QUICK = "spark.txlog.quickCompiler"
"""The setting of a Spark whose only job is small for certain: `true` lets its JVM compile quickly instead of well."""

starts_for_little: ContextVar[bool] = ContextVar("starts_for_little", default=False)
"""Whether the Spark that starts now is for a job that can only read little."""

# Without this, a thread of Spark that runs out of memory leaves Python waiting for ever. A JVM that ends is noticed at
# once as a lost job.
JVM_OPTIONS = "-XX:+ExitOnOutOfMemoryError"

_OURS = ("spark.authenticate", "spark.ssl.rpc.")
_KEYS = "no-keys.p12"
# PKCS #12 in DER: a PFX of version 3 whose safe has no content. Java reads it without a password.
_NO_KEYS = bytes.fromhex("3016020103301106092a864886f70d010701a00404023000")

JARS = "spark.jars"
LARGEST_RESULTS = {"spark.task.maxDirectResultSize": "2047m", "spark.rpc.message.maxSize": "2047"}
"""The most that Spark accepts, whatever a job sets: Spark would fetch a larger result through its port."""

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
# Spark's own estimate of a driver's memory outside its heap.
_LEAST_OVERHEAD, _OVERHEAD = 384 * 1024**2, 0.1

# By the version of control groups: the file with a group's usage, and the line of its inactive files.
_USAGE = {1: ("memory.usage_in_bytes", "total_inactive_file"), 2: ("memory.current", "inactive_file")}

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


# --- closed ports -----------------------------------------------------------------------------------------------------


def is_one_process(master: str) -> bool:
    """Return whether driver and executors of a Spark on this master are one process."""
    return master == "local" or master.startswith("local[")


def closed_settings(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the settings under which no process can connect to Spark's ports; the folder gets a file for its start."""
    path = os.path.join(folder, _KEYS)
    with open(path, "wb") as file:
        file.write(_NO_KEYS)
    return {
        "spark.authenticate": "true",
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.keyStore": path,
        **LARGEST_RESULTS,
    }


def jars_in_place(jars: str) -> str:
    """Return the `spark.jars` with which Spark reads the jars of this machine in place, and not through a port."""
    found = []
    for jar in filter(None, map(str.strip, jars.split(","))):
        scheme, colon, rest = jar.partition(":")
        path = unquote(rest) if colon else os.path.abspath(jar)
        # Spark takes the path out of this URI, decodes it, and puts it into another URI unchanged.
        found.append(jar if colon and scheme != "file" else f"local:/{quote(quote(path.lstrip('/')))}")
    return ",".join(found)


def check_stays_closed(spark_conf: Mapping[str, str]) -> None:
    """Raise InvalidJobSpec (argument `spark_conf.<name>`) for settings that let others connect: a cluster's master, and
    the settings that decide who may.
    """
    master = spark_conf.get("spark.master", "local")
    if not is_one_process(master):
        raise InvalidJobSpec(
            f"spark_conf asks for spark.master={master}, and this job's Spark is one process on this machine. Take "
            'runner="submit", or runner="connect" and a server on that cluster. Nothing was started.',
            argument="spark_conf.spark.master",
        )
    for name, value in spark_conf.items():
        if name.startswith(_OURS) and not (name == "spark.authenticate" and value.strip().lower() == "true"):
            raise InvalidJobSpec(
                f"spark_conf has {name}, which decides who may connect to Spark's ports. No process may where Spark "
                "runs on this machine alone: its other users could read the rows and parameters of jobs there. "
                "Leave it out. Nothing was started.",
                argument=f"spark_conf.{name}",
            )


# --- its memory -------------------------------------------------------------------------------------------------------


def log_start(spark_conf: Mapping[str, str], say: Callable[[str], None], note: str = "") -> None:
    """Log the Spark that starts with these settings, and warn if the machine may have too little memory for it."""
    conf = {**LOCAL_DEFAULTS, **spark_conf}
    heap = conf["spark.driver.memory"]
    say(f"starting Spark: {conf['spark.master']}, {heap} of heap{note}")
    asked, found = size_bytes(heap), memory_bytes()
    needed = None if asked is None else asked + max(_LEAST_OVERHEAD, int(asked * _OVERHEAD))
    if needed is not None and found is not None and found < needed:
        log.warning(
            "a Spark with %s of heap can take %s of memory, and there are %s here: the kernel ends it where it does. "
            "Reduce its heap ([txlog] heap, or spark.driver.memory), or give the worker more memory",
            heap,
            f"{needed // 1024**2} MiB",
            f"{found // 1024**2} MiB",
        )


def size_bytes(text: str) -> int | None:
    """Return a size of memory as Spark reads it (`512m`, `2g`, a bare number is MiB); None if Spark refuses it."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    # `2b` is two bytes, and a number alone MiB.
    return None if found is None else int(found[1]) * (_UNITS[found[2]] if not text.strip().isdecimal() else 1024**2)


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory of this machine, or of this process's cgroup if that is less; None if it is not known.

    Source: Linux, "Control Group v2", memory.max; Spark, "Configuration", spark.driver.memoryOverhead.
    """
    found = [limit for _, limit in _limits(root)]
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory of this machine or this process's cgroups that is free or caches files; None if unknown.

    Source: Linux, "The /proc Filesystem", MemAvailable; "Control Group v2", memory.current and memory.stat.
    """
    try:
        found = [1024 * _number_of("MemAvailable:", root / "proc/meminfo")]
    except (OSError, ValueError):
        return None
    for folder, limit in _limits(root):
        is_first = (folder / "memory.limit_in_bytes").exists()
        usage, dropped = _USAGE[1 if is_first else 2]
        found.append(limit)
        with contextlib.suppress(OSError, ValueError):
            used = int((folder / usage).read_text())
            with contextlib.suppress(OSError, ValueError):
                used -= _number_of(dropped, folder / "memory.stat")
            found.append(max(0, limit - used))
    return min(found)


def _number_of(name: str, path: Path) -> int:
    """Return the number after this name in a file of lines. Raises OSError, ValueError."""
    for line in path.read_text().splitlines():
        if line.split()[:1] == [name]:
            return int(line.split()[1])
    raise ValueError(name)


def _limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders and the limits of this process's cgroups and of those around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the machine's, of which only the end is visible, at the base.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            # A file that is not there, and the word `max`, are no limit.
            folder = base.joinpath(*parts[:depth])
            with contextlib.suppress(OSError, ValueError):
                yield folder, int((folder / name).read_text())


# --- its start --------------------------------------------------------------------------------------------------------


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process, if there is none; PYSPARK_SUBMIT_ARGS may name another properties file."""
    from pyspark import SparkContext  # noqa: PLC0415 - the rest of this module is used without PySpark

    if SparkContext._gateway is not None:
        return
    with _properties_file(settings) as path, _submit_arguments(path):
        SparkContext._ensure_initialized()


@contextlib.contextmanager
def _properties_file(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the path of a file with the settings that only this user can read (mode 0600)."""
    # On Linux it has no name, so that nothing is left of it even after SIGKILL; only this user can open it by /proc.
    own = f"/proc/{os.getpid()}/fd"
    has_proc = _may_be_opened(own)
    with tempfile.TemporaryFile() if has_proc else tempfile.NamedTemporaryFile(prefix="txlog-") as file:
        file.write(properties_of(settings))
        file.flush()
        yield f"{own}/{file.fileno()}" if has_proc else file.name


def _may_be_opened(folder: str) -> bool:
    """Return whether the JVM, a process of this user, may open this process's open files."""
    # Airflow's supervisor forbids it for itself and for the task that it forks (PR_SET_DUMPABLE): the folder is root's.
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


@contextlib.contextmanager
def _submit_arguments(properties_file: str) -> Iterator[None]:
    """Set the environment in which PySpark passes the file to `spark-submit`, before the other arguments."""
    before = os.environ.get(_ARGUMENTS)
    # The file replaces spark-defaults.conf unless this option loads that too.
    ours = f"--properties-file {properties_file} --load-spark-defaults"
    os.environ[_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def properties_of(settings: Mapping[str, str]) -> bytes:
    """Return the content of a properties file with those settings that are Spark's own."""
    # Spark ignores others with a warning; the session gets them nevertheless.
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in spark_settings.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """Return a name or a value as Java's Properties read it back: in ASCII, with special characters escaped."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)
