"""The Azure Blob server of a test run: TXLOG_TEST_AZURE is its connection string (tools/with_stores.sh starts one)."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from typing import Any

import pytest

CONTAINER = "txlog-tests"


@functools.cache
def options() -> dict[str, Any]:
    """`storage_options` of the server, its key included. Skips the test where there is none."""
    given = os.environ.get("TXLOG_TEST_AZURE")
    if not given:
        pytest.skip("no Azure server: run through tools/with_stores.sh, or set TXLOG_TEST_AZURE='connection string'")
    return {"connection_string": given}


@functools.cache
def client() -> Any:
    """A client beside the one under test. The tests' container is there from the first call on."""
    from azure.core.exceptions import ResourceExistsError
    from azure.storage.blob import ContainerClient

    made = ContainerClient.from_connection_string(options()["connection_string"], CONTAINER)
    with contextlib.suppress(ResourceExistsError):
        made.create_container()
    return made


def account() -> tuple[str, str]:
    """The name and the key of the server's account."""
    found = _settings()
    return found["AccountName"], found["AccountKey"]


def endpoint() -> str:
    """The server's URL, without the account."""
    return _settings()["BlobEndpoint"].rstrip("/").removesuffix(f"/{account()[0]}")


def _settings() -> dict[str, str]:
    return dict(each.split("=", 1) for each in options()["connection_string"].split(";") if each)


def new_folder() -> str:
    """The URI of a folder in the tests' container that is new."""
    return f"az://{client().container_name}/{uuid.uuid4().hex}/t"
