"""Rows of lines of JSON, each of them one flat object, as Spark's own reader gives them in every mode.

Arrow converts the values, and it is more lenient than Spark in some places, and less in others. The invariant: a row is
the one that Spark gives, or the lines raise Uncertain. A pattern therefore admits only lines of the plain grammar:
without comments, nested values, escapes in keys, halves of surrogates and text after the object. Arrow refuses a
column's key twice in a line, and a value that is not of the column's type. The rest is checked here: decimals, dates,
times, and numbers that Spark converts twice.
Source: Spark, JacksonParser; Jackson, ParserBase and StreamReadConstraints.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.text_lines import PLAIN_DATE, Uncertain, joined, plain_decimal

_BLANKS = r"[ \t]*"
_HEX = "[0-9a-fA-F]"
_UNICODE = rf"u(?:[0-9abcefABCEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][cdefCDEF]{_HEX}{{2}})"
_TEXT = rf'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|{_UNICODE}))*"'
# Spark reads `-0` as 0 where Arrow reads -0.0. Jackson refuses numbers of more than 1,000 characters.
_NUMBER = r"(?:0|-?[1-9][0-9]{0,39}|-?(?:0|[1-9][0-9]{0,39})\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?"
_MEMBER = rf'"[^"\\\x00-\x1f]*"{_BLANKS}:{_BLANKS}(?:{_TEXT}|{_NUMBER}|true|false|null){_BLANKS}'
_OBJECT = rf"^{_BLANKS}\{{{_BLANKS}(?:{_MEMBER}(?:,{_BLANKS}{_MEMBER})*)?\}}{_BLANKS}$"
# Jackson refuses longer names, and texts that are longer than the line may be.
_MOST_IN_NAME, _MOST_IN_LINE = 50_000, 16 * 1024 * 1024
# Of a longer whole number Jackson makes a double, and then a float: it loses digits twice.
_MOST_IN_FLOAT = 1e18

_TIME = rf"{PLAIN_DATE}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?"
_ZONE = "(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])"


def rows_of_json(lines: pa.StringArray, columns: pa.Schema, *, is_utc: bool = False) -> pa.RecordBatch:
    """Return the rows of these lines, of which blank ones have none. Raises Uncertain.

    `is_utc`: a time without a zone is one in UTC. Otherwise it is not certain for a TIMESTAMP.
    """
    import pyarrow.json  # noqa: PLC0415 - only these sources need it

    lines = lines.filter(pc.invert(pc.match_substring_regex(lines, f"^{_BLANKS}$")))
    if not len(lines):
        return pa.RecordBatch.from_pylist([], columns)
    _check_lines(lines, columns)
    text = joined(lines, "\n")
    as_text = pa.schema([field.with_type(pa.string()) if _is_text(field.type) else field for field in columns])
    try:
        found = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            pyarrow.json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        # Its text quotes the value, and a traceback shows the text of a cause.
        raise Uncertain("a line has a key twice, or a value that may not be of its column's type") from None
    arrays = found.select(columns.names).combine_chunks().columns
    typed = [_typed(array.chunk(0), field, is_utc=is_utc) for array, field in zip(arrays, columns, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=columns)


def _check_lines(lines: pa.StringArray, columns: pa.Schema) -> None:
    """Raise Uncertain for a line that is no plain object, and for a DECIMAL in another form than digits and a point."""
    if not _all(pc.match_substring_regex(lines, _OBJECT)):
        raise Uncertain("a line is not one flat object of JSON in its plain form")
    long = lines.filter(pc.greater(pc.binary_length(lines), _MOST_IN_NAME)).to_pylist()
    if any(len(line) > _MOST_IN_LINE or re.search(rf'"[^"\\]{{{_MOST_IN_NAME},}}"\s*:', line) for line in long):
        raise Uncertain("a line has a very long text or name")
    # Every key, and no text, ends with a quote before a colon.
    decimals = {re.escape(field.name): field.type for field in columns if pa.types.is_decimal(field.type)}
    numbers = {name: plain_decimal(kind.precision, kind.scale) for name, kind in decimals.items()}
    keys = [f'"{name}"{_BLANKS}:' for name in decimals]
    values = [rf'{_BLANKS}(?:null|{each}|"{each}"){_BLANKS}[,}}]' for each in numbers.values()]
    plain = "|".join(key + value for key, value in zip(keys, values, strict=True))
    if decimals and _count(lines, "|".join(keys)) != _count(lines, plain):
        raise Uncertain("a column of the type DECIMAL has a value in another form than digits and a point")


def _typed(array: pa.Array, field: pa.Field, *, is_utc: bool) -> pa.Array:
    """Return the values of a column. Raises Uncertain."""
    kind, why = field.type, f"column {field.name!r} has a value that may be no {field.type}"
    if pa.types.is_float32(kind) and not _all(pc.less(pc.abs(array), _MOST_IN_FLOAT)):
        raise Uncertain(why)
    if not _is_text(kind):
        return array
    if not _all(pc.match_substring_regex(array, f"^(?:{_pattern(kind, is_utc=is_utc)})$")):
        raise Uncertain(why)
    if pa.types.is_timestamp(kind) and kind.tz is not None and is_utc:
        has_zone = pc.match_substring_regex(array, f"{_ZONE}$")
        array = pc.if_else(has_zone, array, pc.binary_join_element_wise(array, "Z", ""))
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        # No day of a calendar, or no time of a day.
        raise Uncertain(why) from None


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a value of the type is written as a text that is converted here."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _pattern(kind: pa.DataType, *, is_utc: bool) -> str:
    if pa.types.is_date(kind):
        return PLAIN_DATE
    if kind.tz is None:
        return _TIME
    return f"{_TIME}{_ZONE}{'?' if is_utc else ''}"


def _count(lines: pa.StringArray, pattern: str) -> int:
    return int(pc.sum(pc.count_substring_regex(lines, pattern)).as_py())


def _all(found: pa.BooleanArray) -> bool:
    return bool(pc.all(found).as_py() is not False)
