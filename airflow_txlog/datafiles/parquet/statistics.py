"""The statistics of a data file that we write: `add.stats`, as JSON.

They are computed from the values while the file is written. Those of a file that another engine wrote are taken from
its footer, which leaves out NaN: then a float has no maximum. The invariant: a bound written here holds for every value
of the column in Spark's order (NaN above all numbers, -0.0 = 0.0), also for a reader that takes it literally; a bound
that JSON cannot express is left out.
Source: protocol, "Per-file Statistics"; soundness, A6.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import (
    SECOND_US,
    Date,
    Decimal,
    Float,
    Integer,
    Text,
    WallTime,
    codec_of,
    date_text,
    timestamp_text,
)
from airflow_txlog.datafiles.parquet.conversion import FILE, ColumnMismatch, convert_array
from airflow_txlog.datafiles.parquet.footer_forms import ChunkStatistics
from airflow_txlog.datafiles.parquet.footer_statistics import Chunks, ColumnPath, FooterLeaves, Leaf
from airflow_txlog.datafiles.parquet.physical import FileFields, is_variant, physical_name

INDEXED_COLUMNS_DEFAULT = 32  # protocol: delta.dataSkippingNumIndexedCols

# The JSON texts of a minimum and a maximum; None leaves the bound out.
_Texts: TypeAlias = tuple[str | None, str | None]
_Ways: TypeAlias = tuple[Callable[[Any], Any] | None, Callable[[Any, Any], _Texts]]

# The table's field of each column, and its number among others.
_Places: TypeAlias = dict[str, tuple[pa.Field, int | None]]

_STRING_CHARS = 32
_MAX_STRING_CHARS = 2 * _STRING_CHARS
_MAX_CHAR = chr(0x10FFFF)
# Only dates with a four-digit year: readers fail on others.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US = 86_400 * SECOND_US
_MILLISECOND_US = SECOND_US // 1000


class StatisticsCollector:
    """Gathers the statistics of one file while it is written. Not to be shared between threads.

    `schema` is the table's, without partition columns: statistics use its physical names and current types, whatever
    older type a copied file has. `indexed_columns` (table property dataSkippingStatsColumns) names the columns with
    bounds and null counts: paths of logical names in any case, top-level or through structs. A struct names all its
    members, unknown paths are skipped. None takes the first `num_indexed_columns` leaves (property
    dataSkippingNumIndexedCols), -1 all.
    """

    def __init__(
        self,
        schema: pa.Schema,
        indexed_columns: Sequence[ColumnPath] | None = None,
        num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT,
    ) -> None:
        leaves = _leaves(schema)
        if indexed_columns is not None:
            named = set(map(_lower, indexed_columns))
            leaves = (leaf for leaf in leaves if not named.isdisjoint(_paths_above(_lower(leaf.path))))
        elif num_indexed_columns >= 0:
            leaves = itertools.islice(leaves, num_indexed_columns)
        self._columns: dict[str, list[_Column]] = {}
        for leaf in leaves:
            self._columns.setdefault(leaf.path[0], []).append(leaf)
        self._schema = schema
        self._num_records = 0
        self._added_apart: frozenset[str] = frozenset()
        self._held = _Held()

    def empty(self) -> StatisticsCollector:
        """Return a collector for another file of the same columns. Call it before the first row."""
        found = object.__new__(type(self))
        # `copy.copy` takes a tenth of the time of a tiny file.
        found.__dict__.update(self.__dict__)
        found._columns = {name: [column.empty() for column in columns] for name, columns in self._columns.items()}
        return found

    def of_footer(self, num_rows: int, chunks: Chunks, leaves: FooterLeaves) -> str:
        """Return the JSON of `add.stats` of a whole file by its footer. This object does not change.

        `leaves`: those of the file, or of one with an equal schema and equal metadata. A bound that a footer does not
        prove is left out, and so is the null count of a list or a map.
        """
        found = []
        for column in (each.empty() for columns in self._columns.values() for each in columns):
            leaf = leaves.found.get(column.keys)
            if column.keys[0] not in leaves.names:
                column.add_nulls(num_rows)
            elif leaf is None:
                column.null_count = None
            else:
                column.add_chunks(chunks(leaf.number), leaf)
            found.append(column)
        return _json(num_rows, found)

    def add_kept(self, chunks: Chunks, leaves: FooterLeaves, replaced: Collection[str]) -> list[str]:
        """Add all columns but `replaced`, of a file whose rows `update` counts, by the footer of a file that has them.

        Returns the columns whose bounds only the values prove; `add_values` must get these.
        """
        self._added_apart = frozenset(self._columns.keys() - replaced)
        return self._add_proven(self._added_apart, chunks, leaves)

    def add_groups(self, num_rows: int, chunks: Chunks, leaves: FooterLeaves) -> list[str]:
        """Add rows of a file by its footer: `chunks` are those of the row groups that have them.

        Returns as `add_kept` does.
        """
        self._num_records += num_rows
        return self._add_proven(self._columns, chunks, leaves)

    def _add_proven(self, names: Collection[str], chunks: Chunks, leaves: FooterLeaves) -> list[str]:
        unproven = []
        for name in names:
            columns = self._columns[name]
            pairs = [(column, leaves.found.get(column.keys)) for column in columns]
            found = [(column, leaf, [] if leaf is None else chunks(leaf.number)) for column, leaf in pairs]
            if all(leaf is None or column.is_proven(leaf, of_leaf) for column, leaf, of_leaf in found):
                for column, leaf, of_leaf in found:
                    if leaf is None:
                        column.null_count = None
                    else:
                        column.add_chunks(of_leaf, leaf)
            else:
                unproven.append(name)
        return unproven

    def update(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows of the file, with each of the schema's columns in some form, less those of `add_kept`.

        A row has each value of a dictionary (`output.without_spare_values`).
        """
        self._num_records += rows.num_rows
        self.add_values(rows, self._columns.keys() - self._added_apart)

    def add_values(self, rows: pa.Table | pa.RecordBatch, names: Collection[str]) -> None:
        """Add these columns of rows that are counted elsewhere."""
        places = self._held.places(rows.schema, self._schema, self._columns)
        for name in names:
            if name not in self._columns:
                continue
            columns = self._columns[name]
            field, found = places[name]
            assert found is not None
            held, nulls = rows.column(found), 0
            if isinstance(held, pa.ChunkedArray) and held.num_chunks == 1:
                # Arrow's functions take less time for an array.
                held = held.chunk(0)
            if isinstance(rows, pa.Table) and pa.types.is_dictionary(held.type) and held.type != field.type:
                # Each value counts once for the bounds.
                chunks = held.chunks if isinstance(held, pa.ChunkedArray) else [held]
                used = [chunk.dictionary for chunk in chunks]
                held, nulls = pa.chunked_array(used, held.type.value_type), held.null_count
            try:
                values = _in_current_type(held, field)
            except ColumnMismatch:
                # Values of another type have no bounds in this one; a reader of the column will refuse them.
                del self._columns[name]
                continue
            for column in columns:
                column.update(values)
                column.add_nulls(nulls)

    def finish(self) -> str:
        """Return the JSON of `add.stats` for all rows so far."""
        return _json(self._num_records, (column for columns in self._columns.values() for column in columns))


class _Held:
    """Where rows have the columns of the statistics. The files of one writer share it: their rows are alike."""

    def __init__(self) -> None:
        # One value, because the files may be closed by several threads.
        self._found: tuple[pa.Schema, _Places] = pa.schema([]), {}

    def places(self, held: pa.Schema, wanted: pa.Schema, names: Collection[str]) -> _Places:
        """Return for each column its field in `wanted`, and its number in rows of the schema `held`."""
        schema, places = self._found
        if not (held.equals(schema, check_metadata=True) and all(name in places for name in names)):
            members = FileFields(held)
            places = {name: (field, members.find(field)) for name in names for field in [wanted.field(name)]}
            self._found = held, places
        return places


def file_statistics(
    table: pa.Table | pa.RecordBatch,
    *,
    indexed_columns: Sequence[ColumnPath] | None = None,
    num_indexed_columns: int = INDEXED_COLUMNS_DEFAULT,
) -> str:
    """Return `add.stats` of a file with exactly these rows. The arguments are those of `StatisticsCollector`."""
    collector = StatisticsCollector(
        table.schema, indexed_columns=indexed_columns, num_indexed_columns=num_indexed_columns
    )
    collector.update(table)
    return collector.finish()


def _lower(path: ColumnPath) -> ColumnPath:
    return tuple(name.lower() for name in path)


def _paths_above(path: ColumnPath) -> Iterator[ColumnPath]:
    """Yield the paths of this leaf and of each struct around it."""
    return (path[:size] for size in range(1, len(path) + 1))


# --- one column ------------------------------------------------------------------------------------------------------


class _Column:
    """The statistics so far of one leaf: a column, or a member of structs. `keys` are its physical names.

    `names` are the keys as JSON.
    """

    def __init__(self, path: ColumnPath, keys: ColumnPath, names: Sequence[str], ways: _Ways) -> None:
        self.path = path
        self.keys = keys
        self.names = names
        self._ways = self._comparable, self._texts = ways
        self.null_count: int | None = 0
        self._lower: Any = None
        self._upper: Any = None
        self._has_nan = False

    def empty(self) -> _Column:
        """Return the same column before its first value."""
        return _Column(self.path, self.keys, self.names, self._ways)

    def update(self, values: pa.ChunkedArray | pa.Array) -> None:
        """Count and compare the leaf's values among those of its top-level column."""
        for name in self.path[1:]:
            # A member is null where its struct is, as struct_field ensures. It takes a text that begins with a dot for
            # a path, and a list of one for a name.
            values = pc.struct_field(values, [name])
        self.add_nulls(values.null_count)
        if self._comparable is None or values.null_count == len(values):
            return
        values = self._comparable(values)
        if pa.types.is_floating(values.type):
            is_nan = pc.is_nan(values)
            if pc.any(is_nan).as_py():
                self._has_nan = True
                values = values.filter(pc.invert(is_nan))
        # Not `pc.min_max`, whose options take longer than the bounds of a few values.
        found = pc.call_function("min_max", [values]).as_py()
        if found["min"] is not None:
            self._lower = found["min"] if self._lower is None else min(self._lower, found["min"])
            self._upper = found["max"] if self._upper is None else max(self._upper, found["max"])

    def add_nulls(self, count: int) -> None:
        """Count nulls, unless the number of earlier ones is unknown."""
        self.null_count = None if self.null_count is None else self.null_count + count

    def add_chunks(self, chunks: Sequence[ChunkStatistics], leaf: Leaf) -> None:
        """Count and compare a file's values by the statistics of its column chunks."""
        for chunk in chunks:
            if chunk.null_count is None:
                self.null_count = None
            else:
                self.add_nulls(chunk.null_count)
        if self._comparable is None or leaf.plain is None:
            return
        for chunk in chunks:
            if chunk.null_count == chunk.num_values:
                continue
            least, most = chunk.bounds or (None, None)
            if chunk.bounds is None or least != least or most != most:
                # One chunk without bounds: none hold for the file.
                self._lower = self._upper = None
                return
            lower, upper = leaf.plain(least), leaf.plain(most)
            self._lower = lower if self._lower is None else min(self._lower, lower)
            self._upper = upper if self._upper is None else max(self._upper, upper)
        self._has_nan = leaf.may_have_nan

    def is_proven(self, leaf: Leaf, chunks: Sequence[ChunkStatistics]) -> bool:
        """Return whether the statistics of the column chunks have all that the values would give."""
        if self._comparable is None:
            return all(chunk.null_count is not None for chunk in chunks)
        return (
            leaf.plain is not None
            and not leaf.may_have_nan
            and all(
                chunk.null_count is not None and (chunk.bounds is not None or chunk.null_count == chunk.num_values)
                for chunk in chunks
            )
        )

    def texts(self) -> _Texts:
        """Return the bounds as JSON."""
        if self._lower is None:
            return None, None
        lower, upper = self._texts(self._lower, self._upper)
        # NaN is the greatest value, and JSON cannot express it.
        return lower, None if self._has_nan else upper


def _in_current_type(values: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if values.type == field.type and not pa.types.is_nested(values.type):
        return values
    if not isinstance(values, pa.ChunkedArray):
        return convert_array(values, field.type, field.name, FILE)
    chunks = [convert_array(chunk, field.type, field.name, FILE) for chunk in values.chunks]
    return pa.chunked_array(chunks, field.type)


def _leaves(members: Iterable[pa.Field], path: ColumnPath = (), keys: ColumnPath = ()) -> Iterator[_Column]:
    for member in members:
        here, key = (*path, member.name), (*keys, physical_name(member))
        if pa.types.is_struct(member.type) and not is_variant(member.type):
            yield from _leaves(member.type, here, key)
        elif not pa.types.is_null(member.type):
            # Arrays, maps and variants count as one leaf, with a null count. A void column is in no file.
            yield _Column(here, key, [f"{_string(name)}:" for name in key], _ways(member.type))


# --- one type --------------------------------------------------------------------------------------------------------


def _ways(kind: pa.DataType) -> _Ways:
    """Return how values of this type become comparable, None if they have no bounds, and how bounds become JSON."""
    if pa.types.is_dictionary(kind):
        comparable, texts = _ways(kind.value_type)
        return (None if comparable is None else lambda values: comparable(values.cast(kind.value_type))), texts
    match codec_of(kind):
        case Integer() | Decimal() as codec:
            return codec.plain_of, lambda lower, upper: (codec.write(lower), codec.write(upper))
        case Float() as codec:
            return lambda values: values.cast(pa.float64()), lambda lower, upper: _float_texts(lower, upper, codec)
        case Text():
            # As bytes, whose order is Spark's; a value that is not UTF-8 then costs its bounds and nothing else.
            if pa.types.is_string(kind):
                return _as_bytes, _string_texts
            return lambda values: values.cast(pa.large_string()).cast(pa.large_binary()), _string_texts
        case Date() as codec:
            return codec.plain_of, _date_texts
        case WallTime() as codec:
            zone = "" if codec.arrow.tz is None else "Z"
            return codec.plain_of, lambda lower, upper: _timestamp_texts(lower, upper, zone)
    return None, lambda lower, upper: (None, None)


def _as_bytes(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    return values.view(pa.binary()) if isinstance(values, pa.Array) else values.cast(pa.binary())


def _float_texts(lower: float, upper: float, codec: Float) -> _Texts:
    infinite = float("inf")
    # Equal zeros may have either sign, and some readers distinguish them: take the sign that bounds both.
    lower, upper = (-0.0 if lower == 0 else lower), (0.0 if upper == 0 else upper)
    return (
        None if abs(lower) == infinite else codec.write(lower),
        None if abs(upper) == infinite else codec.write(upper),
    )


def _string_texts(lower: bytes, upper: bytes) -> _Texts:
    try:
        smallest, greatest = lower.decode(), upper.decode()
    except UnicodeDecodeError:
        return None, None
    cut = _cut_above(greatest)
    # Python's characters are code points: a cut between two of them never splits one.
    return _string(smallest[:_STRING_CHARS]), None if cut is None else _string(cut)


def _cut_above(text: str) -> str | None:
    """Return the first 32 characters and one greater than the next one, or None if that takes too many characters.

    As in the reference implementation, U+007F follows if the text continues in ASCII, else U+10FFFF; if the text itself
    continues with that one, the prefix grows.
    """
    if len(text) <= _STRING_CHARS:
        return text
    for size in range(_STRING_CHARS, min(len(text), _MAX_STRING_CHARS)):
        if text[size] < "\x7f":
            return text[:size] + "\x7f"
        if text[size] < _MAX_CHAR:
            return text[:size] + _MAX_CHAR
    return None


def _date_texts(lower: int, upper: int) -> _Texts:
    return (
        _string(date_text(lower)) if _FIRST_DAY <= lower <= _LAST_DAY else None,
        _string(date_text(upper)) if _FIRST_DAY <= upper <= _LAST_DAY else None,
    )


def _timestamp_texts(lower: int, upper: int, zone: str) -> _Texts:
    # In milliseconds, as readers expect. Down for the minimum; up for the maximum, because not every reader adds the
    # millisecond that others cut off.
    upper = -(-upper // _MILLISECOND_US) * _MILLISECOND_US
    return tuple(  # type: ignore[return-value]
        _string(timestamp_text(value, fraction_digits=3) + zone)
        if _FIRST_DAY * _DAY_US <= value < (_LAST_DAY + 1) * _DAY_US
        else None
        for value in (lower, upper)
    )


# --- JSON ------------------------------------------------------------------------------------------------------------


_string = json.encoder.encode_basestring
# JSON by name.
_Tree: TypeAlias = dict[str, Any]


def _json(num_records: int, columns: Iterable[_Column]) -> str:
    trees: tuple[_Tree, _Tree, _Tree] = ({}, {}, {})
    for column in columns:
        nulls = None if column.null_count is None else str(column.null_count)
        *above, name = column.names
        for tree, text in zip(trees, (*column.texts(), nulls), strict=True):
            if text is not None:
                for outer in above:
                    tree = tree.setdefault(outer, {})
                tree[name] = text
    lower, upper, null_counts = map(_object, trees)
    return f'{{"numRecords":{num_records},"minValues":{lower},"maxValues":{upper},"nullCount":{null_counts}}}'


def _object(tree: _Tree) -> str:
    """Return JSON of a tree whose names and leaves are JSON already: a decimal must not pass through a float."""
    return "{" + ",".join([name + (sub if isinstance(sub, str) else _object(sub)) for name, sub in tree.items()]) + "}"
