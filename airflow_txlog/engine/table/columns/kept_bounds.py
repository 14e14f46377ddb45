"""Bounds of columns kept between questions to one table, so that a statistic is parsed once.

Statistics are JSON in the log, and reading a million of them takes a second; their bounds are a few numbers. They are
kept for each batch of files, which never changes and which versions of a table share, for as long as some version has
the batch. The invariant: what is kept is what `bounds` gives for the batch and the column as the schema asked about has
it, and together it takes at most `limits.STATISTICS`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pyarrow as pa

from airflow_txlog.engine.log.packing import PackedBatch
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.schema.types import StructField, StructType
from airflow_txlog.storage.limits import STATISTICS


@dataclass(slots=True)
class _Column:
    """What is kept of one column, with its bytes."""

    member: StructField
    batches: WeakKeyDictionary[PackedBatch, tuple[ColumnBounds, int]] = field(default_factory=WeakKeyDictionary)


class KeptBounds:
    """The bounds of one table's files, by column. Any number of threads may ask; two may parse the same batch."""

    def __init__(self) -> None:
        # By the columns' names; the one that was asked for longest ago stands first.
        self._columns: dict[str, _Column] = {}
        # Held for looking up and noting down, never while statistics are parsed.
        self._lock = threading.Lock()

    def knows(self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]) -> bool:
        """Whether nothing would have to be parsed."""
        return all(len(found) == len(names) for found in self._known(batches, schema, names))

    def of(
        self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]
    ) -> list[dict[str, ColumnBounds]]:
        """Of each batch (rows of a FILES table) the bounds of these top-level columns over all of its rows."""
        found = self._known(batches, schema, names)
        unknown: dict[tuple[str, ...], list[int]] = {}
        for index, known in enumerate(found):
            missing = tuple(name for name in names if name not in known)
            if missing:
                unknown.setdefault(missing, []).append(index)
        for missing, indices in unknown.items():
            parsed = bounds(
                pa.Table.from_batches([batches[index].full() for index in indices]), schema, [(n,) for n in missing]
            )
            start = 0
            for index in indices:
                rows = batches[index].light.num_rows
                found[index] |= {name: each.copied(start, rows) for (name,), each in parsed.items()}
                start += rows
            self._keep([(batches[index], found[index]) for index in indices], schema, names)
        return found

    def _known(
        self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]
    ) -> list[dict[str, ColumnBounds]]:
        found: list[dict[str, ColumnBounds]] = [{} for _ in batches]
        with self._lock:
            for name in names:
                column = self._column(name, schema)
                for known, batch in zip(found, batches, strict=True):
                    if batch in column.batches:
                        known[name] = column.batches[batch][0]
        return found

    def _column(self, name: str, schema: StructType) -> _Column:
        """What is kept of this column, which now stands last; nothing where the schema asked before was another."""
        member, column = schema.find(name), self._columns.pop(name, None)
        assert member is not None
        self._columns[name] = column if column is not None and column.member == member else _Column(member)
        return self._columns[name]

    def _keep(
        self, parsed: list[tuple[PackedBatch, dict[str, ColumnBounds]]], schema: StructType, names: Sequence[str]
    ) -> None:
        """As much of it as there is room for; columns that other questions asked for make room."""
        allowed = STATISTICS.allowed
        with self._lock:
            columns = {name: self._column(name, schema) for name in names}
            used = sum(size for column in self._columns.values() for _, size in column.batches.values())
            for batch, found in parsed:
                for name in names:
                    column, size = columns[name], found[name].nbytes
                    if batch in column.batches:
                        continue
                    while used + size > allowed and (oldest := next(iter(self._columns))) not in names:
                        used -= sum(freed for _, freed in self._columns.pop(oldest).batches.values())
                    if used + size <= allowed:
                        column.batches[batch] = found[name], size
                        used += size
