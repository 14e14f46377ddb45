"""AWS Glue Data Catalog: its JSON protocol over HTTPS, signed by botocore.

Only botocore's signer and its HTTP session are used: a client for Glue would read its description of the service for
a fifth of a second in each task. A failed connection, a throttled request and an error of the service are tried again.
Source: AWS Glue Web API reference, GetTable, GetDatabase, CreateTable, UpdateTable.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SigningCredentials
from botocore.credentials import EnvProvider
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError

from airflow_txlog import __version__
from airflow_txlog.catalogs.base import (
    CatalogColumn,
    Description,
    Entry,
    check_place,
    is_newer,
    name_parts,
    not_found,
    of_service,
    spelled,
    well_formed,
)
from airflow_txlog.catalogs.hive_tables import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    HiveTable,
    column_records,
    hive_entry,
    new_parameters,
    one_line,
    parameters_of,
)
from airflow_txlog.catalogs.places import table_place
from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable
from airflow_txlog.locations import CatalogTable
from airflow_txlog.storage.credentials import unavailable

# A table in Glue is on S3. Another place in it would make this process read its own disk.
_STORES = ("s3",)
_TRIES = 3
_TIMEOUTS_S, _LONGEST_S = (5.0, 30.0), 60.0
_MOST_BYTES, _PIECE_BYTES = 16 * 1024 * 1024, 64 * 1024
# Source: AWS Glue API, limits of Column.Comment and Table.Description.
_COMMENT_CHARACTERS, _DESCRIPTION_CHARACTERS = 255, 2048
_PASSES = ("Throttl", "RequestLimitExceeded", "TooManyRequests", "InternalService", "InternalFailure", "Unavailable")
# The parts of a table that UpdateTable accepts.
_WRITABLE = (
    *("Name", "Description", "Owner", "LastAccessTime", "LastAnalyzedTime", "Retention", "StorageDescriptor"),
    *("PartitionKeys", "ViewOriginalText", "ViewExpandedText", "TableType", "Parameters", "TargetTable"),
)


class GlueCatalog:
    """The catalog of one account and region.

    `credentials` returns access key, secret key and session token (or None), each time a request is signed.
    `longest_s`: how long a whole answer may take.
    """

    def __init__(
        self,
        connection: str,
        *,
        region: str,
        credentials: Callable[[], tuple[str, str, str | None]],
        endpoint_url: str | None = None,
        catalog_id: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        longest_s: float = _LONGEST_S,
    ) -> None:
        self.connection = connection
        self.new_tables: dict[str, CatalogTable] = {}
        self._region = region
        self._credentials = credentials
        # Source: AWS General Reference, Glue endpoints.
        self._url = endpoint_url or f"https://glue.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}/"
        self._account = {"CatalogId": catalog_id} if catalog_id else {}
        self._clock = clock
        self._longest_s = longest_s
        self._session: Any = None

    def find(self, name: str) -> Entry:
        """Return the table's entry, by one request; one more for a resource link to another account's table."""
        database, table = self._names(name)
        found = self._table(name, self._account, database, table)
        with well_formed(self.connection, name):
            target = found.get("TargetTable")
            if target:
                self._check_region(name, target.get("Region"))
                account = {"CatalogId": target["CatalogId"]} if target.get("CatalogId") else self._account
                found = self._table(name, account, target["DatabaseName"], target["Name"])
            return self._entry(spelled(database, table), found)

    def place_for(self, name: str) -> str:
        """Return the location of the database, with the table's name as a folder."""
        database, table = self._names(name)
        found = self._call("GetDatabase", {**self._account, "Name": database}, name)
        with well_formed(self.connection, name):
            location = str(found["Database"].get("LocationUri") or "")
        return table_place(self.connection, name, f"{location.rstrip('/')}/{table}" if location else "", _STORES)

    def register(self, table: Description) -> None:
        """Create the table's entry as an external table, or update the one of the same place."""
        database, name = self._names(table.name)
        record = {
            "Name": name,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": new_parameters(table),
            "PartitionKeys": [],
            "StorageDescriptor": {
                "Columns": column_records(table, _COMMENT_CHARACTERS),
                "Location": table.uri,
                "InputFormat": INPUT_FORMAT,
                "OutputFormat": OUTPUT_FORMAT,
                "SerdeInfo": {
                    "SerializationLibrary": SERDE,
                    "Parameters": {"path": table.uri, "serialization.format": "1"},
                },
            },
        }
        # A place in another store than S3 would be an entry that `find` refuses.
        table_place(self.connection, table.name, table.uri, _STORES)
        record |= {"Description": one_line(table.comment, _DESCRIPTION_CHARACTERS)} if table.comment else {}
        try:
            self._call("CreateTable", {**self._account, "DatabaseName": database, "TableInput": record}, table.name)
        except CatalogRefused as error:
            if error.facts.get("status") != "AlreadyExistsException":
                raise
            check_place(self.find(table.name), table)
            self.update(table)

    def update(self, table: Description) -> bool:
        """Write columns and properties, unless the entry is of a later version, or of a table's manifests."""
        database, name = self._names(table.name)
        for attempt in range(_TRIES):
            found = self._table(table.name, self._account, database, name)
            if found.get("TargetTable"):
                # The entry is another account's.
                return False
            with well_formed(self.connection, table.name):
                record = self._changed(table, found)
            if record is None:
                return False
            # With the version that was read: another update in between is not lost.
            known = {"VersionId": found["VersionId"]} if found.get("VersionId") else {}
            body = {**self._account, "DatabaseName": database, "TableInput": record, **known}
            try:
                self._call("UpdateTable", body, table.name)
            except CatalogRefused as error:
                changed = error.facts.get("status") in ("ConcurrentModificationException", "VersionMismatchException")
                if not changed or attempt == _TRIES - 1:
                    raise
            else:
                return True
        raise AssertionError("the last try returns or raises")

    def _changed(self, table: Description, found: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record of the table's entry as it should be; None if there is nothing to write."""
        check_place(self._entry(table.name, found), table)
        parameters = found.get("Parameters") or {}
        storage = dict(found.get("StorageDescriptor") or {})
        keys = {each["Name"].lower() for each in found.get("PartitionKeys") or ()}
        records = column_records(table, _COMMENT_CHARACTERS)
        # Glue refuses a name that is in both.
        columns = [each for each in records if each["Name"].lower() not in keys]
        wanted = parameters_of(table, parameters)
        is_same = wanted == parameters and columns == [_bare(each) for each in storage.get("Columns") or ()]
        if is_same or is_newer(parameters, table) or self._record(table.name, found).has_manifests:
            return None
        record = {name: found[name] for name in _WRITABLE if found.get(name) is not None}
        return record | {"Parameters": wanted, "StorageDescriptor": {**storage, "Columns": columns}}

    def _check_region(self, name: str, region: str | None) -> None:
        """Raise CatalogRefused for a resource link to another region, whose endpoint is another one."""
        if region and region != self._region:
            raise CatalogRefused(
                f"{name} in the catalog {self.connection!r} (Glue, {self._region}) is a link to a table in the region "
                f"{region}. Nothing was read or written. Name the table by a connection whose region_name is that one.",
                connection=self.connection,
                name=name,
                status="another region",
            )

    def _names(self, name: str) -> tuple[str, str]:
        # Glue keeps names in small letters.
        database, table = name_parts(name.lower(), 2)
        return database, table

    def _table(self, name: str, account: Mapping[str, str], database: str, table: str) -> dict[str, Any]:
        found = self._call("GetTable", {**account, "DatabaseName": database, "Name": table}, name)
        with well_formed(self.connection, name):
            return {**found["Table"]}

    def _record(self, name: str, found: Mapping[str, Any]) -> HiveTable:
        storage = found.get("StorageDescriptor") or {}
        return HiveTable(
            name=name,
            kind=found.get("TableType") or "",
            location=storage.get("Location") or "",
            input_format=storage.get("InputFormat") or "",
            parameters=found.get("Parameters") or {},
            serde_parameters=(storage.get("SerdeInfo") or {}).get("Parameters") or {},
            columns=tuple(
                CatalogColumn(name=each["Name"], type_text=each.get("Type") or "", comment=each.get("Comment"))
                for each in (*(storage.get("Columns") or ()), *(found.get("PartitionKeys") or ()))
            ),
            partition_columns=tuple(each["Name"] for each in found.get("PartitionKeys") or ()),
        )

    def _entry(self, name: str, found: Mapping[str, Any]) -> Entry:
        # Source: OpenLineage, "Naming", AWS Glue.
        return hive_entry(
            self.connection,
            self._record(name, found),
            namespace=f"arn:aws:glue:{self._region}:{found.get('CatalogId') or self._account.get('CatalogId', '')}",
            dataset=f"table/{found.get('DatabaseName')}/{found.get('Name')}",
            stores=_STORES,
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def _call(self, action: str, body: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the answer. Raises TableNotInCatalog, CatalogRefused, CatalogUnavailable."""
        for attempt in range(_TRIES):
            status, answer = self._sent(action, body)
            if status == 200:
                return answer
            code = of_service(answer.get("__type")).rpartition("#")[2].partition(":")[0] or f"HTTP {status}"
            passes = status >= 500 or any(text in code for text in _PASSES)
            if not passes:
                break
            if attempt < _TRIES - 1:
                self._clock.sleep(0.2 * 2**attempt)
        facts = {"connection": self.connection, "name": name}
        if code == "EntityNotFoundException":
            raise not_found(self.connection, name)
        why = f"{action} of {name} by the catalog {self.connection!r} (AWS Glue, {self._region})"
        if passes:
            raise CatalogUnavailable(f"{why} failed {_TRIES} times: {code}. Nothing was read or written.", **facts)
        text = of_service(answer.get("Message") or answer.get("message"))
        raise CatalogRefused(f"{why} was refused: {code}. {text}".rstrip(), status=code, **facts)

    def _sent(self, action: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and answer; status 599 for a connection that failed."""
        if self._session is None:
            verify: Any = os.environ.get("AWS_CA_BUNDLE") or True
            proxies = get_environ_proxies(self._url)
            self._session = URLLib3Session(verify=verify, proxies=proxies, timeout=_TIMEOUTS_S)
        headers = {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"AWSGlue.{action}",
            "User-Agent": f"airflow-txlog/{__version__}",
        }
        data = json.dumps(body).encode()
        request = AWSRequest(method="POST", url=self._url, data=data, headers=headers, stream_output=True)
        SigV4Auth(SigningCredentials(*self._credentials()), "glue", self._region).add_auth(request)
        try:
            response = self._session.send(request.prepare())
            found = json.loads(self._body(response.raw) or b"{}")
        except (BotoCoreError, HTTPError, OSError) as error:
            return 599, {"__type": type(error).__name__}
        except (ValueError, RecursionError):
            # A proxy's page, for example.
            found = None
        return (response.status_code, found) if isinstance(found, dict) else (599, {"__type": "AnswerIsNotJSON"})

    def _body(self, raw: Any) -> bytes:
        """Return an answer's body, unless it is too large, or takes too long."""
        pieces, size, start_s = [], 0, SYSTEM_CLOCK.monotonic_s()
        # `read` would wait for a whole piece. urllib3 before 2.1 has nothing else.
        read = getattr(raw, "read1", raw.read)
        while piece := read(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > _MOST_BYTES:
                raise ValueError("too large")
            if SYSTEM_CLOCK.monotonic_s() - start_s > self._longest_s:
                raise TimeoutError
        return b"".join(pieces)


def own_identity(connection: str) -> Callable[[], tuple[str, str, str | None]]:
    """Return the credentials of this process: of its environment, its profile, or the role of its machine."""

    @functools.cache
    def session() -> Any:
        # It brings a hundred modules, and a task with keys in its environment needs none of them.
        from botocore.session import Session  # noqa: PLC0415

        return Session()

    def credentials() -> tuple[str, str, str | None]:
        # The first place at which a session looks, too.
        found = EnvProvider().load() or session().get_credentials()
        if found is None:
            raise unavailable(connection, "neither the connection nor the machine has any")
        frozen = found.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token

    return credentials


def _bare(column: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column[name] for name in ("Name", "Type", "Comment") if column.get(name)}
