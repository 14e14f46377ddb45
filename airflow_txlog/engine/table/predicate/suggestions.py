"""Names for messages: the one that an author may have meant, and which there are."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

# Spark reads these as functions where no column has the name.
SPECIAL_NAMES = frozenset(
    (
        "current_catalog",
        "current_database",
        "current_date",
        "current_path",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    )
)
_COLUMNS_SHOWN = 50


def did_you_mean(name: str, names: Collection[str]) -> str:
    """` Did you mean 'id'?` where one of the names is near; else nothing."""
    lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""


def shown_names(names: Sequence[str]) -> str:
    """The first names of a table's, in a message."""
    return ", ".join(names[:_COLUMNS_SHOWN]) + (", …" if len(names) > _COLUMNS_SHOWN else "")
