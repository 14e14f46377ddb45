"""The connection that `catalog_conn_id` names: the catalog that it opens.

A type of connection is one line of `_KINDS`. The connection is read when a task runs. Its client is imported here, so
that parsing a DAG imports none. Invariant: a secret of the connection goes to the client and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_txlog.catalogs.base import Catalog
from airflow_txlog.errors import InvalidJobSpec


def open_catalog(conn_id: str) -> Catalog:
    """Return the catalog of the connection. Nothing is sent yet.

    Raises InvalidJobSpec for a connection of another type, and Airflow's own error if it does not exist.
    """
    connection = BaseHook.get_connection(conn_id)
    make = _KINDS.get(connection.conn_type or "")
    if make is None:
        raise InvalidJobSpec(
            f"catalog_conn_id: the connection {conn_id!r} is of type {connection.conn_type!r}; a catalog takes one of "
            f"{', '.join(_KINDS)}. Nothing was read. See docs/tables-by-name.md.",
            argument="catalog_conn_id",
        )
    return make(connection)


_KINDS: dict[str, Callable[[Any], Catalog]] = {}
CONN_TYPES = frozenset(_KINDS)
"""The types of connections that `catalog_conn_id` accepts."""
