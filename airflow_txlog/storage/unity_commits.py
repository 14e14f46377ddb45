"""Unity Catalog as the committer of one table: its state, ratified commits, and what a commit changes for the catalog.

The protocol demands that a commit and the catalog's columns, properties and protocol change in one request, so the
changes are read from the commit's own bytes. Source: UC Delta API 1.0, "Write a Commit".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_txlog.errors import CatalogRefused, CatalogUnavailable, WrongTableId
from airflow_txlog.locations import CatalogTable
from airflow_txlog.storage.base import Store
from airflow_txlog.storage.committer import CatalogState, Ratified, TooManyUnpublished, VersionTaken
from airflow_txlog.storage.credentials import UNITY, kept
from airflow_txlog.storage.managed import ManagedStore, NewManagedStore
from airflow_txlog.storage.unity_api import TOO_MANY, VERSION_TAKEN, UnityApi, delta_path

# The server derives these from the protocol and the commits, and refuses a request that sets them.
_DERIVED = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion", "delta.lastUpdateVersion")
_ALSO_DERIVED = ("delta.lastCommitTimestamp",)
_DOMAINS = frozenset({"delta.clustering", "delta.rowTracking"})
_HYPHENS = {
    "elementType": "element-type",
    "containsNull": "contains-null",
    "keyType": "key-type",
    "valueType": "value-type",
    "valueContainsNull": "value-contains-null",
}


class UnityCommitter:
    """Ratifies the commits of `table` through `api`."""

    def __init__(self, api: UnityApi, table: CatalogTable) -> None:
        self.table = table
        self._api = api
        self._path = delta_path(table.name)
        self._properties: Mapping[str, str] = {}

    def load(self) -> CatalogState:
        return self._state(self._api.get(self._path, name=self.table.name))

    def ratify(self, commit: Ratified, data: bytes, published: int | None = None) -> CatalogState:
        added = {
            "version": commit.version,
            "timestamp": commit.timestamp_ms,
            "file-name": commit.file_name,
            "file-size": commit.size_bytes,
            "file-modification-timestamp": commit.modified_ms,
        }
        updates = [*changes_of(data, self._properties), {"action": "add-commit", "commit": added}]
        state = self._updated(*updates, *([] if published is None else [_publication(published)]))
        others = [each for each in state.unpublished if each.version == commit.version]
        if state.latest < commit.version or any(each.file_name != commit.file_name for each in others):
            raise self._odd("accepts a commit, and answers with a state without it")
        return state

    def create(self, data: bytes, timestamp_ms: int) -> CatalogState:
        *_, name = self.table.name.split(".")
        body = {
            "name": name,
            "location": self.table.uri,
            "table-type": "MANAGED",
            "last-commit-timestamp-ms": timestamp_ms,
            **_definition_of(data),
        }
        try:
            return self._state(self._api.post(self._path.rpartition("/")[0], body, name=self.table.name))
        except CatalogRefused as error:
            if error.facts["status"] != "AlreadyExistsException":
                raise
        # By an earlier attempt of ours, or by another writer: then its id is another one.
        return self.load()

    def published(self, version: int) -> CatalogState:
        return self._updated(_publication(version))

    def _updated(self, *updates: Mapping[str, Any]) -> CatalogState:
        requirements = [{"type": "assert-table-uuid", "uuid": self.table.table_id}]
        body = {"requirements": requirements, "updates": updates}
        try:
            return self._state(self._api.post(self._path, body, name=self.table.name))
        except CatalogRefused as error:
            if error.facts["status"] == VERSION_TAKEN:
                raise VersionTaken from None
            if error.facts["status"] == TOO_MANY:
                raise TooManyUnpublished from None
            raise

    def _state(self, answer: Mapping[str, Any]) -> CatalogState:
        """Return the state in an answer. Raises WrongTableId, CatalogUnavailable for an answer of another shape."""
        try:
            table_id = answer["metadata"]["table-uuid"]
            properties = dict(answer["metadata"].get("properties") or {})
            commits = [_ratified(each) for each in answer["commits"]]
            latest = int(answer["latest-table-version"])
            versions = {each.version for each in commits}
            if len(versions) < len(commits) or max(versions, default=latest) > latest:
                raise ValueError("two commits of one version, or one after the latest")
        except (KeyError, TypeError, ValueError):
            raise self._odd("answers without the versions of a catalog-managed table") from None
        if table_id != self.table.table_id:
            raise WrongTableId(
                f"{self.table.name} is another table now: it was dropped and created again since its name was "
                "resolved. Nothing was read or written. Run the task again.",
                connection=self.table.catalog_conn_id,
                name=self.table.name,
                expected=self.table.table_id,
                found=str(table_id),
                retryable=True,
            )
        self._properties = properties
        commits.sort(key=lambda each: each.version)
        return CatalogState(latest=latest, unpublished=tuple(commits))

    def _odd(self, what: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"The catalog at {self.table.endpoint}, asked about {self.table.name}, {what}.",
            connection=self.table.catalog_conn_id,
            name=self.table.name,
        )


def _publication(version: int) -> dict[str, Any]:
    return {"action": "set-latest-backfilled-version", "latest-published-version": version}


def _ratified(given: Mapping[str, Any]) -> Ratified:
    name = given["file-name"]
    version = int(given["version"])
    # The name is input: it must not lead elsewhere.
    if not isinstance(name, str) or "/" in name or not name.startswith(f"{version:020d}."):
        raise ValueError("no name of a staged commit")
    return Ratified(
        version=version,
        file_name=name,
        size_bytes=int(given["file-size"]),
        modified_ms=int(given["file-modification-timestamp"]),
        timestamp_ms=int(given["timestamp"]),
    )


def changes_of(data: bytes, properties: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the updates for the catalog that a commit's bytes require. `properties`: the catalog's own."""
    domains: dict[str, Any] = {}
    removed: list[str] = []
    for line in data.splitlines():
        if not line.startswith((b'{"metaData"', b'{"protocol"', b'{"domainMetadata"')):
            continue
        action = json.loads(line)
        if "metaData" in action:
            yield from _of_metadata(action["metaData"], properties)
        elif "protocol" in action:
            yield {"action": "set-protocol", "protocol": protocol_for_catalog(action["protocol"])}
        elif action["domainMetadata"]["domain"] in _DOMAINS:
            domain = action["domainMetadata"]
            if domain.get("removed"):
                removed.append(domain["domain"])
            else:
                domains[domain["domain"]] = json.loads(domain["configuration"])
    if domains:
        yield {"action": "set-domain-metadata", "updates": domains}
    if removed:
        yield {"action": "remove-domain-metadata", "domains": removed}


def _definition_of(data: bytes) -> dict[str, Any]:
    """Return the definition of a new table, from its first commit."""
    found: dict[str, Any] = {"domain-metadata": {}}
    for line in data.splitlines():
        action = json.loads(line)
        if "metaData" in action:
            metadata = action["metaData"]
            found["columns"] = columns_for_catalog(metadata["schemaString"])
            found["partition-columns"] = list(metadata.get("partitionColumns") or ())
            found["properties"] = metadata.get("configuration") or {}
            found |= {"comment": metadata["description"]} if metadata.get("description") else {}
        elif "protocol" in action:
            found["protocol"] = protocol_for_catalog(action["protocol"])
        elif "domainMetadata" in action and action["domainMetadata"]["domain"] in _DOMAINS:
            domain = action["domainMetadata"]
            found["domain-metadata"][domain["domain"]] = json.loads(domain["configuration"])
    return found


def _of_metadata(metadata: Mapping[str, Any], known: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    configuration = metadata.get("configuration") or {}
    yield {"action": "set-columns", "columns": columns_for_catalog(metadata["schemaString"])}
    yield {"action": "set-partition-columns", "partition-columns": list(metadata.get("partitionColumns") or ())}
    updates = {key: value for key, value in configuration.items() if not is_derived(key)}
    if updates:
        yield {"action": "set-properties", "updates": updates}
    gone = sorted(key for key in known.keys() - configuration.keys() if not is_derived(key))
    if gone:
        yield {"action": "remove-properties", "removals": gone}
    if metadata.get("description"):
        yield {"action": "set-table-comment", "comment": metadata["description"]}


def is_derived(name: str) -> bool:
    """Return whether the server derives a property itself."""
    return name.startswith(_DERIVED) or name in _ALSO_DERIVED


def protocol_for_catalog(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol action in the spelling of the catalog."""
    return {
        "min-reader-version": protocol["minReaderVersion"],
        "min-writer-version": protocol["minWriterVersion"],
        "reader-features": list(protocol.get("readerFeatures") or ()),
        "writer-features": list(protocol.get("writerFeatures") or ()),
    }


def columns_for_catalog(schema: str) -> dict[str, Any]:
    """Return a schema of the log in the spelling of the catalog: that of the log, with hyphens."""
    found: dict[str, Any] = _hyphenated(json.loads(schema))
    return found


def columns_of_catalog(columns: Mapping[str, Any]) -> str:
    """Return the schema of the log of a catalog's columns: the opposite of `columns_for_catalog`."""
    return json.dumps(_without_hyphens(columns))


def _without_hyphens(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "struct":
        fields = [{**each, "type": _without_hyphens(each["type"])} for each in kind["fields"]]
        return {"type": "struct", "fields": fields}
    names = {after: before for before, after in _HYPHENS.items()}
    return {names.get(name, name): _without_hyphens(value) for name, value in kind.items()}


def _hyphenated(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind.get("type") == "struct":
        fields = [{**each, "type": _hyphenated(each["type"])} for each in kind["fields"]]
        return {"type": "struct", "fields": fields}
    return {_HYPHENS.get(name, name): _hyphenated(value) for name, value in kind.items()}


def managed(inner: Store, table: CatalogTable) -> ManagedStore:
    """Return the store of a table that the catalog manages. Nothing is sent yet."""
    token = kept(table.catalog_conn_id, UNITY)
    api = UnityApi(table.endpoint, lambda: token.current().values["token"], connection=table.catalog_conn_id)
    committer = UnityCommitter(api, table)
    return ManagedStore(inner, committer) if table.new_properties is None else NewManagedStore(inner, committer)
