"""Spellings of a value in texts: as whole texts, in JSON, URLs and SQL, in base 64, and as words of a longer text.

Pure functions; `forms` decides which spelling counts where. The invariant: two spellings that mean the same value to a
reader of the table are among those of each other.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from urllib.parse import quote, quote_plus, unquote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.erasure.values.equivalents import equivalents
from airflow_txlog.engine.erasure.values.needles import has_escapes

_SHORTEST_PACKED, _SHORTEST_CHARACTERS = 11, 5

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d:?\d\d(?!\d)")
_IDENTIFIER = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_TYPE = re.compile(r"(?<=\d)(?:BD|[LSYDF])$")
# Spark numbers the columns of a plan: (id#412L = id#413L).
PLAN_ID = re.compile(r"(?<=\w)#\d+L?(?!\w)")
WORDS = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?!\w)|\w+")


def spellings(value: pa.Scalar) -> Iterable[str]:
    plain = value.as_py()
    if isinstance(plain, bytes):
        if len(plain) == 16:
            yield from _of_identifier(uuid.UUID(bytes=plain))
        try:
            text = plain.decode()
        except UnicodeDecodeError:
            return
    else:
        text = plain if isinstance(plain, str) else str(value.cast(pa.string()).as_py())
    if pa.types.is_timestamp(value.type):
        # Writers differ in the parts of a second and in the zone's name.
        yield from (f"{text[:10]}{between}{text[11:19]}" for between in "T ")
    if text:
        yield text
    identifier = identifier_of(text)
    if identifier is not None:
        yield from _of_identifier(identifier)


def _of_identifier(identifier: uuid.UUID) -> Iterator[str]:
    yield from (spelled for each in (str(identifier), identifier.hex) for spelled in (each, each.upper()))


def whole_texts(values: pa.Array, lengths: Collection[int], most: int) -> frozenset[str]:
    """Return the spellings of values as whole texts: at most `most` mixed ones of each, and padded to the lengths."""
    found = {text for value in values for text in spellings(value)}
    if lengths:
        plain = {text.rstrip(" ") or text for text in found}
        found |= plain.union(*({text.ljust(length) for text in plain} for length in lengths))
    found = found.union(*(equivalents(each, most) for each in found))
    # Writers count the characters of each spelling when they pad it.
    return frozenset(found.union(*({(each.rstrip(" ") or each).ljust(n) for each in found} for n in lengths)))


def in_sql(text: str) -> Iterator[str]:
    """Yield the other spellings of a text between the quotes of SQL."""
    if "'" in text:
        yield from (text.replace("'", spelled) for spelled in ("''", "\\'"))


def escaped(text: str) -> Iterator[str]:
    """Yield a text as JSON, URLs, SQL and CSV spell it."""
    yield from in_sql(text)
    yield text.replace('"', '""')
    for is_ascii in (True, False):
        spelled = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        yield spelled
        yield re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda digits: digits[0].upper(), spelled)
    for safe in ("", "/", "@"):
        yield quote(text, safe=safe)
        # A path in a text may be encoded once more.
        yield quote(quote(text, safe=safe))
    yield quote_plus(text)
    # A form that leaves other characters as they are.
    yield text.replace(" ", "+")
    yield from _in_base64(text.encode())
    yield from _in_digits(text.encode())


def of_bytes(data: bytes) -> Iterator[str]:
    """Yield bytes in base 64, as digits, and as one character for each, as the log names a partition."""
    yield from _in_base64(data)
    yield from _in_digits(data)
    if len(data) >= _SHORTEST_CHARACTERS:
        yield from escaped(data.decode("latin-1"))


_OF_JSON = re.compile(r"""\\u([0-9A-Fa-f]{4})|\\([/"\\])""")


def without_escapes(text: str) -> str:
    """Return a text without one level of the escapes of JSON and URLs."""
    plain = _OF_JSON.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    # A character beyond 16 bits is two escapes.
    return unquote(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def have_escapes(texts: pa.Array) -> bool:
    """Return whether the bytes of all texts hold a character that begins an escape of JSON or of URLs."""
    data = texts.buffers()[-1]
    return data is not None and has_escapes(data)


def match_anywhere(texts: pa.Array, pattern: str) -> bool:
    """Return whether a pattern matches in the bytes of all texts at once, as it does for few columns."""
    data = texts.buffers()[-1] or pa.py_buffer(b"")
    ends = pa.array([0, data.size], pa.int64()).buffers()[1]
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data])
    return bool(pc.match_substring_regex(whole, pattern, ignore_case=True)[0].as_py())


def _in_digits(data: bytes) -> Iterator[str]:
    """Yield bytes as hexadecimal digits, as SQL and logs show them."""
    if 2 * len(data) >= _SHORTEST_PACKED:
        yield data.hex()
        yield data.hex().upper()


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield the base 64 characters of bytes inside other bytes, at each of the three alignments."""
    for before in range(3):
        padded = bytes(before) + data
        # The first and the last character depend on the bytes around them.
        part = slice(-(-before * 8 // 6), len(padded) * 8 // 6)
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found = encode(padded).decode()[part]
            if len(found) >= _SHORTEST_PACKED:
                yield found


def number_of(text: str) -> Decimal | None:
    try:
        # SQL may say the type of a number after it: 7L, 1.50BD.
        number = Decimal(_TYPE.sub("", text))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def identifier_of(text: str) -> uuid.UUID | None:
    """Return the UUID that a text is, with or without its hyphens.

    `uuid.UUID` alone also reads spaces, signs, underscores and hyphens anywhere: another person may have that key.
    """
    return uuid.UUID(text) if _IDENTIFIER.fullmatch(text) else None


def as_pattern(text: str) -> str:
    """Return a pattern that finds the text among bytes."""
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in text.encode()
    )


def instants_in(text: str) -> Iterator[str]:
    """Yield the times in a text that name an offset from UTC, as times in UTC to the second.

    Spark writes statistics in the time zone of its session.
    """
    for found in _INSTANT.findall(text):
        with suppress(ValueError, OverflowError):
            yield f"{dt.datetime.fromisoformat(found).astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}"


def without_surrogates(text: str) -> str:
    """Return a text in which marks replace lone surrogates, such as those for a stray byte in the name of a file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text
