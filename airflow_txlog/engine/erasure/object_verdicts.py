"""Verification: a verdict on every object below a table, by opening each one.

The invariants: an object that was not read to its end is `not readable`, never `absent`; an object of a format that is
not known here is not readable, because bytes that are packed hide values; and an object that appears meanwhile gets a
verdict too. Nothing that is returned holds a value: paths and places are marked where they hold one.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import pyarrow as pa

from airflow_txlog.datafiles.parquet.reading import DataFile, with_content
from airflow_txlog.engine.erasure.parquet_traces import traces_in_parquet
from airflow_txlog.engine.erasure.plain_formats import holds_no_value
from airflow_txlog.engine.erasure.text_traces import MOST_TEXT_BYTES, decompressed, text_of, traces_in_text
from airflow_txlog.engine.erasure.traces import Trace
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CredentialsUnavailable, LimitExceeded
from airflow_txlog.locations import is_absolute
from airflow_txlog.storage.base import FileInfo, NoCredentials, Store
from airflow_txlog.storage.clouds import NotAnswered

Verdict = Literal["absent", "rewritten", "found", "statistic only", "deleted", "not readable"]
Method = Literal["decoded", "text", "bytes", "name"]

_PARQUET = (b"PAR1", b"PARE")
_OF_MACHINE = (MemoryError, LimitExceeded, NotAnswered, NoCredentials, CredentialsUnavailable)
_OF_SYSTEM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_COPIED_BYTES = 8 * 1024 * 1024
_LISTINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVerdict:
    """The findings in one object."""

    path: str
    """Relative to the table; a segment that holds a value is marked."""
    size_bytes: int
    digest: str | None
    """The SHA-256 of the content; None if it could not be read."""
    method: Method
    verdict: Verdict
    traces: tuple[Trace, ...] = ()
    reason: str | None = None
    """Why it is not readable."""

    @property
    def passes(self) -> bool:
        """Whether the object is known to hold no value."""
        return self.verdict in ("absent", "rewritten", "deleted")


Note = Callable[[FileInfo | str, ObjectVerdict], object]


class Held(NamedTuple):
    """An object that holds a value, and the verdict on it."""

    info: FileInfo
    verdict: ObjectVerdict


NoteGoing = Callable[[Sequence[Held]], object]


def verify(snapshot: Snapshot, forms: Forms, note: Note = lambda target, found: None) -> Iterator[ObjectVerdict]:
    """Yield a verdict on every object below the table, and on each live file elsewhere, as a shallow clone has them.

    The names of the table's own folder and of those above it count too. Needs only the right to list and to read. A
    file elsewhere is not readable without `allow_absolute_paths`. `note` gets each verdict on an object that was
    opened, or on the path of a folder, with that object, before it is yielded.
    """
    if forms.in_path(snapshot.uri):
        found = _named("", forms, Trace("the name of the table's folder, or of one above it", "value"))
        note(snapshot.uri, found)
        yield found
    files = snapshot.files(columns=["path", "size"])
    paths = canonical_paths(files.column("path"), snapshot.uri).to_pylist()
    for path, size in zip(paths, files.column("size").to_pylist(), strict=True):
        if is_absolute(path):
            info = FileInfo(path=path, size_bytes=size, modified_ms=0)
            found = verdict_on(snapshot.store, info, forms)
            note(info, found)
            # Its folder may be one that this machine does not have.
            is_gone = found.verdict == "deleted"
            yield _unreadable(path, "a live file that is not found", forms) if is_gone else found
    yield from _verify_below(snapshot.store, forms, note)


def _verify_below(store: Store, forms: Forms, note: Note) -> Iterator[ObjectVerdict]:
    seen: dict[tuple[str, int, int, str | None], Verdict] = {}
    reported: set[tuple[str, str | None]] = set()
    for _ in range(_LISTINGS):
        unreadable: list[str] = []
        listed, new = [], []
        for info in store.walk(unreadable.append):
            listed.append(info.path)
            known = seen.get(_identity(info))
            if known is None:
                new.append(info)
            elif known == "deleted":
                yield _unreadable(info.path, "listed, but not found", forms)
                seen[_identity(info)] = "not readable"
        for found in _without_content(store, forms, note, unreadable, listed):
            if (found.path, found.reason) not in reported:
                reported.add((found.path, found.reason))
                yield found
        if not new:
            return
        for info in new:
            found = verdict_on(store, info, forms)
            seen[_identity(info)] = found.verdict
            note(info, found)
            yield found
    yield _unreadable("", "objects appear faster than they are read", forms)


def _without_content(
    store: Store, forms: Forms, note: Note, unreadable: Sequence[str], files: Sequence[str]
) -> Iterator[ObjectVerdict]:
    """Yield the verdicts on everything below the table that is no object to open."""
    yield from (_unreadable(path, "a folder that this user may not read", forms) for path in unreadable)
    yield from (_unreadable(path, "a link, which may lead anywhere, or no file", forms) for path in store.links())
    yield from (_unreadable(path, "a key that is no path", forms) for path in store.odd_keys())
    yield from _in_empty_folders(store, forms, note, files)


def _in_empty_folders(store: Store, forms: Forms, note: Note, files: Sequence[str]) -> Iterator[ObjectVerdict]:
    """Yield a verdict on each folder whose name holds a value, and which has no file that shows it."""
    named = [path for path in (*store.list_directories(), *store.folder_markers()) if forms.in_path(path)]
    if named:
        above = {str(folder) for path in files for folder in PurePosixPath(path).parents}
        for path in named:
            if path not in above:
                found = _named(path, forms, Trace("path", "value"))
                note(path, found)
                yield found


def _named(path: str, forms: Forms, trace: Trace) -> ObjectVerdict:
    """Return the verdict on a folder whose name holds a value."""
    shown = forms.without_values(path)
    return ObjectVerdict(path=shown, size_bytes=0, digest=None, method="name", verdict="found", traces=(trace,))


def is_of_machine(error: Exception) -> bool:
    """Return whether an error shows that this machine or a service was not able to read, and nothing of the object."""
    return isinstance(error, _OF_MACHINE) or (isinstance(error, OSError) and error.errno in _OF_SYSTEM)


def verdict_on(store: Store, info: FileInfo, forms: Forms, *, is_to_go: bool = False) -> ObjectVerdict:
    """Return the verdict on one object. `is_to_go`: an unreadable one goes, so errors of the machine are raised."""
    method: Method = "name"
    found: list[Trace] = []
    if forms.in_path(info.path):
        found.append(Trace("path", "value"))
    digest = reason = None
    try:
        file = with_content(
            DataFile(store=store, path=info.path, size_bytes=info.size_bytes), reads_all=True, is_read_again=False
        )
        if _is_parquet(file):
            method = "decoded"
            found += traces_in_parquet(file, forms)
            digest = _digest(file)
        else:
            data = _content(file)
            digest = hashlib.sha256(data).hexdigest()
            content = decompressed(data)
            method = _method(info.path, content)
            found += traces_in_text(content, forms)
            # What is compressed has a name or a comment before it.
            if content is not data and forms.in_bytes(data):
                found.append(Trace("bytes", "value"))
    except FileNotFoundError:
        return _verdict(info, forms, method, "deleted", found=[])
    except Exception as error:
        if is_to_go and is_of_machine(error):
            raise
        # A damaged object raises whatever its bytes lead to, and ends the search of no other object.
        reason = type(error).__name__
    if any(trace.kind == "value" for trace in found):
        verdict: Verdict = "found"
    elif reason is not None:
        verdict = "not readable"
    else:
        verdict = "statistic only" if found else "absent"
    return _verdict(info, forms, method, verdict, found=found, digest=digest, reason=reason)


def _verdict(
    info: FileInfo,
    forms: Forms,
    method: Method,
    verdict: Verdict,
    *,
    found: list[Trace],
    digest: str | None = None,
    reason: str | None = None,
) -> ObjectVerdict:
    return ObjectVerdict(
        path=forms.without_values(info.path),
        size_bytes=info.size_bytes,
        digest=digest,
        method=method,
        verdict=verdict,
        traces=tuple(found),
        reason=reason,
    )


def _unreadable(path: str, reason: str, forms: Forms) -> ObjectVerdict:
    shown = forms.without_values(path)
    return ObjectVerdict(path=shown, size_bytes=0, digest=None, method="name", verdict="not readable", reason=reason)


def _identity(info: FileInfo) -> tuple[str, int, int, str | None]:
    return info.path, info.size_bytes, info.modified_ms, info.etag


def _method(path: str, data: bytes) -> Method:
    """Return how an object is searched. Raises ValueError for a format that may hide values."""
    if holds_no_value(path, data):
        return "bytes"
    if "\0" in text_of(data):
        raise ValueError("bytes of a format that is not known here")
    return "text"


def _is_parquet(file: DataFile) -> bool:
    """Return whether an object is to be read as Parquet. Raises FileNotFoundError without it."""
    with _opened(file) as source:
        return source.read(4) in _PARQUET or file.path.endswith(".parquet")


def _opened(file: DataFile) -> pa.NativeFile:
    return file.store.open_input(file.path) if file.content is None else pa.BufferReader(file.content)


def _content(file: DataFile) -> bytes:
    if file.content is not None:
        return bytes(file.content)
    with _opened(file) as source:
        if source.size() > MOST_TEXT_BYTES:
            raise ValueError("a text of more than two gigabytes")
        data: bytes = source.read()
        return data


def _digest(file: DataFile) -> str:
    total = hashlib.sha256()
    with _opened(file) as source:
        while data := source.read(_COPIED_BYTES):
            total.update(data)
    return total.hexdigest()
