"""The harmless compaction: a winner that only moved rows out of files in which we had looked and found nothing.

Its added files hold rows that we have read and that did not concern us, so nothing that we decided changes. This is
the second of our two refinements of the reference implementation, which refuses such a commit.

dataChange = false is what the winner claims, and any writer may set it: the row counts must balance besides.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.log.actions import Add, Commit, Remove
from airflow_txlog.engine.log.paths import canonical_path
from airflow_txlog.engine.table.snapshot.files import live_rows, record_count


def is_harmless_compaction(attempt: Attempt, winner: Commit) -> bool:
    """Whether the winner counts neither as an append nor as a delete for us.

    True only if every file action has dataChange = false; there is no change file, metadata or protocol; we scanned
    every removed file and found no row that the operation is about; and as many rows were added as removed. An unknown
    row count, or a read of the whole table, makes it False.
    """
    if winner.cdc or winner.metadata or winner.protocol or not winner.removes or attempt.reads.whole_table:
        return False
    actions: list[Add | Remove] = [*winner.adds, *winner.removes]
    if any(action.data_change for action in actions):
        return False
    unmatched = attempt.reads.unmatched
    removed = [live_rows(unmatched.get(_path(remove, attempt)), remove.deletion_vector) for remove in winner.removes]
    added = [live_rows(_rows_in_file(add), add.deletion_vector) for add in winner.adds]
    if None in removed or None in added:
        return False
    return sum(filter(None, removed)) == sum(filter(None, added))


def after_harmless_compaction(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt with the moved files in the place of those that they were moved from."""
    gone = {_path(remove, attempt) for remove in winner.removes}
    # As the files have them: what a deletion vector deletes is subtracted where a winner removes the file again.
    came = {_path(add, attempt): _rows_in_file(add) for add in winner.adds}
    reads = attempt.reads
    unmatched = {path: rows for path, rows in reads.unmatched.items() if path not in gone}
    return replace(
        attempt,
        reads=replace(reads, paths=(reads.paths - gone) | came.keys(), unmatched={**unmatched, **came}),
    )


def _rows_in_file(add: Add) -> int | None:
    return record_count(add.stats, add.deletion_vector)


def _path(action: Add | Remove, attempt: Attempt) -> str:
    return canonical_path(action.path, attempt.table)
