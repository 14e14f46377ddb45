"""`storage_conn_id`: the options and the secrets of a connection, and the connections that are refused."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from airflow_txlog.errors import CredentialsUnavailable, InvalidJobSpec
from airflow_txlog.get_provider_info import get_provider_info
from airflow_txlog.hooks import storage_connection
from airflow_txlog.hooks.connections import SETTINGS
from airflow_txlog.hooks.txlog import TxlogHook
from airflow_txlog.operators.maintenance.checkpoint_and_vacuum import CheckpointOperator
from airflow_txlog.sensors.table_version import TableVersionSensor
from airflow_txlog.storage import Access, StoreReference
from airflow_txlog.storage.credentials import AWS, AZURE, GOOGLE, Credentials, KeptCredentials
from tests.helpers.identity_proxies import WithTokens

pytestmark = pytest.mark.airflow

SECRET = "canary-77fe"
UNINSTALLED = ("airflow.providers.amazon", "airflow.providers.google")


@pytest.fixture(autouse=True)
def _without_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As here, where only the packages of Airflow itself are installed."""
    for name in UNINSTALLED:
        monkeypatch.setitem(sys.modules, name, None)


def connect(monkeypatch: pytest.MonkeyPatch, conn_type: str, **fields: Any) -> str:
    """The name of a connection that Airflow finds."""
    name = f"of_{conn_type}"
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps({"conn_type": conn_type, **fields}))
    return name


def opened(name: str) -> tuple[dict[str, Any], Credentials]:
    return storage_connection.open_storage_connection(name), KeptCredentials(name).current()


def test_an_aws_connection_gives_its_keys_its_region_and_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"region_name": "eu-west-1", "endpoint_url": "http://e", "aws_session_token": f"{SECRET}-t"}
    name = connect(monkeypatch, "aws", login="AK", password=SECRET, extra=extra)
    options, found = opened(name)
    assert options == {"region": "eu-west-1", "endpoint_url": "http://e"}
    assert found.values == {"access_key": "AK", "secret_key": SECRET, "token": f"{SECRET}-t"}
    assert (found.kind, found.expires_ms) == (AWS, None)
    # A change of the connection is followed.
    connect(monkeypatch, "aws", extra={"aws_access_key_id": "AK2", "aws_secret_access_key": f"{SECRET}2"})
    assert KeptCredentials(name).current().values == {"access_key": "AK2", "secret_key": f"{SECRET}2"}


def test_an_aws_connection_gives_how_a_bucket_is_addressed(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"endpoint_url": "http://e", "verify": True, "config_kwargs": {"s3": {"addressing_style": "path"}}}
    options, _ = opened(connect(monkeypatch, "aws", login="AK", password=SECRET, extra=extra))
    assert options == {"endpoint_url": "http://e", "addressing_style": "path"}


@pytest.mark.parametrize("verify", [False, "/etc/own-authority.pem"])
def test_what_an_aws_connection_has_and_is_not_used_is_refused(monkeypatch: pytest.MonkeyPatch, verify: object) -> None:
    with pytest.raises(InvalidJobSpec, match="AWS_CA_BUNDLE"):
        opened(connect(monkeypatch, "aws", login="AK", password=SECRET, extra={"verify": verify}))


@pytest.mark.parametrize(
    ("extra", "named"),
    [({"role_arn": f"arn:aws:iam::1:role/{SECRET}"}, "(role_arn)"), ({"profile_name": "p"}, "(profile_name)")],
)
def test_what_needs_the_provider_of_amazon_names_it(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], named: str
) -> None:
    with pytest.raises(CredentialsUnavailable) as raised:
        opened(connect(monkeypatch, "aws", login="AK", password=SECRET, extra=extra))
    assert f"'of_aws' (storage_conn_id) gives no credentials: what it asks for {named}" in raised.value.message
    assert "apache-airflow-providers-amazon, which is not installed" in raised.value.message
    assert SECRET not in raised.value.message


def provide(monkeypatch: pytest.MonkeyPatch, module: str, **content: Any) -> None:
    """Install a module of a provider package with the parts that a test needs."""
    made = ModuleType(module)
    made.__dict__.update(content)
    for name in UNINSTALLED:
        monkeypatch.delitem(sys.modules, name)
    parts = module.split(".")
    for end in range(3, len(parts)):
        parent = ModuleType(".".join(parts[:end]))
        parent.__path__ = []
        monkeypatch.setitem(sys.modules, parent.__name__, parent)
    monkeypatch.setitem(sys.modules, module, made)


def test_the_provider_of_amazon_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    expires = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
    frozen = SimpleNamespace(access_key="ASIA", secret_key=SECRET, token="T")
    found = SimpleNamespace(get_frozen_credentials=lambda: frozen, _expiry_time=expires)
    session = SimpleNamespace(get_credentials=lambda: found)
    hook = lambda **given: SimpleNamespace(get_session=lambda: session)  # noqa: E731
    provide(monkeypatch, "airflow.providers.amazon.aws.hooks.base_aws", AwsBaseHook=hook)
    _, credentials = opened(connect(monkeypatch, "aws", extra={"role_arn": "r"}))
    assert credentials.values == {"access_key": "ASIA", "secret_key": SECRET, "token": "T"}
    assert credentials.expires_ms == int(expires.timestamp() * 1000)


def test_a_google_connection_with_a_keyfile_gives_an_access_token_of_its_account(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with WithTokens("http://127.0.0.1:9", life_s=60) as server:
        file = tmp_path / "key.json"
        file.write_text(json.dumps(server.keyfile))
        for extra in (
            {"keyfile_dict": server.keyfile, "num_retries": 5},
            {"extra__google_cloud_platform__keyfile_dict": json.dumps(server.keyfile), "key_path": ""},
            {"key_path": str(file), "scope": "https://a, https://b"},
        ):
            given = {**extra, "project": "p"}
            options, found = opened(connect(monkeypatch, "google_cloud_platform", extra=given))
            assert (options, found.kind) == ({"project": "p"}, GOOGLE)
            assert found.values["token"].startswith(server.TOKENS)
            assert found.expires_ms is not None
        assert len(server.issued_ms) == 3
        # A key that the token service does not know.
        stolen = {**server.keyfile, "private_key": WithTokens("http://127.0.0.1:9", life_s=60).keyfile["private_key"]}
        name = connect(monkeypatch, "google_cloud_platform", extra={"keyfile_dict": stolen})
        with pytest.raises(CredentialsUnavailable, match=r"raised RefreshError \(invalid_grant\)\. Nothing"):
            opened(name)


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"keyfile_dict": SECRET}, "keyfile_dict is not the JSON key of a service account"),
        ({"keyfile_dict": {"type": "service_account", "private_key": SECRET}}, "keyfile_dict is not the JSON key"),
        ({"keyfile_dict": json.dumps([SECRET])}, "keyfile_dict is not the JSON key"),
        ({"key_path": "/nowhere/key.json"}, "the file of its key_path cannot be read (No such file or directory)"),
        (
            {"impersonation_chain": "a", "keyfile_dict": SECRET},
            "(impersonation_chain) needs the package apache-airflow",
        ),
        ({"project": "p"}, "(neither keyfile_dict nor key_path) needs the package apache-airflow-providers-google"),
    ],
)
def test_a_google_connection_without_a_keyfile_of_use_says_why(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], why: str
) -> None:
    with pytest.raises(CredentialsUnavailable) as raised:
        opened(connect(monkeypatch, "google_cloud_platform", extra=extra))
    assert why in raised.value.message
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_the_provider_of_google_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = connect(monkeypatch, "google_cloud_platform", extra={"keyfile_dict": SECRET, "project": "p"})
    found = SimpleNamespace(token=None, expiry=None)

    def refresh(request: Any) -> None:
        found.token, found.expiry = SECRET, dt.datetime(2040, 1, 1)

    found.refresh = refresh
    hook = lambda **given: SimpleNamespace(get_credentials=lambda: found)  # noqa: E731
    provide(monkeypatch, "airflow.providers.google.common.hooks.base_google", GoogleBaseHook=hook)
    options, credentials = opened(name)
    assert (options, credentials.kind, credentials.values) == ({"project": "p"}, GOOGLE, {"token": SECRET})
    assert credentials.expires_ms == int(dt.datetime(2040, 1, 1, tzinfo=dt.UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("conn_type", "fields", "options", "values"),
    [
        ("wasb", {"login": "acc", "password": SECRET}, {"account_name": "acc"}, {"account_key": SECRET}),
        (
            "wasb",
            {"host": "https://acc.blob.core.windows.net/", "extra": {"sas_token": f"?sv=1&sig={SECRET}"}},
            {"account_name": "acc"},
            {"sas_token": f"sv=1&sig={SECRET}"},
        ),
        (
            "wasb",
            {"login": "acc", "extra": {"sas_token": f"https://acc.blob.core.windows.net/c?sig={SECRET}"}},
            {"account_name": "acc"},
            {"sas_token": f"sig={SECRET}"},
        ),
        (
            "wasb",
            {"extra": {"connection_string": f"AccountName=acc;AccountKey={SECRET}=="}},
            {"account_name": "acc"},
            {"connection_string": f"AccountName=acc;AccountKey={SECRET}=="},
        ),
        (
            "wasb",
            {"login": "acc", "extra": {"shared_access_key": SECRET}},
            {"account_name": "acc"},
            {"account_key": SECRET},
        ),
        ("adls", {"host": "acc", "password": SECRET}, {"account_name": "acc"}, {"account_key": SECRET}),
        ("adls", {"extra": {"extra__adls__connection_string": SECRET}}, {}, {"connection_string": SECRET}),
    ],
)
def test_an_azure_connection_gives_its_account_and_its_key(
    monkeypatch: pytest.MonkeyPatch,
    conn_type: str,
    fields: dict[str, Any],
    options: dict[str, str],
    values: dict[str, str],
) -> None:
    found, credentials = opened(connect(monkeypatch, conn_type, **fields))
    assert (found, credentials.kind, credentials.values) == (options, AZURE, values)


def test_an_application_of_azure_gives_a_token_and_not_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    import azure.identity

    class Identity:
        def __init__(self, tenant: str, login: str, password: str) -> None:
            self.given = (tenant, login, password)

        def __enter__(self) -> Identity:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def get_token(self, scope: str) -> Any:
            assert self.given == ("tenant", "app", SECRET)
            return SimpleNamespace(token=f"of {scope}", expires_on=2_000_000_000)

    monkeypatch.setattr(azure.identity, "ClientSecretCredential", Identity)
    fields = {"host": "acc", "login": "app", "password": SECRET, "extra": {"tenant_id": "tenant"}}
    options, credentials = opened(connect(monkeypatch, "adls", **fields))
    assert options == {"account_name": "acc"}
    assert credentials.values == {"token": "of https://storage.azure.com/.default"}
    assert credentials.expires_ms == 2_000_000_000_000


def test_a_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidJobSpec, match="'of_ftp' is of type 'ftp'; a store takes one of aws, google"):
        opened(connect(monkeypatch, "ftp", password=SECRET))


def test_a_connection_that_was_given_no_type_is_refused_with_the_way_to_give_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidJobSpec) as raised:
        opened(connect(monkeypatch, "generic", password=SECRET))
    message = raised.value.message
    assert "airflow connections add of_generic --conn-json" in message
    assert '{"conn_type": "aws"' in message
    assert SECRET not in message


# --- where it is named ----------------------------------------------------------------------------------------------


def test_operators_the_sensor_and_the_hook_take_it_over_that_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("own", "default"):
        held = {"conn_type": "aws", "login": name, "password": SECRET, "extra": {"region_name": name}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}_AWS", json.dumps(held))
    extra = {"storage_conn_id": "default_aws", "storage_options": {"endpoint_url": "http://e"}}
    monkeypatch.setenv("AIRFLOW_CONN_ON_S3", json.dumps({"conn_type": "txlog", "host": "s3://b/f", "extra": extra}))

    def access(name: str) -> Access:
        return Access(storage_options={"endpoint_url": "http://e", "region": name}, storage_conn_id=f"{name}_aws")

    assert TxlogHook("on_s3").table("t").store.access == access("default")
    assert TxlogHook("on_s3", "own_aws").table("t").store.access == access("own")
    sensor = TableVersionSensor(
        task_id="wait", table_uri="t", version=1, txlog_conn_id="on_s3", storage_conn_id="own_aws"
    )
    assert sensor.hook.table("t").store.access == access("own")
    operator = CheckpointOperator(task_id="x", table_uri="t", txlog_conn_id="on_s3", storage_conn_id="own_aws")
    spec = operator.job_spec({})
    assert spec.access == access("own")
    reference = pickle.dumps(StoreReference.of(TxlogHook("on_s3").table("t").store))
    for shown in (spec.to_json(with_key=True), repr(spec), str(reference)):
        assert SECRET not in shown


def test_a_connection_of_the_cloud_itself_is_refused_as_one_of_txlog(monkeypatch: pytest.MonkeyPatch) -> None:
    name = connect(monkeypatch, "wasb", login="acc", password=SECRET)
    with pytest.raises(InvalidJobSpec, match="one for storage_conn_id") as raised:
        TxlogHook(name).table("az://c/t")
    assert '{"storage_conn_id": "of_wasb"}' in raised.value.message
    assert SECRET not in raised.value.message


@pytest.mark.parametrize("kind", ["generic", "aws", "fs"])
def test_a_connection_of_any_other_type_is_refused_as_one_of_txlog(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    name = connect(monkeypatch, kind, host="/lake", password=SECRET)
    with pytest.raises(InvalidJobSpec, match=f"is of type '{kind}'") as raised:
        TxlogHook(name).table("t")
    assert raised.value.argument == "txlog_conn_id"
    assert SECRET not in raised.value.message


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (
            {"storage_option": {"anon": SECRET}},
            "which is no setting of it. Did you mean 'storage_options'? Nothing was read. Spark's",
        ),
        ({"spark.executor.memory": SECRET}, "Spark's settings go into spark_conf"),
        ({"region": "", "runner": "warm", "storage_options": {"key": SECRET}}, "has 'region', which is no setting"),
        ("not JSON: " + SECRET, "is no JSON object"),
        ([SECRET], "is no JSON object"),
    ],
)
def test_an_extra_with_anything_but_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, extra: Any, named: str
) -> None:
    text = extra if isinstance(extra, str) else json.dumps(extra)
    name = connect(monkeypatch, "txlog", host="/lake", extra=text)
    with pytest.raises(InvalidJobSpec) as raised:
        TxlogHook(name).table("t")
    assert named in raised.value.message
    assert SECRET not in raised.value.message
    assert not TxlogHook(name).test_connection()[0]


def test_the_end_of_a_secret_that_airflow_splits_at_an_ampersand_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (f'abc&{SECRET}"}}', f"abc&{SECRET}"):
        monkeypatch.setenv("AIRFLOW_CONN_SPLIT", f'txlog://%2Flake?storage_options={{"key":"AK","secret":"{end}')
        with pytest.raises(InvalidJobSpec, match=r"has a name that is no setting.*write %26 for an &") as raised:
            TxlogHook("split").table("t")
        assert SECRET not in raised.value.message


def test_the_form_of_a_connection_has_its_settings() -> None:
    assert set(get_provider_info()["connection-types"][0]["conn-fields"]) == set(SETTINGS)


def test_it_is_not_read_when_the_dag_is_parsed() -> None:
    CheckpointOperator(task_id="x", table_uri="s3://b/t", storage_conn_id="that_nobody_made")
    TableVersionSensor(task_id="y", table_uri="s3://b/t", version=1, storage_conn_id="that_nobody_made")


def test_it_and_another_identity_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"storage_conn_id": "x", "storage_options": {"profile": "lake"}}
    monkeypatch.setenv("AIRFLOW_CONN_TWICE", json.dumps({"conn_type": "txlog", "extra": extra}))
    with pytest.raises(InvalidJobSpec, match="storage_options has profile, and storage_conn_id is 'x'"):
        TxlogHook("twice").table("s3://b/t")
    assert not TxlogHook("twice").test_connection()[0]
