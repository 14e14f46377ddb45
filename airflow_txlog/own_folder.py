"""Folders that are this user's alone, below one that all users of a machine may write to. Standard library alone."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_own_folder(path: Path) -> str | None:
    """Make the folder where there is none. None where it is this user's alone, else what it is.

    In a shared /tmp another user may have made it, or a link of that name. Raises OSError where it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return None
    return f"It has mode {stat.filemode(found.st_mode)} and belongs to user {found.st_uid}."
