"""What the tests of jobs share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.helpers.jobs import tried_without_spark


@pytest.fixture(params=["with Spark", "tried without"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test twice: with Spark, and as the runners do it, where a job gets Spark when it needs it."""
    with tried_without_spark() if request.param == "tried without" else contextlib.nullcontext():
        yield
