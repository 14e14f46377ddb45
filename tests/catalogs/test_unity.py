"""Unity Catalog, against a fake made from recorded answers: names, refusals, credentials, and no secret anywhere."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.catalogs.describe import describe, differences
from airflow_txlog.catalogs.unity import UnityCatalog
from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.engine import Table
from airflow_txlog.errors import (
    CatalogRefused,
    CatalogUnavailable,
    CredentialsUnavailable,
    InvalidInput,
    NotADeltaTable,
    TableNotInCatalog,
    TxlogError,
    UnusablePlace,
    WrongTableId,
)
from airflow_txlog.locations import Access
from airflow_txlog.storage import open_store
from airflow_txlog.storage.credentials import AWS, AZURE, GOOGLE, KeptCredentials
from tests.helpers.managed import NAME, catalog_of, created, ids, opened, rows
from tests.helpers.rows import append
from tests.helpers.unity import FakeUnity, Fault

SECRET = "canary-77fe"
ON_S3 = {"s3.access-key-id": "AK", "s3.secret-access-key": f"{SECRET}-s", "s3.session-token": f"{SECRET}-t"}


@pytest.fixture
def unity() -> Iterator[FakeUnity]:
    with FakeUnity() as unity:
        unity.tokens = {f"{SECRET}-bearer"}
        unity.credentials = lambda location, operation: ON_S3
        yield unity


@pytest.fixture
def catalog(unity: FakeUnity) -> UnityCatalog:
    return catalog_of(unity, f"{SECRET}-bearer")


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_name_is_resolved_by_one_request_with_the_token(unity: FakeUnity, catalog: UnityCatalog) -> None:
    table = unity.add(NAME, "s3a://lake/orders/", "EXTERNAL", properties={"a": "1", "delta.lastUpdateVersion": "3"})
    found = catalog.find(NAME)
    assert (found.uri, found.name, found.is_managed, found.table_id) == ("s3://lake/orders", NAME, False, None)
    assert found.properties == {"a": "1"}
    assert found.catalog_table is not None
    assert (found.catalog_table.table_id, found.catalog_table.is_managed) == (table.table_id, False)
    assert unity.requests == ["GET /delta/v1/catalogs/main/schemas/sales/tables/orders"]
    assert unity.authorizations == [f"Bearer {SECRET}-bearer"]


def test_a_managed_table_is_known_before_its_log_is_read(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders")
    found = catalog.find(NAME)
    assert found.is_managed
    assert found.catalog_table is not None
    assert found.catalog_table.is_managed


def test_columns_come_in_the_types_of_hive(unity: FakeUnity, catalog: UnityCatalog) -> None:
    inner = {"type": "map", "key-type": "string", "value-type": "long", "value-contains-null": True}
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "counts", "type": inner, "nullable": True, "metadata": {}},
    ]
    unity.add(NAME, "s3://lake/orders", columns={"type": "struct", "fields": fields}, partition_columns=["id"])
    found = catalog.find(NAME)
    assert [(each.name, each.type_text) for each in found.columns] == [
        ("id", "bigint"),
        ("counts", "map<string,bigint>"),
    ]
    assert found.partition_columns == ("id",)


def test_a_server_without_the_delta_api_is_asked_by_its_own(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders", "EXTERNAL")
    fault = Fault("refused", on="/delta/v1", status=404, type="NotFoundException", times=9)
    with unity.harmed(fault):
        found = catalog.find(NAME)
    assert (found.uri, found.is_managed) == ("s3://lake/orders", False)
    assert found.catalog_table is not None
    assert not found.catalog_table.is_managed


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"format": "ICEBERG"}, NotADeltaTable),
        ({"table_type": "VIEW"}, NotADeltaTable),
        ({"location": ""}, UnusablePlace),
        ({"location": "file://elsewhere/t"}, UnusablePlace),
        ({"location": "memory://t"}, UnusablePlace),
    ],
)
def test_what_is_no_usable_delta_table_is_refused(
    unity: FakeUnity, catalog: UnityCatalog, fields: dict[str, Any], error: type[TxlogError]
) -> None:
    unity.add(NAME, **{"location": "s3://lake/orders", "table_type": "EXTERNAL", **fields})
    with pytest.raises(error):
        catalog.find(NAME)


@pytest.mark.parametrize(
    "name", ["orders", "sales.orders", "a.b.c.d", "main..orders", "main.sales.a/b", "main.sales.`a.b`"]
)
def test_a_text_that_is_no_name_of_three_parts_is_refused(catalog: UnityCatalog, name: str) -> None:
    with pytest.raises(InvalidInput):
        catalog.find(name)


def test_a_place_on_the_disk_is_refused_from_a_catalog_on_another_machine(
    unity: FakeUnity, catalog: UnityCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    unity.add(NAME, "file:///etc", "EXTERNAL")
    assert catalog.find(NAME).uri == "/etc"
    elsewhere = UnityCatalog(catalog.connection, "https://catalog.example.com")
    monkeypatch.setattr(elsewhere, "_api", catalog._api)
    with pytest.raises(UnusablePlace):
        elsewhere.find(NAME)


def test_a_missing_table_a_refused_token_and_a_server_that_is_away_are_three_errors(
    unity: FakeUnity, catalog: UnityCatalog
) -> None:
    with pytest.raises(TableNotInCatalog):
        catalog.find(NAME)
    unity.tokens = {"another"}
    with pytest.raises(CatalogRefused) as raised:
        catalog.find(NAME)
    assert raised.value.facts["status"] == "UNAUTHENTICATED"
    with unity.harmed(Fault("lost", times=9)), pytest.raises(CatalogUnavailable) as unavailable:
        catalog.find(NAME)
    assert unavailable.value.retryable


def test_a_transient_failure_is_not_seen(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders")
    with unity.harmed(Fault("lost"), Fault("refused", status=503)):
        assert catalog.find(NAME).uri == "s3://lake/orders"


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "config", "kind", "values"),
    [
        (
            "s3://lake/orders",
            ON_S3,
            AWS,
            {"access_key": "AK", "secret_key": f"{SECRET}-s", "token": f"{SECRET}-t"},
        ),
        ("gs://lake/orders", {"gcs.oauth-token": SECRET}, GOOGLE, {"token": SECRET}),
        (
            "abfss://lake@a.dfs.core.windows.net/orders",
            {"azure.sas-token": SECRET},
            AZURE,
            {"sas_token": SECRET},
        ),
    ],
)
def test_temporary_credentials_of_each_cloud_are_of_the_longest_prefix(
    unity: FakeUnity, catalog: UnityCatalog, place: str, config: dict[str, str], kind: str, values: dict[str, str]
) -> None:
    unity.credentials = lambda location, operation: config
    unity.add(NAME, place)
    table = catalog.find(NAME).catalog_table
    assert table is not None
    assert unity.issued == []
    for each, operation in ((table, "READ"), (table.to_write(), "READ_WRITE")):
        assert each.storage_conn_id is not None
        found = KeptCredentials(each.storage_conn_id).current()
        assert (found.kind, dict(found.values)) == (kind, values)
        assert found.expires_ms is not None
        assert unity.issued[-1] == (NAME, operation)


class At:
    """A clock that stands where a test puts it."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


def test_temporary_credentials_are_renewed_before_they_expire(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders")
    table = catalog.find(NAME).catalog_table
    assert table is not None
    assert table.storage_conn_id is not None
    clock: Any = At(SYSTEM_CLOCK.now_ms())
    unity.life_ms = 600_000
    credentials = KeptCredentials(table.storage_conn_id, AWS, clock)
    first = credentials.current()
    assert credentials.current() is first
    clock.ms += 460_000
    unity.credentials = lambda location, operation: {**ON_S3, "s3.access-key-id": "AK2"}
    assert credentials.current().values["access_key"] == "AK2"
    assert len(unity.issued) == 2
    # A renewal that fails costs nothing while the last ones are valid.
    clock.ms += 130_000
    with unity.harmed(Fault("lost", times=99)):
        assert credentials.current().values["access_key"] == "AK2"


def test_a_refused_privilege_is_said_without_a_secret(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders")
    table = catalog.find(NAME).catalog_table
    assert table is not None
    assert table.to_write().storage_conn_id is not None
    fault = Fault("refused", on="READ_WRITE", status=403, type="PermissionDeniedException", times=9)
    with unity.harmed(fault), pytest.raises(CredentialsUnavailable, match="PermissionDeniedException") as refused:
        KeptCredentials(str(table.to_write().storage_conn_id)).current()
    assert not refused.value.retryable
    with unity.harmed(Fault("lost", times=9)), pytest.raises(CredentialsUnavailable) as away:
        KeptCredentials(str(table.storage_conn_id)).current()
    assert away.value.retryable


def test_neither_a_token_nor_temporary_credentials_are_in_any_text(unity: FakeUnity, catalog: UnityCatalog) -> None:
    unity.add(NAME, "s3://lake/orders")
    entry = catalog.find(NAME)
    assert entry.catalog_table is not None
    found = KeptCredentials(str(entry.catalog_table.storage_conn_id)).current()
    texts = [repr(entry), repr(catalog.__dict__), repr(found), repr(Access(catalog_tables=(entry.catalog_table,)))]
    for wrong in ({"tokens": {"x"}}, {"faults": [Fault("refused", status=500, type=SECRET, times=9)]}):
        before = {name: getattr(unity, name) for name in wrong}
        for name, value in wrong.items():
            setattr(unity, name, value)
        try:
            catalog.find(NAME)
        except TxlogError as error:
            texts += ["".join(traceback.format_exception(error)), json.dumps(error.to_dict())]
            texts.append(repr(pickle.dumps(error)))
        for name, value in before.items():
            setattr(unity, name, value)
    assert len(texts) > 6
    assert [text for text in texts if SECRET in text] == []
    with pytest.raises(TypeError):
        pickle.dumps(found)
    assert SECRET not in repr(pickle.dumps(entry)) + repr(copy.deepcopy(entry))


# --- stores by the catalog's word ---------------------------------------------------------------------------------


def test_a_managed_table_opens_by_what_its_entry_says(unity: FakeUnity, catalog: UnityCatalog, tmp_path: Path) -> None:
    unity.tokens = set()
    fake = created(unity, f"file://{tmp_path}")
    append(opened(unity, fake), rows(1))
    unity.tokens = {f"{SECRET}-bearer"}
    entry = catalog.find(NAME)
    assert entry.catalog_table is not None
    access = Access(catalog_tables=(entry.catalog_table,))
    table = Table(open_store(entry.uri, access))
    assert append(table, rows(2)) == 2
    assert ids(table) == [1, 2]
    # As a task of Spark opens it, and as another process reads it.
    assert pickle.loads(pickle.dumps(access)) == access
    assert ids(Table(open_store(fake.location, table.store.access))) == [1, 2]


def test_a_table_inside_a_managed_one_has_its_credentials_and_no_catalog(
    unity: FakeUnity, catalog: UnityCatalog, tmp_path: Path
) -> None:
    unity.add(NAME, f"file://{tmp_path}/orders")
    entry = catalog.find(NAME)
    assert entry.catalog_table is not None
    access = Access(catalog_tables=(entry.catalog_table,))
    assert open_store(f"{tmp_path}/orders/inner", access).catalog_table is None
    assert open_store(f"{tmp_path}/orders2", access).catalog_table is None
    assert open_store(f"{tmp_path}/orders/", access).catalog_table == entry.catalog_table


# --- registering ------------------------------------------------------------------------------------------------------


def test_an_external_table_is_registered_and_kept_up_to_date(
    unity: FakeUnity, catalog: UnityCatalog, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string()), ("tags", pa.list_(pa.string()))])
    table = Table.create(tmp_path / "t", schema, ["day"], {"delta.appendOnly": "true"})
    catalog.register(describe("main.sales.new", table.snapshot()))
    entry = catalog.find("main.sales.new")
    assert (entry.uri, entry.is_managed, entry.partition_columns) == (str(tmp_path / "t"), False, ("day",))
    assert [each.type_text for each in entry.columns] == ["bigint", "string", "array<string>"]
    assert entry.properties["delta.appendOnly"] == "true"
    # The same again changes nothing, and another place is another table.
    catalog.register(describe("main.sales.new", table.snapshot()))
    assert not catalog.update(describe("main.sales.new", table.snapshot()))
    other = Table.create(tmp_path / "other", schema)
    with pytest.raises(InvalidInput):
        catalog.register(describe("main.sales.new", other.snapshot()))
    changed = describe("main.sales.new", Table.create(tmp_path / "t2", pa.schema([("x", pa.int32())])).snapshot())
    renamed = changed.__class__(
        **{**{name: getattr(changed, name) for name in changed.__slots__}, "uri": str(tmp_path / "t")}
    )
    assert catalog.update(renamed)
    found = catalog.find("main.sales.new")
    assert [each.name for each in found.columns] == ["x"]
    assert "delta.appendOnly" not in found.properties
    assert differences(found, renamed) == []
    assert "table id" in [each["what"] for each in differences(found, describe("main.sales.new", table.snapshot()))]


def test_an_update_that_comes_late_does_not_replace_a_later_version(
    unity: FakeUnity, catalog: UnityCatalog, tmp_path: Path
) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("later", pa.int64())]))
    now = describe("main.sales.new", table.snapshot())
    catalog.register(dataclasses.replace(now, version=7))
    fields = json.loads(now.schema_json)["fields"][:1]
    schema = json.dumps({"type": "struct", "fields": fields})
    late = dataclasses.replace(now, version=6, columns=now.columns[:1], schema_json=schema)
    assert not catalog.update(late)
    assert len(catalog.find("main.sales.new").columns) == 2
    # A table that was created again is another one, and its versions begin anew.
    assert catalog.update(dataclasses.replace(late, version=0, table_id="another"))
    assert len(catalog.find("main.sales.new").columns) == 1


def test_a_table_that_was_replaced_under_its_name_is_not_updated(
    unity: FakeUnity, catalog: UnityCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    unity.add(NAME, f"file://{tmp_path}/t", "EXTERNAL")
    entry = catalog.find(NAME)
    monkeypatch.setattr(catalog, "find", lambda name: entry)
    unity.add(NAME, f"file://{tmp_path}/t", "EXTERNAL")
    with pytest.raises(WrongTableId):
        catalog.update(describe(NAME, table.snapshot()))
