"""Second threads of a task: work of Arrow that one does in advance, and whether it would have a core."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], most: int = 1) -> Generator[T]:
    """Yield the same items, of which a second thread makes the next `most` in advance. Its errors are raised here."""
    done = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="txlog-ahead")
    try:
        coming = deque(pool.submit(next, items, done) for _ in range(most))
        while (item := coming.popleft().result()) is not done:
            coming.append(pool.submit(next, items, done))
            yield item  # type: ignore[misc]
    finally:
        # The item in work is awaited: its source may be closed next.
        pool.shutdown(cancel_futures=True)


# By task: how many cores its process may keep busy. A worker of Spark counts none. Each step on it is atomic, so that a
# process that is forked meanwhile finds no lock held.
_at_work: dict[object, int] = {}


@contextlib.contextmanager
def at_work(cores: int) -> Iterator[None]:
    """Count a task of this process, which may keep `cores` cores busy, while the block runs."""
    task = object()
    _at_work[task] = cores
    try:
        yield
    finally:
        del _at_work[task]


def has_idle_core() -> bool:
    """Return whether this process runs fewer tasks than it has cores, so that a second thread need not take turns."""
    cores = list(_at_work.values())
    return len(cores) < max(cores, default=1)
