"""A catalog-managed table on the fake of Unity Catalog, whose files are in any store of the tests."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from airflow_txlog.catalogs.unity import UnityCatalog
from airflow_txlog.engine import Table
from airflow_txlog.locations import CatalogTable, canonical_place
from airflow_txlog.storage import Access, Store, open_store
from airflow_txlog.storage.credentials import UNITY, Credentials, offer
from airflow_txlog.storage.managed import ManagedStore
from airflow_txlog.storage.unity_api import UnityApi
from airflow_txlog.storage.unity_commits import UnityCommitter
from tests.helpers.unity import REQUIRED, FakeTable, FakeUnity

NAME = "main.sales.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PROPERTIES = {**REQUIRED, "delta.feature.catalogManaged": "supported", "delta.feature.vacuumProtocolCheck": "supported"}


def committer_of(
    unity: FakeUnity, table: FakeTable, timeout_s: float = 5.0, token: str | None = None
) -> UnityCommitter:
    found = CatalogTable(
        uri=canonical_place(table.location),
        name=table.name,
        endpoint=unity.url,
        catalog_conn_id="unity",
        table_id=table.table_id,
        is_managed=True,
    )
    return UnityCommitter(UnityApi(unity.url, lambda: token, connection="unity", timeout_s=timeout_s), found)


def opened(unity: FakeUnity, table: FakeTable, inner: Store | None = None, **options: Any) -> Table:
    """The table by way of the catalog, as another process would open it: nothing is remembered."""
    inner = inner or open_store(table.location, Access())
    return Table(ManagedStore(inner, committer_of(unity, table)), **options)


def catalog_of(unity: FakeUnity, token: str = "") -> UnityCatalog:
    """The catalog under a connection of its own, as credentials are kept by the connection's name."""
    name = f"unity_{uuid.uuid4().hex}"
    offer(name, lambda: Credentials(kind=UNITY, values={"token": token}))
    return UnityCatalog(name, unity.url)


def new_table(unity: FakeUnity, root: str, options: dict[str, Any] | None = None) -> tuple[UnityCatalog, str, Access]:
    """A managed table's place below a root, which the catalog has chosen, and how it is opened."""
    unity.root = root
    catalog = catalog_of(unity)
    place = catalog.place_for(NAME)
    return catalog, place, Access(storage_options=options or {}, catalog_tables=tuple(catalog.new_tables.values()))


def created(unity: FakeUnity, root: str, options: dict[str, Any] | None = None) -> FakeTable:
    """A managed table with version 0."""
    _, place, access = new_table(unity, root, options)
    Table.create(open_store(place, access), SCHEMA)
    return unity.tables[NAME]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{each}" for each in ids]}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.to_arrow().column("id").to_pylist())
    return found
