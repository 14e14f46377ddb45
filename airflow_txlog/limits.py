"""Bounds on what a table can make this process read: a log is input, and may be larger than any table needs.

A limit is checked before the work that it bounds. Each is a number of bytes, which an environment variable of the
process that reads the table replaces: how much is too much depends on that process's memory, and never on the table,
whose properties come from its writers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_txlog.errors import InvalidInput, LimitExceeded

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of bytes that `setting`, an environment variable, replaces."""

    setting: str
    default: int

    @property
    def allowed(self) -> int:
        """Raises InvalidInput where the setting is no whole number above zero."""
        text = os.environ.get(self.setting, "").strip()
        if not text:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text)):
            raise InvalidInput(f"The environment variable {self.setting} must be a whole number of bytes above zero.")
        return int(text)

    def check(self, found: int, what: str, table: str | None = None, path: str | None = None) -> None:
        """Raises LimitExceeded where `found` bytes are too many; `what` names what has them."""
        allowed = self.allowed
        if found > allowed:
            where = what if table is None else f"{what} of {table}"
            raise LimitExceeded(
                f"{where} has {found} bytes, and {self.setting} allows {allowed}. Nothing was changed. If that size "
                f"is meant, set the environment variable {self.setting} to a larger number of bytes where the table is "
                "read and written; else have the table repaired by the engine that wrote it.",
                table=table,
                path=path,
                found=found,
                allowed=allowed,
                setting=self.setting,
            )

    def check_lines(self, data: bytes, path: str) -> None:
        """Raises LimitExceeded where a line of `data` is too long."""
        # A file that is no longer than a line may be has no such line: nearly every one.
        if len(data) <= self.allowed:
            return
        start = number = 0
        while start <= len(data):
            found = data.find(b"\n", start)
            end = len(data) if found < 0 else found
            number += 1
            self.check(end - start, f"line {number} of {path}", path=path)
            start = end + 1


LOG_FILE = Limit("TXLOG_MAX_LOG_FILE_BYTES", 512 * MIB)
"""A file of the log that is read whole: a commit, a checkpoint in JSON, a compaction, a checksum, a hint."""
LOG_LINE = Limit("TXLOG_MAX_LOG_LINE_BYTES", 64 * MIB)
"""One line of such a file, which is one action."""
CHECKPOINT = Limit("TXLOG_MAX_CHECKPOINT_BYTES", 2048 * MIB)
"""The actions of one checkpoint, decoded, from all its files: about 800 bytes for a data file of the table."""
VECTOR = Limit("TXLOG_MAX_VECTOR_BYTES", 64 * MIB)
"""One deletion vector: enough for any choice among 500 million rows of one data file."""
SMALL_JOB = Limit("TXLOG_SMALL_JOB_BYTES", 256 * MIB)
"""What a job reads at once in its own process, without Spark or beside a local one, where no SQL has a part in it;
beyond it that is the work of Spark, and nothing is refused. `cost_of` says what a source's file counts."""
STATISTICS = Limit("TXLOG_KEPT_STATISTICS_BYTES", 256 * MIB)
"""Typed statistics of one open table that are kept between questions, some 32 bytes for a file and a column and twice
that for texts; what is beyond it is parsed at each question, and nothing is refused."""


def cost_of(size_bytes: int, decoded_bytes: int) -> int:
    """Return what it costs to read a file whose rows take so much memory: its size, or a quarter of theirs if that is
    more, as an ordinary file is about a quarter of its rows."""
    return max(size_bytes, decoded_bytes // _DECODED_TIMES)


_DECODED_TIMES = 4


def weight_of(sizes: Iterable[int]) -> int:
    """What it costs to read files of these sizes, in bytes: a store takes as long for a request as for a megabyte."""
    return sum(max(size, MIB) for size in sizes)
