"""The S3 server of a test run: TXLOG_TEST_S3 is "endpoint key secret" of it (tools/with_stores.sh starts one)."""

from __future__ import annotations

import functools
import json
import os
import uuid
from typing import Any

import pytest

from airflow_txlog.storage import Access

BUCKET = "txlog-tests"
REGION = "us-east-1"


@functools.cache
def options() -> dict[str, Any]:
    """`storage_options` of the server, its keys included. Skips the test where there is no server."""
    given = os.environ.get("TXLOG_TEST_S3", "").split()
    if len(given) != 3:
        pytest.skip("no S3 server: run through tools/with_stores.sh, or set TXLOG_TEST_S3='endpoint key secret'")
    endpoint, key, secret = given
    return {"endpoint_url": endpoint, "key": key, "secret": secret, "region": REGION}


def access() -> Access:
    """`options` as a store takes them."""
    return Access(storage_options=options())


def plain_options() -> dict[str, Any]:
    """`options` without the keys, as a job's description has them: the process has those in its environment."""
    return {name: value for name, value in options().items() if name not in ("key", "secret")}


def environment() -> dict[str, str]:
    """What a process of Spark finds the keys by; empty where there is no server."""
    given = os.environ.get("TXLOG_TEST_S3", "").split()
    if len(given) != 3:
        return {}
    keys = {"AWS_ACCESS_KEY_ID": given[1], "AWS_SECRET_ACCESS_KEY": given[2]}
    return {**keys, "AWS_EC2_METADATA_DISABLED": "true"}


@functools.cache
def client() -> Any:
    """A client beside the one under test. The tests' bucket is there from the first call on."""
    from botocore.session import get_session

    given = options()
    made = get_session().create_client(
        "s3",
        endpoint_url=given["endpoint_url"],
        aws_access_key_id=given["key"],
        aws_secret_access_key=given["secret"],
        region_name=REGION,
    )
    if BUCKET not in {each["Name"] for each in made.list_buckets()["Buckets"]}:
        made.create_bucket(Bucket=BUCKET)
    return made


def new_folder() -> str:
    """The URI of a folder in the tests' bucket that is new."""
    client()
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/t"


def connection(monkeypatch: pytest.MonkeyPatch, base: str) -> str:
    """The name of a `txlog` connection at this base, with the keys of an `aws` one; the environment has none."""
    given = options()
    extra = {"endpoint_url": given["endpoint_url"], "region_name": given["region"]}
    keys = {"conn_type": "aws", "login": given["key"], "password": given["secret"], "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_KEYS", json.dumps(keys))
    place = {"conn_type": "txlog", "host": base, "extra": {"storage_conn_id": "lake_keys"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(place))
    for name in environment():
        monkeypatch.delenv(name, raising=False)
    return "lake"


def keys_under(uri: str) -> list[str]:
    """The keys below a folder, without it."""
    prefix = uri.removeprefix(f"s3://{BUCKET}/") + "/"
    pages = client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [each["Key"].removeprefix(prefix) for page in pages for each in page.get("Contents", ())]


def copy(uri: str) -> str:
    """The URI of a new folder with the objects of this one, the first of their keys as the oldest."""
    made = new_folder()
    for key in keys_under(uri):
        source, target = (each.removeprefix(f"s3://{BUCKET}/") for each in (uri, made))
        client().copy_object(Bucket=BUCKET, Key=f"{target}/{key}", CopySource=f"{BUCKET}/{source}/{key}")
    return made
