"""The rules for a single commit: for its actions, alone and with the live files, and for files of change rows.

Pure functions, run once before the first put, and `check_paths_against_winner` before each later one: a refused commit
has written nothing. In a table with `delta.enableChangeDataFeed` a commit either records all its changes in `cdc`
actions, or none of its files holds a row that was there before.
Source: protocol, "Add File and Remove File", "Add CDC File", "Change Data Files" and "Writer Requirements for
AddCDCFile"; delta-spark, OptimisticTransaction.prepareCommit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_txlog.datafiles.staged_files import CHANGE_DIRECTORY
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.metadata import check_reserved_names, lowered_facts
from airflow_txlog.engine.log.actions import Add, Cdc, Commit, Metadata, Remove
from airflow_txlog.engine.log.names import MAX_VERSION
from airflow_txlog.engine.table.schema.column_mapping import (
    ID_KEY,
    MAX_ID_PROPERTY,
    MODE_PROPERTY,
    NO_MAPPING,
    has_own_names,
    highest_id,
    mapping_error,
    mapping_mode,
    partition_keys,
)
from airflow_txlog.engine.table.schema.features import reader_features
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import StructType, walk_fields
from airflow_txlog.engine.table.snapshot.files import file_key, file_keys, path_of_key, record_count, stated_count
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import (
    AppendOnlyViolation,
    CorruptTable,
    DuplicateActions,
    InvalidCommit,
    MetadataAbsent,
    PartitionMismatch,
    RowCountMissing,
    SetTransactionVersionConflict,
)


def validate(attempt: Attempt) -> None:
    """Raise an InvalidInput error for the first rule that the attempt breaks."""
    _check_metadata(attempt)
    _check_column_mapping(attempt)
    _check_furthest(attempt)
    check_reserved_names(attempt.new_metadata, attempt.table)
    _check_duplicates(attempt)
    _check_vectors(attempt)
    _check_transactions(attempt)
    _check_append_only(attempt)
    _check_partitions(attempt)
    check_change_files(attempt)


def check_has_next_version(snapshot: Snapshot) -> None:
    """Raise CorruptTable if no version can follow: a file of the log has the highest possible number."""
    if snapshot.version >= MAX_VERSION:
        path = "a file of its log" if snapshot.anchor is None else snapshot.anchor.path
        raise CorruptTable(
            f"{snapshot.uri} is at version {MAX_VERSION} by the name of {path}, and no version can follow it, so "
            "nothing can be committed. Nothing was written. No writer counts so far: look at where that file comes "
            "from, and delete it if it does not belong to the table.",
            table=snapshot.uri,
            path=None if snapshot.anchor is None else snapshot.anchor.path,
        )


def _check_metadata(attempt: Attempt) -> None:
    if attempt.read_version >= 0:
        return
    if attempt.new_metadata is None:
        raise attempt.error(
            MetadataAbsent,
            "the first commit of a table must hold its metadata, and this one holds none. "
            "Create the table with Table.create.",
        )
    if attempt.new_protocol is None:
        raise attempt.error(
            InvalidCommit, "the first commit of a table must hold its protocol, and this one holds none."
        )


def _check_column_mapping(attempt: Attempt) -> None:
    """Raise InvalidCommit unless new metadata keeps the mode, and reuses no name or id. Source: protocol, "Column
    Mapping".
    """
    metadata, before = attempt.new_metadata, attempt.current_metadata
    if metadata is None:
        return
    mode = mapping_mode(metadata.configuration, attempt.table)
    found = None
    was = mode if before is None else mapping_mode(before.configuration, attempt.table)
    if before is not None and was != mode and not _may_change(before, was, mode):
        found = f"{MODE_PROPERTY} would change to {mode!r} from {was!r}, and only 'none' may become 'name'"
    elif mode != NO_MAPPING:
        schema = parse_schema(metadata.schema_string or "")
        found = mapping_error(schema)
        if found is None and before is not None and was == NO_MAPPING:
            found = _not_in_files(before, schema)
        least = max(highest_id(schema), 0 if before is None else _highest_id_ever(before))
        if found is None and _highest_id_ever(metadata) < least:
            last = metadata.configuration.get(MAX_ID_PROPERTY)
            found = f"{MAX_ID_PROPERTY} is {last!r}, and must be a number that no column has gone beyond"
    if found is not None:
        raise attempt.error(
            InvalidCommit, f"{found}. Nothing was committed, because values would turn up under another column."
        )


def _may_change(before: Metadata, was: str, mode: str) -> bool:
    if mode == NO_MAPPING:
        return has_own_names(parse_schema(before.schema_string), before.configuration)
    return (was, mode) == (NO_MAPPING, "name")


def _not_in_files(before: Metadata, schema: StructType) -> str | None:
    """Return the error, in words, if a column that becomes mapped has not the name that files have.

    Columns of before have the first ids, new ones have later ids and new physical names (`assign_existing`).
    """
    names = [member.name for member in walk_fields(parse_schema(before.schema_string))]
    for member in walk_fields(schema):
        if (member.metadata[ID_KEY] <= len(names)) != (member.physical_name in names):
            return (
                f"files hold no column {member.physical_name!r} for {member.name!r}, or hold another one by that name"
            )
    return None


def _check_furthest(attempt: Attempt) -> None:
    metadata, before = attempt.new_metadata, attempt.current_metadata
    lowered = [] if metadata is None or before is None else lowered_facts(before, metadata, attempt.table)
    if lowered:
        raise attempt.error(
            InvalidCommit,
            f"the new metadata of this {attempt.operation} lowers {', '.join(lowered)}, which may "
            "only grow: numbers that were handed out would be handed out again. Nothing was committed. Keep the "
            "present values.",
        )


def _highest_id_ever(metadata: Metadata) -> int:
    """Return the highest id ever given to a column; -1 if the metadata does not hold it."""
    text = metadata.configuration.get(MAX_ID_PROPERTY, "")
    return int(text) if text.isdecimal() and text.isascii() else -1


def _check_duplicates(attempt: Attempt) -> None:
    seen: set[str] = set()
    actions: list[Add | Remove] = [*attempt.adds, *attempt.removes]
    for action in actions:
        key = file_key(action.path, action.deletion_vector, attempt.table)
        if key in seen:
            path = path_of_key(key)
            raise attempt.error(
                DuplicateActions, f"one commit names {path} twice (with one and the same deletion vector).", path=path
            )
        seen.add(key)


def _check_vectors(attempt: Attempt) -> None:
    """Check that files with vectors state their row count. Source: protocol, "Writer Requirements for Deletion
    Vectors".
    """
    with_vectors = [add for add in attempt.adds if add.deletion_vector is not None]
    if not with_vectors:
        return
    protocol = attempt.resulting_protocol
    if protocol is None or "deletionVectors" not in reader_features(protocol):
        raise attempt.error(
            InvalidCommit,
            f"{with_vectors[0].path} has a deletion vector, and the table's protocol does not list "
            "deletionVectors: other readers would bring the deleted rows back. Add the feature first.",
        )
    for add in with_vectors:
        if stated_count(add.stats) is None:
            raise RowCountMissing(
                f"RowCountMissing: {add.path} cannot be added to {attempt.table}: it has a deletion vector, so its "
                "statistics must hold numRecords. Nothing was committed. State how many rows the data file has, those "
                "that the vector deletes included; OPTIMIZE rewrites a live file that lacks the count.",
                table=attempt.table,
                path=add.path,
            )
        records = record_count(add.stats, add.deletion_vector)
        if records is not None and add.deletion_vector is not None and add.deletion_vector.cardinality > records:
            raise attempt.error(
                InvalidCommit,
                f"the deletion vector of {add.path} deletes {add.deletion_vector.cardinality} rows, "
                f"and the file has {records}. Nothing was committed.",
                path=add.path,
            )
    paths = Counter(attempt.canonical(add) for add in attempt.adds)
    path, count = paths.most_common(1)[0]
    if count > 1:
        raise attempt.error(
            DuplicateActions,
            f"one commit adds {path} with {count} deletion vectors; a file has one at a time.",
            path=path,
        )


def check_paths_are_free(attempt: Attempt, snapshot: Snapshot | None) -> None:
    """Raise DuplicateActions if a file is added at the path of a live file that the commit does not remove.

    The same file with the same vector may be added again with `dataChange` false, which replaces statistics and tags.
    Source: protocol, "Action Reconciliation".
    """
    if snapshot is None or not attempt.adds:
        return
    live = snapshot.state.files.at_paths(set(attempt.added_paths))
    if live.num_rows:
        keys = file_keys(live, attempt.table).to_pylist()
        _check_may_come(attempt, keys, f"is live at version {snapshot.version}")


def check_paths_against_winner(attempt: Attempt, winner: Commit) -> None:
    """Check as `check_paths_are_free` against a commit that landed first. Not retryable: it is another's file."""
    if not attempt.adds:
        return
    keys = [
        file_key(add.path, add.deletion_vector, attempt.table)
        for add in winner.adds
        if attempt.canonical(add) in attempt.added_paths
    ]
    if keys:
        _check_may_come(attempt, keys, f"was added by version {winner.version}, which landed first", winner.version)


def _check_may_come(attempt: Attempt, live: Sequence[str], what: str, version: int | None = None) -> None:
    """Raise DuplicateActions for the first of these live files, at added paths, that the attempt does not remove."""
    table = attempt.table
    spoken_of = {file_key(remove.path, remove.deletion_vector, table) for remove in attempt.removes}
    spoken_of |= {file_key(add.path, add.deletion_vector, table) for add in attempt.adds if not add.data_change}
    for key in live:
        if key not in spoken_of:
            path = path_of_key(key)
            raise DuplicateActions(
                f"{table}: {path} {what}, and this {attempt.operation} adds it and does not remove it as it is there, "
                "so it would be in the table twice. Nothing was committed. Give every new file a name of its own, or "
                "remove the live file, its deletion vector included, in the same commit.",
                table=table,
                path=path,
                winning_version=version,
            )


def _check_transactions(attempt: Attempt) -> None:
    versions: dict[str, int] = {}
    for transaction in attempt.transactions:
        known = versions.setdefault(transaction.app_id, transaction.version)
        if known != transaction.version:
            raise attempt.error(
                SetTransactionVersionConflict,
                f"one commit sets the application transaction {transaction.app_id!r} to {known} and "
                f"to {transaction.version}.",
                app_id=transaction.app_id,
            )


def _check_append_only(attempt: Attempt) -> None:
    if not attempt.resulting_properties.append_only:
        return
    for remove in attempt.removes:
        if remove.data_change:
            raise attempt.error(
                AppendOnlyViolation,
                f"the table is append-only (delta.appendOnly = true), and this {attempt.operation} would remove "
                f"rows with {remove.path}. Unset the property first, if rows may go.",
                path=remove.path,
            )


def _check_partitions(attempt: Attempt) -> None:
    expected = set(partition_keys(*attempt.resulting_layout))
    files: list[Add | Cdc] = [*attempt.adds, *attempt.cdc]
    for file in files:
        if set(file.partition_values) != expected:
            raise attempt.error(
                PartitionMismatch,
                f"the table is partitioned by {sorted(expected)}, and {file.path} has partition values for "
                f"{sorted(file.partition_values)}.",
                partition=dict(file.partition_values),
            )


# Operations whose new files also hold existing rows: the changes cannot be derived from whole files.
_COPYING = frozenset({"DELETE", "UPDATE", "MERGE"})


def check_change_files(attempt: Attempt) -> None:
    """Raise InvalidCommit or DuplicateActions if the change files break the protocol, or are missing."""
    if attempt.cdc:
        _check_allowed(attempt)
    elif attempt.resulting_properties.change_data_feed and attempt.operation in _COPYING and _copies_rows(attempt):
        raise attempt.error(
            InvalidCommit,
            f"the table has a change data feed (delta.enableChangeDataFeed = true), and this {attempt.operation} "
            "replaces files without saying which rows changed: readers of the feed would see every row of them. Add "
            "its change rows with add_changes. Nothing was committed.",
        )


def _check_allowed(attempt: Attempt) -> None:
    if not attempt.resulting_properties.change_data_feed:
        raise attempt.error(
            InvalidCommit,
            f"the table has no change data feed (delta.enableChangeDataFeed), and this commit brings "
            f"{len(attempt.cdc)} files of change rows. Leave them out.",
        )
    seen: set[str] = set()
    for change in attempt.cdc:
        path = attempt.canonical(change)
        if change.data_change or not path.startswith(f"{CHANGE_DIRECTORY}/"):
            raise attempt.error(
                InvalidCommit,
                f"the change file {change.path} must lie in {CHANGE_DIRECTORY}/ and have dataChange = "
                "false, so that no reader takes its rows for rows of the table.",
            )
        if path in seen:
            raise attempt.error(DuplicateActions, f"one commit names the change file {path} twice.", path=path)
        seen.add(path)


def _copies_rows(attempt: Attempt) -> bool:
    """Return whether files are both removed and added; another vector of a file shows its own changes."""
    removed = {attempt.canonical(remove) for remove in attempt.removes if remove.data_change}
    added = {attempt.canonical(add) for add in attempt.adds if add.data_change}
    return bool(removed) and not added <= removed
