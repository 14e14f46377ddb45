"""Lines of text files, as Spark's own readers of CSV and JSON split them.

A line ends with a line feed, a carriage return or both, or with the text that the author names. A rest after the last
end is a line unless it is empty. The UTF-8 mark at the start of a file belongs to no line. The invariant: bytes that
are not text in the given encoding are an error, never replaced. Source: Hadoop, LineReader; Spark, CSVExprUtils.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
    """A compressed file has more text than the caller allows."""


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
    most_inflated: int | None = None,
) -> Iterator[pa.Array]:
    """Yield the lines of an open file that begin at its bytes from `start` up to `end`, exclusive.

    A compressed file, and one that is a single line, belongs to the part that begins at 0. Raises pa.ArrowException,
    OSError and UnicodeDecodeError for other text, and TooMuchText if a compressed file has more than `most_inflated`
    bytes of it.
    """
    if start and (text.is_whole or codec is not None):
        return
    if codec is not None:
        # Arrow would read 64 KiB at a time.
        source, end = pa.CompressedInputStream(pa.BufferedInputStream(source, block_bytes), codec), None
        source = source if most_inflated is None else _Bounded(source, most_inflated)
    if text.is_whole:
        yield pa.array([_decoded(_without_mark(source.read(), text), text)], pa.string())
        return
    has_header = text.drops_header and not start
    for number, block in enumerate(_blocks(source, text, start, end, block_bytes)):
        lines = _split(block if start or number else _without_mark(block, text), text)
        if text.drops_blank:
            lines = lines.filter(_is_filled(lines, text.comment))
        if has_header:
            # The header may follow in a later block.
            lines, has_header = lines[1:], not len(lines)
        if len(lines):
            yield lines


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


def _blocks(source: Any, text: TextFormat, start: int, end: int | None, block_bytes: int) -> Iterator[bytes]:
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


def _split(block: bytes, text: TextFormat) -> pa.Array:
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
