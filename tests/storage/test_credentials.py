"""Credentials of a connection: kept while they are good, renewed in time, handed to whom they are meant for alone."""

from __future__ import annotations

import http.client
import json
import logging
import os
import pickle
import signal
import socket
import time
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import botocore.exceptions
import pytest

from airflow_txlog.errors import CredentialsUnavailable, UnsupportedStore, from_dict
from airflow_txlog.runners.credentials_endpoint import CredentialsEndpoint
from airflow_txlog.storage import Access, credentials, open_store
from airflow_txlog.storage.credentials import (
    AWS,
    AZURE,
    GOOGLE,
    TOKEN,
    URL,
    Credentials,
    KeptCredentials,
    azure_arguments,
    credentials_of,
    google_token,
    kept,
    offer,
)
from tests.conftest import ManualClock
from tests.helpers import azure, gcs, s3

SECRET = "canary-91ab"


class Holder:
    """What a process holds: credentials that live for `life_ms`, and how often they were asked for."""

    def __init__(self, life_ms: int | None, clock: ManualClock | None = None, kind: str = AWS) -> None:
        self.life_ms, self.kind = life_ms, kind
        self.values = {"access_key": "AK", "secret_key": SECRET}
        self.fixed: dict[str, str] | None = None
        self.fetches = self.failures = 0
        self.failure: Exception | None = None
        self.connection = f"lake-{uuid.uuid4().hex}"
        self._now_ms = (lambda: time.time_ns() // 1_000_000) if clock is None else clock.now_ms
        offer(self.connection, self.fetch)
        if clock is not None:
            # Those that a store takes: the machine's own time would go on while a busy machine does nothing.
            kept(self.connection, kind)._clock = clock

    def fetch(self) -> Credentials:
        if self.failure is not None:
            self.failures += 1
            raise self.failure
        self.fetches += 1
        expires_ms = None if self.life_ms is None else self._now_ms() + self.life_ms
        values = {**self.values, **({"token": f"{SECRET}-{self.fetches}"} if self.kind != AWS else {})}
        return Credentials(kind=self.kind, values=self.fixed or values, expires_ms=expires_ms)


@pytest.mark.parametrize(
    ("life_s", "for_s", "fetches"),
    [(4, 60, 20), (60, 600, 14), (3600, 3600, 5), (12 * 3600, 3600, 5), (None, 3600, 5)],
)
def test_credentials_are_fetched_a_few_times_a_life_however_many_requests_there_are(
    clock: ManualClock, life_s: int | None, for_s: int, fetches: int
) -> None:
    holder = Holder(None if life_s is None else life_s * 1000, clock)
    found = KeptCredentials(holder.connection, AWS, clock)
    for _ in range(for_s * 10):
        current = found.current()
        assert current.expires_ms is None or current.expires_ms > clock.now_ms()
        clock.time_ms += 100
    assert holder.fetches <= fetches


def test_a_renewal_that_fails_is_no_error_before_the_credentials_expire(clock: ManualClock) -> None:
    holder = Holder(60_000, clock)
    found = KeptCredentials(holder.connection, AWS, clock)
    first = found.current()
    holder.failure = RuntimeError(f"the backend quotes {SECRET}")
    clock.time_ms += 50_000
    assert found.current() is first
    clock.time_ms += 10_000
    with pytest.raises(CredentialsUnavailable) as raised:
        found.current()
    assert holder.connection in raised.value.message
    assert "RuntimeError" in raised.value.message
    assert SECRET not in "".join(map(repr, (raised.value, raised.value.__cause__, raised.value.to_dict())))
    assert isinstance(raised.value, PermissionError)
    assert isinstance(from_dict(raised.value.to_dict()), CredentialsUnavailable)
    holder.failure = None
    assert found.current() is not first


def test_a_process_that_is_forked_while_credentials_are_fetched_gets_its_own(clock: ManualClock) -> None:
    holder = Holder(None, clock)
    found = KeptCredentials(holder.connection, AWS, clock)

    def fork() -> Credentials:
        child = os.fork()
        if child == 0:
            offer(holder.connection, lambda: Credentials(kind=AWS, values={}))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            os._exit(0 if found.current().values == {} else 1)
        assert os.waitpid(child, 0)[1] == 0
        return Credentials(kind=AWS, values=holder.values)

    offer(holder.connection, fork)
    assert found.current().values == holder.values


def test_credentials_that_have_expired_or_are_of_another_kind_are_refused(clock: ManualClock) -> None:
    with pytest.raises(CredentialsUnavailable, match="expired already"):
        KeptCredentials(Holder(0, clock).connection, AWS, clock).current()
    with pytest.raises(CredentialsUnavailable, match="of aws, and the table's store is of google"):
        KeptCredentials(Holder(None, clock).connection, GOOGLE, clock).current()


def test_the_code_of_a_refusal_is_named(clock: ManualClock) -> None:
    holder = Holder(None, clock)
    refusal = {"Error": {"Code": "AccessDenied", "Message": f"for {SECRET}"}}
    holder.failure = botocore.exceptions.ClientError(refusal, "AssumeRole")
    with pytest.raises(CredentialsUnavailable, match=r"raised ClientError \(AccessDenied\)\. Nothing") as raised:
        KeptCredentials(holder.connection, AWS, clock).current()
    assert SECRET not in raised.value.message


def test_credentials_are_neither_pickled_nor_shown() -> None:
    found = kept(Holder(None).connection).current()
    assert SECRET not in repr(found)
    with pytest.raises(TypeError):
        pickle.dumps(found)


# --- the endpoint ---------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[CredentialsEndpoint]:
    opened = CredentialsEndpoint()
    yield opened
    opened.close()


def ask(endpoint: CredentialsEndpoint, path: str, token: str, method: str = "GET") -> tuple[int, bytes]:
    place = urlsplit(endpoint.url)
    assert place.hostname == "127.0.0.1"
    client = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    client.request(method, path, headers={"Authorization": token})
    answer = client.getresponse()
    return answer.status, answer.read()


def test_the_endpoint_answers_who_shows_its_token_for_a_connection_of_a_job_that_runs(
    endpoint: CredentialsEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    holder, token = Holder(60_000), endpoint.environment[TOKEN]
    path = f"/{holder.connection}"
    assert ask(endpoint, path, token) == (404, b"")
    with endpoint.answering(holder.connection):
        status, body = ask(endpoint, path, token)
        assert (status, json.loads(body)["credentials"]) == (200, holder.values)
        for wrong in ("", "wrong", token[:-1], f"{token}é"):
            assert ask(endpoint, path, wrong) == (403, b"")
        assert ask(endpoint, "/", token) == (404, b"")
        assert ask(endpoint, f"{path}/..", token) == (404, b"")
        for method in ("POST", "PUT", "DELETE", "HEAD"):
            assert ask(endpoint, path, token, method) == (404, b"")
    assert ask(endpoint, path, token) == (404, b"")
    assert SECRET not in str(capfd.readouterr())


@pytest.fixture
def below(endpoint: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch) -> CredentialsEndpoint:
    """This process as one below the task: it asks the endpoint, which alone knows what was offered."""
    for name, value in endpoint.environment.items():
        monkeypatch.setenv(name, value)
    offered = dict(credentials._sources)
    monkeypatch.setattr(credentials, "_sources", {})
    monkeypatch.setattr("airflow_txlog.runners.credentials_endpoint.kept", lambda name: OfTheTask(name, offered[name]))
    return endpoint


class OfTheTask:
    def __init__(self, connection: str, fetch: credentials.Source) -> None:
        self.connection, self.fetch = connection, fetch

    def current(self) -> Credentials:
        return self.fetch()


HOLDER = Holder(60_000)


def test_a_process_below_the_task_asks_the_endpoint(below: CredentialsEndpoint) -> None:
    with below.answering(HOLDER.connection):
        found = KeptCredentials(HOLDER.connection, AWS).current()
    assert found.values == HOLDER.values
    assert found.expires_ms is not None


def test_what_the_holder_of_the_connection_met_is_what_the_job_reports(
    below: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HOLDER, "failure", credentials.unavailable(HOLDER.connection, "the backend is away"))
    with (
        below.answering(HOLDER.connection),
        pytest.raises(CredentialsUnavailable, match=rf"{HOLDER.connection}.* the backend is away\. Nothing was sent"),
    ):
        KeptCredentials(HOLDER.connection, AWS).current()


def test_a_process_that_cannot_reach_the_endpoint_says_so_at_once(
    below: CredentialsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL, "http://127.0.0.1:9")
    with pytest.raises(CredentialsUnavailable, match=r"did not answer at http://127\.0\.0\.1:9 .*another machine"):
        KeptCredentials(HOLDER.connection, AWS).current()
    monkeypatch.delenv(URL)
    with pytest.raises(CredentialsUnavailable, match=f"{URL} is not in its environment"):
        KeptCredentials(HOLDER.connection, AWS).current()


# --- the stores -----------------------------------------------------------------------------------------------------


def test_a_process_that_says_so_opens_stores_with_its_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor on another machine: a job that names a connection is no reason to ask the task that holds it."""
    access = Access(storage_conn_id="lake")
    assert credentials_of(access, AWS) is not None
    monkeypatch.setenv("TXLOG_CREDENTIALS", "own")
    assert credentials_of(access, AWS) is None


def test_a_store_on_s3_is_opened_with_the_credentials_of_its_connection_and_renews_them(clock: ManualClock) -> None:
    options = s3.options()
    holder = Holder(60_000, clock)
    holder.values = {"access_key": options["key"], "secret_key": options["secret"]}
    plain = {name: options[name] for name in ("endpoint_url", "region")}
    store = open_store(s3.new_folder(), Access(storage_options=plain, storage_conn_id=holder.connection))
    assert store.put_if_absent("a", b"a")
    for _ in range(40):
        assert store.read("a") == b"a"
        clock.time_ms += 3_000
    assert holder.fetches == 3, "each is renewed when 15 of its 60 seconds are left"
    # What it is refused is no answer that may come later: nothing waits for it, and it is asked for once.
    holder.failure = RuntimeError()
    clock.time_ms += 60_000
    with pytest.raises(CredentialsUnavailable, match=holder.connection):
        store.put("b", b"b")
    assert holder.failures == 1


def test_a_store_on_google_cloud_storage_is_opened_with_the_token_of_its_connection(clock: ManualClock) -> None:
    endpoint = gcs.options()["endpoint_url"]
    holder = Holder(60_000, clock, kind=GOOGLE)
    folder = gcs.new_folder()
    store = open_store(folder, Access(storage_options={"endpoint_url": endpoint}, storage_conn_id=holder.connection))
    assert store.put_if_absent("a", b"a")
    clock.time_ms += 50_000
    assert store.read("a") == b"a"
    assert holder.fetches == 2
    holder.failure = RuntimeError()
    clock.time_ms += 60_000
    with pytest.raises(CredentialsUnavailable, match=holder.connection):
        store.read("a")


def test_a_store_on_azure_is_opened_with_the_key_of_its_connection() -> None:
    holder = Holder(None, kind=AZURE)
    options = azure.options()
    account = {"account_name": options["connection_string"].split("AccountName=")[1].split(";")[0]}
    folder = azure.new_folder()
    store = open_store(folder, Access(storage_options=account, storage_conn_id=holder.connection))
    holder.failure = RuntimeError()
    with pytest.raises(CredentialsUnavailable, match=holder.connection):
        store.read("a")
    holder.failure, holder.fixed = None, options
    assert store.put_if_absent("a", b"a")
    assert store.read("a") == b"a"


@pytest.mark.parametrize("given", [{"account_key": f"{SECRET}!"}, {"connection_string": SECRET}])
def test_a_malformed_secret_of_azure_is_named_as_that_and_not_shown(given: dict[str, str]) -> None:
    holder = Holder(None, kind=AZURE)
    holder.fixed = given
    of_connection = Access(storage_options={"account_name": "acc"}, storage_conn_id=holder.connection)
    for access in (of_connection, Access(storage_options={"account_name": "acc", **given})):
        with pytest.raises(PermissionError, match="for the storage account acc is malformed") as raised:
            open_store("az://c/t", access).read("a")
        assert SECRET not in "".join(traceback.format_exception(raised.value))
        assert access.storage_conn_id is None or holder.connection in str(raised.value)


def test_a_token_of_google_goes_to_the_store_alone_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", None)
    endpoint = {"endpoint_url": "http://127.0.0.1:9"}
    store = open_store("gs://b/t", Access(storage_options={"token": SECRET, **endpoint}))
    assert store._bucket._connection.client().http.credentials.token == SECRET
    file = tmp_path / "key.json"
    file.write_text(json.dumps(SECRET))
    with pytest.raises(PermissionError, match="names a file that holds no key") as raised:
        open_store("gs://b/t", Access(storage_options={"token": str(file)})).read("a")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_key_opens_an_account_of_azure_at_a_host_that_does_not_name_it() -> None:
    options = {"account_name": "acc", "account_host": "127.0.0.2:9/x", "account_key": "AAAA"}
    # Not before a request is signed, and sent.
    store = open_store("az://c/t", Access(storage_options=options))
    assert store._bucket._connection.client().account_name == "acc"


@pytest.mark.parametrize(("held", "own"), [("account_key", "b3du"), ("sas_token", "sv=1&sig=own")])
def test_a_connection_of_azure_is_not_mixed_with_what_the_environment_holds(
    held: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "b3RoZXI="
    text = f"AccountName=acc;AccountKey={other};EndpointSuffix=core.windows.net;DefaultEndpointsProtocol=https"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", other)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sig={other}")
    holder = Holder(None, kind=AZURE)
    holder.fixed = {held: own}
    access = Access(storage_options={"account_name": "acc"}, storage_conn_id=holder.connection)
    client = open_store("az://c/t", access)._bucket._connection.client()
    assert getattr(client.credential, "account_key", None) == (own if held == "account_key" else None)
    assert getattr(client.credential, "signature", None) == (own if held == "sas_token" else None)


def test_a_sas_is_renewed_in_a_running_process() -> None:
    """A job of several hours: each request to Azure carries the signature of now, and a copy the one of its source."""
    holder = Holder(None, kind=AZURE)
    holder.fixed = {"sas_token": "?sv=1&sig=first"}
    access = Access(storage_options={"account_name": "acc"}, storage_conn_id=holder.connection)
    store = open_store("az://c/t", access)
    client = store._bucket._connection.client()
    assert client.credential.signature == "sv=1&sig=first"
    holder.fixed = {"sas_token": "sv=1&sig=second"}
    kept(holder.connection, AZURE)._renew_ms = 0
    assert client.credential.signature == "sv=1&sig=second"
    url = store._bucket._blob("t/a").url
    assert "sig=" not in url
    with pytest.raises(TypeError):
        pickle.dumps(client.credential)


def test_requests_to_azure_are_not_logged_and_a_refused_one_says_what_may_be_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, key = azure.account()
    text = azure.options()["connection_string"].replace(key, f"AAAA{key[4:]}")
    folder = azure.new_folder()
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(PermissionError, match="credentials are not valid there, or do"):
        open_store(folder, Access(storage_options={"connection_string": text})).read("a")
    # Of these loggers alone: py4j may say on the root logger, at this level, that the JVM of an earlier test is gone.
    said_by = {record.name for record in caplog.records}
    assert not [name for name in said_by if name.partition(".")[0] in ("azure", "airflow_txlog", "urllib3")]


def test_the_signature_of_a_sas_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    account, _ = azure.account()
    place = f"AccountName={account};BlobEndpoint={azure.endpoint()}/{account}"
    given = {"connection_string": f"{place};SharedAccessSignature=sv=2024-01-01&sp=r&sig={SECRET}"}
    with caplog.at_level(logging.DEBUG), pytest.raises(PermissionError):
        open_store(azure.new_folder(), Access(storage_options=given)).read("a")
    assert SECRET not in caplog.text


def test_two_connections_do_not_share_a_client() -> None:
    options = s3.options()
    plain = {name: options[name] for name in ("endpoint_url", "region")}
    right, wrong = Holder(None), Holder(None)
    right.values = {"access_key": options["key"], "secret_key": options["secret"]}
    folder = s3.new_folder()
    open_store(folder, Access(storage_options=plain, storage_conn_id=right.connection)).put("a", b"a")
    with pytest.raises(PermissionError):
        open_store(folder, Access(storage_options=plain, storage_conn_id=wrong.connection)).read("a")


def test_a_client_of_google_is_given_a_new_token_before_the_old_one_expires(clock: ManualClock) -> None:
    holder = Holder(60_000, clock, kind=GOOGLE)
    token = google_token(kept(holder.connection, GOOGLE))
    headers: dict[str, str] = {}
    token.before_request(None, "GET", "", headers)
    token.before_request(None, "GET", "", headers)
    assert (headers["authorization"], holder.fetches) == (f"Bearer {SECRET}-1", 1)
    clock.time_ms += 50_000
    token.before_request(None, "GET", "", headers)
    assert (headers["authorization"], holder.fetches) == (f"Bearer {SECRET}-2", 2)
    with pytest.raises(TypeError):
        pickle.dumps(token)


def test_the_key_of_a_connection_goes_to_no_other_account() -> None:
    holder = Holder(None, kind=AZURE)
    access = Access(storage_options={"account_name": "own"}, storage_conn_id=holder.connection)
    store = open_store("abfss://c@other.dfs.core.windows.net/t", access)
    with pytest.raises(UnsupportedStore, match=r"account other, and the connection .* is of own"):
        store.list("")
    assert holder.fetches == 0


def test_a_client_of_azure_is_given_a_new_token_before_the_old_one_expires(clock: ManualClock) -> None:
    holder = Holder(60_000, clock, kind=AZURE)
    credential = azure_arguments(kept(holder.connection, AZURE))["credential"]
    assert credential.get_token("scope", tenant_id=None).token == f"{SECRET}-1"
    clock.time_ms += 50_000
    assert credential.get_token("scope").token == f"{SECRET}-2"
    with pytest.raises(TypeError):
        pickle.dumps(credential)
