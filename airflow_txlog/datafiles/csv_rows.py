"""Rows of CSV lines that Spark certainly reads in the same way.

The invariant: a row is the one that Spark's reader gives with the same schema, in every mode. A line or a value for
which that is not certain raises Uncertain: quotes that are not around a whole value, escapes, control characters, more
or fewer values than columns, and numbers, dates and booleans in a spelling that is not in the pattern of their type.
Source: Spark, UnivocityParser and CSVOptions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

DELIMITERS = (",", ";", "|", "\t")

# Arrow drops a byte order mark at the start of its input, which can be any line here.
_ODD = r"[\x00-\x08\x0b-\x1f\\]|^\x{FEFF}"
_WHOLE = r"-?[0-9]{1,19}"
# With at most 20 digits before the point and an exponent of one digit, no value overflows.
_FLOATING = r"-?[0-9]{1,20}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9])?"
_PATTERNS: dict[pa.DataType, str] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _WHOLE),
    **dict.fromkeys((pa.float32(), pa.float64()), _FLOATING),
    pa.bool_(): "true|false",
    pa.date32(): r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}",
}


class Uncertain(Exception):
    """Spark may read a line in another way. `args[0]` names the reason without a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """How a line is cut into values. Quotes are double quotes. A text equal to `null` is null, as is an empty one."""

    delimiter: str = ","
    null: str = ""


def rows_of_csv(lines: pa.StringArray, columns: pa.Schema, csv: CsvFormat) -> pa.RecordBatch:
    """Return the rows of these lines, none of them blank. Raises Uncertain."""
    import pyarrow.csv  # noqa: PLC0415 - half a megabyte that only these sources need

    mark = re.escape(csv.delimiter)
    value = rf'(?:[^"{mark}]*|"[^"]*")'
    if _any(pc.match_substring_regex(lines, _ODD)):
        raise Uncertain("a line has a backslash or a control character, or begins with a byte order mark")
    if not _all(pc.match_substring_regex(lines, f"^{value}(?:{mark}{value})*$")):
        raise Uncertain("a line has a quote that is not around a whole value")
    if csv.null and _any(pc.match_substring_regex(lines, f'(?:^|{mark})""(?:{mark}|$)')):
        raise Uncertain("a line has an empty value in quotes")
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text = pc.binary_join(whole, "\n")[0].as_buffer()
    try:
        found = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(column_names=columns.names, block_size=len(text) + 1, use_threads=False),
            pyarrow.csv.ParseOptions(delimiter=csv.delimiter, double_quote=False, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns.names, pa.string()), check_utf8=False),
        )
    except pa.ArrowInvalid as error:
        raise Uncertain("a line has another number of values than the schema has columns") from error
    texts = zip(found.combine_chunks().columns, columns, strict=True)
    return pa.RecordBatch.from_arrays([_typed(each, field, csv) for each, field in texts], schema=columns)


def _typed(texts: pa.ChunkedArray, field: pa.Field, csv: CsvFormat) -> pa.Array:
    """Return the values of a column. Raises Uncertain."""
    [array] = texts.chunks
    is_null = pc.or_(pc.equal(array, ""), pc.equal(array, csv.null))
    array = pc.if_else(is_null, pa.scalar(None, pa.string()), array)
    kind = field.type
    if pa.types.is_string(kind):
        return array
    pattern = _PATTERNS.get(kind)
    if pa.types.is_decimal(kind):
        fraction = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        pattern = rf"-?[0-9]{{1,{max(1, kind.precision - kind.scale)}}}{fraction}"
    if pattern is None or not _all(pc.match_substring_regex(array, f"^(?:{pattern})$")):
        raise Uncertain(f"column {field.name!r} has a value that may be no {kind}")
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise Uncertain(f"column {field.name!r} has a value that is no {kind}") from error


def _any(found: pa.BooleanArray) -> bool:
    return bool(pc.any(found).as_py())


def _all(found: pa.BooleanArray) -> bool:
    return bool(pc.all(found).as_py() is not False)
