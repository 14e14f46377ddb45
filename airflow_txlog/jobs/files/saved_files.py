"""Staged files in saved work: how they are written down, and read back as files that this package made in one folder.

A path is relative to the table: where a file lies follows from it and from where the table is now. The invariant: a
path that is read back stays inside the folder, in the spelling and the form that our tasks give to new files; so
nothing that is opened, committed or deleted for a saved file lies elsewhere, whichever process wrote it down.
"""

from __future__ import annotations

import re

from airflow_txlog.datafiles.change_rows import CHANGE_DIRECTORY
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_names import DATA_FILE, UUID
from airflow_txlog.storage.local_files import inner_parts

_VECTORS = re.compile(rf"deletion_vector_{UUID}\.bin")
# The random directory of a file in a table with column mapping, or with delta.randomizeFilePrefixes.
_PREFIX = re.compile("[0-9A-Za-z]+")


def confined(file: StagedFile, folder: str = "") -> StagedFile:
    """The file, of saved work, where its path is one that a job stages in this folder of the table.

    Raises ValueError for a path that leaves the folder or is none of ours.
    """
    path = file.store_path
    if encode_add_path(path) != file.path:
        raise ValueError("a path is not spelled as ours are")
    if folder:
        start, path = path[: len(folder) + 1], path[len(folder) + 1 :]
        if start != f"{folder}/":
            raise ValueError("a path is in another folder")
    *directories, name = inner_parts(path)
    is_change = bool(directories) and directories[0] == CHANGE_DIRECTORY
    if is_change:
        del directories[0]
    kind = DATA_FILE.fullmatch(name)
    is_ours = (kind is not None and (kind[1] == "cdc") == is_change) or (_VECTORS.fullmatch(name) and not is_change)
    if not is_ours or not all("=" in part or _PREFIX.fullmatch(part) for part in directories):
        raise ValueError("a path is none of a file that a job stages")
    return file
