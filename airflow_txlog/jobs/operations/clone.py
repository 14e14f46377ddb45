"""CLONE: a table becomes a clone of another one, by the log alone (shallow) or with copies of its files (deep).

The source is read once, at one version; a lost race to another writer of the clone is planned again on that version. If
a VACUUM takes files of it before they are copied, and the author named no version, the newest one is cloned.
The invariants: a deep clone is committed when every file that it names is there, whole; the clone's folder is apart
from the source's files, those outside of the source's folder too, so no VACUUM of the clone finds a file of the source.
Source: delta-spark, CloneTableCommand and DeltaOperations.Clone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from airflow_txlog.contract.job import JobResult
from airflow_txlog.contract.operations import Clone
from airflow_txlog.contract.wording import files_text, plural, size_text
from airflow_txlog.datafiles.partitioning import encode_add_path
from airflow_txlog.datafiles.staged_files import StagedFile
from airflow_txlog.engine import DeltaTable, Snapshot, Transaction
from airflow_txlog.engine.commit.content.clustering import CLUSTERING_DOMAIN
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from airflow_txlog.engine.erasure.returns import Compared, Incoming, ReturnGuard
from airflow_txlog.engine.log.actions import Add, Metadata, Protocol
from airflow_txlog.engine.log.columns import FILES, TOMBSTONES, adds_to_table, table_to_adds
from airflow_txlog.engine.staged_changes import staged_snapshot
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_FLOOR_MS
from airflow_txlog.engine.table.snapshot.files import file_keys
from airflow_txlog.engine.upkeep.clone import (
    Cloneable,
    definition_of_clone,
    difference,
    give_domains,
    shallow_adds,
)
from airflow_txlog.engine.upkeep.copied_files import Copy, copy_files, plan_copies
from airflow_txlog.engine.upkeep.restore import files_missing, missing_files
from airflow_txlog.engine.upkeep.vacuum_plan import files_named
from airflow_txlog.errors import (
    ConcurrentDeleteRead,
    FilesMissing,
    InvalidJobSpec,
    SourceNotFound,
    TableAlreadyExists,
    TableNotFound,
)
from airflow_txlog.jobs.context import LogContext
from airflow_txlog.jobs.files.erased_subjects import guard_of
from airflow_txlog.jobs.files.staged import check_not_swept
from airflow_txlog.jobs.resume.attempts import Change, run_attempts
from airflow_txlog.locations import LOCAL, local_path, store_kind
from airflow_txlog.storage import FileInfo
from airflow_txlog.storage.local_files import real_path

_REPORTED_S = 30


def clone(context: LogContext) -> JobResult:
    """Run the job of `context.spec`; raises TxlogError."""
    job = _Clone(context)
    return run_attempts(context, job.plan, begin_absent=job.begin_absent)


class _Clone:
    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._record = context.record(Clone)
        # Names copies if no other try may look for them.
        self._of_job = context.clock.unique_id().replace("-", "")
        self._missed: set[str] = set()

    def begin_absent(self) -> Transaction:
        """Return the transaction that creates the clone. Raises FolderNotEmpty."""
        context, source = self._context, self._source
        with context.step("plan"):
            context.table.check_folder(source.metadata.partition_columns)
            tx = context.table.begin_as(*self._definition(None))
            give_domains(tx, source)
            self._log_watermarks()
        return tx

    def plan(self, tx: Transaction) -> Change:
        """Return the change that makes the table the clone; copies files first. Raises TableAlreadyExists."""
        context, record, target, source = self._context, self._record, tx.snapshot, self._source
        live = FILES.empty_table()
        is_altered = False
        if target is not None:
            if not record.replace:
                raise self._exists()
            with context.step("plan"):
                live = tx.read_whole_table()
                is_altered = self._redefine(tx, target)
        with context.step("plan"):
            wanted, copies = self._files(live, target)
            assert tx.protocol is not None
            found = difference(wanted, live, tx.protocol, context.root)
            # Before anything is copied.
            tx.check("CLONE", [*found.coming, *found.renumbered], found.going)
        guard = self._compared(target, wanted, found.coming)
        # The files were compared in the source. Another commit may come first, of an erasure as well.
        tx.guard = None if guard is None else Compared(guard)
        if copies:
            self._copy(copies, is_new=target is None)
        added, removed = len(found.coming), found.going.column("size").to_pylist()
        # Files of deletion vectors are not counted: their size is not in the log.
        copied = [copy.size_bytes for copy in copies if copy.size_bytes is not None]
        self._log(added, len(removed))
        path = local_path(source.uri)
        return Change(
            operation="CLONE",
            parameters={
                # As Hadoop spells it.
                "source": f"delta.`{source.spelled if path is None else f'{LOCAL}:{path}'}`",
                "sourceVersion": self._version.version,
                "isShallow": record.shallow,
            },
            adds=[*found.coming, *found.renumbered],
            removed=found.going,
            metrics={
                "sourceTableSize": self._version.size_bytes,
                "sourceNumOfFiles": self._version.num_files,
                "numRemovedFiles": len(removed),
                "numCopiedFiles": len(copied),
                "removedFilesSize": sum(removed),
                "copiedFilesSize": sum(copied),
            },
            files={
                "considered": self._version.num_files,
                "pruned": 0,
                "rewritten": 0,
                "added": added,
                "removed": len(removed),
            },
            is_creation=target is None,
            is_alteration=is_altered or bool(found.coming or found.renumbered),
            before_commit=None if guard is None else guard.check_again,
        )

    def _compared(self, target: Snapshot | None, wanted: Sequence[Add], coming: Sequence[Add]) -> ReturnGuard | None:
        """Compare the files of the source that come into the clone with the ledger; return the guard that has done so.

        Raises the errors of the guard.
        """
        context, source = self._context, self._source
        table_ids = [source.metadata.id, *([] if target is None else [target.metadata.id])]
        guard = guard_of(context, uris=[source.uri], table_ids=table_ids)
        if guard is not None:
            paths = {add.path for add in coming}
            adds = table_to_adds(source.files, data_change=True)
            files = [add for add, new in zip(adds, wanted, strict=True) if new.path in paths]
            with context.step("compare"):
                store = self._table.store
                guard.check(Incoming(files=files, metadata=source.metadata, root=source.uri, store=store))
        return guard

    def _redefine(self, tx: Transaction, target: Snapshot) -> bool:
        """Let the transaction give an existing table what a clone takes over. Return whether anything differs."""
        protocol, metadata = self._definition(target)
        if protocol != target.protocol:
            tx.set_protocol(protocol)
        if metadata != target.metadata:
            # Every row becomes one of the source's, which keep the source's rules.
            tx.set_metadata(metadata, is_checked=True)
        dropped = give_domains(tx, self._source)
        if dropped:
            self._context.log(
                f"the domains {', '.join(dropped)} of {self._context.root} go with its rows: what they note was done "
                "to those"
            )
        self._log_watermarks()
        is_clustered = target.state.domains.get(CLUSTERING_DOMAIN) != self._source.clustering
        domains = target.state.domains
        is_marked = any(domains.get(name) != mark for name, mark in self._source.watermarks.items())
        return bool(dropped) or is_clustered or is_marked or (protocol, metadata) != (target.protocol, target.metadata)

    def _log_watermarks(self) -> None:
        for consumer, mark in watermarks_of(self._source.watermarks).items():
            self._context.log(
                f"the clone continues consumer {consumer!r} after version {mark.version} of {mark.source!r}"
            )

    def _definition(self, target: Snapshot | None) -> tuple[Protocol, Metadata]:
        context = self._context
        return definition_of_clone(self._source, target, self._record.properties, context.root, context.clock)

    # --- the source -------------------------------------------------------------------------------------------------

    @cached_property
    def _table(self) -> DeltaTable:
        """The source. Raises InvalidJobSpec if its folder or its store does not suit."""
        context, given = self._context, self._record.source.table
        table = DeltaTable.at(given, context.store.access, limits=context.limits)
        one, other = _place(table.uri), _place(context.root)
        if f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/"):
            raise self._refused(
                "source.table", f"the folders of {given} and {context.root} are one, or one is in the other", "apart"
            )
        if self._record.shallow and store_kind(table.uri) != store_kind(context.root):
            raise self._refused(
                "shallow",
                f"{given} and {context.root} are in stores of two kinds, and readers open the files of a table in one",
                "in one kind of store, or clone deep",
            )
        return table

    def _refused(self, argument: str, why: str, instead: str) -> InvalidJobSpec:
        return InvalidJobSpec(
            f"{self._context.root} cannot be a clone of {self._record.source.table}: {why}. Nothing was read. Keep "
            f"them {instead}.",
            argument=f"arguments.{argument}",
        )

    @cached_property
    def _version(self) -> Snapshot:
        """The version to clone, the same in all attempts. Raises SourceNotFound, FilesMissing, StagedChangeGone."""
        context, record, table = self._context, self._record, self._table
        with context.step("source"):
            try:
                head = table.snapshot()
            except TableNotFound as error:
                raise SourceNotFound(
                    f"The source table {record.source.table} does not exist (yet). This run of the job "
                    "changed nothing.",
                    argument="source.table",
                ) from error
            staged = record.source.staged
            if staged is None:
                version = table.snapshot(record.source.version, record.timestamp)
            else:
                version = staged_snapshot(table, staged.id, staged.digest)
            if version.version != head.version or staged is not None:
                self._check_files(version, head)
        context.lineage.versions[record.source.table] = version.version
        return version

    def _check_files(self, version: Snapshot, head: Snapshot) -> None:
        """Raise FilesMissing for files that a VACUUM took: only those that the newest version lacks can be gone."""
        have = set(file_keys(head.files(), head.uri).to_pylist())
        files = version.files()
        is_old = [key not in have for key in file_keys(files, version.uri).to_pylist()]
        missing = missing_files(self._table.store, files.filter(pa.array(is_old, pa.bool_())))
        if missing:
            raise files_missing(version.uri, version.version, missing, "cloned")

    @cached_property
    def _source(self) -> Cloneable:
        return Cloneable.of(self._version, self._record.source.table)

    # --- the files --------------------------------------------------------------------------------------------------

    def _files(self, live: pa.Table, target: Snapshot | None) -> tuple[list[Add], list[Copy]]:
        """Return the files of the clone, and those that are to be copied first."""
        if self._record.shallow:
            adds = shallow_adds(self._source, self._context.store.access)
            self._check_apart(adds, target)
            return adds, []
        there = table_to_adds(live, data_change=False)
        copies = plan_copies(self._source, there, self._context.root, self._sign)
        return copies.adds, copies.needed

    def _check_apart(self, adds: Sequence[Add], target: Snapshot | None) -> None:
        """Raise InvalidJobSpec for files in the clone's folder that its log does not know.

        They are those of a table there, of which the source is a shallow clone. A VACUUM of this one would delete them.
        """
        root, none = self._context.root, TOMBSTONES.empty_table()
        inside = files_named(adds_to_table(adds), none, root, 0).needed
        if inside and target is not None:
            inside -= files_named(target.state.live, target.state.tombstones, root, 0).needed
        if inside:
            count = plural(len(inside), "file")
            raise self._refused("source.table", f"that names {count} of other tables in {root}", "apart, or clone deep")

    def _copy(self, needed: Sequence[Copy], *, is_new: bool) -> None:
        """Copy the files that the clone lacks. Raises FilesMissing, JobError."""
        context = self._context
        done, done_bytes, next_s = 0, 0, context.clock.monotonic_s() + _REPORTED_S

        def report(info: FileInfo) -> None:
            nonlocal done, done_bytes, next_s
            done, done_bytes, now_s = done + 1, done_bytes + info.size_bytes, context.clock.monotonic_s()
            if now_s >= next_s or done == len(needed):
                next_s = now_s + _REPORTED_S
                context.log(f"{done} of {plural(len(needed), 'file')} are there ({size_text(done_bytes)})")

        # A VACUUM of a table that exists may take a copy that no commit names yet. There is none of a new table.
        since_ms = 0 if is_new else context.store.now_ms() - ORPHAN_RETENTION_FLOOR_MS // 4
        with context.step("copy"):
            try:
                made = copy_files(
                    self._table.store,
                    context.store,
                    needed,
                    self._version.version,
                    found_since_ms=since_ms,
                    on_made=report,
                )
            except FilesMissing as error:
                raise self._overtaken(error) or error from None
        if made and not is_new:
            check_not_swept(context.store, list(map(_as_staged, made)))

    def _overtaken(self, error: FilesMissing) -> ConcurrentDeleteRead | None:
        """Return the conflict that has the newest version of the source cloned, if a later commit removed the files."""
        record, version = self._record, self._version
        is_named = record.source.names_version or record.timestamp is not None
        # A file that the newest version names, too, is damage.
        is_damage = not self._missed.isdisjoint(error.facts["examples"])
        if is_named or is_damage or self._table.snapshot().version == version.version:
            return None
        self._missed.update(error.facts["examples"])
        del self._version, self._source
        return ConcurrentDeleteRead(
            f"{error.message} They were removed since, and the next attempt clones the newest version.",
            table=version.uri,
            read_version=version.version,
        )

    def _sign(self, identity: str) -> str:
        seal = self._context.seal
        return self._of_job if seal is None else seal.sign("clone", identity.encode())

    # --- messages ---------------------------------------------------------------------------------------------------

    def _log(self, added: int, removed: int) -> None:
        context, version = self._context, self._version
        kind = "shallow" if self._record.shallow else "deep"
        context.log(
            f"a {kind} clone of {version.uri} at version {version.version}, of "
            f"{files_text(version.files(columns=['size']).column('size').to_pylist())}: {added} new, {removed} go"
        )
        if self._record.shallow:
            context.log(
                f"its files stay in {version.uri}: a VACUUM there deletes those that {version.uri} itself needs no "
                "more, and the clone cannot be read then. Readers with this provider need allow_absolute_paths"
            )

    def _exists(self) -> TableAlreadyExists:
        root = self._context.root
        return TableAlreadyExists(
            f"{root} cannot be made a clone: it is a table already. Nothing was changed. Give replace=True to have its "
            "rows replaced by the source's, or another place.",
            table=root,
            retryable=False,
        )


def _as_staged(info: FileInfo) -> StagedFile:
    """Return a copy as a file that no commit names yet: by its path and its age."""
    return StagedFile(
        path=encode_add_path(info.path),
        partition_values={},
        size_bytes=info.size_bytes,
        modification_time_ms=info.modified_ms,
        num_records=0,
        stats="",
    )


def _place(uri: str) -> str:
    """Return one spelling of a table's place, without links of this machine."""
    path = local_path(uri)
    return uri if path is None else real_path(path)
