"""The statistics of many files as columns: requested ones for pruning, and all as structs for checkpoints.

The texts of all files are decoded as one stream of lines, with the values of each type in its usual form: several times
as fast as one by one. The invariant: reading together is used only if it gives the same result as reading one by one.
Every text must be one object, and every value must have its type's usual form. Otherwise (an exponent in an integer, a
number in quotes, text that is not UTF-8) all files are read one by one. Numbers are read as the column's own type,
never by way of a double; decimals are read one by one.

A member of a struct for checkpoints holds exactly the value of the log's text, or null, which means not known.
Source: protocol, "Per-file Statistics" and "Checkpoint Schema" (`stats_parsed`, `partitionValues_parsed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.partitions import typed_partition_columns
from airflow_txlog.engine.table.columns.statistic_values import (
    PYTHONS_SEPARATOR,
    Bound,
    Reader,
    bound_reader,
    first_after,
    string_bounds,
    value_reader,
)
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of, arrow_type
from airflow_txlog.engine.table.schema.types import DataType, Path, Primitive, StructField, StructType, is_below

Keys: TypeAlias = tuple[str, ...]
"""The physical names of a column and the structs around it, from the top."""

_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_IN_QUOTES = (Primitive.STRING, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?$"
_MAX_COUNT_DIGITS = 18
_MAX_BYTES = 1 << 30
_ABSENT = (b"", b"null")
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
# The type of a value in JSON, and the value of an absent key. A float is parsed by Arrow as its own type.
_JSON_TYPES: dict[DataType, tuple[Any, Any]] = {
    **dict.fromkeys(INTEGERS, (int | None, None)),
    **dict.fromkeys(_FLOATS, (msgspec.Raw, msgspec.Raw())),
    **dict.fromkeys(_IN_QUOTES, (str | None, None)),
}


@dataclass(frozen=True, slots=True)
class AskedColumn:
    """A column whose statistics are wanted. `reader`: None if no bound is trusted."""

    keys: Keys
    type: DataType
    reader: Reader | None
    is_widened: bool = False

    @property
    def is_read_together(self) -> bool:
        is_plain = len(self.keys) == 1 and self.reader is not None and not self.is_widened
        return is_plain and self.type in _JSON_TYPES


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """The bounds of one column (null: none) in the order of the files; `is_bad`: some text is no bound at all."""

    lower: pa.Array
    upper: pa.Array
    is_bad: pa.BooleanArray
    null_count: pa.Array


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """The statistics of some files, in their order. `is_loose`: they are missing, or ignore deleted rows."""

    num_records: pa.Array
    is_loose: pa.BooleanArray
    columns: dict[Keys, ReadColumn]


def read_statistics(texts: pa.StringArray, asked: Sequence[AskedColumn]) -> ReadStatistics:
    """Return the statistics in these texts, one per file; null or empty for a file without any."""
    together = read_together(texts, asked) if all(column.is_read_together for column in asked) else None
    return _read_one_by_one(texts, asked) if together is None else together


# --- together --------------------------------------------------------------------------------------------------------


class _OddValue(Exception):
    """A value that must be read one by one."""


def read_together(texts: pa.StringArray, asked: Sequence[AskedColumn]) -> ReadStatistics | None:
    """Return the statistics, or None if they must be read one by one."""
    has_none = pc.fill_null(pc.equal(pc.binary_length(texts), 0), True)
    lines = _lines(pc.if_else(has_none, "{}", texts) if has_none.true_count else texts)
    decoder = _typed_decoder(tuple((column.keys[0], column.type) for column in asked))
    if not asked or lines is None or decoder is None:
        return None
    try:
        rows = decoder.decode_lines(lines)
        if len(rows) != len(texts):
            return None
        columns = {column.keys: _column(rows, f"f{number}", column) for number, column in enumerate(asked)}
        num_records = pa.array([row.num_records for row in rows], pa.int64())
    except (pa.ArrowException, *_NOT_JSON, OverflowError, _OddValue):
        return None
    is_not_tight = pa.array([row.tight_bounds is False for row in rows], pa.bool_())
    return ReadStatistics(_count(num_records), pc.or_(has_none, is_not_tight), columns)


def _lines(texts: pa.StringArray) -> pa.Buffer | None:
    """Return the texts as lines; None if one may be anything but one object or more.

    Between two of them is a line break between braces, which is no JSON inside an object or a string. So no object is
    in two texts, and there are as many objects as texts only if each text is one.
    """
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if whole.true_count < len(texts) or texts.nbytes > _MAX_BYTES:
        return None
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(together, "\n").buffers()[2]


@lru_cache(maxsize=32)
def _typed_decoder(asked: tuple[tuple[str, DataType], ...]) -> msgspec.json.Decoder[Any] | None:
    """Return the decoder of statistics that has the values of column `i` in members `fi`; None for an odd name."""
    kinds = [_JSON_TYPES[data_type] for _, data_type in asked]
    names = {f"f{number}": name for number, (name, _) in enumerate(asked)}
    try:
        values = msgspec.defstruct(
            "Values", [(member, *kind) for member, kind in zip(names, kinds, strict=True)], rename=names, gc=False
        )
        counts = msgspec.defstruct("Counts", [(member, int | None, None) for member in names], rename=names, gc=False)
    except ValueError:  # a name with a quote, a backslash or a control character
        return None
    fields = [
        ("num_records", int | None, None),
        ("tight_bounds", bool | None, None),
        ("min_values", values | None, None),
        ("max_values", values | None, None),
        ("null_count", counts | None, None),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Statistics", fields, rename="camel", gc=False))


def _column(rows: list[Any], member: str, column: AskedColumn) -> ReadColumn:
    lowest, highest, nulls = (_values(rows, part, member) for part in ("min_values", "max_values", "null_count"))
    lower, bad_lower = _side(lowest, column, 0)
    upper, bad_upper = _side(highest, column, 1)
    return ReadColumn(lower, upper, pc.or_(bad_lower, bad_upper), _count(pa.array(nulls, pa.int64())))


def _values(rows: list[Any], part: str, member: str) -> list[Any]:
    value_of = attrgetter(member)
    return [None if each is None else value_of(each) for each in map(attrgetter(part), rows)]


def _side(found: list[Any], column: AskedColumn, side: int) -> tuple[pa.Array, pa.BooleanArray]:
    """Return the bounds of one side, and whether each text is no bound."""
    none_bad = pa.repeat(pa.scalar(False), len(found))
    if column.type in _FLOATS:
        return _floats(found, arrow_type(column.type)), none_bad
    if column.type in INTEGERS:
        return pa.array(found, arrow_type(column.type)), none_bad
    values = pa.array(found, pa.string())
    if column.type is Primitive.STRING:
        return _string_side(values, side), none_bad
    assert column.reader is not None
    encoded = values.dictionary_encode()
    bounds, bad = _read_side([msgspec.json.encode(text) for text in encoded.dictionary.to_pylist()], column, side)
    return bounds.take(encoded.indices), pc.fill_null(bad.take(encoded.indices), False)


def _floats(found: list[msgspec.Raw | None], arrow: pa.DataType) -> pa.Array:
    texts = pa.array([b"" if raw is None else bytes(raw) for raw in found], pa.binary()).cast(pa.string())
    is_absent = pc.or_(pc.equal(texts, ""), pc.equal(texts, "null"))
    texts = pc.if_else(is_absent, pa.scalar(None, pa.string()), texts)
    is_number = pc.match_substring_regex(texts, _NUMBER)
    if is_number.false_count:
        raise _OddValue
    numbers = texts.cast(arrow)
    if pc.is_finite(numbers).false_count:
        raise _OddValue
    return numbers


def _string_side(values: pa.StringArray, side: int) -> pa.Array:
    """Return one side of `string_bounds` of every element."""
    bounds = _after(values) if side else values
    has_replacement = pc.fill_null(pc.match_substring(values, "\ufffd"), False)
    if not has_replacement.true_count:
        return bounds
    odd = [string_bounds(each)[side] for each in values.filter(has_replacement).to_pylist()]
    return pc.replace_with_mask(bounds, has_replacement, pa.array(odd, pa.string()))


def _after(prefixes: pa.StringArray) -> pa.Array:
    """Return `first_after` of every element: usually its head and the successor of its last character."""
    last = pc.utf8_slice_codeunits(prefixes, start=-1).dictionary_encode()
    successors = [first_after(each) for each in last.dictionary.to_pylist()]
    head = pc.utf8_slice_codeunits(prefixes, start=0, stop=-1)
    after = pc.binary_join_element_wise(head, pa.array(successors, pa.string()).take(last.indices), "")
    # Empty, or ending in the greatest character.
    odd = pc.and_(pc.is_null(after), pc.is_valid(prefixes))
    if not odd.true_count:
        return after
    return pc.replace_with_mask(
        after, odd, pa.array([first_after(each) for each in prefixes.filter(odd).to_pylist()], pa.string())
    )


def _count(counts: pa.Array) -> pa.Array:
    possible = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, 10**_MAX_COUNT_DIGITS))
    return pc.if_else(possible, counts, pa.scalar(None, pa.int64()))


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --- one by one ------------------------------------------------------------------------------------------------------


class StatisticsDecoder:
    """Decodes the statistics of some columns file by file; values stay JSON texts."""

    def __init__(self, columns: Sequence[Keys]) -> None:
        # Attributes are `f0`, `f1`, … because names may be any text.
        attributes = {name: f"f{i}" for i, name in enumerate(dict.fromkeys(keys[0] for keys in columns))}
        texts = [(attribute, msgspec.Raw, msgspec.Raw()) for attribute in attributes.values()]
        names = {attribute: name for name, attribute in attributes.items()}
        self._attributes: dict[str, str] | None = attributes
        values: Any
        try:
            values = msgspec.defstruct("Values", texts, rename=names, gc=False)
        except ValueError:  # a name with a quote, a backslash or a control character
            values, self._attributes = dict[str, msgspec.Raw], None
        fields = [
            ("num_records", msgspec.Raw, msgspec.Raw()),
            ("tight_bounds", bool | None, None),
            *((part, values | None, None) for part in ("min_values", "max_values", "null_count")),
        ]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Statistics", fields, rename="camel", gc=False))

    def decode(self, texts: pa.StringArray) -> list[Any]:
        """Return the statistics of every file; None if they are missing or break the protocol."""
        # As bytes: text that is not UTF-8 must spoil its own file only.
        return [_decoded(self._decoder, text) for text in texts.cast(pa.large_binary()).to_pylist()]

    def texts(self, decoded: list[Any], part: str, keys: Keys) -> list[bytes]:
        """Return the JSON texts of a column in `min_values`, `max_values` or `null_count`, b"" where absent."""
        values = [None if one is None else getattr(one, part) for one in decoded]
        if self._attributes is None:
            texts = [bytes((value or {}).get(keys[0], b"")) for value in values]
        else:
            attribute = self._attributes[keys[0]]
            texts = [b"" if value is None else bytes(getattr(value, attribute)) for value in values]
        for key in keys[1:]:
            members = [_decoded(_MEMBERS, text) or {} for text in texts]
            texts = [bytes(each.get(key, b"")) for each in members]
        return texts


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes | None) -> Any:
    try:
        return decoder.decode(text) if text else None
    except _NOT_JSON:
        return None


def _read_one_by_one(texts: pa.StringArray, asked: Sequence[AskedColumn]) -> ReadStatistics:
    decoder = StatisticsDecoder([column.keys for column in asked])
    decoded = decoder.decode(texts)
    columns = {}
    for column in asked:
        lowest, highest, nulls = (
            decoder.texts(decoded, part, column.keys) for part in ("min_values", "max_values", "null_count")
        )
        (lower, bad_lower), (upper, bad_upper) = _read_side(lowest, column, 0), _read_side(highest, column, 1)
        columns[column.keys] = ReadColumn(lower, upper, pc.or_(bad_lower, bad_upper), _counts(nulls))
    num_records = _counts([b"" if one is None else bytes(one.num_records) for one in decoded])
    is_loose = pa.array([one is None or one.tight_bounds is False for one in decoded], pa.bool_())
    return ReadStatistics(num_records, is_loose, columns)


def _read_side(texts: list[bytes], column: AskedColumn, side: int) -> tuple[pa.Array, pa.BooleanArray]:
    distinct = list(dict.fromkeys(text for text in texts if text not in _ABSENT))
    no_bound: Bound = (None, None)
    read: dict[bytes, Bound | None] = dict.fromkeys((*_ABSENT, *distinct), no_bound)
    if column.reader is not None:
        read.update(zip(distinct, column.reader(distinct), strict=True))
    pairs = [read[text] for text in texts]
    bad = pa.array([pair is None for pair in pairs], pa.bool_())
    return array_of([None if pair is None else pair[side] for pair in pairs], column.type), bad


def _counts(texts: list[bytes]) -> pa.Array:
    counts = {text: int(text) if text.isdigit() and len(text) <= _MAX_COUNT_DIGITS else None for text in set(texts)}
    return pa.array([counts[text] for text in texts], pa.int64())


# --- as structs ------------------------------------------------------------------------------------------------------

_NO_FILES = {"stats": pa.nulls(0, pa.string()), "partition_values": pa.nulls(0, pa.map_(pa.string(), pa.string()))}


class TypedColumns:
    """The members that an add gets in a checkpoint, for the columns that have statistics by the table's properties."""

    def __init__(
        self,
        schema: StructType,
        partition_columns: Sequence[str],
        *,
        indexed_columns: Sequence[Path] | None = None,
        num_indexed_columns: int = -1,
    ) -> None:
        self._schema = schema
        self._partition_columns = list(partition_columns)
        partitions = {name.lower() for name in partition_columns}
        leaves = list(_leaves(each for each in schema if each.name.lower() not in partitions))
        if indexed_columns is not None:
            leaves = [leaf for leaf in leaves if any(is_below(leaf.path, path) for path in indexed_columns)]
        elif num_indexed_columns >= 0:
            leaves = leaves[:num_indexed_columns]
        self._leaves = leaves
        self._decoder = StatisticsDecoder([leaf.keys for leaf in leaves])

    @property
    def fields(self) -> list[pa.Field]:
        """`stats_parsed` and, if the table is partitioned, `partitionValues_parsed`."""
        return [pa.field(name, array.type) for name, array in self._arrays(pa.table(_NO_FILES))]

    def values(self, files: pa.RecordBatch) -> list[pa.Array]:
        """Return the values of `fields`, in their order, for rows of schema FILES."""
        return [array for _, array in self._arrays(pa.Table.from_batches([files]))]

    def knows(self, files: pa.Table) -> bool:
        """Return whether every partition value has a typed form, which a timestamp without a zone has not."""
        typed = typed_partition_columns(files, self._schema, self._partition_columns)
        return all(pc.all(each.known, min_count=0).as_py() for each in typed.values())

    def _arrays(self, files: pa.Table) -> Iterator[tuple[str, pa.Array]]:
        yield "stats_parsed", self._statistics(files.column("stats").combine_chunks())
        if self._partition_columns:
            typed = typed_partition_columns(files, self._schema, self._partition_columns)
            members = [self._schema.find(name) for name in self._partition_columns]
            named = [(each.physical_name, typed[each.name].values) for each in members if each is not None]
            yield "partitionValues_parsed", _struct(named)

    def _statistics(self, texts: pa.StringArray) -> pa.Array:
        decoded = self._decoder.decode(texts)
        # A struct does not show who wrote it, and strings of these writers are no bounds.
        pythons = [text is not None and PYTHONS_SEPARATOR in text for text in texts.to_pylist()]
        lower, upper, counts = [], [], []
        for leaf in self._leaves:
            least, greatest, nulls = (
                self._decoder.texts(decoded, part, leaf.keys) for part in ("min_values", "max_values", "null_count")
            )
            counts.append((leaf.keys, _array(nulls, Primitive.LONG)))
            if leaf.has_bounds:
                sides = leaf.bounds(least, greatest, pythons)
                lower.append((leaf.keys, sides[0]))
                upper.append((leaf.keys, sides[1]))
        records = [b"" if each is None else bytes(each.num_records) for each in decoded]
        tight = [None if each is None else each.tight_bounds for each in decoded]
        members = [
            ("numRecords", _array(records, Primitive.LONG)),
            ("minValues", _tree(lower)),
            ("maxValues", _tree(upper)),
            ("nullCount", _tree(counts)),
            ("tightBounds", pa.array(tight, pa.bool_())),
        ]
        # Parquet has no struct without members.
        kept = [(name, array) for name, array in members if array is not None]
        return _struct(kept, is_null=pa.array([each is None for each in decoded], pa.bool_()))


class _Leaf:
    """A column, or a member of structs, that has statistics."""

    def __init__(self, fields: tuple[StructField, ...]) -> None:
        self.path: Path = tuple(field.name for field in fields)
        self.keys: Keys = tuple(field.physical_name for field in fields)
        self._type = fields[-1].type
        self.has_bounds = value_reader(self._type) is not None
        self._reader = bound_reader(fields[-1])

    def bounds(self, lower: list[bytes], upper: list[bytes], pythons: list[bool]) -> tuple[pa.Array, pa.Array]:
        """Return both sides' bounds; null for strings of the files in `pythons`, and if a side is not trusted."""
        doubtful: set[bytes] = set()
        if self._reader is not None:
            # Texts that a reader of the log does not trust; without a reader it trusts none anyway.
            stated = [text for text in {*lower, *upper} if text not in _ABSENT]
            doubtful = {text for text, bound in zip(stated, self._reader(stated), strict=True) if bound is None}
        is_none = [one in doubtful or other in doubtful for one, other in zip(lower, upper, strict=True)]
        if self._type is Primitive.STRING:
            is_none = [one or other for one, other in zip(is_none, pythons, strict=True)]
        kept = [[b"" if drop else text for text, drop in zip(texts, is_none, strict=True)] for texts in (lower, upper)]
        return _array(kept[0], self._type), _array(kept[1], self._type)


def _leaves(fields: Iterator[StructField], above: tuple[StructField, ...] = ()) -> Iterator[_Leaf]:
    for field in fields:
        if isinstance(field.type, StructType):
            yield from _leaves(iter(field.type), (*above, field))
        elif field.type is not Primitive.VOID:
            yield _Leaf((*above, field))


def _array(texts: list[bytes], data_type: DataType) -> pa.Array:
    """Return the values of JSON texts; each distinct text is read once."""
    read = value_reader(data_type)
    assert read is not None
    values = {text: read(text) for text in set(texts)}
    return array_of([values[text] for text in texts], data_type)


def _tree(leaves: list[tuple[Keys, pa.Array]]) -> pa.Array | None:
    """Return the arrays as a struct of structs by their keys, in order; None for no arrays."""
    if not leaves:
        return None
    groups: dict[str, list[tuple[Keys, pa.Array]]] = {}
    for keys, array in leaves:
        groups.setdefault(keys[0], []).append((keys[1:], array))
    members = [(name, rest[0][1] if rest[0][0] == () else _tree(rest)) for name, rest in groups.items()]
    return _struct([(name, array) for name, array in members if array is not None])


def _struct(members: list[tuple[str, pa.Array]], is_null: pa.Array | None = None) -> pa.StructArray:
    arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for _, array in members]
    fields = [pa.field(name, array.type) for (name, _), array in zip(members, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=is_null)
