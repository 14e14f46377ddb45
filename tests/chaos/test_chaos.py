"""Chaos for most of a minute on each kind of store; the thirty minutes that docs/stores.md states are run by hand."""

from __future__ import annotations

import os

import pytest

from tests.chaos.__main__ import run
from tests.helpers import s3
from tests.helpers.depth import by_hand, depth

SECONDS = depth(25, 25, 60)


@pytest.mark.spark
@pytest.mark.long("a minute, with nine processes, one with a Spark of its own")
@pytest.mark.alone("the processes must get equal shares of the cores")
@pytest.mark.parametrize("store", [pytest.param("file", marks=by_hand("the same on a disk")), "s3"])
def test_no_commit_is_lost_doubled_or_out_of_order_when_processes_are_killed(store: str) -> None:
    if store == "s3":
        s3.options()
    figures, found = run(store, writers=8, seconds=SECONDS, seed=os.getpid())
    assert (found.problems, found.lost, found.duplicated, found.unserializable) == ([], 0, 0, 0), figures
    # Of the busiest process to the idlest: none starves.
    assert found.max_over_min <= 3, figures
