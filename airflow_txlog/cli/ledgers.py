"""The commands `airflow txlog ledger create`, `show`, `check` and `rotate`: the ledger of erased subjects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_txlog.cli import printing
from airflow_txlog.cli.printing import ShownColumn
from airflow_txlog.cli.usage import UsageError, hook_of
from airflow_txlog.engine import Table
from airflow_txlog.engine.erasure.digests import DigestKey
from airflow_txlog.engine.erasure.ledger import Ledger, create_ledger, recorded_in
from airflow_txlog.hooks.digest_keys import digest_keys
from airflow_txlog.hooks.followed_table import guard_of

if TYPE_CHECKING:
    from argparse import Namespace

_FOLDER_VALUE = re.compile(r"=[^/]*/")


def create(table: Table, args: Namespace) -> printing.Answer:
    """Answer with `{"table", "created"}`: whether the ledger is new."""
    is_new = create_ledger(table)
    answer = f"{table.uri} is a ledger of erased subjects" if is_new else f"{table.uri} exists already: nothing to do"
    return printing.Answer({"table": table.uri, "created": is_new}, lambda: print(answer))


def show(table: Table, args: Namespace) -> printing.Answer:
    """Show the erasures that a ledger has recorded.

    JSON: `{"table", "erasures": [{"request_id", "table", "column", "subjects", "recorded_at", "keys"}]}`.
    `keys`: the ids of the keys of the digests, the oldest first.
    """
    erasures = recorded_in(table)

    def print_erasures() -> None:
        columns = [ShownColumn(name=name) for name in ("request", "table", "column", "subjects", "recorded", "keys")]
        cells = [
            (
                each["request_id"],
                each["table"],
                each["column"],
                each["subjects"],
                printing.moment(each["recorded_at"]),
                " ".join(each["keys"]),
            )
            for each in erasures
        ]
        printing.print_rows(columns, cells)

    return printing.Answer({"table": table.uri, "erasures": erasures}, print_erasures)


def check(table: Table, args: Namespace) -> printing.Answer:
    """List the files that hold an erased subject.

    JSON: `{"table", "version", "files": [{"path", "rows", "columns", "requests"}]}`.
    """
    guard = guard_of(hook_of(args), table)
    if guard is None:
        raise UsageError("ledger check needs --conn-id: the ID of a connection that names a ledger (erasure_ledger).")
    snapshot = table.snapshot()
    found = guard.in_table(snapshot)
    files: list[dict[str, Any]] = [
        {
            # The folder of a partition may be named for a subject.
            "path": _FOLDER_VALUE.sub("=*/", each.add.path) if each.is_whole else each.add.path,
            "rows": each.count,
            "columns": sorted(each.columns),
            "requests": sorted(each.requests),
        }
        for each in found
    ]

    def show() -> None:
        for file in files:
            print(f"{file['rows']} rows of request {', '.join(file['requests'])} in {file['path']}")
        print(f"version {snapshot.version}: {len(files)} of {snapshot.num_files} files hold erased subjects")

    return printing.Answer(
        {"table": table.uri, "version": snapshot.version, "files": files}, show, has_failed=bool(files)
    )


def rotate(table: Table, args: Namespace) -> printing.Answer:
    """Give the digests of a ledger the newest key. `changed`: how many rows have a new digest. `key`: the key's id.

    JSON: `{"table", "version", "changed", "key"}`.
    """
    keys = [DigestKey.of(text, "a key of the ledger") for text in digest_keys(args.key_conn_id)]
    ledger = Ledger(table, keys)
    printing.confirm(f"Digest the subjects of {table.uri} once more, by the key {keys[-1].id}?", args.yes)
    changed = ledger.rotate()
    document = {"table": table.uri, "version": table.latest_version(), "changed": changed, "key": keys[-1].id}
    return printing.Answer(document, lambda: print(f"{changed} digests are new, by the key {keys[-1].id}"))
