"""The folder of a table, and delta-spark for the tests here: one child process for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.delta_spark import DeltaSpark, jars, running


@pytest.fixture(scope="session")
def delta() -> Iterator[DeltaSpark]:
    """delta-spark at work."""
    if not jars():
        pytest.skip("delta-spark's jars are not here: run tools/ensure_delta_spark.sh, or set TXLOG_DELTA_JARS")
    with running() as child:
        yield child


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The folder of a table."""
    return str(tmp_path / "t")
