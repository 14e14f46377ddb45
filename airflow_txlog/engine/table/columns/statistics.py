"""Statistics of files as bounds that we can defend, for pruning and for conflicts.

The invariant: for every writer that exists, no value of a file lies outside the bounds given here for it; where that
cannot be defended, the bound is null, which means not known. Statistics of one file never touch another's.
What one text of a statistic is worth is decided in `statistic_values`.
Source: protocol, "Per-file Statistics".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.log.columns import PackedBatch
from airflow_txlog.engine.table.columns.statistic_columns import (
    AskedColumn,
    ParsedStatistics,
    Side,
    can_parse,
    parse_columns,
)
from airflow_txlog.engine.table.columns.statistic_values import (
    PYTHONS_SEPARATOR,
    Bound,
    Reader,
    bound_reader,
    defended,
)
from airflow_txlog.engine.table.schema.schema import DataType, Primitive, array_of, arrow_type
from airflow_txlog.engine.table.schema.types import StructField, StructType
from airflow_txlog.errors import UnknownColumn
from airflow_txlog.storage.limits import STATISTICS

ColumnPath: TypeAlias = tuple[str, ...]

# Decoded statistics are dropped after so many files, so that a million of them are never in memory at once.
_FILES_AT_ONCE = 50_000
_MAX_COUNT_DIGITS = 19
_ABSENT = (b"", b"null")
_NO_BOUND: Bound = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """What is known of one column in each of the files, in the files' order. A null means: not known.

    `lower`, `upper` are of the column's own Arrow type and bound the values that are not null: none is smaller
    than `lower`, none is greater than `upper`. They are bounds, not values: the file need not hold them, so equal
    bounds prove that every value equals them, and nothing proves that some value does.

    `upper_is_exclusive` (strings): no value equals `upper` either. To ignore it is sound.

    `may_hold_nan` (float, double): `upper` bounds the values that are not NaN; NaN is greater than every number,
    equals itself, and may stand in any file. So `upper` may rule out `= < <= IN` with a constant that is not NaN;
    it must not rule out `> >= !=` or a negation, and never proves that all rows match. `lower` is free of this.

    `null_count` and `num_records` (int64) count rows as the data file has them, also those that a deletion vector
    deletes; where one may, `null_count` is given only as 0 or as `num_records`: all rows or none are null. Beside a
    deletion vector it is given only as 0, because some writers count there the rows that the vector leaves, in
    `num_records` too.
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
        """The bounds of other files, or of some: every array as `change` gives it."""
        return replace(self, **{name: change(getattr(self, name)) for name in _ARRAYS})

    def copied(self, start: int, count: int) -> ColumnBounds:
        """The bounds of so many files, in memory of their own."""
        return self.map(lambda array: pa.concat_arrays([array.slice(start, count)]))

    @staticmethod
    def joined(parts: list[ColumnBounds]) -> ColumnBounds:
        """The bounds of one column over several batches of files, in their order."""
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0], **{name: pa.concat_arrays([getattr(part, name) for part in parts]) for name in _ARRAYS}
        )


_ARRAYS = ("lower", "upper", "null_count", "num_records")


def bounds(
    files: pa.Table,
    schema: StructType,
    column_paths: Iterable[ColumnPath],
    files_at_once: int = _FILES_AT_ONCE,
) -> dict[ColumnPath, ColumnBounds]:
    """The defended bounds of several columns over `files` (a FILES table), from one reading of its statistics.

    Paths name columns in any case, and are the keys as given. Everything is null for a file without statistics, with
    statistics that are not what the protocol says, and for a key that is absent. `lower` and `upper` are null for
    types and columns that statistics cannot be believed about (see `bound_reader`), `null_count` for members of
    structs, which writers count differently. Partition columns have no statistics; see `partitions`.

    Raises UnknownColumn for a path that the schema does not have.
    """
    columns = [_Column(path, _members(schema, path)) for path in column_paths]
    decoder = _decoder(columns)
    asked = _asked_together(columns)
    parts: dict[ColumnPath, list[ColumnBounds]] = {column.path: [] for column in columns}
    # At least once, so that no files give empty arrays of the right types.
    for start in range(0, max(len(files), 1), files_at_once):
        part = files.slice(start, files_at_once)
        parsed = None if asked is None else _parsed(part, asked)
        statistics = _Statistics.read(decoder, part) if parsed is None else None
        pythons = _by_python(part) if any(column.type is Primitive.STRING for column in columns) else None
        for column in columns:
            if parsed is not None:
                found = column.parsed_bounds(parsed)
            elif statistics is not None:
                found = column.bounds(statistics)
            parts[column.path].append(column.defended(found, pythons))
    return {path: ColumnBounds.joined(found) for path, found in parts.items()}


def _members(schema: StructType, path: ColumnPath) -> tuple[StructField, ...]:
    found = schema.find_path(path)
    if found is None:
        name = ".".join(path)
        raise UnknownColumn(f"The table has no column {name!r}.", column=name, columns=schema.names)
    return found


def _by_python(files: pa.Table) -> pa.BooleanArray:
    """Return which statistics Python's json.dumps has written.

    Such writers skip the row groups whose footer has no bounds for a column, as for a text longer than 4,096 bytes, and
    take the bounds of the others for those of the file. So their strings have no bounds.
    """
    return _array(pc.fill_null(pc.match_substring(files.column("stats"), PYTHONS_SEPARATOR), False))


_Parsed: TypeAlias = tuple[ParsedStatistics, pa.BooleanArray]


def _asked_together(columns: list[_Column]) -> list[AskedColumn] | None:
    """All columns as ones to be parsed together, each key once; None where one cannot be."""
    asked = [column.asked for column in columns]
    found = {each.key: each for each in asked if each is not None}
    return None if not found or None in asked else list(found.values())


def _parsed(files: pa.Table, asked: list[AskedColumn]) -> _Parsed | None:
    """Return the statistics of these files, and which of the files have a deletion vector."""
    statistics = parse_columns(_array(files.column("stats")), asked)
    if statistics is None:
        return None
    return statistics, _array(pc.is_valid(files.column("deletion_vector")))


# --- from JSON -------------------------------------------------------------------------------------------------------


class _Column:
    """One asked column: how its texts are found in decoded statistics, and what they are worth."""

    def __init__(self, path: ColumnPath, members: tuple[StructField, ...]) -> None:
        self.path = path
        self.member = members[-1]
        self.type = members[-1].type
        self.is_member = len(members) > 1
        self.is_widened = members[-1].is_widened
        self.reader = bound_reader(members[-1])
        # A collation of a struct's member may be noted on any field above it.
        if any(member.is_collated for member in members):
            self.reader = None
        # A whole struct has no statistics of its own, only its members have.
        self.keys = () if isinstance(self.type, StructType) else tuple(member.physical_name for member in members)
        self.attributes: tuple[str, ...] = ()

    def bounds(self, statistics: _Statistics) -> ColumnBounds:
        """The bounds of this column in the files of `statistics`."""
        lower = upper = pa.nulls(len(statistics.decoded), arrow_type(self.type))
        null_count = pa.nulls(len(lower), pa.int64())
        if self.keys and self.reader is not None:
            lower, upper = _both_or_neither(
                _side(self._texts(statistics.min_values), 0, self.reader, self.type),
                _side(self._texts(statistics.max_values), 1, self.reader, self.type),
            )
        if self.keys and not self.is_member:
            counts = _counts(self._texts(statistics.null_count))
            null_count = _null_count(counts, statistics.num_records, statistics.is_loose, statistics.has_vector)
        return self._bounds(lower, upper, null_count, statistics.num_records)

    @property
    def asked(self) -> AskedColumn | None:
        """How to ask for this column together with others; None where its texts are to be read one by one."""
        if len(self.keys) != 1 or self.reader is None or self.is_widened or not can_parse(self.type):
            return None
        return AskedColumn(self.keys[0], self.type, self.reader)

    def parsed_bounds(self, parsed: _Parsed) -> ColumnBounds:
        """The bounds of this column where it was parsed together with others."""
        statistics, has_vector = parsed
        column = statistics.columns[self.keys[0]]
        lower, upper = _both_or_neither(column.lower, column.upper)
        null_count = _null_count(column.null_count, statistics.num_records, statistics.is_loose, has_vector)
        return self._bounds(lower, upper, null_count, statistics.num_records)

    def defended(self, found: ColumnBounds, pythons: pa.BooleanArray | None) -> ColumnBounds:
        """Return the bounds less those that this type's writers are known to get wrong; `pythons`: see `_by_python`."""
        lower, upper = found.lower, found.upper
        if self.reader is not None:
            lower, upper = defended(self.member, lower, upper)
        if self.type is Primitive.STRING and pythons is not None and pythons.true_count:
            lower, upper = (pc.if_else(pythons, pa.scalar(None, side.type), side) for side in (lower, upper))
        return replace(found, lower=lower, upper=upper)

    def _bounds(self, lower: pa.Array, upper: pa.Array, null_count: pa.Array, num_records: pa.Array) -> ColumnBounds:
        return ColumnBounds(
            lower=lower,
            upper=upper,
            null_count=null_count,
            num_records=num_records,
            upper_is_exclusive=self.type is Primitive.STRING,
            may_hold_nan=self.type in (Primitive.FLOAT, Primitive.DOUBLE),
        )

    def _texts(self, values: list[Any]) -> list[bytes]:
        """The JSON texts, one a file; empty where the file has none."""
        for attribute in self.attributes:
            values = [None if value is None else getattr(value, attribute) for value in values]
        return [b"" if value is None else bytes(value) for value in values]


class _Statistics:
    """The statistics of some files, decoded as far as the asked columns need; None where there are none."""

    def __init__(self, decoded: list[Any], has_vector: pa.Array) -> None:
        self.decoded = decoded
        self.min_values = [None if one is None else one.min_values for one in decoded]
        self.max_values = [None if one is None else one.max_values for one in decoded]
        self.null_count = [None if one is None else one.null_count for one in decoded]
        self.num_records = _counts([b"" if one is None else bytes(one.num_records) for one in decoded])
        # Where rows may be deleted without the statistics saying so.
        self.is_loose = pa.array([one is None or one.tight_bounds is False for one in decoded], pa.bool_())
        self.has_vector = has_vector

    @classmethod
    def read(cls, decoder: msgspec.json.Decoder[Any], files: pa.Table) -> _Statistics:
        """The statistics of every file, in order."""
        # As bytes: text that is not UTF-8 must spoil its own file only.
        texts = files.column("stats").cast(pa.large_binary()).to_pylist()
        decoded = [_decode(decoder, text) for text in texts]
        return cls(decoded, _array(pc.is_valid(files.column("deletion_vector"))))


def _decoder(columns: list[_Column]) -> msgspec.json.Decoder[Any]:
    """A decoder that keeps only what the columns need, and shows each of them where to find its texts."""
    tree: dict[str, Any] = {}
    for column in columns:
        node = tree
        for key in column.keys:
            node = node.setdefault(key, {})
    for column in columns:
        column.attributes = _attributes(tree, column.keys)
    values = _struct(tree)
    return msgspec.json.Decoder(
        msgspec.defstruct(
            "Statistics",
            [
                ("num_records", msgspec.Raw, msgspec.Raw()),
                ("tight_bounds", bool | None, None),
                ("min_values", values | None, None),
                ("max_values", values | None, None),
                ("null_count", values | None, None),
            ],
            rename="camel",
            gc=False,
        )
    )


def _struct(tree: dict[str, Any]) -> Any:
    """A msgspec struct of the tree's names. Attributes are `f0`, `f1`, … since names may be any.

    A leaf is Raw, the text as it is, so that no number is ever read as a double.
    """
    fields: list[tuple[str, Any, Any]] = [
        (f"f{i}", _struct(sub) | None, None) if sub else (f"f{i}", msgspec.Raw, msgspec.Raw())
        for i, sub in enumerate(tree.values())
    ]
    return msgspec.defstruct("Values", fields, rename={f"f{i}": name for i, name in enumerate(tree)}, gc=False)


def _attributes(tree: dict[str, Any], keys: tuple[str, ...]) -> tuple[str, ...]:
    found = []
    for key in keys:
        found.append(f"f{list(tree).index(key)}")
        tree = tree[key]
    return tuple(found)


def _decode(decoder: msgspec.json.Decoder[Any], text: bytes | None) -> Any:
    if not text:
        return None
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _counts(texts: list[bytes]) -> pa.Array:
    """Row counts, null where the text is none. The same few counts stand in most files."""
    counts = {text: int(text) if text.isdigit() and len(text) < _MAX_COUNT_DIGITS else None for text in set(texts)}
    return pa.array([counts[text] for text in texts], pa.int64())


# --- to bounds -------------------------------------------------------------------------------------------------------


def _both_or_neither(lower: Side, upper: Side) -> tuple[pa.Array, pa.Array]:
    """The bounds, where no side is given as something that is no bound (a NaN spoils the other side too), and where
    they do not contradict each other."""
    contradict = pc.fill_null(pc.greater(lower.bounds, upper.bounds), False)
    bad = pc.or_(pc.or_(lower.is_bad, upper.is_bad), contradict)
    unknown = pa.scalar(None, lower.bounds.type)
    return pc.if_else(bad, unknown, lower.bounds), pc.if_else(bad, unknown, upper.bounds)


def _side(texts: list[bytes], side: int, reader: Reader, data_type: DataType) -> Side:
    """One side's bounds, and where its text is no value of the type. Each distinct text is read once."""
    distinct = list(dict.fromkeys(text for text in texts if text not in _ABSENT))
    read: dict[bytes, Bound | None] = dict.fromkeys(_ABSENT, _NO_BOUND)
    read.update(zip(distinct, reader(distinct), strict=True))
    pairs = [read[text] for text in texts]
    bad = pa.array([pair is None for pair in pairs], pa.bool_())
    return Side(array_of([None if pair is None else pair[side] for pair in pairs], data_type), bad)


def _null_count(
    counts: pa.Array, num_records: pa.Array, is_loose: pa.BooleanArray, has_vector: pa.BooleanArray
) -> pa.Array:
    all_rows = pc.fill_null(pc.equal(counts, num_records), False)
    of_whole_file = pc.and_not(pc.or_(all_rows, pc.invert(is_loose)), has_vector)
    known = pc.or_(of_whole_file, pc.equal(counts, 0))
    possible = pc.fill_null(pc.less_equal(counts, num_records), True)
    return pc.if_else(pc.and_(known, possible), counts, pa.scalar(None, pa.int64()))


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@dataclass(slots=True)
class _KeptColumn:
    """What is kept of one column, with its bytes."""

    member: StructField
    batches: WeakKeyDictionary[PackedBatch, tuple[ColumnBounds, int]] = field(default_factory=WeakKeyDictionary)


class KeptBounds:
    """The bounds of one table's files, by column. Any number of threads may ask; two may parse the same batch."""

    def __init__(self) -> None:
        # By the columns' names; the one that was asked for longest ago stands first.
        self._columns: dict[str, _KeptColumn] = {}
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

    def _column(self, name: str, schema: StructType) -> _KeptColumn:
        """What is kept of this column, which now stands last; nothing where the schema asked before was another."""
        member, column = schema.find(name), self._columns.pop(name, None)
        assert member is not None
        self._columns[name] = column if column is not None and column.member == member else _KeptColumn(member)
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
