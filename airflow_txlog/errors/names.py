"""Names in messages: the nearest one to a wrong one, and lists of them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

_COLUMNS_SHOWN = 50


def did_you_mean(name: str, names: Collection[str]) -> str:
    """Return ` Did you mean 'id'?` with the nearest name, or nothing if none is near."""
    lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""


def shown_names(names: Sequence[str]) -> str:
    """Return the names for a message, cut after fifty."""
    return ", ".join(names[:_COLUMNS_SHOWN]) + (", …" if len(names) > _COLUMNS_SHOWN else "")
