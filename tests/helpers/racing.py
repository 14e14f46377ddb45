"""Commits that land while a job runs: the one place that says how a test makes a job lose a race."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from typing import Any

import pytest

from airflow_txlog.engine import Transaction
from airflow_txlog.jobs.resume import attempts
from airflow_txlog.storage.base import Output
from airflow_txlog.storage.local import LocalStore


class winning:
    """A job's log that calls `land` when a line with `at` comes by, at most `times` times; `lines` keeps them all.

    Lines to wait for: "to delete in", "to update" (found, not staged), "staged", "new file", "rewritten as" (staged,
    not committed).
    """

    def __init__(self, at: str, land: Callable[[], object], times: int = 1) -> None:
        self.lines: list[str] = []
        self._at, self._land, self._left = at, land, times

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if self._at in line and self._left:
            self._left -= 1
            self._land()


@contextmanager
def before_commit(action: Callable[[Transaction], object], times: int = 1) -> Iterator[None]:
    """The first `times` attempts to commit, by any job, find that `action` came before: all is staged, no more."""
    commit, left = attempts.commit_change, [times]

    def late(context: Any, tx: Transaction, *rest: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            action(tx)
        return commit(context, tx, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "commit_change", late)
        yield


class Killed(BaseException):
    """What a worker died of: no code of ours catches it."""


@contextmanager
def killed_before_commit(number: int = 1) -> Iterator[None]:
    """A job inside is killed when everything is staged and nothing is committed; or before its commit of this number,
    where it makes several."""
    left = [number]

    def killed(tx: Transaction) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    with before_commit(killed, times=number), pytest.raises(Killed):
        yield


CHANGING = ("put_if_absent", "put", "open_new", "put_new", "delete", "delete_empty_directory")


class Death:
    """Ends the process at the `at`-th change of a store: before it, or after it."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._at, self._after, self._calls, self.is_dead = at, after, 0, False

    def call(self, really: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if self.is_dead:
            raise Killed
        self._calls += 1
        if self._calls < self._at:
            return really(*args, **more)
        if self._after:
            really(*args, **more)
        self.is_dead = True
        raise Killed


def _collect(output: Output, really: Callable[[Output], None]) -> None:
    """Delete the file of an output that nobody refers to, unless the process dies of it: `__del__` may not raise."""
    with suppress(Killed):
        really(output)


def killed(do: Callable[[], object], at: int, *, after: bool) -> bool:
    """Do it until it is killed there. Return whether it was."""
    death = Death(at, after=after)
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            really = getattr(LocalStore, name)
            patch.setattr(LocalStore, name, lambda *a, really=really, **k: death.call(really, *a, **k))
        patch.setattr(Output, "__del__", partialmethod(_collect, really=Output.__del__))
        with suppress(Killed):
            do()
    return death.is_dead
