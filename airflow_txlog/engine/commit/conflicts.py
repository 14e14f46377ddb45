"""The conflict rules: whether a commit that landed first forbids ours. Pure functions in the protocol's order.

`check_winner` applies every rule to one winner, and records why it does not forbid ours. Callers pass winners in
ascending version, each with the attempt rebased over the previous one. Nothing here reads a store.

Two kinds of commit are allowed that the reference implementation refuses; both are proved, never assumed:

* Proved disjoint: partition values or defended statistics of an added file prove that it holds no row that this
  transaction would have read (`_added_file_excluded`).
* Harmless compaction: the winner only moved rows, all from files that this transaction read without a match
  (`is_harmless_compaction`).

Source: delta-spark, ConflictChecker.checkConflicts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN, Attempt, IsolationLevel
from airflow_txlog.engine.commit.content.clustering import CLUSTERING_DOMAIN, clustering_columns, without_bounds
from airflow_txlog.engine.commit.content.info import after_winner
from airflow_txlog.engine.commit.content.met import How, Meeting, operation_name
from airflow_txlog.engine.commit.content.row_tracking import high_water_mark, number_rows
from airflow_txlog.engine.commit.content.validation import check_paths_against_winner
from airflow_txlog.engine.commit.content.watermarks import WATERMARKS
from airflow_txlog.engine.log.actions import Add, Commit, Metadata, Protocol, Remove
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.predicate import FileQuestion
from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.features import (
    HARMLESS_FEATURES,
    check_protocol_writable,
    reader_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.identities import without_marks
from airflow_txlog.engine.table.schema.properties import HARMLESS_PROPERTIES, TableProperties
from airflow_txlog.engine.table.snapshot.files import live_rows, record_count
from airflow_txlog.errors import (
    CommitConflict,
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    ConcurrentTransaction,
    ConcurrentWrite,
    MetadataChanged,
    ProtocolChanged,
    TableReplaced,
)


def check_winner(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt as it must read to follow `winner`, with the reason (`How`) in `Attempt.met`.

    Raises the CommitConflict of the first rule that forbids it, UnsupportedFeature for a protocol that this engine
    cannot write, TableReplaced for a commit of another table, DuplicateActions for a file that both add.
    """
    if attempt.never_rebases:
        raise conflict(ConcurrentWrite, attempt, winner, f"landed first, and {attempt.operation} never rebases")
    attempt = reconcile_protocol(attempt, winner)
    attempt = reconcile_metadata(attempt, winner)
    check_domains(attempt, winner)
    check_application_transactions(attempt, winner)
    check_clustering_winner(attempt, winner)
    if is_harmless_compaction(attempt, winner):
        check_deleted_against_deleted(attempt, winner)
        check_paths_against_winner(attempt, winner)
        return _having_met(rebase(after_harmless_compaction(attempt, winner), winner), winner, How.MOVED_ROWS_ONLY)
    how = check_added_files(attempt, winner)
    check_deleted_against_read(attempt, winner)
    check_deleted_against_deleted(attempt, winner)
    check_paths_against_winner(attempt, winner)
    return _having_met(rebase(attempt, winner), winner, how)


def _having_met(attempt: Attempt, winner: Commit, how: How) -> Attempt:
    met = Meeting(
        version=winner.version,
        how=how,
        operation=operation_name(winner.info),
        added_files=len(winner.adds),
        removed_files=len(winner.removes),
    )
    return replace(attempt, met=attempt.met.and_(met))


def check_domains(attempt: Attempt, winner: Commit) -> None:
    """Raise ConcurrentTransaction if both commits write one domain, or if the winner restored under our watermark.

    They may both write the row-tracking domain, which `rebase` reconciles.
    """
    ours = {domain.domain for domain in attempt.domains} - {ROW_TRACKING_DOMAIN}
    marks = sorted(name for name in ours if name.startswith(WATERMARKS))
    if marks and (winner.info or {}).get("operation") == "RESTORE":
        # The rows up to the watermark that this commit moves may be gone.
        what = f'restored an earlier version, and this transaction moves the watermark "{marks[0]}"'
        raise conflict(ConcurrentTransaction, attempt, winner, what, domain=marks[0])
    for domain in winner.domains:
        if domain.domain in ours:
            what = f'wrote the domain "{domain.domain}", which this transaction writes too'
            raise conflict(ConcurrentTransaction, attempt, winner, what, domain=domain.domain)


def check_application_transactions(attempt: Attempt, winner: Commit) -> None:
    """Raise ConcurrentTransaction if the winner moved an application transaction that we read.

    It has most likely done our work.
    """
    for transaction in winner.transactions:
        if transaction.app_id in attempt.reads.application_ids:
            what = (
                f"set the application transaction {transaction.app_id!r} to {transaction.version}, which this "
                "transaction had read: either the work is done, or two copies of it are running"
            )
            raise conflict(ConcurrentTransaction, attempt, winner, what, app_id=transaction.app_id)


def check_clustering_winner(attempt: Attempt, winner: Commit) -> None:
    """Raise MetadataChanged if the winner clustered the table by a column that our files have no statistics of."""
    for add, path in without_bounds(attempt, clustering_columns(winner.domains, attempt.table)):
        what = f"clustered the table by {'.'.join(path)}, of which {add.path}, added here, has no statistics"
        raise conflict(MetadataChanged, attempt, winner, what, domain=CLUSTERING_DOMAIN)


def check_added_files(attempt: Attempt, winner: Commit) -> How:
    """Return why the winner added no row that this transaction would have read. Raises ConcurrentAppend if it may have.

    At WriteSerializable a blind append of the winner is ordered after us, unless we change the metadata.
    """
    if not (winner.adds or winner.removes):
        return How.NO_DATA
    if attempt.is_blind_append:
        return How.READ_NOTHING
    if not winner.adds or attempt.isolation is IsolationLevel.SNAPSHOT:
        return How.DISJOINT_FILES
    ordered_after_us = (
        attempt.isolation is IsolationLevel.WRITE_SERIALIZABLE
        and (winner.info or {}).get("isBlindAppend") is True
        and attempt.new_metadata is None
    )
    if ordered_after_us:
        return How.BLIND_APPEND
    removed = {attempt.canonical(remove) for remove in winner.removes}
    found: set[How] = set()
    for add in winner.adds:
        excluded = _added_file_excluded(attempt, add)
        if excluded is None:
            # A commit that removes and adds the same file changes its deleted rows.
            did = "deleted other rows of" if attempt.canonical(add) in removed else "added"
            what = f"{did} {file_text(attempt, add)}, which may hold rows that this transaction read"
            hint, facts = _partition_hint(attempt), file_facts(attempt, add)
            raise conflict(ConcurrentAppend, attempt, winner, what, hint, **facts)
        found.add(excluded)
    # The weakest of the proofs.
    return How.EXCLUDED_BY_STATISTICS if How.EXCLUDED_BY_STATISTICS in found else found.pop()


def _added_file_excluded(attempt: Attempt, add: Add) -> How | None:
    """Return what proves that the file has no row that this transaction would have read; None if nothing does."""
    reads = attempt.reads
    if reads.whole_table:
        return None
    if not reads.predicates:
        # Nothing was registered, so nothing can be proved. The reference implementation then compares partitions only,
        # of which an unpartitioned table has one.
        return How.DISJOINT_FILES if attempt.partition_columns else None
    file, by_statistics = adds_to_table([add]), False
    for predicate in reads.predicates:
        question = FileQuestion(predicate, attempt.schema, attempt.partition_columns, attempt.trust_statistics)
        if question.by_partitions(file)[0].as_py():
            if not question.columns or question.by_statistics(file)[0].as_py():
                return None
            by_statistics = True
    return How.EXCLUDED_BY_STATISTICS if by_statistics else How.DISJOINT_PARTITIONS


def check_deleted_against_read(attempt: Attempt, winner: Commit) -> None:
    """Raise ConcurrentDeleteRead if the winner removed a file that we read.

    This holds at any isolation level, and even if the rows of the file only moved.
    """
    for remove in winner.removes:
        if attempt.reads.whole_table or attempt.canonical(remove) in attempt.reads.paths:
            what = f"removed {file_text(attempt, remove)}, which this transaction read"
            raise conflict(ConcurrentDeleteRead, attempt, winner, what, **file_facts(attempt, remove))


def check_deleted_against_deleted(attempt: Attempt, winner: Commit) -> None:
    """Raise ConcurrentDeleteDelete if both commits remove one file: both would count its rows."""
    ours = {attempt.canonical(remove) for remove in attempt.removes}
    for remove in winner.removes:
        if attempt.canonical(remove) in ours:
            what = f"removed {file_text(attempt, remove)}, which this transaction removes too"
            raise conflict(ConcurrentDeleteDelete, attempt, winner, what, **file_facts(attempt, remove))


def _partition_hint(attempt: Attempt) -> str:
    """Return advice that keeps work on other partitions from colliding; empty if nothing would help."""
    predicates = attempt.reads.predicates
    if not attempt.partition_columns or any(predicate.columns is None for predicate in predicates):
        return ""
    named = frozenset[str]().union(*(predicate.columns or frozenset() for predicate in predicates))
    if named & frozenset(attempt.partition_columns):
        return ""
    column = attempt.partition_columns[0]
    bound = f"{column} = :{column}"
    return (
        f"The table is partitioned by {', '.join(attempt.partition_columns)}, and the condition of this "
        f'{attempt.operation} names none of them. Add what bounds it, such as partition_predicate="{bound}", and work '
        "on other partitions will not collide."
    )


def reconcile_protocol(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt under the winner's protocol.

    Raises UnsupportedFeature if the engine cannot write that protocol, else ProtocolChanged if both change the
    protocol, or the winner removed a feature or added one that our staged files may not satisfy.
    """
    if winner.protocol is None:
        return attempt
    check_protocol_writable(winner.protocol, attempt.table)
    if attempt.new_protocol is not None:
        what = "created the table" if attempt.read_version < 0 else "changed the protocol, as this transaction does"
        raise conflict(ProtocolChanged, attempt, winner, what)
    if attempt.protocol is not None:
        removed = _features(attempt.protocol) - _features(winner.protocol)
        added = _features(winner.protocol) - _features(attempt.protocol) - HARMLESS_FEATURES
        if removed:
            raise conflict(ProtocolChanged, attempt, winner, f"took the features {sorted(removed)} from the table")
        if added - _unused_legacy_features(winner.protocol):
            raise conflict(ProtocolChanged, attempt, winner, f"added the features {sorted(added)} to the table")
    return replace(attempt, protocol=winner.protocol)


def _features(protocol: Protocol) -> frozenset[str]:
    return reader_features(protocol) | writer_features(protocol)


def _unused_legacy_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that come with a version number alone: switching them on is a metadata change."""
    return writer_features(protocol) if protocol.min_writer_version < 7 else frozenset()


def reconcile_metadata(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt under the winner's metadata. Raises TableReplaced, or MetadataChanged for a harmful change."""
    metadata = winner.metadata
    if metadata is None:
        return attempt
    current = attempt.current_metadata
    if current is not None and metadata.id != current.id:
        raise TableReplaced(
            f"{attempt.table} was dropped and created again: version {winner.version} belongs to table {metadata.id}, "
            f"and this transaction read table {current.id}. Nothing was committed. Start from the new table.",
            table=attempt.table,
        )
    if attempt.new_metadata is not None or current is None:
        raise conflict(MetadataChanged, attempt, winner, "changed the metadata, as this transaction does")
    changed = harmful_changes(current, metadata)
    if any(add.deletion_vector for add in attempt.adds) and _stops_deletion_vectors(current, metadata, attempt.table):
        changed.append("property delta.enableDeletionVectors")
    if changed:
        raise conflict(MetadataChanged, attempt, winner, f"changed the table's {', '.join(changed)}")
    return replace(attempt, current_metadata=metadata)


def _stops_deletion_vectors(before: Metadata, after: Metadata, table: str) -> bool:
    was, stays = (TableProperties(each.configuration, table).deletion_vectors for each in (before, after))
    return was and not stays


def harmful_changes(before: Metadata, after: Metadata) -> list[str]:
    """Return, in words, the differences beyond harmless properties; a property that was removed always counts."""
    found = []
    if before.schema_string != after.schema_string and _schema(before) != _schema(after):
        found.append("schema")
    if before.partition_columns != after.partition_columns:
        found.append("partitioning")
    if before.format != after.format:
        found.append("format")
    for name in sorted(before.configuration.keys() | after.configuration.keys()):
        if before.configuration.get(name) == after.configuration.get(name):
            continue
        if name in HARMLESS_PROPERTIES and name in after.configuration:
            continue
        found.append(f"property {name}")
    return found


def _schema(metadata: Metadata) -> object:
    """Return the schema as plain values, without identity high-water marks."""
    text = metadata.schema_string or "null"
    try:
        return without_marks(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # No schema: it is equal only if its text is.
        return text


def is_harmless_compaction(attempt: Attempt, winner: Commit) -> bool:
    """Return whether the winner only moved rows out of files in which we had looked and found nothing.

    Then it counts neither as an append nor as a delete. All its file actions have dataChange = false, we scanned every
    removed file and found no match, and as many rows were added as removed, since any writer may claim dataChange =
    false. An unknown row count makes it False.
    """
    if winner.cdc or winner.metadata or winner.protocol or not winner.removes or attempt.reads.whole_table:
        return False
    actions: list[Add | Remove] = [*winner.adds, *winner.removes]
    if any(action.data_change for action in actions):
        return False
    unmatched = attempt.reads.unmatched
    removed = [live_rows(unmatched.get(attempt.canonical(remove)), remove.deletion_vector) for remove in winner.removes]
    added = [live_rows(_rows_in_file(add), add.deletion_vector) for add in winner.adds]
    if None in removed or None in added:
        return False
    return sum(filter(None, removed)) == sum(filter(None, added))


def after_harmless_compaction(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt with the moved files in place of those that they were moved from."""
    gone = {attempt.canonical(remove) for remove in winner.removes}
    # Physical rows: when a later winner removes the file again, `live_rows` subtracts the deleted ones.
    came = {attempt.canonical(add): _rows_in_file(add) for add in winner.adds}
    reads = attempt.reads
    unmatched = {path: rows for path, rows in reads.unmatched.items() if path not in gone}
    return replace(
        attempt, reads=replace(reads, paths=(reads.paths - gone) | came.keys(), unmatched={**unmatched, **came})
    )


def _rows_in_file(add: Add) -> int | None:
    return record_count(add.stats, add.deletion_vector)


def rebase(attempt: Attempt, winner: Commit) -> Attempt:
    """Return the attempt as it must read to follow a winner that does not conflict.

    Source: protocol, "Row Tracking" and "In-Commit Timestamps"; delta-spark, ConflictChecker.reassignOverlappingRowIds.
    """
    return after_winner(_after_row_ids(attempt, winner), winner)


def _after_row_ids(attempt: Attempt, winner: Commit) -> Attempt:
    if attempt.row_id_high_water is None:
        return attempt
    winners_mark = high_water_mark(winner.domains, attempt.table)
    mark = attempt.row_id_high_water if winners_mark is None else winners_mark
    return number_rows(attempt, mark, winner.version + 1)


C = TypeVar("C", bound=CommitConflict)


def conflict(kind: type[C], attempt: Attempt, winner: Commit, what: str, hint: str = "", **facts: Any) -> C:
    """Return a conflict; `what` continues "version 18 of s3://lake/orders (DELETE) …", `hint` is one more sentence."""
    operation = (winner.info or {}).get("operation")
    who = f"version {winner.version} of {attempt.table}" + (f" ({operation})" if operation else "")
    return kind(
        f"{who} {what}; this transaction read version {attempt.read_version}. "
        f"Nothing of this {attempt.operation} is in the table: read the table again and repeat the operation."
        + (f" {hint}" if hint else ""),
        table=attempt.table,
        read_version=attempt.read_version,
        winning_version=winner.version,
        winning_operation=operation,
        **facts,
    )


def file_facts(attempt: Attempt, action: Add | Remove) -> dict[str, Any]:
    """Return the path and the partition of a file, by the names that the table's readers know."""
    return {"path": action.path, "partition": _partition(attempt, action) or None}


# A partition value may be anything, also a person's name: a log line needs enough of it to recognize the partition.
MAX_VALUE_CHARS = 40


def _cut(value: str | None) -> str | None:
    return value if value is None or len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"


def _partition(attempt: Attempt, action: Add | Remove) -> dict[str, str | None]:
    columns = attempt.partition_columns
    names = dict(zip(partition_keys(attempt.schema, columns), columns, strict=True))
    return {names.get(key, key): value for key, value in (action.partition_values or {}).items()}


def file_text(attempt: Attempt, action: Add | Remove) -> str:
    """Return the file, with its partition if it has one."""
    values = _partition(attempt, action)
    if not values:
        return action.path
    place = "/".join(f"{name}={_cut(value)}" for name, value in values.items())
    return f"{action.path} (partition {place})"
