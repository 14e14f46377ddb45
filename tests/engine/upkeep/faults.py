"""A store whose process dies: after so many calls every one raises, and nothing more happens to the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import pytest

from airflow_txlog.storage import Store

# Whether the process dies with the work of its last call done.
WITH_ITS_WORK_DONE = [
    False,
    pytest.param(True, marks=pytest.mark.long("leaves the files that dying before the next call leaves")),
]


class Died(BaseException):
    """The end of the process, which nothing in the code under test may outlive."""


class DyingStore:
    """Passes calls on to `store` until `calls` have been made; the next one dies, with its work done or not.

    `only` counts the calls of one method alone. `error` is raised instead of dying, and by that one call only.
    """

    def __init__(
        self,
        store: Store,
        calls: int,
        *,
        after: bool = False,
        only: str | None = None,
        error: Callable[[str], Exception] | None = None,
    ) -> None:
        self._store = store
        self._left = calls
        self._after = after
        self._only = only
        self._error = error
        self._lock = Lock()
        self.has_died = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self.has_died and self._error is None:
                    raise Died(name)
                if self._only in (None, name):
                    self._left -= 1
                is_last = self._left == -1 and self._only in (None, name)
                self.has_died = self.has_died or is_last
            if not is_last:
                return value(*args, **kwargs)
            if self._after:
                value(*args, **kwargs)
            raise Died(name) if self._error is None else self._error(name)

        return call


@contextmanager
def dying() -> Iterator[None]:
    """A process that may die in here."""
    with suppress(Died):
        yield
