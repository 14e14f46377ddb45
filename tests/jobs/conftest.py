"""What the tests of jobs share."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import pytest

from airflow_txlog import storage
from airflow_txlog.storage import StoreReference
from tests.helpers.jobs import tried_without_spark
from tests.helpers.paths import ROOT


@pytest.fixture(params=["with Spark", "tried without"])
def each_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test twice: with Spark, and as the runners do it, where a job gets Spark when it needs it."""
    with tried_without_spark() if request.param == "tried without" else contextlib.nullcontext():
        yield


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> str:
    """What to put before a local path to name the same place in a store that only this package can read."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "helpers" / "daemon"))
    module = importlib.import_module("shelf_store")
    monkeypatch.setitem(storage.STORES, module.SCHEME, module.ShelfStore)
    monkeypatch.setattr(
        StoreReference, "__reduce__", lambda each: (module.shelf_reference, (each.root, each.access)), raising=False
    )
    return f"{module.SCHEME}://"
