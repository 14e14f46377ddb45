"""The literals INTERVAL of whole numbers with their units: `1 DAY`, `'30 days'`, `2 DAYS 12 HOURS`.

The invariant: a literal of another form, such as `'1 2' DAY TO HOUR`, is no plain interval. Source: Spark 4.2,
SqlBaseParser.g4 (interval), IntervalUtils.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_txlog.sql.expression import OF_INTERVALS, Cast, Literal, Span
from airflow_txlog.sql.lexer import Token, words

UNITS = words(
    """nanosecond microsecond millisecond second minute hour day week month quarter year nanoseconds microseconds
    milliseconds seconds minutes hours days weeks months quarters years to"""
)
"""Words that follow a number in an INTERVAL."""
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_PLURAL = r"(microsecond|millisecond|second|minute|hour|day|week|month|year)s?"
_ONE = re.compile(rf"(-?\d{{1,18}}) {_PLURAL}", re.ASCII | re.IGNORECASE)
_SEVERAL = re.compile(rf"\d{{1,18}} {_PLURAL}(?: \d{{1,18}} {_PLURAL})+", re.ASCII | re.IGNORECASE)


def plain_interval(given: Sequence[Token], span: Span) -> Cast | None:
    """Return the interval that follows the word INTERVAL: its numbers, cast to its units. None if it is not plain.

    Only a single number may have a sign.
    """
    parts = _parts(given)
    if not parts:
        return None
    counts, units = zip(*parts, strict=True)
    return Cast(Literal("string", " ".join(map(str, counts))), OF_INTERVALS + " ".join(units), span)


def _parts(given: Sequence[Token]) -> list[tuple[int, str]]:
    """Return the numbers, each with its unit; none if the interval is not plain."""
    match given:
        case [Token("string", text, None)]:
            is_plain = _ONE.fullmatch(text) or _SEVERAL.fullmatch(text)
            return [(int(count), unit.lower()) for count, unit in _ONE.findall(text)] if is_plain else []
        case [Token("symbol", "-"), count, unit]:
            return [(-number, name) for number, name in _parts([count, unit])]
    counts, units = given[::2], given[1::2]
    if len(counts) > len(units) or not all(map(_is_whole, counts)) or not all(unit.word in UNITS for unit in units):
        return []
    if len(counts) > 1 and not all(count.text.isdecimal() for count in counts):
        return []
    return [(int(count.text), unit.word.removesuffix("s")) for count, unit in zip(counts, units, strict=True)]


def _is_whole(count: Token) -> bool:
    is_certain = count.kind in ("number", "string") and count.doubt is None
    return is_certain and _WHOLE.fullmatch(count.text) is not None
