"""The stores that the contract is proved on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_txlog.storage import Access, LocalStore, MemoryStore, Store, open_store
from tests.helpers import s3


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "local":
        yield LocalStore(str(tmp_path / "t"))
        return
    if request.param == "s3":
        yield open_store(s3.new_folder(), Access(storage_options=s3.options()))
        return
    store = MemoryStore(f"memory://test-{uuid.uuid4().hex}/t")
    yield store
    for key in [key for key in MemoryFileSystem.store if key.startswith(store.root.removeprefix("memory:/"))]:
        MemoryFileSystem.store.pop(key, None)
