"""Staged files in saved work: how they are written down, and read back as files that this package made in one folder.

What is written down has no location: where a file lies follows from its path and from where the table is now. The
invariant: a path that is read back stays inside the folder, in the spelling and the form that our tasks give to new
files; so nothing that is opened, committed or deleted for a saved file lies elsewhere, whichever process wrote it down.
"""

from __future__ import annotations

import dataclasses
import re

from airflow_txlog.datafiles.change_rows import CHANGE_DIRECTORY
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.partitioning import decode_add_path, encode_add_path
from airflow_txlog.storage.local_files import inner_parts
from airflow_txlog.storage.locations import inside

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DATA_FILE = re.compile(rf"(part|cdc)-[0-9a-f]{{16}}-{_UUID}\.c\d+(?:-\d+)?(?:\.[a-z0-9_]+)?\.parquet")
_VECTORS = re.compile(rf"deletion_vector_{_UUID}\.bin")
# The random directory of a file in a table with column mapping, or with delta.randomizeFilePrefixes.
_PREFIX = re.compile("[0-9A-Za-z]+")


def without_location(file: StagedFile) -> StagedFile:
    """The file as saved work has it."""
    return dataclasses.replace(file, location="")


def confined(file: StagedFile, folder: str) -> StagedFile:
    """A file as saved work has it, in the folder (a location) that its path is relative to.

    Raises ValueError for a path that leaves the folder or is none of ours, and for a file that brings a location.
    """
    if file.location:
        raise ValueError("saved work has no locations")
    path = decode_add_path(file.path)
    if encode_add_path(path) != file.path:
        raise ValueError("a path is not spelled as ours are")
    *directories, name = inner_parts(path)
    is_change = bool(directories) and directories[0] == CHANGE_DIRECTORY
    if is_change:
        del directories[0]
    kind = _DATA_FILE.fullmatch(name)
    is_ours = (kind is not None and (kind[1] == "cdc") == is_change) or (_VECTORS.fullmatch(name) and not is_change)
    if not is_ours or not all("=" in part or _PREFIX.fullmatch(part) for part in directories):
        raise ValueError("a path is none of a file that a job stages")
    return dataclasses.replace(file, location=inside(folder, path))
