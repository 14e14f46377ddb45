"""The Spark that is installed, and whether it can start.

`pyspark` and `pyspark-client` own the same files. At two versions the Python side of one calls the JVM side of the
other, and a job dies deep inside Spark. Invariant: nothing of PySpark is imported here, so that errors name a broken
one.
"""

from __future__ import annotations

import errno
import os
import pwd
import tempfile
from importlib.util import find_spec

from airflow_txlog.errors import JobError, TxlogError
from airflow_txlog.jobs.spark.causes import describe

INSTALL = "pip install 'airflow-provider-txlog[spark]'"
INSTALL_CLIENT = "pip install 'airflow-provider-txlog[connect]'"


def check_one_version() -> None:
    """Raise JobError if pyspark and pyspark-client are both installed, at different versions."""
    full, client = _version("pyspark"), _version("pyspark-client")
    if full is not None and client is not None and full != client:
        raise JobError(
            f"pyspark {full} and pyspark-client {client} are both installed. They own the same files, so that neither "
            "works at a different version of the other. Install both at one version, such as: pip install "
            f"--force-reinstall --no-deps 'pyspark=={client}' 'pyspark-client=={client}'. Nothing was read.",
            cause_type="PySparkVersions",
        )


def check_has_jvm_side() -> None:
    """Raise JobError if only pyspark-client is installed, which contains no Spark to start here."""
    if _version("pyspark") is None and _version("pyspark-client") is not None and "SPARK_HOME" not in os.environ:
        raise JobError(
            f"pyspark-client is installed without pyspark, and it holds no Spark that could be started here: {INSTALL} "
            f"'pyspark=={_version('pyspark-client')}'. Nothing was read.",
            cause_type="PySparkVersions",
        )


def check_has_client() -> None:
    """Raise JobError if PySpark's client of Spark Connect lacks a package, before a Spark starts for it."""
    absent = next((name for name in ("pyspark", "grpc", "grpc_status") if find_spec(name) is None), None)
    if absent is not None:
        raise no_client(ModuleNotFoundError(f"No module named {absent!r}"))


def no_client(error: ImportError) -> JobError:
    """Return the error of a job whose client of Spark Connect cannot be imported."""
    return JobError(
        f"PySpark's client of Spark Connect cannot be imported ({type(error).__name__}: {error}). The runners warm and "
        f"connect need it where tasks run: {INSTALL_CLIENT}. Nothing was read.",
        cause_type=type(error).__name__,
    )


def not_started(error: Exception, why: str | None = None) -> TxlogError:
    """Return the error of a job whose Spark did not start. `why`: why the job needs Spark, if it is known."""
    if isinstance(error, TxlogError):
        return error
    if isinstance(error, ImportError):
        cause = f"{type(error).__name__}: {error}"
        message = f"PySpark cannot be imported ({cause}). Install it, and Java 17 or newer: {INSTALL}."
    else:
        cause = describe(error)
        message = f"Spark could not be started: {cause}. {start_advice(cause)}"
    if why is not None:
        # The reason may be a mistake, which an installed Spark does not mend.
        message = f"The job needs Spark: {why}. {message} docs/jobs-without-spark.md lists the work that needs none."
    return JobError(message, cause_type=type(error).__name__)


def start_advice(cause: str) -> str:
    """Return the advice for a JVM that did not start here, by the cause."""
    if any(os.strerror(number) in cause for number in (errno.ENOSPC, errno.EDQUOT)):
        return temporary_disk_is_full()
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        # The JVM takes the user's name and home from there, and not from the environment.
        return (
            f"The user of this process, {os.geteuid()}, has no entry in /etc/passwd, without which Spark does not "
            "start: add one where the image or the container is made."
        )
    return "Is Java 17 or newer there (JAVA_HOME)?"


def temporary_disk_is_full() -> str:
    """Return the advice for a disk that has no room for temporary files."""
    # Not `gettempdir`, which raises if it can write nowhere. Spark uses the same folder unless it is given another one.
    folder = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"
    return (
        f"The disk of {folder}, the folder for temporary files, is full, or that of spark.local.dir. Free space on it, "
        "or set TMPDIR to a folder on another disk."
    )


def _version(distribution: str) -> str | None:
    # It imports much, and most jobs have no Spark to check.
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
