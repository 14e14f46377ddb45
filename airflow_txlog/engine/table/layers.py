"""The files of one version as layers, so that the next version costs what is new and not what is there.

A layer is an immutable table of files and, per chunk of it, the rows that later commits have taken away. A new version
shares the tables of the one before, hides what its commits speak of and puts their files on top as a layer of their
own. Layers are merged as in a log-structured tree (a layer is at least twice as large as the one above it), so there
are few of them, and a file is copied a logarithmic number of times.

The invariant: a row that is not hidden is the newest word on its key, so one key is visible at most once. Versions are
values: nothing that a reader of one can see is ever changed. Any number of threads may use one; what is computed on
first use may be computed twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.table.files import file_keys, path_of_key

# A chunk with so few hidden rows is cut around them, which copies nothing; one with more is filtered.
_CUTS = 32
# A merged layer of fewer rows becomes one chunk.
_ONE_CHUNK_ROWS = 65_536
# A large layer is looked through so often before it is given an index: reading a table takes one look, and a process
# that goes on refreshing it gets an index that costs as much as some ten looks.
_LOOKS_WITHOUT_INDEX = 3
_SMALL_ROWS = 4096

Hidden = Mapping[int, frozenset[int]]
"""Rows that are no longer there, by number of chunk and position in it."""
_NOTHING: Hidden = {}


class _Rows:
    """An immutable table of files that finds rows by their keys.

    The index is a sorted array of 64-bit hashes of the canonical paths, twelve bytes a row; what it finds is compared
    as text, so that two paths with one hash are still two files.
    """

    def __init__(self, table: pa.Table, root: str) -> None:
        self.table = table
        self.root = root
        self._looks = 0

    @cached_property
    def starts(self) -> list[int]:
        """Where each chunk begins, and the number of rows."""
        found = [0]
        for batch in self.batches:
            found.append(found[-1] + batch.num_rows)
        return found

    @cached_property
    def batches(self) -> list[pa.RecordBatch]:
        return [batch for batch in self.table.to_batches() if batch.num_rows]

    def at_paths(self, paths: Collection[str]) -> list[int]:
        """Row numbers of the files at these canonical paths, whatever their deletion vectors; ascending."""
        if not paths or not self.table.num_rows:
            return []
        self._looks += 1
        if self.table.num_rows > _SMALL_ROWS and self._looks <= _LOOKS_WITHOUT_INDEX and "_index" not in self.__dict__:
            return self._looked_through(paths)
        hashes, order = self._index
        found = [
            order[position]
            for wanted in map(hash, paths)
            for position in range(bisect_left(hashes, wanted), bisect_right(hashes, wanted))
        ]
        return sorted(set(found))

    def take(self, rows: list[int]) -> pa.Table:
        """These rows, ascending. Touches the chunks that hold them."""
        parts = [
            self.batches[number].take(pa.array(positions, pa.int64()))
            for number, positions in self.by_chunk(rows).items()
        ]
        return pa.Table.from_batches(parts, self.table.schema)

    def by_chunk(self, rows: list[int]) -> dict[int, list[int]]:
        """Ascending row numbers as positions in their chunks."""
        found: dict[int, list[int]] = {}
        for row in rows:
            chunk = bisect_right(self.starts, row) - 1
            found.setdefault(chunk, []).append(row - self.starts[chunk])
        return found

    def _looked_through(self, paths: Collection[str]) -> list[int]:
        wanted = pa.array(paths, pa.string())
        found: list[int] = []
        for start, batch in zip(self.starts, self.batches, strict=False):
            same = pc.is_in(canonical_paths(batch.column("path"), self.root), value_set=wanted)
            if same.true_count:
                found += (start + position for position in pc.indices_nonzero(same).to_pylist())
        return found

    @cached_property
    def _index(self) -> tuple[memoryview[int], memoryview[int]]:
        """The hashes ascending, and the row number of each."""
        hashes = array("q")
        for batch in self.batches:
            hashes.extend(map(hash, canonical_paths(batch.column("path"), self.root).to_pylist()))
        unsorted = pa.Array.from_buffers(pa.int64(), len(hashes), [None, pa.py_buffer(hashes)])
        order = pc.array_sort_indices(unsorted)
        ascending = unsorted.take(order)
        # Views, without a Python object a number. The arrays were just made: they have no nulls and no offset.
        return _bytes(ascending).cast("q"), _bytes(order.cast(pa.uint32())).cast("I")


def _bytes(numbers: pa.Array) -> memoryview[int]:
    return memoryview(numbers.buffers()[1]).cast("B")[: len(numbers) * numbers.type.bit_width // 8]


@dataclass(frozen=True, slots=True)
class _Layer:
    rows: _Rows
    hidden: Hidden = field(default_factory=dict)

    @property
    def count(self) -> int:
        return int(self.rows.table.num_rows) - sum(map(len, self.hidden.values()))

    def rows_of(self, keys: Collection[str], paths: Collection[str]) -> list[int]:
        """The visible rows with one of these keys; `paths` are the keys' paths."""
        rows = self._visible(self.rows.at_paths(paths))
        if not rows:
            return rows
        found = file_keys(self.rows.take(rows), self.rows.root).to_pylist()
        return [row for row, key in zip(rows, found, strict=True) if key in keys]

    def at_paths(self, paths: Collection[str]) -> pa.Table:
        """The visible rows at one of these canonical paths."""
        rows = self._visible(self.rows.at_paths(paths))
        taken = self.rows.take(rows)
        found = canonical_paths(taken.column("path"), self.rows.root)
        return taken.filter(pc.is_in(found, value_set=pa.array(paths, pa.string())))

    def without(self, rows: list[int]) -> _Layer:
        if not rows:
            return self
        hidden = dict(self.hidden)
        for chunk, positions in self.rows.by_chunk(rows).items():
            hidden[chunk] = hidden.get(chunk, frozenset()).union(positions)
        return _Layer(self.rows, hidden)

    def visible(self) -> list[pa.RecordBatch]:
        """What is left, chunk by chunk; as little of it copied as can be."""
        found: list[pa.RecordBatch] = []
        for number, batch in enumerate(self.rows.batches):
            found += _cut(batch, self.hidden.get(number, frozenset()))
        return found

    def _visible(self, rows: list[int]) -> list[int]:
        if not self.hidden:
            return rows
        starts = self.rows.starts
        gone = {starts[chunk] + each for chunk, each in self._hidden_in(rows)}
        return [row for row in rows if row not in gone]

    def _hidden_in(self, rows: list[int]) -> Iterator[tuple[int, int]]:
        for chunk, positions in self.rows.by_chunk(rows).items():
            hidden = self.hidden.get(chunk, frozenset())
            yield from ((chunk, position) for position in positions if position in hidden)


def _cut(batch: pa.RecordBatch, hidden: frozenset[int]) -> Iterator[pa.RecordBatch]:
    if not hidden:
        yield batch
    elif len(hidden) <= _CUTS:
        edges = [-1, *sorted(hidden), batch.num_rows]
        for before, after in pairwise(edges):
            if after - before > 1:
                yield batch.slice(before + 1, after - before - 1)
    elif len(hidden) < batch.num_rows:
        gone = pa.array(sorted(hidden), pa.int64())
        numbers = pa.array(range(batch.num_rows), pa.int64())
        yield batch.filter(pc.invert(pc.is_in(numbers, value_set=gone)))


class FileLayers:
    """Files of one version, each once: the live ones (schema `FILES`) or the removed ones (schema `TOMBSTONES`)."""

    def __init__(self, schema: pa.Schema, layers: tuple[_Layer, ...] = ()) -> None:
        self._schema = schema
        self._layers = layers

    @staticmethod
    def of(files: pa.Table, root: str) -> FileLayers:
        """These files, of which no two have one key, of the table at `root`."""
        return FileLayers(files.schema, (_Layer(_Rows(files, root)),) if files.num_rows else ())

    @cached_property
    def count(self) -> int:
        """How many files there are, without looking at them."""
        return sum(layer.count for layer in self._layers)

    @cached_property
    def table(self) -> pa.Table:
        """All files, in no order; made when first asked for. Shares memory with other versions."""
        return pa.Table.from_batches([batch for layer in self._layers for batch in layer.visible()], self._schema)

    def at_paths(self, paths: Collection[str]) -> pa.Table:
        """The files at these canonical paths. Costs what is asked for, not what is there."""
        found = [layer.at_paths(paths) for layer in self._layers]
        return pa.concat_tables([self._schema.empty_table(), *found])

    def after(self, keys: Collection[str], new: pa.Table, root: str) -> FileLayers:
        """The files after commits that spoke of `keys`, and left `new` of them here."""
        if not keys:
            return self
        paths = {path_of_key(key) for key in keys}
        layers = [layer.without(layer.rows_of(keys, paths)) for layer in self._layers]
        if new.num_rows:
            layers.append(_Layer(_Rows(new, root)))
        return FileLayers(self._schema, tuple(_merged(layers)))


def _merged(layers: list[_Layer]) -> list[_Layer]:
    """The same files, in layers each at least twice as large as the next, none of them mostly hidden."""
    merged: list[_Layer] = []
    for layer in layers:
        if not layer.count:
            continue
        if 2 * layer.count < layer.rows.table.num_rows:
            layer = _joined([layer])
        while merged and 2 * layer.count > merged[-1].count:
            layer = _joined([merged.pop(), layer])
        merged.append(layer)
    return merged


def _joined(layers: list[_Layer]) -> _Layer:
    first = layers[0].rows
    batches = _gathered([batch for layer in layers for batch in layer.visible()])
    return _Layer(_Rows(pa.Table.from_batches(batches, first.table.schema), first.root))


def _gathered(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches put together, so that what commits and cuts leave does not grow into thousands of them."""
    small: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows >= _ONE_CHUNK_ROWS:
            yield batch
            continue
        small.append(batch)
        if sum(each.num_rows for each in small) >= _ONE_CHUNK_ROWS:
            yield pa.concat_batches(small)
            small = []
    if small:
        yield pa.concat_batches(small)
