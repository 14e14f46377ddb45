"""An archive of the classes that Spark loads at its start. A JVM maps it instead of loading the classes from jars.

The archive halves the start time of a local Spark. If there is none, a process that started Spark leaves a background
process that makes one (`archive_main`). An archive fits one Java and one Spark; its name is a hash of their files.

A JVM runs code from the archive, and crashes if the file was cut. So archives are in a folder that only this user can
use, get their name when they are complete, and are compared with their recorded size and hash before each use.

The invariants: without a usable archive Spark starts as it would without this module, and no job waits for an archive,
fails because of one, or logs a line about it. The background process takes no memory that a worker needs: it starts
only if enough is free, and it leaves a mark first, so that others do not try again if it is killed.
Source: JEP 350 (dynamic class-data sharing archives).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.jobs.spark.launch import free_bytes
from airflow_txlog.process.private_folder import make_own_folder

FOLDER = "TXLOG_CLASS_ARCHIVES"
"""The environment variable with the folder of archives; `off` for none."""

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""The JVM option for its quick compiler alone: a JVM that lives for seconds gains nothing from the other."""

MAKING = "making-"
"""The beginning of the names of the folders in which archives are made."""

# JVM options by which a user names an archive or forbids one, and the variables that hold such options.
_CHOICES = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "-XX:AOT")
_JAVA_OPTIONS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
_SPARK_OPTIONS = ("SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")
# The process that makes an archive gets these variables alone: they decide which Java and which Spark start.
_DECIDING = ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", *_JAVA_OPTIONS)
_FOR_PYTHON = ("PATH", "PYTHONPATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", FOLDER)
# A part of the name of an archive, for when its content changes.
_FORM = 1
_MOST_ARCHIVES = 4
_RETRY_S = 24 * 3600
# If tasks differ in a variable that identifies an archive, not each of them makes one.
_PAUSE_S = 3600
# For the process that makes an archive and its JVM, with room for others that start at the same time.
_LEAST_MEMORY = 2 * 1024**3

# The options of this process's JVM; None until they are decided.
_chosen: str | None = None


def jvm_options() -> str:
    """Return the JVM options that use the archive; "" without one, which a process in the background then makes."""
    global _chosen
    if _chosen is None:
        path = archive_path()
        _chosen = ""
        if path is not None and is_whole(path):
            # A JVM that refuses an archive would report it on standard output. Other logging is the user's choice.
            _chosen = f'"-XX:SharedArchiveFile={path}" -Xlog:cds*=off'
        elif path is not None:
            atexit.register(_make_later, path)
    return _chosen


def is_chosen_in(options: str) -> bool:
    """Return whether these JVM options name an archive, or forbid one."""
    return any(choice in options for choice in _CHOICES)


def has_given_options() -> bool:
    """Return whether a variable or a file of this machine may add to the Spark that starts here, or move its files."""
    names = (*_JAVA_OPTIONS, *_SPARK_OPTIONS, "SPARK_LOCAL_DIRS", "LOCAL_DIRS")
    try:
        return any(map(os.environ.get, names)) or _has_files_on_class_path(_spark_home())
    except OSError:
        return True


def give_up() -> Path | None:
    """Use no archive from now on in this process; return the one that was used, None if none was."""
    global _chosen
    used, _chosen = _chosen, ""
    return archive_path() if used else None


def put(made: Path, path: Path) -> None:
    """Move a new archive to its place, and delete the oldest if there are many. Raises OSError."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
        record = {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), **_stat(made)}
    remove(path)
    os.replace(made, path)
    # An archive without a record is not used.
    made.write_text(json.dumps(record))
    os.replace(made, _record_of(path))
    by_age = sorted(path.parent.glob("*.jsa"), key=lambda each: each.stat().st_mtime_ns)
    for old in by_age[:-_MOST_ARCHIVES]:
        remove(old)


def remove(path: Path) -> None:
    """Delete an archive. A JVM that has mapped it keeps it."""
    for each in (_record_of(path), path):
        with contextlib.suppress(OSError):
            each.unlink()


def is_whole(path: Path) -> bool:
    """Return whether the archive is as it was made: by its size, and by its hash if it was touched since."""
    try:
        record, found = json.loads(_record_of(path).read_bytes()), _stat(path)
        if found["size"] != record["size"]:
            return False
        if found["mtime_ns"] == record["mtime_ns"]:
            return True
        with open(path, "rb") as file:
            return bool(hashlib.file_digest(file, "sha256").hexdigest() == record["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def archive_path() -> Path | None:
    """Return the path of the archive of this Java and this Spark, which may not exist yet; None for no archive."""
    asked = os.environ.get(FOLDER, "")
    given = " ".join(os.environ.get(name, "") for name in (*_JAVA_OPTIONS, *_SPARK_OPTIONS))
    if asked == "off" or is_chosen_in(given):
        return None
    folder = Path(asked or f"{tempfile.gettempdir()}/airflow-txlog-classes-{os.geteuid()}").absolute()
    # It is an option among others, which quotes would end, and a colon would make it two archives.
    if not str(folder).isprintable() or set(str(folder)) & set("\"'\\:"):
        return None
    try:
        spark = _spark_home()
        if _has_files_on_class_path(spark):
            return None
        return folder / f"{_fingerprint(spark)}.jsa" if make_own_folder(folder) is None else None
    except OSError:
        return None


def attempt_of(path: Path) -> Path:
    """Return the path of the mark of an attempt to make this archive that has not succeeded."""
    return path.with_suffix(".attempt")


def delete_leftovers(folder: Path) -> None:
    """Delete the files that killed makers of any archive have left. The caller is the only maker."""
    for work in folder.glob(f"{MAKING}*"):
        shutil.rmtree(work, ignore_errors=True)
    for attempt in folder.glob("*.attempt"):
        if not _is_younger(attempt, _RETRY_S):
            attempt.unlink(missing_ok=True)


def _make_later(path: Path) -> None:
    """Start a background process that makes the archive, unless one was tried lately or little memory is free."""
    if (free_bytes() or 0) < _LEAST_MEMORY or is_whole(path):
        return
    with contextlib.suppress(OSError):
        if _is_younger(attempt_of(path), _RETRY_S):
            return
        others = (other for end in ("jsa", "attempt") for other in path.parent.glob(f"*.{end}"))
        if any(_is_younger(other, _PAUSE_S) for other in others):
            return
        # First, for the process may be killed: it would be tried again after every job.
        attempt_of(path).touch()
        variables = {name: os.environ[name] for name in (*_DECIDING, *_FOR_PYTHON) if name in os.environ}
        subprocess.Popen(
            [sys.executable, "-m", "airflow_txlog.jobs.archive_main"],
            env={**variables, FOLDER: str(path.parent)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _is_younger(path: Path, seconds: int) -> bool:
    try:
        return SYSTEM_CLOCK.now_ms() / 1000 - path.stat().st_mtime < seconds
    except FileNotFoundError:
        return False


def _spark_home() -> str:
    """Return the folder of the Spark that would start. Raises FileNotFoundError if there is none."""
    home = os.environ.get("SPARK_HOME") or getattr(find_spec("pyspark"), "submodule_search_locations", [None])[0]
    if home is None:
        raise FileNotFoundError
    return str(home)


def _has_files_on_class_path(spark: str) -> bool:
    return any(os.path.isdir(path) and os.listdir(path) for path in _class_path_folders(spark))


def _class_path_folders(spark: str) -> list[str]:
    """Return the possible folders on the class path: a JVM archives no classes if one of them contains a file."""
    # Source: Spark 4.2, AbstractCommandBuilder.buildClassPath.
    conf = os.environ.get("SPARK_CONF_DIR") or f"{spark}/conf"
    of_hadoop = [os.environ.get(name, "") for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    return [conf, *of_hadoop, *os.environ.get("SPARK_DIST_CLASSPATH", "").split(":")]


def _fingerprint(spark: str) -> str:
    """Return a digest that identifies the Java and this Spark, which would start. Raises OSError if there is none."""
    java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None:
        raise FileNotFoundError
    java = os.path.realpath(java)
    jars = sorted(entry.path for entry in os.scandir(f"{spark}/jars"))
    found = [(path, os.stat(path)) for path in (java, f"{os.path.dirname(java)}/../lib/modules", *jars)]
    # An image keeps whole seconds, and the JVM compares them too.
    files = [[path, each.st_size, int(each.st_mtime)] for path, each in found]
    variables = [[name, os.environ.get(name)] for name in _DECIDING]
    return hashlib.sha256(json.dumps([_FORM, files, variables]).encode()).hexdigest()[:24]


def _stat(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _record_of(path: Path) -> Path:
    return path.with_suffix(".json")
