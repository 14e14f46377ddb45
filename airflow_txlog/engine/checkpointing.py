"""When a checkpoint is due, its content, and the log cleanup that follows it.

The invariant of the cleanup: nothing at or after the *cut* is ever deleted, and the cut is a whole checkpoint, read
back just now, of a version that was no longer current within the retention. Every version from the cut on is rebuilt
from files at or after the cut alone. So a cleanup that stops at any point, in any order of deletions, loses only
versions past the retention. If the sidecars of one checkpoint are unknown, all sidecars stay.
Source: protocol, "Checkpoints" and "Metadata Cleanup"; delta-spark, MetadataCleanup, for the whole days.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import Clock
from airflow_txlog.datafiles.parquet.physical import DEFAULT_FORMAT, ParquetFormat
from airflow_txlog.engine.log.actions import SetTransaction
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint, sidecars_of
from airflow_txlog.engine.log.checkpoints.rows import SIDECAR_DIRECTORY
from airflow_txlog.engine.log.checkpoints.writing import AddForm, CheckpointState, write_checkpoint, write_v2_checkpoint
from airflow_txlog.engine.log.names import CHECKPOINTS, LOG_DIRECTORY, LogFile, LogKind, checkpoint_name, parse_name
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.log.segment import CheckpointFiles, look, read_hint
from airflow_txlog.engine.many_files import Deletion, delete_files, progress_log
from airflow_txlog.engine.table.columns.typed_columns import TypedColumns
from airflow_txlog.engine.table.schema.features import (
    check_maintained_here,
    check_writable,
    reader_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.properties import DAY_MS
from airflow_txlog.engine.table.snapshot.commit_times import commits_among, in_commit_time
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot, rebuilt_without
from airflow_txlog.errors import CorruptCheckpoint, InvalidProperty, TableError, UnsupportedFeature
from airflow_txlog.storage.base import FileInfo, Store

log = logging.getLogger(__name__)

_PROTECTION = "checkpointProtection"


def is_due(version: int, interval: int) -> bool:
    """Return whether version n > 0 is a multiple of delta.checkpointInterval, as in delta-spark."""
    return version > 0 and version % interval == 0


def checkpoint(
    store: Store, snapshot: Snapshot, clock: Clock, *, is_classic: bool = False, gone: Collection[str] = ()
) -> None:
    """Write a checkpoint of this version: V2 if delta.checkpointPolicy is "v2" and the protocol allows it.

    `is_classic`: write one that every reader knows, whatever the policy and the protocol are. `gone`: canonical paths
    of files that no longer exist, whose tombstones are left out.

    Its statistics follow delta.checkpoint.writeStatsAsJson and delta.checkpoint.writeStatsAsStruct. Tombstones and
    application transactions that are past the table's retention are left out.
    """
    state = state_of(snapshot, clock.now_ms())
    if gone:
        paths = canonical_paths(state.removes.column("path"), store.root)
        is_gone = pc.is_in(paths, value_set=pa.array(sorted(gone), pa.string()))
        state = replace(state, removes=state.removes.filter(pc.invert(is_gone)))
    wants_v2 = snapshot.table_properties.wants_v2_checkpoints and not is_classic
    if wants_v2 and "v2Checkpoint" in reader_features(snapshot.protocol):
        write_v2_checkpoint(store, state, clock.unique_id, _form_of(snapshot))
    else:
        write_checkpoint(store, state, _form_of(snapshot))


def state_of(snapshot: Snapshot, now_ms: int) -> CheckpointState:
    return CheckpointState(
        version=snapshot.version,
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        transactions=_kept_transactions(snapshot, now_ms),
        domains=snapshot.state.domains,
        adds=snapshot.state.live,
        removes=kept_tombstones(
            snapshot.state.tombstones, now_ms - snapshot.table_properties.deleted_file_retention_ms
        ),
        parquet=_format_of(snapshot),
    )


def _format_of(snapshot: Snapshot) -> ParquetFormat:
    """Return the table's Parquet format, or the usual one if this engine cannot write it: readers accept any codec."""
    try:
        return snapshot.table_properties.parquet
    except InvalidProperty:
        return DEFAULT_FORMAT


def _form_of(snapshot: Snapshot) -> AddForm:
    properties = snapshot.table_properties
    if not properties.checkpoint_statistics_as_struct:
        return AddForm(with_json_statistics=properties.checkpoint_statistics_as_json)
    typed = TypedColumns(
        snapshot.delta_schema,
        snapshot.partition_columns,
        indexed_columns=properties.stats_columns,
        num_indexed_columns=properties.num_indexed_columns,
    )
    # Readers of the structs would see a value without a typed form as null, so keep the statistics as JSON.
    if not typed.knows(snapshot.state.live):
        return AddForm()
    return AddForm(
        with_json_statistics=properties.checkpoint_statistics_as_json, parsed=typed.fields, parse=typed.values
    )


def kept_tombstones(tombstones: pa.Table, delete_before_ms: int) -> pa.Table:
    """Return the tombstones younger than the moment; without a timestamp one counts as removed at the epoch."""
    removed_ms = pc.fill_null(tombstones.column("deletion_timestamp"), 0)
    return tombstones.filter(pc.greater(removed_ms, delete_before_ms))


def _kept_transactions(snapshot: Snapshot, now_ms: int) -> dict[str, SetTransaction]:
    retention_ms = snapshot.table_properties.set_transaction_retention_ms
    if retention_ms is None:
        return dict(snapshot.state.transactions)
    oldest_ms = now_ms - retention_ms
    return {
        app_id: transaction
        for app_id, transaction in snapshot.state.transactions.items()
        if transaction.last_updated is not None and transaction.last_updated >= oldest_ms
    }


# --- the log cleanup --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleanup:
    """The result of a log cleanup."""

    cut: int | None
    """The version of the checkpoint with which the log begins; None if nothing could be cut."""
    deleted_files: int
    deleted_bytes: int


NOTHING = LogCleanup(cut=None, deleted_files=0, deleted_bytes=0)


def clean_after_checkpoint(store: Store, snapshot: Snapshot, clock: Clock) -> None:
    """Clean the log if the table enables it, after a checkpoint of its latest version. An error is only logged."""
    try:
        # The log of a managed table is cleaned by its catalog.
        if store.catalog_table is None and snapshot.table_properties.clean_expired_log:
            check_writable(snapshot.protocol, snapshot.metadata, snapshot.delta_schema, store.root)
            clean_log(store, snapshot, clock, automatic=True)
    except Exception as error:
        log.warning("%s: the log was not cleaned, and will be after a later checkpoint: %s", store.root, error)


def clean_log(store: Store, snapshot: Snapshot, clock: Clock, *, automatic: bool = False) -> LogCleanup:
    """Delete the files of the log before the newest readable checkpoint that is past delta.logRetentionDuration.

    `snapshot` is the latest version. Every version that was current at any moment within the retention (whole days,
    UTC) stays readable. With the feature checkpointProtection, the protected versions go at once or not at all.
    `automatic`: the log was just written to, which shows the store's time, and at most
    `Limits.automatic_cleanup_files` are deleted, oldest first, but always all files of protected versions.

    Raises whatever the store raises at a listing or a delete.
    """
    check_maintained_here(store, "log cleanup")
    listed = store.list(LOG_DIRECTORY)
    # The slower of the store's clock and ours counts.
    store_ms = max((info.modified_ms for info in listed), default=0) if automatic else store.now_ms()
    now_ms = min(clock.now_ms(), store_ms)
    cutoff_ms = (now_ms - snapshot.table_properties.log_retention_ms) // DAY_MS * DAY_MS
    cut = _cut(store, snapshot, listed, cutoff_ms)
    if cut is None:
        return NOTHING
    deletion = Deletion()
    doomed = _before(listed, cut)
    protected = _protected(snapshot, doomed)
    if protected and cut < snapshot.table_properties.protected_before:
        return NOTHING
    some = doomed[: max(store.limits.automatic_cleanup_files, protected)] if automatic else doomed
    _delete(store, some, deletion, clock)
    if _may_have_sidecars(snapshot) and some == doomed:
        # After the old checkpoints. The next cut finds the files that a crash leaves here.
        sidecars = _unreferenced_sidecars(store, min(cutoff_ms, now_ms - DAY_MS))
        _delete(store, sidecars, deletion, clock)
    log.info("%s: the log now starts at version %d; %d files deleted", store.root, cut, deletion.deleted_files)
    return LogCleanup(cut=cut, deleted_files=deletion.deleted_files, deleted_bytes=deletion.deleted_bytes)


def cut_log(store: Store, snapshot: Snapshot, cut: int, clock: Clock) -> LogCleanup:
    """Delete the files of the log before the checkpoint of version `cut`, whatever the retention, for an erasure.

    `snapshot` is the latest version. The checkpoint must be readable, agree with the log before it, and be known to the
    hint; and no version that checkpointProtection guards may stay behind without its checkpoint. Otherwise nothing is
    deleted. The sidecars of an older checkpoint that cannot be read stay: see `delete_unnamed_sidecars`. Raises the
    store's errors for a listing or a delete.
    """
    check_maintained_here(store, "log cut")
    listed = store.list(LOG_DIRECTORY)
    doomed = _before(listed, cut)
    hint = read_hint(store)
    is_protected = bool(_protected(snapshot, doomed)) and cut < snapshot.table_properties.protected_before
    if is_protected or (hint is not None and hint < cut) or not _agrees(store, cut, clock.now_ms()):
        log.warning("%s: the log was not cut at version %d", store.root, cut)
        return NOTHING
    deletion = Deletion()
    # Before the checkpoints that name them: what a kill leaves behind is named, and the next cut finds it.
    _delete(store, _sidecars_of_none_but(store, doomed), deletion, clock)
    _delete(store, doomed, deletion, clock)
    log.info("%s: the log now starts at version %d; %d files deleted", store.root, cut, deletion.deleted_files)
    return LogCleanup(cut=cut, deleted_files=deletion.deleted_files, deleted_bytes=deletion.deleted_bytes)


def _agrees(store: Store, version: int, now_ms: int) -> bool:
    """Return whether each checkpoint of a version can be read, and equals the version as the log before it gives it.

    A log that cannot rebuild the version without them has nothing to compare, and loses nothing.
    """
    paths = {each.path for each in look(store, version).checkpoints.get(version, ())}
    rebuilt = rebuilt_without(store, version, paths, passes_over_damaged=True)
    for path in sorted(paths):
        # A reader may choose any of them.
        read = rebuilt_without(store, version, paths - {path})
        if read is None or (rebuilt is not None and not _is_same(read, rebuilt, now_ms)):
            log.warning("%s: %s cannot be read, or differs from the log before it", store.root, path)
            return False
    return bool(paths)


def _is_same(read: Snapshot, rebuilt: Snapshot, now_ms: int) -> bool:
    """Return whether a checkpoint, as it was read, has the live files, settings and transactions of the version."""
    live = [sorted(file_keys(each.state.live, each.uri).to_pylist()) for each in (read, rebuilt)]
    known, kept = rebuilt.state.transactions, read.state.transactions
    # A checkpoint may leave out transactions that have expired, and nothing else.
    same = all(known.get(name) == each for name, each in kept.items()) and kept.keys() >= (
        _kept_transactions(rebuilt, now_ms).keys()
    )
    same = same and read.protocol == rebuilt.protocol and read.metadata == rebuilt.metadata
    return same and read.state.domains == rebuilt.state.domains and live[0] == live[1]


def _sidecars_of_none_but(store: Store, doomed: Sequence[FileInfo]) -> list[FileInfo]:
    """Return the sidecars that only doomed checkpoints name: none if those of a checkpoint that stays are unknown.

    Those of a doomed one that cannot be read are named by none when it is gone.
    """
    going = {info.path for info in doomed}
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for info in filter(_may_name_sidecars, store.list(LOG_DIRECTORY)) if doomed else ():
        try:
            named[info.path in going].update(_named_by(store, info))
        except CorruptCheckpoint as error:
            log.warning("%s: the sidecars of %s are unknown: %s", store.root, info.path, error)
            if info.path not in going:
                return []
    alone = named[True] - named[False]
    return [info for info in store.list(SIDECAR_DIRECTORY) if info.path in alone]


@dataclass(frozen=True, slots=True)
class NamedSidecars:
    """The sidecars that checkpoints of the log name, each with the last version that does.

    `unknown`: the last version of a checkpoint that cannot be read, and may name any; None without one.
    """

    versions: dict[str, int]
    unknown: int | None


def named_sidecars(store: Store) -> NamedSidecars:
    """Return the sidecars that the checkpoints of the log name. Raises the errors of the store."""
    found: dict[str, int] = {}
    unknown = None
    for name, info in _parsed(store.list(LOG_DIRECTORY)):
        try:
            for path in _named_by(store, info) if _may_name_sidecars(info) else ():
                found[path] = max(name.version, found.get(path, 0))
        except CorruptCheckpoint:
            unknown = max(name.version, unknown or 0)
    return NamedSidecars(found, unknown)


def delete_unnamed_sidecars(store: Store, before_ms: int, clock: Clock) -> int:
    """Delete the sidecars written before the moment that no checkpoint names. Return their number.

    None goes if those of a checkpoint are unknown. Raises the errors of the store.
    """
    deletion = Deletion()
    try:
        sidecars = _unreferenced_sidecars(store, before_ms)
    except CorruptCheckpoint as error:
        log.warning("%s: sidecars that no checkpoint names stay: %s", store.root, error)
        return 0
    _delete(store, sidecars, deletion, clock)
    return deletion.deleted_files


def replace_checkpoint(store: Store, snapshot: Snapshot, clock: Clock, gone: Collection[str]) -> None:
    """Write the only checkpoint of a version, without the tombstones of the files `gone`: see `checkpoint`."""
    version = snapshot.version
    earlier = [info for name, info in _parsed(store.list(LOG_DIRECTORY)) if _is_checkpoint_of(name, version)]
    checkpoint(store, snapshot, clock, gone=gone)
    there = {info.path for name, info in _parsed(store.list(LOG_DIRECTORY)) if _is_checkpoint_of(name, version)}
    # Only a classic one takes the place of another.
    written = there.difference(info.path for info in earlier) or {checkpoint_name(version)}
    doomed = [info for info in earlier if info.path not in written]
    deletion = Deletion()
    sidecars = _sidecars_of_none_but(store, doomed)
    # Before their sidecars: a kill must not leave a broken checkpoint next to the whole one, for readers to choose.
    _delete(store, doomed, deletion, clock)
    _delete(store, sidecars, deletion, clock)


def _is_checkpoint_of(name: LogFile, version: int) -> bool:
    return name.kind in CHECKPOINTS and name.version == version


def _may_name_sidecars(info: FileInfo) -> bool:
    name = parse_name(info.path)
    return (
        name is not None and bool(info.size_bytes) and name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT)
    )


def _named_by(store: Store, info: FileInfo) -> tuple[str, ...]:
    name = parse_name(info.path)
    assert name is not None
    # Read each file separately: a reader may choose any of them.
    return sidecars_of(store, CheckpointFiles(version=name.version, files=(info,)))


def _protected(snapshot: Snapshot, doomed: Sequence[FileInfo]) -> int:
    """Return how many of the files, the first ones, belong to versions that checkpointProtection guards.

    Their checkpoints shut readers out that do not know a dropped feature. Source: protocol, "Checkpoint Protection".
    """
    if _PROTECTION not in writer_features(snapshot.protocol):
        return 0
    return sum(name.version < snapshot.table_properties.protected_before for name, _ in _parsed(doomed))


def _may_have_sidecars(snapshot: Snapshot) -> bool:
    """Return whether the table has, or may have had, V2 checkpoints: a feature may have been dropped."""
    return not {"v2Checkpoint", _PROTECTION}.isdisjoint(writer_features(snapshot.protocol))


def _delete(store: Store, files: Sequence[FileInfo], deletion: Deletion, clock: Clock) -> None:
    delete_files(store, files, deletion, on_batch=progress_log(store, "log cleanup", files, deletion, clock))
    deletion.check()


# --- the cut --------------------------------------------------------------------------------------------------------


def _cut(store: Store, snapshot: Snapshot, listed: Sequence[FileInfo], cutoff_ms: int) -> int | None:
    """Return the version of the newest readable checkpoint up to the last version that was current at the cutoff.

    None without one, or if nothing lies before it. The costly checks run only if files would be deleted: once a day.
    """
    names = _parsed(listed)
    oldest = min((name.version for name, _ in names), default=0)
    last = _last_version_at(listed, cutoff_ms)
    candidates = {name.version for name, _ in names if name.kind in CHECKPOINTS and oldest < name.version <= last}
    if not candidates:
        return None
    last = min(last, _last_in_commit_version_at(store, snapshot, listed, cutoff_ms))
    # Other readers first open the checkpoint that the hint names, with the parts that the hint counts.
    hint = read_hint(store)
    last = last if hint is None else min(last, hint)
    for version in sorted((each for each in candidates if each <= last), reverse=True):
        if is_readable(store, version):
            return version
    return None


def is_readable(store: Store, version: int) -> bool:
    """Return whether the log holds a whole checkpoint of this version, and each can be read to its last row.

    A reader may choose any of them, and without the log before has no other way to the version.
    """
    found = look(store, version).checkpoints.get(version, [])
    try:
        for each in found:
            read_checkpoint(store, each)
    except (TableError, UnsupportedFeature, FileNotFoundError) as error:
        log.warning("%s: the log cannot be cut at the checkpoint of version %d: %s", store.root, version, error)
        return False
    return bool(found)


def _last_version_at(listed: Sequence[FileInfo], moment_ms: int) -> int:
    """Return the last version whose commit file, by times that only grow, is not younger; -1 without one."""
    commits = commits_among(listed)
    position = bisect.bisect_right(commits, moment_ms, key=lambda commit: commit.file_time_ms)
    return commits[position - 1].version if position else -1


def _last_in_commit_version_at(store: Store, snapshot: Snapshot, listed: Sequence[FileInfo], moment_ms: int) -> int:
    """Return the same by in-commit timestamps, which time travel uses once they are enabled."""
    start = snapshot.table_properties.in_commit_start
    if start is None:
        return snapshot.version
    enabled_from, enabled_ms = start
    if moment_ms < enabled_ms:
        return enabled_from - 1
    timed = [commit for commit in commits_among(listed) if enabled_from <= commit.version <= snapshot.version]
    position = bisect.bisect_right(timed, moment_ms, key=lambda commit: in_commit_time(store, commit))
    return timed[position - 1].version if position else enabled_from - 1


def _before(listed: Sequence[FileInfo], cut: int) -> list[FileInfo]:
    """Return the files to delete, oldest first: all before the cut, and compactions that begin at it or before."""
    return [
        info
        for name, info in sorted(_parsed(listed), key=lambda each: (each[0].version, each[1].path))
        if name.version < cut or (name.kind is LogKind.COMPACTED and name.version == cut)
    ]


def _parsed(listed: Sequence[FileInfo]) -> list[tuple[LogFile, FileInfo]]:
    """Return the files whose names the protocol defines; others are never deleted."""
    found = ((parse_name(info.path), info) for info in listed)
    return [(name, info) for name, info in found if name is not None]


def _unreferenced_sidecars(store: Store, before_ms: int) -> list[FileInfo]:
    """Return the sidecars written before the moment that no checkpoint of the log names.

    Several checkpoints may share a sidecar. Raises CorruptCheckpoint if the sidecars of a checkpoint are unknown: then
    none may go. Source: protocol, "Sidecar File Information".
    """
    # Before the checkpoints: one that is published while we look then still shows what it names.
    sidecars = [info for info in store.list(SIDECAR_DIRECTORY) if info.modified_ms < before_ms]
    if not sidecars:
        return []
    named: set[str] = set()
    for info in filter(_may_name_sidecars, store.list(LOG_DIRECTORY)):
        named.update(_named_by(store, info))
    return [info for info in sidecars if info.path not in named]
