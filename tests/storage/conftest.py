"""The stores that the contract is proved on."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_txlog.storage import Access, LocalStore, MemoryStore, Store, open_store
from tests.helpers import azure, gcs, s3

# A bucket of the user's own, by the URI of a folder in it: docs/stores.md.
OWN = os.environ.get("TXLOG_TEST_BUCKET", "").rstrip("/")


def _own_folder() -> str:
    return f"{OWN}/txlog-tests-{uuid.uuid4().hex}/t"


def _own_options() -> dict[str, Any]:
    options: dict[str, Any] = json.loads(os.environ.get("TXLOG_TEST_BUCKET_OPTIONS", "{}"))
    return options


REMOTE: dict[str, tuple[Callable[[], str], Callable[[], dict[str, Any]]]] = {
    "s3": (s3.new_folder, s3.options),
    "gcs": (gcs.new_folder, gcs.options),
    "azure": (azure.new_folder, azure.options),
    **({"own": (_own_folder, _own_options)} if OWN else {}),
}
"""Of each object store, what gives a new folder's URI and the `storage_options`."""


def _open_remote(kind: str) -> Iterator[Store]:
    new_folder, options = REMOTE[kind]
    store = open_store(new_folder(), Access(storage_options=options()))
    yield store
    if kind == "own":
        for info in store.walk():
            store.delete(info.path)


class Disk(LocalFileSystem):
    """The local disk under a scheme that no store of ours has."""

    protocol = "txlogtest"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(os.fspath(path).removeprefix("txlogtest://")))


@pytest.fixture
def unproven(tmp_path: Path) -> Store:
    """An empty store for one writer."""
    fsspec.register_implementation("txlogtest", Disk, clobber=True)
    return open_store(f"txlogtest://{tmp_path}/t", Access(single_writer=True))


@pytest.fixture(params=["local", "memory", "unproven", *REMOTE])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "local":
        yield LocalStore(str(tmp_path / "t"))
        return
    if request.param == "unproven":
        yield request.getfixturevalue("unproven")
        return
    if request.param in REMOTE:
        yield from _open_remote(request.param)
        return
    store = MemoryStore(f"memory://test-{uuid.uuid4().hex}/t")
    yield store
    for key in [key for key in MemoryFileSystem.store if key.startswith(store.root.removeprefix("memory:/"))]:
        MemoryFileSystem.store.pop(key, None)


@pytest.fixture(params=REMOTE)
def object_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of objects of each cloud."""
    yield from _open_remote(request.param)
