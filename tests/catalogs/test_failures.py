"""A catalog that fails: what is tried again, what is retryable, and what an error shows."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import pytest

from airflow_txlog.catalogs.base import Description
from airflow_txlog.catalogs.glue import GlueCatalog
from airflow_txlog.catalogs.hive import HiveCatalog
from airflow_txlog.errors import CatalogRefused, CatalogUnavailable, InvalidInput
from tests.conftest import ManualClock
from tests.helpers.catalogs import HiveBackend, Record
from tests.helpers.http_answers import Answering, serving
from tests.helpers.metastore import Metastore

KEYS = ("AKIA", "canary-secret", "canary-token")
TABLE = {
    "DatabaseName": "db",
    "Name": "t",
    "CatalogId": "1",
    "Parameters": {"table_type": "delta"},
    "StorageDescriptor": {"Location": "s3://b/t"},
}


@contextlib.contextmanager
def answering(*answers: tuple[int, object]) -> Iterator[tuple[str, list[tuple[str, dict[str, object]]]]]:
    """A server of Glue that gives these answers in turn, and the requests that it got."""
    pending, requests = list(answers), []

    class Handler(Answering):
        def do_POST(self) -> None:
            requests.append((self.headers["X-Amz-Target"].removeprefix("AWSGlue."), json.loads(self.body())))
            status, answer = pending.pop(0)
            self.answer(status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

    with serving(Handler) as url:
        yield url, requests


def glue(endpoint: str, clock: ManualClock) -> GlueCatalog:
    return GlueCatalog("c", region="eu-west-1", endpoint_url=endpoint, credentials=lambda: KEYS, clock=clock)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "catalog",
    [
        lambda port, clock: glue(f"http://127.0.0.1:{port}", clock),
        lambda port, clock: HiveCatalog("c", [("127.0.0.1", port)], clock=clock),
    ],
    ids=["glue", "hive"],
)
def test_a_catalog_that_does_not_answer_is_unavailable_after_three_tries(
    clock: ManualClock, catalog: Callable[[int, ManualClock], GlueCatalog | HiveCatalog]
) -> None:
    with pytest.raises(CatalogUnavailable) as raised:
        catalog(closed_port(), clock).find("db.t")
    assert raised.value.retryable
    assert clock.slept == [0.2, 0.4]
    assert "canary" not in str(raised.value)


def test_a_throttled_request_and_an_error_of_the_service_are_tried_again(clock: ManualClock) -> None:
    throttled = (400, {"__type": "com.amazonaws#ThrottlingException"})
    with answering(throttled, (503, "<html>"), (200, {"Table": TABLE})) as (endpoint, requests):
        assert glue(endpoint, clock).find("db.t").uri == "s3://b/t"
    assert [action for action, _ in requests] == ["GetTable"] * 3


def test_to_find_a_table_is_one_request(clock: ManualClock) -> None:
    with answering((200, {"Table": TABLE})) as (endpoint, requests):
        glue(endpoint, clock).find("db.t")
    assert requests == [("GetTable", {"DatabaseName": "db", "Name": "t"})]


def test_a_missing_permission_is_refused_at_once_and_not_retryable(clock: ManualClock) -> None:
    denied = (400, {"__type": "AccessDeniedException", "Message": "not authorized to perform: glue:GetTable"})
    with answering(denied) as (endpoint, requests), pytest.raises(CatalogRefused) as raised:
        glue(endpoint, clock).find("db.t")
    assert (len(requests), raised.value.facts["status"]) == (1, "AccessDeniedException")
    assert not raised.value.retryable
    assert "canary" not in str(raised.value)


def test_a_resource_link_leads_to_the_table_of_the_other_account(clock: ManualClock) -> None:
    link = {"DatabaseName": "db", "Name": "t", "TargetTable": {"CatalogId": "2", "DatabaseName": "x", "Name": "y"}}
    theirs = {**TABLE, "DatabaseName": "x", "Name": "y", "CatalogId": "2"}
    with answering((200, {"Table": link}), (200, {"Table": theirs})) as (endpoint, requests):
        entry = glue(endpoint, clock).find("db.t")
    assert requests[1] == ("GetTable", {"CatalogId": "2", "DatabaseName": "x", "Name": "y"})
    assert (entry.name, entry.namespace, entry.dataset) == ("db.t", "arn:aws:glue:eu-west-1:2", "table/x/y")
    with answering((200, {"Table": link})) as (endpoint, requests):
        described = Description(
            name="db.t",
            uri="s3://b/t",
            table_id="id",
            version=1,
            columns=(),
            partition_columns=(),
            properties={},
            schema_json="",
        )
        assert not glue(endpoint, clock).update(described), "the entry is the other account's"
    assert len(requests) == 1


def test_a_resource_link_to_another_region_is_refused_by_the_region(clock: ManualClock) -> None:
    target = {"CatalogId": "2", "DatabaseName": "x", "Name": "y", "Region": "us-east-1"}
    link = {"DatabaseName": "db", "Name": "t", "TargetTable": target}
    with answering((200, {"Table": link})) as (endpoint, requests), pytest.raises(CatalogRefused, match="us-east-1"):
        glue(endpoint, clock).find("db.t")
    assert len(requests) == 1


def test_the_second_address_of_a_metastore_answers_if_the_first_is_away(
    metastore: Metastore, clock: ManualClock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    backend = HiveBackend(metastore, str(tmp_path_factory.mktemp("lake")))
    backend.create_database("second_address")
    backend.put(Record(name="second_address.t", location=f"{backend.root}/t", parameters={"table_type": "delta"}))
    catalog = HiveCatalog(
        "c", [("127.0.0.1", closed_port()), (metastore.host, metastore.port)], user="etl", clock=clock
    )
    assert catalog.find("second_address.t").uri == f"{backend.root}/t"
    assert clock.slept == []


def test_a_name_with_a_slash_reaches_no_catalog(clock: ManualClock) -> None:
    with pytest.raises(InvalidInput):
        glue("http://127.0.0.1:1", clock).find("db.a/b")
    assert clock.slept == []
