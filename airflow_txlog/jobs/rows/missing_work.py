"""The work that an attempt must stage, the numbers of its segments, and the segments of the staged files.

Buckets of inserts have the first numbers, then groups of images, of change rows, and of files that are copied into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_txlog.datafiles.parquet.judging import Judged, together
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.resume.memory import CHANGES, COPY, IMAGES, INSERTS, Segment


@dataclass(frozen=True, kw_only=True)
class LeavingRows:
    """The rows that leave their files: a plan with their positions, the files (rows of a table `FILES`), their keys.

    A file that leaves as a whole has no positions.
    """

    plan: FilePlan
    files: pa.Table
    keys: list[str]


@dataclass(frozen=True, kw_only=True)
class MissingWork:
    """The work that no segment in memory holds: plan rows to copy, groups of plan rows with new images, buckets.

    Each of the groups `joint` is copied into one file. With change files, `leaving` has all rows that leave
    their files, and `changes` the groups of its files without change rows.
    """

    copies: list[int]
    images: list[list[int]]
    inserts: Mapping[int, str]
    leaving: LeavingRows | None
    changes: list[list[int]]
    joint: list[list[int]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.copies or self.joint or self.images or self.inserts or self.changes)

    @property
    def first_image(self) -> int:
        """The segment of the first group of images: buckets come before the groups."""
        return 1 + max(self.inserts, default=-1)

    @property
    def first_change(self) -> int:
        """The segment of the first group of change rows."""
        return self.first_image + len(self.images)

    @property
    def first_joint(self) -> int:
        """The segment of the first group that is copied into one file."""
        return self.first_change + len(self.changes)

    @property
    def segment_of_images(self) -> dict[int, int]:
        """The segment of each plan row whose new images are missing."""
        return _numbered(self.images, self.first_image)

    @property
    def segment_of_joint(self) -> dict[int, int]:
        """The segment of each plan row that is copied into one file with others."""
        return _numbered(self.joint, self.first_joint)

    def leaving_plan(self) -> FilePlan | None:
        """Return the leaving rows of which no segment has change rows; None if there are none."""
        if self.leaving is None or not self.changes:
            return None
        segment_of = _numbered(self.changes, self.first_change)
        rows = sorted(segment_of)
        return self.leaving.plan.take(rows).with_column("segment", [segment_of[row] for row in rows])

    def segments(
        self,
        staged: Sequence[StagedFile],
        judged: Sequence[Judged],
        keys: Mapping[int, str],
        carries: str,
        in_place: str,
    ) -> list[Segment]:
        """Return the staged files as segments, also segments without a file, so that they are not staged again.

        `keys`: those of the plan's rows. `carries`: the fingerprint of copies and images; `in_place`: that of images
        with the other rows of their file.
        """
        copies: dict[int, list[StagedFile]] = {row: [] for row in self.copies}
        new: dict[int, list[StagedFile]] = {}
        beside: dict[int, StagedFile] = {}
        for file in staged:
            if file.source is not None and file.num_kept is not None:
                beside[file.source] = file
                copies.pop(file.source, None)
            elif file.source is not None:
                copies[file.source].append(file)
            else:
                new.setdefault(file.segment or 0, []).append(file)
        leaving = {} if self.leaving is None else dict(enumerate(self.leaving.keys))
        joint = enumerate(self.joint, self.first_joint)
        groups = (
            *((COPY, carries, keys, [row], files, None) for row, files in copies.items()),
            *((IMAGES, in_place, keys, [row], [file], None) for row, file in beside.items()),
            *(
                (IMAGES, carries, keys, [row for row in group if row not in beside], new.get(number, ()), number)
                for number, group in enumerate(self.images, self.first_image)
            ),
            *((COPY, carries, keys, group, new.get(n, ()), None) for n, group in joint),
            *(
                (CHANGES, "", leaving, group, new.get(number, ()), None)
                for number, group in enumerate(self.changes, self.first_change)
            ),
        )
        # Each task that wrote rows of a segment has counted its own.
        counts: dict[int | None, list[Judged]] = {}
        for each in judged:
            counts.setdefault(each.segment or 0, []).append(each)
        return [
            *(
                Segment(
                    kind=kind,
                    inputs=frozenset(names[row] for row in group),
                    fingerprint=fingerprint,
                    files=tuple(files),
                    judged=together(counts.get(number, ())),
                )
                for kind, fingerprint, names, group, files, number in groups
            ),
            *(
                Segment(
                    kind=INSERTS,
                    inputs=frozenset(),
                    fingerprint=fingerprint,
                    files=tuple(new.get(bucket, ())),
                    judged=together(counts.get(bucket, ())),
                )
                for bucket, fingerprint in self.inserts.items()
            ),
        ]


def _numbered(groups: Sequence[Sequence[int]], first: int) -> dict[int, int]:
    """Return the segment of each row of the groups."""
    return {row: first + number for number, group in enumerate(groups) for row in group}
