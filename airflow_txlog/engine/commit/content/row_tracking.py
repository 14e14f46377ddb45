"""Row tracking: the ids and commit versions of rows in new files, and whether moved rows keep theirs.

If the table supports the feature, every added file carries `baseRowId` (its rows are numbered from there) and
`defaultRowCommitVersion`; a file that is added again keeps both. The domain `delta.rowTracking` holds the highest id.
The invariant: no id is assigned twice, provided that every writer raises that mark; `conflicts.rebase` renumbers above
the mark of a winner. Rows that a job moves get new ids, which the commit records, unless the job copies their ids to
the materialized columns or moves no row (`Transaction.keep_row_ids`).
Source: protocol, "Row Tracking" (writer requirements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec
import pyarrow.compute as pc

from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN, Attempt
from airflow_txlog.engine.log.actions import Add, DeletionVector, DomainMetadata
from airflow_txlog.engine.log.paths import canonical_paths
from airflow_txlog.engine.table.schema.features import writer_features
from airflow_txlog.engine.table.snapshot.files import most_rows, vectors_of
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import CorruptTable, InvalidCommit, RowCountMissing

NO_ROW_ID = -1
PRESERVED_TAG = "delta.rowTracking.preserved"

# Columns in which an engine keeps the ids of moved rows. Their names are generated when row tracking is enabled.
MATERIALIZED_COLUMNS = {
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-col-",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-commit-version-col-",
}


def materialized_columns(configuration: Mapping[str, str], unique_id: Callable[[], str]) -> dict[str, str]:
    """Return the additional properties that a new table needs; none unless it enables row tracking."""
    if configuration.get("delta.enableRowTracking", "").lower() != "true":
        return {}
    return {name: configuration.get(name, f"{prefix}{unique_id()}") for name, prefix in MATERIALIZED_COLUMNS.items()}


class _Mark(msgspec.Struct, rename="camel"):
    row_id_high_water_mark: int


def with_row_ids(attempt: Attempt, snapshot: Snapshot | None) -> Attempt:
    """Return the attempt with every added file numbered, and the new mark; unchanged if the table tracks no rows.

    Raises RowCountMissing, CorruptTable if the mark cannot be read.
    """
    protocol, properties = attempt.resulting_protocol, attempt.resulting_properties
    is_tracked = protocol is not None and "rowTracking" in writer_features(protocol)
    if not is_tracked or properties.row_tracking_suspended:
        return attempt
    if snapshot is not None and properties.row_tracking and not snapshot.table_properties.row_tracking:
        _check_enabling(snapshot, attempt)
    mark = NO_ROW_ID if snapshot is None else _mark_of(snapshot)
    known = _known_ids(attempt, snapshot)
    adds = tuple(_with_ids(add, known.get(attempt.canonical(add))) for add in attempt.adds)
    return number_rows(replace(attempt, adds=adds, row_id_high_water=mark), mark, attempt.read_version + 1)


def _check_enabling(snapshot: Snapshot, attempt: Attempt) -> None:
    """Raise InvalidCommit if row tracking is enabled before the columns are named and every file that stays has ids.

    A file that the commit adds again gets its ids with it.
    """
    files = snapshot.files(columns=["path", "base_row_id"])
    paths = canonical_paths(files.filter(pc.is_null(files.column("base_row_id"))).column("path"), attempt.table)
    without = len(set(paths.to_pylist()) - attempt.added_paths - {attempt.canonical(each) for each in attempt.removes})
    metadata = attempt.new_metadata or snapshot.metadata
    unnamed = [name for name in MATERIALIZED_COLUMNS if name not in metadata.configuration]
    if without or unnamed:
        what = f"{without} of its files have no row ids" if without else f"the properties {unnamed} name no columns"
        raise InvalidCommit(
            f"{snapshot.uri}: delta.enableRowTracking cannot be set, because {what}. Nothing was committed. Set it "
            "by an alteration of the table (DeltaAlterTableOperator), which does both.",
            table=snapshot.uri,
        )


def _mark_of(snapshot: Snapshot) -> int:
    mark = high_water_mark(snapshot.state.domains.values(), snapshot.uri)
    if mark is not None:
        return mark
    files = snapshot.files()
    files = files.filter(pc.is_valid(files.column("base_row_id")))
    vectors = vectors_of(files)
    # A file without rows has the next id and leaves the mark.
    if any(most_rows(text, vectors.get(number)) != 0 for number, text in enumerate(files.column("stats").to_pylist())):
        raise CorruptTable(
            f"{snapshot.uri}: version {snapshot.version} has files with row ids and no domain "
            f"{ROW_TRACKING_DOMAIN} that holds the highest of them, so new rows cannot be numbered. Nothing was "
            "committed.",
            table=snapshot.uri,
        )
    return NO_ROW_ID


def number_rows(attempt: Attempt, mark: int, version: int) -> Attempt:
    """Return the attempt with ids above `mark` for each file without an id of an earlier commit, as `version`.

    Every id above the mark of the last check is this attempt's own, and is assigned anew.
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
    """Return the highest assigned row id, from the row-tracking domain; None without one."""
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
    """Return the commitInfo tag that records whether rows kept their ids; none unless row tracking is enabled.

    A commit that both removes rows and adds files may have moved rows, whose ids survive only if the job copied them.
    """
    if attempt.row_id_high_water is None or not attempt.resulting_properties.row_tracking:
        return {}
    lost = paths_that_lost_rows(attempt)
    fresh = [add for add in attempt.adds if (add.base_row_id or 0) > attempt.row_id_high_water]
    return {PRESERVED_TAG: "false" if lost and fresh and not attempt.keeps_row_ids else "true"}


def _with_ids(add: Add, known: tuple[int, int | None] | None) -> Add:
    if add.base_row_id is not None or known is None:
        return add
    return msgspec.structs.replace(add, base_row_id=known[0], default_row_commit_version=known[1])


def _known_ids(attempt: Attempt, snapshot: Snapshot | None) -> Mapping[str, tuple[int, int | None]]:
    """Return base row id and commit version of live files that the attempt adds again, by canonical path."""
    wanted = [attempt.canonical(add) for add in attempt.adds if add.base_row_id is None]
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
            "must hold numRecords. Nothing was committed. State how many rows the data file has; an OPTIMIZE with "
            "zorder_by does, for files that others have written.",
            table=table,
            path=add.path,
        )
    return records


def paths_that_lost_rows(attempt: Attempt) -> set[str]:
    """Return the canonical paths of the files that are removed, or added again with more rows deleted."""
    again = {attempt.canonical(add): add.deletion_vector for add in attempt.adds}
    lost = set()
    for remove in attempt.removes:
        path = attempt.canonical(remove)
        if path not in again or _num_deleted(again[path]) > _num_deleted(remove.deletion_vector):
            lost.add(path)
    return lost


def _num_deleted(vector: DeletionVector | None) -> int:
    return 0 if vector is None else vector.cardinality
