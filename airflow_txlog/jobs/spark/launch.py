"""Spark's JVM started with its settings in a file that only this user can read, and in no command line.

PySpark would write every setting into the arguments of `spark-submit` and of the JVM, which every user of the machine
can read. Here they stand in a properties file that has no name: it is gone when it was read, and also when this process
is killed. What is an option of the JVM itself stays visible: its memory, Java options and class path, and the variables
(`spark.executorEnv.*`) that it gives its workers.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_DEFAULT_ARGUMENTS = "pyspark-shell"
_PROPERTIES = "--properties-file"


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process with these settings, where there is none yet.

    Where PYSPARK_SUBMIT_ARGS names a properties file too, Spark reads that one for its start.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - what else is here is used without PySpark

    if SparkContext._gateway is not None:
        return
    with _properties_file(settings) as path, _submit_arguments(path):
        SparkContext._ensure_initialized()


@contextlib.contextmanager
def _properties_file(settings: Mapping[str, str]) -> Iterator[str]:
    """The path of a file with the settings, which this user alone can read (mode 0600), while the context lasts."""
    # On Linux it has no name, so that nothing is left of it even after SIGKILL; only this user may open it by /proc.
    own = f"/proc/{os.getpid()}/fd"
    has_proc = _may_be_opened(own)
    with tempfile.TemporaryFile() if has_proc else tempfile.NamedTemporaryFile(prefix="txlog-") as file:
        file.write(properties_of(settings))
        file.flush()
        yield f"{own}/{file.fileno()}" if has_proc else file.name


def _may_be_opened(folder: str) -> bool:
    """Whether the JVM, a process of this user, may open what this process has open."""
    # Airflow's supervisor forbids it for itself and for the task that it forks (PR_SET_DUMPABLE): the folder is root's.
    try:
        return os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


@contextlib.contextmanager
def _submit_arguments(properties_file: str) -> Iterator[None]:
    """The environment in which PySpark passes the file to `spark-submit`, before the arguments that were there."""
    before = os.environ.get(_ARGUMENTS)
    # The file stands in for spark-defaults.conf unless that is asked for too.
    ours = f"{_PROPERTIES} {properties_file} --load-spark-defaults"
    os.environ[_ARGUMENTS] = f"{ours} {before or _DEFAULT_ARGUMENTS}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def properties_of(settings: Mapping[str, str]) -> bytes:
    """The content of a properties file with those settings that are Spark's own."""
    # Spark ignores, with a warning, whatever is not named as one of its own; the session gets that all the same.
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in spark_settings.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """A name or a value as Java's Properties read it back: in ASCII, with nothing that has a meaning there."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)
