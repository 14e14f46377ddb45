"""Whether a commit that landed first forbids ours: pure functions, one a rule, in the protocol's order.

`check_winner` asks every rule about one winner and answers with the attempt as it must read to follow it. Winners are
asked in ascending version, each against the attempt that the one before it left. Nothing here reads a store.

We let two kinds of commit through that the reference implementation refuses; both are proved, never assumed:

* Proved disjoint: a winner's added file whose partition values or defended statistics prove that it holds
  no row of what this transaction read. (`_added_file_may_matter`)
* Harmless compaction: a winner that only moved rows, out of files in which this transaction had looked and
  found nothing. (`engine/commit/conflicts/compaction.py`)

Source: delta-spark, ConflictChecker.checkConflicts.
"""

from __future__ import annotations

from airflow_txlog.engine.commit.conflicts.compaction import after_harmless_compaction, is_harmless_compaction
from airflow_txlog.engine.commit.conflicts.metadata_change import reconcile_metadata, reconcile_protocol
from airflow_txlog.engine.commit.conflicts.rebase import rebase
from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.clustering import check_clustering_winner
from airflow_txlog.engine.commit.content.isolation import ROW_TRACKING_DOMAIN, IsolationLevel
from airflow_txlog.engine.commit.content.messages import conflict, file_facts, file_text
from airflow_txlog.engine.commit.content.validation import check_paths_against_winner
from airflow_txlog.engine.log.actions import Add, Commit
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.predicate import may_hold_match
from airflow_txlog.errors import (
    ConcurrentAppend,
    ConcurrentDeleteDelete,
    ConcurrentDeleteRead,
    ConcurrentTransaction,
    ConcurrentWrite,
)


def check_winner(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt as it must read to follow `winner`.

    Raises a CommitConflict of the first rule that forbids it; UnsupportedFeature where the winner changed the protocol
    to one that this engine cannot write; TableReplaced where the winner is a commit of another table; DuplicateActions
    where it added a file at a path that this transaction adds too.
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
        return rebase(after_harmless_compaction(attempt, winner), winner)
    check_added_files(attempt, winner)
    check_deleted_against_read(attempt, winner)
    check_deleted_against_deleted(attempt, winner)
    check_paths_against_winner(attempt, winner)
    return rebase(attempt, winner)


def check_domains(attempt: Attempt, winner: Commit) -> None:
    """Two commits must not both write one domain; the row-tracking domain is reconciled by `rebase` instead."""
    ours = {domain.domain for domain in attempt.domains} - {ROW_TRACKING_DOMAIN}
    for domain in winner.domains:
        if domain.domain in ours:
            raise conflict(
                ConcurrentTransaction,
                attempt,
                winner,
                f'wrote the domain "{domain.domain}", which this transaction writes too',
                domain=domain.domain,
            )


def check_application_transactions(attempt: Attempt, winner: Commit) -> None:
    """A winner that moved an application transaction which we read has most likely done our work."""
    for transaction in winner.transactions:
        if transaction.app_id in attempt.reads.application_ids:
            raise conflict(
                ConcurrentTransaction,
                attempt,
                winner,
                f"set the application transaction {transaction.app_id!r} to {transaction.version}, which this "
                "transaction had read: either the work is done, or two copies of it are running",
                app_id=transaction.app_id,
            )


def check_added_files(attempt: Attempt, winner: Commit) -> None:
    """Rows that the winner added must not be rows that we would have read.

    At WriteSerializable a blind append of the winner is ordered after us, unless we change the metadata; at snapshot
    isolation added rows never matter. A blind append of ours read nothing.
    """
    if attempt.is_blind_append or attempt.isolation is IsolationLevel.SNAPSHOT:
        return
    ordered_after_us = (
        attempt.isolation is IsolationLevel.WRITE_SERIALIZABLE
        and (winner.info or {}).get("isBlindAppend") is True
        and attempt.new_metadata is None
    )
    if ordered_after_us:
        return
    removed = {canonical_path(remove.path, attempt.table) for remove in winner.removes}
    for add in winner.adds:
        if _added_file_may_matter(attempt, add):
            # A file that leaves and comes in one commit has other deleted rows than before.
            again = canonical_path(add.path, attempt.table) in removed
            what = "deleted other rows of" if again else "added"
            raise conflict(
                ConcurrentAppend,
                attempt,
                winner,
                f"{what} {file_text(attempt, add)}, which may hold rows that this transaction read",
                hint=_partition_hint(attempt),
                **file_facts(attempt, add),
            )


def _added_file_may_matter(attempt: Attempt, add: Add) -> bool:
    reads = attempt.reads
    if reads.whole_table:
        return True
    if not reads.predicates:
        # Nothing was registered, so nothing can be proved. The reference implementation then compares partitions only,
        # of which an unpartitioned table has one.
        return not attempt.partition_columns
    file = adds_to_table([add])
    for predicate in reads.predicates:
        answer = may_hold_match(
            predicate,
            file,
            attempt.schema,
            list(attempt.partition_columns),
            trust_statistics=attempt.trust_statistics,
        )
        if answer[0].as_py():
            return True
    return False


def check_deleted_against_read(attempt: Attempt, winner: Commit) -> None:
    """No file that we read may leave, whatever the isolation level and whether or not its rows only moved."""
    for remove in winner.removes:
        if attempt.reads.whole_table or canonical_path(remove.path, attempt.table) in attempt.reads.paths:
            raise conflict(
                ConcurrentDeleteRead,
                attempt,
                winner,
                f"removed {file_text(attempt, remove)}, which this transaction read",
                **file_facts(attempt, remove),
            )


def check_deleted_against_deleted(attempt: Attempt, winner: Commit) -> None:
    """One file must not be removed twice: both would count its rows as theirs."""
    ours = {canonical_path(remove.path, attempt.table) for remove in attempt.removes}
    for remove in winner.removes:
        if canonical_path(remove.path, attempt.table) in ours:
            raise conflict(
                ConcurrentDeleteDelete,
                attempt,
                winner,
                f"removed {file_text(attempt, remove)}, which this transaction removes too",
                **file_facts(attempt, remove),
            )


def _partition_hint(attempt: Attempt) -> str:
    """What the author can add so that work on other partitions stops colliding; empty where nothing would help."""
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
