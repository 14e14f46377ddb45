"""What a long-lived table knows already, so that it need not be read again.

* The newest snapshot. `known` is the one that a look begins from.
* `own`: its last commits, as the store acknowledged them (`OwnCommit`). Another writer may still replace one, so each
  look compares the file at its version; `OwnCommit.verified` is the file that was found to hold it.
* `contents`: the bytes of commits by their files, which the next look need not read: other writers' commits that our
  last one was checked against (`Landed.contents`), and our own where they were verified. A file that was replaced has
  another etag, and so is not among them.

A poll that finds nothing new is one listing. The invariant: what is handed out was verified against the log by a
request of this very call, and the newest snapshot is one reference, replaced as a whole and never by an older one of
the same table; so any number of threads may ask at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.log.tail import OwnCommit, list_tail, up_to_own_commits, verify_own_commits
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, load_snapshot
from airflow_txlog.errors import CommitOverwritten, LogGap
from airflow_txlog.storage.base import FileInfo, Store

# How long a commit of ours is watched: an overwrite happens within the moments between its look and its put.
WATCHED_VERSIONS = 20
WATCHED_COMMITS = 16


class RecentTable:
    """The newest snapshot of the table in `store`, kept and refreshed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: Snapshot | None = None
        self._own: tuple[OwnCommit, ...] = ()
        self._own_table_id: str | None = None
        self._contents: Mapping[FileInfo, bytes] = {}
        self._tip: tuple[int, FileInfo | None] | None = None
        # Only held to compare and replace, never during a request.
        self._lock = threading.Lock()

    def latest(self) -> Snapshot:
        """The latest version, by one listing and a read of what is new; read whole where nothing is known yet.

        Raises what `load_snapshot` raises, and CommitOverwritten.
        """
        known = self._newest
        return self._keep(known, self._look(known, None))

    def at(self, version: int, since: Snapshot | None = None) -> Snapshot:
        """One version: from the newest snapshot, or from `since`, where one is not later than that; else read whole.

        Raises what `load_snapshot` raises, and CommitOverwritten.
        """
        known = self._newest
        usable = [each for each in (known, since) if each is not None and each.version <= version]
        if not usable:
            return load_snapshot(self._store, version)
        found = self._look(max(usable, key=lambda each: each.version), version)
        if found.version != version:
            return load_snapshot(self._store, version)
        return found if known not in usable else self._keep(known, found)

    def latest_version(self) -> int:
        """The number of the latest version, without replaying anything. Raises TableNotFound, CorruptTable."""
        known, tip = self._newest, self._tip
        if known is not None and (tip is None or tip[0] < known.version):
            tip = known.version, known.commit_file
        found = self._after(tip) if tip is not None else None
        if found is None:
            segment = list_segment(self._store)
            found = segment.version, segment.commits[-1] if segment.commits else None
        self._tip = found
        return found[0]

    def remember(self, commit: OwnCommit, table_id: str, contents: Mapping[FileInfo, bytes]) -> None:
        """Watch over a commit that was just acknowledged, and keep the contents of those that landed before it."""
        with self._lock:
            self._contents = contents
            kept = self._own if table_id == self._own_table_id else ()
            self._own_table_id = table_id
            self._own = (*kept, commit)[-WATCHED_COMMITS:]

    def _look(self, known: Snapshot | None, version: int | None) -> Snapshot:
        """The latest version, or `version`, from `known`; commits that were acknowledged to us are verified."""
        own = self._own
        try:
            if known is not None:
                return known.refresh(version, own=own, contents=self._contents)
            if own:
                tail = list_tail(self._store, min(commit.version for commit in own))
                verify_own_commits(self._store, up_to_own_commits(self._store, tail, own), own)
        except CommitOverwritten:
            # A table that was dropped and made again holds other bytes at every version: for a reader it is a new one.
            if load_snapshot(self._store).metadata.id == self._own_table_id:
                raise
            self._forget(own)
        return load_snapshot(self._store, version)

    def _after(self, tip: tuple[int, FileInfo | None]) -> tuple[int, FileInfo | None] | None:
        """The last version from the tip on, or None where the log is not the one that we know."""
        version, seen = tip
        tail = up_to_own_commits(self._store, list_tail(self._store, version), self._own)
        if seen is None:
            if tail.latest < version:
                return None
        # A listing may lag behind: only the name itself says that the log is another one.
        elif tail.commits.get(version) != seen and self._store.stat(seen.path) != seen:
            return None
        try:
            newer = tail.after(version)
        except LogGap:
            return None
        return (tail.latest, newer[-1]) if newer else (version, seen or tail.commits.get(version))

    def _keep(self, known: Snapshot | None, found: Snapshot) -> Snapshot:
        """Make `found` the newest, unless another thread has seen more meanwhile: then that is the answer."""
        with self._lock:
            current = self._newest
            if (
                current is not known
                and current is not None
                and current.metadata.id == found.metadata.id
                and current.version > found.version
            ):
                return current
            self._newest, self._contents = found, {}
            self._own = tuple(commit for commit in self._own if commit.version > found.version - WATCHED_VERSIONS)
        return found

    def _forget(self, own: tuple[OwnCommit, ...]) -> None:
        with self._lock:
            self._own = tuple(commit for commit in self._own if commit not in own)
