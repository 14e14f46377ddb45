"""`execute` as authors call it in their own tests: without Airflow, and so without a task instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import Asset

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.operators import (
    CheckpointOperator,
    DeltaDeleteOperator,
    DeltaOptimizeOperator,
    DeltaRestoreOperator,
    DeltaTruncateOperator,
    DeltaUpdateOperator,
    DeltaUpsertOperator,
    DeltaWriteOperator,
    VacuumOperator,
    table,
)
from tests.helpers.rows import make_table

pytestmark = pytest.mark.airflow

IDS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TXLOG_PROGRESS_FILE", str(tmp_path / "progress"))
    return make_table(tmp_path / "t", IDS).uri


def ids(uri: str) -> list[int]:
    return sorted(Table.open(uri).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize(
    ("operator", "left"),
    [
        (lambda **given: DeltaDeleteOperator(predicate="id = 1", **given), [2]),
        (lambda **given: DeltaUpdateOperator(set={"id": "3"}, predicate="id = 1", **given), [2, 3]),
        (lambda **given: DeltaUpsertOperator(source=table(given["table_uri"]), keys="id", **given), [1, 2]),
        (lambda **given: DeltaWriteOperator(source=table(given["table_uri"]), **given), [1, 1, 2, 2]),
        (lambda **given: DeltaTruncateOperator(**given), []),
        (lambda **given: DeltaRestoreOperator(version=0, **given), []),
        (lambda **given: DeltaOptimizeOperator(**given), [1, 2]),
        (lambda **given: VacuumOperator(**given), [1, 2]),
        (lambda **given: CheckpointOperator(**given), [1, 2]),
    ],
)
@pytest.mark.spark
def test_an_operator_does_its_work_and_returns_what_a_task_returns(
    spark: Any, uri: str, operator: Callable[..., Any], left: list[int]
) -> None:
    made = operator(task_id="t", table_uri=uri, runner="in_process", outlets=[Asset("s3://lake/t")])
    found = made.execute({})
    assert found["operation"] == made.operation.name
    assert ids(uri) == left


def test_a_key_of_the_authors_still_names_the_work(uri: str) -> None:
    def truncate(key: str | None) -> str:
        one = DeltaTruncateOperator(task_id="t", table_uri=uri, runner="in_process", idempotency_key=key)
        return str(one.execute({})["status"])

    assert [truncate("once"), truncate("once"), truncate(None)] == ["committed", "already_done", "nothing_to_do"]


def test_a_template_that_is_not_rendered_is_refused_by_name_and_a_rendered_one_is_not(uri: str) -> None:
    def delete() -> DeltaDeleteOperator:
        return DeltaDeleteOperator(
            task_id="t", table_uri=uri, predicate="id = :id", parameters={"id": "{{ params.id }}"}, runner="in_process"
        )

    with pytest.raises(InvalidJobSpec, match=r"^parameters holds a template that is not rendered") as caught:
        delete().execute({})
    assert caught.value.facts["argument"] == "parameters"
    assert ids(uri) == [1, 2]
    rendered = delete()
    rendered.render_template_fields({"params": {"id": 1}})  # type: ignore[typeddict-item]
    rendered.execute({})
    assert ids(uri) == [2]


class Durable:
    """A runner whose job outlives this process."""

    instead_of_waiting = None

    def run(self, spec: JobSpec, *, log: Any) -> JobResult:
        raise AssertionError("nothing may be started")

    resume = run

    def cancel(self, spec: JobSpec, *, log: Any) -> None: ...

    def kill(self) -> None: ...


def test_a_runner_that_must_find_its_job_again_is_refused_by_name(uri: str) -> None:
    with pytest.raises(InvalidJobSpec, match="without a task instance, by which the job of a Durable is found"):
        CheckpointOperator(task_id="t", table_uri=uri, runner=Durable()).execute({})
