"""The standalone cluster of these tests: one for each process of pytest that runs any of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_txlog.storage import credentials
from tests.helpers import s3
from tests.helpers.depth import LONG
from tools.standalone_cluster import StandaloneCluster

CONNECTION = "lake-of-the-tests"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    # Of the keys of a store only the executors have any of their own.
    folder, keys = tmp_path_factory.mktemp("cluster"), s3.environment()
    with StandaloneCluster(folder, workers=2 if LONG else 1, environment=keys) as started:
        yield started


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> str:
    """The Airflow connection of the tests' server, as the operator's process offers it to its jobs."""
    given = s3.options()
    values = {"access_key": given["key"], "secret_key": given["secret"]}
    held = credentials.Credentials(kind=credentials.AWS, values=values)
    monkeypatch.setitem(credentials._sources, CONNECTION, lambda: held)
    return CONNECTION
