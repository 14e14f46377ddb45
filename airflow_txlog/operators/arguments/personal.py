"""Rendered arguments that are personal data: known to the job, and shown in no text.

Invariant: whatever makes a text of a hidden value gets asterisks; only `revealed` gives the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Hidden:
    """A rendered value that is personal data: no text of it shows more than asterisks.

    Airflow puts the rendered arguments of each try into its database, for the UI, as `serialize` gives them.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"

    serialize = __repr__


def hidden(name: str, value: Any) -> Any:
    """The rendered `parameters` or `keys` without their values; a source of keys names a place, and stays as it is."""
    if isinstance(value, Mapping):
        return value if name == "keys" else {key: hidden(key, item) for key, item in value.items()}
    return value if isinstance(value, Hidden) else Hidden(value)


def revealed(value: Any) -> Any:
    """What `hidden` was given."""
    if isinstance(value, Mapping):
        return {name: revealed(item) for name, item in value.items()}
    # Also within a list: a text that the keys have too was hidden as if it were them.
    if isinstance(value, list | tuple):
        return [revealed(item) for item in value]
    return revealed(value.value) if isinstance(value, Hidden) else value


def texts_of(value: Any) -> list[Any]:
    """The texts among values, at any depth, that Airflow can hide in logs: those of five characters and more."""
    if isinstance(value, str):
        return [value] if len(value) >= 5 else []
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for item in value for text in texts_of(item)] if isinstance(value, list | tuple) else []
