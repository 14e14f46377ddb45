"""A file that is being written, by itself: what becomes of one that is dropped."""

from __future__ import annotations

import gc
import io
import sys

import pytest

from airflow_txlog.storage.base import Output


def test_one_that_is_dropped_where_nothing_can_be_asked_of_its_store_makes_no_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the collector runs in the thread of the store's own client."""
    tried, noise = [], []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)

    def refuse() -> None:
        tried.append(True)
        raise NotImplementedError

    output = Output(io.BytesIO(), lambda: None, refuse)
    del output
    gc.collect()
    assert (tried, noise) == ([True], [])
