"""The code that executors need, as a zip that is named by its content.

Functions reach a Python worker by reference, so the worker must be able to import their module. The zip has `datafiles`
and the modules that it imports. The invariant: equal content gives an equal name and equal bytes, because Spark Connect
refuses a known name with other bytes. Source: soundness B9.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import zipfile
from collections.abc import Iterable, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark.connect import status_of
from airflow_txlog.jobs.spark.session import application_or_session, is_classic
from airflow_txlog.process.private_folder import temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HAS = "spark.txlog.package"
"""The setting in which a server names the zip whose code its Python workers can import without it."""

_PACKAGES = ("datafiles", "errors", "sql", "storage")
_MODULES = ("__init__.py", "clock.py", "locations.py")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold

# The applications and sessions that have the zip.
_shipped: set[str] = set()


def ship(spark: SparkSession) -> None:
    """Make `airflow_txlog.datafiles` importable in the session's Python workers.

    Raises InvalidJobSpec for a server of Spark Connect that is not Apache Spark (docs/decisions/not-sail.md).
    """
    key = application_or_session(spark)
    if key in _shipped:
        return
    if is_classic(spark):
        spark.sparkContext.addPyFile(_zip_file())
    # A server whose ports are closed could not pass it to its own executor.
    elif spark.conf.get(HAS, None) != executor_zip()[0]:
        try:
            spark.addArtifacts(_zip_file(), pyfile=True)
        except Exception as error:
            if type(error).__name__ != "UnsupportedOperationException" and status_of(error) != "UNIMPLEMENTED":
                raise
            raise InvalidJobSpec(
                "The Spark Connect server takes no Python files from its clients, which every Apache Spark does: it is "
                "another engine, whose SQL is not proven to compute what Spark computes. Name a server of Apache Spark "
                "in spark_conn_id. Nothing was read or written.",
                argument="spark_conn_id",
            ) from error
    _shipped.add(key)


def executor_zip() -> tuple[str, bytes]:
    """Return the zip's name, `airflow_txlog-<sha>.zip`, and its bytes; the same for the same sources."""
    package = files("airflow_txlog")
    modules = [(f"airflow_txlog/{name}", package.joinpath(name).read_bytes()) for name in _MODULES]
    folders = (_python_files(package.joinpath(name), f"airflow_txlog/{name}") for name in _PACKAGES)
    return _zip_of(itertools.chain(modules, *folders))


@functools.cache
def driver_zip() -> tuple[str, bytes]:
    """Return the same with the whole package, for a driver on another machine."""
    return _zip_of(_python_files(files("airflow_txlog"), "airflow_txlog"))


def _zip_of(sources: Iterable[tuple[str, bytes]]) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(sources):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"airflow_txlog-{digest}.zip", content


def _python_files(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in folder.iterdir():
        if item.is_dir() and item.name != "__pycache__":
            yield from _python_files(item, f"{name}/{item.name}")
        elif item.name.endswith(".py"):
            yield f"{name}/{item.name}", item.read_bytes()


def _zip_file() -> str:
    """Return the path of the zip, in a folder of this process that only this user can write to."""
    name, content = executor_zip()
    path = os.path.join(temporary_folder(), name)
    if not os.path.exists(path):
        # Whole or not there: the disk may be full.
        with open(f"{path}.part", "wb") as f:
            f.write(content)
        os.replace(f"{path}.part", path)
    return path
