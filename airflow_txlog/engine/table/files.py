"""What tells one data file from another, and how many rows it holds.

A file is known by its key: the canonical path together with the id of its deletion vector. Two actions speak of the
same file exactly when their keys are equal.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import DeletionVector
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths

# Separates path and deletion vector in a key; it can stand in neither.
_SEPARATOR = "\x00"


def file_key(path: str, vector: DeletionVector | None, root: str) -> str:
    """The identity of a data file: canonical path and, where it has one, the deletion vector's id."""
    # Most paths are relative and hold nothing encoded; asking so is much cheaper than parsing a URI.
    plain = "%" not in path and ":" not in path and not path.startswith(("/", "./"))
    key = path if plain else canonical_path(path, root)
    return key if vector is None else key + _SEPARATOR + vector.unique_id


def path_of_key(key: str) -> str:
    """The canonical path in a key, without the deletion vector."""
    return key.partition(_SEPARATOR)[0]


def file_keys(files: pa.Table, root: str) -> pa.Array:
    """The key of every row of a `FILES` or `TOMBSTONES` table, in order, as strings."""
    paths = canonical_paths(files.column("path"), root)
    vectors = files.column("deletion_vector").combine_chunks()
    if vectors.null_count == len(vectors):
        return paths
    kind, path, offset = (pc.struct_field(vectors, name) for name in ("storage_type", "path_or_inline_dv", "offset"))
    at = pc.binary_join_element_wise("@", offset.cast(pa.string()), "")
    suffix = pc.binary_join_element_wise(_SEPARATOR, kind, path, pc.fill_null(at, ""), "")
    return pc.binary_join_element_wise(paths, pc.fill_null(suffix, ""), "")


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int | None = None


def record_count(stats: str | None) -> int | None:
    """numRecords of a statistics string: rows in the file before any deletion vector. None where it is not known."""
    if not stats:
        return None
    try:
        return msgspec.json.decode(stats, type=_Stats).num_records
    except msgspec.DecodeError:
        return None
