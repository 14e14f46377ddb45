"""Stores whose tables are worked on with other thresholds than the usual ones."""

from __future__ import annotations

from typing import TypeVar

from airflow_txlog.storage import Store
from airflow_txlog.storage.limits import Limits

S = TypeVar("S", bound=Store)


def limited(store: S, **limits: int) -> S:
    """Return the store, with these limits from now on."""
    store.limits = Limits(**limits)
    return store
