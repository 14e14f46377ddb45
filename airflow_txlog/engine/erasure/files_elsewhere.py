"""The files outside of a table that its log names, as that of a shallow clone does, also where nothing opens the table.

A log that is damaged, or that needs a feature unknown here, still names files that other readers find, or that a repair
brings back. What no part of it names is lost to everybody. The invariant: a file that a part of the log adds, and that
a text or Parquet still shows, is found; removes of it do not count, because they may be the damage.
Source: protocol, "Add File and Remove File", "Checkpoint Schema", "Sidecar File Information".
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.engine.log.checkpoints.rows import SIDECAR_DIRECTORY
from airflow_txlog.engine.log.names import LOG_DIRECTORY, parse_name
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import LOCAL, is_absolute, local_path
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.local_files import real_path

# Also in a line that ends too early.
_PATH = re.compile(rb'"path"\s*:\s*("(?:[^"\\]|\\.)*")')


def files_elsewhere(store: Store) -> Collection[str] | None:
    """Return the canonical paths outside of a table that its log names; None if a part of the log cannot be read.

    Raises the errors of the store.
    """
    unreadable: list[str] = []
    found: set[str] = set()
    for info in store.walk(unreadable.append, prefix=f"{LOG_DIRECTORY}/"):
        if parse_name(info.path) is None and not info.path.startswith(f"{SIDECAR_DIRECTORY}/"):
            continue
        try:
            data = store.read(info.path)
        except FileNotFoundError:
            continue
        except (PermissionError, OutsideTable):
            return None
        try:
            named = _in_parquet(data, store.root) if info.path.endswith(".parquet") else _in_text(data, store.root)
            found.update(filter(is_absolute, named))
        except Exception:
            # Another reader may know the form of this Parquet.
            return None
    return None if unreadable else found


def tables_of(files: Iterable[str], uris: Collection[str]) -> list[str]:
    """Return those of these tables that have one of these files. On a disk, links in either name do not matter."""
    folders = {path.rpartition("/")[0] for path in files}
    folders |= {_without_links(folder) for folder in folders}
    roots = {uri: (f"{uri}/", f"{_without_links(uri)}/") for uri in uris}
    return [uri for uri in uris if any(f"{folder}/".startswith(roots[uri]) for folder in folders)]


def _without_links(uri: str) -> str:
    path = local_path(uri)
    return uri if path is None else f"{LOCAL}://{real_path(path)}"


def _in_text(data: bytes, root: str) -> Iterator[str]:
    for text in set(_PATH.findall(data)):
        try:
            path = json.loads(text)
        except ValueError:
            path = text[1:-1].decode("utf-8", "replace")
        yield canonical_path(path, root)


def _in_parquet(data: bytes, root: str) -> Iterator[str]:
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        for batch in file.iter_batches(columns=["add.path"]):
            if "add" in batch.schema.names:
                paths = batch.column("add").flatten()[0].cast(pa.string())
                yield from (path for path in canonical_paths(paths, root).to_pylist() if path is not None)
