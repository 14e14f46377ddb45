"""The command `airflow txlog erasure verify`: the check of reports on erasures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_txlog.cli import printing
from airflow_txlog.cli.usage import hook_of, uri_of
from airflow_txlog.contract.erasure.check_report import Checked, check, lines_of
from airflow_txlog.hooks.erasure_report import public_key_of, signing_key

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_txlog.hooks.txlog import TxlogHook


def verify_report(args: Namespace) -> printing.Answer:
    """Check erasure reports. `problems`: why a report proves nothing. `left`: the objects that do not pass.

    JSON: `{"is_authentic", "is_complete", "reports": [{"report", "request_id", "is_authentic", "is_complete",
    "signed_by", "num_tables", "num_objects", "problems", "left"}]}`. The first two are true if they are of every
    report.
    """
    hook, key = hook_of(args), args.public_key
    if key is None and args.signing_conn_id is not None:
        key = public_key_of(signing_key(args.signing_conn_id))
    found = [_checked(hook, uri_of(hook, each, args), key) for each in args.reports]
    documents = [
        {
            "report": place,
            "is_authentic": each.is_authentic,
            "is_complete": each.is_complete,
            **dataclasses.asdict(each),
        }
        for place, each in found
    ]
    is_complete = all(each.is_complete for _, each in found)

    def show() -> None:
        for place, each in found:
            if len(found) > 1:
                print(f"{place}:")
            for line in lines_of(each):
                print(line)
        if len(found) > 1:
            print(f"{sum(each.is_complete for _, each in found)} of {len(found)} reports are complete")

    is_authentic = all(each.is_authentic for _, each in found)
    document = {"is_authentic": is_authentic, "is_complete": is_complete, "reports": documents}
    return printing.Answer(document, show, has_failed=not is_complete)


def _checked(hook: TxlogHook, uri: str, key: str | None) -> tuple[str, Checked]:
    """Return the place of a report, and the result of its check. That it cannot be read is a problem of this report."""
    folder, _, name = uri.rpartition("/")
    store = hook.table(folder).store

    def content(name: str) -> bytes:
        with store.open_input(name) as source:
            return bytes(source.read())

    place = f"{store.root}/{name}"
    try:
        document = content(name)
    except OSError as error:
        reason = f"{type(error).__name__}: {error.strerror}" if error.strerror else type(error).__name__
        return place, Checked(problems=[f"The report cannot be read ({reason})."])
    return place, check(document, key, content)
