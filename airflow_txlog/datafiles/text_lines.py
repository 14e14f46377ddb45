"""Lines of text files, as Spark's own readers of CSV and JSON split them, and rows of CSV lines.

A line ends with a line feed, a carriage return or both, or with the text that the author names. A rest after the last
end is a line unless it is empty. The UTF-8 mark at the start of a file belongs to no line. The invariant: bytes that
are not text in the given encoding are an error, never replaced.

A row of CSV is the one that Spark's reader gives with the same schema, in every mode. A value that Spark refuses in the
mode FAILFAST raises UnfitRow if that is the mode. Any other line or value for which the row is not certain raises
Uncertain: quotes that are not around a whole value, escapes, control characters, more or fewer
values than columns, and numbers, dates and booleans in a spelling that is not in the pattern of their type.
Source: Hadoop, LineReader; Spark, CSVExprUtils, UnivocityParser and CSVOptions.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.failures import Misfit, separator_of

BLOCK_BYTES = 4 * 1024 * 1024

CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
"""Compressions by the ends of file names."""
INFLATED = 10
"""The bytes of text for each byte of a compressed file, about."""
OTHER_CODECS = frozenset({"deflate", "lz4", "lzo", "snappy", "xz"})
"""Ends of file names whose compression is not read here."""
ENCODINGS = {"utf-8": "utf-8", "us-ascii": "ascii", "iso-8859-1": "latin-1"}
"""Python's names of the encodings in which a line end is one byte, by Spark's."""

_ANY_END = re.compile(rb"\r\n|\n|\r")
# The characters that Java's `trim` removes.
_BLANK = "".join(map(chr, range(33)))


class TooMuchText(Exception):
    """A file has more text than the caller allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """How a file is split into lines.

    `line_end` is None for any of the three. `drops_blank` drops lines of blanks and those that begin with `comment`;
    `drops_header` then drops the first line of a file. `is_whole` makes a file one line.
    """

    encoding: str = "utf-8"
    line_end: str | None = None
    drops_blank: bool = False
    comment: str | None = None
    drops_header: bool = False
    is_whole: bool = False


def encoding_named(name: str, *, with_aliases: bool = False) -> str | None:
    """Return the encoding of this name for `TextFormat`, or None if it is not read here.

    Spark 4 knows each by one name, and by its aliases (`utf8`) only with `spark.sql.legacy.javaCharsets`.
    Source: Spark, CharsetProvider.
    """
    if not with_aliases:
        return ENCODINGS.get(name.lower())
    try:
        found = codecs.lookup(name)
    except LookupError:
        return None
    return next((each for each in ENCODINGS.values() if codecs.lookup(each).name == found.name), None)


def compression_of(path: str) -> str | None:
    """Return Arrow's name of the compression of a file, or None."""
    return CODECS.get(path.rpartition("/")[2].rpartition(".")[2])


def lines_of(
    source: Any,
    codec: str | None,
    text: TextFormat,
    start: int = 0,
    end: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    most_bytes: int | None = None,
) -> Iterator[pa.Array]:
    """Yield the lines of an open file that begin at its bytes from `start` up to `end`, exclusive.

    A compressed file, and one that is a single line, belongs to the part that begins at 0. Raises pa.ArrowException,
    OSError and UnicodeDecodeError for other text, and TooMuchText for more than `most_bytes` of text (with
    `start` 0).
    """
    if start and (text.is_whole or codec is not None):
        return
    if codec is not None:
        # Arrow would read 64 KiB at a time.
        source, end = pa.CompressedInputStream(pa.BufferedInputStream(source, block_bytes), codec), None
    source = source if most_bytes is None else _Bounded(source, most_bytes)
    if text.is_whole:
        yield pa.array([_decoded(_without_mark(source.read(), text), text)], pa.string())
        return
    has_header = text.drops_header and not start
    for number, block in enumerate(blocks_of(source, text, start, end, block_bytes)):
        lines = split(block if start or number else _without_mark(block, text), text)
        if text.drops_blank:
            is_filled = _is_filled(lines, text.comment)
            lines = lines if _all(is_filled) else lines.filter(is_filled)
        if has_header:
            # The header may follow in a later block.
            lines, has_header = lines[1:], not len(lines)
        if len(lines):
            yield lines


def line_number(source: Any, codec: str | None, text: TextFormat, row: int) -> int:
    """Return the number in the file, from 1, of the row that `lines_of` yields as this one, from 0."""
    number, left = 0, row + text.drops_header
    for lines in lines_of(source, codec, replace(text, drops_blank=False, drops_header=False)):
        kept = pc.indices_nonzero(_is_filled(lines, text.comment)) if text.drops_blank else pa.array(range(len(lines)))
        if left < len(kept):
            return int(number + kept[left].as_py() + 1)
        number, left = number + len(lines), left - len(kept)
    raise ValueError("the file has fewer rows")


class _Bounded:
    """A stream of at most `most_bytes`: to read more raises TooMuchText."""

    def __init__(self, source: Any, most_bytes: int) -> None:
        self._source, self._left = source, most_bytes

    def read(self, size: int | None = None) -> bytes:
        data: bytes = self._source.read(self._left + 1 if size is None else size)
        self._left -= len(data)
        if self._left < 0:
            raise TooMuchText
        return data


def blocks_of(source: Any, text: TextFormat, start: int, end: int | None, block_bytes: int) -> Iterator[bytes]:
    """Yield blocks of whole lines: those that begin from `start` up to `end`."""
    at, data, is_done = max(start - 1, 0), b"", False
    if at:
        source.seek(at)
    is_inside = start > 0  # in a line that belongs to the part before
    while not is_done:
        more = source.read(block_bytes)
        is_done = not more
        data += more
        if is_inside:
            cut = _line_end(data, 0, text, is_last=is_done)
            if cut is None:
                continue
            at, data, is_inside = at + cut, data[cut:], False
        if end is not None and at + len(data) >= end:
            cut = _line_end(data, end - 1 - at, text, is_last=is_done) if at < end else 0
            if cut is not None:
                if cut:
                    yield data[:cut]
                return
        elif not is_done:
            cut = _last_line_end(data, text)
            if cut:
                yield data[:cut]
                at, data = at + cut, data[cut:]
    if data and not is_inside:
        yield data


def _line_end(data: bytes, start: int, text: TextFormat, *, is_last: bool) -> int | None:
    """Return the end of the line with the byte `start`, its line end included; None if the data do not show it."""
    if text.line_end is not None:
        found = data.find(text.line_end.encode(), start)
        return None if found < 0 else found + len(text.line_end)
    match = _ANY_END.search(data, start)
    # A line feed may follow the data.
    if match is None or (match[0] == b"\r" and match.end() == len(data) and not is_last):
        return None
    return match.end()


def _last_line_end(data: bytes, text: TextFormat) -> int:
    """Return the end of the last line that is certainly whole; 0 for none."""
    if text.line_end is not None:
        found = data.rfind(text.line_end.encode())
        return 0 if found < 0 else found + len(text.line_end)
    limit = len(data) - data.endswith(b"\r")
    return max(data.rfind(b"\n", 0, limit), data.rfind(b"\r", 0, limit)) + 1


def split(block: bytes, text: TextFormat) -> pa.Array:
    """Return the lines of a block."""
    line_end = text.line_end or "\n"
    if text.line_end is None and b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found = _decoded(block.removesuffix(line_end.encode()), text)
    return pc.split_pattern(pa.array([found], pa.large_string()), line_end).flatten().cast(pa.string())


def _decoded(data: bytes, text: TextFormat) -> str:
    if text.is_whole and b"\0" in data[:4]:
        raise pa.ArrowInvalid("the text is of an encoding with several bytes a character")
    return data.decode(text.encoding)


def _without_mark(data: bytes, text: TextFormat) -> bytes:
    return data.removeprefix(codecs.BOM_UTF8) if text.encoding == "utf-8" else data


def _is_filled(lines: pa.Array, comment: str | None) -> pa.Array:
    filled = pc.not_equal(pc.ascii_trim(lines, characters=_BLANK), "")
    return filled if comment is None else pc.and_(filled, pc.invert(pc.starts_with(lines, comment)))


# --- rows of CSV ------------------------------------------------------------------------------------------------------

DELIMITERS = (",", ";", "|", "\t")

_CONTROLS = bytes({*range(32)} - {*b"\t\n"})
# No value has it, as it is one of these.
_SEPARATOR = "\x1f"
# Texts in quotes.
_PLAIN, _DOUBLED = '[^"]*', '(?:[^"]|"")*'
PLAIN_DATE = "[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
"""The pattern of the texts of a DATE in standard form."""
_WHOLE = r"-?[0-9]{1,19}"
# With at most 20 digits before the point and such an exponent, no value overflows. Python writes `1e-05`.
_FLOATING = r"-?[0-9]{1,20}(?:\.[0-9]{1,30})?(?:[eE][+-]?%s)?"
_PATTERNS: dict[pa.DataType, str] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _WHOLE),
    pa.float32(): _FLOATING % "0?[0-9]",
    pa.float64(): _FLOATING % "[0-9]{1,2}",
    pa.bool_(): "true|false",
    pa.date32(): PLAIN_DATE,
}


# Spark's reader removes commas from a decimal, cuts its decimals, and drops a date's time of day.
_MIDNIGHT = r"(?:[ T]00:00(?::00(?:\.0+)?)?)?"
_WHOLE_DATE = rf"\s*[+-]?[0-9]{{4,7}}-[0-9]{{1,2}}-[0-9]{{1,2}}{_MIDNIGHT}\s*"
_OTHER_DIGITS = r"\x{80}-\x{10FFFF}"
_POSSIBLE: dict[pa.DataType, str] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), rf"[+-]?[0-9{_OTHER_DIGITS}]+"),
    **dict.fromkeys(
        (pa.float32(), pa.float64()),
        rf"\s*[+-]?(?:NaN|Inf|Infinity|[0-9.{_OTHER_DIGITS}][0-9a-fA-FxXpP.+\-{_OTHER_DIGITS}]*)\s*",
    ),
    pa.bool_(): "(?i:true|false)",
    pa.date32(): _WHOLE_DATE,
}
_NAMES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
}


def plain_decimal(precision: int, scale: int) -> str:
    """Return the pattern of the texts of a DECIMAL in standard form: digits, and no more of them than the type has."""
    whole = f"[0-9]{{1,{precision - scale}}}" if precision > scale else "0"
    return rf"-?{whole}(?:\.[0-9]{{1,{scale}}})?" if scale else f"-?{whole}"


def exact_decimal(precision: int, scale: int) -> str:
    """Return the pattern of the texts that become a DECIMAL of this type without a change of the number."""
    return rf"[+-]?0*[0-9]{{0,{precision - scale}}}(?:\.[0-9]{{0,{scale}}}0*)?"


def exact_date() -> str:
    """Return the pattern of the texts that may become a DATE without the loss of a time of day."""
    return _WHOLE_DATE


class UnfitRow(Exception):
    """A row that is refused in the mode FAILFAST. `args`: its number among these lines, and its Misfit."""


class Uncertain(Exception):
    """Spark may read a line in another way. `args[0]` names the reason without a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """How a line is cut into values. Quotes are double quotes. A text equal to `null` is null, as is an empty one.

    `escape`: a quote, or the backslash. Without one it is the backslash, and a doubled quote is an error in the mode
    FAILFAST. `is_strict`: the mode is FAILFAST.
    """

    delimiter: str = ","
    null: str = ""
    escape: str | None = None
    is_strict: bool = False


def rows_of_csv(lines: pa.StringArray, columns: pa.Schema, csv: CsvFormat) -> pa.RecordBatch:
    """Return the rows of these lines, none of them blank. Raises Uncertain, UnfitRow."""
    import pyarrow.csv  # noqa: PLC0415 - half a megabyte that only these sources need

    mark, is_doubled = re.escape(csv.delimiter), csv.escape == '"'
    text = joined(lines, "\n")
    has_quotes = b'"' in text
    fits = not has_quotes or _all(_are_values(lines, csv.delimiter, _DOUBLED if is_doubled else _PLAIN))
    if csv.is_strict and not fits:
        _check_quotes(lines, csv)
    # Arrow drops a byte order mark at the start of its input, which can be any line here.
    is_marked = codecs.BOM_UTF8[:1] in text and _any(pc.starts_with(lines, "\ufeff"))
    if is_marked or len(text.translate(None, _CONTROLS if is_doubled else _CONTROLS + b"\\")) < len(text):
        raise Uncertain("a line has a backslash or a control character, or begins with a byte order mark")
    if not fits:
        raise Uncertain("a line has a quote that is not around a whole value")
    if csv.null and has_quotes and _any(pc.match_substring_regex(lines, f'(?:^|{mark})""(?:{mark}|$)')):
        raise Uncertain("a line has an empty value in quotes")
    try:
        found = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            pyarrow.csv.ReadOptions(column_names=columns.names, block_size=len(text) + 1, use_threads=False),
            pyarrow.csv.ParseOptions(delimiter=csv.delimiter, double_quote=is_doubled, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(columns.names, pa.string()), check_utf8=False),
        )
    except pa.ArrowInvalid:
        # Its text quotes the line, and a traceback shows the text of a cause.
        if csv.is_strict:
            marks = pc.count_substring(pc.replace_substring_regex(lines, f'"{_DOUBLED}"', ""), csv.delimiter)
            number = _first(pc.not_equal(marks, len(columns) - 1))
            separator = separator_of(lines[number].as_py(), csv.delimiter, len(columns))
            raise UnfitRow(number, Misfit(separator=separator)) from None
        raise Uncertain("a line has another number of values than the schema has columns") from None
    texts = zip(found.combine_chunks().columns, columns, strict=True)
    is_alone = len(columns) == 1
    typed = [_typed(each, field, csv, is_alone=is_alone) for each, field in texts]
    return pa.RecordBatch.from_arrays(typed, schema=columns)


def has_doubled_quotes(lines: pa.StringArray, delimiter: str) -> pa.BooleanArray:
    """Return for each line whether a doubled quote is in a value in quotes, and no quote is at another place.

    A line with a backslash has none: the backslash may be an escape.
    """
    is_certain = pc.and_not(_are_values(lines, delimiter, _DOUBLED), pc.match_substring(lines, "\\"))
    return pc.and_not(is_certain, _are_values(lines, delimiter, _PLAIN))


def _are_values(lines: pa.StringArray, delimiter: str, inner: str) -> pa.BooleanArray:
    """Return for each line whether it is values without quotes, and values with `inner` in quotes."""
    mark = re.escape(delimiter)
    value = rf'(?:[^"{mark}]*|"{inner}")'
    return pc.match_substring_regex(lines, f"^{value}(?:{mark}{value})*$")


def _check_quotes(lines: pa.StringArray, csv: CsvFormat) -> None:
    """Raise UnfitRow for a doubled quote if no escape is given, and for a line that ends inside of quotes."""
    doubled = has_doubled_quotes(lines, csv.delimiter)
    if csv.escape is None and _any(doubled):
        raise UnfitRow(_first(doubled), Misfit(quote="doubled"))
    if csv.escape == "\\":
        # Spark's own reading is asked for, and it may end a value at a doubled quote.
        return
    # A quote at the end closes such a line.
    closed = pc.binary_join_element_wise(lines, '"', "")
    is_open = pc.and_not(_are_values(closed, csv.delimiter, _DOUBLED), _are_values(lines, csv.delimiter, _DOUBLED))
    if csv.escape is None:
        is_open = pc.and_not(is_open, pc.match_substring(lines, "\\"))
    if _any(is_open):
        raise UnfitRow(_first(is_open), Misfit(quote="open"))


def _typed(texts: pa.ChunkedArray, field: pa.Field, csv: CsvFormat, *, is_alone: bool) -> pa.Array:
    """Return the values of a column, which is the only one with `is_alone`. Raises Uncertain, UnfitRow."""
    [array] = texts.chunks
    alone = csv.delimiter if is_alone else None
    is_null = pc.or_(pc.equal(array, ""), pc.equal(array, csv.null))
    array = pc.if_else(is_null, pa.scalar(None, pa.string()), array)
    kind = field.type
    if pa.types.is_string(kind):
        return array
    pattern, possible, name = _PATTERNS.get(kind), _POSSIBLE.get(kind), _NAMES.get(kind, str(kind))
    if pa.types.is_decimal(kind):
        pattern = plain_decimal(kind.precision, kind.scale)
        possible, name = exact_decimal(kind.precision, kind.scale), f"DECIMAL({kind.precision}, {kind.scale})"
    if pattern is not None and _all_match(array, pattern):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            # A number beyond its type, or no day of a calendar.
            if csv.is_strict:
                raise _unfit(array, _first_not_cast(array, kind), field.name, name, alone) from None
    if csv.is_strict and possible is not None:
        fits = pc.match_substring_regex(array, f"^(?:{possible})$")
        if not _all(fits):
            raise _unfit(array, _first(pc.invert(fits)), field.name, name, alone)
    raise Uncertain(f"column {field.name!r} has a value that may be no {name}")


def joined(texts: pa.StringArray, separator: str) -> bytes:
    """Return all texts as one, null as an empty one."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.fill_null(""))
    return bytes(pc.binary_join(whole, separator)[0].as_buffer())


def _all_match(values: pa.StringArray, pattern: str) -> bool:
    """Return whether each value of CSV is null, empty or what the pattern describes.

    One search takes half of the time that many take.
    """
    text = pa.array([joined(values, _SEPARATOR) + _SEPARATOR.encode()], pa.binary())
    return _all(pc.match_substring_regex(text, f"^(?:(?:{pattern})?{_SEPARATOR})*$"))


def _unfit(array: pa.Array, number: int, column: str, kind: str, alone: str | None) -> UnfitRow:
    """Return the error for a value. `alone`: the separator, if the column is the only one."""
    text: str = array[number].as_py()
    separator, has_blanks = separator_of(text, alone) if alone else None, text != text.strip(_BLANK)
    return UnfitRow(number, Misfit(column=column, kind=kind, separator=separator, has_blanks=has_blanks))


def _first_not_cast(array: pa.Array, kind: pa.DataType) -> int:
    start, end = 0, len(array)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            array[start:middle].cast(kind)
            start = middle
        except pa.ArrowInvalid:
            end = middle
    return start


def _first(found: pa.BooleanArray) -> int:
    return int(pc.index(found, True).as_py())


def _any(found: pa.BooleanArray) -> bool:
    return bool(pc.any(found).as_py())


def _all(found: pa.BooleanArray) -> bool:
    return bool(pc.all(found).as_py() is not False)
