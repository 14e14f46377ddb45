"""Two depths of the tests that draw from seeds: a small part in `make test`, the whole in `make test-long`."""

from __future__ import annotations

import os

# `make test-long` sets it.
LONG = os.environ.get("TXLOG_TEST_LONG") == "1"


def depth(short: int, long: int) -> int:
    """How many seeds or examples a test draws: `short` in `make test`, `long` in `make test-long`."""
    return long if LONG else short
