"""What belongs to a process and goes with it: its folder for temporary files, and, where the process is ours alone from
its start to its end (a job's, a command's), how Arrow takes memory.

In a process of other people's the latter would change what their code gets from Arrow, so a library leaves it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from typing import Any

from airflow_txlog.clock import SYSTEM_CLOCK


class _NoPandas:
    """Among the finders of modules: there is no pandas."""

    def find_spec(self, name: str, *more: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for here", name=name)


def spare_memory() -> None:
    """Let Arrow take less memory. To be called before anything is read.

    Where pandas is installed, pyarrow imports it with the first array that it makes of a list: a third of a second and
    40 MB, for nothing. It looks for it once; what asks it for pandas later gets it. And jemalloc keeps less of what
    was freed than Arrow's own choice: a checkpoint of a million files is read in 100 MB less. A choice of the user's
    (ARROW_DEFAULT_MEMORY_POOL) stands.
    """
    import pyarrow as pa  # noqa: PLC0415 - where nothing is to be run, nothing is imported

    if not os.environ.get("ARROW_DEFAULT_MEMORY_POOL"):
        with contextlib.suppress(NotImplementedError):  # a build without it
            pa.set_memory_pool(pa.jemalloc_memory_pool())
    blocked: Any = _NoPandas()
    sys.meta_path.insert(0, blocked)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(blocked)


_TIMES, _PAUSE_S = 10, 0.1
# By the process that made it: one that is forked neither uses nor deletes its parent's.
_folders: dict[int, str] = {}


def temporary_folder() -> str:
    """A folder that this user alone can read, in that of TMPDIR; it is deleted when this process ends.

    Not where it is killed: then only a cleaner of that folder deletes it.
    """
    pid = os.getpid()
    if pid not in _folders:
        _folders[pid] = tempfile.mkdtemp(prefix="airflow-txlog-process-")
        atexit.register(remove_temporary_folder)
    return _folders[pid]


def remove_temporary_folder() -> None:
    """Delete it, if there is one: for a process that ends by `os._exit`.

    It is gone on return, also where another thread has begun to delete it, unless a JVM goes on writing for a second.
    """
    folder = _folders.get(os.getpid())
    if folder is None:
        return
    for _ in range(_TIMES):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        SYSTEM_CLOCK.sleep(_PAUSE_S)
