"""The refusals of a job's description: each names what is wrong, and what it should have been.

Invariant: a message shows the type of what was found and never its value, which may be personal. The place of a table
or of a source is shown, without credentials. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.locations import can_name_a_file, shown
from airflow_txlog.sql.lexer import has_half_of_a_character


def is_int(value: Any) -> bool:
    """An integer that is no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: Any) -> bool:
    """A text with something in it."""
    return isinstance(value, str) and value.strip() != ""


def is_text_map(value: Any) -> bool:
    """A dict of texts to texts."""
    return isinstance(value, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())


def plain(name: str, value: Any) -> None:
    """Refuses whatever JSON would change or drop, so that a round trip gives an equal value."""
    if isinstance(value, dict):
        for key, item in value.items():
            want(name, isinstance(key, str), "mappings with text keys", key)
            plain(f"{name}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            plain(f"{name}[{index}]", item)
    else:
        finite = not isinstance(value, float) or math.isfinite(value)
        want(name, finite and (value is None or isinstance(value, bool | int | float | str)), "JSON-plain", value)


def whole(name: str, value: Any) -> None:
    """Refuse a text, however deep in the value, with a lone surrogate: half of a character, which UTF-8 cannot hold.

    Such a text comes from `json.loads` of an escape such as "\\ud83d" without the other half, or of text that was cut.
    """
    is_whole = not any(map(has_half_of_a_character, _texts(value)))
    want(name, is_whole, "text of whole characters, without a lone surrogate (half of a character)", value)


def want_place(name: str, value: Any) -> None:
    """Refuse a text that can name no file."""
    can = not isinstance(value, str) or can_name_a_file(value)
    want(name, can, "a place without NUL or half of a character in it", value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def want(name: str, condition: bool, expected: str, found: Any = None, *, is_shown: bool = False) -> None:
    """Raises InvalidJobSpec about `name` unless the condition holds."""
    if not condition:
        raise invalid(name, expected, found, is_shown=is_shown)


def unknown(name: str, known: Iterable[str]) -> InvalidJobSpec:
    """The error that refuses a name that means nothing where it stands."""
    return InvalidJobSpec(f"Job description: {name} is unknown; known here: {sorted(known)}.", argument=name)


def missing(name: str, needed_by: str) -> InvalidJobSpec:
    """The error that refuses a description in which a name is missing."""
    return InvalidJobSpec(f"Job description: {name} is missing; {needed_by} needs it.", argument=name)


def invalid(name: str, expected: str, found: Any, *, is_shown: bool = False) -> InvalidJobSpec:
    """The error that says what `name` should have been. `is_shown`: a text is no value
    of a row, but the name of a place or of a choice.
    """
    # Only the type of what was found is shown: values of a spec may be personal (soundness C8).
    is_small = isinstance(found, bool | int) and -(2**63) <= found < 2**63
    text = repr(found) if found is None or is_small else type(found).__name__
    if is_shown and isinstance(found, str):
        text = repr(shown(found))
    return InvalidJobSpec(f"Job description: {name} must be {expected}; found {text}.", argument=name)
