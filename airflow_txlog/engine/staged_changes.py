"""Staged changes: complete changes that wait in a table's folder until a job publishes or discards them.

A change waits as one document in a private folder, next to the files that it adds. The first line is a signature,
which only jobs check (`jobs.resume.unpublished`); the second has everything that a commit would show; the rest are the
reads, which only jobs can decrypt. A VACUUM keeps the files of a change that still waits. A change that a conflict
forbids may be made again, as another change that takes its place (`remade_id`) and may name the same files. The
invariants: a document is created once and never changed. No process publishes a change that another one has begun to
discard, or discards one that may be published: the first of them to write the change's fate decides. Source: soundness
A16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from airflow_txlog.datafiles.partitioning import decode_add_path
from airflow_txlog.engine.commit.content.staged_content import StagedContent
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.log.actions import Add, Cdc
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.vectors import vector_file
from airflow_txlog.engine.table.schema.properties import DAY_MS, HOUR_MS
from airflow_txlog.engine.table.snapshot.files import action_keys
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable, LimitExceeded, OutsideTable, StagedChangeGone
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage.base import Store

LONGEST_WAIT_MS = 6 * DAY_MS
"""The longest time that a change waits. Other engines delete files that no commit names after seven days."""

PUBLISH, DISCARD, REFUSED = "publish", "discard", "refused"
"""The fates of a change: a job may be publishing it, a job discards it, or a conflict forbids it for ever."""

_FORMAT = 1
# A publication that begins in time ends in time.
_GRACE_MS = HOUR_MS
_DOCUMENT, _FATE = "/staged-change", "/staged-fate"
# A document that is there and cannot be read here.
_UNREADABLE = (OutsideTable, LimitExceeded, PermissionError, ValueError, RecursionError, msgspec.MsgspecError)
_NO_END = 2**63 - 1
_TRIES = 2


class StagedChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a staged change but its reads and the description of its job.

    `operation` is the record's name, `commit_operation` that of the commit. `files` are counts for the result. `inputs`
    are the files of the job's saved work, from which the change can be made again.
    """

    format: int = _FORMAT
    table_id: str
    base_version: int
    operation: str
    commit_operation: str
    app_id: str
    app_version: int
    staged_ms: int
    expires_ms: int
    parameters: dict[str, Any]
    metrics: dict[str, int]
    files: dict[str, int]
    tags: dict[str, str]
    content: StagedContent
    inputs: list[str] = []

    def paths(self, root: str) -> list[str]:
        """Return the files that were staged for the change, by their paths in the store of the table at `root`."""
        named: Iterable[Add | Cdc] = (*self.content.adds, *self.content.changes)
        removed = {each.path for each in self.content.removes}
        found = {decode_add_path(each.path) for each in named if each.path not in removed}
        vectors = (add.deletion_vector for add in self.content.adds if add.deletion_vector is not None)
        files = (vector_file(each.storage_type, each.path_or_inline_dv, root) for each in vectors)
        return sorted(found | {file for file in files if file is not None})

    def applied(self, base: Snapshot) -> Snapshot:
        """Return the table as the change would leave its base version, `base`."""
        content, root = self.content, base.uri
        keys = {*action_keys(content.removes, root), *action_keys(content.adds, root)}
        state = replace(
            base.state,
            files=base.state.files.after(keys, adds_to_table(content.adds), root),
            metadata=content.metadata or base.metadata,
            protocol=content.protocol or base.protocol,
        )
        return Snapshot(base.store, state, base.commit_file, base.checkpoint_files)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A change as it is in the store. `signature` covers `signed`. `rest`: what only jobs can decrypt."""

    change: StagedChange
    signature: str
    signed: bytes
    rest: bytes

    @property
    def digest(self) -> str:
        """The document's digest, which a handle contains."""
        return digest_of(self.signed)


def digest_of(signed: bytes) -> str:
    return hashlib.sha256(signed).hexdigest()


def signed_part(change: StagedChange, rest: bytes) -> bytes:
    """Return the bytes of a document after its signature."""
    return msgspec.json.encode(change, order="deterministic") + b"\n" + rest


def put_document(store: Store, id: str, signature: str, signed: bytes) -> bool:
    """Write the document of a change unless there is one. Return whether this call wrote it."""
    data = signature.encode() + b"\n" + signed
    return store.put_if_absent(_folder(id) + _DOCUMENT, data)


def read_document(store: Store, id: str) -> Document | None:
    """Return the document of a change; None if there is none, or none in our form. Its signature is not checked."""
    try:
        return _document(store.read(_folder(id) + _DOCUMENT))
    except (FileNotFoundError, *_UNREADABLE):
        return None


def _document(data: bytes) -> Document:
    """Return a document from its bytes. Raises ValueError, RecursionError or MsgspecError for another form."""
    signature, _, signed = data.partition(b"\n")
    header, _, rest = signed.partition(b"\n")
    change = msgspec.json.decode(header, type=StagedChange)
    if change.format != _FORMAT:
        raise ValueError("a staged change has another format")
    return Document(change=change, signature=signature.decode("latin-1"), signed=signed, rest=rest)


def staged_snapshot(table: DeltaTable, id: str, digest: str) -> Snapshot:
    """Return the table as a staged change would leave the version that it was made on. Raises StagedChangeGone."""
    found = read_document(table.store, id)
    if found is None or found.digest != digest:
        raise StagedChangeGone(
            f"The staged change {id} of {table.uri} cannot be read: it was published or discarded, a VACUUM has "
            "deleted it, or it is a change of another table (table_uri in its handle). Nothing was read. Read the "
            "table itself if it is published; else stage it again.",
            table=table.uri,
            id=id,
        )
    return found.change.applied(table.snapshot(found.change.base_version))


def staged_in(store: Store, most_bytes: int | None = None) -> Iterator[tuple[str, StagedChange]]:
    """Yield the id and the content of every change that waits, by id; not of those with a document of more bytes."""
    for id in staged_ids(store, most_bytes):
        found = read_document(store, id)
        if found is not None:
            yield id, found.change


def staged_ids(store: Store, most_bytes: int | None = None) -> list[str]:
    """Return the ids of all changes that wait, without reading one; not of those with a document of more bytes."""
    infos = sorted(store.walk(lambda folder: None, prefix=PRIVATE_PREFIX), key=lambda info: info.path)
    small = (info.path for info in infos if most_bytes is None or info.size_bytes <= most_bytes)
    return list(filter(None, map(_id_in, small)))


@dataclass(frozen=True, kw_only=True)
class WaitingFiles:
    """The files of a change that may wait until a moment by the store's clock, with those of its folder."""

    until_ms: int
    paths: frozenset[str] | None
    """None if they are unknown: another release has written the document, or another user."""


def waiting_files(store: Store) -> list[WaitingFiles]:
    """Return the files of all changes that may wait, for a VACUUM.

    Read them before the log. Then each staged file is named here or in the log, or is as young as the files of any job
    that runs: the document of a change that was published in between is gone, and its files may be days old.
    """
    found: list[WaitingFiles] = []

    def is_unreadable(folder: str) -> None:
        if folder.startswith(PRIVATE_PREFIX):
            found.append(WaitingFiles(until_ms=_NO_END, paths=None))

    for info in store.walk(is_unreadable, prefix=PRIVATE_PREFIX):
        id = _id_in(info.path)
        if id is None:
            continue
        # Any process that writes the table may write such a document. It keeps files no longer than a real one.
        latest_ms = info.modified_ms + LONGEST_WAIT_MS
        try:
            change = _document(store.read(info.path)).change
            own = (each.path for each in store.list(_folder(id)))
            paths = {*change.paths(store.root), *change.inputs, *own, _folder(id) + _FATE}
        except FileNotFoundError:
            # It was published or discarded just now.
            continue
        except (*_UNREADABLE, CorruptTable):
            found.append(WaitingFiles(until_ms=latest_ms + _GRACE_MS, paths=None))
        else:
            until_ms = min(change.expires_ms, latest_ms) + _GRACE_MS
            found.append(WaitingFiles(until_ms=until_ms, paths=frozenset(paths)))
    return found


def remade_id(id: str) -> str:
    """Return the id of the change that takes the place of this one, if a conflict forbids this one."""
    return hashlib.sha256(f"made again: {id}".encode()).hexdigest()[: len(id)]


def chain_of(store: Store, id: str) -> list[str]:
    """Return the id of a change and, while the last of them is refused, of the one that takes its place."""
    found = [id]
    while fate_of(store, found[-1]) == REFUSED:
        found.append(remade_id(found[-1]))
    return found


def decide(store: Store, id: str, fate: str, why: str = "") -> tuple[str, str]:
    """Write the fate of a change unless it has one. Return the fate that it has, and why it was refused."""
    path, data = _folder(id) + _FATE, _fate_data(fate, why)
    # After an error what is there counts. Another task may have deleted what took the name.
    for _ in range(_TRIES):
        with suppress(OSError):
            return (fate, why) if store.put_if_absent(path, data) else _fate(store.read(path))
    return (fate, why) if store.put_if_absent(path, data) else _fate(store.read(path))


def fate_of(store: Store, id: str) -> str | None:
    """Return the fate of a change; None as long as nothing is decided, or if this user may not read it."""
    try:
        return _fate(store.read(_folder(id) + _FATE))[0]
    except (FileNotFoundError, PermissionError, OutsideTable, LimitExceeded):
        return None


def _fate(data: bytes) -> tuple[str, str]:
    found, _, why = data.decode("utf-8", "replace").partition("\n")
    return found, why


def _fate_data(fate: str, why: str) -> bytes:
    return (f"{fate}\n{why}" if why else fate).encode("utf-8", "replace")


def refuse(store: Store, id: str, why: str) -> None:
    """Write that a conflict forbids the change for ever: the log that it was compared with never changes."""
    store.put(_folder(id) + _FATE, _fate_data(REFUSED, why))


def forget(store: Store, ids: Sequence[str]) -> None:
    """Delete the documents and then the fates of a chain of changes. What cannot be deleted is left to a VACUUM."""
    # The first document stays longest: while it is there, it and the fates show which of the changes was published.
    for id in reversed(ids):
        with suppress(Exception):
            store.delete(_folder(id) + _DOCUMENT)
    for id in ids:
        with suppress(Exception):
            for info in store.list(_folder(id)):
                store.delete(info.path)
        with suppress(Exception):
            store.delete_empty_directory(_folder(id))


def put_beside(store: Store, id: str, name: str, data: bytes) -> None:
    """Write a file next to the document of a change. It lives as long as that."""
    store.put(f"{_folder(id)}/{name}", data)


def beside(store: Store, id: str, start: str) -> dict[str, bytes]:
    """Return the files next to the document of a change whose names begin so, by name."""
    folder = _folder(id)
    names = sorted(info.path.removeprefix(f"{folder}/") for info in store.list(folder))
    return {name: store.read(f"{folder}/{name}") for name in names if name.startswith(start)}


def _id_in(path: str) -> str | None:
    """Return the id of the change whose document is at a path, if it is one."""
    is_document = path.startswith(PRIVATE_PREFIX) and path.endswith(_DOCUMENT)
    return path.removeprefix(PRIVATE_PREFIX).removesuffix(_DOCUMENT) if is_document else None


def _folder(id: str) -> str:
    return PRIVATE_PREFIX + id
