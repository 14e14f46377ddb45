"""A transaction: reads of one snapshot, changes, and the one commit that makes them.

Reads are recorded, because the conflict rules compare them with concurrent commits. A transaction belongs to one thread
and commits once.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import Clock
from airflow_txlog.engine.commit.content.attempt import (
    Attempt,
    Guard,
    IsolationLevel,
    ReadSet,
    effective_isolation,
    may_skip_empty,
)
from airflow_txlog.engine.commit.content.clustering import check_clustered_files, clustering_columns
from airflow_txlog.engine.commit.content.info import commit_info, with_in_commit_timestamp
from airflow_txlog.engine.commit.content.met import NONE_MET
from airflow_txlog.engine.commit.content.metadata import (
    check_reserved_names,
    check_rows_are_none,
    completed,
    evolve,
    new_rules,
)
from airflow_txlog.engine.commit.content.row_tracking import with_row_ids
from airflow_txlog.engine.commit.content.staged_content import StagedContent
from airflow_txlog.engine.commit.content.validation import (
    check_has_next_version,
    check_paths_are_free,
    validate,
)
from airflow_txlog.engine.commit.loop import CommitOutcome, CommitPolicy, Landed, commit
from airflow_txlog.engine.log.actions import Add, Cdc, DomainMetadata, Metadata, Protocol, Remove, SetTransaction
from airflow_txlog.engine.log.columns import adds_to_table, no_files, table_to_removes
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.engine.table.predicate import Predicate, partitions_of
from airflow_txlog.engine.table.schema.column_mapping import table_schema
from airflow_txlog.engine.table.schema.evolution import Evolution
from airflow_txlog.engine.table.schema.features import check_writable
from airflow_txlog.engine.table.schema.identities import with_marks
from airflow_txlog.engine.table.schema.properties import SERIALIZABLE, TableProperties
from airflow_txlog.engine.table.schema.schema import from_arrow
from airflow_txlog.engine.table.schema.types import Path, StructType
from airflow_txlog.engine.table.snapshot.files import file_keys, record_counts
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidCommit
from airflow_txlog.storage.base import Store

# With more files it is cheaper to hash all live files than to look each one up.
_LOOKED_UP_ONE_BY_ONE = 1000


class Transaction:
    """Reads and changes on top of `snapshot`, None for a table that does not exist yet. Made by `Table.begin`."""

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot | None,
        *,
        clock: Clock,
        policy: CommitPolicy | None = None,
        on_committed: Callable[[Snapshot | None, Landed], None] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.outcome: CommitOutcome | None = None
        self.guard: Guard | None = None
        self.met = NONE_MET
        """What the job has met before, which the commit records with what it meets itself."""
        self._store = store
        self._clock = clock
        self._policy = policy or CommitPolicy()
        self._on_committed = on_committed
        self.reads = ReadSet()
        self._adds: list[Add] = []
        self._removes: list[Remove] = []
        self._changes: list[Cdc] = []
        self._metadata: Metadata | None = None
        self._is_metadata_checked = False
        self._protocol: Protocol | None = None
        self._transactions: list[SetTransaction] = []
        self._domains: list[DomainMetadata] = []
        self._removed_ms = clock.now_ms()
        self._keeps_row_ids = False
        if snapshot is not None:
            check_has_next_version(snapshot)
            check_writable(snapshot.protocol, snapshot.metadata, snapshot.delta_schema, store.root)

    @property
    def read_version(self) -> int:
        """The snapshot's version; -1 for a table that does not exist yet."""
        return -1 if self.snapshot is None else self.snapshot.version

    @property
    def metadata(self) -> Metadata | None:
        """The table's metadata as this transaction leaves it; None for a new table without any yet."""
        return self._metadata or (None if self.snapshot is None else self.snapshot.metadata)

    @property
    def protocol(self) -> Protocol | None:
        """The table's protocol as this transaction leaves it; None for a new table without any yet."""
        return self._protocol or (None if self.snapshot is None else self.snapshot.protocol)

    @property
    def clustering(self) -> tuple[Path, ...]:
        """The clustering columns (paths of physical names) as this transaction leaves them. Raises CorruptTable."""
        known = () if self.snapshot is None else self.snapshot.state.domains.values()
        return clustering_columns([*self._domains, *known], self._store.root)

    # --- reads ------------------------------------------------------------------------------------------------------

    def read(
        self,
        predicate: str | Predicate | None = None,
        *,
        parameters: Mapping[str, object] | None = None,
        time_zone: str = "UTC",
    ) -> pa.Table:
        """Return the live files that may contain a match (None: every file), as a table `FILES`.

        From now on this transaction conflicts with a commit that adds rows which may match, or removes one of these
        files. Raises InvalidPredicate, UnknownColumn.
        """
        if self.snapshot is None:
            return no_files()
        condition = Predicate.true() if predicate is None else predicate
        read = self.snapshot.read_predicate(condition, parameters=parameters, time_zone=time_zone)
        files = self.snapshot.files(read)
        self.reads = self.reads.with_predicate(read).with_paths(self._paths(files))
        return files

    def read_partitions(self, partitions: Sequence[Mapping[str, str | None]]) -> pa.Table:
        """Return the live files of these partitions (wire values by column), for a dynamic partition overwrite.

        From now on only files added to these partitions conflict, and a removed one that we remove too. Source:
        delta-spark.
        """
        if self.snapshot is None:
            return no_files()
        read = partitions_of([dict(partition) for partition in partitions])
        self.reads = self.reads.with_predicate(read)
        return self.snapshot.files(read)

    def read_files(self, files: pa.Table | Iterable[str], *, matched: bool = True) -> None:
        """Record that these files were read; `matched=False`: they contain no match, so a compaction may move them."""
        table = files if isinstance(files, pa.Table) else self._live(list(files))
        if matched:
            self.reads = self.reads.with_paths(self._paths(table))
            return
        counts = dict(zip(self._paths(table), record_counts(table), strict=True))
        self.reads = self.reads.with_unmatched(counts)

    def read_whole_table(self) -> pa.Table:
        """Return every live file; from now on any commit that adds or removes a file conflicts."""
        self.reads = self.reads.reading_whole_table()
        return no_files() if self.snapshot is None else self.snapshot.files()

    def read_application(self, app_id: str) -> int | None:
        """Return the recorded version of an application transaction; a commit that moves it conflicts from now on."""
        self.reads = self.reads.with_application(app_id)
        return None if self.snapshot is None else self.snapshot.application_version(app_id)

    # --- changes ----------------------------------------------------------------------------------------------------

    def add(self, actions: Add | Iterable[Add] = (), /, **fields: Any) -> None:
        """Add staged files to the table: Add actions, or the fields of one.

        `path` is URL-encoded and relative to the table; `partition_values` default to none, `modification_time` to now
        and `data_change` to True.
        """
        self._adds.extend([actions] if isinstance(actions, Add) else actions)
        if fields:
            defaults: dict[str, Any] = {
                "partition_values": {},
                "modification_time": self._clock.now_ms(),
                "data_change": True,
            }
            self._adds.append(Add(**(defaults | fields)))

    def remove(self, files: pa.Table | Add | str | Iterable[str], *, data_change: bool = True) -> None:
        """Remove live files from the table: rows of a table `FILES`, an Add, or paths as the log has them.

        All removes of a commit share one deletion timestamp. Raises InvalidCommit if a path is not live, or is live
        with a different deletion vector. Otherwise the remove would name a file that is not in the table, and its rows
        would stay (soundness A1).
        """
        if isinstance(files, Add):
            files = adds_to_table([files])
        if isinstance(files, pa.Table):
            table = files
            self._check_live(table)
        else:
            table = self._live([files] if isinstance(files, str) else list(files))
        self._removes.extend(table_to_removes(table, self._removed_ms, data_change))

    def add_changes(self, files: Iterable[Cdc]) -> None:
        """Add staged files of change rows, which then state all changes of the commit; see `content.validation`."""
        self._changes.extend(files)

    def set_application(self, app_id: str, version: int) -> None:
        """Record an application's progress. A concurrent commit that sets the same application id conflicts."""
        self.reads = self.reads.with_application(app_id)
        self._transactions.append(SetTransaction(app_id=app_id, version=version, last_updated=self._clock.now_ms()))

    def set_metadata(self, metadata: Metadata, *, is_checked: bool = False) -> None:
        """Set the table's metadata; its protocol gets every feature that a new property or column switches on.

        `commit` raises InvalidCommit if live rows may violate a new rule (a constraint, NOT NULL), and the errors of
        `content.metadata`. `is_checked`: the caller has verified the rows and the protocol.
        """
        self._metadata, self._is_metadata_checked = metadata, is_checked

    def evolve_schema(
        self, rows: StructType | pa.Schema, *, fixed: Collection[str] = (), new_name: Callable[[int], str] | None = None
    ) -> Evolution:
        """Make the table accept rows of this schema: add missing columns, widen narrower ones if the table allows it.

        The commit then carries the new metadata, if anything changes. `fixed`: columns whose type stays. `new_name`
        makes the physical name of a new column from its id, in tables with column mapping; it must be repeatable if
        staged files outlive this transaction. See `table.schema.evolution` for the limits.

        Raises SchemaMismatch for a name that the table may not have, UnsupportedFeature for a type that its protocol
        does not allow. Not for a new table.
        """
        if self.snapshot is None:
            raise InvalidCommit(f"{self._store.root}: a new table gets its schema when it is created.")
        given = rows if isinstance(rows, StructType) else from_arrow(rows)
        name = new_name or (lambda number: f"col-{self._clock.unique_id()}")
        current = self.metadata
        assert current is not None
        metadata, evolution = evolve(current, self.snapshot.protocol, given, self._store.root, fixed, name)
        if not evolution.changes_nothing:
            check_reserved_names(metadata, self._store.root)
            self._metadata = metadata
        return evolution

    def move_marks(self, marks: Mapping[str, int]) -> None:
        """Set the high-water marks of identity columns to the furthest values in the added files.

        An earlier commit that moves marks too is a conflict, because both have assigned the same values.
        """
        assert self.metadata is not None
        self._metadata = with_marks(self.metadata, marks)

    def set_protocol(self, protocol: Protocol) -> None:
        """Set the table's protocol, from this commit on."""
        self._protocol = protocol

    def set_domain(self, domain: str, configuration: str, *, removed: bool = False) -> None:
        """Record a domain's metadata, or its removal. A concurrent commit that writes the same domain conflicts."""
        self._domains.append(DomainMetadata(domain=domain, configuration=configuration, removed=removed))

    def keep_row_ids(self) -> None:
        """State that every row that moves to an added file has its id and version in the materialized columns."""
        self._keeps_row_ids = True

    # --- the commit -------------------------------------------------------------------------------------------------

    def commit(
        self,
        operation: str,
        parameters: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        *,
        user_metadata: str | None = None,
        tags: Mapping[str, str] | None = None,
        never_rebases: bool = False,
        record_empty: bool = False,
    ) -> int:
        """Commit the changes as the next version of the table, and return that version.

        If there is nothing to record and the isolation level allows it, no version is made: `outcome.committed` is
        False and the read version is returned. `record_empty` makes a version anyway. `never_rebases`: raise
        ConcurrentWrite if any other commit comes first.

        Raises InvalidCommit and its subclasses before anything is written, CommitConflict if an earlier commit
        conflicts with this one, and CommitStateUnknown, CommitContention, TableReplaced.
        """
        if self.outcome is not None:
            raise InvalidCommit(
                f"{self._store.root}: this transaction has committed already (version {self.outcome.version}). "
                "Start a new one.",
                table=self._store.root,
            )
        if self.guard is not None:
            self._adds = list(self.guard.admitted(self.snapshot, self.metadata, self._adds, self._changes))
        attempt = self._checked_attempt(operation, never_rebases)
        if not record_empty and self._has_nothing_to_record(attempt):
            self.outcome = CommitOutcome(version=self.read_version, committed=False)
            return self.read_version
        landed = commit(
            self._store,
            attempt,
            commit_info=functools.partial(
                commit_info, parameters=parameters or {}, metrics=metrics or {}, user_metadata=user_metadata, tags=tags
            ),
            anchor=None if self.snapshot is None else self.snapshot.anchor,
            clock=self._clock,
            policy=self._policy,
            guard=self.guard,
        )
        self.outcome = landed.outcome
        if self._on_committed is not None:
            self._on_committed(self.snapshot, landed)
        return landed.version

    def check(self, operation: str, adds: Iterable[Add], removed: pa.Table) -> None:
        """Raise the error with which `commit` would refuse these files, which need not be written yet."""
        trial = copy.copy(self)
        trial._adds, trial._removes = [*self._adds, *adds], [*self._removes]
        trial.remove(removed)
        trial._checked_attempt(operation, False)

    def staged(self, operation: str) -> tuple[StagedContent, ReadSet]:
        """Return the changes that `commit` would commit, after its checks, and the reads of this transaction."""
        self._checked_attempt(operation, never_rebases=False)
        held = {name: getattr(self, f"_{name}") for name in StagedContent.__struct_fields__}
        return StagedContent(**held), self.reads

    def take(self, content: StagedContent, reads: ReadSet) -> None:
        """Make the content of another transaction on this version this one's. Call it before anything else."""
        self.reads = reads
        self._adds, self._changes, self._domains = list(content.adds), list(content.changes), list(content.domains)
        # The retention of removed files counts from the commit.
        self._removes = [msgspec.structs.replace(each, deletion_timestamp=self._removed_ms) for each in content.removes]
        self._metadata, self._is_metadata_checked = content.metadata, True
        self._protocol, self._keeps_row_ids = content.protocol, content.keeps_row_ids

    def _checked_attempt(self, operation: str, never_rebases: bool) -> Attempt:
        """Return the attempt, once it breaks no rule for a single commit."""
        attempt = self._attempt(operation, never_rebases)
        validate(attempt)
        check_paths_are_free(attempt, self.snapshot)
        check_clustered_files(attempt, self.clustering)
        return attempt

    def _has_nothing_to_record(self, attempt: Attempt) -> bool:
        """Return whether the commit may be skipped. An application transaction alone is nothing to record."""
        changes = [action for action in attempt.actions() if not isinstance(action, SetTransaction)]
        return self.snapshot is not None and not changes and may_skip_empty(attempt.operation, attempt.isolation)

    def _attempt(self, operation: str, never_rebases: bool) -> Attempt:
        self._complete_metadata()
        metadata, level = self.metadata, SERIALIZABLE
        if metadata is not None:
            level = TableProperties(metadata.configuration, self._store.root).isolation_level
        unlevelled = Attempt(
            table=self._store.root,
            read_version=self.read_version,
            operation=operation,
            reads=self.reads,
            schema=self._read_schema(metadata),
            partition_columns=() if self.snapshot is None else tuple(self.snapshot.partition_columns),
            protocol=None if self.snapshot is None else self.snapshot.protocol,
            current_metadata=None if self.snapshot is None else self.snapshot.metadata,
            isolation=IsolationLevel(level),
            is_blind_append=not self.reads.reads_data and not self._removes and not self._changes,
            adds=tuple(self._adds),
            added_paths=frozenset(canonical_path(add.path, self._store.root) for add in self._adds),
            removes=tuple(self._removes),
            cdc=tuple(self._changes),
            new_metadata=self._metadata,
            new_protocol=self._protocol,
            transactions=tuple(dict.fromkeys(self._transactions)),
            domains=tuple(self._domains),
            never_rebases=never_rebases,
            trust_statistics=self.snapshot is None or self.snapshot.table_properties.trust_statistics,
            prepared_ms=self._clock.now_ms(),
            keeps_row_ids=self._keeps_row_ids,
            met=self.met,
        )
        unlevelled = with_in_commit_timestamp(unlevelled, self.snapshot)
        unlevelled = with_row_ids(unlevelled, self.snapshot)
        return replace(unlevelled, isolation=effective_isolation(level, operation, unlevelled.actions()))

    def _complete_metadata(self) -> None:
        """Complete and check new metadata of a table that exists: see `content.metadata`."""
        if self.snapshot is None or self._metadata is None or self._is_metadata_checked:
            return
        before, protocol = self.snapshot.metadata, self._protocol or self.snapshot.protocol
        self._metadata, needed = completed(before, self._metadata, protocol, self._store.root)
        if needed != protocol:
            self._protocol = needed
        rules = new_rules(before, self._metadata)
        if rules:
            check_rows_are_none(rules, self.snapshot.num_files - len(self._removes), self._store.root)
            # Rows that land first have not been compared either.
            self.read_whole_table()

    def _read_schema(self, metadata: Metadata | None) -> StructType:
        if self.snapshot is not None:
            return self.snapshot.delta_schema
        return StructType(()) if metadata is None else table_schema(metadata, self._store.root)

    # --- files ------------------------------------------------------------------------------------------------------

    def _paths(self, files: pa.Table) -> list[str]:
        paths: list[str] = canonical_paths(files.column("path"), self._store.root).to_pylist()
        return paths

    def _check_live(self, files: pa.Table) -> None:
        """Raise InvalidCommit for the first file that is not live as given, vector included."""
        root = self._store.root
        if self.snapshot is not None and files.num_rows > _LOOKED_UP_ONE_BY_ONE:
            live = self.snapshot.files()
        else:
            live = self._live(files.column("path").to_pylist())
        is_live = pc.is_in(file_keys(files, root), value_set=file_keys(live, root))
        if is_live.false_count:
            path = files.column("path")[pc.index(is_live, False).as_py()].as_py()
            self._live([path])
            raise InvalidCommit(
                f"{root}: {path} is live at version {self.read_version} with another "
                "deletion vector than the one that it was to be removed with. Read the table again.",
                table=root,
            )

    def _live(self, paths: list[str]) -> pa.Table:
        """Return the rows of these live files. Raises InvalidCommit for a path that is not live."""
        wanted = [canonical_path(path, self._store.root) for path in paths]
        live = no_files() if self.snapshot is None else self.snapshot.state.files.at_paths(set(wanted))
        missing = sorted(set(wanted) - set(self._paths(live)))
        if missing:
            raise InvalidCommit(
                f"{self._store.root}: {missing[0]} is not a live file of version {self.read_version}, so this "
                "transaction can neither read nor remove it.",
                table=self._store.root,
            )
        return live
