"""The other commits that a commit met on its way into the log, and why each one did not stop it.

**The format.** The tag `txlog.met` in the `tags` of commitInfo holds one JSON object as text. `JobResult.details.met`,
the XCom of a task and the records of `Table.history()` hold the same object under the key `met`:

    {"total": 37, "last": [
      {"version": 12, "how": "disjoint_partitions", "operation": "WRITE", "added_files": 3},
      {"version": 13, "how": "redone", "operation": "DELETE", "conflict": "ConcurrentDeleteRead",
       "kept_files": 40, "kept_rows": 400000, "kept_bytes": 5242880, "kept_scans": 41, "redone_files": 1,
       "redone_rows": 9000, "redone_bytes": 118000, "redone_scans": 1}]}

`total` counts all, `last` has the newest `MOST_MET` in the order in which they were met. The tag is missing if there
are none. Counts of zero and texts without a value are missing. The fields are those of `Meeting`, and a newer release
may add some. `how` is one of `How`; a reader must expect a value that it does not know. Nothing here holds a path, a
partition value or a value of a row.

The invariant: `how` is set where a rule decides, and no reader derives it again.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

MET_TAG = "txlog.met"
MOST_MET = 20
# Names are of other writers, and the tag of any.
_MOST_CHARS = 64
_MOST_TAG_BYTES = 65_536


class How(enum.StrEnum):
    """Why a commit that came first did not stop this one; in the last four, what the job did about it."""

    NO_DATA = "no_data"
    READ_NOTHING = "read_nothing"
    BLIND_APPEND = "blind_append_ordered_after"
    MOVED_ROWS_ONLY = "moved_rows_only"
    DISJOINT_FILES = "disjoint_files"
    DISJOINT_PARTITIONS = "disjoint_partitions"
    EXCLUDED_BY_STATISTICS = "excluded_by_statistics"
    DISJOINT_ROWS = "disjoint_rows"
    REDONE = "redone"
    RESUMED = "resumed"
    ALREADY_DONE = "already_done"
    FOUND_COMMITTED = "found_committed"


EXPLANATIONS: Mapping[str, str] = {
    How.NO_DATA: "The other commit changed no file of the table.",
    How.READ_NOTHING: "This commit only appends and has read nothing that the other commit could change.",
    How.BLIND_APPEND: "The other commit only appended without reading, so the table's isolation level orders it after "
    "this one.",
    How.MOVED_ROWS_ONLY: "The other commit only moved rows, out of files in which this one had found no match.",
    How.DISJOINT_FILES: "The other commit changed only files that this one neither read nor removed.",
    How.DISJOINT_PARTITIONS: "By their partition values, the files that the other commit added hold no row that this "
    "one would have read.",
    How.EXCLUDED_BY_STATISTICS: "By their statistics, some of the files that the other commit added hold no row that "
    "this one would have read; partition values exclude the rest.",
    How.DISJOINT_ROWS: "The other commit deleted other rows of the same files. No file was scanned or written again; "
    "only deletion vectors were.",
    How.REDONE: "The other commit was a conflict. The job kept the work that it did not affect and redid the rest.",
    How.RESUMED: "An earlier try of this task had staged work. The job kept the valid part and redid the rest.",
    How.ALREADY_DONE: "An earlier try, or a copy of this task, had committed this work already. Nothing was done.",
    How.FOUND_COMMITTED: "The store did not answer the put of this commit. Reading it back showed that it had landed.",
}
"""One sentence or two for people, by `How`."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One other commit, or one outcome of `How`, and its counts.

    `version` is the other commit's, or this work's own for "already_done" and "found_committed". It is missing where it
    is unknown, and for "resumed". `operation`: the other commit's.
    `added_files`, `removed_files`: how many files it added and removed. `conflict`: the class of the error that made
    the job redo its work. `kept_` and `redone_`: the staged files, their rows and bytes, and the scanned files that
    the job used again, and those that it made again.
    """

    version: int | None = None
    how: str
    operation: str | None = None
    added_files: int = 0
    removed_files: int = 0
    conflict: str | None = None
    kept_files: int = 0
    kept_rows: int = 0
    kept_bytes: int = 0
    kept_scans: int = 0
    redone_files: int = 0
    redone_rows: int = 0
    redone_bytes: int = 0
    redone_scans: int = 0


class Meetings(msgspec.Struct, frozen=True, kw_only=True):
    """The commits that one commit met: how many, and the last `MOST_MET`, in order."""

    total: int = 0
    last: tuple[Meeting, ...] = ()

    def and_(self, *met: Meeting) -> Meetings:
        """Return these and then `met`."""
        return self if not met else Meetings(total=self.total + len(met), last=(*self.last, *met)[-MOST_MET:])

    def followed_by(self, later: Meetings) -> Meetings:
        """Return these and then `later`."""
        return Meetings(total=self.total + later.total, last=(*self.last, *later.last)[-MOST_MET:])

    def __bool__(self) -> bool:
        return self.total > 0

    def tags(self) -> dict[str, str]:
        """Return the tag of commitInfo; none without a meeting."""
        return {MET_TAG: msgspec.json.encode(self).decode()} if self else {}

    def as_json(self) -> dict[str, Any] | None:
        """Return the format as plain values; None without a meeting."""
        if not self:
            return None
        return {"total": self.total, "last": [msgspec.to_builtins(met) for met in self.last]}


NONE_MET = Meetings()


def operation_name(info: Mapping[str, Any] | None) -> str | None:
    """Return the operation that a commitInfo names, cut to a bounded length; None if it names none."""
    name = (info or {}).get("operation")
    return name[:_MOST_CHARS] if isinstance(name, str) else None


def meetings_of(info: Mapping[str, Any] | None) -> Meetings:
    """Return the meetings in a commitInfo of any writer; none if it holds none, or a text of another form."""
    tags = (info or {}).get("tags")
    text = tags.get(MET_TAG) if isinstance(tags, Mapping) else None
    if not isinstance(text, str) or len(text) > _MOST_TAG_BYTES:
        return NONE_MET
    try:
        found = msgspec.json.decode(text, type=Meetings)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NONE_MET
    last = found.last[-MOST_MET:]
    if found.total < len(last) or any(_is_long(met.how, met.operation, met.conflict) for met in last):
        return NONE_MET
    return Meetings(total=found.total, last=last)


def _is_long(*texts: str | None) -> bool:
    return any(text is not None and len(text) > _MOST_CHARS for text in texts)


def met_text(met: Meetings) -> str:
    """Return the reasons as one line, the most frequent first: `2 disjoint_partitions, 1 redone`; empty for none."""
    parts = [f"{count} {how}" for how, count in Counter(each.how for each in met.last).most_common()]
    earlier = met.total - len(met.last)
    return ", ".join([*parts, *([f"{earlier} earlier"] if earlier else [])])
