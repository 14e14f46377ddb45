"""The files of one version as levels, so that the next version costs as much as its changes.

A level is an immutable table of files and, per chunk of it, the rows that later commits removed. A new version shares
the tables of the one before, hides the files that its commits name and puts its own files on top as another level.
Levels are merged as in a log-structured tree (a level is at least twice as large as the one above it), so there are few
of them and a file is copied a logarithmic number of times. Statistics are compressed (`log.columns.pack`) until they
are needed, one chunk at a time; parsed bounds are kept (`statistics.KeptBounds`).

The invariant: a visible row is the newest action of its key, so a key is visible at most once. Versions are values:
nothing that a reader can see ever changes. Any number of threads may use one; what is computed on first use may be
computed twice.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.columns import PackedBatch, Packing
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, KeptBounds
from airflow_txlog.engine.table.predicate import FileQuestion
from airflow_txlog.engine.table.snapshot.files import file_keys, path_of_key
from airflow_txlog.storage.limits import USUAL, Limits

# The index of a large level costs as much as about ten scans. Reading a table takes one scan; a process that keeps
# refreshing gets an index.
_LOOKS_WITHOUT_INDEX = 3
# The caller compares the paths of so few files sooner than an index of them is built.
_FEW_FILES = 16

Hidden = Mapping[int, frozenset[int]]
"""Removed rows, by number of chunk and position in it."""


class _Rows:
    """An immutable table of files, in chunks, with a sorted array of 64-bit hashes of the paths, twelve bytes a row."""

    def __init__(self, chunks: list[PackedBatch], root: str, limits: Limits) -> None:
        self.chunks = chunks
        self.root = root
        self.limits = limits
        self._looks = 0

    @cached_property
    def starts(self) -> list[int]:
        """The start of each chunk, and the number of rows."""
        return list(accumulate((chunk.light.num_rows for chunk in self.chunks), initial=0))

    @property
    def count(self) -> int:
        return self.starts[-1]

    def at_paths(self, paths: Collection[str]) -> list[int]:
        """Return the ascending row numbers of files that may be at these canonical paths."""
        if not paths or not self.count:
            return []
        if self.count <= max(len(paths), _FEW_FILES):
            # To look up each of them takes longer.
            return list(range(self.count))
        self._looks += 1
        is_large = self.count > self.limits.indexed_files
        if is_large and self._looks <= _LOOKS_WITHOUT_INDEX and "_index" not in self.__dict__:
            return self._looked_through(paths)
        hashes, order = self._index
        found = [
            order[position]
            for wanted in map(hash, paths)
            for position in range(bisect_left(hashes, wanted), bisect_right(hashes, wanted))
        ]
        return sorted(set(found))

    def take(self, rows: list[int], *, full: bool = False) -> pa.Table:
        """Return these rows (ascending), with their statistics if `full`."""
        parts = []
        for number, positions in self.by_chunk(rows).items():
            chunk = self.chunks[number].full() if full else self.chunks[number].with_paths()
            is_whole = len(positions) == chunk.num_rows
            parts.append(chunk if is_whole else chunk.take(pa.array(positions, pa.int64())))
        return pa.Table.from_batches(parts, self.chunks[0].light.schema)

    def by_chunk(self, rows: list[int]) -> dict[int, list[int]]:
        """Return ascending row numbers as positions in their chunks."""
        if len(self.chunks) == 1:
            return {0: rows} if rows else {}
        found: dict[int, list[int]] = {}
        for row in rows:
            chunk = bisect_right(self.starts, row) - 1
            found.setdefault(chunk, []).append(row - self.starts[chunk])
        return found

    def _looked_through(self, paths: Collection[str]) -> list[int]:
        wanted = pa.array(paths, pa.string())
        found: list[int] = []
        for start, chunk in zip(self.starts, self.chunks, strict=False):
            same = pc.is_in(canonical_paths(chunk.with_paths().column("path"), self.root), value_set=wanted)
            if same.true_count:
                found += (start + position for position in pc.indices_nonzero(same).to_pylist())
        return found

    @cached_property
    def _index(self) -> tuple[memoryview[int], memoryview[int]]:
        """The ascending hashes, and the row number of each."""
        hashes = array("q")
        for chunk in self.chunks:
            hashes.extend(map(hash, canonical_paths(chunk.with_paths().column("path"), self.root).to_pylist()))
        unsorted = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
        order = pc.array_sort_indices(unsorted)
        ascending = unsorted.take(order)
        # Views, without a Python object a number. The arrays were just made: they have no nulls and no offset.
        return _bytes(ascending).cast("q"), _bytes(order.cast(pa.uint32())).cast("I")


def _bytes(numbers: pa.Array) -> memoryview[int]:
    return memoryview(numbers.buffers()[1]).cast("B")[: len(numbers) * numbers.type.bit_width // 8]


@dataclass(frozen=True, slots=True)
class _Level:
    rows: _Rows
    hidden: Hidden = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.rows.count - sum(map(len, self.hidden.values()))

    def rows_of(self, keys: Collection[str], paths: Collection[str]) -> list[int]:
        """Return the visible rows with one of these keys; `paths` are the keys' paths."""
        rows = self._visible(self.rows.at_paths(paths))
        if not rows:
            return rows
        found = file_keys(self.rows.take(rows), self.rows.root).to_pylist()
        return [row for row, key in zip(rows, found, strict=True) if key in keys]

    def at_paths(self, paths: Collection[str]) -> pa.Table:
        """Return the visible rows at these canonical paths."""
        rows = self._visible(self.rows.at_paths(paths))
        if not rows:
            return pa.Table.from_batches([], self.rows.chunks[0].light.schema)
        taken = self.rows.take(rows, full=True)
        found = canonical_paths(taken.column("path"), self.rows.root)
        return taken.filter(pc.is_in(found, value_set=pa.array(paths, pa.string())))

    def without(self, rows: list[int]) -> _Level:
        if not rows:
            return self
        hidden = dict(self.hidden)
        for chunk, positions in self.rows.by_chunk(rows).items():
            hidden[chunk] = hidden.get(chunk, frozenset()).union(positions)
        return _Level(self.rows, hidden)

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the chunks with visible rows."""
        for number, chunk in enumerate(self.rows.chunks):
            hidden = self.hidden.get(number, frozenset())
            if len(hidden) < chunk.light.num_rows:
                yield _Chunk(chunk, hidden, self.rows.limits.cut_files)

    def _visible(self, rows: list[int]) -> list[int]:
        if not self.hidden:
            return rows
        starts, hidden = self.rows.starts, self.hidden
        by_chunk = self.rows.by_chunk(rows).items()
        return [starts[chunk] + each for chunk, some in by_chunk for each in some if each not in hidden.get(chunk, ())]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The visible rows of one chunk."""

    packed: PackedBatch
    hidden: frozenset[int]
    most_cuts: int

    @property
    def count(self) -> int:
        return int(self.packed.light.num_rows) - len(self.hidden)

    def light(self) -> list[pa.RecordBatch]:
        """Return the rows in batches, without packed columns, with as few copies as possible."""
        return _cut(self.packed.light, self.hidden, self.most_cuts)

    def with_paths(self) -> list[pa.RecordBatch]:
        """Return the same batches with their paths."""
        return _cut(self.packed.with_paths(), self.hidden, self.most_cuts)

    def full(self) -> list[pa.RecordBatch]:
        """Return the same batches with their statistics."""
        return _cut(self.packed.full(), self.hidden, self.most_cuts)

    def visible(self, found: ColumnBounds) -> ColumnBounds:
        """Return the bounds of the visible rows among those of all rows."""
        if not self.hidden:
            return found
        shown = _shown(self.packed.light.num_rows, self.hidden)
        return found.map(lambda array: array.filter(shown))


def _cut(batch: pa.RecordBatch, hidden: frozenset[int], most_cuts: int) -> list[pa.RecordBatch]:
    if not hidden:
        return [batch]
    if len(hidden) > most_cuts:
        return [batch.filter(_shown(batch.num_rows, hidden))]
    edges = pairwise([-1, *sorted(hidden), batch.num_rows])
    return [batch.slice(before + 1, after - before - 1) for before, after in edges if after - before > 1]


def _shown(rows: int, hidden: frozenset[int]) -> pa.BooleanArray:
    gone = pa.array(sorted(hidden), pa.int64())
    return pc.invert(pc.is_in(pa.array(range(rows), pa.int64()), value_set=gone))


class FileIndex:
    """Files of one version, each once: the live ones (schema `FILES`) or the removed ones (schema `TOMBSTONES`)."""

    def __init__(
        self,
        schema: pa.Schema,
        levels: tuple[_Level, ...] = (),
        kept_bounds: KeptBounds | None = None,
        limits: Limits = USUAL,
    ) -> None:
        self._limits = limits
        self._schema = schema
        self._levels = levels
        # Versions share parsed bounds.
        self._kept_bounds = kept_bounds or KeptBounds()
        self._last_table: weakref.ref[pa.Table] | None = None

    @staticmethod
    def of(files: pa.Table, root: str, limits: Limits = USUAL) -> FileIndex:
        """Return the index of files with distinct keys, of the table at `root`."""
        return FileIndex.of_packed(files.schema, list(map(Packing(limits), files.to_batches())), root, limits)

    @staticmethod
    def of_packed(schema: pa.Schema, chunks: list[PackedBatch], root: str, limits: Limits = USUAL) -> FileIndex:
        """Return the index of packed batches of such files."""
        chunks = [chunk for chunk in chunks if chunk.light.num_rows]
        return FileIndex(schema, (_Level(_Rows(chunks, root, limits)),) if chunks else (), limits=limits)

    @cached_property
    def count(self) -> int:
        return sum(level.count for level in self._levels)

    @property
    def table(self) -> pa.Table:
        """All files, with their statistics, built on use and kept only while it is referenced."""
        known = None if self._last_table is None else self._last_table()
        if known is None:
            known = pa.Table.from_batches([each for chunk in self._chunks() for each in chunk.full()], self._schema)
            self._last_table = weakref.ref(known)
        return known

    def select(self, columns: Sequence[str] | None) -> pa.Table:
        """Return all files with these columns (None: all); statistics and paths are unpacked only if needed."""
        if columns is None or "stats" in columns:
            return self.table if columns is None else self.table.select(list(columns))
        batches = (chunk.with_paths() if "path" in columns else chunk.light() for chunk in self._chunks())
        selected = [each.select(list(columns)) for some in batches for each in some]
        return pa.Table.from_batches(selected, pa.schema([self._schema.field(name) for name in columns]))

    def where(self, question: FileQuestion, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the files that may hold a match, in no order, with these columns (None: all).

        If the partition values leave at least half of a group of about 100,000 files, the bounds of all of it are
        parsed and kept for the next predicate; otherwise only those of the files left.
        """
        needs_statistics = columns is None or "stats" in columns
        found: list[pa.Table] = []
        for group in self._groups():
            light = pa.Table.from_batches([each for chunk in group for each in chunk.light()], self._schema)
            kept = question.by_partitions(light)
            packed = [chunk.packed for chunk in group]
            if not kept.true_count or not question.columns:
                found += _chosen(group, kept, needs_statistics)
            elif 2 * kept.true_count >= len(kept) or self._kept_bounds.knows(packed, question.schema, question.columns):
                left = light if kept.true_count == len(kept) else light.filter(kept)
                answers = question.by_bounds(left, self._bounds(group, kept, question))
                found += _chosen(group, pc.replace_with_mask(kept, kept, answers), needs_statistics)
            else:
                left = pa.concat_tables(_chosen(group, kept, True))
                found.append(left.filter(question.by_statistics(left)))
        together = pa.concat_tables(found) if found else self._schema.empty_table()
        return together if columns is None else together.select(list(columns))

    def _bounds(self, group: list[_Chunk], kept: pa.BooleanArray, question: FileQuestion) -> dict[str, ColumnBounds]:
        """Return the bounds of the kept rows of these chunks, by column."""
        found = self._kept_bounds.of([chunk.packed for chunk in group], question.schema, question.columns)
        together = {
            name: ColumnBounds.joined([chunk.visible(each[name]) for chunk, each in zip(group, found, strict=True)])
            for name in question.columns
        }
        if kept.true_count == len(kept):
            return together
        return {name: each.map(lambda array: array.filter(kept)) for name, each in together.items()}

    def at_paths(self, paths: Collection[str]) -> pa.Table:
        """Return the files at these canonical paths, at a cost that depends on their number only."""
        return pa.Table.from_batches(
            [each for level in self._levels for each in level.at_paths(paths).to_batches()], self._schema
        )

    def after(self, keys: Collection[str], new: pa.Table | list[PackedBatch], root: str) -> FileIndex:
        """Return the files after commits that named `keys` and added `new` files here."""
        if not keys:
            return self
        paths = {path_of_key(key) for key in keys} if self._levels else set()
        levels = [level.without(level.rows_of(keys, paths)) for level in self._levels]
        packed = Packing(self._limits, sum(level.count for level in levels))
        chunks = new if isinstance(new, list) else list(map(packed, new.to_batches()))
        chunks = [chunk for chunk in chunks if chunk.light.num_rows]
        if chunks:
            levels.append(_Level(_Rows(chunks, root, self._limits)))
        return FileIndex(self._schema, tuple(_merged(levels)), self._kept_bounds, self._limits)

    def _chunks(self) -> Iterator[_Chunk]:
        for level in self._levels:
            yield from level.chunks()

    def _groups(self) -> Iterator[list[_Chunk]]:
        """Yield the chunks, small ones together, because a question costs at least a millisecond."""
        group: list[_Chunk] = []
        for chunk in self._chunks():
            group.append(chunk)
            if sum(each.count for each in group) >= self._limits.asked_files:
                yield group
                group = []
        if group:
            yield group


def _chosen(group: list[_Chunk], kept: pa.BooleanArray, full: bool) -> list[pa.Table]:
    """Return the kept rows of these chunks, with statistics if `full`; chunks without any stay packed."""
    parts, start = [], 0
    for chunk in group:
        chosen = kept.slice(start, chunk.count)
        start += chunk.count
        if chosen.true_count:
            whole = pa.Table.from_batches(chunk.full() if full else chunk.with_paths())
            parts.append(whole if chosen.true_count == chunk.count else whole.filter(chosen))
    return parts


def _merged(levels: list[_Level]) -> list[_Level]:
    """Return the files in levels each at least twice as large as the next, none of them mostly hidden."""
    merged: list[_Level] = []
    for level in levels:
        if not level.count:
            continue
        if 2 * level.count < level.rows.count:
            level = _joined([level], merged)
        while merged and 2 * level.count > merged[-1].count:
            level = _joined([merged.pop(), level], merged)
        merged.append(level)
    return merged


def _joined(levels: list[_Level], below: list[_Level]) -> _Level:
    """Return one level of the same files, with small chunks joined so that there are never thousands."""
    chunks: list[PackedBatch] = []
    small: list[pa.RecordBatch] = []
    rows, root, limits = 0, levels[0].rows.root, levels[0].rows.limits
    packed = Packing(limits, sum(level.count for level in below))
    for chunk in (each for level in levels for each in level.chunks()):
        if chunk.count >= limits.chunk_files and not chunk.hidden:
            chunks.append(chunk.packed)
            packed.num_files += chunk.count
            continue
        small += chunk.full()
        rows += chunk.count
        if rows >= limits.chunk_files:
            chunks.append(packed(pa.concat_batches(small)))
            small, rows = [], 0
    if small:
        chunks.append(packed(pa.concat_batches(small)))
    return _Level(_Rows(chunks, root, limits))
