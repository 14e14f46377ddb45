"""Row tracking: the ids and commit versions that the rows of new files get, and what a commit says of older ones.

Where the table supports the feature every added file carries `baseRowId` (its rows are numbered from there) and
`defaultRowCommitVersion`; a file that is added again keeps both. The highest id handed out stands in the domain
`delta.rowTracking`. The invariant: an id is never handed out twice, which the mark guarantees as long as every writer
raises it; `conflicts.rebase` numbers again above the mark of a commit that landed first.
Rows that a job moves to new files get new ids, and the commit says so, unless the job carries their ids along in the
materialized columns (`Transaction.keep_row_ids`).
Source: protocol, "Row Tracking" (writer requirements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN, Attempt
from airflow_txlog.engine.log.actions import Add, DeletionVector, DomainMetadata, Metadata
from airflow_txlog.engine.log.paths import canonical_path, canonical_paths
from airflow_txlog.engine.table.schema.features import writer_features
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.snapshot.files import most_rows
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable, InvalidCommit, RowCountMissing

NO_ROW_ID = -1
PRESERVED_TAG = "delta.rowTracking.preserved"

# Where an engine that moves rows keeps their ids; the names are drawn once, when row tracking is enabled.
MATERIALIZED_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-",
}


def materialized_columns(configuration: Mapping[str, str], unique_id: Callable[[], str]) -> dict[str, str]:
    """The properties that a new table with these needs besides; none where it does not enable row tracking."""
    if configuration.get("delta.enableRowTracking", "").lower() != "true":
        return {}
    return {name: configuration.get(name, f"{prefix}{unique_id()}") for name, prefix in MATERIALIZED_COLUMNS.items()}


class _Mark(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: int


def with_row_ids(attempt: Attempt, snapshot: Snapshot | None) -> Attempt:
    """The attempt with every added file numbered, and the new mark; itself where the table does not track rows.

    Raises RowCountMissing where a file's statistics lack the number of its rows, CorruptTable where the table's
    mark cannot be read.
    """
    protocol = attempt.new_protocol or attempt.protocol
    metadata = attempt.new_metadata or attempt.current_metadata
    if protocol is None or metadata is None or "rowTracking" not in writer_features(protocol):
        return attempt
    if TableProperties(metadata.configuration, attempt.table).row_tracking_suspended:
        return attempt
    if snapshot is not None:
        _check_enabling(snapshot, metadata)
    mark = NO_ROW_ID if snapshot is None else _mark_of(snapshot)
    known = _known_ids(attempt, snapshot)
    adds = tuple(_with_ids(add, known.get(canonical_path(add.path, attempt.table))) for add in attempt.adds)
    return number_rows(replace(attempt, adds=adds, row_id_high_water=mark), mark, attempt.read_version + 1)


def _check_enabling(snapshot: Snapshot, metadata: Metadata) -> None:
    """Row tracking may be enabled only where every live file has its ids already, and the columns are named."""
    if not _is_enabled(metadata, snapshot.uri) or _is_enabled(snapshot.metadata, snapshot.uri):
        return
    without = snapshot.files().column("base_row_id").null_count
    unnamed = [name for name in MATERIALIZED_COLUMNS if name not in metadata.configuration]
    if without or unnamed:
        what = f"{without} of its files have no row ids" if without else f"the properties {unnamed} name no columns"
        raise InvalidCommit(
            f"{snapshot.uri}: delta.enableRowTracking cannot be set, because {what}. Nothing was committed. Set it "
            "when the table is created, or let an engine that numbers old files set it.",
            table=snapshot.uri,
        )


def _mark_of(snapshot: Snapshot) -> int:
    mark = high_water_mark(snapshot.state.domains.values(), snapshot.uri)
    if mark is not None:
        return mark
    ids = snapshot.files().column("base_row_id")
    if ids.null_count < len(ids):
        raise CorruptTable(
            f"{snapshot.uri}: version {snapshot.version} has files with row ids and no domain "
            f"{ROW_TRACKING_DOMAIN} that holds the highest of them, so new rows cannot be numbered. Nothing was "
            "committed.",
            table=snapshot.uri,
        )
    return NO_ROW_ID


def number_rows(attempt: Attempt, mark: int, version: int) -> Attempt:
    """The attempt with ids above `mark` for each file that has none of an earlier commit, to be written as `version`.

    An id above the mark that the attempt was last checked against is one that it handed out itself: handed out again.
    """
    assert attempt.row_id_high_water is not None
    next_id = mark + 1
    numbered: list[Add] = []
    for add in attempt.adds:
        if add.base_row_id is None or add.base_row_id > attempt.row_id_high_water:
            add = msgspec.structs.replace(add, base_row_id=next_id, default_row_commit_version=version)
            next_id += _num_records(add, attempt.table)
        numbered.append(add)
    domains = tuple(domain for domain in attempt.domains if domain.domain != ROW_TRACKING_DOMAIN)
    if next_id > mark + 1:
        configuration = msgspec.json.encode(_Mark(next_id - 1)).decode()
        domains = (*domains, DomainMetadata(domain=ROW_TRACKING_DOMAIN, configuration=configuration, removed=False))
    return replace(attempt, adds=tuple(numbered), domains=domains, row_id_high_water=mark)


def high_water_mark(domains: Iterable[DomainMetadata], table: str) -> int | None:
    """The highest row id handed out, by the row-tracking domain among these; None where it is not there."""
    for domain in domains:
        if domain.domain == ROW_TRACKING_DOMAIN and not domain.removed:
            try:
                return msgspec.json.decode(domain.configuration, type=_Mark).row_id_high_water_mark
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise CorruptTable(
                    f"{table}: the domain {ROW_TRACKING_DOMAIN} does not hold the highest row id ({error}), so new "
                    "rows cannot be numbered. Nothing was committed.",
                    table=table,
                ) from error
    return None


def preserved_tags(attempt: Attempt) -> dict[str, str]:
    """The commitInfo tag that says whether rows kept their ids; none where the table has row tracking not enabled.

    Kept where no row was moved or updated: an append, the removal of whole files, files added again, rows deleted by
    vectors. Where rows leave, with their files or by vectors, and rows of new files come, rows may have moved: their
    ids are kept only where the job carried them along.
    """
    metadata = attempt.new_metadata or attempt.current_metadata
    if attempt.row_id_high_water is None or not _is_enabled(metadata, attempt.table):
        return {}
    lost = paths_that_lost_rows(attempt)
    fresh = [add for add in attempt.adds if (add.base_row_id or 0) > attempt.row_id_high_water]
    return {PRESERVED_TAG: "false" if lost and fresh and not attempt.keeps_row_ids else "true"}


def _is_enabled(metadata: Metadata | None, table: str) -> bool:
    return metadata is not None and TableProperties(metadata.configuration, table).row_tracking


def _with_ids(add: Add, known: tuple[int, int | None] | None) -> Add:
    if add.base_row_id is not None or known is None:
        return add
    return msgspec.structs.replace(add, base_row_id=known[0], default_row_commit_version=known[1])


def _known_ids(attempt: Attempt, snapshot: Snapshot | None) -> Mapping[str, tuple[int, int | None]]:
    """Base row id and commit version of the live files that the attempt adds again, by canonical path."""
    wanted = [canonical_path(add.path, attempt.table) for add in attempt.adds if add.base_row_id is None]
    if snapshot is None or not wanted:
        return {}
    live = snapshot.state.files.at_paths(set(wanted))
    paths = canonical_paths(live.column("path"), attempt.table).to_pylist()
    rows = zip(
        paths, *(live.column(name).to_pylist() for name in ("base_row_id", "default_row_commit_version")), strict=True
    )
    return {path: (base, version) for path, base, version in rows if base is not None}


def _num_records(add: Add, table: str) -> int:
    records = most_rows(add.stats, add.deletion_vector)
    if records is None:
        raise RowCountMissing(
            f"RowCountMissing: {add.path} cannot be added to {table}: row tracking numbers its rows, so its statistics "
            "must hold numRecords. Nothing was committed. State how many rows the data file has.",
            table=table,
            path=add.path,
        )
    return records


def paths_that_lost_rows(attempt: Attempt) -> set[str]:
    """Canonical paths of the files that leave, or come again with more rows deleted."""
    again = {canonical_path(add.path, attempt.table): add.deletion_vector for add in attempt.adds}
    lost = set()
    for remove in attempt.removes:
        path = canonical_path(remove.path, attempt.table)
        if path not in again or _num_deleted(again[path]) > _num_deleted(remove.deletion_vector):
            lost.add(path)
    return lost


def _num_deleted(vector: DeletionVector | None) -> int:
    return 0 if vector is None else vector.cardinality
