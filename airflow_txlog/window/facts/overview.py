"""The facts of the page of a table. A table that cannot be read here still shows its timeline and the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from airflow_txlog.engine import Snapshot, Table
from airflow_txlog.engine.commit.content.watermarks import WATERMARKS, watermarks_of
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.staged_changes import staged_in
from airflow_txlog.engine.table.schema.properties import DAY_MS, TableProperties
from airflow_txlog.engine.table.snapshot.commit_times import commits_among
from airflow_txlog.engine.table.snapshot.files import known_sum, live_row_counts
from airflow_txlog.engine.upkeep.consumers import consumers_of
from airflow_txlog.errors import TableNotFound, TxlogError
from airflow_txlog.locations import shown
from airflow_txlog.storage.base import FileInfo
from airflow_txlog.window.facts.health import BROKEN, Health, check_log_size, health_of, small_files
from airflow_txlog.window.facts.shape import (
    Explained,
    PartitionSizes,
    SchemaChange,
    ShownField,
    column_count,
    columns_of,
    features_of,
    newest_changes,
    partitions_of,
    properties_of,
    schema_changes,
)
from airflow_txlog.window.facts.timeline import (
    ExpectationTrend,
    Point,
    Timeline,
    Totals,
    metadata_changes,
    page_of,
    points,
    read_timeline,
    sampled,
    trends,
)
from airflow_txlog.window.facts.version_lines import (
    MOST_DECODED_BYTES,
    Author,
    KeptLines,
    VersionLine,
    author_of,
    chars_of,
    clipped,
)

MOST_COUNTED_FILES = 200_000
"""In a table of more files, the rows are not counted: that needs the statistics of each file."""
MOST_STAGED = 50
Sees = Callable[[str], bool]
"""Whether the user may see a DAG."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFact:
    """A change that waits for its publication."""

    operation: str
    base_version: int
    staged_ms: int
    expires_ms: int
    files: int
    by: Author = field(default_factory=Author)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFact:
    """How far an incremental consumer has processed its source into this table."""

    consumer: str
    source: str | None
    version: int | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Everything on the page of a table."""

    uri: str
    name: str
    description: str
    version: int | None
    """The latest version; None if the table cannot be read."""
    read_ms: int
    """When the log was read."""
    totals: Totals
    timeline: Timeline
    """A page of it. A page before a version has no more facts than this."""
    health: Health | None = None
    points: tuple[Point, ...] = ()
    columns: tuple[ShownField, ...] = ()
    column_count: int = 0
    """All columns; `columns` has the first ones, and then removed ones."""
    schema_changes: tuple[SchemaChange, ...] = ()
    properties: tuple[Explained, ...] = ()
    features: tuple[Explained, ...] = ()
    partitions: PartitionSizes | None = None
    expectations: tuple[ExpectationTrend, ...] = ()
    consumers: tuple[ConsumerFact, ...] = ()
    staged: tuple[StagedFact, ...] = ()
    retention_days: float | None = None

    @property
    def chars(self) -> int:
        """About the memory that they take."""
        return sum(map(chars_of, self.timeline.lines)) + 300 * (len(self.columns) + len(self.properties))

    @property
    def last(self) -> VersionLine | None:
        """The newest version of the timeline."""
        return self.timeline.lines[0] if self.timeline.lines and not self.timeline.newer else None

    def for_user(self, sees: Sees) -> TableFacts:
        """Return the facts without the names of DAGs that the user may not see."""
        lines = tuple(replace(each, by=seen(each.by, sees)) for each in self.timeline.lines)
        staged = tuple(replace(each, by=seen(each.by, sees)) for each in self.staged)
        return replace(self, timeline=replace(self.timeline, lines=lines), staged=staged)


def seen(by: Author, sees: Sees) -> Author:
    """Return the author, without names if the user may not see the DAG."""
    return by if by.dag_id is None or sees(by.dag_id) else Author(engine=by.engine, is_hidden=True)


def table_facts(table: Table, kept: KeptLines, *, before: int | None, chart: int, now_ms: int) -> TableFacts:
    """Return the facts of a table; of the timeline, the page before a version. `chart`: the versions of the charts.

    Raises TableNotFound, and the store's errors.
    """
    listed = table.store.list(LOG_DIRECTORY)
    commits = commits_among(listed)
    snapshot, problem = _snapshot(table, listed)
    if snapshot is None and not commits:
        raise problem or TableNotFound(f"{table.uri} holds no Delta table.", table=table.uri)
    properties = TableProperties({}, table.uri) if snapshot is None else snapshot.table_properties.readable()[0]
    timeline, read = read_timeline(table.store, commits, properties, kept, before)
    if snapshot is None:
        assert problem is not None
        health = Health(state=BROKEN, sentence=f"The table cannot be read: {problem}")
        nothing = Totals(rows=None, size_bytes=None, files=None, small_files=None)
        return TableFacts(
            uri=shown(table.uri),
            name="",
            description="",
            version=None,
            read_ms=now_ms,
            totals=nothing,
            health=health,
            timeline=timeline,
            expectations=tuple(trends(timeline.lines)),
        )
    facts = TableFacts(
        uri=shown(table.uri),
        name=clipped(snapshot.metadata.name or "", 200),
        description=clipped(snapshot.metadata.description or "", 1000),
        version=snapshot.version,
        read_ms=now_ms,
        totals=Totals(rows=None, size_bytes=snapshot.size_bytes, files=snapshot.num_files, small_files=None),
        timeline=timeline,
        retention_days=properties.log_retention_ms / DAY_MS,
    )
    if before is not None:
        return facts
    if chart > len(read):
        read = kept.read(table.store, page_of(commits, None, chart), properties)
    lines = [each.line for each in read]
    written = newest_changes(metadata_changes(read))
    totals = totals_of(snapshot)
    columns, column_count = _columns(snapshot, written)
    return replace(
        facts,
        totals=totals,
        health=health_of(snapshot, table.check(), listed, now_ms),
        points=tuple(sampled(points(totals, lines))),
        columns=columns,
        column_count=column_count,
        schema_changes=tuple(schema_changes(written)),
        properties=tuple(properties_of(snapshot.metadata)),
        features=tuple(features_of(snapshot)),
        partitions=partitions_of(snapshot),
        expectations=tuple(trends(lines)),
        consumers=tuple(_consumers(snapshot)),
        staged=tuple(_staged(table)),
    )


def _snapshot(table: Table, listed: Sequence[FileInfo]) -> tuple[Snapshot | None, TxlogError | None]:
    try:
        check_log_size(listed, shown(table.uri))
        return table.snapshot(), None
    except TxlogError as error:
        return None, error


def _columns(snapshot: Snapshot, written: Sequence[tuple[int, Metadata]]) -> tuple[tuple[ShownField, ...], int]:
    try:
        shown_ones = tuple(columns_of(snapshot, written))
        return shown_ones, column_count(snapshot)
    except TxlogError:
        return (), 0


def totals_of(snapshot: Snapshot) -> Totals:
    """Return the size of a table at the snapshot. Rows of very many files are not counted."""
    rows = None
    if snapshot.num_files <= MOST_COUNTED_FILES:
        rows = known_sum(live_row_counts(snapshot.files(columns=["stats", "deletion_vector"])))
    return Totals(
        rows=rows, size_bytes=snapshot.size_bytes, files=snapshot.num_files, small_files=small_files(snapshot)
    )


def _consumers(snapshot: Snapshot) -> list[ConsumerFact]:
    known = watermarks_of(snapshot.state.domains)
    found = []
    for name in consumers_of(snapshot)[:100]:
        watermark = known.get(name)
        note = ""
        if watermark is None:
            note = "The watermark is gone or cannot be read."
        elif f"{WATERMARKS}{name}" not in snapshot.metadata.configuration:
            note = "The table no longer notes this consumer: another engine has taken the table back."
        found.append(
            ConsumerFact(
                consumer=clipped(name, 200),
                source=None if watermark is None else clipped(shown(watermark.source), 300),
                version=None if watermark is None else watermark.version,
                note=note,
            )
        )
    return found


def _staged(table: Table) -> list[StagedFact]:
    found = []
    for _, change in islice(staged_in(table.store, MOST_DECODED_BYTES), MOST_STAGED):
        found.append(
            StagedFact(
                operation=clipped(change.commit_operation, 100),
                base_version=change.base_version,
                staged_ms=change.staged_ms,
                expires_ms=change.expires_ms,
                files=len(change.content.adds),
                by=author_of(change.tags),
            )
        )
    return sorted(found, key=lambda each: each.staged_ms)
