"""Bounds on what a table can make this process read, and thresholds of the work on it.

A log is input, and may be larger than any table needs. A `Limit` is checked before the work that it bounds. It is a
number of bytes, which an environment variable of the process that reads the table replaces: how much is too much
depends on that process's memory, and never on the table, whose properties come from its writers. `Limits` are the
thresholds by which the work is cut and chosen; they travel with the table (`Store.limits`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is done at once, and from where on in another way. Only tests give other numbers than these."""

    # The log.
    checkpoint_group_rows: int = 65_536
    """File actions in a row group of a checkpoint."""
    checkpoint_sidecar_rows: int = 131_072
    """File actions in a sidecar."""
    automatic_cleanup_files: int = 20_000
    """What one log cleanup after a commit deletes at most: a log of years is cut over several commits."""
    progress_files: int = 10_000
    """The progress of a deletion is logged after so many files."""

    # The files of a version, in memory.
    packed_bytes: int = 1024 * 1024
    """Statistics of fewer bytes are not worth compressing."""
    chunk_files: int = 32_768
    """Merged chunks of fewer files are put together."""
    cut_files: int = 32
    """A chunk with so few hidden files is cut around them, which copies nothing; one with more is filtered."""
    asked_files: int = 131_072
    """A question is asked about so many files at once."""
    indexed_files: int = 4096
    """A level of more files is looked through a few times before it is given an index."""

    # Data files that are written.
    row_group_bytes: int = 128 * MIB
    """Counted in Arrow's memory, where a column takes more room than in the file."""
    split_bytes: int = 32 * MIB
    """So many bytes of rows are gathered before they are split by partition: one sort instead of one a batch."""
    buffered_bytes: int = 256 * MIB
    """What all partitions of a task hold together; above it the largest one is written out."""
    open_files: int = 64
    """How many files one task holds open."""

    # What jobs send, join and look up.
    inline_plan_bytes: int = 32 * MIB
    """A plan of more is left in files and not sent along: Connect refuses large messages."""
    broadcast_bytes: int = 128 * MIB
    """The columns of a smaller source are sent to every task of a join. Above it both sides are shuffled and sorted,
    which spills to disk where a hash table would run out of memory. Spark cannot choose: it does not know how many rows
    a scan of ours yields, takes it for small, and would send the target to every task."""
    bucket_bytes: int = 128 * MIB
    """About what one bucket of a materialized source takes."""
    merge_key_bytes: int = 256 * MIB
    """What every task that looks for keys holds of the source's, and of their rows' numbers, uncompressed."""
    merge_source_bytes: int = 1024 * MIB
    """What the tasks that write new rows read of a source, uncompressed. They hold less: see `source_rows`."""
    held_source_bytes: int = 256 * MIB
    """What a task holds of a source: all of it, or the rows that so many rows of the table have met."""
    taken_source_rows: int = 65_536
    """So many rows of a source, at most, are put beside rows of the table at once."""
    looked_up_bytes: int = 128 * MIB
    """So many bytes of a table's rows are looked up among the keys of a merge at once."""
    filter_keys: int = 100_000
    """Keys that a task looks every row up in; the table for that is made anew for each batch. Above it the least and
    the greatest do."""
    filter_key_bytes: int = 64 * MIB
    """What the driver reads of one key column for that, uncompressed and a row group at a time."""
    scope_values: int = 10_000
    """Above so many combinations of values of a source, each column's least and greatest bound the target."""
    scope_bytes: int = 64 * MIB
    """So much of a materialized source is read on the driver rather than by a Spark job."""
    delete_keys: int = 10_000
    """Above so many keys of a DELETE, files are pruned and conflicts judged by the least and the greatest."""
    many_rows: int = 1_000_000
    """Below this Spark evaluates a condition row by row sooner than the distinct values are collected."""
    distinct_values: int = 10_000
    distinct_value_bytes: int = 4 * MIB
    """At most so many distinct values, of so many bytes, are evaluated in place of the rows."""
    computed_rows: int = 100_000
    computed_texts: int = 5_000
    """The computed columns of so many rows go through the driver, where it writes the files itself: where each value
    takes a few bytes, and where it may take many. Spark brings a gigabyte to a driver, and no more."""
    segment_files: int = 16
    """A segment of images has at most so many input files: one that changes costs the others their images too."""
    joined_files_fewer: int = 16
    """Joining tiny files, a second job, is worth so many files fewer."""
    sorted_bytes: int = 2**31 - 1
    """No process sorts more rows at once: Arrow has no more in one column."""
    names_in_folder: int = 20_000
    """A folder of a disk with more names below it is left to Spark, which looks level by level: a glob may begin in a
    folder that holds half a disk."""

    def __reduce__(self) -> tuple[Any, ...]:
        changed = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}
        return partial(Limits, **changed), ()


USUAL = Limits()


def cost_of(size_bytes: int, decoded_bytes: int) -> int:
    """Return what it costs to read a file whose rows take so much memory: its size, or a quarter of theirs if that is
    more, as an ordinary file is about a quarter of its rows."""
    return max(size_bytes, decoded_bytes // _DECODED_TIMES)


_DECODED_TIMES = 4


def weight_of(sizes: Iterable[int]) -> int:
    """What it costs to read files of these sizes, in bytes: a store takes as long for a request as for a megabyte."""
    return sum(max(size, MIB) for size in sizes)
