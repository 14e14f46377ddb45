"""Deletion vectors instead of copies: rows are deleted, and their file stays.

The rows that leave join the rows that are already deleted; a file without rows is removed instead. The vectors of an
attempt share few files, staged by the driver and remembered as segments. The invariant: a vector deletes the rows of
the file's live vector and the rows that this attempt matched, and no others; so it is made again whenever either
changes. Source: protocol, "Deletion Vectors"; soundness A1, A17.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.datafiles.deletion_vectors.positions import union
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file
from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.deletion_vectors import (
    VectorFile,
    adds_with_vectors,
    deletes_by_vectors,
    new_vector_file,
    pack_vectors,
    write_vector_files,
)
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.resume.memory import VECTORS, Memory, Segment
from airflow_txlog.jobs.rows.matches import FoundRows
from airflow_txlog.locations import readable

_FOOTERS_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class NewVectors:
    """Files that are added again with a new vector (`num_updated` had one before), and the files of their vectors."""

    adds: Sequence[Add] = ()
    files: Sequence[StagedFile] = ()
    num_updated: int = 0


def uses_deletion_vectors(snapshot: Snapshot) -> bool:
    return deletes_by_vectors(snapshot.protocol, snapshot.metadata, snapshot.uri)


def stage_vectors(
    context: JobContext, snapshot: Snapshot, files: pa.Table, plan: FilePlan, leaving: FoundRows, memory: Memory
) -> NewVectors:
    """Stage the vectors that delete the leaving rows; `plan` is the plan of `files` (rows of a table `FILES`).

    Vectors that the memory holds are used again. An error leaves none of the new ones behind.
    """
    counts = _row_counts(plan, sorted(leaving.positions))
    bitmaps: dict[int, RowPositions] = {}
    for row, count in counts.items():
        deleted = _deleted_rows(plan, row, leaving.positions[row])
        deleted.check_inside(count)
        if deleted.num_rows < count:
            bitmaps[row] = deleted
    keys: list[str] = file_keys(files, context.root).to_pylist()
    packs = pack_vectors(list(bitmaps.values()))
    segments = _segments(packs, [keys[row] for row in bitmaps])
    vector_files = _staged(context, snapshot, packs, segments, memory)
    again = files.take(pa.array(list(bitmaps), pa.int64()))
    vectors = [vector for file in vector_files for vector in file.vectors()]
    return NewVectors(
        adds=adds_with_vectors(again, vectors, [counts[row] for row in bitmaps]),
        files=[file for segment in memory.segments if segment.kind == VECTORS for file in segment.files],
        num_updated=len(again) - again.column("deletion_vector").null_count,
    )


def _deleted_rows(plan: FilePlan, row: int, leaving: RowPositions) -> RowPositions:
    name = plan.name_of(row)
    before = plan.table.column("deleted")[row].as_py()
    if before is None:
        return leaving
    return RowPositions(union([leaving, RowPositions(before, f"of {name}")]), f"of {name}")


def _row_counts(plan: FilePlan, rows: Sequence[int]) -> dict[int, int]:
    """Return the rows of these files, deleted ones too, from the statistics or else from the footer."""
    known = plan.table.column("num_records")
    counts: dict[int, int | None] = {row: known[row].as_py() for row in rows}
    unknown = [row for row, count in counts.items() if count is None]
    with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
        counts.update(zip(unknown, pool.map(lambda row: _rows_in_footer(plan, row), unknown), strict=True))
    return {row: count for row, count in counts.items() if count is not None}


def _rows_in_footer(plan: FilePlan, row: int) -> int:
    file = DataFile(
        store=plan.store,
        path=plan.table.column("path")[row].as_py(),
        size_bytes=plan.table.column("size_bytes")[row].as_py(),
    )
    with open_data_file(file) as parquet:
        return int(parquet.metadata.num_rows)


def _segments(packs: Sequence[Sequence[RowPositions]], keys: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the data files of each file of vectors, by its fingerprint: the digest of their keys and bitmaps."""
    found = {}
    start = 0
    for bitmaps in packs:
        inputs = keys[start : start + len(bitmaps)]
        digest = hashlib.sha256()
        for key, deleted in zip(inputs, bitmaps, strict=True):
            digest.update(f"{key}\n{len(deleted.data)}\n".encode() + deleted.data)
        found[digest.hexdigest()] = frozenset(inputs)
        start += len(bitmaps)
    return found


def _staged(
    context: JobContext,
    snapshot: Snapshot,
    packs: Sequence[tuple[RowPositions, ...]],
    segments: Mapping[str, frozenset[str]],
    memory: Memory,
) -> list[VectorFile]:
    """Return the files of vectors, in order: those of the memory, and those that are written now."""
    inputs = frozenset[str]().union(*segments.values())
    known = {segment.fingerprint: segment for segment in memory.keep(VECTORS, inputs, set(segments))}
    prefix_chars = snapshot.table_properties.vector_prefix_chars
    found, new = [], []
    for fingerprint, bitmaps in zip(segments, packs, strict=True):
        if fingerprint in known:
            found.append(VectorFile.at(known[fingerprint].files[0].path, bitmaps))
        else:
            found.append(new_vector_file(bitmaps, prefix_chars=prefix_chars))
            new.append((fingerprint, found[-1]))
    if context.is_dry_run:
        return found
    write_vector_files(context.store, [file for _, file in new])
    memory.add(
        Segment(kind=VECTORS, inputs=segments[fingerprint], fingerprint=fingerprint, files=(_record(context, file),))
        for fingerprint, file in new
    )
    return found


def _record(context: JobContext, file: VectorFile) -> StagedFile:
    """Return a file of vectors as a staged file without rows."""
    # By the store's clock, like that of every staged file: the age decides whether a VACUUM may have taken it.
    found = context.store.stat(file.path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), readable(context.root, file.path))
    return StagedFile(
        path=encode_add_path(file.path),
        partition_values={},
        size_bytes=found.size_bytes,
        modification_time_ms=found.modified_ms,
        num_records=0,
        stats="",
    )
