"""Folders on the S3 server of TXLOG_TEST_S3, for tables that both sides work on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.helpers import s3

NO_SERVER = "no S3 server: run through tools/with_stores.sh, or set TXLOG_TEST_S3='endpoint key secret'"


def has_server() -> bool:
    return len(os.environ.get("TXLOG_TEST_S3", "").split()) == 3


def set_keys() -> None:
    """Put the server's keys into the environment, where our processes find them; before a JVM starts, or its workers
    do not have them."""
    os.environ["AWS_ACCESS_KEY_ID"] = s3.options()["key"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = s3.options()["secret"]


class S3Folder:
    """A new folder, and how both libraries open a table in it. As a context, it is empty in the end."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint`: that of a relay to the server."""
        self._take_folder()
        given = s3.options()
        endpoint = endpoint or str(given["endpoint_url"])
        self.options: dict[str, Any] = {"endpoint_url": endpoint, "region": given["region"]}
        self.peer_options = {
            "AWS_ACCESS_KEY_ID": given["key"],
            "AWS_SECRET_ACCESS_KEY": given["secret"],
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": given["region"],
        }

    def _take_folder(self) -> None:
        self.uri = s3.new_folder()
        self._prefix = self.uri.removeprefix(f"s3://{s3.BUCKET}/") + "/"

    def renew(self) -> None:
        """Delete all that is here, and take another folder: nobody makes a table anew while others write to it."""
        self.clear()
        self._take_folder()

    def put(self, folder: Path) -> None:
        """Copy the files of a local folder here."""
        for path in folder.rglob("*"):
            if path.is_file():
                key = self._prefix + path.relative_to(folder).as_posix()
                s3.client().put_object(Bucket=s3.BUCKET, Key=key, Body=path.read_bytes())

    def clear(self) -> None:
        """Delete all that is here."""
        keys = [{"Key": self._prefix + key} for key in s3.keys_under(self.uri)]
        for start in range(0, len(keys), 1000):
            s3.client().delete_objects(Bucket=s3.BUCKET, Delete={"Objects": keys[start : start + 1000]})

    def __enter__(self) -> S3Folder:
        return self

    def __exit__(self, *raised: object) -> None:
        self.clear()
