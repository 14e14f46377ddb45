"""The store of a catalog-managed table: its files are in another store, and a catalog ratifies its commits.

A commit is staged (`_delta_log/_staged_commits/<version>.<uuid>.json`), ratified by the catalog, and published: copied
to its usual name. Here the log looks as if every ratified commit were published, and as if no other file existed: the
engine lists, reads and puts commits as it does in any store. Invariants:

* `put_if_absent` of a commit returns True only if the catalog ratified these bytes. The staged file's name follows from
  the bytes, so that a repeated request is the same request, and a lost answer is found by repeating it.
* A version has one `FileInfo` in this process, whether it is published or not, as the engine recognises a log by it.
  A published file with other bytes than the ratified ones is another `FileInfo`.
* Nothing in the log is deleted: only the catalog may allow that.

Source: Delta protocol, "Catalog-managed tables"; UC Delta API 1.0.
"""

from __future__ import annotations

import builtins
import errno
import hashlib
import itertools
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_txlog.errors import CatalogRefused, CorruptTable, TableNotInCatalog, UnsupportedFeature
from airflow_txlog.storage.base import LOG, FileInfo, Output, Store
from airflow_txlog.storage.committer import (
    STAGED,
    CatalogState,
    Committer,
    Ratified,
    TooManyUnpublished,
    VersionTaken,
    commit_path,
)
from airflow_txlog.storage.limits import Limits

log = logging.getLogger(__name__)

FEATURE = "catalogManaged"

# Names of the log with a version, and maybe the last version of compacted commits.
_OF_LOG = re.compile(rf"{LOG}/(?P<version>[0-9]{{20}})\.(?:(?P<end>[0-9]{{20}})\.compacted\.)?(?P<rest>.+)")
_CHECKPOINT = "checkpoint."
# How many versions keep the FileInfo that they had while they were unpublished.
_KEPT = 1000


@dataclass(slots=True)
class _Seen:
    """A version that was listed while it was unpublished; `digest` of its bytes, once they are known.

    `published`: the file that is known to hold its bytes. `is_copied`: whether this process has published it.
    """

    ratified: Ratified
    digest: bytes | None = None
    published: FileInfo | None = None
    is_copied: bool = False


@dataclass(slots=True)
class _Memory:
    """What the copies of one store (`at_once`) share. Each value is replaced as a whole, from any thread.

    `turns` counts requests and answers; the answer with the state came at `turn`.
    """

    state: CatalogState = field(default_factory=lambda: CatalogState(latest=-1))
    turn: int = -1
    turns: Iterator[int] = field(default_factory=itertools.count)
    seen: dict[int, _Seen] = field(default_factory=dict)


def _version_of(path: str) -> int | None:
    """Return the version of a commit's path, None for any other file."""
    match = _OF_LOG.fullmatch(path)
    return int(match["version"]) if match and match["rest"] == "json" and not match["end"] else None


class ManagedStore(Store):
    """`inner` with the log of a table that `committer` manages."""

    def __init__(self, inner: Store, committer: Committer) -> None:
        super().__init__(inner.root, inner.access)
        self._inner = inner
        self._committer = committer
        self._memory = _Memory()
        self.catalog_table = committer.table
        self.is_remote, self.keeps_files = inner.is_remote, inner.keeps_files
        self.deletes_at_once = inner.deletes_at_once

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._inner.limits = limits

    def at_once(self) -> Store:
        store = copy(self)
        store._inner = self._inner.at_once()
        return store

    # --- the log ----------------------------------------------------------------------------------------------------

    def list(self, directory: str, *, start_from: str | None = None) -> builtins.list[FileInfo]:
        if directory != LOG:
            return self._inner.list(directory, start_from=start_from)
        # Before the listing: a version that is published in between is in both.
        state = self._load()
        first = f"{LOG}/{start_from or ''}"
        found = {each.version: each.info for each in state.unpublished if commit_path(each.version) >= first}
        others: builtins.list[FileInfo] = []
        for info in self._inner.list(directory, start_from=start_from):
            match = _OF_LOG.fullmatch(info.path)
            if match is not None and int(match["end"] or match["version"]) > state.latest:
                continue
            version = _version_of(info.path)
            if version is None:
                others.append(info)
            elif version not in found:
                found[version] = self._known(version, info)
        return sorted([*others, *found.values()], key=lambda each: each.path)

    def read(self, path: str) -> bytes:
        version = _version_of(path)
        staged = None if version is None else self._located(version, path)
        if staged is None:
            return self._inner.read(path)
        try:
            return self._inner.read(staged.path)
        except FileNotFoundError:
            self._check_published(staged)
            return self._inner.read(path)

    def _check_published(self, commit: Ratified) -> None:
        """Raise CorruptTable if a commit whose staged file is gone is unpublished, by the catalog's answer of now."""
        state = self._load()
        if commit.version > state.latest or any(each.file_name == commit.file_name for each in state.unpublished):
            raise CorruptTable(
                f"{self.root} lacks {commit.path}, and its catalog has not heard that version {commit.version} is "
                "published: the commit is lost, unless its writer publishes it. Nothing was changed.",
                table=self.root,
                path=commit.path,
                is_missing=True,
            )

    def stat(self, path: str) -> FileInfo | None:
        version = _version_of(path)
        if version is None:
            return self._inner.stat(path)
        try:
            staged = self._located(version, path)
        except FileNotFoundError:
            return None
        if staged is not None:
            return staged.info
        found = self._inner.stat(path)
        return None if found is None else self._known(version, found)

    def mark_of(self, file: FileInfo) -> str:
        # The file's time and etag change when it is published, and other processes have not seen it before.
        return f"{self._committer.table.table_id}-{file.size_bytes:x}"

    def put_if_absent(self, path: str, data: bytes) -> bool:
        version = _version_of(path)
        if version is None:
            return self._inner.put_if_absent(path, data)
        name = f"{version:020d}.{uuid.UUID(bytes=hashlib.sha256(data).digest()[:16], version=4)}.json"
        # An earlier attempt of these bytes may have staged them.
        self._inner.put_if_absent(f"{STAGED}/{name}", data)
        commit = Ratified(
            version=version,
            file_name=name,
            size_bytes=len(data),
            modified_ms=_timestamp_ms(data, path),
            timestamp_ms=_timestamp_ms(data, path),
        )
        try:
            state = self._remembered(lambda: self._ratified(commit, data))
        except VersionTaken:
            self._best_effort(lambda: self._drop(commit), "the staged file of a lost race was not deleted")
            return False
        self._seen(commit).digest = hashlib.sha256(data).digest()
        self._best_effort(lambda: self._publish_all(state, {version: data}), f"version {version} was not published")
        return True

    def _drop(self, commit: Ratified) -> None:
        """Delete a staged file, unless it is the winner itself and the catalog has forgotten our request."""
        if all(each.file_name != commit.file_name for each in self._load().unpublished):
            self._inner.delete(commit.path)

    def _ratified(self, commit: Ratified, data: bytes) -> CatalogState:
        try:
            return self._committer.ratify(commit, data)
        except TooManyUnpublished:
            # Any client may publish. The report goes with the commit: alone, it may meet the same limit.
            last = self._publish(self._load(), {})
        try:
            return self._committer.ratify(commit, data, None if last is None else min(last, commit.version - 1))
        except TooManyUnpublished:
            table = self._committer.table
            raise CatalogRefused(
                f"The catalog at {table.endpoint} ratifies no commit of {table.name}, as too many of its commits are "
                "not published, and they were not published here either. Nothing was committed.",
                connection=table.catalog_conn_id,
                name=table.name,
                status="ResourceExhaustedException",
                retryable=True,
            ) from None

    def _publish_all(self, state: CatalogState, held: dict[int, bytes]) -> None:
        """Publish, and report it to the catalog."""
        last = self._publish(state, held)
        if last is not None:
            self._remembered(lambda: self._committer.published(last))

    def _publish(self, state: CatalogState, held: dict[int, bytes]) -> int | None:
        """Copy the unpublished commits to their names, in order; return the last one that is there, None without.

        `held`: the bytes of some.
        """
        last = None
        for each in state.unpublished:
            seen = self._seen(each)
            seen.is_copied = seen.is_copied or self._copied(each, held.get(each.version))
            if not seen.is_copied:
                log.warning(
                    "%s: %s holds other bytes than the catalog has ratified: another writer put it there. Readers "
                    "that ask the catalog are not affected. Nothing further is published.",
                    self.root,
                    commit_path(each.version),
                )
                break
            last = each.version
        return last

    def _copied(self, commit: Ratified, data: bytes | None) -> bool:
        data = self._inner.read(commit.path) if data is None else data
        path = commit_path(commit.version)
        return self._inner.put_if_absent(path, data) or self._inner.read(path) == data

    def _best_effort(self, work: Callable[[], object], failure: str) -> None:
        try:
            work()
        except Exception as error:
            # The commit counts; a later commit, of any writer, does it.
            log.warning("%s: %s: %s", self.root, failure, type(error).__name__)

    # --- the catalog's answers -----------------------------------------------------------------------------------

    def _load(self) -> CatalogState:
        return self._remembered(self._committer.load)

    def _remembered(self, ask: Callable[[], CatalogState]) -> CatalogState:
        memory = self._memory
        asked = next(memory.turns)
        state = ask()
        for each in state.unpublished:
            self._seen(each)
        # Two threads may ask at once, and an older answer may come later. An earlier version in an answer to a question
        # that was asked after the known answer is the truth: the catalog was set back.
        if state.latest >= memory.state.latest or asked > memory.turn:
            memory.state, memory.turn = state, next(memory.turns)
        return state

    def _seen(self, commit: Ratified) -> _Seen:
        seen = self._memory.seen
        if len(seen) > _KEPT:
            seen.pop(min(tuple(seen)), None)
        known = seen.get(commit.version)
        # Another name: the catalog was set back, and the version is another one.
        if known is None or known.ratified.file_name != commit.file_name:
            known = seen[commit.version] = _Seen(commit)
        return known

    def _located(self, version: int, path: str) -> Ratified | None:
        """Return the ratified commit whose staged file has the version; None if it is published.

        Raises FileNotFoundError if the catalog has ratified no such version, whatever files there are.
        """
        if version > self._memory.state.latest:
            self._load()
        state = self._memory.state
        if version > state.latest:
            raise self.os_error(errno.ENOENT, path)
        return next((each for each in state.unpublished if each.version == version), None)

    def _known(self, version: int, info: FileInfo) -> FileInfo:
        """Return the FileInfo of a published commit: that which the version had before, if it has the same bytes."""
        seen = self._memory.seen.get(version)
        if seen is None or seen.published == info:
            return info if seen is None else seen.ratified.info
        if seen.ratified.size_bytes != info.size_bytes or not self._holds(seen, info.path):
            return info
        seen.published = info
        return seen.ratified.info

    def _holds(self, seen: _Seen, path: str) -> bool:
        """Return whether a published file has the bytes of the staged one. False if that is gone."""
        try:
            if seen.digest is None:
                seen.digest = hashlib.sha256(self._inner.read(seen.ratified.path)).digest()
            return hashlib.sha256(self._inner.read(path)).digest() == seen.digest
        except FileNotFoundError:
            return False

    # --- other files ------------------------------------------------------------------------------------------------

    def put(self, path: str, data: bytes) -> None:
        self._check_may_change(path)
        self._inner.put(path, data)

    def open_output(self, path: str) -> Output:
        self._check_may_change(path)
        match = _OF_LOG.fullmatch(path)
        if match is not None and match["rest"].startswith(_CHECKPOINT):
            self._publish_up_to(int(match["version"]))
        return self._inner.open_output(path)

    def _publish_up_to(self, version: int) -> None:
        """Publish the version, as only a published one may have a checkpoint. Raises an OSError if it cannot be."""
        if self._inner.stat(commit_path(version)) is None:
            self._publish_all(self._load(), {})
            if self._inner.stat(commit_path(version)) is None:
                raise self.os_error(errno.ENOENT, commit_path(version))

    def _check_may_change(self, path: str) -> None:
        # A commit is put by its own method alone.
        if _version_of(path) is not None:
            raise self._refused("change")

    def delete(self, path: str) -> None:
        self._check_may_delete(path)
        self._inner.delete(path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, Exception]:
        for path in paths:
            self._check_may_delete(path)
        return self._inner.delete_many(paths)

    def _check_may_delete(self, path: str) -> None:
        if _OF_LOG.fullmatch(path) or path.startswith(f"{STAGED}/"):
            raise self._refused("cut")

    def _refused(self, what: str) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"{self.root} is managed by a catalog (feature {FEATURE}), and only the catalog may {what} its log. "
            "Nothing was deleted.",
            table=self.root,
            feature=FEATURE,
            needed_to=f"{what} the log",
        )

    def walk(
        self, on_unreadable: Callable[[str], object] | None = None, *, prefix: str = "", lazily: bool = False
    ) -> Iterator[FileInfo]:
        return self._inner.walk(on_unreadable, prefix=prefix, lazily=lazily)

    def links(self) -> Iterator[str]:
        return self._inner.links()

    def odd_keys(self) -> Iterator[str]:
        return self._inner.odd_keys()

    def open_new(self, path: str) -> Output:
        return self._inner.open_new(path)

    def open_input(self, path: str) -> pa.NativeFile:
        return self._inner.open_input(path)

    def open_whole(self, path: str, size_bytes: int, *, is_read_again: bool = False) -> pa.NativeFile:
        return self._inner.open_whole(path, size_bytes, is_read_again=is_read_again)

    def copy_in(self, source: Store, from_path: str, path: str) -> None:
        inside = source._inner if isinstance(source, ManagedStore) else source
        self._inner.copy_in(inside, from_path, path)

    def let_go(self) -> int:
        return self._inner.let_go()

    def delete_empty_directory(self, path: str) -> bool:
        return self._inner.delete_empty_directory(path)

    def list_directories(self) -> builtins.list[str]:
        return self._inner.list_directories()

    def folder_markers(self) -> builtins.list[str]:
        return self._inner.folder_markers()

    def delete_folder_marker(self, path: str) -> None:
        self._inner.delete_folder_marker(path)

    def abort_unfinished(self, before_ms: int, others: tuple[str, ...] = ()) -> int:
        return self._inner.abort_unfinished(before_ms, others)

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def inner(self, path: str) -> str:
        return self._inner.inner(path)


class NewManagedStore(ManagedStore):
    """The same for a table that does not exist until its first commit, which the committer registers.

    The catalog has chosen the place for this table alone.
    """

    def __init__(self, inner: Store, committer: Committer) -> None:
        super().__init__(inner, committer)
        self.required_properties = json.loads(committer.table.new_properties or "{}")

    def _load(self) -> CatalogState:
        try:
            return super()._load()
        except TableNotInCatalog:
            return CatalogState(latest=-1)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if _version_of(path) != 0:
            return super().put_if_absent(path, data)
        if self._load().latest >= 0:
            return False
        # An earlier attempt may have left other bytes, of a table that never was.
        self._inner.put(path, data)
        self._remembered(lambda: self._committer.create(data, _timestamp_ms(data, path)))
        return True


def _timestamp_ms(data: bytes, path: str) -> int:
    """Return the in-commit timestamp of a commit's bytes. Raises CatalogRefused without one."""
    found = json.loads(data.partition(b"\n")[0]).get("commitInfo", {}).get("inCommitTimestamp")
    if isinstance(found, int) and found > 0:
        return found
    raise CatalogRefused(
        f"{path} carries no inCommitTimestamp, and each commit of a catalog-managed table needs one: "
        "delta.enableInCommitTimestamps must be true. Nothing was committed.",
        status="no inCommitTimestamp",
    )
