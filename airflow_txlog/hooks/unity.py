"""The hook of connections to Unity Catalog, by which Airflow knows their type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

if TYPE_CHECKING:
    from airflow_txlog.catalogs.base import Catalog


class UnityCatalogHook(BaseHook):
    """A connection to Unity Catalog: its URL is the host, and its token the password.

    Operators take the connection as `catalog_conn_id`.

    :param catalog_conn_id: the connection, of type `txlog_unity`.
    """

    conn_name_attr = "catalog_conn_id"
    default_conn_name = "txlog_unity_default"
    conn_type = "txlog_unity"
    hook_name = "Unity Catalog (txlog)"

    def __init__(self, catalog_conn_id: str = default_conn_name, **given: Any) -> None:
        super().__init__(**given)
        self.catalog_conn_id = catalog_conn_id

    def get_conn(self) -> Catalog:
        """Return the catalog, which resolves names. Nothing is sent yet."""
        # Here: a DAG is parsed without the catalog's modules.
        from airflow_txlog.hooks.catalog_connection import open_catalog

        return open_catalog(self.catalog_conn_id)
