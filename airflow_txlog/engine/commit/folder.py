"""The folder of a new table: whether files lie there that belong to no table, and would become this one's orphans.

A VACUUM deletes every visible file of the folder that no commit names. So a table is not made beside files of others,
unless its creator asks for it; then the table's property SHARED_FOLDER keeps a VACUUM from taking them. The invariant:
what an earlier try of the same creation has left never counts as another's, or a retry of it could not succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from airflow_txlog.clock import Clock
from airflow_txlog.datafiles.staged_names import is_staged_name
from airflow_txlog.engine.log.visibility import Visibility
from airflow_txlog.errors import FolderNotEmpty
from airflow_txlog.locations import PRIVATE_PREFIX
from airflow_txlog.storage.base import Store

_EXAMPLES = 3
# A try may stage files and die. Its retry comes within days; what is older, another VACUUM would call an orphan too.
_LEFTOVER_MS = 7 * 24 * 3_600_000


def holds_files_of_others(
    store: Store, partition_columns: Iterable[str], clock: Clock, *, allow_non_empty: bool
) -> bool:
    """Return whether the folder holds visible files that no try of ours has staged. One request where it is empty.

    Raises FolderNotEmpty, which names some of them, unless `allow_non_empty`.
    """
    found = list(islice(_files_of_others(store, partition_columns, clock.now_ms()), _EXAMPLES + 1))
    if found and not allow_non_empty:
        more = ", …" if len(found) > _EXAMPLES else ""
        raise FolderNotEmpty(
            f"FolderNotEmpty: no table can be created at {store.root}: the folder holds files that belong to no table "
            f"({', '.join(found[:_EXAMPLES])}{more}), and a VACUUM of the new table would delete them. Nothing was "
            "staged. Choose an empty folder, or pass allow_non_empty=True to create the table beside them.",
            table=store.root,
            examples=found[:_EXAMPLES],
        )
    return bool(found)


def _files_of_others(store: Store, partition_columns: Iterable[str], now_ms: int) -> Iterator[str]:
    visibility = Visibility(partition_columns)
    unreadable: list[str] = []
    for info in store.walk(unreadable.append, lazily=True):
        is_leftover = is_staged_name(info.path) and info.modified_ms > now_ms - _LEFTOVER_MS
        if visibility.is_visible(info.path) and not is_leftover and not info.path.startswith(PRIVATE_PREFIX):
            # A name that is not UTF-8 must not break the log that shows it.
            yield info.path.encode("utf-8", "backslashreplace").decode()
    yield from (f"{path}/" for path in unreadable if visibility.is_visible(path))
