"""The credentials of a store's connection: how a process gets them, and how long it keeps them.

An `Access` names a connection of Airflow (`storage_conn_id`). The process that can read the connection registers a
reader (`offer`). A job's process and the Python workers of its Spark request credentials from that process, over an
endpoint on loopback whose URL and token they inherit in their environment (`runners.credentials_endpoint`) or find in a
folder that it names.

The invariant: credentials are in memory alone, never in a description, a pickle, a file or a message.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urlsplit

from airflow_txlog.clock import SYSTEM_CLOCK, Clock
from airflow_txlog.errors import CredentialsUnavailable
from airflow_txlog.locations import Access

URL, TOKEN = "TXLOG_CREDENTIALS_URL", "TXLOG_CREDENTIALS_TOKEN"
"""The environment variables with the endpoint, and the token that a job and its workers send it."""

OWN = "TXLOG_CREDENTIALS"
"""`own` in this variable marks a remote process, such as an executor, with its own identity."""

FOLDER = "TXLOG_CREDENTIALS_FOLDER"
"""Workers of a Spark that many jobs share have this variable instead. It names a private folder of this user, with a
file for each running job: JSON of URL and token."""

AWS, GOOGLE, AZURE, UNITY = "aws", "google", "azure", "unity"
"""The kinds. The values of each:

- AWS: `access_key`, `secret_key`, and `token` for temporary ones;
- GOOGLE: `token`, an access token;
- AZURE: one of `connection_string`, `account_key`, `sas_token`, and `token`, an access token;
- UNITY: `token`, a bearer token of the catalog, empty if it needs none.
"""

# Credentials that never expire are renewed too, so that a changed connection is noticed.
_KEPT_MS = 15 * 60_000
# Credentials are renewed when a quarter of their life is left, and five minutes before their end at the earliest.
_MARGIN_MS = 5 * 60_000
# How soon a failed renewal is tried again, while the current credentials are valid.
_AGAIN_MS = 1_000
# The holder of the connection may have to query a secrets backend and then a token service.
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials that open a store until `expires_ms`; None if they do not expire."""

    kind: str
    values: Mapping[str, str] = field(repr=False)
    expires_ms: int | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled: name their connection instead")


Source = Callable[[], Credentials]
_sources: dict[str, Source] = {}


def has_own_identity() -> bool:
    """Return whether this process has its own identity for stores, even if a job names a connection."""
    return os.environ.get(OWN) == "own"


def offer(connection: str, fetch: Source) -> None:
    """Let this process get the credentials of a connection by `fetch`, which any thread may call.

    Errors other than CredentialsUnavailable are reported as that, by their class alone.
    """
    _sources[connection] = fetch


@functools.cache
def kept(connection: str, kind: str | None = None) -> KeptCredentials:
    """Return the credentials of a connection, one object for each process. Nothing is fetched yet."""
    return KeptCredentials(connection, kind)


def credentials_of(access: Access, kind: str) -> KeptCredentials | None:
    """Return the credentials of a store of this kind, None for a process with its own identity."""
    is_own = access.storage_conn_id is None or has_own_identity()
    return None if is_own else kept(str(access.storage_conn_id), kind)


class KeptCredentials:
    """Credentials of one connection, renewed before they expire. From any thread."""

    def __init__(self, connection: str, kind: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.connection = connection
        self._kind = kind
        self._clock = clock
        self._held: Credentials | None = None
        self._renew_ms = 0
        self._make_lock()
        # One held by another thread during a fork would never be released in the child.
        os.register_at_fork(after_in_child=self._make_lock)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    def at_hand(self) -> Credentials | None:
        """Return the kept credentials, or None if they need renewal; never waits."""
        return self._held if self._clock.now_ms() < self._renew_ms else None

    def current(self) -> Credentials:
        """Return valid credentials. Raises CredentialsUnavailable."""
        with self._lock:
            return self.at_hand() or self._renewed()

    def _renewed(self) -> Credentials:
        now_ms = self._clock.now_ms()
        try:
            found = _fetched(self.connection)
            self._check(found, now_ms)
        except CredentialsUnavailable:
            held = self._held
            if held is None or (held.expires_ms is not None and held.expires_ms <= now_ms):
                raise
            self._renew_ms = now_ms + _AGAIN_MS
            return held
        lasts_ms = _KEPT_MS
        if found.expires_ms is not None:
            life_ms = found.expires_ms - now_ms
            lasts_ms = min(_KEPT_MS, life_ms - min(life_ms // 4, _MARGIN_MS))
        self._held, self._renew_ms = found, now_ms + lasts_ms
        return found

    def _check(self, found: Credentials, now_ms: int) -> None:
        if self._kind not in (None, found.kind):
            raise unavailable(self.connection, f"it is of {found.kind}, and the table's store is of {self._kind}")
        if found.expires_ms is not None and found.expires_ms <= now_ms:
            raise unavailable(self.connection, "what it gives has expired already; are the clocks right?")


def unavailable(connection: str, why: str, **facts: Any) -> CredentialsUnavailable:
    """Return the error of a connection that gives no credentials. `facts`: `retryable`, if it may give some later."""
    return CredentialsUnavailable(
        f"The connection {connection!r} (storage_conn_id) gives no credentials: {why}. Nothing was sent to the store.",
        connection=connection,
        **facts,
    )


def _fetched(connection: str) -> Credentials:
    source = _sources.get(connection)
    try:
        return _asked(connection) if source is None else source()
    except CredentialsUnavailable:
        raise
    except Exception as error:
        # Not its text, which may quote the credentials.
        raise unavailable(connection, f"asking for them raised {_named(error)}") from None


def _named(error: Exception) -> str:
    """Return `ClientError (AccessDenied)`: the class, and the code of a service's answer."""
    answer = getattr(error, "response", None)
    of_amazon = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
    of_google = next((each.get("error") for each in error.args if isinstance(each, dict)), None)
    of_azure = re.search(r"\bAADSTS\d+\b", str(error))
    code = of_amazon or of_google or (of_azure and of_azure[0])
    is_code = isinstance(code, str) and re.fullmatch(r"\w{1,64}", code, re.ASCII)
    return f"{type(error).__name__} ({code})" if is_code else type(error).__name__


# --- as clients take them -------------------------------------------------------------------------------------------


def google_token(credentials: KeptCredentials) -> Any:
    """Return credentials of google-auth that are renewed here. They cannot be pickled."""
    from google.auth.credentials import Credentials as Base  # noqa: PLC0415 - only a store on Google has it

    class Renewed(Base):
        @property
        def valid(self) -> bool:
            held = credentials.at_hand()
            return held is not None and held.values["token"] == self.token

        def refresh(self, request: Any) -> None:
            self.token = credentials.current().values["token"]

        def __reduce__(self) -> NoReturn:
            raise TypeError("credentials are not pickled: name their connection instead")

    return Renewed()  # type: ignore[no-untyped-call]


def azure_arguments(credentials: KeptCredentials) -> dict[str, Any]:
    """Return the arguments of a store on Azure. An access token and a SAS are renewed."""
    values = dict(credentials.current().values)
    if "token" in values:
        return {"credential": _AzureToken(credentials)}
    return {"credential": _azure_sas(credentials)} if "sas_token" in values else values


def _azure_sas(credentials: KeptCredentials) -> Any:
    """Return a SAS of Azure's client, which asks for it at each request. It cannot be pickled."""
    from azure.core.credentials import AzureSasCredential  # noqa: PLC0415 - only a store on Azure has it

    class RenewedSas(AzureSasCredential):
        @property
        def signature(self) -> str:
            return str(credentials.current().values["sas_token"]).removeprefix("?")

        def __reduce__(self) -> NoReturn:
            raise TypeError("credentials are not pickled: name their connection instead")

    return RenewedSas("unused")


class _AccessToken(NamedTuple):
    """As `azure.core.credentials.AccessToken`."""

    token: str
    expires_on: int


class _AzureToken:
    """The `TokenCredential` that Azure's clients call for their requests."""

    def __init__(self, credentials: KeptCredentials) -> None:
        self._kept = credentials

    def get_token(self, *scopes: str, **given: Any) -> _AccessToken:
        found = self._kept.current()
        return _AccessToken(found.values["token"], (found.expires_ms or 0) // 1000)


# --- the endpoint ---------------------------------------------------------------------------------------------------


def path_of(connection: str) -> str:
    """Return the path of a connection's credentials in the endpoint."""
    return f"/{quote(connection, safe='')}"


def body_of(credentials: Credentials) -> bytes:
    """Return the answer of the endpoint."""
    answer = {"kind": credentials.kind, "credentials": dict(credentials.values), "expires_ms": credentials.expires_ms}
    return json.dumps(answer).encode()


def _asked(connection: str) -> Credentials:
    endpoints = _endpoints()
    if not endpoints:
        raise unavailable(
            connection,
            f"this process ({os.uname().nodename}) is not below the task that holds it, as {URL} is not in its "
            f"environment. Executors on other machines have an identity of their own: say so there with {OWN}=own",
        )
    for url, token in endpoints[:-1]:
        # Any task that holds the connection is enough; one may be ending, or have been killed.
        with contextlib.suppress(CredentialsUnavailable):
            return _asked_at(url, token, connection)
    return _asked_at(*endpoints[-1], connection)


def _endpoints() -> list[tuple[str, str]]:
    """Return URL and token of each endpoint that this process may use, newest first."""
    if URL in os.environ and TOKEN in os.environ:
        return [(os.environ[URL], os.environ[TOKEN])]
    try:
        files = sorted(os.scandir(os.environ[FOLDER]), key=lambda each: each.stat().st_mtime_ns, reverse=True)
    except (KeyError, OSError):
        return []
    found = []
    for file in files:
        # One that is being written, or was just deleted.
        with contextlib.suppress(OSError, ValueError):
            with open(file.path) as opened:
                url, token = json.load(opened)
            found.append((url, token))
    return found


def _asked_at(url: str, token: str, connection: str) -> Credentials:
    import http.client  # noqa: PLC0415 - it brings much, and few jobs need it

    place = urlsplit(url)
    # Not urllib, which would send the token to a proxy from the environment.
    client = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_S)
    try:
        client.request("GET", path_of(connection), headers={"Authorization": token})
        answer = client.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise unavailable(
            connection,
            f"the process that holds it did not answer at {url} ({type(error).__name__}). Either that task has ended, "
            "or this process is on another machine and needs an identity of its own",
        ) from error
    finally:
        client.close()
    found: Any = json.loads(body or b"{}")
    if status != http.client.OK:
        message = found.get("error") or unavailable(connection, f"{url} answered {status}").message
        facts = {"retryable": True} if found.get("retryable") else {}
        raise CredentialsUnavailable(message, connection=connection, **facts)
    return Credentials(kind=found["kind"], values=found["credentials"], expires_ms=found["expires_ms"])
