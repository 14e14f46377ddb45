"""Tiny files of one partition become one file of the commit: copies, new images and inserts, and its change files.

What an attempt has staged stays as it is, in segments by their inputs, so that the next attempt keeps all of it that
still holds. A joined file is made of these for one commit, and is kept only for the very same parts. The invariant: of
each staged row either its own file or the joined one is in the commit. Source: soundness B2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from airflow_txlog.contract.wording import plural
from airflow_txlog.datafiles.parquet.output import StagedFile
from airflow_txlog.datafiles.parquet.writing import Layout
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema.features import writer_features
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.stage import layout_of
from airflow_txlog.jobs.files.tiny_files import bins_of, joined_bins, partition_of
from airflow_txlog.jobs.resume.memory import JOINED, Memory, Segment
from airflow_txlog.jobs.rows.operation import StagedWork

# So much is read and written once more for a commit, at most: about 10 ms a mebibyte. A larger bound slows down a
# change that takes a few tenths of a second by half.
MOST_BYTES = 4 * 1024 * 1024


def joined_files(context: JobContext, snapshot: Snapshot, work: StagedWork, memory: Memory) -> StagedWork:
    """The work with tiny files of a partition joined, where one of them has new rows; and its change files likewise.

    Raises as `joined_bins` does, and then nothing is joined: what was staged is in the memory.
    """
    bins = _bins(context, snapshot, work)
    wanted = {_fingerprint(files): (layout, files) for layout, files in bins}
    known = {segment.fingerprint: segment for segment in memory.keep(JOINED, (), set(wanted))}
    for layout in {each.is_change: each for each, _ in bins}.values():
        missing = {
            fingerprint: files
            for fingerprint, (each, files) in wanted.items()
            if each.is_change == layout.is_change and fingerprint not in known
        }
        if missing:
            made = joined_bins(context, layout, list(missing.values()))
            segments = [
                Segment(kind=JOINED, inputs=frozenset(), fingerprint=fingerprint, files=(file,))
                for fingerprint, file in zip(missing, made, strict=True)
            ]
            memory.add(segments)
            known |= {segment.fingerprint: segment for segment in segments}
    memory.parts = [file for _, files in bins for file in files]
    if bins:
        context.log(f"{plural(len(memory.parts), 'tiny file')} joined into {len(bins)}")
    parts = frozenset(file.path for file in memory.parts)
    joined = [file for segment in known.values() for file in segment.files]
    changes = [file for file in work.changes if file.path not in parts]
    return replace(
        work,
        joined=[file for file in joined if not file.is_change],
        changes=[*changes, *(file for file in joined if file.is_change)],
        parts=parts,
    )


def _bins(context: JobContext, snapshot: Snapshot, work: StagedWork) -> list[tuple[Layout, list[StagedFile]]]:
    """Files to be joined, and how the file is written that they become; the smallest first, up to MOST_BYTES."""
    new = {file.path for file in (*work.images, *work.inserts)}
    # Rows of a copy have ids that a joined file would not keep.
    if not (new or work.changes) or "rowTracking" in writer_features(snapshot.protocol):
        return []
    layout = layout_of(context, snapshot)
    found = [
        (layout, files)
        for files in bins_of(work.files, layout.target_bytes, partition_of)
        if any(file.path in new for file in files)
    ]
    changes = layout.for_changes() if work.changes else layout
    found += [(changes, files) for files in bins_of(work.changes, layout.target_bytes, partition_of)]
    chosen, left = [], MOST_BYTES
    for each, files in sorted(found, key=lambda one: _bytes(one[1])):
        left -= _bytes(files)
        if left < 0:
            break
        chosen.append((each, files))
    return chosen


def _bytes(files: Sequence[StagedFile]) -> int:
    return sum(file.size_bytes for file in files)


def _fingerprint(files: Sequence[StagedFile]) -> str:
    """What says which files are joined: each has a name that no other ever had."""
    return hashlib.sha256("\n".join(sorted(file.path for file in files)).encode()).hexdigest()
