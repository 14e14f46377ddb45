"""A file that is being written, by itself: what becomes of one that is dropped."""

from __future__ import annotations

import gc
import io
import os
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
    gc.collect(1)
    assert (tried, noise) == ([True], [])


def test_a_forked_child_leaves_the_file_of_its_parent_alone() -> None:
    """Its copy of the file is dropped when the child ends: an upload that it aborted would be its parent's."""
    ended = os.pipe()

    def end() -> None:
        os.write(ended[1], b"x")

    output = Output(io.BytesIO(), lambda: None, end)
    child = os.fork()
    if not child:
        try:
            output.discard()
            del output
            gc.collect(1)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    output.discard()
    os.close(ended[1])
    assert os.read(ended[0], 9) == b"x", "one end, the parent's"
    os.close(ended[0])
