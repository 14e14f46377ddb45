"""Spark Connect without a server: which URL is used, and which session each try has."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction
from airflow_txlog.errors import InvalidJobSpec, from_dict
from airflow_txlog.jobs.spark.connect import ConnectTarget, checked_url, status_of, with_parameter
from airflow_txlog.runners.connect import sessions_of
from tests.helpers.specs import job_spec


@pytest.mark.parametrize(
    ("url", "used"),
    [
        ("sc://localhost:15002/;token=t", "sc://localhost:15002/;token=t"),
        ("sc://127.0.0.1:15002/;token=t", "sc://localhost:15002/;token=t"),
        ("sc://[::1]:15002/;token=t;user_id=u", "sc://localhost:15002/;token=t;user_id=u"),
        ("sc://spark.internal:15002/;token=t;use_ssl=true", "sc://spark.internal:15002/;token=t;use_ssl=true"),
        ("sc://spark.internal:15002", "sc://spark.internal:15002"),
    ],
)
def test_an_address_of_this_machine_is_localhost_where_a_token_is_used(url: str, used: str) -> None:
    assert checked_url(url) == used


@pytest.mark.parametrize(
    "url", ["sc://spark.internal:15002/;token=canary", "sc://10.0.0.7/;token=canary;use_ssl=false"]
)
def test_a_token_without_tls_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidJobSpec, match="is given a token and no TLS") as caught:
        checked_url(url)
    assert "canary" not in str(caught.value)


def test_a_token_of_the_environment_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "canary")
    with pytest.raises(InvalidJobSpec, match="no TLS"):
        checked_url("sc://spark.internal")


def test_a_url_gets_one_parameter_more() -> None:
    assert with_parameter("sc://host", "a", "x/y;z") == "sc://host/;a=x%2Fy%3Bz"
    assert with_parameter("sc://host:1/;b=1", "a", "x") == "sc://host:1/;b=1;a=x"


def spec(**annotations: Any) -> Any:
    task = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
    return job_spec(
        operation="delete",
        table_uri="memory://t",
        arguments={"predicate": "id = 1"},
        application=ApplicationTransaction(app_id="a", version=1),
        annotations=task | annotations if annotations else {},
    )


def test_each_try_has_a_session_and_knows_those_of_the_tries_before() -> None:
    first, second, third = (sessions_of(spec(try_number=number)) for number in (1, 2, 3))
    assert first[0] in second[1]
    assert {first[0], second[0]} <= set(third[1])
    assert third[0] not in third[1]
    assert sessions_of(spec(try_number=2)) == second
    assert sessions_of(spec(try_number=2, task_id="other"))[0] != second[0]


def test_work_outside_of_a_task_has_a_session_of_its_own_each_time() -> None:
    assert sessions_of(spec())[1] == ()
    assert sessions_of(spec())[0] != sessions_of(spec())[0]


def test_a_target_crosses_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ConnectTarget(url="sc://localhost/;token=t", session_id="s", abandoned=("a", "b"), is_pooled=True)
    monkeypatch.setattr("os.environ", target.environment())
    assert ConnectTarget.of_environment() == target


def test_a_refusal_that_a_local_spark_lifts_says_so_across_processes() -> None:
    error = InvalidJobSpec("refused", argument="source", is_local_only=True)
    assert from_dict(error.to_dict()).facts["is_local_only"]


def test_only_a_status_of_grpc_is_one() -> None:
    assert status_of(ValueError("x")) is None
    assert status_of(SystemExit(3)) is None
