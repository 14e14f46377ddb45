"""Second threads of a task: work of Arrow that one does in advance, and whether it would have a core."""

from __future__ import annotations

import contextlib
import threading
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


class _AtWork:
    """The tasks that threads of this process run now; a worker of Spark counts none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tasks = 0
        self.cores = 1


_at_work = _AtWork()


@contextlib.contextmanager
def at_work(cores: int) -> Iterator[None]:
    """Count a task while the block runs. `cores`: how many this process may keep busy."""
    with _at_work.lock:
        _at_work.tasks, _at_work.cores = _at_work.tasks + 1, cores
    try:
        yield
    finally:
        with _at_work.lock:
            _at_work.tasks -= 1


def has_idle_core() -> bool:
    """Return whether there are more cores than tasks at work, so that a second thread of one takes turns with none."""
    return _at_work.tasks < _at_work.cores
