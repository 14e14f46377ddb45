"""The files that an erasure and its verification write next to the report: lists of objects, and records of work.

Each appears whole, under a name that is made of its content, so a repeated try replaces nothing, and a changed file is
noticed. A record keeps the steps of one run of the job, the objects that it wrote, and the lists of those that it
deleted. A plan has the steps so far, and lists what is about to go, so that a kill loses none of it from the report.
The invariants: nothing here is written below the table, and nothing holds a value; and a record counts only if the key
of the job has signed it, for its table and its kind. Every writer of the folder can put any file there: one that is no
record stops no erasure.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import hmac
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from airflow_txlog.engine import DeltaTable
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.object_verdicts import ObjectVerdict
from airflow_txlog.errors import InvalidInput, LimitExceeded, OutsideTable
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.locations import shown_path
from airflow_txlog.storage import open_store
from airflow_txlog.storage.base import Store

# Earlier records belong to another erasure under the same id.
_LONGEST_ERASURE_MS = 400 * 86_400_000
# Any writer of the folder can put a file there that unpacks to a thousand times its size. The record of a run that
# wrote a million files has half of these bytes.
_MOST_RECORD_BYTES, _MOST_LIST_BYTES = 256 * 1024 * 1024, 2 * 1024 * 1024 * 1024
# Of a record that the key has not signed, more is not decoded.
_MOST_UNSIGNED_BYTES = 1024 * 1024
_GZIP = 16
# Deflate makes a thousand bytes of one at most, so these become four times as many as `_MOST_UNSIGNED_BYTES`.
_PIECE_BYTES = 4096
_NAME = re.compile(r"(.+)-[0-9a-f]{32}\.([a-z]+)\.gz", re.ASCII)
_SIGNATURE_CHARACTERS = 64
_NO_FILE = (OSError, OutsideTable, LimitExceeded)
_NO_RECORD = (TypeError, ValueError, RecursionError, zlib.error, msgspec.MsgspecError)
_LIST_OF_PLAN = "planned-objects-"


@dataclass(frozen=True, kw_only=True)
class ErasureRecord:
    """The work of one run of an erasure's job on one table.

    `requests`: the ids of the requests whose subjects it erased. `written`: the sizes of the data files and checkpoints
    that it wrote, by their marked paths. `deleted`: the lists of the objects that it deleted, by request. `runs`: the
    ids of the runs whose steps it has: its own, and those of killed ones. `names`: the paths of the key column, its
    present logical and physical one first: a log that was cut no longer has the former ones.

    A plan also has the step that is about to be `doing`, the time `begun`, the `version` before it, and the `readable`
    versions at the start of the run: the first of each range, and the one after its last; None if they are unknown.
    """

    requests: Sequence[str]
    steps: Sequence[Mapping[str, Any]]
    written: Mapping[str, int] = field(default_factory=dict)
    deleted: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    runs: Sequence[str] = ()
    names: Sequence[str] = ()
    doing: str = ""
    begun: str | None = None
    version: int | None = None
    readable: Sequence[Sequence[int]] | None = None


def lists_of(context: JobContext, report_uri: str) -> Store:
    """Return the folder of the lists. Raises InvalidInput if it is inside of the table."""
    lists, uri = open_store(report_uri, context.spec.access), context.table.uri
    # Also by a link: what is written there would be an object of the table.
    if f"{DeltaTable(lists).place}/".startswith(f"{context.table.place}/"):
        raise InvalidInput(
            f"The folder of the report, {lists.root}, is inside of the table {uri}, and would change what is verified. "
            "Nothing was read. Name a folder outside of every table."
        )
    return lists


def names_in(records: Iterable[ErasureRecord], paths: Iterable[str]) -> Iterator[str]:
    """Yield the names that runs knew of the key column with these paths; a request may have several key columns."""
    physical = list(paths)[1:2]
    yield from (name for record in records if list(record.names)[1:2] == physical for name in record.names)


# --- lists ----------------------------------------------------------------------------------------------------------


def entry_of(verdict: ObjectVerdict) -> dict[str, Any]:
    """Return the line of a list."""
    return {name: value for name, value in dataclasses.asdict(verdict).items() if value not in (None, ())}


class ListWriter:
    """Writes lists; equal ones once, so that several reports name one file."""

    def __init__(self, lists: Store, key: str | None = None) -> None:
        self._lists, self._key = lists, key
        self._written: dict[str, dict[str, Any]] = {}

    def objects(self, entries: Iterable[Mapping[str, Any]], kind: str = "objects") -> dict[str, Any]:
        """Write verdicts as lines of JSON; return the file's name and digest, and their number."""
        lines = [json.dumps(entry, sort_keys=True) for entry in entries]
        return {**self._write(kind, "jsonl", lines), "num_objects": len(lines)}

    def digests(self, digests: pa.StringArray, keys: Sequence[DigestKey]) -> dict[str, Any]:
        """Write the keyed digests of subjects, one a line; return the file's name and digest, and the keys' ids."""
        # In order: not in that of the subjects.
        lines = sorted(digests.to_pylist())
        return {**self._write("subjects", "txt", lines), "key_ids": [key.id for key in keys]}

    def record(self, table_uri: str, record: ErasureRecord, *, is_plan: bool = False) -> str:
        """Write a record of a table, or the plan of one; return its name."""
        kind, text = _kind_of(table_uri, is_plan=is_plan), json.dumps(dataclasses.asdict(record), sort_keys=True)
        return str(self._write(kind, "json", [text, _signature(self._key, kind, text)])["name"])

    def _write(self, kind: str, ending: str, lines: Sequence[str]) -> dict[str, Any]:
        data = gzip.compress("\n".join(lines).encode(), mtime=0)
        name = _name_of(data, kind, ending)
        if name not in self._written:
            self._lists.put(name, data)
            self._written[name] = {"name": name, "sha256": hashlib.sha256(data).hexdigest()}
        return self._written[name]


def _name_of(data: bytes, kind: str, ending: str) -> str:
    return _named_by(hashlib.sha256(data), kind, ending)


def _named_by(content: hashlib._Hash, kind: str, ending: str) -> str:
    return f"{kind}-{content.hexdigest()[:32]}.{ending}.gz"


# --- records --------------------------------------------------------------------------------------------------------


def place_of(table_uri: str) -> str:
    """Return the part of names that distinguishes the tables. The copies of a table have one id, but not one place."""
    return hashlib.sha256(table_uri.encode()).hexdigest()[:16]


def _kind_of(table_uri: str, *, is_plan: bool) -> str:
    return f"{'planned' if is_plan else 'erased'}-{place_of(table_uri)}"


def object_of(entry: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the path and the digest of the object of a line, which distinguish it from others."""
    return entry["path"], entry.get("digest")


def objects_in(
    lists: Store, records: Iterable[tuple[str, ErasureRecord]], request_id: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of the lists that records name for a request, each list once."""
    names = dict.fromkeys(part["name"] for _, record in records for part in record.deleted.get(request_id, ()))
    for name in names:
        data = _whole(lists, name)
        if data is not None:
            yield from (json.loads(line) for line in gzip.decompress(data).splitlines())


def _signature(key: str | None, kind: str, text: str) -> str:
    """Return the signature of a record of this kind, which names its table: it counts for no other."""
    return "" if key is None else hmac.new(bytes.fromhex(key), f"{kind}\n{text}".encode(), hashlib.sha256).hexdigest()


def remove_plans(lists: Store, plans: Iterable[tuple[str, ErasureRecord]], say: Callable[[str], object]) -> None:
    """Delete plans whose objects are in a record now, with their lists. A folder that forbids it keeps them."""
    for name, plan in plans:
        names = (part["name"] for of_request in plan.deleted.values() for part in of_request)
        # Whatever a record names: nothing else is deleted here.
        parts = {each for each in names if each.startswith(_LIST_OF_PLAN) and "/" not in each}
        try:
            # The plan last: the next run finds it, and tries again.
            for each in (*sorted(parts), name):
                lists.delete(each)
        except OSError as error:
            say(f"{name} is no longer needed, and cannot be deleted ({type(error).__name__})")


def earlier_records(
    lists: Store,
    table_uri: str,
    requests: Iterable[str],
    key: str | None,
    say: Callable[[str], object],
    *,
    is_plan: bool = False,
) -> list[tuple[str, ErasureRecord]]:
    """Return the records, or the plans, of earlier runs on a table for one of the requests, each with its name.

    Without a key there are none: every writer of the folder could have made them.
    """
    if key is None:
        return []
    found, wanted = [], set(requests)
    for name in _names_of(lists, table_uri, is_plan=is_plan):
        record = read_record(lists, name, key, say)
        if record is not None and not wanted.isdisjoint(record.requests):
            found.append((name, _with_whole_lists(lists, record, wanted, say)))
    return found


def unverified_requests(
    lists: Store, table_uri: str, requests: Iterable[str], key: str | None, say: Callable[[str], object]
) -> set[str]:
    """Return those of the requests for which records that do not count claim that runs worked on a table.

    Anybody can write such a claim, also a run of this deployment that had no key or an earlier one. A signed record of
    another release is one, too.
    """
    found: set[str] = set()
    wanted = set(requests)
    for is_plan in (False, True):
        for name in _names_of(lists, table_uri, is_plan=is_plan):
            if key is None:
                say(_left_out(name))
            if key is None or read_record(lists, name, key, say) is None:
                claimed = _claimed(lists, name)
                # Of one that is too large to decode, it is unknown.
                found |= wanted if claimed is None else wanted.intersection(claimed)
    return found


class _Claim(msgspec.Struct):
    """The part of an unsigned record that is read."""

    requests: list[str]


def _claimed(lists: Store, name: str) -> Sequence[str] | None:
    """Return the requests that an unsigned record names; none, if it is no record; None for one that is too large."""
    with suppress(*_NO_FILE, *_NO_RECORD):
        with lists.open_input(name) as source:
            if source.size() > _MOST_UNSIGNED_BYTES:
                return None
        data = _whole(lists, name, _MOST_UNSIGNED_BYTES)
        if data is not None:
            packed = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
            text = packed.decompress(data, _MOST_UNSIGNED_BYTES)
            return msgspec.json.decode(text.partition(b"\n")[0], type=_Claim).requests if packed.eof else None
    return ()


def _names_of(lists: Store, table_uri: str, *, is_plan: bool) -> list[str]:
    prefix, oldest_ms = f"{_kind_of(table_uri, is_plan=is_plan)}-", lists.now_ms() - _LONGEST_ERASURE_MS
    infos = lists.walk(lambda folder: None, prefix=prefix)
    return sorted(info.path for info in infos if info.modified_ms >= oldest_ms)


def read_record(lists: Store, name: str, key: str | None, say: Callable[[str], object]) -> ErasureRecord | None:
    """Return the record of this name; None if it is gone, was changed, or is not signed by the key.

    Without a key, the caller knows that the name, and so the content, is that of a record.
    """
    data = _whole(lists, name, _MOST_RECORD_BYTES) if key is None or _is_signed(lists, name, key) else None
    with suppress(*_NO_RECORD):
        if data is not None:
            return ErasureRecord(**json.loads(_unpacked_record(data).partition(b"\n")[0]))
    say(_left_out(name) if data is None else _unknown_form(name))
    return None


def _unknown_form(name: str) -> str:
    return (
        f"warning: the record {shown_path(name)!r} has a form that this release does not know, and is left out of the "
        "report. Another release may have written it. Keep it, and erase with that release"
    )


def _left_out(name: str) -> str:
    return (
        f"warning: the record {shown_path(name)!r} is gone, was changed, or is not signed with this deployment's "
        "txlog_saved_work_secret, and is left out of the report. If no erasure with an earlier secret wrote it, delete "
        "it, and check who may write to the folder of the report"
    )


def _is_signed(lists: Store, name: str, key: str) -> bool:
    """Return whether the key has signed the record that has this name.

    The content is neither kept nor decoded before that is known. `_whole` then returns the same bytes, or none.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        return False
    signed = hmac.new(bytes.fromhex(key), f"{named[1]}\n".encode(), hashlib.sha256)
    # The signature, and the end of the line before it.
    packed, total, last, content = zlib.decompressobj(zlib.MAX_WBITS | _GZIP), 0, b"", hashlib.sha256()
    with suppress(*_NO_FILE, zlib.error), lists.open_input(name) as source:
        while not packed.eof and total <= _MOST_RECORD_BYTES and (data := source.read(_MOST_UNSIGNED_BYTES)):
            content.update(data)
            for start in range(0, len(data), _PIECE_BYTES):
                if packed.eof or total > _MOST_RECORD_BYTES:
                    break
                last += (piece := packed.decompress(data[start : start + _PIECE_BYTES]))
                total += len(piece)
                signed.update(last[: -_SIGNATURE_CHARACTERS - 1])
                last = last[-_SIGNATURE_CHARACTERS - 1 :]
        is_whole = packed.eof and total <= _MOST_RECORD_BYTES and name == _named_by(content, named[1], named[2])
        return is_whole and hmac.compare_digest(last, b"\n" + signed.hexdigest().encode())
    return False


def _with_whole_lists(
    lists: Store, record: ErasureRecord, wanted: Iterable[str], say: Callable[[str], object]
) -> ErasureRecord:
    """Return the record with the lists of these requests alone, without those that are gone or were changed."""
    is_whole: dict[str, bool] = {}
    deleted: dict[str, list[Mapping[str, Any]]] = {}
    for request_id in wanted:
        for part in record.deleted.get(request_id, ()):
            name = part["name"]
            if name not in is_whole:
                is_whole[name] = _whole(lists, name) is not None
                if not is_whole[name]:
                    say(f"the list {name} is gone, or was changed, and is left out of the report")
            if is_whole[name]:
                deleted.setdefault(request_id, []).append(part)
    return dataclasses.replace(record, deleted=deleted)


def _whole(lists: Store, name: str, most_bytes: int = _MOST_LIST_BYTES) -> bytes | None:
    """Return the bytes of a file that is named by them; None if it has other ones, or more.

    They are packed: only a list that a signed record names is unpacked without a limit.
    """
    named = _NAME.fullmatch(name)
    if named is None:
        return None
    try:
        with lists.open_input(name) as source:
            if source.size() > most_bytes:
                return None
            data: bytes = source.read()
    except _NO_FILE:
        return None
    return data if name == _name_of(data, named[1], named[2]) else None


def _unpacked_record(data: bytes) -> bytes:
    """Return the text and the signature of a record. Raises ValueError and zlib.error for a damaged or endless one."""
    packed = zlib.decompressobj(zlib.MAX_WBITS | _GZIP)
    found = packed.decompress(data, _MOST_RECORD_BYTES)
    if not packed.eof:
        raise ValueError("a record of more bytes than any has")
    return found
