"""Unity Catalog over HTTP: one request at a time, with a bearer token, and its refusals as our errors.

Both sides need it: a task resolves names and gets temporary credentials, and a job ratifies its commits. Only the
standard library sends requests. The invariant: the token is in a header of the request and nowhere else, and no error
repeats the server's text, which may quote what was sent.
Source: UC Delta API 1.0, and the catalog's own API 2.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_txlog.clock import SYSTEM_CLOCK
from airflow_txlog.errors import CatalogError, CatalogRefused, CatalogUnavailable, TableNotInCatalog, WrongTableId

BASE = "/api/2.1/unity-catalog"
TIMEOUT_S, LONGEST_S = 30.0, 120.0
"""How long the next bytes of an answer, and a whole answer, may take."""
_WAITS_S = (0.1, 0.5)
_MOST_BYTES, _PIECE_BYTES = 64 * 1024 * 1024, 256 * 1024

VERSION_TAKEN = "CommitVersionConflictException"
TOO_MANY = "ResourceExhaustedException"
_WRONG_TABLE = "UpdateRequirementConflictException"
_UNKNOWN_STATE = "CommitStateUnknownException"
_NOT_THERE = frozenset(
    {"NoSuchTableException", "NoSuchSchemaException", "NoSuchCatalogException", "TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND"}
    | {"CATALOG_NOT_FOUND"}
)


class UnityApi:
    """The requests of one connection. `token` returns the bearer token of now, None without one."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None],
        *,
        connection: str,
        timeout_s: float = TIMEOUT_S,
        longest_s: float = LONGEST_S,
    ) -> None:
        self.url = url.rstrip("/").removesuffix(BASE)
        self.connection = connection
        self._token = token
        self._timeout_s, self._longest_s = timeout_s, longest_s

    def get(self, path: str, *, name: str) -> dict[str, Any]:
        """Return the answer. `name`: the table, for messages.

        A request without an answer is repeated twice. Raises TableNotInCatalog, CatalogRefused, CatalogUnavailable.
        """
        return self._repeated("GET", path, None, name)

    def post(self, path: str, body: Mapping[str, Any], *, name: str, repeats: bool = False) -> dict[str, Any]:
        """Return the answer. After CatalogUnavailable the request may have taken effect. Raises as `get`, and
        WrongTableId for a table of another id than the request expects.

        `repeats`: repeat a request without an answer as `get` does. It may take effect twice.
        """
        return (self._repeated if repeats else self._request)("POST", path, json.dumps(body).encode(), name)

    def _repeated(self, method: str, path: str, body: bytes | None, name: str) -> dict[str, Any]:
        for wait_s in _WAITS_S:
            try:
                return self._request(method, path, body, name)
            except CatalogUnavailable:
                SYSTEM_CLOCK.sleep(wait_s * (1 + SYSTEM_CLOCK.random()) / 2)
        return self._request(method, path, body, name)

    def _request(self, method: str, path: str, body: bytes | None, name: str) -> dict[str, Any]:
        import http.client  # noqa: PLC0415 - it brings much, and few processes need it

        place = urlsplit(self.url)
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {})
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {self._checked(token, name)}"
        # Not urllib, which would send the token to a proxy from the environment, and follow redirections with it.
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        client = kind(place.hostname or "", place.port, timeout=self._timeout_s)
        try:
            client.request(method, f"{place.path}{BASE}{path}", body, headers)
            answer = client.getresponse()
            status, data = answer.status, self._body(answer, name)
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(name, f"did not answer ({type(error).__name__})") from None
        finally:
            client.close()
        if status != http.client.OK:
            raise self._refusal(method, status, data, name)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._unavailable(name, "answered something that is no JSON object")
        return found

    def _checked(self, token: str, name: str) -> str:
        """Return a token that a header can hold. The error of a client would quote any other."""
        token = token.strip()
        if not (token.isascii() and token.isprintable()):
            raise CatalogRefused(
                f"The connection {self.connection!r} of the catalog has a token with a line break, or with a character "
                "that no header can hold. Nothing was sent. Copy the token again into its password.",
                connection=self.connection,
                name=name,
                status="malformed token",
            )
        return token

    def _body(self, answer: Any, name: str) -> bytes:
        pieces, size, start_s = [], 0, SYSTEM_CLOCK.monotonic_s()
        while size < _MOST_BYTES and (piece := answer.read1(_PIECE_BYTES)):
            pieces.append(piece)
            size += len(piece)
            if SYSTEM_CLOCK.monotonic_s() - start_s > self._longest_s:
                raise self._unavailable(name, f"took more than {self._longest_s:g} seconds for an answer")
        return b"".join(pieces)

    def _unavailable(self, name: str, what: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"The catalog at {self.url} (connection {self.connection!r}) {what}, asked about {name}.",
            connection=self.connection,
            name=name,
        )

    def _refusal(self, method: str, status: int, data: bytes, name: str) -> CatalogError:
        kind = _kind_of(data) or str(status)
        facts: dict[str, Any] = {"connection": self.connection, "name": name}
        # Also 429 without the type that says which limit was met: the server's own limit of requests.
        if status >= 500 or kind == _UNKNOWN_STATE or (status == 429 and (kind != TOO_MANY or method == "GET")):
            return self._unavailable(name, f"failed ({status} {kind})")
        if kind in _NOT_THERE:
            return TableNotInCatalog(
                f"The catalog at {self.url} (connection {self.connection!r}) has no table {name}, or does not show it "
                f"to this identity ({kind}). Nothing was read or written.",
                **facts,
            )
        if kind == _WRONG_TABLE:
            return WrongTableId(
                f"The catalog at {self.url} has another table by the name {name} than the one that was resolved: it "
                "was dropped and created again. Nothing was written. Run the task again.",
                retryable=True,
                **facts,
            )
        return CatalogRefused(
            f"The catalog at {self.url} (connection {self.connection!r}) refuses a request about {name}: {status} "
            f"{kind}. {_ADVICE.get(status, 'Nothing was read or written.')}",
            status=kind,
            **facts,
        )


_ADVICE = {
    401: "Check the token: it is the connection's password. Nothing was read or written.",
    403: "Its identity lacks a privilege: SELECT to read, MODIFY to write, USE CATALOG and USE SCHEMA for both.",
}


def _kind_of(data: bytes) -> str | None:
    """Return the type of the error in an answer, if it looks like one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    kind = (
        error.get("type") if isinstance(error, dict) else found.get("error_code") if isinstance(found, dict) else None
    )
    return kind if isinstance(kind, str) and re.fullmatch(r"\w{1,80}", kind, re.ASCII) else None


def delta_path(name: str) -> str:
    """Return the path of a table `catalog.schema.table` in the UC Delta API. The parts hold no dot."""
    catalog, schema, table = (quote(part, safe="") for part in name.split("."))
    return f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
