"""Make the archive of Spark's classes (`spark.class_archive`): `python -m airflow_txlog.jobs.archive_main`.

It runs a few jobs on a temporary table. The JVM of their Spark archives the classes that it has loaded when it ends.
The invariants: one process at a time makes an archive, and the archive gets its name when it is complete. An attempt
leaves a mark, which is deleted once there is an archive: if the process is killed, the mark stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from airflow_txlog.contract.job import JobSpec
from airflow_txlog.contract.operations import operation_named, read_operation
from airflow_txlog.jobs.run import run_job
from airflow_txlog.jobs.spark import class_archive
from airflow_txlog.jobs.spark.session import local_session

_END_S = 120
_ROWS = "SELECT id, CAST(id AS STRING) AS name, current_timestamp() AS at FROM range(100)"
_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("write", {"source": {"sql": _ROWS}}),
    ("delete", {"predicate": "id % 7 = 3 AND regexp_like(name, '^1')"}),
    ("update", {"predicate": "id % 5 = 1", "set": {"name": "concat(upper(name), '!')"}}),
)


def make() -> Path | None:
    """Make the archive of this Java and this Spark if there is none. Return its path, None if it cannot be made.

    Another process that makes it already is left to it.
    """
    path = class_archive.archive_path()
    if path is None:
        return None
    # One lock for all archives, so that folders of other makers belong to killed ones.
    with contextlib.suppress(BlockingIOError), open(path.parent / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not class_archive.is_whole(path):
            class_archive.attempt_of(path).touch()
            _make(path)
        class_archive.attempt_of(path).unlink(missing_ok=True)
    return path if class_archive.is_whole(path) else None


def _make(path: Path) -> None:
    class_archive.delete_leftovers(path.parent)
    work = Path(tempfile.mkdtemp(prefix=class_archive.MAKING, dir=path.parent))
    # Spark's temporary files, too: if this process is killed, the next maker deletes them.
    tempfile.tempdir = os.environ["TMPDIR"] = str(work)
    try:
        made = work / "archive"
        _run_jobs(work / "table", made)
        class_archive.put(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_jobs(table: Path, archive: Path) -> None:
    """Run the jobs in a Spark whose JVM writes the archive. Raises RuntimeError if one fails."""
    class_archive.give_up()
    options = f'"-XX:ArchiveClassesAtExit={archive}" {class_archive.QUICK_COMPILER} -Xlog:disable'
    # One task at a time takes the least memory.
    conf = {"spark.master": "local[1]", "spark.driver.memory": "512m", "spark.driver.extraJavaOptions": options}
    spark = local_session(conf)
    for name, arguments in _JOBS:
        record = read_operation(operation_named(name), arguments)
        result = run_job(JobSpec(operation=record, table_uri=str(table)), spark)
        if result.status != "committed":
            raise RuntimeError(str(result.error))
    spark.range(3).mapInArrow(lambda batches: batches, "id long").toArrow()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    # The JVM ends as its standard input does, and writes the archive then. One that is killed leaves a part of it.
    gateway.proc.stdin.close()
    exit_code = gateway.proc.wait(_END_S)
    if exit_code != 0:
        raise RuntimeError(f"The JVM that writes the archive ended with {exit_code}.")


def main() -> int:
    """Make the archive and print its path, as the process that the kernel ends first if memory runs out."""
    os.nice(19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    path = make()
    print(path or "There is no archive: one is being made, or there is to be none.")
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
