"""The identity of data files, their deleted rows and their row counts.

A file is known by its key: the canonical path together with the id of its deletion vector. Two actions mean the same
file exactly if their keys are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.actions import Add, DeletionVector, Remove
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths

# Separates path and deletion vector in a key; neither contains it.
_SEPARATOR = "\x00"

# First characters of paths that may be absolute, empty, or have "." segments.
_UNPLAIN = frozenset(("", "/", "."))


def file_key(path: str, vector: DeletionVector | None, root: str) -> str:
    """Return the identity of a data file: canonical path and the id of its deletion vector, if any."""
    # Most paths are relative and not encoded, and this check is much cheaper than `canonical_path`. It must be strict:
    # the same file in two spellings must never have two keys.
    plain = (
        path[:1] not in _UNPLAIN
        and "%" not in path
        and ":" not in path
        and "/." not in path
        and "//" not in path
        and path[-1] != "/"
    )
    key = path if plain else canonical_path(path, root)
    return key if vector is None else key + _SEPARATOR + vector.unique_id


# Found in the joined lines of paths unless all of them are plain.
_UNPLAIN_TEXTS = ("%", ":", "/.", "//", "\n/", "\n.", "\n\n", "/\n")


def action_keys(actions: Sequence[Add] | Sequence[Remove], root: str) -> list[str]:
    """Return `file_key` of every action, in order; several times as fast if all are plain and none has a vector."""
    paths = [action.path for action in actions]
    text = "\n" + "\n".join(paths) + "\n"
    if any(each in text for each in _UNPLAIN_TEXTS) or any(action.deletion_vector for action in actions):
        return [file_key(action.path, action.deletion_vector, root) for action in actions]
    return paths


def path_of_key(key: str) -> str:
    """Return the canonical path in a key."""
    return key.partition(_SEPARATOR)[0]


def vector_of_key(key: str) -> str | None:
    """Return the id of the deletion vector in a key, or None."""
    return key.partition(_SEPARATOR)[2] or None


def file_keys(files: pa.Table, root: str) -> pa.Array:
    """Return the key of every row of a `FILES` or `TOMBSTONES` table, in order."""
    paths = canonical_paths(files.column("path"), root)
    vectors = files.column("deletion_vector").combine_chunks()
    if vectors.null_count == len(vectors):
        return paths
    kind, path, offset = (pc.struct_field(vectors, name) for name in ("storage_type", "path_or_inline_dv", "offset"))
    at = pc.binary_join_element_wise("@", offset.cast(pa.string()), "")
    suffix = pc.binary_join_element_wise(_SEPARATOR, kind, path, pc.fill_null(at, ""), "")
    return pc.binary_join_element_wise(paths, pc.fill_null(suffix, ""), "")


def vectors_of(files: pa.Table | pa.RecordBatch) -> dict[int, DeletionVector]:
    """Return the deletion vectors of a `FILES` table by row number, ascending."""
    column = files.column("deletion_vector")
    if column.null_count == len(column):
        return {}
    numbers = pc.indices_nonzero(pc.is_valid(column))
    vectors = column.take(numbers).to_pylist()
    return {number: DeletionVector(**vector) for number, vector in zip(numbers.to_pylist(), vectors, strict=True)}


def live_row_counts(files: pa.Table) -> list[int | None]:
    """Return the undeleted rows of each file of a `FILES` table, in order; None if unknown."""
    vectors = vectors_of(files)
    return [live_rows(count, vectors.get(number)) for number, count in enumerate(record_counts(files))]


def record_counts(files: pa.Table | pa.RecordBatch) -> list[int | None]:
    """Return `record_count` of every file of a `FILES` table, in order."""
    vectors = vectors_of(files)
    return [record_count(stats, vectors.get(number)) for number, stats in enumerate(files.column("stats").to_pylist())]


def live_rows(records: int | None, vector: DeletionVector | None) -> int | None:
    """Return the number of a file's rows that its deletion vector leaves, None if unknown."""
    if records is None or vector is None:
        return records
    # A vector that deletes more rows than there are is corrupt, which shows when it is read.
    return records - vector.cardinality if vector.cardinality <= records else None


class _Stats(msgspec.Struct, rename="camel"):
    num_records: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    tight_bounds: object = None


def record_count(stats: str | None, vector: DeletionVector | None) -> int | None:
    """Return the rows of a data file by its statistics, including rows that its deletion vector deletes.

    None if unknown, impossible, or with a vector but without tightBounds: older Trino versions then count the rows that
    the vector leaves.
    """
    found = _decoded(stats)
    return None if vector is not None and found.tight_bounds is None else found.num_records


def stated_count(stats: str | None) -> int | None:
    """Return numRecords of the statistics, or None. Its meaning varies: see `record_count`."""
    return _decoded(stats).num_records


def most_rows(stats: str | None, vector: DeletionVector | None) -> int | None:
    """Return the most rows that the data file can have by its statistics, None if they lack numRecords."""
    stated, known = stated_count(stats), record_count(stats, vector)
    return known if known is not None or stated is None or vector is None else stated + vector.cardinality


def _decoded(stats: str | None) -> _Stats:
    if not stats:
        return _Stats()
    try:
        return msgspec.json.decode(stats, type=_Stats)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _Stats()


def known_sum(counts: Sequence[int | None]) -> int | None:
    """Return the sum, or None if one of the counts is unknown."""
    return None if None in counts else sum(count for count in counts if count is not None)
