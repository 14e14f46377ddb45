"""The removes in the commits: for a lite vacuum, and for tombstones that a checkpoint has dropped.

A lite vacuum lists no data file: it deletes what the log removed since the last vacuum. `_delta_log/_last_vacuum_info`
records the last version that a vacuum has covered, as in the reference implementation. The invariant: every remove of
the log is covered once, or the lite vacuum is refused.
Source: delta-spark, VacuumCommand.getFilesFromDeltaLog and LastVacuumInfo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from airflow_txlog.engine.log.actions import Commit, Remove, decode_commit
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.engine.table.snapshot.commit_times import ListedCommit, list_commits
from airflow_txlog.errors import CannotVacuumLite, LimitExceeded
from airflow_txlog.storage.base import Store

LAST_VACUUM = f"{LOG_DIRECTORY}/_last_vacuum_info"


class _LastVacuum(msgspec.Struct, frozen=True):
    latestCommitVersionOutsideOfRetentionWindow: int | None = None


_decoder = msgspec.json.Decoder(_LastVacuum)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
    """The removes of a run of commits."""

    removes: list[Remove]
    """Files of change rows count as removed when their commit landed."""
    through: int
    """The last version that was read; -1 for none."""


def removes_before(store: Store, version: int, delete_before_ms: int) -> RemovedFiles:
    """Return the removes that no vacuum has covered yet, of commits up to `version` that are past the retention.

    It stops before the first commit that is younger than `delete_before_ms`, by its file or by a tombstone in it: a
    later vacuum begins there. Raises CannotVacuumLite if commits between the last vacuum and now are gone.
    """
    commits = [commit for commit in list_commits(store) if commit.version <= version]
    last = read_last_vacuum(store)
    # A version that was never reached is of another life of the table.
    start = 0 if last is None or last > version else last + 1
    first = commits[0].version if commits else version + 1
    if first > start:
        raise _refused(store.root, start, first, last)
    removes: list[Remove] = []
    through = start - 1
    for commit in commits[start - first :]:
        if commit.version != through + 1:
            raise _refused(store.root, through + 1, commit.version, last)
        if commit.file_time_ms >= delete_before_ms:
            break
        found = _removes_of(_read(store, commit, last), commit.file_time_ms)
        if any((remove.deletion_timestamp or 0) >= delete_before_ms for remove in found):
            break
        removes += found
        through = commit.version
    return RemovedFiles(removes=removes, through=through)


def removes_since(store: Store, since_ms: int) -> list[Remove]:
    """Return the removes of every commit written since then that the log still has."""
    removes: list[Remove] = []
    for info in store.list(LOG_DIRECTORY):
        name = parse_name(info.path)
        if name is None or name.kind is not LogKind.COMMIT or info.modified_ms < since_ms:
            continue
        try:
            commit = decode_commit(name.version, store.read(info.path), info.path)
        except FileNotFoundError:
            continue  # deleted by log cleanup in between
        removes += _removes_of(commit, info.modified_ms)
    return removes


def read_last_vacuum(store: Store) -> int | None:
    """Return the last version that a vacuum has covered, None if the file is missing or malformed."""
    try:
        version = _decoder.decode(store.read(LAST_VACUUM)).latestCommitVersionOutsideOfRetentionWindow
    except (FileNotFoundError, LimitExceeded, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return version if version is not None and version >= 0 else None


def write_last_vacuum(store: Store, through: int) -> None:
    """Record the last version that a complete vacuum covered, unless another one went further."""
    known = read_last_vacuum(store)
    if through >= 0 and (known is None or known < through):
        store.put(LAST_VACUUM, msgspec.json.encode(_LastVacuum(latestCommitVersionOutsideOfRetentionWindow=through)))


def last_version_before(commits: Sequence[ListedCommit], version: int, moment_ms: int) -> int:
    """Return the last version up to `version` whose commit file is older than the moment; -1 without one."""
    found = [each.version for each in commits if each.version <= version and each.file_time_ms < moment_ms]
    return found[-1] if found else -1


def _removes_of(commit: Commit, committed_ms: int) -> list[Remove]:
    changes = [Remove(path=cdc.path, data_change=False, deletion_timestamp=committed_ms) for cdc in commit.cdc]
    return [*commit.removes, *changes]


def _read(store: Store, listed: ListedCommit, last: int | None) -> Commit:
    try:
        return decode_commit(listed.version, store.read(listed.info.path), listed.info.path)
    except FileNotFoundError as error:
        raise _refused(store.root, listed.version, listed.version + 1, last) from error


def _refused(table: str, needed: int, first: int, last: int | None) -> CannotVacuumLite:
    since = "no vacuum is recorded" if last is None else f"the last vacuum went through version {last}"
    return CannotVacuumLite(
        f"CannotVacuumLite: a lite vacuum of {table} needs the commits from version {needed} on ({since}), and the log "
        f"begins at version {first}. Nothing was deleted. Run a full vacuum once; later lite ones then begin there.",
        table=table,
        needed=needed,
        earliest=first,
    )
