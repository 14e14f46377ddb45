"""The data files that an object of the log describes by values: bounds of columns, or values of partitions.

The bounds of a file that held a subject may be the subject's own, in any column: the e-mail of the person 7 as the
least `email` of the file. So an erasure also has to remove what describes such a file. Commits, compacted commits,
checksums and JSON checkpoints are searched for entries with a path; Parquet checkpoints and sidecars by their columns.
Source: protocol, "Add File and Remove File", "Per-file Statistics", "Checkpoint Schema", "Version Checksum File".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.engine.erasure.text_traces import decompressed, text_of
from airflow_txlog.engine.erasure.traces import Trace
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.errors import OutsideTable
from airflow_txlog.locations import is_absolute, shown_path
from airflow_txlog.storage.base import FileInfo, Store

DESCRIBED = Trace("bounds or partition values of a file that held a subject", "statistic")
"""The trace in an object that describes such a file."""
UNKNOWN = Trace("bounds or partition values of a file that is gone, and that may have held a subject", "statistic")
"""The trace in an object that describes a file which was deleted before anything searched it."""

_BOUNDS = ("minValues", "maxValues")
_STATISTICS = ("stats", "stats_parsed")
# As the log spells them, and as saved work does.
_PARTITIONS = ("partitionValues", "partitionValues_parsed", "partition_values")
_ACTIONS = ("add", "remove", "cdc")
_PARQUET = (b"PAR1", b"PARE")


def described(store: Store, info: FileInfo, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the canonical paths of the `wanted` files that an object describes by a value of a column.

    Counts of rows and nulls are no values. Raises the errors of the store, and those of damaged Parquet.
    """
    with store.open_input(info.path) as source:
        head = source.read(4)
        if head in _PARQUET:
            source.seek(0)
            yield from _in_parquet(source, store.root, wanted)
            return
        data = head + source.read()
    yield from _in_text(decompressed(data), store.root, wanted)


def is_gone(store: Store, path: str) -> bool:
    """Return whether the file at a path that `described` has yielded is not there.

    No table has one at a path that is none, or that leads through a link.
    """
    try:
        return is_absolute(path) or store.stat(path) is None
    except (ValueError, OutsideTable):
        return True


def _in_text(data: bytes, root: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        return
    for line in text.split("\n"):
        if '"path"' not in line:
            continue
        try:
            entries = list(_entries(json.loads(line)))
        except (ValueError, RecursionError):
            continue
        for entry in entries:
            path = canonical_path(shown_path(entry["path"]), root)
            if wanted(path) and (_is_in_partition(path) or _has_values(entry)):
                yield path


def _entries(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in JSON that have a path, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str):
            yield value
        for member in value.values():
            yield from _entries(member)
    elif isinstance(value, list):
        for member in value:
            yield from _entries(member)


def _is_in_partition(path: str) -> bool:
    """Return whether the folders of a file show values of a partition, as Hive names them."""
    return "=" in path.rpartition("/")[0]


def _has_values(entry: Mapping[str, Any]) -> bool:
    try:
        for name in _STATISTICS:
            statistics = entry.get(name)
            if isinstance(statistics, str):
                statistics = json.loads(statistics)
            if isinstance(statistics, dict) and any(_is_value(statistics.get(bound)) for bound in _BOUNDS):
                return True
        return any(_is_value(entry.get(name)) for name in _PARTITIONS)
    except (ValueError, RecursionError):
        # Statistics that cannot be read may have any value.
        return True


def _is_value(value: Any) -> bool:
    """Return whether a value, or a member of it at any depth, is there."""
    if isinstance(value, dict):
        return any(map(_is_value, value.values()))
    if isinstance(value, list):
        return any(map(_is_value, value))
    return value is not None


def _in_parquet(source: Any, root: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    names = [f"{action}.{name}" for action in _ACTIONS for name in ("path", *_STATISTICS, *_PARTITIONS)]
    with pq.ParquetFile(source) as file:
        for batch in file.iter_batches(columns=names):
            for action in _ACTIONS:
                if action in batch.schema.names:
                    yield from _in_rows(batch.column(action), root, wanted)


def _in_rows(rows: pa.StructArray, root: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    members = {rows.type.field(at).name: each for at, each in enumerate(rows.flatten())}
    if "path" not in members:
        return
    paths = canonical_paths(members.pop("path").cast(pa.string()), root).to_pylist()
    for at, path in enumerate(paths):
        if path is not None and wanted(path):
            entry = {name: each.slice(at, 1) for name, each in members.items()}
            if _is_in_partition(path) or any(_has_value(name, each) for name, each in entry.items()):
                yield path


def _has_value(name: str, one: pa.Array) -> bool:
    """Return whether the column of a row has a value of a column of the table."""
    if name == "stats":
        return one.is_valid().to_pylist()[0] and _has_values({name: one[0].as_py()})
    if name == "stats_parsed":
        bounds = {one.type.field(at).name: each for at, each in enumerate(one.flatten())}
        return any(_is_valid(bounds[each]) for each in _BOUNDS if each in bounds)
    if pa.types.is_map(one.type):
        return any(value is not None for _, value in one.to_pylist()[0] or ())
    return _is_valid(one)


def _is_valid(one: pa.Array) -> bool:
    """Return whether one row of a column, or a member of it at any depth, is there."""
    if pa.types.is_struct(one.type):
        return any(map(_is_valid, one.flatten()))
    return bool(one.null_count == 0)
