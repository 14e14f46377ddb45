"""What one listing of the log shows from a known version on: is it still the log that we know, and what came after.

The listing begins at the known version *inclusive*: that one request shows whether the version's commit is the file
that we saw (else the table was dropped and made again, or its log rewritten or cleaned) and what is new. It also
watches over the commits that were acknowledged to us: another writer whose put is not conditional may replace one
afterwards (soundness A15).
The invariant: what follows the known version is contiguous, or the result says that it is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_txlog.engine.log.actions import decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, commit_name, parse_name, version_prefix
from airflow_txlog.errors import CommitOverwritten, CorruptCommit, LogGap
from airflow_txlog.storage.base import FileInfo, Store

# A larger commit of our own is read again rather than kept.
_KEPT_BYTES = 64 * 1024

_CHECKPOINTS = (LogKind.CLASSIC_CHECKPOINT, LogKind.MULTIPART_CHECKPOINT, LogKind.V2_CHECKPOINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The commits from the version `start` on, by version, as one listing showed them."""

    table: str
    start: int
    commits: Mapping[int, FileInfo]
    latest: int
    """The last version that a commit or a checkpoint names; `start - 1` where nothing does."""

    def missing_after(self, version: int) -> int | None:
        """The first version after `version` that has no commit here and lies at or below `latest`; None without one."""
        return next((each for each in range(version + 1, self.latest + 1) if each not in self.commits), None)

    def after(self, version: int) -> list[FileInfo]:
        """The commits after `version`, ascending and without a gap; empty where there are none.

        Raises LogGap where one is missing that a later file presupposes: the log was cleaned while we stood at
        `version`, or is broken. What happened in between cannot be known from the log then.
        """
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
    """The log from the version `start` on, in one request; two where the first answer shows a gap after `start`, or
    after `complete_after` where the log may have been cleaned before it.

    A gap is believed when it is seen twice: a listing that runs beside writers may show commit 8 and not commit 7.
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
        # An empty checkpoint is what a writer leaves on a store where half a file can be seen.
        elif name.kind not in _CHECKPOINTS or info.size_bytes == 0:
            continue
        latest = max(latest, name.version)
    return LogTail(table=store.root, start=start, commits=commits, latest=latest)


# --- commits that are read together ---------------------------------------------------------------------------------

# How many requests are under way at a time, and how much they may bring together.
_READ_AT_ONCE, _READ_BYTES = 8, 16 * 1024 * 1024


def read_files(store: Store, files: Sequence[FileInfo]) -> Iterator[bytes]:
    """What the files hold, in their order: a few at a time where each is a request over a network.

    Raises what the store raises, in the place of the file that it raises it for.
    """
    for batch in _batches(files):
        yield from store.read_all([info.path for info in batch])


def _batches(files: Sequence[FileInfo]) -> Iterator[list[FileInfo]]:
    batch: list[FileInfo] = []
    for info in files:
        if batch and (len(batch) == _READ_AT_ONCE or sum(each.size_bytes for each in (*batch, info)) > _READ_BYTES):
            yield batch
            batch = []
        batch.append(info)
    yield batch


# --- commits that were acknowledged to us ---------------------------------------------------------------------------


@dataclass(slots=True)
class OwnCommit:
    """A commit of ours that the store acknowledged, and the file that was last verified to hold it.

    `verified` is replaced as a whole, so that any number of threads may share one.
    """

    version: int
    digest: bytes
    """SHA-256 of the bytes that we put."""
    md5: str
    """In hex: see `is_etag_of`."""
    data: bytes | None
    """The bytes; None for many."""
    verified: FileInfo | None = None


def own_commit(version: int, data: bytes) -> OwnCommit:
    """What to remember of the bytes that were put as `version`."""
    kept = data if len(data) <= _KEPT_BYTES else None
    return OwnCommit(version, hashlib.sha256(data).digest(), _md5(data), kept)


def is_etag_of(etag: str | None, data: bytes) -> bool:
    """Whether the etag proves that a file holds these bytes.

    S3 gives what was put in one request the MD5 of its bytes, unless it encrypts them with a key of KMS. Where this is
    False, on other stores too, the file is to be read.
    """
    return etag == _md5(data)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def up_to_own_commits(store: Store, tail: LogTail, own: Iterable[OwnCommit]) -> LogTail:
    """The tail, up to the last commit that was acknowledged to us: a listing may lag behind, and their names do not."""
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
    """The bytes of the own commits that were verified now, by their files; what was verified is not looked at again.

    `tail` comes from `up_to_own_commits`: a commit of ours that lies beyond it is not there.

    Raises CommitOverwritten where another's bytes stand at a version that was acknowledged to us, or the log ends
    before it. A commit that log cleanup took is none of that: later versions are there.
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
        info = decode_commit(version, data, commit_name(version)).info or {}
    except CorruptCommit:
        return None
    engine = info.get("engineInfo")
    return engine if isinstance(engine, str) else None
