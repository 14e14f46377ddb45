"""The catalogs that one suite holds for: a server of each, and a database of its own for each test."""

from __future__ import annotations

import uuid

import pytest

from tests.helpers.catalogs import Backend, GlueBackend, HiveBackend


@pytest.fixture(params=["glue", "hive"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """A catalog, with other people's client of its server."""
    if request.param == "glue":
        return GlueBackend(request.getfixturevalue("glue_endpoint"))
    return HiveBackend(request.getfixturevalue("metastore"), str(tmp_path_factory.mktemp("lake")))


@pytest.fixture
def database(backend: Backend) -> str:
    """The name of a new database."""
    name = f"db_{uuid.uuid4().hex}"
    backend.create_database(name)
    return name
