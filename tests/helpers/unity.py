"""A fake of Unity Catalog: an HTTP server on loopback with the endpoints that this package calls.

It is a fake, made from answers that were recorded on a real server (Unity Catalog 0.7.0-SNAPSHOT, August 2026) and from
the text of the UC Delta API 1.0: its shapes, its refusals and their types, and its idempotence. No package registry has
the real server. A `Fault` harms one request: it is lost before or after it took effect, delayed, or refused.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BASE = "/api/2.1/unity-catalog"
DERIVED = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion", "delta.lastUpdateVersion")
REQUIRED = {
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpoint.writeStatsAsJson": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.enableDeletionVectors": "true",
}
READER_FEATURES = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]


class Refusal(Exception):
    """An answer that is no 200, in the form of the UC Delta API."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class FakeTable:
    """One table, as the server keeps it. `commits`: the ratified and unpublished ones, by version."""

    name: str
    location: str
    table_id: str
    table_type: str = "MANAGED"
    format: str = "DELTA"
    columns: dict[str, Any] = field(default_factory=lambda: {"type": "struct", "fields": []})
    partition_columns: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    latest: int = 0
    etag: int = 0
    last_commit_version: int = 0
    file_names: dict[int, str] = field(default_factory=dict)
    """Every ratified name, published or not: a repeated request is recognised by it."""

    @property
    def is_managed(self) -> bool:
        return self.table_type == "MANAGED"

    def shown(self) -> dict[str, Any]:
        """The answer of loadTable."""
        found: dict[str, Any] = {
            "metadata": {
                "etag": f"etag-{self.etag}",
                "table-type": self.table_type,
                "table-uuid": self.table_id,
                "location": self.location,
                "created-time": 1,
                "updated-time": 1,
                "columns": self.columns,
                "partition-columns": self.partition_columns,
                "properties": {**self.properties, "delta.lastUpdateVersion": str(self.last_commit_version)},
                "last-commit-version": self.last_commit_version,
                "last-commit-timestamp-ms": 1,
            },
            "commits": [self.commits[version] for version in sorted(self.commits, reverse=True)],
        }
        return {**found, "latest-table-version": self.latest} if self.is_managed else found


@dataclass
class Fault:
    """Harm to the first request that matches `on`, a part of `METHOD /path BODY`, after `after` others that do.

    `kind`: "lost" (the request has no effect, the connection breaks), "unanswered" (it has its effect), "refused"
    (`status` and `type`), "delayed" (it takes effect after `delay_s`).
    """

    kind: str
    on: str = ""
    after: int = 0
    status: int = 503
    type: str = "ServiceUnavailableException"
    delay_s: float = 0.0
    times: int = 1


class FakeUnity:
    """A server of tables named `catalog.schema.table`; use it as a context manager."""

    def __init__(self) -> None:
        self.tables: dict[str, FakeTable] = {}
        self.staged: dict[str, FakeTable] = {}
        self.root = ""
        """Where managed tables are created: a URI."""
        self.tokens: set[str] = set()
        """The bearer tokens that are accepted; without any, none is needed."""
        self.max_unpublished = 50
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """`METHOD /path` of every request, without BASE."""
        self.authorizations: list[str] = []
        self.credentials: Callable[[str, str], dict[str, str]] = lambda location, operation: {}
        """The `config` of the temporary credentials of a location and an operation."""
        self.life_ms = 3_600_000
        self.issued: list[tuple[str, str]] = []
        """The table and the operation of every temporary credential."""
        self._lock = threading.Lock()

    def __enter__(self) -> FakeUnity:
        handler = type("Handler", (_Handler,), {"unity": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    # --- for tests ------------------------------------------------------------------------------------------------

    def add(self, name: str, location: str, table_type: str = "MANAGED", **fields: Any) -> FakeTable:
        """Register a table whose files exist."""
        table_id = str(fields.pop("table_id", uuid.uuid4()))
        table = FakeTable(name=name, location=location, table_id=table_id, table_type=table_type, **fields)
        self.tables[name] = table
        return table

    @contextmanager
    def harmed(self, *faults: Fault) -> Iterator[None]:
        self.faults.extend(faults)
        try:
            yield
        finally:
            self.faults.clear()

    # --- the server -----------------------------------------------------------------------------------------------

    def fault_of(self, request: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.on in request:
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            for verb, pattern, do in _ROUTES:
                match = re.fullmatch(pattern, path)
                if match and verb == method:
                    return do(self, *map(unquote, match.groups()), query=query, body=body)
        raise Refusal(404, "NotFoundException", f"no endpoint {method} {path}")

    def _named(self, catalog: str, schema: str, table: str) -> FakeTable:
        found = self.tables.get(f"{catalog}.{schema}.{table}")
        if found is None:
            raise Refusal(404, "NoSuchTableException", f"Table not found: {catalog}.{schema}.{table}")
        return found

    def load(self, *name: str, query: Any, body: Any) -> dict[str, Any]:
        table = self._named(*name)
        if table.format != "DELTA":
            raise Refusal(400, "UnsupportedTableFormatException", f"Table {table.name} is of format {table.format}")
        return table.shown()

    def vend(self, *name: str, query: dict[str, list[str]], body: Any) -> dict[str, Any]:
        table = self._named(*name)
        operation = query.get("operation", [""])[0]
        if operation not in ("READ", "READ_WRITE"):
            raise Refusal(400, "BadRequestException", "operation must be READ or READ_WRITE")
        return {"storage-credentials": self._issued(table, operation)}

    def _issued(self, table: FakeTable, operation: str) -> list[dict[str, Any]]:
        self.issued.append((table.name, operation))
        ends = {"operation": operation, "expiration-time-ms": int(time.time() * 1000) + self.life_ms}
        config = self.credentials(table.location, operation)
        parent = table.location.rpartition("/")[0]
        # A shorter prefix comes too, whose credentials open nothing: the longest one that fits is meant.
        wrong = {key: f"wrong-{value}" for key, value in config.items()}
        return [{"prefix": parent, "config": wrong, **ends}, {"prefix": table.location, "config": config, **ends}]

    def vend_new(self, table_id: str, query: Any, body: Any) -> dict[str, Any]:
        table = next((each for each in self.staged.values() if each.table_id == table_id), None)
        if table is None:
            raise Refusal(404, "NoSuchTableException", f"No staging table {table_id}")
        return {"storage-credentials": self._issued(table, "READ_WRITE")}

    def stage(self, catalog: str, schema: str, query: Any, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{catalog}.{schema}.{body['name']}"
        if name in self.tables:
            raise Refusal(409, "AlreadyExistsException", f"Table already exists: {name}")
        table_id = str(uuid.uuid4())
        location = f"{self.root}/__unitystorage/catalogs/{catalog}/tables/{table_id}"
        self.staged[name] = table = FakeTable(name=name, location=location, table_id=table_id)
        return {
            "table-id": table_id,
            "table-type": "MANAGED",
            "location": location,
            "storage-credentials": self._issued(table, "READ_WRITE"),
            "required-protocol": {
                "min-reader-version": 3,
                "min-writer-version": 7,
                "reader-features": READER_FEATURES,
                "writer-features": [*READER_FEATURES, "inCommitTimestamp"],
            },
            "suggested-protocol": {"reader-features": ["columnMapping"], "writer-features": ["rowTracking"]},
            "required-properties": {**REQUIRED, "io.unitycatalog.tableId": table_id},
            "suggested-properties": {"delta.columnMapping.mode": "name", "delta.enableRowTracking": "true"},
        }

    def create(self, catalog: str, schema: str, query: Any, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{catalog}.{schema}.{body['name']}"
        if name in self.tables:
            raise Refusal(409, "AlreadyExistsException", f"Table already exists: {name}")
        table = self.staged.get(name)
        if table is None or table.location != body["location"]:
            raise Refusal(404, "NoSuchTableException", f"Staging table not found: {name}")
        properties = dict(body["properties"])
        for key, value in {**REQUIRED, "io.unitycatalog.tableId": table.table_id}.items():
            if properties.get(key) != value:
                found = properties.get(key, "null")
                raise Refusal(
                    400,
                    "InvalidParameterValueException",
                    f"MANAGED table required property '{key}' must be '{value}' (got '{found}').",
                )
        missing = set(READER_FEATURES) - set(body["protocol"].get("reader-features", ()))
        if missing or body.get("table-type") != "MANAGED" or not body.get("last-commit-timestamp-ms"):
            raise Refusal(400, "InvalidParameterValueException", f"missing: {sorted(missing)}")
        table.columns, table.partition_columns = body["columns"], body.get("partition-columns", [])
        table.properties = properties
        self.tables[name] = self.staged.pop(name)
        return table.shown()

    def update(self, *name: str, query: Any, body: dict[str, Any]) -> dict[str, Any]:
        table = self._named(*name)
        requirements = {each["type"]: each for each in body.get("requirements", ())}
        if requirements.get("assert-table-uuid", {}).get("uuid") != table.table_id:
            raise Refusal(409, "UpdateRequirementConflictException", "assert-table-uuid failed")
        etag = requirements.get("assert-etag", {}).get("etag")
        if etag is not None and etag != f"etag-{table.etag}":
            raise Refusal(409, "UpdateRequirementConflictException", "assert-etag failed")
        updates = {each["action"]: each for each in body["updates"]}
        is_repeated = False
        if "add-commit" in updates:
            is_repeated = self._commit(table, updates["add-commit"]["commit"], updates)
        if not is_repeated:
            _change(table, updates)
        published = updates.get("set-latest-backfilled-version")
        if published is not None:
            if published["latest-published-version"] > table.latest:
                raise Refusal(400, "InvalidParameterValueException", "cannot be published before it is ratified")
            for version in [each for each in table.commits if each <= published["latest-published-version"]]:
                del table.commits[version]
        return table.shown()

    def _commit(self, table: FakeTable, commit: dict[str, Any], updates: dict[str, Any]) -> bool:
        """Ratify; return whether the same commit was ratified before."""
        version, name = commit["version"], commit["file-name"]
        if not table.is_managed:
            raise Refusal(400, "InvalidParameterValueException", "Only managed tables are supported for Delta commits")
        for key in ("version", "timestamp", "file-size", "file-modification-timestamp"):
            if not isinstance(commit[key], int) or commit[key] <= 0:
                raise Refusal(400, "InvalidParameterValueException", f"{key} must be positive")
        if version <= table.latest:
            if table.file_names.get(version) == name:
                return True
            winner = table.file_names.get(version)
            raise Refusal(409, "CommitVersionConflictException", f"version {version} is committed already: {winner}")
        if version != table.latest + 1:
            raise Refusal(
                400,
                "InvalidParameterValueException",
                f"Commit version must be the next version after the latest commit {table.latest}, but got {version}",
            )
        published = updates.get("set-latest-backfilled-version", {}).get("latest-published-version", -1)
        if len([each for each in table.commits if each > published]) >= self.max_unpublished:
            raise Refusal(429, "ResourceExhaustedException", "too many unpublished commits")
        table.commits[version] = commit
        table.file_names[version] = name
        table.latest = version
        return False

    def old_table(self, name: str, query: Any, body: Any) -> dict[str, Any]:
        """GET /tables/{full name} of the catalog's own API."""
        table = self.tables.get(name)
        if table is None:
            raise Refusal(404, "TABLE_NOT_FOUND", f"Table not found: {name}")
        catalog, schema, last = name.split(".")
        return {
            "name": last,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": table.table_type,
            "data_source_format": table.format,
            "columns": [],
            "storage_location": table.location,
            "properties": table.properties,
            "table_id": table.table_id,
        }

    def old_create(self, query: Any, body: dict[str, Any]) -> dict[str, Any]:
        """POST /tables: an external table."""
        name = ".".join((body["catalog_name"], body["schema_name"], body["name"]))
        if name in self.tables:
            raise Refusal(400, "TABLE_ALREADY_EXISTS", f"Table already exists: {name}")
        fields = [json.loads(each["type_json"]) for each in body["columns"]]
        self.tables[name] = FakeTable(
            name=name,
            location=body["storage_location"],
            table_id=str(uuid.uuid4()),
            table_type=body["table_type"],
            format=body["data_source_format"],
            columns={"type": "struct", "fields": fields},
            partition_columns=[each["name"] for each in body["columns"] if each.get("partition_index") is not None],
            properties=dict(body.get("properties") or {}),
        )
        return self.old_table(name, query, body)


def _change(table: FakeTable, updates: dict[str, Any]) -> None:
    before = (table.columns, table.partition_columns, dict(table.properties))
    table.columns = updates.get("set-columns", {}).get("columns", table.columns)
    table.partition_columns = updates.get("set-partition-columns", {}).get("partition-columns", table.partition_columns)
    for key, value in updates.get("set-properties", {}).get("updates", {}).items():
        if key.startswith(DERIVED):
            raise Refusal(400, "InvalidParameterValueException", f"{key} is derived by the server")
        table.properties[key] = value
    for key in updates.get("remove-properties", {}).get("removals", ()):
        table.properties.pop(key, None)
    if before != (table.columns, table.partition_columns, table.properties):
        table.etag += 1
        table.last_commit_version = table.latest


_DELTA = "/delta/v1/catalogs/([^/]+)/schemas/([^/]+)"
_ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", f"{_DELTA}/tables/([^/]+)", FakeUnity.load),
    ("GET", f"{_DELTA}/tables/([^/]+)/credentials", FakeUnity.vend),
    ("POST", f"{_DELTA}/staging-tables", FakeUnity.stage),
    ("GET", "/delta/v1/staging-tables/([^/]+)/credentials", FakeUnity.vend_new),
    ("POST", f"{_DELTA}/tables", FakeUnity.create),
    ("POST", f"{_DELTA}/tables/([^/]+)", FakeUnity.update),
    ("GET", "/tables/([^/]+)", FakeUnity.old_table),
    ("POST", "/tables", FakeUnity.old_create),
)


class _Handler(BaseHTTPRequestHandler):
    unity: FakeUnity
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        unity = self.unity
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length).decode()
        place = urlsplit(self.path)
        path = place.path.removeprefix(BASE)
        unity.requests.append(f"{method} {path}")
        unity.authorizations.append(self.headers.get("Authorization", ""))
        request = f"{method} {path}?{place.query} {text}"
        fault = unity.fault_of(request)
        if fault is not None and fault.kind == "lost":
            self._hang_up()
            return
        if fault is not None and fault.kind == "delayed":
            time.sleep(fault.delay_s)
        try:
            if fault is not None and fault.kind == "refused":
                raise Refusal(fault.status, fault.type, f"refused: {fault.type}")
            if unity.tokens and self.headers.get("Authorization", "").removeprefix("Bearer ") not in unity.tokens:
                raise Refusal(401, "UNAUTHENTICATED", "Invalid bearer token")
            status, found = 200, unity.answer(method, path, parse_qs(place.query), json.loads(text or "{}"))
        except Refusal as refusal:
            status = refusal.status
            found = {"error": {"message": str(refusal), "type": refusal.kind, "code": status, "stack": None}}
            if not path.startswith("/delta/"):
                found = {"error_code": refusal.kind, "details": [], "message": str(refusal)}
        if fault is not None and fault.kind == "unanswered":
            self._hang_up()
            return
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""
