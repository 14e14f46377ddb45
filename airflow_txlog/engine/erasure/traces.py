"""A trace: a place in an object that holds a value of a subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["value", "statistic"]


@dataclass(frozen=True, slots=True)
class Trace:
    """A place in an object that holds a subject's value, or a statistic that may be one. Names no value."""

    place: str
    kind: Kind
    count: int = 1
    """How often it holds it, at least."""
