"""The Google Cloud Storage server of a test run: TXLOG_TEST_GCS is its URL (tools/with_stores.sh starts one)."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import urllib.error
import urllib.request
import uuid
from typing import Any

import pytest

BUCKET = "txlog-tests"


@functools.cache
def options() -> dict[str, Any]:
    """`storage_options` of the server. Skips the test where there is none."""
    endpoint = os.environ.get("TXLOG_TEST_GCS")
    if not endpoint:
        pytest.skip("no server for Google Cloud Storage: run through tools/with_stores.sh, or set TXLOG_TEST_GCS=URL")
    return {"endpoint_url": endpoint, "anon": True}


@functools.cache
def _make_bucket() -> None:
    url = f"{options()['endpoint_url']}/storage/v1/b"
    made = urllib.request.Request(f"{url}?project=tests", json.dumps({"name": BUCKET}).encode())
    made.add_header("Content-Type", "application/json")
    with contextlib.suppress(urllib.error.HTTPError):  # it is there already
        urllib.request.urlopen(made).close()


def new_folder() -> str:
    """The URI of a folder in the tests' bucket that is new."""
    _make_bucket()
    return f"gs://{BUCKET}/{uuid.uuid4().hex}/t"
