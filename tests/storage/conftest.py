"""The stores that the contract is proved on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_txlog.storage import LocalStore, MemoryStore, Store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "local":
        yield LocalStore(str(tmp_path / "t"))
        return
    store = MemoryStore(f"memory://test-{uuid.uuid4().hex}/t")
    yield store
    for key in [key for key in MemoryFileSystem.store if key.startswith(store.root.removeprefix("memory:/"))]:
        MemoryFileSystem.store.pop(key, None)
