"""The output of a command: one JSON document for programs, or a table for people; errors on standard error.

No content of a log is read as markup, and a character that would move the cursor or break a line is printed as its
escape. Rows are fitted to a terminal's width; without a terminal nothing is cut.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_txlog.errors import TxlogError

_WIDE = 1_000_000_000
_GAP = 2


def print_json(document: Mapping[str, Any]) -> None:
    """Print one document, with its keys in order. A value that JSON has no form for is printed as text."""
    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column of a table, and how it shrinks on a terminal that is too narrow for the table."""

    name: str
    right: bool = False
    """Whether it is aligned to the right."""
    keeps: Literal["start", "end"] | None = None
    """The end of a long text that stays when the text is shortened; None: fold the text instead."""
    at_least: int = 1
    """The cells that a text keeps while other columns can still shrink."""
    optional: bool = False
    """For the last column: show it only if the others leave space."""
    at_most: int | None = None
    """The cells that a text may take, however wide the terminal is."""


def print_rows(columns: Sequence[ShownColumn], rows: Sequence[Sequence[object]], *, wide: bool = False) -> None:
    """Print a table, at most as wide as the terminal. With `wide` no text is shortened."""
    out = Console(highlight=False, soft_wrap=True, width=_WIDE) if wide else console()
    cells = [[column.name for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = _widths(columns, cells, out.width)
    if not wide:
        widths = [min(width, column.at_most or width) for width, column in zip(widths, columns, strict=False)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column, width in zip(columns, widths, strict=False):
        align: Literal["left", "right"] = "right" if column.right else "left"
        name = Text(_shortened(column.name, width, column.keeps))
        table.add_column(name, justify=align, overflow="fold", no_wrap=column.keeps is not None)
    for row in cells[1:]:
        shown = zip(row, columns, widths, strict=False)
        table.add_row(*(Text(_shortened(cell, width, column.keeps)) for cell, column, width in shown))
    out.print(table)


def _widths(columns: Sequence[ShownColumn], cells: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the widths of the shown columns, in cells of the terminal. The widest columns shrink first."""
    natural = [max(map(cell_len, texts)) for texts in zip(*cells, strict=True)]
    if columns[-1].optional:
        widths = _widths(columns[:-1], [row[:-1] for row in cells], room)
        left = room - sum(widths) - _GAP * len(widths)
        return [*widths, min(natural[-1], left)] if left >= min(natural[-1], columns[-1].at_least) else widths
    room -= _GAP * (len(columns) - 1)
    for floored in (True, False):
        for cap in range(max(natural), 0, -1):
            widths = [
                width if column.keeps is None else min(width, max(cap, column.at_least if floored else 1))
                for column, width in zip(columns, natural, strict=True)
            ]
            if sum(widths) <= room:
                return widths
    return widths


def _shortened(text: str, width: int, keeps: Literal["start", "end"] | None) -> str:
    """Return the text cut to `width` cells of a terminal; a character may take two cells, or none."""
    if keeps is None or cell_len(text) <= width:
        return text
    text = text[-width:] if keeps == "end" else text[:width]
    while text and cell_len(text) >= width:
        text = text[1:] if keeps == "end" else text[:-1]
    return f"…{text}" if keeps == "end" else f"{text}…"


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one a line; a mapping is indented under its name."""
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


@contextmanager
def closed_pipe_ends_quietly() -> Iterator[None]:
    """End the process without a traceback if the reader of standard output has closed it, as `head` does.

    The exit code is then that of a program that SIGPIPE ends, 141.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more when it ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def say(text: object) -> None:
    """Print a sentence for people on standard error, so that it does not disturb the output."""
    print(text, file=sys.stderr, flush=True)


def console() -> Console:
    """Return a console as wide as the terminal; without one, wide enough that no line is folded."""
    plain = Console(highlight=False, soft_wrap=False)
    return plain if plain.is_terminal else Console(highlight=False, soft_wrap=False, width=_WIDE)


def moment(milliseconds: object) -> str:
    """Return the moment in UTC, to the second; empty if the value is not a moment."""
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return ""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return printable(text)


def printable(text: str) -> str:
    """Return the text, escaping characters that would move the cursor or break a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command: for programs, and for people."""

    document: Mapping[str, Any]
    show: Callable[[], object]
    has_failed: bool = False
    """Whether the command ends with the exit code 1 after its output."""


def confirm(question: str, yes: bool) -> None:
    """Prompt on a terminal, and end the process unless the answer is yes. Scripts get no prompt."""
    if yes or not sys.stdin.isatty():
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        say("Nothing was changed.")
        sys.exit(1)


def fail(error: Exception, as_json: bool) -> NoReturn:
    """Print the error, and end the process with exit code 1."""
    say(f"{type(error).__name__}: {error}")
    if as_json:
        shown = (
            error.to_dict() if isinstance(error, TxlogError) else {"type": type(error).__name__, "message": str(error)}
        )
        print_json({"error": shown})
    sys.exit(1)


def logs_to_stderr() -> None:
    """Send logs to standard error: standard output holds only the answer."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)
