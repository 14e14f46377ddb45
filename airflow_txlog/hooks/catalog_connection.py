"""The connection that `catalog_conn_id` names: the catalog that it opens.

A type of connection is one line of `_KINDS`. The connection is read when a task runs. Its client is imported here, so
that parsing a DAG imports none. Invariant: a secret of the connection goes to the client and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_txlog.catalogs.base import Catalog
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.connections import connection_of


def open_catalog(conn_id: str) -> Catalog:
    """Return the catalog of the connection. Nothing is sent yet.

    Raises InvalidJobSpec for a connection of another type, and Airflow's own error if it does not exist.
    """
    connection = connection_of("catalog_conn_id", conn_id)
    make = _KINDS.get(connection.conn_type or "")
    if make is None:
        raise InvalidJobSpec(
            f"catalog_conn_id: the connection {conn_id!r} is of type {connection.conn_type!r}; a catalog takes one of "
            f"{', '.join(_KINDS)}. Nothing was read. See docs/tables-by-name.md.",
            argument="catalog_conn_id",
        )
    return make(connection)


# Fields of an aws connection by which it has an identity of its own.
_AWS_PLACES = frozenset({"region_name", "endpoint_url", "service_config", "catalog_id"})
_METASTORE_PORT = 9083


def _glue(connection: Any) -> Catalog:
    from airflow_txlog.catalogs.glue import GlueCatalog, own_identity
    from airflow_txlog.hooks.storage_connection import open_storage_connection
    from airflow_txlog.storage.credentials import AWS, kept

    extra, conn_id = connection.extra_dejson, connection.conn_id
    region = extra.get("region_name") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise InvalidJobSpec(
            f"catalog_conn_id: the connection {conn_id!r} has no region_name in its extra, and the environment no "
            "AWS_REGION. Nothing was read. Name the region of the catalog.",
            argument="catalog_conn_id",
        )
    endpoint = (extra.get("service_config") or {}).get("glue", {}).get("endpoint_url") or extra.get("endpoint_url")
    if connection.login or connection.password or any(value for key, value in extra.items() if key not in _AWS_PLACES):
        open_storage_connection(conn_id)

        def credentials() -> tuple[str, str, str | None]:
            values = kept(conn_id, AWS).current().values
            return values["access_key"], values["secret_key"], values.get("token")
    else:
        credentials = own_identity(conn_id)
    return GlueCatalog(
        conn_id, region=region, endpoint_url=endpoint, catalog_id=extra.get("catalog_id"), credentials=credentials
    )


def _hive(connection: Any) -> Catalog:
    from airflow_txlog.catalogs.hive import HiveCatalog

    extra = connection.extra_dejson
    secure = next((name for name in ("authMechanism", "auth_mechanism") if extra.get(name) not in _PLAIN), None)
    if secure is not None:
        raise InvalidJobSpec(
            f"catalog_conn_id: the connection {connection.conn_id!r} has {secure}={extra[secure]!r}, and only a Hive "
            "Metastore with plain Thrift is supported (NOSASL). Nothing was read.",
            argument="catalog_conn_id",
        )
    port = connection.port or _METASTORE_PORT
    hosts = [host.strip() for host in (connection.host or "localhost").split(",")]
    return HiveCatalog(connection.conn_id, [(host, port) for host in hosts], user=connection.login or None)


def _unity(connection: Any) -> Catalog:
    from airflow_txlog.catalogs.unity import UnityCatalog
    from airflow_txlog.storage.credentials import UNITY, Credentials, offer

    conn_id, host = connection.conn_id, connection.host or ""
    scheme, _, place = host.rpartition("://")
    scheme = scheme or connection.schema or "https"
    if not place or scheme not in ("http", "https") or "@" in place:
        raise InvalidJobSpec(
            f"catalog_conn_id: the connection {conn_id!r} names no catalog in its host. Write https://HOST there, and "
            "the token as its password. Nothing was read.",
            argument="catalog_conn_id",
        )

    def token() -> Credentials:
        # Read again, so that a rotated token is followed.
        return Credentials(kind=UNITY, values={"token": BaseHook.get_connection(conn_id).password or ""})

    offer(conn_id, token)
    port = f":{connection.port}" if connection.port else ""
    return UnityCatalog(conn_id, f"{scheme}://{place.rstrip('/')}{port}")


# What Airflow's provider for Hive writes for a metastore without SASL.
_PLAIN = (None, "", "NOSASL", "NONE")
_KINDS: dict[str, Callable[[Any], Catalog]] = {"aws": _glue, "hive_metastore": _hive, "txlog_unity": _unity}
CONN_TYPES = frozenset(_KINDS)
"""The types of connections that `catalog_conn_id` accepts."""
