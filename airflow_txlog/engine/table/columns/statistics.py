"""Statistics of files as defended bounds, for pruning and for conflicts; and a cache of bounds.

The invariant: whatever known writer wrote the statistics, no value of a file lies outside the bounds given for it. A
bound that cannot be defended is null, which means not known. Statistics of one file never affect another's.
`statistic_values` decides the worth of single texts, `statistic_columns` reads them. Source: protocol, "Per-file
Statistics".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.ahead import ahead
from airflow_txlog.engine.log.columns import PackedBatch
from airflow_txlog.engine.table.columns.statistic_columns import AskedColumn, ReadColumn, only_chunk, read_statistics
from airflow_txlog.engine.table.columns.statistic_values import PYTHONS_SEPARATOR, bound_reader, defended
from airflow_txlog.engine.table.schema.schema import arrow_type
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import UnknownColumn
from airflow_txlog.storage.limits import STATISTICS

ColumnPath: TypeAlias = tuple[str, ...]
_Members: TypeAlias = Mapping[ColumnPath, tuple[StructField, ...]]

# Decoded statistics are dropped after this number of files, while they are still in the processor's cache.
_FILES_AT_ONCE = 8_192
_ARRAYS = ("lower", "upper", "null_count", "num_records")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """The known facts of one column in each file, in the files' order. Null means not known.

    `lower` and `upper` are of the column's Arrow type; no value that is not null is smaller than `lower` or greater
    than `upper`. They need not occur in the file: equal bounds prove that every value equals them, and nothing proves
    that some value does.

    `upper_is_exclusive` (strings): no value equals `upper` either. Ignoring it is sound.

    `may_hold_nan` (float, double): `upper` bounds the values that are not NaN. NaN is greater than every number, equals
    itself, and may be in any file. So `upper` may rule out `= < <= IN` with a constant that is not NaN; it must not
    rule out `> >= !=` or a negation, and never proves that all rows match. `lower` is free of this.

    `null_count` and `num_records` (int64) count the rows of the data file, including those that a deletion vector
    deletes. If the file has a vector, `null_count` is given only as 0, because some writers count the rows that the
    vector leaves, in `num_records` too. If statistics may ignore deleted rows, it is 0 or `num_records`.
    """

    lower: pa.Array
    upper: pa.Array
    null_count: pa.Array
    num_records: pa.Array
    upper_is_exclusive: bool
    may_hold_nan: bool

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    def map(self, change: Callable[[pa.Array], pa.Array]) -> ColumnBounds:
        """Return the bounds with every array changed, for other files or some of them."""
        return replace(self, **{name: change(getattr(self, name)) for name in _ARRAYS})

    @staticmethod
    def joined(parts: list[ColumnBounds]) -> ColumnBounds:
        """Return the bounds of one column over several batches of files, in their order."""
        if len(parts) == 1:
            return parts[0]
        joined = {name: pa.concat_arrays([getattr(part, name) for part in parts]) for name in _ARRAYS}
        return replace(parts[0], **joined)


def bounds(
    files: pa.Table, schema: StructType, column_paths: Iterable[ColumnPath], files_at_once: int = _FILES_AT_ONCE
) -> dict[ColumnPath, ColumnBounds]:
    """Return the defended bounds of several columns over `files` (a FILES table), keyed by the paths as given.

    Paths name columns in any case. Everything is null for a file without statistics, for statistics that violate the
    protocol, and for an absent key. `lower` and `upper` are null for types and columns whose statistics cannot be
    trusted (see `bound_reader`); `null_count` for members of structs, which writers count differently. Partition
    columns have no statistics; see `partitions`. Raises UnknownColumn for a path that the schema lacks.
    """
    return _in_parts(files, {path: _members(schema, path) for path in column_paths}, files_at_once)


def _in_parts(
    files: pa.Table, members: _Members, files_at_once: int = _FILES_AT_ONCE
) -> dict[ColumnPath, ColumnBounds]:
    # At least one part, so that no files give empty arrays of the right types. One after the other: texts are decoded
    # under Python's lock, for which threads would only wait.
    parts = range(0, max(len(files), 1), files_at_once)
    found = [_bounds(files.slice(start, files_at_once), members) for start in parts]
    return {path: ColumnBounds.joined([each[path] for each in found]) for path in members}


def _bounds(files: pa.Table, members: _Members) -> dict[ColumnPath, ColumnBounds]:
    asked = {path: _asked(each) for path, each in members.items()}
    texts = only_chunk(files.column("stats"))
    distinct = {column.keys: column for column in asked.values() if column.keys}
    read = read_statistics(texts, list(distinct.values()))
    has_vector = only_chunk(pc.is_valid(files.column("deletion_vector")))
    # Python's writers skip row groups without bounds, as of a text longer than 4,096 bytes, and take the bounds of the
    # others for those of the file.
    pythons = _of_python(texts) if any(column.type is Primitive.STRING for column in asked.values()) else None
    found = {}
    for path, column in asked.items():
        lower = upper = pa.nulls(len(texts), arrow_type(column.type))
        null_count = pa.nulls(len(texts), pa.int64())
        of_column = read.columns.get(column.keys)
        if of_column is not None and column.reader is not None:
            lower, upper = _believed(of_column, members[path][-1], pythons)
        if of_column is not None and len(column.keys) == 1:
            null_count = _null_count(of_column.null_count, read.num_records, read.is_loose, has_vector)
        found[path] = ColumnBounds(
            lower=lower,
            upper=upper,
            null_count=null_count,
            num_records=read.num_records,
            upper_is_exclusive=column.type is Primitive.STRING,
            may_hold_nan=column.type in (Primitive.FLOAT, Primitive.DOUBLE),
        )
    return found


def _of_python(texts: pa.StringArray) -> pa.BooleanArray:
    # A regular expression leaps from colon to colon, five times as fast; nearly always it finds nothing.
    has_blank = pc.fill_null(pc.match_substring_regex(texts, ": "), False)
    return pc.fill_null(pc.match_substring(texts, PYTHONS_SEPARATOR), False) if has_blank.true_count else has_blank


def _members(schema: StructType, path: ColumnPath) -> tuple[StructField, ...]:
    found = schema.find_path(path)
    if found is None:
        name = ".".join(path)
        raise UnknownColumn(f"The table has no column {name!r}.", column=name, columns=schema.names)
    return found


def _asked(members: tuple[StructField, ...]) -> AskedColumn:
    member = members[-1]
    # A collation of a struct's member may be noted on any field above it.
    reader = None if any(each.is_collated for each in members) else bound_reader(member)
    # Only the members of a struct have statistics, not the struct.
    keys = () if isinstance(member.type, StructType) else tuple(each.physical_name for each in members)
    return AskedColumn(keys, member.type, reader, member.is_widened)


def _believed(found: ReadColumn, member: StructField, pythons: pa.BooleanArray | None) -> tuple[pa.Array, pa.Array]:
    """Return both bounds, null if a text of either side is no bound (a NaN) or they contradict each other."""
    lower, upper = found.lower, found.upper
    bad = pc.or_(found.is_bad, pc.fill_null(pc.greater(lower, upper), False))
    if member.type is Primitive.STRING and pythons is not None:
        bad = pc.or_(bad, pythons)
    unknown = pa.scalar(None, lower.type)
    return defended(member, pc.if_else(bad, unknown, lower), pc.if_else(bad, unknown, upper))


def _null_count(
    counts: pa.Array, num_records: pa.Array, is_loose: pa.BooleanArray, has_vector: pa.BooleanArray
) -> pa.Array:
    all_rows = pc.fill_null(pc.equal(counts, num_records), False)
    of_whole_file = pc.and_not(pc.or_(all_rows, pc.invert(is_loose)), has_vector)
    known = pc.or_(of_whole_file, pc.equal(counts, 0))
    possible = pc.fill_null(pc.less_equal(counts, num_records), True)
    return pc.if_else(pc.and_(known, possible), counts, pa.scalar(None, pa.int64()))


# --- kept between questions ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _KeptColumn:
    """A column's bounds by batch, with their bytes."""

    member: StructField
    batches: WeakKeyDictionary[PackedBatch, tuple[ColumnBounds, int]] = field(default_factory=WeakKeyDictionary)


class KeptBounds:
    """The bounds of one table's files by batch, up to `limits.STATISTICS` bytes; any number of threads may share it."""

    def __init__(self) -> None:
        # By name, the least recently used column first.
        self._columns: dict[str, _KeptColumn] = {}
        # Held while looking up and storing, never while parsing.
        self._lock = threading.Lock()

    def knows(self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]) -> bool:
        """Return whether nothing would have to be parsed."""
        return all(len(found) == len(names) for found in self._known(batches, schema, names))

    def of(
        self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]
    ) -> list[dict[str, ColumnBounds]]:
        """Return for each batch (rows of a FILES table) the bounds of these top-level columns over all of its rows."""
        found = self._known(batches, schema, names)
        unknown: dict[tuple[str, ...], list[int]] = {}
        for index, known in enumerate(found):
            missing = tuple(name for name in names if name not in known)
            if missing:
                unknown.setdefault(missing, []).append(index)
        for missing, indices in unknown.items():
            members: _Members = {(name,): _members(schema, (name,)) for name in missing}
            # Without the lock: the next batch is unpacked while one is decoded.
            unpacked = (batches[index].full() for index in indices)
            if len(indices) > 1:
                unpacked = ahead(unpacked)
            for index, batch in zip(indices, unpacked, strict=True):
                parsed = _in_parts(pa.Table.from_batches([batch]), members)
                found[index] |= {name: parsed[name,] for name in missing}
            self._keep([(batches[index], found[index]) for index in indices], schema, names)
        return found

    def _known(
        self, batches: Sequence[PackedBatch], schema: StructType, names: Sequence[str]
    ) -> list[dict[str, ColumnBounds]]:
        with self._lock:
            columns = {name: self._column(name, schema).batches for name in names}
            return [{name: kept[batch][0] for name, kept in columns.items() if batch in kept} for batch in batches]

    def _column(self, name: str, schema: StructType) -> _KeptColumn:
        """Return the column and move it to the end; without bounds if the schema has changed it."""
        member, column = schema.find(name), self._columns.pop(name, None)
        assert member is not None
        self._columns[name] = column if column is not None and column.member == member else _KeptColumn(member)
        return self._columns[name]

    def _keep(
        self, parsed: list[tuple[PackedBatch, dict[str, ColumnBounds]]], schema: StructType, names: Sequence[str]
    ) -> None:
        """Keep the bounds that fit; drop the columns that were used longest ago."""
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
