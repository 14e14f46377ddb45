"""Looking many files up in the store at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_txlog.errors import OutsideTable
from airflow_txlog.storage.base import FileInfo, Store

# Files that one thread looks up before it takes the next: a thread pool's own work for each would be most of the time.
_MOST_AT_ONCE = 64


def look_up(
    store: Store,
    paths: Sequence[str],
    parallelism: int,
    *,
    skip_outside: bool = False,
    on_unreadable: Callable[[str], object] | None = None,
) -> list[FileInfo | None]:
    """What the store says of each path, in their order; None where there is no such file, or the path can be none.

    Raises whatever the store raises at a look that fails. `skip_outside`: None where that is OutsideTable. A path in a
    folder that this user may not enter is passed to `on_unreadable`, where it is given, and is None.
    """
    refused = (ValueError, OutsideTable) if skip_outside else ValueError

    def look(path: str) -> FileInfo | None:
        try:
            return store.stat(path)
        except refused:
            return None  # a place that the store cannot even name
        except PermissionError:
            if on_unreadable is None:
                raise
            on_unreadable(path)
            return None

    size = max(1, min(_MOST_AT_ONCE, len(paths) // (4 * parallelism)))
    slices = [paths[start : start + size] for start in range(0, len(paths), size)]
    with ThreadPoolExecutor(parallelism, thread_name_prefix="txlog-stat") as pool:
        found = pool.map(lambda some: list(map(look, some)), slices)
        return [info for some in found for info in some]
