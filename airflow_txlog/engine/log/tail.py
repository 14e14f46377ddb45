"""One listing of the log from a known version on: is it still the same log, and which commits followed?

The listing begins at the known version *inclusive*: that one request shows the new commits, and whether the version's
commit is still the same file (else the table was dropped and recreated, or its log rewritten or cleaned). It also
checks the commits that were acknowledged to us: another writer whose put is not conditional may replace one (soundness
A15). The invariant: the commits after the known version are contiguous, or the result reports the gap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import CHECKPOINTS, LOG_DIRECTORY, LogKind, commit_name, parse_name, version_prefix
from airflow_txlog.errors import CommitOverwritten, CorruptCommit, LogGap
from airflow_txlog.storage.base import FileInfo, Store, side_by_side


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The commits from the version `start` on, by version, from one listing."""

    table: str
    start: int
    commits: Mapping[int, FileInfo]
    latest: int
    """The last version that a commit or a checkpoint names; `start - 1` where nothing does."""

    def missing_after(self, version: int) -> int | None:
        """Return the first version after `version`, up to `latest`, that has no commit here; None without one."""
        return next((each for each in range(version + 1, self.latest + 1) if each not in self.commits), None)

    def after(self, version: int) -> list[FileInfo]:
        """Return the commits after `version`, ascending; empty if there are none. Raises LogGap if one is missing."""
        missing = self.missing_after(version)
        if missing is not None:
            path = f"{version_prefix(missing)}.json"
            raise LogGap(
                f"LogGap: {path} of {self.table} is missing, and version {self.latest} is there: the log was cleaned "
                f"past version {version}, or a file of it was lost. Nothing was changed.",
                table=self.table,
                path=path,
                version=missing,
            )
        return [self.commits[each] for each in range(version + 1, self.latest + 1)]


def list_tail(store: Store, start: int, *, complete_after: int | None = None) -> LogTail:
    """Return the log from the version `start` on. A second listing must confirm a gap: the first may race with writers.

    `complete_after`: the version after which gaps count, if the log may have been cleaned before it.
    """
    tail = _look(store, start)
    after = start if complete_after is None else complete_after
    return tail if tail.missing_after(after) is None else _look(store, start)


def _look(store: Store, start: int) -> LogTail:
    commits: dict[int, FileInfo] = {}
    latest = start - 1
    for info in store.list(LOG_DIRECTORY, start_from=version_prefix(start).removeprefix(f"{LOG_DIRECTORY}/")):
        name = parse_name(info.path)
        if name is None:
            continue
        if name.kind is LogKind.COMMIT:
            commits[name.version] = info
        # A writer leaves an empty checkpoint on a store that shows unfinished files.
        elif name.kind not in CHECKPOINTS or info.size_bytes == 0:
            continue
        latest = max(latest, name.version)
    return LogTail(table=store.root, start=start, commits=commits, latest=latest)


# --- commits that are read together ---------------------------------------------------------------------------------

# Concurrent requests.
_READ_AT_ONCE = 16


def read_files(store: Store, files: Sequence[FileInfo]) -> Iterator[bytes]:
    """Yield the content of the files, in order. Raises the store's error for a file when its turn comes."""
    for batch in _batches(files, store.limits.read_log_bytes):
        yield from store.read_all([info.path for info in batch])


def read_unlisted(
    store: Store, versions: Sequence[int], *others: Callable[[], Any]
) -> tuple[dict[int, bytes], list[Any]]:
    """Return the content of those of the commits that exist, and the answers of `others`, requested at the same time.

    Raises the store's error for any of them.
    """

    def read(version: int) -> bytes | None:
        try:
            return store.read(commit_name(version))
        except FileNotFoundError:
            return None

    asks: list[Callable[[], Any]] = [*(partial(read, version) for version in versions), *others]
    answers = list(side_by_side(lambda ask: ask(), asks))
    found = zip(versions, answers, strict=False)
    return {version: data for version, data in found if data is not None}, answers[len(versions) :]


def _batches(files: Sequence[FileInfo], most_bytes: int) -> Iterator[list[FileInfo]]:
    batch: list[FileInfo] = []
    for info in files:
        if batch and (len(batch) == _READ_AT_ONCE or sum(each.size_bytes for each in (*batch, info)) > most_bytes):
            yield batch
            batch = []
        batch.append(info)
    yield batch


# --- commits that were acknowledged to us ---------------------------------------------------------------------------


@dataclass(slots=True)
class OwnCommit:
    """Our acknowledged commit, and the file last verified to hold it, which threads replace as a whole."""

    version: int
    digest: bytes
    """SHA-256 of the bytes that we put."""
    md5: str
    """In hex: see `is_etag_of`."""
    data: bytes | None
    """The bytes; None for many."""
    verified: FileInfo | None = None


def own_commit(store: Store, version: int, data: bytes) -> OwnCommit:
    kept = data if len(data) <= store.limits.kept_commit_bytes else None
    return OwnCommit(version, hashlib.sha256(data).digest(), digest_of(data), kept)


def is_etag_of(etag: str | None, data: bytes) -> bool:
    """Return whether the etag proves that a file holds these bytes: on S3 their MD5, unless KMS encrypts them."""
    return etag == digest_of(data)


def proven_by(tail: LogTail, contents: Mapping[int, bytes]) -> dict[FileInfo, bytes]:
    """Return those of these bytes of commits, by version, that the etags of their files prove."""
    files = {tail.commits[version]: data for version, data in contents.items() if version in tail.commits}
    return {info: data for info, data in files.items() if is_etag_of(info.etag, data)}


def digest_of(data: bytes) -> str:
    """Return the MD5 of a commit in hex: see `is_etag_of`."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def up_to_own_commits(store: Store, tail: LogTail, own: Iterable[OwnCommit]) -> LogTail:
    """Return the tail up to the last commit that was acknowledged to us: a listing may lag behind their names."""
    last = max((commit.version for commit in own), default=-1)
    if last <= tail.latest:
        return tail
    info = store.stat(commit_name(last))
    if info is None:
        return tail
    hidden = {version: store.stat(commit_name(version)) for version in range(tail.latest + 1, last)} | {last: info}
    found = {version: info for version, info in hidden.items() if info is not None}
    return replace(tail, commits={**tail.commits, **found}, latest=last)


def verify_own_commits(store: Store, tail: LogTail, own: Iterable[OwnCommit]) -> dict[FileInfo, bytes]:
    """Verify each own commit once; return the bytes of those verified in this call, by their files.

    `tail` is the result of `up_to_own_commits`. Raises CommitOverwritten if an acknowledged version holds another
    writer's bytes, or the log ends before it; nothing if log cleanup deleted the commit.
    """
    verified: dict[FileInfo, bytes] = {}
    for commit in own:
        info = tail.commits.get(commit.version)
        if info is None and tail.start <= commit.version and tail.latest < commit.version:
            raise _overwritten(tail.table, commit.version, None)
        if info is None or info == commit.verified:
            continue
        data = commit.data
        if info.etag != commit.md5:
            try:
                data = store.read(info.path)
            except FileNotFoundError:
                # Cleaned since it was listed, or gone: the next look shows which.
                continue
            if hashlib.sha256(data).digest() != commit.digest:
                raise _overwritten(tail.table, commit.version, data)
        commit.verified = info
        if data is not None:
            verified[info] = data
    return verified


def _overwritten(table: str, version: int, found: bytes | None) -> CommitOverwritten:
    engine = None if found is None else _engine_of(version, found)
    what = "the log ends before it" if found is None else f"it now holds the commit of another ({engine or 'unnamed'})"
    return CommitOverwritten(
        f"CommitOverwritten: version {version} of {table} was acknowledged to us, and {what}: our rows of that version "
        "are not in the table. A writer whose put is not conditional replaces commits (Spark with its default log "
        "store on S3 or on a local disk; see docs/writers.md). Stop that writer, open the "
        "table again, and repeat what version "
        f"{version} did; its data files are still there until a VACUUM.",
        table=table,
        version=version,
        engine_info=engine,
    )


def _engine_of(version: int, data: bytes) -> str | None:
    try:
        return decode_commit(version, data, commit_name(version)).engine
    except CorruptCommit:
        return None
