"""The report on an erasure: who is gone from which tables, object by object, as signed JSON.

A report is a document and lists of objects, at least one for each verified table. The document names each list with
its digest. Several reports may name one list. The invariants: neither the document nor a list holds a value of a
subject; and `check_report` accepts a report if and only if it is whole and signed. The lists alone show whether it is
complete.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from airflow_txlog.contract.erasure.check_report import (
    ALGORITHM,
    FORMAT,
    NOT_ERASED,
    OUT_OF_SCOPE,
    PASSING,
    VERIFIED,
    canonical,
)
from airflow_txlog.errors import InvalidInput

MOST_SHOWN = 50
"""The objects that do not pass, of a table, which its findings name; its list has all of them."""
_DATE = re.compile(r"(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)", re.ASCII)
REQUEST_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,99}", re.ASCII)

CHECKLIST: Mapping[str, str] = {
    "bucket_versions": "Earlier versions of deleted objects are gone from the bucket, or expire on a known day.",
    "replicas": "Replicas of the bucket or the disk have deleted the same objects.",
    "backups": "Backups that contain the subjects expire on a known day, and are not restored until then.",
    "clones": "Shallow and deep clones of the tables are covered by a report of their own.",
    "sources": "The sources of the tables no longer deliver the subjects.",
    "extracts": "Extracts, exports and caches of other tools no longer contain the subjects.",
    "logs": "Logs and monitoring of other systems that processed the subjects are covered by their own retention.",
}
"""Places that no program here can read. The controller declares each of them."""


_SCOPE = (
    "Key column: no object of the tables contains a value of the subjects, in this column, in a name or in the log. A "
    "text or bytes were searched in each column of texts or bytes, too; a number, a date or a text of fewer than five "
    "characters only where a text names the column.",
    "Other columns of the subjects' rows: the rows and the files that held them are gone.",
    "Rows of other people: personal data of a subject in them was searched for by the key alone.",
    "Uploads to a bucket that a killed writer has not finished were not searched: no listing of objects shows them.",
)
_AFTER_ERASURE = "The log no longer describes such a file, neither by bounds of a column nor by values of partitions."
_WITHOUT_ERASURE = (
    "The log may still describe files that were deleted earlier by bounds of other columns: no erasure preceded this "
    "verification, so nothing shows which files held a subject."
)
_FAILED_ERASURE = (
    "The log of a table that was not erased may still describe files that held a subject, by bounds of other columns."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The verdicts on the objects of one table.

    `state`: "verified"; or with a `reason` "out of scope" (a legal hold), "not verified", or "not erased", if the
    erasure of the table has failed, whatever the verdicts are. `left`: the first objects that do not pass. `parts`: the
    lists of all objects, each with `name`, `sha256` and `num_objects`.
    `steps`: what was done to the table before, each with its `name`, `version` and `at`. Both are None for a step of a
    killed run that is unknown, with the time at which it was `begun`.
    """

    table: str
    column: str
    state: Literal["verified", "out of scope", "not verified", "not erased"] = VERIFIED
    reason: str | None = None
    table_id: str | None = None
    version: int | None = None
    oldest_version: int | None = None
    num_subjects: int = 0
    digests: Mapping[str, Any] | None = None
    """The file with a keyed digest of each subject: `name`, `sha256` and `key_ids`, the oldest first. None: no key."""
    num_objects: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    parts: Sequence[Mapping[str, Any]] = ()
    left: Sequence[Mapping[str, Any]] = ()
    from_time: str | None = None
    to_time: str | None = None
    steps: Sequence[Mapping[str, Any]] = ()
    waits: Sequence[Mapping[str, Any]] = ()
    """The first objects that may not go before a time: each with its `path`, `until` and `why`, the latest first."""
    num_waits: int = 0
    num_deleted_rows: int | None = None
    """The rows that the erasure deleted, of all requests of its runs; None if none ran, or if it is unknown."""
    num_erased_objects: int | None = None
    """The objects that the erasure deleted because of the subjects; None if none ran, or if it is unknown."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """The versions of the programs that opened the objects."""

    @property
    def is_complete(self) -> bool:
        """Whether every object has a verdict that passes and none has to go later, or the table is out of scope."""
        if self.state == OUT_OF_SCOPE:
            return True
        counted = sum(self.verdicts.values()) == self.num_objects > 0
        # Nothing in an object that waits need show the subject: its partition may, which no verdict knows.
        return self.state == VERIFIED and counted and self.num_left == self.num_waits == 0

    @property
    def num_left(self) -> int:
        """How many objects do not pass."""
        return sum(count for verdict, count in self.verdicts.items() if verdict not in PASSING)

    @property
    def summary(self) -> str:
        """The state and the numbers of verdicts, for people."""
        if self.state != VERIFIED:
            return f"{self.state} ({self.reason})"
        counts = [f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items())]
        return ", ".join([*counts, f"{self.num_waits} to go later"] if self.num_waits else counts)


NO_ROW_FOUND = "The erasure found no row of a subject. Are the keys written as the tables store them?"


def found_no_row(tables: Iterable[tuple[Sequence[Mapping[str, Any]], int | None]]) -> bool:
    """Return whether an erasure certainly deleted no row, given the `steps` and `num_deleted_rows` of each table."""
    # A table that it left alone has neither.
    counts = [count for steps, count in tables if steps or count is not None]
    return bool(counts) and all(count == 0 for count in counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times in ISO 8601: of the request, and from when on the subjects were gone; None if it is not known."""

    requested: str | None = None
    gone_from_latest_version: str | None = None
    gone_from_storage: str | None = None
    gone_from_log: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """The report on one request, for the controller.

    `declared`: the controller's answers to `CHECKLIST`. `not_covered`: tables that read the tables of this request, and
    are not in it, each with `table` and `reads`.
    """

    request_id: str
    tables: Sequence[Findings]
    times: Times = Times()
    declared: Mapping[str, str] = field(default_factory=dict)
    not_covered: Sequence[Mapping[str, Any]] = ()
    created: str = ""

    @property
    def rechecks(self) -> list[dict[str, str]]:
        """The days after which subjects can be gone from a place that still has them, the next one first.

        Each has its `item` of the checklist, or "waits" for objects that had to stay, and `on`, a date in ISO 8601. A
        declaration names its day by its last date.
        """
        today = self.created[:10]
        days = {item: max(_dates_in(text), default="") for item, text in self.declared.items()}
        days["waits"] = max((wait["until"][:10] for each in self.tables for wait in each.waits), default="")
        found = [{"item": item, "on": day} for item, day in days.items() if day and day >= today]
        return sorted(found, key=lambda each: (each["on"], each["item"]))

    @property
    def is_complete(self) -> bool:
        """Whether every table is complete or out of scope, and one or more was verified."""
        is_held = all(each.state == OUT_OF_SCOPE for each in self.tables)
        return not is_held and all(each.is_complete for each in self.tables)

    @property
    def scope(self) -> list[str]:
        """The data that a complete report vouches for, and the limits, for people."""
        verified = [each for each in self.tables if each.state == VERIFIED]
        is_erased = bool(verified) and all(each.steps for each in verified)
        if any(each.state == NOT_ERASED for each in self.tables):
            return [*_SCOPE, _FAILED_ERASURE]
        return [*_SCOPE, _AFTER_ERASURE if is_erased else _WITHOUT_ERASURE]

    def body(self) -> dict[str, Any]:
        """Return the part of the document that is signed."""
        checklist = [
            {"item": item, "statement": statement, "declared": self.declared.get(item)}
            for item, statement in CHECKLIST.items()
        ]
        body = {
            "format": FORMAT,
            "request_id": self.request_id,
            "created": self.created,
            "complete": self.is_complete,
            "scope": self.scope,
            "times": asdict(self.times),
            "tables": [asdict(each) for each in self.tables],
            "checklist": checklist,
            "rechecks": self.rechecks,
            "not_covered": self.not_covered,
        }
        # As it reads back: tuples are lists.
        whole: dict[str, Any] = json.loads(canonical(body))
        return whole


def _dates_in(text: str) -> Iterator[str]:
    for found in _DATE.findall(text):
        with suppress(ValueError):
            yield dt.date.fromisoformat(found).isoformat()


def document_of(body: Mapping[str, Any], signature: tuple[str, str] | None) -> bytes:
    """Return the JSON of a report. `signature`: the public key and the signature of `canonical(body)`, hexadecimal."""
    signed = None
    if signature is not None:
        signed = {"algorithm": ALGORITHM, "public_key": signature[0], "value": signature[1]}
    return json.dumps({"report": body, "signature": signed}, indent=1, ensure_ascii=True).encode()


def check_request_id(given: object) -> str:
    """Return the id of a request, which names files. Raises InvalidInput."""
    if not isinstance(given, str) or not REQUEST_ID.fullmatch(given):
        raise InvalidInput(
            "request_id must be letters, digits, '-', '_' and '.', at most 100, and begin with a letter or a digit, "
            "because it names files. Nothing was read. Give another id, without personal data."
        )
    return given
