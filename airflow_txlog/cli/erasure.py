"""The command `airflow txlog erasure verify`: the check of a report on an erasure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_txlog.cli import printing
from airflow_txlog.cli.usage import hook_of, uri_of
from airflow_txlog.contract.erasure.check_report import check, lines_of
from airflow_txlog.hooks.erasure_report import public_key_of, signing_key

if TYPE_CHECKING:
    from argparse import Namespace


def verify_report(args: Namespace) -> printing.Answer:
    """Check an erasure report. `problems`: why the report proves nothing. `left`: the objects that do not pass.

    JSON: `{"report", "request_id", "is_authentic", "is_complete", "signed_by", "num_tables", "num_objects", "problems",
    "left"}`.
    """
    hook = hook_of(args)
    uri = uri_of(hook, args.report, args)
    folder, _, name = uri.rpartition("/")
    store = hook.table(folder).store

    def content(name: str) -> bytes:
        with store.open_input(name) as source:
            return bytes(source.read())

    key = args.public_key
    if key is None and args.signing_conn_id is not None:
        key = public_key_of(signing_key(args.signing_conn_id))
    found = check(content(name), key, content)
    document = {
        "report": f"{store.root}/{name}",
        "is_authentic": found.is_authentic,
        "is_complete": found.is_complete,
        **dataclasses.asdict(found),
    }

    def show() -> None:
        for line in lines_of(found):
            print(line)

    return printing.Answer(document, show, has_failed=not found.is_complete)
