"""What a commit must satisfy in itself: in its own actions, and beside the files that are live.

Pure functions, run once before the first put, and `check_paths_against_winner` before each later one: a refusal here
means that nothing was written.
Source: protocol, "Add File and Remove File"; delta-spark, OptimisticTransaction.prepareCommit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_txlog.datafiles.change_rows import CHANGE_DIRECTORY
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.metadata import lowered_facts
from airflow_txlog.engine.log.actions import Add, Cdc, Commit, Metadata, Remove
from airflow_txlog.engine.log.names import MAX_VERSION
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.schema.column_mapping import (
    MAX_ID_PROPERTY,
    MODE_PROPERTY,
    NO_MAPPING,
    highest_id,
    mapping_error,
    mapping_mode,
    partition_keys,
    table_schema,
)
from airflow_txlog.engine.table.schema.features import check_files_writable, reader_features
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.snapshot.files import (
    file_key,
    file_keys,
    path_of_key,
    record_count,
    stated_count,
)
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import (
    AppendOnlyViolation,
    CorruptTable,
    DuplicateActions,
    InvalidCommit,
    MetadataAbsent,
    PartitionMismatch,
    RowCountMissing,
    SchemaMismatch,
    SetTransactionVersionConflict,
    UnsupportedFeature,
)


def validate(attempt: Attempt) -> None:
    """Raises an InvalidInput error for the first rule that the attempt breaks."""
    _check_metadata(attempt)
    _check_column_mapping(attempt)
    _check_furthest(attempt)
    check_change_names(attempt.new_metadata, attempt.table)
    _check_duplicates(attempt)
    _check_vectors(attempt)
    _check_transactions(attempt)
    _check_append_only(attempt)
    _check_partitions(attempt)
    check_change_files(attempt)


def check_has_next_version(snapshot: Snapshot) -> None:
    """Raises CorruptTable where no version can follow: a file of the log has the last number that there is."""
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
        raise MetadataAbsent(
            f"{attempt.table}: the first commit of a table must hold its metadata, and this one holds none. "
            "Create the table with Table.create.",
            table=attempt.table,
        )
    if attempt.new_protocol is None:
        raise InvalidCommit(
            f"{attempt.table}: the first commit of a table must hold its protocol, and this one holds none.",
            table=attempt.table,
        )


def _check_column_mapping(attempt: Attempt) -> None:
    """New metadata keeps what files and statistics were written under: the mode, names and ids that are never reused.

    Source: protocol, "Writer Requirements for Column Mapping".
    """
    metadata, before = attempt.new_metadata, attempt.current_metadata
    if metadata is None:
        return
    mode = mapping_mode(metadata.configuration, attempt.table)
    found = None
    if before is not None and mode != mapping_mode(before.configuration, attempt.table):
        found = f"{MODE_PROPERTY} would change to {mode!r}, which this engine does not do to a table that exists"
    elif mode != NO_MAPPING:
        schema = parse_schema(metadata.schema_string or "")
        found = mapping_error(schema)
        least = max(highest_id(schema), 0 if before is None else _highest_id_ever(before))
        if found is None and _highest_id_ever(metadata) < least:
            last = metadata.configuration.get(MAX_ID_PROPERTY)
            found = f"{MAX_ID_PROPERTY} is {last!r}, and must be a number that no column has gone beyond"
    if found is not None:
        raise InvalidCommit(
            f"{attempt.table}: {found}. Nothing was committed, because values would turn up under another column.",
            table=attempt.table,
        )


def _check_furthest(attempt: Attempt) -> None:
    """Raise InvalidCommit if new metadata lowers what may only grow."""
    metadata, before = attempt.new_metadata, attempt.current_metadata
    lowered = [] if metadata is None or before is None else lowered_facts(before, metadata, attempt.table)
    if lowered:
        raise InvalidCommit(
            f"{attempt.table}: the new metadata of this {attempt.operation} lowers {', '.join(lowered)}, which may "
            "only grow: numbers that were handed out would be handed out again. Nothing was committed. Keep the "
            "present values.",
            table=attempt.table,
        )


def _highest_id_ever(metadata: Metadata) -> int:
    """The highest id that was ever given to a column; -1 where the metadata does not say it."""
    text = metadata.configuration.get(MAX_ID_PROPERTY, "")
    return int(text) if text.isdecimal() and text.isascii() else -1


def _check_duplicates(attempt: Attempt) -> None:
    seen: set[str] = set()
    actions: list[Add | Remove] = [*attempt.adds, *attempt.removes]
    for action in actions:
        key = file_key(action.path, action.deletion_vector, attempt.table)
        if key in seen:
            path = path_of_key(key)
            raise DuplicateActions(
                f"{attempt.table}: one commit names {path} twice (with one and the same deletion vector).",
                table=attempt.table,
                path=path,
            )
        seen.add(key)


def _check_vectors(attempt: Attempt) -> None:
    """A file with a deletion vector says how many rows it has, in a table whose readers know what a vector is.

    Source: protocol, "Writer Requirements for Deletion Vectors".
    """
    with_vectors = [add for add in attempt.adds if add.deletion_vector is not None]
    if not with_vectors:
        return
    protocol = attempt.new_protocol or attempt.protocol
    if protocol is None or "deletionVectors" not in reader_features(protocol):
        raise InvalidCommit(
            f"{attempt.table}: {with_vectors[0].path} has a deletion vector, and the table's protocol does not list "
            "deletionVectors: other readers would bring the deleted rows back. Add the feature first.",
            table=attempt.table,
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
            raise InvalidCommit(
                f"{attempt.table}: the deletion vector of {add.path} deletes {add.deletion_vector.cardinality} rows, "
                f"and the file has {records}. Nothing was committed.",
                table=attempt.table,
                path=add.path,
            )
    paths = Counter(canonical_path(add.path, attempt.table) for add in attempt.adds)
    path, count = paths.most_common(1)[0]
    if count > 1:
        raise DuplicateActions(
            f"{attempt.table}: one commit adds {path} with {count} deletion vectors; a file has one at a time.",
            table=attempt.table,
            path=path,
        )


def check_paths_are_free(attempt: Attempt, snapshot: Snapshot | None) -> None:
    """Raises DuplicateActions where a file is added at the path of a live file that the commit does not remove.

    A path is live once. Without a deletion vector the new action would replace the old one, and with another vector
    both would count. The same file with the same vector may come again with `dataChange` false: that says that its rows
    are the same, and is how statistics and tags are replaced. Source: protocol, "Action Reconciliation".
    """
    if snapshot is None or not attempt.adds:
        return
    live = snapshot.state.files.at_paths(set(attempt.added_paths))
    if live.num_rows:
        keys = file_keys(live, attempt.table).to_pylist()
        _check_may_come(attempt, keys, f"is live at version {snapshot.version}")


def check_new_files(attempt: Attempt, snapshot: Snapshot | None) -> None:
    """Raise UnsupportedFeature if the commit adds new data files that this engine cannot have written as it must.

    A live file that comes again, and one that a RESTORE brings back, was written by an engine that can.
    """
    protocol = attempt.new_protocol or attempt.protocol
    if protocol is None or not attempt.adds or attempt.operation == "RESTORE":
        return
    metadata = attempt.new_metadata
    schema = attempt.schema if metadata is None else table_schema(metadata, attempt.table)
    columns = attempt.partition_columns if metadata is None else metadata.partition_columns
    try:
        check_files_writable(protocol, schema, columns, attempt.table)
    except UnsupportedFeature:
        paths = set(attempt.added_paths)
        if snapshot is None or snapshot.state.files.at_paths(paths).num_rows < len(paths):
            raise


def check_paths_against_winner(attempt: Attempt, winner: Commit) -> None:
    """As `check_paths_are_free`, against a commit that landed first. Not retryable: the file there is another's."""
    if not attempt.adds:
        return
    keys = [
        file_key(add.path, add.deletion_vector, attempt.table)
        for add in winner.adds
        if canonical_path(add.path, attempt.table) in attempt.added_paths
    ]
    if keys:
        _check_may_come(attempt, keys, f"was added by version {winner.version}, which landed first", winner.version)


def _check_may_come(attempt: Attempt, live: Sequence[str], what: str, version: int | None = None) -> None:
    """Raises DuplicateActions for the first of these live files, at paths that are added, that must leave first."""
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
            raise SetTransactionVersionConflict(
                f"{attempt.table}: one commit sets the application transaction {transaction.app_id!r} to {known} and "
                f"to {transaction.version}.",
                table=attempt.table,
                app_id=transaction.app_id,
            )


def _check_append_only(attempt: Attempt) -> None:
    metadata = attempt.new_metadata or attempt.current_metadata
    if metadata is None or not TableProperties(metadata.configuration, attempt.table).append_only:
        return
    for remove in attempt.removes:
        if remove.data_change:
            raise AppendOnlyViolation(
                f"{attempt.table} is append-only (delta.appendOnly = true), and this {attempt.operation} would remove "
                f"rows with {remove.path}. Unset the property first, if rows may go.",
                table=attempt.table,
                path=remove.path,
            )


def _check_partitions(attempt: Attempt) -> None:
    metadata = attempt.new_metadata
    schema = attempt.schema if metadata is None else table_schema(metadata, attempt.table)
    columns = attempt.partition_columns if metadata is None else metadata.partition_columns
    expected = set(partition_keys(schema, columns))
    files: list[Add | Cdc] = [*attempt.adds, *attempt.cdc]
    for file in files:
        if set(file.partition_values) != expected:
            raise PartitionMismatch(
                f"{attempt.table} is partitioned by {sorted(expected)}, and {file.path} has partition values for "
                f"{sorted(file.partition_values)}.",
                table=attempt.table,
                partition=dict(file.partition_values),
            )


# What a reader of changes adds to the table's columns: protocol, "Change Data Files".
RESERVED_NAMES = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})

# Operations of which a new file holds rows that were there before: what changed cannot be derived from whole files.
_COPYING = frozenset({"DELETE", "UPDATE", "MERGE"})


def check_change_names(metadata: Metadata | None, table: str) -> None:
    """Raises SchemaMismatch where new metadata has the feed on beside a column that a reader of it would lose."""
    if metadata is None or not TableProperties(metadata.configuration, table).change_data_feed:
        return
    taken = [name for name in parse_schema(metadata.schema_string or "").names if name.lower() in RESERVED_NAMES]
    if taken:
        raise SchemaMismatch(
            f"{table}: the columns {taken} bear names of the change data feed ({sorted(RESERVED_NAMES)}), "
            "which delta.enableChangeDataFeed = true would switch on. Rename them, or leave the feed off.",
            table=table,
            columns=taken,
        )


def check_change_files(attempt: Attempt) -> None:
    """Raises InvalidCommit, or DuplicateActions, where the change files are not what the protocol lets them be."""
    if attempt.cdc:
        _check_allowed(attempt)
    elif _is_on(attempt) and attempt.operation in _COPYING and _copies_rows(attempt):
        raise InvalidCommit(
            f"{attempt.table} has a change data feed (delta.enableChangeDataFeed = true), and this {attempt.operation} "
            "replaces files without saying which rows changed: readers of the feed would see every row of them. Add "
            "its change rows with add_changes. Nothing was committed.",
            table=attempt.table,
        )


def _check_allowed(attempt: Attempt) -> None:
    if not _is_on(attempt):
        raise InvalidCommit(
            f"{attempt.table} has no change data feed (delta.enableChangeDataFeed), and this commit brings "
            f"{len(attempt.cdc)} files of change rows. Leave them out.",
            table=attempt.table,
        )
    seen: set[str] = set()
    for change in attempt.cdc:
        path = canonical_path(change.path, attempt.table)
        if change.data_change or not path.startswith(f"{CHANGE_DIRECTORY}/"):
            raise InvalidCommit(
                f"{attempt.table}: the change file {change.path} must lie in {CHANGE_DIRECTORY}/ and have dataChange = "
                "false, so that no reader takes its rows for rows of the table.",
                table=attempt.table,
            )
        if path in seen:
            raise DuplicateActions(
                f"{attempt.table}: one commit names the change file {path} twice.", table=attempt.table, path=path
            )
        seen.add(path)


def _is_on(attempt: Attempt) -> bool:
    metadata = attempt.new_metadata or attempt.current_metadata
    return metadata is not None and TableProperties(metadata.configuration, attempt.table).change_data_feed


def _copies_rows(attempt: Attempt) -> bool:
    """Whether files go and files that were not there come; another vector of a file shows its own changes."""
    removed = {canonical_path(remove.path, attempt.table) for remove in attempt.removes if remove.data_change}
    added = {canonical_path(add.path, attempt.table) for add in attempt.adds if add.data_change}
    return bool(removed) and not added <= removed
