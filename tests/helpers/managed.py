"""A catalog-managed table on the fake of Unity Catalog, whose files are in any store of the tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_txlog.engine import Table
from airflow_txlog.engine.table.schema.features import UNITY_ID
from airflow_txlog.locations import CatalogTable, canonical_place
from airflow_txlog.storage import Access, Store, open_store
from airflow_txlog.storage.managed import ManagedStore
from airflow_txlog.storage.unity_api import UnityApi
from airflow_txlog.storage.unity_commits import UnityCommitter
from tests.helpers.unity import REQUIRED, FakeTable, FakeUnity

NAME = "main.sales.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PROPERTIES = {**REQUIRED, "delta.feature.catalogManaged": "supported", "delta.feature.vacuumProtocolCheck": "supported"}


def committer_of(unity: FakeUnity, table: FakeTable, timeout_s: float = 5.0) -> UnityCommitter:
    found = CatalogTable(
        uri=canonical_place(table.location),
        name=table.name,
        endpoint=unity.url,
        catalog_conn_id="unity",
        table_id=table.table_id,
        is_managed=True,
    )
    return UnityCommitter(UnityApi(unity.url, lambda: None, connection="unity", timeout_s=timeout_s), found)


def opened(unity: FakeUnity, table: FakeTable, inner: Store | None = None, **options: Any) -> Table:
    """The table by way of the catalog, as another process would open it: nothing is remembered."""
    inner = inner or open_store(table.location, Access())
    return Table(ManagedStore(inner, committer_of(unity, table)), **options)


def created(unity: FakeUnity, location: str, properties: dict[str, str] | None = None) -> FakeTable:
    """A managed table with version 0, registered as a server registers it."""
    table = FakeTable(name=NAME, location=location, table_id="11111111-2222-4333-8444-555555555555", latest=-1)
    unity.tables[NAME] = table
    store = open_store(location, Access())
    # The first version is written before the table has its name.
    first = _FirstVersion(store, committer_of(unity, table))
    Table.create(first, SCHEMA, properties={**PROPERTIES, UNITY_ID: table.table_id, **(properties or {})})
    table.latest, table.properties = 0, {**REQUIRED, UNITY_ID: table.table_id, **(properties or {})}
    return table


class _FirstVersion(ManagedStore):
    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._inner.put_if_absent(path, data)

    def list(self, directory: str, *, start_from: str | None = None) -> Any:
        return self._inner.list(directory, start_from=start_from)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{each}" for each in ids]}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.to_arrow().column("id").to_pylist())
    return found
