"""The findings and staged files of a job so far, and the part of them that still holds on a newer version of the table.

A *scan* is remembered for every examined file, touched or not, with all matches in its rows. Everything global (which
source rows matched nothing, counts, ambiguity) is derived again from the scans of the files that are now live, never
patched. A *segment* is files that were staged together from some inputs, kept or dropped as a whole.

The invariants: a run from the start on the new version, with the same materialized inputs, would find and stage every
kept part again, row for row. So a segment lives by path *and deletion vector* of each of its inputs. A scan, whose
positions belong to the immutable file, survives a vector that only grew, less the rows that it now deletes. And two
versions have the same `TableRules` unless their only differences are listed as harmless, because rows were
checked, computed and laid out under the rules of their version. Pure: no Spark, no store. Source: soundness, section 0,
A1, A17, A18, B2.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow.compute as pc

from airflow_txlog.contract.wording import files_text
from airflow_txlog.datafiles.deletion_vectors.positions import POSITION, covers, difference, pack_pairs, unpack_pairs
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.parquet.judging import Judged, together
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustering_columns
from airflow_txlog.engine.commit.content.met import NONE_MET, How, Meeting, Meetings
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.features import HARMLESS_FEATURES, reader_features, writer_features
from airflow_txlog.engine.table.schema.identities import without_marks
from airflow_txlog.engine.table.schema.properties import HARMLESS_PROPERTIES
from airflow_txlog.jobs.context import LogContext

COPY = "copy"
IMAGES = "images"
INSERTS = "inserts"
ROWS = "rows"
BIN = "bin"
VECTORS = "vectors"
CHANGES = "changes"
JOINED = "joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A data file of the present version: its canonical path, and the id and the bytes of its deletion vector."""

    path: str
    vector: str | None = None
    deleted: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMatches:
    """All matches that one scan of a file found.

    `rows`: for each clause, the rows it acts on that met no source row. `pairs`: those that met one (`pack_pairs`).
    """

    rows: Mapping[int, RowPositions] = field(default_factory=dict)
    pairs: bytes = b""


NOTHING = FileMatches()
"""The matches of a file in which no row matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One scan of a file that had this deletion vector, and its matches."""

    vector: str | None = None
    deleted: bytes | None = None
    matches: FileMatches = NOTHING

    @classmethod
    def of(cls, file: LiveFile, matches: FileMatches) -> Scan:
        """Return the scan of a file as it is now."""
        if file.vector is None and matches is NOTHING:
            # Most scans of a large table share this object.
            return _FOUND_NOTHING
        return cls(vector=file.vector, deleted=file.deleted, matches=matches)


_FOUND_NOTHING = Scan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Files that were staged together; none if their inputs gave no row.

    `inputs` are the keys (`file_key`) of the files whose rows are in it, `fingerprint` everything else that decided.
    `judged` counts the rows that the expectations judged.
    """

    kind: str
    inputs: frozenset[str]
    fingerprint: str = ""
    files: tuple[StagedFile, ...] = ()
    judged: Judged = field(default_factory=Judged)

    @property
    def num_records(self) -> int:
        return sum(file.num_records for file in self.files)


@dataclass(kw_only=True)
class Memory:
    """The memory of one job, for all of its attempts and tries. Used by one thread."""

    rules: TableRules | None = None
    scans: dict[str, Scan] = field(default_factory=dict)
    """By canonical path."""
    segments: list[Segment] = field(default_factory=list)
    dropped: list[StagedFile] = field(default_factory=list)
    """Staged once, and no longer to be committed. No process may delete them before the fate of every commit that may
    name them is known.
    """
    parts: list[StagedFile] = field(default_factory=list)
    """Files of segments that this attempt commits joined into one. Another attempt may join others."""
    met: Meetings = NONE_MET
    """What the attempts and tries so far have met, and how much of their work was kept."""
    num_recalled: int = 0
    """The files that this attempt did not have to scan again."""
    num_scanned: int = 0
    _lost_to: Meeting | None = None
    _staged_before: frozenset[str] = frozenset()

    def lost(self, to: Meeting) -> None:
        """Remember what ended an attempt or a try. `settle` adds how much of the work the next one keeps."""
        if self._lost_to is not None:
            self.met = self.met.and_(self._lost_to)
        self._lost_to = to
        self._staged_before = frozenset(file.path for _, file in self._parts())
        self.num_recalled = self.num_scanned = 0

    def settle(self) -> None:
        """Add what was lost last to `met`, with what is kept of the work before and what was done again since."""
        if self._lost_to is None:
            return
        held = self._parts()
        kept = [file for _, file in held if file.path in self._staged_before]
        new = [(kind, file) for kind, file in held if file.path not in self._staged_before]
        # Vectors that grew hide other rows of the very files that the winner changed.
        is_of_vectors = bool(new) and all(kind == VECTORS for kind, _ in new) and not self.num_scanned
        is_disjoint = self._lost_to.how == How.REDONE and is_of_vectors
        self.met = self.met.and_(
            msgspec.structs.replace(
                self._lost_to,
                how=How.DISJOINT_ROWS if is_disjoint else self._lost_to.how,
                kept_files=len(kept),
                kept_rows=sum(file.num_records for file in kept),
                kept_bytes=sum(file.size_bytes for file in kept),
                kept_scans=self.num_recalled,
                redone_files=len(new),
                redone_rows=sum(file.num_records for _, file in new),
                redone_bytes=sum(file.size_bytes for _, file in new),
                redone_scans=self.num_scanned,
            )
        )
        self._lost_to = None

    def _parts(self) -> list[tuple[str, StagedFile]]:
        """Return the files of all segments, each with its kind, and the parts of a joined file in place of it."""
        return [(segment.kind, file) for segment in self.segments if segment.kind != JOINED for file in segment.files]

    def begin(self, rules: TableRules) -> bool:
        """Start an attempt under these rules; return whether the memory holds, else forget it (soundness A18)."""
        holds = self.rules is None or still_holds(self.rules, rules)
        if not holds:
            self.forget()
        self.rules = rules
        return holds

    def drop_lost(self, paths: Collection[str]) -> None:
        """Drop the segments with a file at one of these store paths: such files are gone, and are staged again."""
        lost = [segment for segment in self.segments if any(file.store_path in paths for file in segment.files)]
        self.segments = [segment for segment in self.segments if segment not in lost]
        self._drop(lost)

    def forget(self) -> None:
        self.scans.clear()
        self._drop(self.segments)
        self.segments = []

    def remember(self, file: LiveFile, matches: FileMatches) -> None:
        """Remember the matches of a scan of the whole file, without the rows that its vector deletes."""
        self.scans[file.path] = Scan.of(file, matches)

    def recall(self, file: LiveFile) -> FileMatches | None:
        """Return the matches that a scan of the file would find now; None if it must be scanned again."""
        scan = self.scans.get(file.path)
        if scan is None:
            return None
        if scan.vector == file.vector:
            return scan.matches
        if not _covers(file.deleted, scan.deleted):
            # Rows came back that no scan has covered.
            return None
        return _without(scan.matches, file.deleted)

    def keep(self, kind: str, inputs: Collection[str], fingerprints: Collection[str] = ("",)) -> list[Segment]:
        """Return the segments of this kind that still hold, and drop all others of it.

        A segment holds if its inputs are among `inputs`, the keys of live files to stage so, and its fingerprint is
        wanted.
        """
        wanted = frozenset(inputs)
        kept: list[Segment] = []
        others: list[Segment] = []
        for segment in self.segments:
            if segment.kind != kind:
                others.append(segment)
            elif segment.inputs <= wanted and segment.fingerprint in fingerprints:
                kept.append(segment)
            else:
                self._drop([segment])
        self.segments = [*others, *kept]
        return kept

    def add(self, segments: Iterable[Segment]) -> None:
        self.segments.extend(segments)

    @property
    def judged(self) -> Judged:
        """How the new rows of all segments were judged."""
        return together(segment.judged for segment in self.segments)

    def staged_files(self) -> list[StagedFile]:
        """Return the files of all segments, kept and dropped."""
        return [*(file for segment in self.segments for file in segment.files), *self.dropped]

    def leftovers(self) -> list[StagedFile]:
        """Return the staged files that are not in the commit, once this attempt has committed."""
        return [*self.dropped, *self.parts]

    def _drop(self, segments: Iterable[Segment]) -> None:
        self.dropped.extend(file for segment in segments for file in segment.files)


def log_reuse(
    context: LogContext, memory: Memory, earlier: Collection[Segment], unused: Collection[StagedFile]
) -> None:
    """Log which segments of `earlier` attempts are used, and how much of their files (`unused`) is not."""
    kept = [file for one in earlier if any(one is each for each in memory.segments) for file in one.files]
    if kept:
        context.log(f"reused what was staged before: {files_text([file.size_bytes for file in kept])}")
    if unused:
        context.log(
            f"not used of what was staged before: {files_text([file.size_bytes for file in unused])}, as the rows that "
            "they were made of have changed since"
        )


def _covers(deleted: bytes | None, before: bytes | None) -> bool:
    if before is None:
        return True
    if deleted is None:
        return False
    return covers(RowPositions(deleted, "of the table"), RowPositions(before, "of an earlier look"))


def _without(matches: FileMatches, deleted: bytes | None) -> FileMatches:
    if deleted is None or matches is NOTHING:
        return matches
    gone = RowPositions(deleted, "of the table")
    left = {number: RowPositions(difference(rows, gone), rows.source) for number, rows in matches.rows.items()}
    pairs = unpack_pairs(matches.pairs)
    left_pairs = pairs.filter(pc.invert(pc.is_in(pairs.column(POSITION), value_set=gone.positions())))
    return FileMatches(
        rows={number: rows for number, rows in left.items() if rows.num_rows},
        pairs=matches.pairs if left_pairs.num_rows == pairs.num_rows else pack_pairs(left_pairs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The parts of a version's protocol and metadata that apply to rows. `still_holds` compares two."""

    table_id: str
    reader_features: frozenset[str]
    writer_features: frozenset[str]
    schema: str
    """The schema's JSON with sorted keys, without the high-water marks of identity columns."""
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    """Those that are not harmless."""
    clustering: tuple[tuple[str, ...], ...] = ()
    """The clustering columns, as paths of physical names: new files need their statistics."""


def rules_at(snapshot: Snapshot) -> TableRules:
    clustering = clustering_columns(snapshot.state.domains.values(), snapshot.uri)
    return replace(rules_of(snapshot.protocol, snapshot.metadata), clustering=clustering)


def rules_of(protocol: Protocol, metadata: Metadata) -> TableRules:
    """Return the rules that the protocol and the metadata of a version define; `rules_at` also knows its domains."""
    return TableRules(
        table_id=metadata.id,
        reader_features=reader_features(protocol),
        writer_features=writer_features(protocol),
        schema=json.dumps(without_marks(json.loads(metadata.schema_string or "null")), sort_keys=True),
        partition_columns=tuple(metadata.partition_columns),
        properties={k: v for k, v in metadata.configuration.items() if k not in HARMLESS_PROPERTIES},
    )


def still_holds(before: TableRules, now: TableRules) -> bool:
    """Return whether rows staged under the rules `before` may be committed under the rules `now`."""
    same = replace(now, reader_features=before.reader_features, writer_features=before.writer_features)
    features = ((before.reader_features, now.reader_features), (before.writer_features, now.writer_features))
    return before == same and all(old <= new and new - old <= HARMLESS_FEATURES for old, new in features)
