"""The statistics of a data file that we write: `add.stats`, as JSON.

They are computed from the values while the file is written. Those of a file that another engine wrote are taken from
its footer, which leaves out NaN: then a float has no maximum. The invariant: a bound written here holds for every value
of the column in Spark's order (NaN above all numbers, -0.0 = 0.0), also for a reader that takes it literally; a bound
that JSON cannot express is left out.
Source: protocol, "Per-file Statistics"; soundness, A6.
"""

from __future__ import annotations

import decimal
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

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
from airflow_txlog.datafiles.parquet.physical import FileFields, physical_name
from airflow_txlog.datafiles.parquet.reading import calendar_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

INDEXED_COLUMNS_DEFAULT = 32  # protocol: delta.dataSkippingNumIndexedCols

ColumnPath: TypeAlias = tuple[str, ...]
# The JSON texts of a minimum and a maximum; None leaves the bound out.
_Texts: TypeAlias = tuple[str | None, str | None]

_STRING_CHARS = 32
_MAX_STRING_CHARS = 2 * _STRING_CHARS
_MAX_CHAR = chr(0x10FFFF)
# Only dates with a four-digit year: readers fail on others.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US = 86_400 * SECOND_US
_MILLISECOND_US = SECOND_US // 1000
_MICROSECONDS = {"ms": _MILLISECOND_US, "us": 1}
_EXACT = decimal.Context(prec=80)
_OLD_WRITER = re.compile(r"parquet-mr (?:version )?(?:0|1\.\d)(?!\d)")


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

    def update(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows of the file, with each of the schema's columns in some form."""
        self._num_records += rows.num_rows
        fields = FileFields(rows.schema)
        for name, columns in list(self._columns.items()):
            field = self._schema.field(name)
            found = fields.find(field)
            assert found is not None
            held, nulls = rows.column(found), 0
            if isinstance(held, pa.ChunkedArray) and pa.types.is_dictionary(held.type) and held.type != field.type:
                # Each value counts once for the bounds. Nulls are counted before they are dropped.
                used = [chunk.dictionary.take(pc.unique(chunk.indices.drop_null())) for chunk in held.chunks]
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

    def add_footer(self, parquet: pq.ParquetFile, leaves: FooterLeaves) -> None:
        """Add a whole file by its footer, which `open_data_file` has checked.

        `leaves`: those of the file, or of one with an equal schema and equal metadata. A bound that a footer does not
        prove is left out, and so is the null count of a list or a map.
        """
        metadata = parquet.metadata
        self._num_records += metadata.num_rows
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        groups = [group for group in groups if group.num_rows]
        for column in (column for columns in self._columns.values() for column in columns):
            if column.keys[0] not in leaves.names:
                column.add_nulls(metadata.num_rows)
                continue
            leaf = leaves.found.get(column.keys)
            if leaf is None:
                column.null_count = None
            else:
                column.add_chunks([group.column(leaf.number) for group in groups], leaf)

    def finish(self) -> str:
        """Return the JSON of `add.stats` for all rows so far."""
        minimums: dict[str, Any] = {}
        maximums: dict[str, Any] = {}
        null_counts: dict[str, Any] = {}
        for column in (column for columns in self._columns.values() for column in columns):
            lower, upper = column.texts()
            _put(minimums, column.keys, lower)
            _put(maximums, column.keys, upper)
            _put(null_counts, column.keys, None if column.null_count is None else str(column.null_count))
        return _object(
            {
                "numRecords": str(self._num_records),
                "minValues": minimums,
                "maxValues": maximums,
                "nullCount": null_counts,
            }
        )


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
    """The statistics so far of one leaf: a column, or a member of structs. `keys` are its physical names."""

    def __init__(self, path: ColumnPath, keys: ColumnPath, kind: pa.DataType) -> None:
        self.path = path
        self.keys = keys
        self.null_count: int | None = 0
        self._comparable, self._texts = _ways(kind)
        self._lower: Any = None
        self._upper: Any = None
        self._has_nan = False

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
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            self._lower = found["min"] if self._lower is None else min(self._lower, found["min"])
            self._upper = found["max"] if self._upper is None else max(self._upper, found["max"])

    def add_nulls(self, count: int) -> None:
        """Count nulls, unless the number of earlier ones is unknown."""
        self.null_count = None if self.null_count is None else self.null_count + count

    def add_chunks(self, chunks: Sequence[Any], leaf: _Leaf) -> None:
        """Count and compare a file's values by the statistics of its column chunks."""
        found = [chunk.statistics if chunk.is_stats_set else None for chunk in chunks]
        for each in found:
            if each is None or not each.has_null_count:
                self.null_count = None
            else:
                self.add_nulls(each.null_count)
        if self._comparable is None or leaf.plain is None:
            return
        for each, chunk in zip(found, chunks, strict=True):
            if each is not None and each.has_null_count and each.null_count == chunk.num_values:
                continue
            if each is None or not each.has_min_max or each.min_raw != each.min_raw or each.max_raw != each.max_raw:
                # One chunk without bounds: none hold for the file.
                self._lower = self._upper = None
                return
            lower, upper = leaf.plain(each.min_raw), leaf.plain(each.max_raw)
            self._lower = lower if self._lower is None else min(self._lower, lower)
            self._upper = upper if self._upper is None else max(self._upper, upper)
        self._has_nan = leaf.may_have_nan

    def texts(self) -> _Texts:
        """Return the bounds as JSON."""
        if self._lower is None:
            return None, None
        lower, upper = self._texts(self._lower, self._upper)
        # NaN is the greatest value, and JSON cannot express it.
        return lower, None if self._has_nan else upper


def _in_current_type(values: pa.ChunkedArray | pa.Array, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if not isinstance(values, pa.ChunkedArray):
        return convert_array(values, field.type, field.name, FILE)
    chunks = [convert_array(chunk, field.type, field.name, FILE) for chunk in values.chunks]
    return pa.chunked_array(chunks, field.type)


def _leaves(members: Iterable[pa.Field], path: ColumnPath = (), keys: ColumnPath = ()) -> Iterator[_Column]:
    for member in members:
        here, key = (*path, member.name), (*keys, physical_name(member))
        if pa.types.is_struct(member.type):
            yield from _leaves(member.type, here, key)
        elif not pa.types.is_null(member.type):
            # Arrays and maps count as one leaf, with a null count. A void column is in no file.
            yield _Column(here, key, member.type)


# --- the footer of another writer ------------------------------------------------------------------------------------


class _Leaf(NamedTuple):
    """A leaf of a file outside of lists and maps. `plain` converts a physical bound; None if no bound is proven."""

    number: int
    plain: Callable[[Any], Any] | None
    may_have_nan: bool


class FooterLeaves(NamedTuple):
    """The names of a file's columns, and its leaves by their path."""

    names: frozenset[str]
    found: Mapping[ColumnPath, _Leaf]


def leaves_of_footer(parquet: pq.ParquetFile) -> FooterLeaves:
    """Return what statistics need to know of an open file's columns."""
    schema, arrow = parquet.schema, parquet.schema_arrow
    types = dict(_leaf_types(arrow))
    paths: dict[str, ColumnPath | None] = {}
    for path in types:
        joined = ".".join(path)
        # Names may hold dots: a path that two leaves share belongs to neither.
        paths[joined] = None if joined in paths else path
    is_old = _OLD_WRITER.match(parquet.metadata.created_by or "") is not None
    legacy = calendar_of(parquet)
    found: dict[ColumnPath, _Leaf] = {}
    for index in range(len(schema)):
        column = schema.column(index)
        place = paths.get(column.path)
        if place is not None and not column.max_repetition_level:
            kind = types[place]
            is_unsure = legacy.is_legacy and pa.types.is_temporal(kind)
            plain = None if is_unsure else _plain_bound(column, kind, is_old=is_old)
            found[place] = _Leaf(index, plain, pa.types.is_floating(kind))
    return FooterLeaves(frozenset(arrow.names), found)


def _leaf_types(members: Iterable[pa.Field], path: ColumnPath = ()) -> Iterator[tuple[ColumnPath, pa.DataType]]:
    for member in members:
        if pa.types.is_struct(member.type):
            yield from _leaf_types(member.type, (*path, member.name))
        else:
            yield (*path, member.name), member.type


def _plain_bound(column: pq.ColumnSchema, kind: pa.DataType, *, is_old: bool) -> Callable[[Any], Any] | None:
    """Return how a bound of a column chunk becomes the plain value that `_Column` compares."""
    is_a = pa.types
    if is_a.is_dictionary(kind):
        kind = kind.value_type
    if is_a.is_signed_integer(kind) or is_a.is_date32(kind):
        return int
    if is_a.is_float32(kind) or is_a.is_float64(kind):
        return float
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return bytes
    if is_a.is_decimal(kind):
        # Early writers compared the bytes of decimals without a sign.
        if column.physical_type not in ("INT32", "INT64") and is_old:
            return None
        return partial(_decimal_bound, kind.scale)
    if is_a.is_timestamp(kind) and column.physical_type == "INT64" and kind.unit in _MICROSECONDS:
        return partial(mul, _MICROSECONDS[kind.unit])
    return None


def _decimal_bound(scale: int, raw: int | bytes) -> decimal.Decimal:
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return decimal.Decimal(unscaled).scaleb(-scale, _EXACT)


# --- one type --------------------------------------------------------------------------------------------------------


def _ways(kind: pa.DataType) -> tuple[Callable[[Any], Any] | None, Callable[[Any, Any], _Texts]]:
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
                return lambda values: values.cast(pa.binary()), _string_texts
            return lambda values: values.cast(pa.large_string()).cast(pa.large_binary()), _string_texts
        case Date() as codec:
            return codec.plain_of, _date_texts
        case WallTime() as codec:
            zone = "" if codec.arrow.tz is None else "Z"
            return codec.plain_of, lambda lower, upper: _timestamp_texts(lower, upper, zone)
    return None, lambda lower, upper: (None, None)


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


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _put(tree: dict[str, Any], path: ColumnPath, text: str | None) -> None:
    """Set a leaf of the tree, and the objects on its way, if there is a text."""
    if text is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = text


def _object(tree: dict[str, Any]) -> str:
    """Return JSON of a tree whose leaves are JSON already: a decimal must not pass through a float."""
    members = (f"{_string(name)}:{_object(sub) if isinstance(sub, dict) else sub}" for name, sub in tree.items())
    return "{" + ",".join(members) + "}"
