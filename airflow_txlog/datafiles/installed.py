"""The packages that an executor must have: checked in one small job, and again by each worker that stages files.

Standard library alone: this runs where nothing else may be installed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import sys
from dataclasses import dataclass

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import TxlogError, UnfitExecutor, UnsupportedStore

OLDEST = {
    "pyarrow": "20",
    "fsspec": "2024.12.0",
    "botocore": "1.36",
    "google-auth": "2.29",
    "urllib3": "2",
    "azure-storage-blob": "12.20",
    "azure-identity": "1.16",
}
"""The oldest release of each package with which tasks run."""

_CLIENTS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("botocore",)),
    **dict.fromkeys(("gs", "gcs"), ("google-auth", "urllib3")),
    **dict.fromkeys(("abfss", "abfs", "wasbs", "wasb", "az"), ("azure-storage-blob", "azure-identity")),
}


def packages_for(scheme: str) -> tuple[str, ...]:
    """Return the packages that tasks on a store of this scheme import."""
    return ("pyarrow", "fsspec", *_CLIENTS.get(scheme, ()))


@functools.cache
def unfit(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the faults of these packages in this process: `pyarrow is not installed`, `fsspec is 2023.1, …`."""
    # It imports much, and a job without Spark checks nothing.
    from importlib import metadata  # noqa: PLC0415

    found = []
    for name in packages:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"{name} is not installed")
            continue
        if _numbers(version) < _numbers(OLDEST[name]):
            found.append(f"{name} is {version}, and must be {OLDEST[name]} or newer")
    return tuple(found)


def check_worker() -> None:
    """Raise UnfitExecutor if this process has a package too old for the tasks: an executor may join late."""
    wrong = unfit(("pyarrow", "fsspec"))
    if wrong:
        raise unfit_executor(socket.gethostname(), sys.executable, wrong)


def unfit_for_store(error: TxlogError) -> TxlogError:
    """Return UnfitExecutor for a store whose client is missing here; return any other error unchanged."""
    if not isinstance(error, UnsupportedStore):
        return error
    wrong = unfit(packages_for(str(error.facts["uri"]).partition("://")[0]))
    return unfit_executor(socket.gethostname(), sys.executable, wrong) if wrong else error


def unfit_executor(host: str | None, python: str | None, wrong: tuple[str, ...]) -> UnfitExecutor:
    """Return the error for an executor that cannot run the tasks. `python` is its interpreter, if known."""
    return UnfitExecutor(
        f"An executor on {host or 'a machine of the cluster'} cannot run the job's tasks: {'; '.join(wrong)}"
        f"{f' ({python})' if python else ''}. Install it in the Python of the executors, or name another Python by "
        "spark.pyspark.python in the connection's spark_conf, for a Spark Connect server by "
        "spark.sql.execution.pyspark.python (docs/spark-cluster.md).",
        host=host,
        missing=list(wrong),
    )


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Returns for its executor, as JSON, `host`, `python`, and the faults (`wrong`) of its packages."""

    packages: tuple[str, ...]
    pause_s: float
    """How long it pauses, so that no executor answers for all."""

    def __call__(self, number: int) -> str:
        SYSTEM_CLOCK.sleep(self.pause_s)
        answer = {"host": socket.gethostname(), "python": sys.executable, "wrong": unfit(self.packages)}
        return json.dumps(answer | {"folder": os.getcwd()})


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
