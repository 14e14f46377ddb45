"""The requested statistics of many files as columns.

The texts of all files are decoded as one stream of lines, with the values of each type in its usual form: several times
as fast as one by one. The invariant: reading together is used only if it gives the same result as reading one by one.
Every text must be one object, and every value must have its type's usual form. Otherwise (an exponent in an integer, a
number in quotes, text that is not UTF-8) all files are read one by one. Numbers are read as the column's own type,
never by way of a double.
Source: protocol, "Per-file Statistics".
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.table.columns.statistic_values import (
    Bound,
    Reader,
    first_after,
    string_bounds,
    usual_bounds,
)
from airflow_txlog.engine.table.schema.schema import INTEGERS, array_of, arrow_type
from airflow_txlog.engine.table.schema.types import DataType, Primitive

Keys: TypeAlias = tuple[str, ...]
"""The physical names of a column and the structs around it, from the top."""

_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_IN_QUOTES = (Primitive.STRING, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_NUMBER = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?$"
_MAX_COUNT_DIGITS = 18
_MAX_BYTES = 1 << 30
ABSENT = (b"", b"null")
_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
# The type of a bound in JSON. All others are kept as texts: Arrow parses a float as its own type.
_JSON_TYPES: dict[DataType, Any] = {**dict.fromkeys(INTEGERS, int | None), **dict.fromkeys(_IN_QUOTES, str | None)}


@dataclass(frozen=True, slots=True)
class AskedColumn:
    """A column whose statistics are wanted. `reader`: None if no bound is trusted."""

    keys: Keys
    type: DataType
    reader: Reader | None
    is_widened: bool = False

    @property
    def json_type(self) -> Any:
        """The type as which its bounds are decoded; None if they are not."""
        if self.reader is None:
            return None
        return msgspec.Raw if self.is_widened else _JSON_TYPES.get(self.type, msgspec.Raw)


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
    together = read_together(texts, asked) if all(len(column.keys) == 1 for column in asked) else None
    return _read_one_by_one(texts, asked) if together is None else together


# --- together --------------------------------------------------------------------------------------------------------


class _OddValue(Exception):
    """A value that must be read one by one."""


def read_together(texts: pa.StringArray, asked: Sequence[AskedColumn]) -> ReadStatistics | None:
    """Return the statistics, or None if they must be read one by one."""
    has_none = pc.fill_null(pc.equal(pc.binary_length(texts), 0), True)
    lines = _lines(pc.if_else(has_none, "{}", texts) if has_none.true_count else texts)
    decoder = _typed_decoder(tuple((column.keys[0], column.json_type) for column in asked))
    if not asked or lines is None or decoder is None:
        return None
    try:
        rows = decoder.decode_lines(lines)
        if len(rows) != len(texts):
            return None
        columns = {column.keys: _column(rows, f"f{number}", column) for number, column in enumerate(asked)}
        num_records = _integers(list(map(attrgetter("num_records"), rows)), pa.int64())
    except (pa.ArrowException, *_NOT_JSON, OverflowError, _OddValue):
        return None
    tight = list(map(attrgetter("tight_bounds"), rows))
    # Few writers state it.
    is_stated = tight.count(None) < len(tight)
    is_loose = pc.or_(has_none, pc.equal(pa.array(tight, pa.bool_()).fill_null(True), False)) if is_stated else has_none
    return ReadStatistics(_count(num_records), is_loose, columns)


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
def _typed_decoder(asked: tuple[tuple[str, Any], ...]) -> msgspec.json.Decoder[Any] | None:
    """Return the decoder of statistics that has the values of column `i` in members `fi`; None for an odd name."""
    names = {f"f{number}": name for number, (name, _) in enumerate(asked)}
    bounds = [
        (member, kind, msgspec.Raw() if kind is msgspec.Raw else None)
        for member, (_, kind) in zip(names, asked, strict=True)
        if kind is not None
    ]
    try:
        values, counts = (
            msgspec.defstruct(name, members, rename=names, gc=False, frozen=True)
            for name, members in (("Values", bounds), ("Counts", [(member, int | None, None) for member in names]))
        )
    except ValueError:  # a name with a quote, a backslash or a control character
        return None
    fields = [
        ("num_records", int | None, None),
        ("tight_bounds", bool | None, None),
        ("min_values", values | None, values()),
        ("max_values", values | None, values()),
        ("null_count", counts | None, counts()),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Statistics", fields, rename="camel", gc=False))


def _column(rows: list[Any], member: str, column: AskedColumn) -> ReadColumn:
    null_count = _count(_integers(_values(rows, "null_count", member), pa.int64()))
    if column.reader is None:
        unknown = pa.nulls(len(rows), arrow_type(column.type))
        return ReadColumn(unknown, unknown, _none_bad(len(rows)), null_count)
    lower, bad_lower = _side(_values(rows, "min_values", member), column, 0)
    upper, bad_upper = _side(_values(rows, "max_values", member), column, 1)
    return ReadColumn(lower, upper, pc.or_(bad_lower, bad_upper), null_count)


def _values(rows: list[Any], part: str, member: str) -> list[Any]:
    try:
        return list(map(attrgetter(f"{part}.{member}"), rows))
    except AttributeError:  # a part is null
        value_of = attrgetter(member)
        return [None if each is None else value_of(each) for each in map(attrgetter(part), rows)]


def _integers(values: list[Any], arrow: pa.DataType) -> pa.Array:
    """Return the array of integers; without a null as an array of Python, which takes half of the time."""
    try:
        numbers = array("q", values)
    except TypeError:  # a null
        return pa.array(values, arrow)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)]).cast(arrow)


def _side(found: list[Any], column: AskedColumn, side: int) -> tuple[pa.Array, pa.BooleanArray]:
    """Return the bounds of one side, and whether each text is no bound."""
    if column.type in INTEGERS and not column.is_widened:
        return _integers(found, arrow_type(column.type)), _none_bad(len(found))
    is_raw = column.json_type is msgspec.Raw
    texts = _raw_texts(found) if is_raw else pa.array(found, pa.string())
    if column.is_widened:
        return _distinct_side(texts, column, side)
    if column.type in _FLOATS:
        return _floats(texts, arrow_type(column.type)), _none_bad(len(found))
    if column.type is Primitive.STRING:
        return _string_side(texts, side), _none_bad(len(found))
    try:
        bounds = usual_bounds(column.type, texts, side)
    except pa.ArrowInvalid:
        bounds = pa.nulls(len(texts), arrow_type(column.type))
    is_odd = pc.and_(pc.is_valid(texts), pc.is_null(bounds))
    if not is_odd.true_count:
        return bounds, _none_bad(len(found))
    others, are_bad = _distinct_side(texts.filter(is_odd), column, side)
    return pc.replace_with_mask(bounds, is_odd, others), pc.replace_with_mask(_none_bad(len(found)), is_odd, are_bad)


def _none_bad(count: int) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(False), count)


def _raw_texts(found: list[msgspec.Raw | None]) -> pa.StringArray:
    """Return the JSON texts, null where absent or null."""
    texts = pa.array([b"" if raw is None else bytes(raw) for raw in found], pa.binary()).cast(pa.string())
    is_absent = pc.or_(pc.equal(texts, ""), pc.equal(texts, "null"))
    return pc.if_else(is_absent, pa.scalar(None, pa.string()), texts)


def _distinct_side(texts: pa.StringArray, column: AskedColumn, side: int) -> tuple[pa.Array, pa.BooleanArray]:
    """Return one side as `_read_side` reads it, each distinct text once."""
    encoded = texts.dictionary_encode()
    to_json = str.encode if column.json_type is msgspec.Raw else msgspec.json.encode
    bounds, bad = _read_side(list(map(to_json, encoded.dictionary.to_pylist())), column, side)
    return bounds.take(encoded.indices), pc.fill_null(bad.take(encoded.indices), False)


def _floats(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
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
    # Bytes are cut without counting characters, which suffices for a last character of one byte.
    texts = prefixes.cast(pa.binary())
    last = pc.binary_slice(texts, start=-1).dictionary_encode()
    successors = [first_after(each.decode()) if each.isascii() else None for each in last.dictionary.to_pylist()]
    head = pc.binary_slice(texts, start=0, stop=-1)
    after = pc.binary_join_element_wise(head, pa.array(successors, pa.binary()).take(last.indices), b"")
    # Empty, or with a last character of several bytes.
    odd = pc.and_(pc.is_null(after), pc.is_valid(prefixes))
    if odd.true_count:
        others = [(first_after(each) or "").encode() or None for each in prefixes.filter(odd).to_pylist()]
        after = pc.replace_with_mask(after, odd, pa.array(others, pa.binary()))
    return after.cast(pa.string())


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
    distinct = list(dict.fromkeys(text for text in texts if text not in ABSENT))
    no_bound: Bound = (None, None)
    read: dict[bytes, Bound | None] = dict.fromkeys((*ABSENT, *distinct), no_bound)
    if column.reader is not None:
        read.update(zip(distinct, column.reader(distinct), strict=True))
    pairs = [read[text] for text in texts]
    bad = pa.array([pair is None for pair in pairs], pa.bool_())
    return array_of([None if pair is None else pair[side] for pair in pairs], column.type), bad


def _counts(texts: list[bytes]) -> pa.Array:
    counts = {text: int(text) if text.isdigit() and len(text) <= _MAX_COUNT_DIGITS else None for text in set(texts)}
    return pa.array([counts[text] for text in texts], pa.int64())
