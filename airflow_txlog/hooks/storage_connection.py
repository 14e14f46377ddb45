"""The connection that `storage_conn_id` names: its options, and its renewable credentials.

The connection is the user's own, of a type of the cloud's provider package. It is read when a task runs, and again at
each renewal, so that rotated secrets are followed. Its other fields (endpoint, region, account) become
`storage_options`. Invariant: a secret goes into `Credentials` and nowhere else.
"""

from __future__ import annotations

import calendar
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseHook

from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.hooks.connections import connection_of
from airflow_txlog.storage.credentials import AWS, AZURE, GOOGLE, Credentials, offer, unavailable

# Fields of an aws connection that this module reads; any other identity is left to the provider.
_PLAIN_AWS = frozenset(
    {
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "region_name",
        "endpoint_url",
        "service_config",
        "verify",
        "catalog_id",
        "config_kwargs",
    }
)
_PLAIN_GOOGLE = frozenset({"project", "keyfile_dict", "key_path", "scope", "num_retries"})
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_AZURE_SCOPE = "https://storage.azure.com/.default"


def open_storage_connection(conn_id: str) -> dict[str, Any]:
    """Return the options that the connection holds, and offer its credentials to the stores of this process.

    Raises InvalidJobSpec for a connection of another type, and Airflow's own error if it does not exist.
    """
    connection = connection_of("storage_conn_id", conn_id)
    kind = _KINDS.get(connection.conn_type or "")
    if kind is None:
        raise InvalidJobSpec(
            f"storage_conn_id: the connection {conn_id!r} is of type {connection.conn_type!r}; a store takes one of "
            f"{', '.join(_KINDS)}. Nothing was read. Make the connection again with the type of its cloud, by "
            f'`airflow connections add {conn_id} --conn-json \'{{"conn_type": "aws", "login": "…", '
            f'"password": "…"}}\'` (`--conn-type` and the UI know '
            "that type only where its provider's package is installed).",
            argument="storage_conn_id",
        )
    offer(conn_id, partial(kind.fetch, conn_id))
    return {name: value for name, value in kind.options(connection).items() if value}


# --- aws ------------------------------------------------------------------------------------------------------------


def _aws_options(connection: Any) -> dict[str, Any]:
    extra = connection.extra_dejson
    endpoint = (extra.get("service_config") or {}).get("s3", {}).get("endpoint_url") or extra.get("endpoint_url")
    if extra.get("verify") not in (None, "", True):
        raise InvalidJobSpec(
            f"storage_conn_id: the connection {connection.conn_id!r} has verify in its extra, which is not used for "
            "tables. Name the file of the authority in AWS_CA_BUNDLE, in the environment of the worker and of Spark's "
            "executors, and take verify out or use a connection without it. Nothing was read.",
            argument="storage_conn_id",
        )
    style = ((extra.get("config_kwargs") or {}).get("s3") or {}).get("addressing_style")
    return {"endpoint_url": endpoint, "region": extra.get("region_name"), "addressing_style": style}


def _aws_credentials(conn_id: str) -> Credentials:
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    except ImportError:
        return _plain_aws_credentials(conn_id)
    # A new hook each time: a hook keeps its session.
    found = AwsBaseHook(aws_conn_id=conn_id, client_type="s3").get_session().get_credentials()
    if found is None:
        raise unavailable(conn_id, "neither the connection nor the machine has any; for a public bucket give anon=true")
    frozen = found.get_frozen_credentials()
    expires = getattr(found, "_expiry_time", None)
    return _aws(frozen.access_key, frozen.secret_key, frozen.token, expires and int(expires.timestamp() * 1000))


def _plain_aws_credentials(conn_id: str) -> Credentials:
    """Return the credentials of a connection that holds keys, without the provider package."""
    connection = BaseHook.get_connection(conn_id)
    extra = connection.extra_dejson
    key = connection.login or extra.get("aws_access_key_id")
    secret = connection.password or extra.get("aws_secret_access_key")
    others = sorted(name for name, value in extra.items() if value and name not in _PLAIN_AWS)
    if not (key and secret) or others:
        named = f" ({', '.join(others)})" if others else ""
        raise unavailable(conn_id, f"what it asks for{named} {_not_installed('apache-airflow-providers-amazon')}")
    return _aws(key, secret, extra.get("aws_session_token"), None)


def _aws(key: str, secret: str, token: str | None, expires_ms: int | None) -> Credentials:
    values = {"access_key": key, "secret_key": secret} | ({"token": token} if token else {})
    return Credentials(kind=AWS, values=values, expires_ms=expires_ms)


# --- google ---------------------------------------------------------------------------------------------------------


def _google_options(connection: Any) -> dict[str, Any]:
    return {"project": _field(connection, "project")}


def _google_credentials(conn_id: str) -> Credentials:
    try:
        from google.auth.transport.requests import Request
    except ImportError:
        raise unavailable(conn_id, f"it {_not_installed('google-auth')}") from None
    try:
        from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
    except ImportError:
        found = _service_account(conn_id)
    else:
        found = GoogleBaseHook(gcp_conn_id=conn_id).get_credentials()
    found.refresh(Request())
    # In UTC, without a zone.
    expires = found.expiry
    return Credentials(
        kind=GOOGLE,
        values={"token": found.token},
        expires_ms=None if expires is None else calendar.timegm(expires.utctimetuple()) * 1000,
    )


def _service_account(conn_id: str) -> Any:
    """Return the account of a connection that holds its keyfile, without the provider package."""
    from google.oauth2.service_account import Credentials as ServiceAccount

    connection = BaseHook.get_connection(conn_id)
    prefix = f"extra__{connection.conn_type}__"
    held = {name.removeprefix(prefix): value for name, value in connection.extra_dejson.items() if value}
    others = sorted(held.keys() - _PLAIN_GOOGLE)
    keyfile, path = held.get("keyfile_dict"), held.get("key_path", "")
    if others or not (keyfile or path):
        named = ", ".join(others) or "neither keyfile_dict nor key_path"
        raise unavailable(conn_id, f"what it asks for ({named}) {_not_installed('apache-airflow-providers-google')}")
    scopes = [each.strip() for each in held.get("scope", _GOOGLE_SCOPE).split(",")]
    try:
        found = keyfile or Path(path).read_text(encoding="utf-8")
        info = dict(json.loads(found) if isinstance(found, str) else found)
        return ServiceAccount.from_service_account_info(info, scopes=scopes)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise unavailable(conn_id, f"the file of its key_path cannot be read ({error.strerror})") from None
    except (TypeError, ValueError):
        # The text of the error may quote the key.
        name = "keyfile_dict" if keyfile else "the file of its key_path"
        raise unavailable(conn_id, f"{name} is not the JSON key of a service account, as Google gives it") from None


# --- azure ----------------------------------------------------------------------------------------------------------


def _azure_options(connection: Any) -> dict[str, Any]:
    text = _field(connection, "connection_string") or ""
    settings = dict(each.split("=", 1) for each in text.split(";") if "=" in each)
    # The host is the account's URL or its name; without one the login is the name, unless it is an application's id.
    host = urlsplit(connection.host or "").netloc or connection.host
    login = None if text or _field(connection, "tenant_id") else connection.login
    named = _field(connection, "account_name") or settings.get("AccountName")
    return {
        "account_name": named or (host or login or "").split(".")[0],
        "account_host": _field(connection, "account_host"),
    }


def _azure_credentials(conn_id: str) -> Credentials:
    connection = BaseHook.get_connection(conn_id)
    field = partial(_field, connection)
    tenant = field("tenant_id")
    sas = field("sas_token")
    given = {
        "connection_string": field("connection_string"),
        # Airflow also accepts the URL of a container with its signature.
        "sas_token": sas and (urlsplit(sas).query if sas.startswith("https:") else sas.removeprefix("?")),
        "account_key": field("account_key") or field("shared_access_key") or (None if tenant else connection.password),
    }
    for name, value in given.items():
        if value:
            return Credentials(kind=AZURE, values={name: value})
    try:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential
    except ImportError:
        raise unavailable(conn_id, f"it {_not_installed('azure-identity')}") from None
    if tenant and connection.login and connection.password:
        more = field("client_secret_auth_config") or {}
        source: Any = ClientSecretCredential(tenant, connection.login, connection.password, **cast("Any", more))
    else:
        names = ("managed_identity_client_id", "workload_identity_tenant_id", "workload_identity_client_id")
        source = DefaultAzureCredential(**{name: field(name) for name in names if field(name)})
    with source:
        token = source.get_token(_AZURE_SCOPE)
    return Credentials(kind=AZURE, values={"token": token.token}, expires_ms=token.expires_on * 1000)


# --------------------------------------------------------------------------------------------------------------------


def _field(connection: Any, name: str) -> Any:
    extra = connection.extra_dejson
    return extra.get(name) or extra.get(f"extra__{connection.conn_type}__{name}")


def _not_installed(package: str) -> str:
    return f"needs the package {package}, which is not installed where the task runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A type of connection: functions that read its options, and its credentials."""

    options: Callable[[Any], Mapping[str, Any]]
    fetch: Callable[[str], Credentials]


_AZURE = _Kind(options=_azure_options, fetch=_azure_credentials)
_KINDS = {
    "aws": _Kind(options=_aws_options, fetch=_aws_credentials),
    "google_cloud_platform": _Kind(options=_google_options, fetch=_google_credentials),
    "wasb": _AZURE,
    "adls": _AZURE,
}
CONN_TYPES = frozenset(_KINDS)
"""The types of connections that `storage_conn_id` accepts."""
