"""`airflow txlog catalog`: write the entry of a table, and compare it with the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_txlog.catalogs.describe import describe, differences
from airflow_txlog.cli.printing import Answer
from airflow_txlog.cli.usage import UsageError, hook_of
from airflow_txlog.errors import TableNotInCatalog

if TYPE_CHECKING:
    from argparse import Namespace


def sync(args: Namespace) -> Answer:
    """Answer with `{"table", "table_uri", "outcome"}`: registered, updated or unchanged."""
    hook, name = hook_of(args), args.table
    given = None if args.location is None else hook.table_uri(args.location)
    try:
        hook.entry(name)
        is_new = False
    except TableNotInCatalog:
        is_new = True
    # Refuses a location that is not the entry's.
    uri = hook.place_of(name, given, may_create=is_new)
    if is_new:
        hook.register(name, uri)
        outcome = "registered"
    else:
        outcome = "updated" if hook.sync(name, uri) else "unchanged"
    document = {"table": name, "table_uri": uri, "outcome": outcome}
    return Answer(document, lambda: print(f"{name} ({uri}): {outcome}"))


def check(args: Namespace) -> Answer:
    """Compare an entry with its table, and fail (exit code 1) if they differ.

    JSON: `{"table", "table_uri", "version", "differences": [{"what", "catalog", "log"}]}`.
    """
    hook = hook_of(args)
    if not hook.is_name(args.table):
        raise UsageError(
            "TABLE must be a name in a catalog, such as sales.orders. Name the catalog in --catalog-conn-id."
        )
    entry = hook.entry(args.table)
    snapshot = hook.followed(entry.uri).table.snapshot()
    found = differences(entry, describe(entry.name, snapshot))
    document: dict[str, Any] = {
        "table": entry.name,
        "table_uri": entry.uri,
        "version": snapshot.version,
        "differences": found,
    }

    def show() -> None:
        print(f"{entry.name} ({entry.uri}), version {snapshot.version}")
        for each in found:
            print(f"{each['what']}: the catalog has {each['catalog']}, the table {each['log']}")
        if found:
            print(f"To repair it: airflow txlog catalog sync {entry.name}")
        else:
            print("The entry is up to date.")

    return Answer(document, show, has_failed=bool(found))
