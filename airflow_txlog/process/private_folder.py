"""Folders that only this user can use, below one that all users of a machine may write to.

`make_own_folder` makes one of a known name; `temporary_folder` belongs to this process, and is deleted with it.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import shutil
import stat
import tempfile
from pathlib import Path

from airflow_txlog.clock import SYSTEM_CLOCK

_TIMES, _PAUSE_S = 10, 0.1


def make_own_folder(path: Path) -> str | None:
    """Make the folder if there is none. Return None if it is this user's alone, else why it is not. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return None
    return f"It has mode {stat.filemode(found.st_mode)} and belongs to user {found.st_uid}."


# By the process that made it: a forked child neither uses nor deletes its parent's.
_folders: dict[int, str] = {}


def temporary_folder() -> str:
    """Return a folder below TMPDIR that only this user can read. It is deleted when this process ends.

    If this process is killed, its parent deletes it (`remove_folder_of`); if both are, a cleaner of TMPDIR must.
    """
    pid = os.getpid()
    if pid not in _folders:
        _folders[pid] = tempfile.mkdtemp(prefix=_prefix_of(pid))
        atexit.register(remove_temporary_folder)
    return _folders[pid]


def remove_temporary_folder() -> None:
    """Delete the folder of this process, if any: for a process that ends by `os._exit`."""
    folder = _folders.get(os.getpid())
    if folder is not None:
        _remove(folder)


def remove_folder_of(pid: int) -> None:
    """Delete the folder of a process that was killed before it could."""
    for folder in glob.glob(f"{glob.escape(tempfile.gettempdir())}/{_prefix_of(pid)}*"):
        if os.lstat(folder).st_uid == os.geteuid():
            _remove(folder)


def _prefix_of(pid: int) -> str:
    return f"airflow-txlog-process-{pid}-"


def _remove(folder: str) -> None:
    """Delete the folder, unless a JVM keeps writing there for a second. Two threads may do so."""
    for _ in range(_TIMES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        SYSTEM_CLOCK.sleep(_PAUSE_S)
