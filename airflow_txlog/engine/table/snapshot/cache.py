"""The state that a long-lived table keeps between calls.

* The newest snapshot, from which a refresh begins.
* `own`: its last commits as the store acknowledged them. Another writer may still replace one, so each refresh compares
  the file at its version with `OwnCommit.verified`.
* `contents`: bytes of commits that the next refresh need not read: other writers' commits that our last one was checked
  against. Those count whose file has their digest as its etag.

A poll that finds nothing new is one listing. The invariant: a returned snapshot was verified against the log by a
request of this call. The newest snapshot is one reference, replaced as a whole and never by an older one of the same
table, so any number of threads may use it at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from airflow_txlog.engine.log.segment import list_segment
from airflow_txlog.engine.log.tail import OwnCommit, list_tail, up_to_own_commits, verify_own_commits
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, is_same_log, load_snapshot
from airflow_txlog.errors import CommitOverwritten, LogGap
from airflow_txlog.storage.base import FileInfo, Store

# How long our commits are watched. An overwrite happens between its writer's check and put.
WATCHED_VERSIONS = 20
WATCHED_COMMITS = 16


class RecentTable:
    """The newest snapshot of the table in `store`, kept and refreshed."""

    def __init__(self, store: Store, handed: Callable[[], Mapping[int, bytes]] = dict) -> None:
        """`handed`: see `Snapshot.refresh`."""
        self._store = store
        self._newest: Snapshot | None = None
        self._own: tuple[OwnCommit, ...] = ()
        self._own_table_id: str | None = None
        self._contents: Mapping[int, bytes] = {}
        self._handed = handed
        self._tip: tuple[int, FileInfo | None] | None = None
        # Held to compare and replace, never during a request.
        self._lock = threading.Lock()

    def latest(self) -> Snapshot:
        """Return the latest version, reading only new commits. Raises as `load_snapshot`, and CommitOverwritten."""
        known = self._newest
        return self._keep(known, self._look(known, None))

    def at(self, version: int, since: Snapshot | None = None) -> Snapshot:
        """Return one version, read from the newest snapshot or `since` if either is not later. Raises as `latest`."""
        known = self._newest
        usable = [each for each in (known, since) if each is not None and each.version <= version]
        if not usable:
            return load_snapshot(self._store, version)
        found = self._look(max(usable, key=lambda each: each.version), version)
        if found.version != version:
            return load_snapshot(self._store, version)
        return found if known not in usable else self._keep(known, found)

    def latest_version(self) -> int:
        """Return the number of the latest version, without replay. Raises TableNotFound, CorruptTable."""
        known, tip = self._newest, self._tip
        if known is not None and (tip is None or tip[0] < known.version):
            tip = known.version, known.commit_file
        found = self._after(tip) if tip is not None else None
        if found is None:
            segment = list_segment(self._store)
            found = segment.version, segment.commits[-1] if segment.commits else None
        self._tip = found
        return found[0]

    def remember(self, commit: OwnCommit, table_id: str, contents: Mapping[int, bytes]) -> None:
        """Watch a commit that was just acknowledged, and keep the contents of those that landed before it."""
        with self._lock:
            self._contents = contents
            kept = self._own if table_id == self._own_table_id else ()
            self._own_table_id = table_id
            self._own = (*kept, commit)[-WATCHED_COMMITS:]

    def _look(self, known: Snapshot | None, version: int | None) -> Snapshot:
        """Return the latest version, or `version`, from `known`, and verify our own commits."""
        own = self._own
        try:
            if known is not None:
                return known.refresh(version, own=own, contents=self._contents, handed=self._handed)
            if own:
                tail = list_tail(self._store, min(commit.version for commit in own))
                verify_own_commits(self._store, up_to_own_commits(self._store, tail, own), own)
        except CommitOverwritten:
            # A table that was dropped and recreated has other bytes at every version: it is a new table.
            if load_snapshot(self._store).metadata.id == self._own_table_id:
                raise
            with self._lock:
                self._own = tuple(commit for commit in self._own if commit not in own)
        return load_snapshot(self._store, version)

    def _after(self, tip: tuple[int, FileInfo | None]) -> tuple[int, FileInfo | None] | None:
        """Return the last version from the tip on, or None if the log is another one."""
        version, seen = tip
        tail = up_to_own_commits(self._store, list_tail(self._store, version), self._own)
        if not is_same_log(self._store, tail, version, seen):
            return None
        try:
            newer = tail.after(version)
        except LogGap:
            return None
        return (tail.latest, newer[-1]) if newer else tip

    def _keep(self, known: Snapshot | None, found: Snapshot) -> Snapshot:
        """Make `found` the newest, or return the newer one that another thread has found."""
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
