"""One Airflow for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.scheduled.deployment import Deployment
from tests.airflow.scheduled.postgres import why_not


# Not for the session: to its end they would parse DAGs again and again.
@pytest.fixture(scope="package")
def airflow() -> Iterator[Deployment]:
    """A scheduler, a dag processor and an API server over PostgreSQL; skips where there is no PostgreSQL."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # Short: the path of PostgreSQL's socket and of others has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="txlog-airflow-"))
    deployment = Deployment(folder)
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.stop()
        assert deployment.processes() == []
        shutil.rmtree(folder)
