"""Matches in the rows of a plan's files: the source row that each row met, and the clause that acts on it.

They stay packed as the tasks sent them, and are unpacked for one file at a time, unless they are few: the driver holds
a few bytes of each pair. The invariant: these are *all* raw matches, also those on which no clause acts, because they
decide about ambiguity and inserts. All counts and staged files of an operation are derived from them. Source:
soundness, section 0, A1.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.deletion_vectors.positions import (
    CLAUSE,
    PAIRS,
    POSITION,
    SOURCE_ROW,
    pack,
    pack_pairs,
    places_of_different,
    united_pairs,
    unpack_pairs,
    whole,
)
from airflow_txlog.datafiles.deletion_vectors.rows import RowPositions
from airflow_txlog.datafiles.tasks.found_rows import FILE_COLUMN, PACKED_SCHEMA, PAIRS_COLUMN, packed_rows, united
from airflow_txlog.datafiles.tasks.scan_and_write import CLAUSE_COLUMN, gathered
from airflow_txlog.jobs.files.scan import FilePlan
from airflow_txlog.jobs.resume.memory import FileMatches


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """Rows of the files of one plan, by the plan's row number, and the clause that acts on them.

    `clauses`: of files in which one clause acts on all of the rows. `pairs`: of the others, packed, for each position
    the source row (or null) and the clause. `acting` are all clauses that act.
    """

    positions: Mapping[int, RowPositions] = field(default_factory=dict)
    clauses: Mapping[int, int] = field(default_factory=dict)
    pairs: Mapping[int, bytes] = field(default_factory=dict)
    acting: frozenset[int] = frozenset()

    @property
    def num_rows(self) -> int:
        return sum(positions.num_rows for positions in self.positions.values())

    def partly(self, scanned: FilePlan) -> list[int]:
        """Return the files that keep some row; a file that keeps none is removed, not copied."""
        counts = scanned.live_row_counts()
        return [number for number, positions in self.positions.items() if counts[number] != positions.num_rows]

    def plan(self, scanned: FilePlan, rows: Iterable[int] | None = None) -> FilePlan:
        """Return the plan of the files with found rows (or of `rows` among them), with their positions."""
        numbers = sorted(self.positions if rows is None else rows)
        return scanned.take(numbers).with_column("positions", [self.positions[number].data for number in numbers])

    def plan_with_clauses(self, scanned: FilePlan, rows: Iterable[int] | None = None) -> FilePlan:
        """Return the same with the source row and the clause of each position."""
        numbers = sorted(self.positions if rows is None else rows)
        pairs = [self.pairs.get(number) for number in numbers]
        clauses = [self.clauses.get(number) for number in numbers]
        return self.plan(scanned, numbers).with_column("pairs", pairs).with_column("clause", clauses)


def files_outside(files: pa.Table, found: Iterable[int]) -> pa.Table:
    """Return the files (rows of a table) whose row numbers are not among `found`."""
    rows = pa.array(list(found), pa.int64())
    if not len(rows):
        return files
    numbers = pa.array(range(files.num_rows), pa.int64())
    return files.filter(pc.invert(pc.is_in(numbers, value_set=rows)))


# The numbers of source rows that are sorted at once.
_AT_ONCE = 1_000_000
# The most pairs that stay unpacked, of 20 bytes each.
_UNPACKED_PAIRS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SourceRowSet:
    """Distinct numbers of source rows: a bitmap for each part of the source (see `positions`)."""

    parts: Mapping[int, RowPositions] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(rows.num_rows for rows in self.parts.values())

    def fingerprints(self, buckets: int) -> list[str]:
        """Return a digest of the set's rows in each of `buckets` buckets of source rows."""
        digests = [hashlib.sha256() for _ in range(buckets)]
        for part, rows in sorted(self.parts.items()):
            digests[part % buckets].update(f"{part}\n{len(rows.data)}\n".encode() + rows.data)
        return [digest.hexdigest() for digest in digests]


@dataclass(frozen=True, kw_only=True)
class Matches:
    """The matches in all files of one plan, by its row numbers; a file without any may be missing."""

    files: Mapping[int, FileMatches] = field(default_factory=dict)
    _unpacked: dict[int, pa.Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of_clause(cls, number: int, rows: Mapping[int, RowPositions]) -> Matches:
        """Return the matches of an operation without a source: one clause acts on all of these rows, by file."""
        return cls(files={file: FileMatches(rows={number: found}) for file, found in rows.items()})

    @classmethod
    def of_packed(cls, found: pa.Table) -> Matches:
        """Return the matches in a collected table PAIRS_SCHEMA."""
        are_pairs = found.column(PAIRS_COLUMN).is_valid()
        parts: dict[int, list[bytes]] = {}
        columns = (found.filter(are_pairs).column(name).to_pylist() for name in (FILE_COLUMN, PAIRS_COLUMN))
        for file, data in zip(*columns, strict=True):
            parts.setdefault(file, []).append(data)
        pairs = {file: united_pairs(of_file) for file, of_file in parts.items()}
        others = found.filter(pc.invert(are_pairs))
        rows: dict[int, dict[int, RowPositions]] = {}
        for number in pc.unique(others.column(CLAUSE_COLUMN)).to_pylist():
            of_clause = others.filter(pc.equal(others.column(CLAUSE_COLUMN), number)).select(PACKED_SCHEMA.names)
            for file, bitmap in united(of_clause).items():
                rows.setdefault(file, {})[number] = bitmap
        files = sorted({*pairs, *rows})
        return cls(files={file: FileMatches(rows=rows.get(file, {}), pairs=pairs.get(file, b"")) for file in files})

    def acted(self, numbers: Collection[int] | None = None) -> FoundRows:
        """Return the rows on which one of these clauses acts (None: any), by file."""
        positions: dict[int, RowPositions] = {}
        clauses: dict[int, int] = {}
        pairs: dict[int, bytes] = {}
        of_all = set[int]()
        for index, found in sorted(self.files.items()):
            alone = {number: rows for number, rows in found.rows.items() if numbers is None or number in numbers}
            of_all.update(alone)
            if len(alone) == 1 and not found.pairs:
                [(clauses[index], positions[index])] = alone.items()
                continue
            all_met = self._pairs_in(index)
            met = _acting(all_met, numbers)
            if len(alone) == 1 and not met.num_rows:
                [(clauses[index], positions[index])] = alone.items()
            elif alone or met.num_rows:
                acting = pa.concat_tables([met, *(_alone(number, rows) for number, rows in alone.items())])
                of_all.update(pc.unique(met.column(CLAUSE)).to_pylist())
                is_all = not alone and met.num_rows == all_met.num_rows
                pairs[index] = found.pairs if is_all else pack_pairs(acting)
                positions[index] = RowPositions(pack(whole(acting.column(POSITION)).sort()), "of found rows")
        return FoundRows(positions=positions, clauses=clauses, pairs=pairs, acting=frozenset(of_all))

    def first(self, most: int, numbers: Collection[int]) -> Matches:
        """Return the matches of the first `most` rows on which one of these clauses acts, and of `most` others."""
        found, left = {}, {True: most, False: most}
        for index, of_file in sorted(self.files.items()):
            rows: dict[int, RowPositions] = {}
            for number, positions in of_file.rows.items():
                head = pa.concat_arrays([pa.array([], pa.int64()), *_head(positions, left[number in numbers])])
                left[number in numbers] -= len(head)
                if len(head):
                    rows[number] = RowPositions(pack(head), "of found rows")
            acting = _acting(unpack_pairs(of_file.pairs), None)
            is_chosen = pc.is_in(acting.column(CLAUSE), pa.array(list(numbers), pa.int32()))
            parts = [
                acting.filter(is_chosen).slice(0, left[True]),
                acting.filter(pc.invert(is_chosen)).slice(0, left[False]),
            ]
            left = {True: left[True] - parts[0].num_rows, False: left[False] - parts[1].num_rows}
            pairs = pa.concat_tables(parts).sort_by(POSITION)
            if rows or pairs.num_rows:
                found[index] = FileMatches(rows=rows, pairs=pack_pairs(pairs) if pairs.num_rows else b"")
        return Matches(files=found)

    def count(self, numbers: Collection[int]) -> int:
        """Return the number of rows on which one of these clauses acts."""
        if not numbers:
            return 0
        alone = (rows.num_rows for found in self.files.values() for n, rows in found.rows.items() if n in numbers)
        return sum(alone) + sum(int(_acting(pairs, numbers).num_rows) for _, pairs in self._pairs())

    def matched_files(self) -> list[int]:
        """Return the plan's row numbers of the files in which any row matched."""
        return sorted(index for index, found in self.files.items() if found.rows or found.pairs)

    @functools.cached_property
    def source_rows(self) -> SourceRowSet:
        """The source rows that matched some target row."""
        return self._source_rows(pairs for _, pairs in self._pairs())

    def source_rows_without(self, numbers: Collection[int]) -> SourceRowSet:
        """Return the source rows that matched some target row on which none of these clauses acts."""
        chosen = pa.array(list(numbers), pa.int32())
        return self._source_rows(
            pairs.filter(pc.invert(pc.is_in(pairs.column(CLAUSE), chosen))) for _, pairs in self._pairs()
        )

    @staticmethod
    def _source_rows(found: Iterable[pa.Table]) -> SourceRowSet:
        numbers = (batch for pairs in found for batch in pairs.select([SOURCE_ROW]).to_batches())
        # Bitmaps of one part, to be united.
        packed = (packed_rows(_distinct(whole(rows.column(0)))) for rows in gathered(numbers, _AT_ONCE))
        return SourceRowSet(parts=united(pa.Table.from_batches(packed, PACKED_SCHEMA)))

    def met_by_many(self) -> tuple[int, tuple[int, int] | None]:
        """Return the number of rows that met several source rows, and the file and the position of the first one."""
        many, first = 0, None
        for index, pairs in sorted(self._pairs(), key=lambda entry: entry[0]):
            positions = whole(pairs.column(POSITION))
            repeated = pc.unique(positions[1:].filter(pc.equal(positions[1:], positions[:-1])))
            if len(repeated):
                many, first = many + len(repeated), first or (index, repeated[0].as_py())
        return many, first

    def _pairs(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the pairs of each file that has some."""
        for index, found in self.files.items():
            if found.pairs:
                yield index, self._pairs_in(index)

    def _pairs_in(self, index: int) -> pa.Table:
        """Return the pairs of a file. Few are kept: they are asked for several times."""
        pairs = self._unpacked.get(index)
        if pairs is None:
            pairs = unpack_pairs(self.files[index].pairs)
            if pairs.num_rows * len(self.files) <= _UNPACKED_PAIRS:
                self._unpacked[index] = pairs
        return pairs


def _distinct(numbers: pa.Int64Array) -> pa.Int64Array:
    """Return the different numbers, in no order, without null."""
    found = places_of_different(numbers, 4 * len(numbers))
    if found is None:
        return pc.unique(numbers).drop_null()
    places, least = found
    return pc.add(pc.indices_nonzero(places.is_valid()).cast(pa.int64()), pa.scalar(least, pa.int64()))


def _head(positions: RowPositions, most: int) -> Iterator[pa.Array]:
    """Yield the first `most` positions."""
    for before, part in positions.parts():
        if before >= most:
            return
        yield part.slice(0, most - before)


def _acting(pairs: pa.Table, numbers: Collection[int] | None) -> pa.Table:
    """Return the pairs of a file on which one of the clauses acts, one for each row."""
    clauses = pairs.column(CLAUSE)
    chosen = pairs.filter(
        clauses.is_valid() if numbers is None else pc.is_in(clauses, pa.array(list(numbers), pa.int32()))
    )
    positions = whole(chosen.column(POSITION))
    # A row occurs twice only in a merge that tolerates many matches, and all of its pairs have the same effect.
    is_first = pa.concat_arrays(
        [pa.array([True] * min(len(positions), 1), pa.bool_()), pc.not_equal(positions[1:], positions[:-1])]
    )
    return chosen if is_first.true_count == len(is_first) else chosen.filter(is_first)


def _alone(number: int, rows: RowPositions) -> pa.Table:
    """Return rows without a source row as pairs."""
    count = rows.num_rows
    return pa.table(
        [rows.positions(), pa.nulls(count, pa.int64()), pa.repeat(pa.scalar(number, pa.int32()), count)], schema=PAIRS
    )
