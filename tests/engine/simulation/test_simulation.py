"""Schedules of concurrent actors, drawn from seeds, each judged by a naive model: see `schedule` and `checker`.

    TXLOG_SIMULATION_SEED=1234 pytest tests/engine/simulation

replays one seed.
"""

from __future__ import annotations

import os

import pytest

from tests.engine.simulation.schedule import play
from tests.helpers.depth import depth

SCHEDULES = depth(40, 800, 1500)
BLOCKS = depth(1, 5, 8)
ONE_SEED = os.environ.get("TXLOG_SIMULATION_SEED")

pytestmark = pytest.mark.seeded


@pytest.mark.skipif(ONE_SEED is not None, reason="one seed is replayed")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_commits_equals_a_serial_order_and_nothing_acknowledged_is_lost(block: int) -> None:
    for seed in range(block * SCHEDULES // BLOCKS, (block + 1) * SCHEDULES // BLOCKS):
        play(seed)


@pytest.mark.skipif(ONE_SEED is None, reason="TXLOG_SIMULATION_SEED names the seed to replay")
def test_the_one_seed() -> None:
    play(int(ONE_SEED or 0))


@pytest.mark.skipif(ONE_SEED is not None, reason="one seed is replayed")
def test_a_seed_replays_exactly() -> None:
    for seed in range(depth(3, 20)):
        assert play(seed).commits == play(seed).commits
