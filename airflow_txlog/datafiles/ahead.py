"""Work of Arrow, done in a second thread while the first uses what was done before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], most: int = 1, drop: Callable[[T], None] | None = None) -> Generator[T]:
    """Yield the same items, of which a second thread makes the next `most` in advance. Its errors are raised here.

    `drop` gets the items that were made and are not yielded, because the caller takes no more or was interrupted.
    """
    done = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="txlog-ahead")
    try:
        coming = deque(pool.submit(next, items, done) for _ in range(most))
        # An item stays among those that are coming while it is waited for: the wait may be interrupted.
        while (item := coming[0].result()) is not done:
            coming.append(pool.submit(next, items, done))
            coming.popleft()
            yield item  # type: ignore[misc]
    finally:
        # The item in work is awaited: its source may be closed next.
        pool.shutdown(cancel_futures=True)
        for made in coming if drop is not None else ():
            if not made.cancelled() and made.exception() is None and made.result() is not done:
                drop(made.result())  # type: ignore[arg-type, misc]
