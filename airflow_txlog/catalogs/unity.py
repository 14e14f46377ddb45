"""Unity Catalog: names, temporary credentials, new tables. Its HTTP and the commits of its tables are in `storage`.

A name is resolved by one request of the UC Delta API; of a server without it, by one more of the catalog's own API.
Temporary credentials are requested when a store is opened, and again before they expire: `offer` registers the request
under a name of its own for each table and privilege, and `Entry.catalog_table` carries that name to every process.
Invariant: the token and the temporary credentials are in memory alone.
Source: UC Delta API 1.0; Unity Catalog API 2.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_txlog.catalogs.base import TABLE_ID, CatalogColumn, Description, Entry, check_place, is_newer, name_parts
from airflow_txlog.catalogs.describe import column_of
from airflow_txlog.catalogs.places import ALL_STORES, OBJECT_STORES, table_place
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.errors import (
    CatalogRefused,
    CatalogUnavailable,
    CorruptTable,
    InvalidInput,
    NotADeltaTable,
    TableNotInCatalog,
)
from airflow_txlog.locations import LOCAL, READ, READ_WRITE, CatalogTable, canonical_place, store_kind
from airflow_txlog.storage.credentials import AWS, AZURE, GOOGLE, UNITY, Credentials, kept, offer, unavailable
from airflow_txlog.storage.unity_api import UnityApi, delta_path
from airflow_txlog.storage.unity_commits import columns_for_catalog, columns_of_catalog, is_derived

# The server derives VERSION itself.
_VERSION = "txlog.version"
_NO_DELTA = "UnsupportedTableFormatException"
# Delta's types by the names of the catalog's own API.
_TYPE_NAMES = {
    **dict.fromkeys(("boolean", "byte", "short", "long", "float", "double", "date", "timestamp", "string", "binary")),
    "integer": "INT",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "variant": "VARIANT",
}


class UnityCatalog:
    """The catalog behind one connection, whose token is offered under the connection's id."""

    def __init__(self, connection: str, url: str) -> None:
        self.connection = connection
        token = kept(connection, UNITY)
        self.new_tables: dict[str, CatalogTable] = {}
        """The managed tables that do not exist yet, by their places."""
        # The disk of this machine is no place that a catalog elsewhere may name.
        is_here = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        self._stores = ALL_STORES if is_here else OBJECT_STORES
        self._api = UnityApi(url, lambda: token.current().values["token"], connection=connection)

    def find(self, name: str) -> Entry:
        """Return the table's entry, by one request. Its temporary credentials are offered, and not requested yet."""
        name = self._name(name)
        try:
            answer = self._api.get(delta_path(name), name=name)
        except CatalogRefused as error:
            if error.facts["status"] == _NO_DELTA:
                raise self._no_delta(name, "another format than Delta") from None
            # A server without the Delta API does not know the path.
            if error.facts["status"] not in ("404", "NotFoundException"):
                raise
            return self._entry(name, self._old_facts(name), is_catalog_managed=False)
        metadata = answer.get("metadata")
        if not isinstance(metadata, dict):
            raise self._odd(name)
        return self._entry(name, metadata, is_catalog_managed=answer.get("latest-table-version") is not None)

    def place_for(self, name: str) -> str:
        """Return the place of a new managed table, which the catalog chooses, and keep its facts in `new_tables`."""
        name = self._name(name)
        *_, last = name.split(".")
        schema = delta_path(name).rpartition("/tables/")[0]
        answer = self._api.post(f"{schema}/staging-tables", {"name": last}, name=name, repeats=True)
        try:
            table_id, location = str(answer["table-id"]), str(answer["location"])
            protocol, required = answer["required-protocol"], dict(answer["required-properties"])
            features = {*(protocol.get("reader-features") or ()), *(protocol.get("writer-features") or ())}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._odd(name) from None
        uri = table_place(self.connection, name, location, self._stores)
        offered = None
        if store_kind(uri) != LOCAL:
            offered = self._offered(name, f"{table_id}:{READ_WRITE}")
            offer(offered, partial(self._credentials_of_new, name, uri, table_id, offered))
        self.new_tables[uri] = CatalogTable(
            uri=canonical_place(uri),
            name=name,
            endpoint=self._api.url,
            catalog_conn_id=self.connection,
            table_id=table_id,
            is_managed=True,
            storage_conn_id=offered,
            new_properties=json.dumps({**required, **{f"delta.feature.{each}": "supported" for each in features}}),
        )
        return uri

    def register(self, table: Description) -> None:
        """Create the entry as an external table, or update the one of the same place."""
        name = self._name(table.name)
        if table.uri in self.new_tables:
            # Its first commit has given it its name.
            check_place(self.find(name), table)
            return
        catalog, schema, last = name.split(".")
        body = {
            "name": last,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": canonical_place(table.uri),
            "columns": _columns(table),
            "properties": _properties(table),
        } | ({"comment": table.comment} if table.comment else {})
        try:
            self._api.post("/tables", body, name=name, repeats=True)
        except CatalogRefused as error:
            if "ALREADY_EXISTS" not in str(error.facts["status"]):
                raise
            check_place(self.find(name), table)
            self.update(table)

    def update(self, table: Description) -> bool:
        """Write columns and properties of an external table, unless the entry is of a later version.

        A managed table's are written with each commit.
        """
        name = self._name(table.name)
        entry = self.find(name)
        check_place(entry, table)
        if entry.is_managed or entry.catalog_table is None:
            return False
        wanted, known = _properties(table), dict(entry.properties)
        # Those of others stay; Delta's own are the table's.
        gone = sorted(key for key in known.keys() - wanted.keys() if key.startswith("delta."))
        is_same = entry.columns == table.columns and wanted.items() <= known.items() and not gone
        if is_same or is_newer(known, table, _VERSION):
            return False
        updates: list[dict[str, Any]] = [
            {"action": "set-columns", "columns": columns_for_catalog(table.schema_json)},
            {"action": "set-partition-columns", "partition-columns": list(table.partition_columns)},
            {"action": "set-properties", "updates": wanted},
        ]
        if gone:
            updates.append({"action": "remove-properties", "removals": gone})
        requirements = [{"type": "assert-table-uuid", "uuid": entry.catalog_table.table_id}]
        body = {"requirements": requirements, "updates": updates}
        self._api.post(delta_path(name), body, name=name, repeats=True)
        return True

    # --- answers --------------------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        parts = name_parts(name, 3)
        if any("." in part for part in parts):
            raise InvalidInput(f"No part of a name in Unity Catalog has a dot in it; found {name!r}. Nothing was read.")
        return ".".join(parts)

    def _old_facts(self, name: str) -> dict[str, Any]:
        """Return the facts of a table by the catalog's own API, under the names of the Delta API."""
        answer = self._api.get(f"/tables/{quote(name, safe='')}", name=name)
        if str(answer.get("data_source_format", "")).upper() != "DELTA":
            raise self._no_delta(name, str(answer.get("data_source_format")))
        return {
            "table-type": answer.get("table_type"),
            "table-uuid": answer.get("table_id"),
            "location": answer.get("storage_location"),
            "properties": answer.get("properties"),
        }

    def _entry(self, name: str, facts: Mapping[str, Any], *, is_catalog_managed: bool) -> Entry:
        kind, table_id = str(facts.get("table-type", "")).upper(), facts.get("table-uuid")
        if kind not in ("MANAGED", "EXTERNAL"):
            raise self._no_delta(name, f"the type {kind}")
        if not isinstance(table_id, str) or not table_id:
            raise self._odd(name)
        uri = table_place(self.connection, name, str(facts.get("location") or ""), self._stores)
        given = facts.get("properties") or {}
        if not isinstance(given, dict):
            raise self._odd(name)
        properties = {str(key): str(value) for key, value in given.items()}
        is_local = store_kind(uri) == LOCAL
        if not is_local:
            for operation in (READ, READ_WRITE):
                fetch = partial(self._credentials, name, uri, operation, table_id)
                offer(self._offered(name, f"{table_id}:{operation}"), fetch)
        return Entry(
            name=name,
            uri=uri,
            namespace=f"unitycatalog://{self._api.url.partition('://')[2]}",
            dataset=name,
            is_managed=kind == "MANAGED",
            properties={key: value for key, value in properties.items() if not is_derived(key)},
            columns=_columns_of(facts.get("columns")),
            partition_columns=_texts_of(facts.get("partition-columns")),
            catalog_table=CatalogTable(
                uri=canonical_place(uri),
                name=name,
                endpoint=self._api.url,
                catalog_conn_id=self.connection,
                table_id=table_id,
                is_managed=is_catalog_managed,
                storage_conn_id=None if is_local else self._offered(name, f"{table_id}:{READ}"),
            ),
        )

    def _no_delta(self, name: str, what: str) -> NotADeltaTable:
        return NotADeltaTable(
            f"{name} of the catalog {self.connection!r} has {what}: it is no Delta table. Nothing was read or written.",
            connection=self.connection,
            name=name,
            format=what,
        )

    def _odd(self, name: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"The catalog {self.connection!r} answers about {name} without the facts of a table.",
            connection=self.connection,
            name=name,
        )

    # --- credentials ----------------------------------------------------------------------------------------------

    def _offered(self, name: str, operation: str) -> str:
        return f"{self.connection}:{name}:{operation}"

    def _credentials(self, name: str, uri: str, operation: str, table_id: str) -> Credentials:
        """Return the temporary credentials of a table. Raises CredentialsUnavailable."""
        offered = self._offered(name, f"{table_id}:{operation}")
        with _as_unavailable(offered):
            try:
                answer = self._api.get(f"{delta_path(name)}/credentials?operation={operation}", name=name)
                config, expires_ms = _chosen(answer, uri)
            except CatalogRefused as error:
                if error.facts["status"] not in ("404", "NotFoundException"):
                    raise
                body = {"table_id": table_id, "operation": operation}
                answer = self._api.post("/temporary-table-credentials", body, name=name, repeats=True)
                config, expires_ms = _old_config(answer)
            return _credentials(config, expires_ms, offered)

    def _credentials_of_new(self, name: str, uri: str, table_id: str, offered: str) -> Credentials:
        """Return the temporary credentials of a table that does not exist yet, or has just been created."""
        with _as_unavailable(offered):
            try:
                path = f"/delta/v1/staging-tables/{quote(table_id, safe='')}/credentials"
                answer = self._api.get(path, name=name)
            except TableNotInCatalog:
                return self._credentials(name, uri, READ_WRITE, table_id)
            return _credentials(*_chosen(answer, uri), offered)


@contextmanager
def _as_unavailable(offered: str) -> Iterator[None]:
    """Raise the catalog's errors as CredentialsUnavailable. Those of an odd answer could quote what is in it."""
    try:
        yield
    except CatalogRefused as error:
        raise unavailable(offered, f"the catalog refuses them ({error.facts['status']})") from None
    except CatalogUnavailable as error:
        raise unavailable(offered, error.message, retryable=True) from None
    except TableNotInCatalog:
        raise unavailable(offered, "the catalog has no such table any more") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise unavailable(offered, "the catalog's answer is malformed") from None


def _chosen(answer: Mapping[str, Any], uri: str) -> tuple[Mapping[str, str], int | None]:
    """Return the configuration and the expiry of the credentials with the longest prefix of a place."""
    place, best = f"{canonical_place(uri)}/", ""
    chosen: tuple[Mapping[str, str], int | None] = {}, None
    for each in answer.get("storage-credentials") or ():
        prefix = canonical_place(each["prefix"])
        if place.startswith(f"{prefix}/") and len(prefix) > len(best):
            best, chosen = prefix, (each["config"], each["expiration-time-ms"])
    return chosen


def _credentials(config: Mapping[str, str], expires_ms: int | None, offered: str) -> Credentials:
    values = _values(config)
    if values is None:
        raise unavailable(offered, "the catalog issues none for this place")
    if not all(isinstance(value, str) for value in values[1].values()):
        raise ValueError("a credential is a text")
    return Credentials(kind=values[0], values=values[1], expires_ms=None if expires_ms is None else int(expires_ms))


def _values(config: Mapping[str, str]) -> tuple[str, dict[str, str]] | None:
    """Return the kind and the values of credentials, from the catalog's configuration."""
    if config.get("s3.access-key-id"):
        values = {"access_key": config["s3.access-key-id"], "secret_key": config["s3.secret-access-key"]}
        return AWS, values | ({"token": config["s3.session-token"]} if config.get("s3.session-token") else {})
    if config.get("gcs.oauth-token"):
        return GOOGLE, {"token": config["gcs.oauth-token"]}
    if config.get("azure.sas-token"):
        return AZURE, {"sas_token": config["azure.sas-token"]}
    return None


def _old_config(answer: Mapping[str, Any]) -> tuple[dict[str, str], int | None]:
    """Return the configuration and the expiry of an answer of the catalog's own API."""
    aws = answer.get("aws_temp_credentials") or {}
    azure = answer.get("azure_user_delegation_sas") or {}
    google = answer.get("gcp_oauth_token") or {}
    found = {
        "s3.access-key-id": aws.get("access_key_id"),
        "s3.secret-access-key": aws.get("secret_access_key"),
        "s3.session-token": aws.get("session_token"),
        "azure.sas-token": azure.get("sas_token"),
        "gcs.oauth-token": google.get("oauth_token"),
    }
    return {key: value for key, value in found.items() if value}, answer.get("expiration_time")


# --- columns --------------------------------------------------------------------------------------------------------


def _properties(table: Description) -> dict[str, str]:
    """Return the properties of an external table's entry. Without ids of the log, the catalog gets ours."""
    found = {key: value for key, value in table.properties.items() if not is_derived(key)}
    return {**found, TABLE_ID: table.table_id, _VERSION: str(table.version)}


def _columns(table: Description) -> list[dict[str, Any]]:
    """Return the columns as the catalog's own API takes them."""
    texts = {column.name: column for column in table.columns}
    found = []
    for position, field in enumerate(json.loads(table.schema_json)["fields"]):
        kind, name = field["type"], field["name"]
        word = kind.partition("(")[0] if isinstance(kind, str) else kind["type"]
        column = {
            "name": name,
            "type_text": texts[name].type_text,
            "type_name": _TYPE_NAMES.get(word) or word.upper(),
            "type_json": json.dumps(field),
            "position": position,
            "nullable": field["nullable"],
        }
        if name in table.partition_columns:
            column["partition_index"] = list(table.partition_columns).index(name)
        if texts[name].comment:
            column["comment"] = texts[name].comment
        found.append(column)
    return found


def _texts_of(given: Any) -> tuple[str, ...]:
    return tuple(map(str, given)) if isinstance(given, list) else ()


def _columns_of(columns: Any) -> tuple[CatalogColumn, ...]:
    """Return the columns in an answer; none if they are not in the form of Delta's schemas."""
    if not isinstance(columns, dict):
        return ()
    try:
        schema = parse_schema(columns_of_catalog(columns))
    except (CorruptTable, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(map(column_of, schema.fields))
