"""How much is run: of what draws from seeds a small part in `make test` and a large one in `make test-long`. The rest
of it, and what takes minutes and is like what these run, only with TXLOG_TEST_ALL=1, which goes with `make test-long`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

# `make test-long` sets it.
LONG = os.environ.get("TXLOG_TEST_LONG") == "1"
WHOLE = LONG and os.environ.get("TXLOG_TEST_ALL") == "1"


def depth(short: int, long: int, whole: int | None = None) -> int:
    """How many seeds or examples a test draws: `short` in `make test`, `long` in `make test-long`, `whole` with
    TXLOG_TEST_ALL=1.
    """
    return whole if WHOLE and whole is not None else long if LONG else short


def by_hand(what: str) -> pytest.MarkDecorator:
    """Marks a long test that only TXLOG_TEST_ALL=1 runs."""
    return pytest.mark.skipif(not WHOLE, reason=f"{what}: TXLOG_TEST_ALL=1 runs it")


def in_long(what: str, *cases: Any) -> list[Any]:
    """Return the parameters of cases that `make test-long` alone runs."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long(what)) for case in cases
    ]
