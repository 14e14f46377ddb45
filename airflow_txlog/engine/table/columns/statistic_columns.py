"""The statistics of many files parsed column by column: what `statistics` does file by file, many times as fast.

Arrow's JSON reader takes the texts of all files as one stream of lines. The invariant: it answers for all of them as
reading each by itself would, or it does not answer at all, and they are read one by one. So every text must be one
object on one line, and every asked value must be of the form that its type is written in; the least thing that is not
(an exponent in an integer, a duplicate key, a number in quotes, a line break, text that is not UTF-8) ends the attempt.
Numbers are read as the column's own type and never by way of a double; decimals are left to the slow way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from airflow_txlog.engine.table.columns.statistic_values import Reader, first_after, string_bounds
from airflow_txlog.engine.table.schema.schema import INTEGERS, DataType, Primitive, array_of, arrow_type

_FLOATS = (Primitive.FLOAT, Primitive.DOUBLE)
_IN_QUOTES = (Primitive.STRING, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_TYPES = (*INTEGERS, *_FLOATS, *_IN_QUOTES)
# Of exponents this long the slow way believes none.
_LONG_EXPONENT = re.compile(rb"[eE][+-]?\d{5}")
# Counts have at most 18 digits.
_COUNT_LIMIT = 10**18
_BLOCK_BYTES = 2 << 20
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class AskedColumn:
    """A column at the top of the schema: its name in statistics, and how its texts are read."""

    key: str
    type: DataType
    reader: Reader


@dataclass(frozen=True, slots=True)
class Side:
    """The bounds of one side (null: none), and where the text is no bound at all, which spoils the other side too."""

    bounds: pa.Array
    is_bad: pa.BooleanArray


@dataclass(frozen=True, slots=True)
class ParsedColumn:
    """One column of some files, in their order."""

    lower: Side
    upper: Side
    null_count: pa.Array


@dataclass(frozen=True, slots=True)
class ParsedStatistics:
    """The statistics of some files, in their order, and of each asked column by its key."""

    num_records: pa.Array
    is_loose: pa.BooleanArray
    """Where there are no statistics, or where they say that they do not know of deleted rows."""
    columns: dict[str, ParsedColumn]


def can_parse(data_type: DataType) -> bool:
    """Whether statistics of this type can be parsed here at all."""
    return data_type in _TYPES


def parse_columns(texts: pa.StringArray, asked: Sequence[AskedColumn]) -> ParsedStatistics | None:
    """What the slow way reads from the same texts, or None where that cannot be promised."""
    if not asked or not all(can_parse(column.type) for column in asked):
        return None
    has_none = pc.fill_null(pc.equal(pc.binary_length(texts), 0), True)
    lines = _lines(pc.if_else(has_none, "{}", texts))
    if lines is None or (any(column.type in _FLOATS for column in asked) and _LONG_EXPONENT.search(lines)):
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(lines),
            read_options=pj.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pj.ParseOptions(explicit_schema=_schema(asked), unexpected_field_behavior="ignore"),
        )
        if table.num_rows != len(texts):
            return None
        columns = {column.key: _column(table, column) for column in asked}
    except (pa.ArrowException, _OtherError):
        return None
    tight = _only_chunk(table.column("tightBounds"))
    return ParsedStatistics(
        _count(_only_chunk(table.column("numRecords"))),
        pc.or_(has_none, pc.fill_null(pc.invert(tight), False)),
        columns,
    )


class _OtherError(Exception):
    """A value that only the slow way can judge."""


def _lines(texts: pa.StringArray) -> bytes | None:
    """The texts as lines; None where one may be anything but one object on one line.

    A text that begins with "{", ends with "}" and is followed by another that does the same cannot share an object
    with it: after a value stands a comma, and no string goes on over a line break. So there are as many objects as
    texts only if each holds one.
    """
    whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if whole.true_count < len(texts) or texts.nbytes > _MAX_BYTES:
        return None
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    lines: bytes = pc.binary_join(together, "\n").buffers()[2].to_pybytes()
    if lines.count(b"\n") != len(texts) - 1 or b"\r" in lines or b"\0" in lines:
        return None
    try:
        if not lines.isascii():
            lines.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return lines


def _schema(asked: Sequence[AskedColumn]) -> pa.Schema:
    types = {column.key: pa.string() if column.type in _IN_QUOTES else arrow_type(column.type) for column in asked}
    values = pa.struct(list(types.items()))
    counts = pa.struct([(key, pa.int64()) for key in types])
    return pa.schema(
        [
            ("numRecords", pa.int64()),
            ("tightBounds", pa.bool_()),
            ("minValues", values),
            ("maxValues", values),
            ("nullCount", counts),
        ]
    )


def _column(table: pa.Table, column: AskedColumn) -> ParsedColumn:
    lowest, highest, nulls = (
        _only_chunk(pc.struct_field(table.column(name), [table.schema.field(name).type.get_field_index(column.key)]))
        for name in ("minValues", "maxValues", "nullCount")
    )
    return ParsedColumn(_side(lowest, column, 0), _side(highest, column, 1), _count(nulls))


def _side(values: pa.Array, column: AskedColumn, side: int) -> Side:
    none_bad = pa.repeat(pa.scalar(False), len(values))
    if column.type in INTEGERS:
        return Side(values, none_bad)
    if column.type in _FLOATS:
        if not pc.all(pc.fill_null(pc.is_finite(values), True), min_count=0).as_py():
            raise _OtherError
        return Side(values, none_bad)
    if column.type is Primitive.STRING:
        return Side(_string_side(values, side), none_bad)
    # Each distinct text is read once, by the same reader as in the slow way.
    encoded = values.dictionary_encode()
    pairs = column.reader([msgspec.json.encode(text) for text in encoded.dictionary.to_pylist()])
    bounds = array_of([None if pair is None else pair[side] for pair in pairs], column.type)
    bad = pa.array([pair is None for pair in pairs], pa.bool_())
    return Side(bounds.take(encoded.indices), pc.fill_null(bad.take(encoded.indices), False))


def _string_side(values: pa.StringArray, side: int) -> pa.Array:
    """Return one side of `string_bounds` of every element."""
    bounds = _after(values) if side else values
    has_replacement = pc.fill_null(pc.match_substring(values, "\ufffd"), False)
    if not has_replacement.true_count:
        return bounds
    odd = [string_bounds(each)[side] for each in values.filter(has_replacement).to_pylist()]
    return pc.replace_with_mask(bounds, has_replacement, pa.array(odd, pa.string()))


def _after(prefixes: pa.StringArray) -> pa.Array:
    """`first_after` of every element: the last character of most of them has a successor, of which there are few."""
    last = pc.utf8_slice_codeunits(prefixes, start=-1).dictionary_encode()
    successors = [first_after(each) for each in last.dictionary.to_pylist()]
    head = pc.utf8_slice_codeunits(prefixes, start=0, stop=-1)
    after = pc.binary_join_element_wise(head, pa.array(successors, pa.string()).take(last.indices), "")
    # Empty, or ending in the greatest character: none has a successor by its last character alone.
    odd = pc.and_(pc.is_null(after), pc.is_valid(prefixes))
    if not odd.true_count:
        return after
    return pc.replace_with_mask(
        after, odd, pa.array([first_after(each) for each in prefixes.filter(odd).to_pylist()], pa.string())
    )


def _count(counts: pa.Array) -> pa.Array:
    possible = pc.and_(pc.greater_equal(counts, 0), pc.less(counts, _COUNT_LIMIT))
    return pc.if_else(possible, counts, pa.scalar(None, pa.int64()))


def _only_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
