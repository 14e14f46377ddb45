"""What a command prints: one JSON document for programs, or a table for people; errors on standard error.

Text of a table is printed as it is: nothing that a log holds is taken for markup. Without a terminal nothing is cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 10_000


def print_json(document: Mapping[str, Any]) -> None:
    """One document, keys in the order given. A value that JSON has no form for is printed as text."""
    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """A table; the columns named in `right` are aligned to the right, and those in `whole` are never folded."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        # A terminal folds long text rather than cutting it.
        align: Literal["left", "right"] = "right" if column in right else "left"
        table.add_column(Text(column), justify=align, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line; a mapping below a name is indented under it."""
    width = max(map(len, facts), default=0)
    out = console()
    for name, value in facts.items():
        if isinstance(value, Mapping) or (isinstance(value, list) and value):
            out.print(Text(f"{name}:"))
            lines = value.items() if isinstance(value, Mapping) else value
            for line in lines:
                shown = f"{line[0]} = {_cell(line[1])}" if isinstance(line, tuple) else _cell(line)
                out.print(Text(f"    {shown}"))
        else:
            out.print(Text(f"{name + ':':<{width + 1}} {_cell(value)}"))


def say(text: object) -> None:
    """A sentence for people on standard error, where it disturbs no output."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    """A console as wide as the terminal; without one, wide enough that no line is folded."""
    plain = Console(highlight=False, soft_wrap=False)
    return plain if plain.is_terminal else Console(highlight=False, soft_wrap=False, width=_WIDE)


def moment(milliseconds: object) -> str:
    """The moment in UTC, to the second; empty for what is no moment."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def size(size_bytes: int) -> str:
    """Bytes in the unit that a person would use."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
