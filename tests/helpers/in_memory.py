"""Temporary files of the tests in memory, where the machine has a file system for that.

Each commit of a table, and each of Airflow's SQLite, waits until a disk has it: a tenth of the time of the suite.
"""

from __future__ import annotations

import os
import tempfile

_SHARED_MEMORY = "/dev/shm"
# A run leaves one or two, all depths together.
_ROOM_BYTES = 8 * 1024**3


def keep_temporary_files_in_memory() -> None:
    """Make `/dev/shm` the folder of temporary files, unless TMPDIR names one, or it is small or runs no programs."""
    if "TMPDIR" in os.environ or not os.access(_SHARED_MEMORY, os.W_OK):
        return
    found = os.statvfs(_SHARED_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _SHARED_MEMORY
