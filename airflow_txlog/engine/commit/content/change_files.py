"""Files of change rows in a commit: when they may be there, when they must be, and what they are called.

In a table with `delta.enableChangeDataFeed` a reader learns which rows a commit changed from its `cdc` actions where it
has any, and derives it from added and removed files where it has none. The invariant: a commit either records all its
changes in such files, or none of its files holds a row that was there before.
Source: protocol, "Add CDC File", "Change Data Files" and "Writer Requirements for AddCDCFile".
"""

from __future__ import annotations

from airflow_txlog.datafiles.change_rows import CHANGE_DIRECTORY
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.errors import DuplicateActions, InvalidCommit, SchemaMismatch

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
