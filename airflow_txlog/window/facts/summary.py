"""The facts of one table in the list of tables: its size, its last change and its state, from few reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_txlog.engine import Table
from airflow_txlog.engine.log.names import CHECKPOINTS, LOG_DIRECTORY, parse_name
from airflow_txlog.engine.staged_changes import staged_ids
from airflow_txlog.engine.table.snapshot.commit_times import commits_among
from airflow_txlog.engine.upkeep.checks import MAX_INTERVALS_WITHOUT_CHECKPOINT, Healthy
from airflow_txlog.errors import TableNotFound, TxlogError
from airflow_txlog.locations import shown
from airflow_txlog.window.facts.health import ATTENTION, BROKEN, HEALTHY, check_log_size, small_files, vector_files
from airflow_txlog.window.facts.overview import Sees, seen
from airflow_txlog.window.facts.version_lines import KeptLines, VersionLine, clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """One table in a list. A number that is not known is None."""

    state: str
    """HEALTHY, ATTENTION or BROKEN."""
    note: str = ""
    """Why it is not healthy."""
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    small_files: int | None = None
    vector_files: int | None = None
    log_files: int | None = None
    commits_after_checkpoint: int | None = None
    oldest_checkpoint_ms: int | None = None
    """When the oldest checkpoint was written; None if there is none."""
    staged: int | None = None
    """Changes that wait for their publication."""
    last: VersionLine | None = None

    def for_user(self, sees: Sees) -> TableSummary:
        """Return the facts without the names of DAGs that the user may not see."""
        return self if self.last is None else replace(self, last=replace(self.last, by=seen(self.last.by, sees)))


def table_summary(table: Table, kept: KeptLines) -> TableSummary:
    """Return the summary of a table, BROKEN if it cannot be read. Raises TableNotFound, and the store's errors."""
    listed = table.store.list(LOG_DIRECTORY)
    try:
        check_log_size(listed, shown(table.uri))
        snapshot = table.snapshot()
    except TableNotFound:
        raise
    except TxlogError as error:
        return TableSummary(state=BROKEN, note=clipped(str(error), 300))
    properties, unreadable = snapshot.table_properties.readable()
    read = kept.read(table.store, commits_among(listed)[-1:], properties)
    names = [(name.version, info) for info in listed if (name := parse_name(info.path)) and name.kind in CHECKPOINTS]
    newest = max((version for version, _ in names), default=-1)
    small, after = small_files(snapshot), snapshot.version - newest
    healthy, notes = Healthy(), [f"{each.name} cannot be read" for each in unreadable]
    if small > healthy.tiny_files and 2 * small > snapshot.num_files:
        notes.append(f"{small:,} small files")
    if after > MAX_INTERVALS_WITHOUT_CHECKPOINT * properties.checkpoint_interval:
        notes.append(f"{after:,} commits after the newest checkpoint")
    if len(listed) > healthy.log_files:
        notes.append(f"{len(listed):,} files in the log")
    return TableSummary(
        state=ATTENTION if notes else HEALTHY,
        note="; ".join(notes),
        version=snapshot.version,
        files=snapshot.num_files,
        size_bytes=snapshot.size_bytes,
        small_files=small,
        vector_files=vector_files(snapshot),
        log_files=len(listed),
        oldest_checkpoint_ms=min((info.modified_ms for _, info in names), default=None),
        staged=len(staged_ids(table.store)),
        commits_after_checkpoint=after,
        last=read[0].line if read else None,
    )
