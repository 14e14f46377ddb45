"""Bounds on the amount that a table can make this process read, and thresholds of the work on it.

A log is input, and may be larger than any table needs. A `Limit` is checked before the work that it bounds. An
environment variable of the reading process may replace it: the right bound depends on that process's memory, never on
the table, whose properties its writers set. `Limits` travel with the table (`Store.limits`).
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
    """A number of bytes that the environment variable `setting` replaces."""

    setting: str
    default: int

    @property
    def allowed(self) -> int:
        """The number. Raises InvalidInput if the setting is no whole number above zero."""
        text = os.environ.get(self.setting, "").strip()
        if not text:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text)):
            raise InvalidInput(f"The environment variable {self.setting} must be a whole number of bytes above zero.")
        return int(text)

    def check(self, found: int, what: str, table: str | None = None, path: str | None = None) -> None:
        """Raise LimitExceeded if `found`, the bytes of `what`, exceeds the limit."""
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
        """Raise LimitExceeded if a line of `data` is too long."""
        # Nearly every file is shorter than a line may be.
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
"""A file of the log that is read whole: a commit, a JSON checkpoint, a compaction, a checksum, a hint."""
LOG_LINE = Limit("TXLOG_MAX_LOG_LINE_BYTES", 64 * MIB)
"""One line of such a file: one action."""
CHECKPOINT = Limit("TXLOG_MAX_CHECKPOINT_BYTES", 2048 * MIB)
"""The decoded actions of all files of a checkpoint: about 800 bytes for each data file of the table."""
VECTOR = Limit("TXLOG_MAX_VECTOR_BYTES", 64 * MIB)
"""One deletion vector: enough for any choice among 500 million rows of one data file."""
SMALL_JOB = Limit("TXLOG_SMALL_JOB_BYTES", 256 * MIB)
"""The amount that a job reads at once in its own process if no SQL is involved; Spark reads more. Nothing is refused.
`cost_of` gives the cost of a source's file."""
STATISTICS = Limit("TXLOG_KEPT_STATISTICS_BYTES", 256 * MIB)
"""Typed statistics of one open table that are kept between questions: some 32 bytes for each file and column, and twice
that for texts. The rest is parsed at each question, and nothing is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Thresholds of the work. Only tests change these numbers."""

    # The log.
    read_log_bytes: int = 16 * MIB
    """The files of the log that are read at once."""
    kept_commit_bytes: int = 64 * 1024
    """A larger commit of ours is read again instead of kept."""
    kept_winner_bytes: int = 4 * MIB
    """The commits that ours was checked against, kept for the next refresh."""
    checkpoint_batch_rows: int = 32_768
    """Rows of a checkpoint that are decoded at once."""
    checkpoint_group_rows: int = 65_536
    """File actions in a row group of a checkpoint."""
    checkpoint_sidecar_rows: int = 131_072
    """File actions in a sidecar."""
    automatic_cleanup_files: int = 20_000
    """The most files that the log cleanup of one commit deletes: a log of years is cut over several commits."""
    progress_files: int = 10_000
    """After how many files the progress of a deletion is logged."""

    # The files of a version, in memory.
    packed_bytes: int = 1024 * 1024
    """Statistics of fewer bytes are not worth compressing."""
    plain_paths: int = 2_097_152
    """The paths of further files of a table are compressed: to unpack a million takes 0.1 s."""
    chunk_files: int = 32_768
    """Chunks of fewer files are merged."""
    cut_files: int = 32
    """A chunk with at most this many hidden files is cut around them, without a copy; one with more is filtered."""
    asked_files: int = 131_072
    """How many files a question concerns at once."""
    indexed_files: int = 4096
    """A level of more files gets an index only after a few lookups."""

    # Data files that are written.
    row_group_bytes: int = 128 * MIB
    """In Arrow's memory, in which a column is larger than in the file."""
    split_bytes: int = 32 * MIB
    """How many bytes of rows are gathered before they are split by partition, in one sort."""
    buffered_bytes: int = 256 * MIB
    """The bytes that all partitions of a task hold together; beyond it the largest is written out."""
    open_files: int = 64
    """Of one task."""
    changed_in_place_bytes: int = MIB
    """If several smaller files change, they are rewritten whole, and their new rows gathered in one file."""

    # Sizes of the data that jobs send, join and look up.
    inline_plan_bytes: int = 32 * MIB
    """A larger plan stays in files and is not sent along: Connect refuses large messages."""
    broadcast_bytes: int = 128 * MIB
    """A smaller source is sent to every task of a join; with a larger one both sides are shuffled and sorted, which can
    spill to disk. Spark cannot choose: it does not know the size of our scans, takes them for small, and would send the
    target to every task."""
    bucket_bytes: int = 128 * MIB
    """About the size of one bucket of a materialized source."""
    merge_key_bytes: int = 256 * MIB
    """The source's keys and row numbers in every task that looks for keys, uncompressed."""
    merge_source_bytes: int = 1024 * MIB
    """The part of a source that the tasks that write new rows read, uncompressed. They hold less."""
    held_source_bytes: int = 256 * MIB
    """The part of a source that a task holds: all of it, or the rows that match rows of the table."""
    taken_source_rows: int = 65_536
    """How many rows of a source are joined with rows of the table at once."""
    looked_up_bytes: int = 128 * MIB
    """How many bytes of a table's rows are looked up among the keys of a merge at once."""
    filter_keys: int = 100_000
    """Up to this many keys a task looks up every row, in a table made for each batch; beyond it only the least and the
    greatest key are used."""
    filter_key_bytes: int = 64 * MIB
    """The bytes of one key column that the driver reads for that, uncompressed, a row group at a time."""
    scope_values: int = 10_000
    """Beyond this many combinations of a source's values, each column's least and greatest value bound the target."""
    scope_bytes: int = 64 * MIB
    """The bytes of a materialized source that the driver reads instead of a Spark job."""
    delete_keys: int = 10_000
    """Beyond this many keys of a DELETE, the least and the greatest are used to prune files and check conflicts."""
    sent_bytes: int = 4 * MIB
    """Up to this many bytes of rows, read here from files of at most 16 times the size, are sent to this process's own
    Spark: its Python workers take a second to start."""
    many_rows: int = 1_000_000
    """For fewer rows Spark evaluates a condition sooner than the distinct values are collected."""
    distinct_values: int = 10_000
    distinct_value_bytes: int = 4 * MIB
    """At most this many distinct values, of this many bytes, are evaluated instead of the rows."""
    computed_rows: int = 100_000
    """The computed columns of up to this many rows go through a driver that writes the files itself. Spark returns at
    most a gigabyte to a driver."""
    computed_bytes: int = 64 * MIB
    """Of the values that such columns are computed from, and of their texts, if all rows were as wide as the widest
    one."""
    segment_files: int = 16
    """The most input files of a segment of images: one that changes costs the others their images too."""
    copied_together: int = 128
    """The most tiny files that are copied into one: one that changes costs the others their copy too."""
    joined_files_fewer: int = 16
    """The reduction in files at which a second job that joins tiny files pays off."""
    sorted_bytes: int = 2**31 - 1
    """The most that a process sorts at once: Arrow has no more in one column."""
    names_in_folder: int = 20_000
    """A folder with more names below it is left to Spark, which lists level by level: a glob may begin in a folder that
    holds half a disk."""

    def __reduce__(self) -> tuple[Any, ...]:
        changed = {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}
        return partial(Limits, **changed), ()


USUAL = Limits()


def cost_of(size_bytes: int, decoded_bytes: int) -> int:
    """Return the cost of reading a file: its size, or a quarter of the memory of its rows if that is more.

    An ordinary file has about a quarter of the size of its rows.
    """
    return max(size_bytes, decoded_bytes // _DECODED_TIMES)


_DECODED_TIMES = 4


# A file costs at least as much as reading this many bytes: it is opened, and its footer read and checked. On a disk
# that takes about a millisecond, and from a store a few requests, several of which are under way at once.
LOCAL_FILE_BYTES = 64 * 1024
REMOTE_FILE_BYTES = 256 * 1024


def weight_of(sizes: Iterable[int | None], *, is_remote: bool) -> int:
    """Return the cost, in bytes, of reading files whose rows have these costs."""
    least = REMOTE_FILE_BYTES if is_remote else LOCAL_FILE_BYTES
    return sum(max(size or 0, least) for size in sizes)
