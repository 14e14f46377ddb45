"""Sources in a store that Spark cannot read."""

from __future__ import annotations

import importlib

import pytest

from airflow_txlog import storage
from airflow_txlog.storage import StoreReference
from tests.helpers.paths import ROOT


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
