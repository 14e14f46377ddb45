"""Columns named by their paths: `address.city`, and `items.element.price` inside an array.

Backquotes enclose a part that has a dot, a comma or a backquote; a backquote inside is doubled. The invariant: a path
read from its own text is the same path. Source: Spark, SqlBaseParser.g4 (`multipartIdentifierList`).
"""

from __future__ import annotations

import re
from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]

_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_LISTED = re.compile(r"(?:`(?:[^`]|``)+`|[^`,])+")
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def parse_path(text: str) -> Path:
    """Return the parts of a column's name. Raises ValueError."""
    parts: list[str] = []
    at = 0
    while found := _PART.match(text, at):
        parts.append(found[2] or found[1].replace("``", "`"))
        at = found.end()
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            break
        at += 1
    raise ValueError(f"{text!r} names no column")


def parse_paths(text: str) -> list[Path]:
    """Return the paths in a list with commas; blanks around them do not count. Raises ValueError."""
    listed = [each.strip() for each in _LISTED.findall(text)]
    if _LISTED.sub("", text).strip(","):
        raise ValueError("expected names of columns, and a backquote has no partner")
    return [parse_path(each) for each in listed if each]


def path_text(path: Path) -> str:
    """Return the text of a path, with backquotes around parts that are more than letters, digits and underscores."""
    return ".".join(part if _PLAIN.fullmatch(part) else f"`{part.replace('`', '``')}`" for part in path)


def is_below(path: Path, other: Path) -> bool:
    """Return whether a path is the other one, or inside of it; names are the same in any case."""
    return [part.lower() for part in path[: len(other)]] == [part.lower() for part in other]
