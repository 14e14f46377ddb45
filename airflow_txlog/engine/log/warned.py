"""Warnings about files of a log that are passed over: one a file in a process, however often it is met."""

from __future__ import annotations

import logging

_seen: set[tuple[str, str]] = set()


def warn_once(log: logging.Logger, table: str, path: str, what: str) -> None:
    """Log that the file `path` of the table is passed over; `what` says why, and what is done instead."""
    if (table, path) not in _seen:
        _seen.add((table, path))
        log.warning("%s: %s is passed over: %s", table, path, what)
