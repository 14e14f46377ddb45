"""A commit in progress: the attempt, the commits over which it was rebased, and the proof that the log is the same.

A writer that is alone on its machine checks the file of the read version, and puts. If several writers compete, the
next one lists the log while the first one puts, and then takes the first one's commit from `commit.handed`. So it sends
no request between its turn and its put.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from airflow_txlog.clock import Clock
from airflow_txlog.engine.commit.conflicts import check_winner
from airflow_txlog.engine.commit.content.attempt import Attempt, Guard
from airflow_txlog.engine.commit.handed import HandedOn
from airflow_txlog.engine.commit.writers import CommitTurn
from airflow_txlog.engine.log.actions import Commit, decode_commit
from airflow_txlog.engine.log.names import commit_name
from airflow_txlog.engine.log.tail import LogTail, is_etag_of, list_tail, read_files, read_unlisted
from airflow_txlog.engine.table.snapshot.snapshot import load_snapshot
from airflow_txlog.errors import ConcurrentLogCleanup, TableNotFound, TableReplaced, TxlogError
from airflow_txlog.storage.base import FileInfo, Store

_MOST_AHEAD = 2
"""How many commits are read at once before a listing has shown their sizes. Each may have `limits.LOG_FILE`."""
_LOOK_HOLDS_S = 0.5
"""The greatest age of a listing at the put that relies on it."""


@dataclass(slots=True)
class Course:
    """A commit in progress: the attempt, rebased over all winners so far, and the file that identifies the log."""

    store: Store
    attempt: Attempt
    anchor: FileInfo | None
    guard: Guard | None
    rebased_over: list[int] = field(default_factory=list)
    contents: dict[int, bytes] = field(default_factory=dict)
    """The bytes of small commits over which it was rebased, for the next refresh."""
    unlisted: list[HandedOn] = field(default_factory=list)
    """Commits after the anchor that were handed on, and that no listing has shown yet."""
    ahead: dict[int, bytes] = field(default_factory=dict)
    """The bytes of commits that were read before a listing showed them."""
    was_unanswered: bool = False

    @property
    def next_version(self) -> int:
        return (self.rebased_over or [self.attempt.read_version])[-1] + 1

    def check_same_log(self) -> None:
        """Raise unless the log that we are about to extend is the one that we read (soundness A20).

        The table may be recreated, or cleaned past the read version: then a put would land beneath a checkpoint,
        unseen.
        """
        if self.anchor is not None:
            found = self.store.stat(self.anchor.path)
            if found != self.anchor:
                raise _moved(self.store, self.attempt, self.anchor.path, found)

    @property
    def tip(self) -> str | None:
        """The digest of the commit before the next version; None if it is unknown."""
        if self.unlisted:
            return self.unlisted[-1].digest
        return self.anchor.etag if self.anchor is not None and _is_commit(self.anchor, self.next_version - 1) else None

    def take(self, turn: CommitTurn, clock: Clock) -> None:
        """Wait for the turn to put, and rebase the attempt over the commits that land until then.

        The listing may be up to `_LOOK_HOLDS_S` old at our put. If the table is dropped and created again in that time,
        this is not noticed, as in the instant between any check and a put (soundness A20).
        """
        is_alone = not turn.advance() and turn.step() and turn.landed() < self.next_version
        if is_alone or not _is_commit(self.anchor, self.next_version - 1):
            turn.advance()
            self.check_same_log()
            return
        # Before the listing: it must show these commits.
        known = turn.handed()
        listed_s = clock.monotonic_s()
        if turn.hands_on:
            self.rebase(landed=turn.landed(), handed=known)
        else:
            self._read_ahead(turn.landed(), known=())
        has_waited, listed = turn.advance(), self.next_version
        self._follow([each for each in turn.handed() if each not in known])
        is_news_missing = turn.landed() >= self.next_version or (has_waited and self.next_version == listed)
        if not turn.hands_on or is_news_missing or clock.monotonic_s() - listed_s > _LOOK_HOLDS_S:
            self.rebase(landed=turn.landed())

    def _follow(self, handed: Sequence[HandedOn]) -> None:
        """Rebase the attempt over commits that were handed on after the listing, as long as each follows the last."""
        by_version = {each.version: each for each in handed}
        was = self.next_version
        while (each := by_version.get(self.next_version)) is not None and each.after == self.tip:
            self._move_behind(decode_commit(each.version, each.data, commit_name(each.version)))
            self._keep(each.version, each.data)
            self.unlisted.append(each)
        if self.guard is not None and self.next_version > was:
            self.guard.check_again()

    def _read_ahead(self, landed: int, known: Collection[int], *look: Callable[[], LogTail]) -> list[LogTail]:
        """Read the next commits up to `landed`, unless they are known, and meanwhile list the log."""
        known, first = {*known, *self.ahead}, self.next_version
        unread = [each for each in range(first, min(landed + 1, first + _MOST_AHEAD)) if each not in known]
        found, tails = read_unlisted(self.store, unread, *look)
        self.ahead |= found
        return tails

    def rebase(self, theirs: bytes | None = None, *, landed: int = -1, handed: Sequence[HandedOn] = ()) -> None:
        """Move the attempt behind the commits that have landed from the next version on.

        `theirs`: the bytes that the put found at that version, whatever a listing shows. Commits up to the version
        `landed` are read while the log is listed, unless they are `handed` on; those count where the listing has their
        digest. Raises CommitConflict, TableReplaced, ConcurrentLogCleanup, and the errors of the guard.
        """
        for winner in self._winners(theirs, landed, {each.version: each for each in handed}):
            self._move_behind(winner)
        if self.guard is not None:
            self.guard.check_again()

    def _move_behind(self, winner: Commit) -> None:
        self.attempt = check_winner(self.attempt, winner)
        self.rebased_over.append(winner.version)

    def _winners(self, theirs: bytes | None, landed: int, handed: Mapping[int, HandedOn]) -> list[Commit]:
        """Return the commits from the next version on, ascending; the file of the last one becomes the anchor.

        One listing shows whether it is still the same log, and which commits have landed. It may lag, so a file that it
        lacks is looked up by its name. Small winners are kept in `contents`. An unreadable commit is an error.
        """
        store, version = self.store, self.next_version
        listed = version - 1 - len(self.unlisted)
        is_commit = _is_commit(self.anchor, listed)
        look = partial(list_tail, store, listed if is_commit else version)
        (tail,) = self._read_ahead(landed, handed, look)
        if is_commit and tail.commits.get(listed) != self.anchor:
            # The listing may lag behind.
            self.check_same_log()
        self._check_unlisted(tail)
        files: list[FileInfo] = []
        for each in range(version, max(version if theirs is not None else 0, tail.latest) + 1):
            info = tail.commits.get(each) or store.stat(commit_name(each))
            if info is None:
                is_gone = tail.latest < version
                raise vanished(self.attempt, commit_name(version)) if is_gone else _cleaned(self.attempt, version)
            files.append(info)
        winners: list[Commit] = []
        known = {info: self.ahead.pop(number, b"") for number, info in enumerate(files, start=version)}
        # Another size shows another file: one of a writer that replaces commits.
        known = {info: data for info, data in known.items() if len(data) == info.size_bytes}
        for number, info in enumerate(files, start=version):
            if number in handed and handed[number].digest == info.etag:
                known[info] = handed[number].data
        if theirs is not None:
            known[files[0]] = theirs
        unread = read_files(store, [info for info in files if info not in known])
        try:
            for info in files:
                data = known[info] if info in known else next(unread)
                winners.append(decode_commit(version + len(winners), data, info.path))
                if is_etag_of(info.etag, data):
                    self._keep(winners[-1].version, data)
        except FileNotFoundError as error:
            raise _cleaned(self.attempt, version) from error
        self.anchor = files[-1] if files else self.anchor
        return winners

    def _check_unlisted(self, tail: LogTail) -> None:
        """Compare the commits that were followed unlisted with their files. Raises as `check_same_log`."""
        for each in self.unlisted:
            path = commit_name(each.version)
            info = tail.commits.get(each.version) or self.store.stat(path)
            if info is None or (info.etag != each.digest and self.store.read(path) != each.data):
                raise _moved(self.store, self.attempt, path, info)
            self.anchor = info
        self.unlisted = []

    def _keep(self, version: int, data: bytes) -> None:
        if sum(map(len, self.contents.values())) + len(data) <= self.store.limits.kept_winner_bytes:
            self.contents[version] = data


def _is_commit(anchor: FileInfo | None, version: int) -> bool:
    return anchor is not None and anchor.path == commit_name(version)


def _moved(store: Store, attempt: Attempt, path: str, found: FileInfo | None) -> TxlogError:
    """Return why a commit that was there no longer is: the log was cleaned, or the table was recreated."""
    if found is None and attempt.current_metadata is not None:
        with suppress(TableNotFound):
            head = load_snapshot(store)
            if head.metadata.id == attempt.current_metadata.id and head.version > attempt.read_version:
                return _cleaned(attempt, head.version)
    what = "is gone" if found is None else "is another file than the one that was read"
    return TableReplaced(
        f"{attempt.table}: {path} {what}, so the table was dropped and created again, or its log was "
        "rewritten, while this transaction ran. Nothing was committed. Open the table again.",
        table=attempt.table,
    )


def vanished(attempt: Attempt, path: str) -> TableReplaced:
    return TableReplaced(
        f"{attempt.table}: {path} was there and is gone, so the log was rewritten while this transaction ran. "
        "Nothing was committed. Open the table again.",
        table=attempt.table,
    )


def _cleaned(attempt: Attempt, version: int) -> ConcurrentLogCleanup:
    return ConcurrentLogCleanup(
        f"commits of {attempt.table} between version {attempt.read_version}, "
        f"which this {attempt.operation} read, and version {version} were cleaned from the log, so it cannot be "
        "checked against them. Nothing of it is in the table: read the table again and repeat the operation. If this "
        "happens often, delta.logRetentionDuration is shorter than the jobs are long.",
        table=attempt.table,
        read_version=attempt.read_version,
        winning_version=version,
    )
