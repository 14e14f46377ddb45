"""Canonically equivalent spellings of a text, which Unicode defines to be the same text.

An accent may be a part of its letter or follow it, several marks may have any order, and some characters are other
names of one, such as the Kelvin sign of the letter K. Texts that were joined from parts, or typed on several
systems, mix these, so that they are neither in NFC nor in NFD. Hangul syllables are not spelled one by one.
Source: Unicode Standard Annex 15, "Canonical equivalence"; the Unicode Character Database, Decomposition_Mapping.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import prod
from unicodedata import combining, decomposition, normalize

import pyarrow as pa
import pyarrow.compute as pc

MOST_SPELLINGS = 64
"""The most spellings of a text that are tried besides NFC and NFD."""
MOST_ESCAPED = 8
"""The most of them that are also tried escaped, in base 64, as digits, and in UTF-16, each in some twenty forms."""
# No other plane has characters that are canonically equivalent to others, except marks of notes and rare scripts.
_CHARACTERS = (range(0xA0, 0x3400), range(0xF900, 0x1_2000), range(0x2_F800, 0x2_FA20))
_MOST_MARKS = 3
# Longer texts would have too many bytes in all spellings.
_LONGEST_MIXED = 1_000
_HANGUL = range(0x1100, 0x1200), range(0xAC00, 0xD7A4)
# The characters of ASCII that another one names: the Kelvin sign, and the Greek question mark and varia.
_ASCII = frozenset("K;`")


def equivalents(text: str, most: int = MOST_SPELLINGS) -> set[str]:
    """Return the spellings of a text: NFC, NFD, and the mixed ones, of which at most `most`."""
    found = {text, normalize("NFC", text), normalize("NFD", text)}
    if _is_plain(text) or len(text) > _LONGEST_MIXED:
        return found
    mixed = map("".join, itertools.product(*_spelled_parts(text)))
    return found.union(itertools.islice(mixed, most))


def are_all_tried(text: str) -> bool:
    """Return whether `equivalents` has each spelling of the text."""
    if _is_plain(text):
        return True
    if len(text) > _LONGEST_MIXED or any(ord(each) in codes for each in text for codes in _HANGUL):
        return False
    parts = [*_parts(normalize("NFD", text))]
    has_more = any(len(part) > _MOST_MARKS + 1 for part in parts)
    return not has_more and prod(map(len, map(_spellings, parts))) <= MOST_SPELLINGS


def normal_texts(texts: pa.Array) -> pa.LargeBinaryArray:
    """Return the bytes of each text in NFC. A file may hold texts that are not UTF-8: they stay as they are."""
    with suppress(pa.ArrowException):
        return pc.utf8_normalize(texts.cast(pa.large_string()), form="NFC").cast(pa.large_binary())
    given = texts.cast(pa.large_binary()).to_pylist()
    return pa.array([None if text is None else _normal_text(text) for text in given], pa.large_binary())


def _normal_text(text: bytes) -> bytes:
    try:
        return normalize("NFC", text.decode()).encode()
    except UnicodeDecodeError:
        return text


def _is_plain(text: str) -> bool:
    return text.isascii() and _ASCII.isdisjoint(text)


def _spelled_parts(text: str) -> list[list[str]]:
    return [_spellings(part) for part in _parts(normalize("NFD", text))]


def _parts(text: str) -> Iterator[str]:
    """Yield each character of a decomposed text with the marks and signs that follow it."""
    start, signs = 0, _signs()
    for at in range(1, len(text) + 1):
        if at == len(text) or not (combining(text[at]) or text[at] in signs):
            yield text[start:at]
            start = at


@cache
def _spellings(part: str) -> list[str]:
    """Return the spellings of a character with its marks, NFC first."""
    found = dict.fromkeys((normalize("NFC", part), part))
    if len(part) <= _MOST_MARKS + 1:
        for first in (part[0], *_composed().get(part[0], ())):
            rest = list(part[1:])
            with suppress(ValueError):
                for mark in normalize("NFD", first)[1:]:
                    rest.remove(mark)
                for order in itertools.permutations(rest):
                    spelled = first + "".join(order)
                    if normalize("NFD", spelled) == part:
                        found[spelled] = None
    return list(found)


@cache
def _composed() -> dict[str, list[str]]:
    """Return the characters that are equivalent to others, by the first of these."""
    found: dict[str, list[str]] = {}
    for each in map(chr, itertools.chain(*_CHARACTERS)):
        mapping = decomposition(each)
        if mapping and not mapping.startswith("<"):
            found.setdefault(normalize("NFD", each)[0], []).append(each)
    return found


@cache
def _signs() -> frozenset[str]:
    """Return the characters that are no marks, and may be a part of the character before them."""
    parts = (normalize("NFD", each)[1:] for found in _composed().values() for each in found)
    return frozenset(sign for signs in parts for sign in signs if not combining(sign))
