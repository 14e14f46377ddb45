"""Work of Arrow, done in a second thread while the first uses what was done before."""

from __future__ import annotations

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
