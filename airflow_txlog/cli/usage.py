"""Arguments that several commands of `airflow txlog` read alike, and the error of wrong ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_txlog.errors import TableNotFound
from airflow_txlog.hooks.named_tables import may_be_name
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.locations import is_absolute

if TYPE_CHECKING:
    from argparse import Namespace


class UsageError(Exception):
    """The arguments of a command contradict each other or cannot be read."""


def hook_of(args: Namespace) -> TxlogHook:
    """Return the hook of the connections that a command names: one for the command, as it knows resolved names."""
    if getattr(args, "hook", None) is None:
        args.hook = TxlogHook(args.conn_id or None, catalog_conn_id=getattr(args, "catalog_conn_id", None) or None)
    hook: TxlogHook = args.hook
    return hook


def uri_of(hook: TxlogHook, table: str, args: Namespace, *, may_create: bool = False) -> str:
    """Return the URI of a table as a command names it. `may_create`: a name may be new in the catalog."""
    if may_create and hook.is_name(table):
        return hook.place_of(table, may_create=True)
    # A shell has a current directory that its user chose; a worker has one that no author knows.
    is_whole = args.conn_id or is_absolute(table) or hook.is_name(table)
    return hook.table_uri(table if is_whole else os.path.abspath(table))


def named_in_a_catalog(error: Exception, args: Namespace) -> Exception:
    """Return the error of a table that was not found, with the option for a name such as `sales.orders`."""
    table = getattr(args, "table", None)
    if not isinstance(error, TableNotFound) or not may_be_name(table) or not hasattr(args, "catalog_conn_id"):
        return error
    may_be_meant = all(table.split(".")) and table.count(".") in (1, 2)
    if not may_be_meant or hook_of(args).is_name(table):
        return error
    hint = f"If {table} is a name in a catalog, name the catalog's connection with --catalog-conn-id."
    return TableNotFound(f"{error.message} {hint}", **error.facts)


def moment_of(args: Namespace) -> int | str | None:
    """Return `--timestamp`, milliseconds or ISO-8601 text. Raises UsageError if a version is given too."""
    if args.timestamp is None:
        return None
    if args.table_version is not None:
        raise UsageError("--version and --timestamp exclude each other: one of them says which version is meant.")
    text: str = args.timestamp
    try:
        return int(text)
    except ValueError:
        return text
