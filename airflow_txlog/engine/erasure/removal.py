"""Removal: delete the objects that hold a value of a subject, except those that the latest version needs.

The caller first deletes the rows and rewrites files with deletion vectors. Then files that hold a value and that the
latest version does not need are deleted, regardless of the retention, and so are the tombstones of applied changes
(`erasure.forgotten_deletions`). If the log holds a value, or describes a file that held a subject or that is gone by a
value of any column, a checkpoint is written without the tombstones of deleted files, and the log is cut at it: those
bounds may be the subject's own. The invariants: a file of the latest version stays,
and so does a staged change until it expires; an object that a running writer may still need, judged by its age, stays;
and the log is cut only at a checkpoint that was read back and compared. Each step depends only on the objects that
exist, so a killed removal can be run again. Source: soundness A16; protocol, "Metadata Cleanup".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import pyarrow.compute as pc

from airflow_txlog.engine.checkpointing import (
    cut_log,
    delete_unnamed_sidecars,
    is_readable,
    named_sidecars,
    replace_checkpoint,
)
from airflow_txlog.engine.delta_table import DeltaTable
from airflow_txlog.engine.erasure.described_files import DESCRIBED, described, is_gone
from airflow_txlog.engine.erasure.forgotten_deletions import erase_tombstones
from airflow_txlog.engine.erasure.hidden_partitions import in_hidden_partitions
from airflow_txlog.engine.erasure.object_verdicts import Held, NoteGoing, ObjectVerdict, verdict_on
from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.log.checkpoints.rows import SIDECAR_DIRECTORY
from airflow_txlog.engine.log.columns import TOMBSTONES
from airflow_txlog.engine.log.names import CHECKPOINTS, LAST_CHECKPOINT, LOG_DIRECTORY, commit_name, parse_name
from airflow_txlog.engine.log.paths import Visibility, canonical_paths
from airflow_txlog.engine.log.segment import look, read_hint
from airflow_txlog.engine.staged_changes import LONGEST_WAIT_MS, waiting_files
from airflow_txlog.engine.table.schema.features import check_maintained_here
from airflow_txlog.engine.table.schema.properties import DAY_MS
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.vacuum import drop_uploads, vacuum_table
from airflow_txlog.engine.upkeep.vacuum_plan import VacuumRequest, VacuumState, files_named, is_leftover
from airflow_txlog.errors import LimitExceeded
from airflow_txlog.storage.base import FileInfo

Say = Callable[[str], object]
Note = Callable[[Sequence[ObjectVerdict]], object]

_LOG = f"{LOG_DIRECTORY}/"
_INNER_LOG = f"/{LOG_DIRECTORY}/"
# Hadoop keeps the sums of a local file beside it. They outlive the file, and keep its folder.
_SUMS = re.compile(r"(^|/)\.[^/]+\.crc$")
# A checkpoint that an earlier commit made due may be there already, and holds tombstones.
_MOST_COMMITS = 3
_MOST_CLEANUPS = 2
# With this beginning.
_EVERY_FILE = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An object that holds a value and may not go yet. `path` marks the value."""

    path: str
    until_ms: int
    """By the store's clock."""
    why: str
    is_shown: bool = True
    """Whether a verdict on the object shows all its values. Otherwise its partition has one, or may have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """The result of a removal. `cut`: the version with which the log begins; None if it was not cut now."""

    version: int
    deleted_files: int = 0
    deleted_bytes: int = 0
    deleted_log_files: int = 0
    cut: int | None = None
    checkpoint: int | None = None
    """The version whose checkpoint was written now; None if none was."""
    waits: tuple[Wait, ...] = ()
    num_tombstones: int = 0
    """The remembered deletions and events of applied changes that are forgotten: an older event may bring a subject
    back."""
    gone: tuple[ObjectVerdict, ...] = ()
    """The verdicts on the objects that went, as they were when they held a value. Their paths mark it."""

    @property
    def until_ms(self) -> int | None:
        """The moment at which the last wait ends; None if there is none."""
        return max((wait.until_ms for wait in self.waits), default=None)


def remove_traces(
    table: DeltaTable,
    forms: Forms,
    *,
    writer_ms: int,
    cuts_log: bool = True,
    tags: Mapping[str, str] | None = None,
    say: Say = lambda line: None,
    note: NoteGoing = lambda going: None,
) -> Removal:
    """Delete the objects that hold a value and that the latest version does not need.

    `writer_ms`: the longest time that a writer of the table takes from its first read to its commit. A file that no
    commit names, and a commit that was followed by another one, stay that long. 0: nothing else writes now.
    `cuts_log`: cut the log if it holds a value, or describes a file that held one, or that is gone. Its older versions
    can no longer be read then. `note` gets the objects with their verdicts before any of them is deleted, and may get
    some that stay.

    Raises UnsupportedFeature if the table may not be written here, and the errors of the store.
    """
    check_maintained_here(table.store, "removal of traces")
    removing = _Removing(table, forms, writer_ms, tags, say, note)
    num_tombstones = removing.forget()
    deleted, size = removing.vacuum()
    waits = removing.waits()
    cut, log_files = (None, 0)
    if cuts_log:
        cut, log_files, of_log = removing.cut()
        waits += of_log
    return Removal(
        version=table.snapshot().version,
        deleted_files=deleted,
        deleted_bytes=size,
        deleted_log_files=log_files,
        cut=cut,
        checkpoint=removing.checkpoint,
        waits=tuple(waits),
        num_tombstones=num_tombstones,
        gone=tuple(removing.gone()),
    )


class _Removing:
    def __init__(
        self, table: DeltaTable, forms: Forms, writer_ms: int, tags: Mapping[str, str] | None, say: Say, note: NoteGoing
    ) -> None:
        self._table, self._store, self._forms = table, table.store, forms
        self._writer_ms, self._tags, self._say, self._note = writer_ms, tags, say, note
        self._noted: dict[int, Held] = {}
        self.checkpoint: int | None = None
        self._held: list[FileInfo] = []
        self._hidden: Collection[str] = ()
        self._of_others: tuple[str, ...] = ()
        self._found: dict[str, Held] = {}
        # The files whose descriptions may stay: they were searched, and hold no subject.
        self._clean: set[str] = set()

    def _holds(self, info: FileInfo, named: Collection[str] = ()) -> bool:
        try:
            verdict = verdict_on(self._store, info, self._forms, is_to_go=True)
        except MemoryError:
            # Its text names no object.
            self._say(f"{self._forms.without_values(info.path)} was not searched: that needs more memory")
            raise
        if verdict.verdict == "deleted":
            # By another cleanup, since it was listed: nothing has searched it.
            self._clean.discard(info.path)
        if verdict.passes and info.path.startswith(_LOG) and self._describes_unclean(info):
            verdict = replace(verdict, verdict="statistic only", traces=(DESCRIBED,))
        # One that cannot be read may hold a value.
        holds = info.path in named or not verdict.passes
        if holds:
            known = self._found.get(info.path)
            if known is None or known.verdict != verdict:
                self._found[info.path] = Held(info, verdict)
        return holds

    def _describes_unclean(self, info: FileInfo) -> bool:
        """Return whether an object describes, by a value, a file that held a subject, or may have held one."""
        try:
            return any(map(self._is_unclean, described(self._store, info, lambda path: path not in self._clean)))
        except FileNotFoundError:
            return False
        except (OSError, MemoryError, LimitExceeded):
            raise
        except Exception:
            # No log has it in this form, so what it describes is unknown.
            return True

    def _is_unclean(self, path: str) -> bool:
        if path in self._found or is_gone(self._store, path):
            return True
        # It has appeared since the files were listed.
        self._clean.add(path)
        return False

    def _note_down(self) -> None:
        """Hand on the objects found so far, before one of them goes: a kill must not take the record of it."""
        new = [held for _, held in sorted(self._found.items()) if id(held) not in self._noted]
        if new:
            self._note(new)
            self._noted |= {id(held): held for held in new}

    def gone(self) -> Iterable[ObjectVerdict]:
        """Yield the verdicts on the objects that held a value, or that the log named by one, and that are gone."""
        return (held.verdict for path, held in self._found.items() if self._store.stat(path) is None)

    def forget(self) -> int:
        """Leave the values out of the tombstones of applied changes. Return how many tombstones held one."""
        erased = erase_tombstones(self._table, self._forms, self._note, self._tags)
        self._found |= erased.held
        self._noted |= {id(held): held for held in erased.held.values()}
        if erased.num_records:
            self._say(
                f"{erased.num_records} tombstones of applied changes held a subject and are erased. An older event of "
                "a subject now inserts its row again"
            )
        return erased.num_records

    # --- files that the latest version does not need ----------------------------------------------------------------

    def vacuum(self) -> tuple[int, int]:
        """Delete the files that hold a value and may go. Return their number and their bytes."""
        begun = self._table.begin().snapshot
        assert begun is not None
        unneeded = list(self._unneeded(begun))
        inside = () if self._of_others == _EVERY_FILE else self._of_others
        ours = (info.path for info in unneeded if not info.path.startswith(inside))
        self._hidden = in_hidden_partitions(begun, self._forms, ours)
        self._drop_uploads()
        self._held = [info for info in unneeded if not info.path.startswith(_LOG) and self._holds(info, self._hidden)]
        self._clean.difference_update(self._found)
        # What a killed writer left in the log may describe them.
        self._held += [info for info in unneeded if info.path.startswith(_LOG) and self._holds(info)]
        deleted = size = 0
        if self._held:
            only = frozenset(info.path for info in self._held)
            self._say(f"{len(only)} files that the latest version does not need hold a value, or cannot be read")
            request = VacuumRequest(
                retention_ms=0, check_retention=False, orphan_retention_ms=self._writer_ms, only=only
            )
            self._note_down()
            done = vacuum_table(self._table, request, tags=self._tags)
            deleted, size = done.deleted_files, done.size_bytes
        # The folders of partitions by other columns have values of the rows in their names.
        emptied = {str(folder) for info in self._held for folder in PurePosixPath(info.path).parents}

        def may_go(folder: str) -> bool:
            return not folder.startswith(_LOG) and (folder in emptied or self._forms.in_path(folder))

        for folder in filter(may_go, sorted(self._store.list_directories(), reverse=True)):
            self._store.delete_empty_directory(folder)
        for folder in filter(may_go, self._store.folder_markers()):
            self._store.delete_folder_marker(folder)
        return deleted, size

    def _drop_uploads(self) -> None:
        """Drop the unfinished uploads of killed writers: no listing shows what they hold."""
        if self._of_others == _EVERY_FILE:
            self._say("the folder is shared: unfinished uploads, which no listing shows, were left alone")
            return
        # A store's times may be whole seconds.
        before_ms = self._store.now_ms() - (self._writer_ms or -DAY_MS)
        # The name of an upload may hold a value.
        drop_uploads(
            self._store, before_ms, self._of_others, lambda _, line: self._say(line), lambda error: type(error).__name__
        )

    def _unneeded(self, snapshot: Snapshot) -> Iterable[FileInfo]:
        """Yield the files that no action of the latest version names as live."""
        state = VacuumState.of(snapshot, ())
        named = files_named(state.live, TOMBSTONES.empty_table(), self._store.root, 0)
        visibility = Visibility(state.partition_columns, has_iceberg=state.has_iceberg)
        listed = list(self._store.walk(lambda folder: None))
        self._clean = {info.path for info in listed}
        self._clean.update(canonical_paths(state.live.column("path"), self._store.root).to_pylist())
        inner = {info.path.partition(_INNER_LOG)[0] + "/" for info in listed if _INNER_LOG in info.path}
        # Their owners delete them: no vacuum does, however long it waits.
        self._of_others = _EVERY_FILE if state.shares_folder else tuple(inner)
        for info in listed:
            is_log = info.path.startswith(_LOG)
            is_ours = is_leftover(info.path) if is_log else visibility.is_visible(info.path) or _is_sum(info.path)
            if is_ours and info.path not in named.needed:
                yield info

    def waits(self) -> list[Wait]:
        """Return the files that were to go and may not yet."""
        self._let_go_of_live()
        ours = (info for info in self._held if not info.path.startswith(self._of_others))
        left = [info for info in ours if self._store.stat(info.path) is not None]
        if not left:
            return []
        changes, now_ms = waiting_files(self._store), self._store.now_ms()
        found = []
        for info in left:
            until_ms, why = info.modified_ms + self._writer_ms, "a writer may commit it yet"
            for change in changes:
                ends_ms = info.modified_ms + LONGEST_WAIT_MS if change.paths is None else change.until_ms
                if (change.paths is None or info.path in change.paths) and ends_ms > until_ms:
                    until_ms, why = ends_ms, "a staged change needs it until it expires"
            # Otherwise waiting does not help: the file belongs to another owner, or came back.
            if until_ms > now_ms:
                path = self._forms.without_values(info.path)
                found.append(Wait(path=path, until_ms=until_ms, why=why, is_shown=info.path not in self._hidden))
        return found

    def _let_go_of_live(self) -> None:
        """Let go of files that a writer has committed since, and that only their unknown partition made suspect."""
        suspects = {path for path, held in self._found.items() if held.verdict.passes}
        if suspects:
            live = self._table.snapshot().state.live
            suspects &= set(canonical_paths(live.column("path"), self._store.root).to_pylist())
            self._found = {path: held for path, held in self._found.items() if path not in suspects}
            self._held = [info for info in self._held if info.path not in suspects]
            self._clean |= suspects

    # --- the log ----------------------------------------------------------------------------------------------------

    def cut(self) -> tuple[int | None, int, list[Wait]]:
        """Cut the log if it holds a value, or describes a file that did.

        Return the version of the cut, how many files went, and the waits.
        Raises FileNotFoundError if other cleanups delete files of the log during each of several tries.
        """
        for _ in range(_MOST_CLEANUPS):
            with suppress(FileNotFoundError):
                return self._cut()
            self._say("another cleanup has deleted files of the log meanwhile: the log is read again")
        return self._cut()

    def _cut(self) -> tuple[int | None, int, list[Wait]]:
        store, clock = self._store, self._table.clock
        deleted = delete_unnamed_sidecars(store, store.now_ms() - self._writer_ms, clock)
        held, waits = self._held_in_log()
        if not held:
            return None, deleted, waits
        version = self._usable(held)
        if version is None and self._renew_checkpoints(held):
            held, waits = self._held_in_log()
            if not held:
                return None, deleted, waits
            version = self._usable(held)
        if version is None:
            version = self._write_checkpoint(held)
        if version is None:
            self._say("the log was not cut: the latest version holds a value, or other commits came first each time")
            return None, deleted, waits
        commit = look(store, version).commits.get(version)
        if commit is None:
            raise FileNotFoundError(commit_name(version))
        until_ms = commit.modified_ms + self._writer_ms
        if self._writer_ms and until_ms > store.now_ms():
            path = self._forms.without_values(min(held))
            waits.append(Wait(path=path, until_ms=until_ms, why=f"the log is cut at version {version} then"))
            return None, deleted, waits
        self._note_down()
        done = cut_log(store, self._table.snapshot(), version, clock)
        if done.cut is not None:
            # Those of a checkpoint that could not be read, and is gone.
            deleted += delete_unnamed_sidecars(store, store.now_ms() - self._writer_ms, clock)
            waits = self._held_in_log()[1]
        return done.cut, deleted + done.deleted_files, waits

    def _held_in_log(self) -> tuple[dict[str, int], list[Wait]]:
        """Return the files of the log that hold a value, each with the version after which the log must begin.

        Sidecars that no checkpoint names yet are waits, unless a checkpoint that cannot be read may name them.
        """
        self._let_go_of_live()
        held: dict[str, int] = {}
        waits: list[Wait] = []
        named = named_sidecars(self._store)
        for info in self._store.walk(lambda folder: None, prefix=_LOG):
            name = parse_name(info.path)
            is_sidecar = info.path.startswith(f"{SIDECAR_DIRECTORY}/")
            if not (name is not None or is_sidecar or info.path == LAST_CHECKPOINT) or not self._holds(info):
                continue
            at = named.versions.get(info.path, named.unknown) if is_sidecar else -1
            if at is None:
                path, until_ms = self._forms.without_values(info.path), info.modified_ms + self._writer_ms
                waits.append(Wait(path=path, until_ms=until_ms, why="a checkpoint may name it yet"))
            else:
                held[info.path] = name.version if name is not None else at
        return held, waits

    def _usable(self, held: Mapping[str, int]) -> int | None:
        """Return the oldest readable checkpoint that follows all files of the log with a value; None without one."""
        listing, hint = look(self._store, 0), read_hint(self._store)
        # Other readers first open the checkpoint that the hint names, and it is written with one.
        if hint is None or LAST_CHECKPOINT in held:
            return None
        after = range(max(held.values()) + 1, hint + 1)
        known = sorted(each for each in listing.checkpoints if each in after and each in listing.commits)
        return next((each for each in known if is_readable(self._store, each)), None)

    def _renew_checkpoints(self, held: Mapping[str, int]) -> bool:
        """Write checkpoints anew after which only tombstones of files that are gone now matter. Return whether some
        were.

        A vacuum deletes files each day, also while the cut waits for writers. A checkpoint of a newer version would
        have to wait as long, and so without end.
        """
        stale = {path for path in held if self._is_stale_checkpoint(path)}
        after = max((at for path, at in held.items() if path not in stale), default=-1)
        versions = sorted({held[path] for path in stale if held[path] > after})
        self._note_down()
        there = self._there() if versions else ()
        for version in versions:
            if is_readable(self._store, version):
                snapshot = self._table.snapshot(version)
                replace_checkpoint(self._store, snapshot, self._table.clock, self._gone(snapshot, there))
                self.checkpoint = self.checkpoint or version
        return bool(versions)

    def _is_stale_checkpoint(self, path: str) -> bool:
        """Return whether a file of the log is a part of a checkpoint, and held only for the files that it describes."""
        name = parse_name(path)
        is_checkpoint = path.startswith(f"{SIDECAR_DIRECTORY}/") if name is None else name.kind in CHECKPOINTS
        return is_checkpoint and self._found[path].verdict.traces == (DESCRIBED,)

    def _write_checkpoint(self, held: Mapping[str, int]) -> int | None:
        """Write a checkpoint without the tombstones of files that are gone. Return its version; None after races."""
        for _ in range(_MOST_COMMITS):
            snapshot = self._table.snapshot()
            there = look(self._store, snapshot.version).checkpoints
            if snapshot.version <= max(held.values()) or snapshot.version in there:
                # The commit holds a value, or a checkpoint is read that does.
                self._table.begin().commit("ERASE", tags=self._tags, record_empty=True)
                snapshot = self._table.snapshot()
            self._note_down()
            replace_checkpoint(self._store, snapshot, self._table.clock, self._gone(snapshot, self._there()))
            self.checkpoint = snapshot.version
            held, _ = self._held_in_log()
            version = self._usable(held) if held else None
            # Without a race, the latest version itself holds a value, and so does every checkpoint of it.
            if version is not None or self._table.latest_version() == snapshot.version:
                return version
        return None

    def _there(self) -> Collection[str]:
        return {info.path for info in self._store.walk(lambda folder: None)}

    def _gone(self, snapshot: Snapshot, there: Collection[str]) -> Collection[str]:
        """Return the paths of tombstones whose files are not `there`."""
        paths = canonical_paths(snapshot.state.tombstones.column("path"), self._store.root)
        return {path for path in pc.unique(paths).to_pylist() if path not in there}


def _is_sum(path: str) -> bool:
    return _SUMS.search(path) is not None
