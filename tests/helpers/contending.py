"""Processes that put the same keys at the same moments, and which of them won each."""

from __future__ import annotations

from typing import Any

from airflow_txlog.storage import StoreReference
from tests.helpers.forks import FORKS

PROCESSES = 8


def _contend(reference: StoreReference, keys: list[str], number: int, barrier: Any, wins: Any) -> None:
    store = reference.open()
    won = []
    for key in keys:
        barrier.wait(300)
        if store.put_if_absent(key, b"%d" % number):
            won.append(key)
    wins.put((number, won))


def winners(reference: StoreReference, keys: list[str]) -> dict[str, list[int]]:
    """The processes that were each answered "this call made it", by key."""
    barrier, wins = FORKS.Barrier(PROCESSES), FORKS.Queue()
    processes = [
        FORKS.Process(target=_contend, args=(reference, keys, number, barrier, wins)) for number in range(PROCESSES)
    ]
    for each in processes:
        each.start()
    found: dict[str, list[int]] = {key: [] for key in keys}
    for _ in processes:
        number, won = wins.get(timeout=400)
        for key in won:
            found[key].append(number)
    for each in processes:
        each.join(300)
    return found
