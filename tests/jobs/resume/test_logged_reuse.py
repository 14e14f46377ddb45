"""Alone in showing what the log says of earlier work: what is reused, what is not and why, and that a cleared task does
its work again. None of it starts a Spark.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobSpec
from airflow_txlog.engine import Table
from airflow_txlog.exactly_once.transactions import work_folder
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import KEY, application, committed, rows
from tests.helpers.racing import winning
from tests.helpers.rows import append, make_table
from tests.helpers.specs import job_spec

VECTORS = {"delta.enableDeletionVectors": "true"}


def spec_of(table: Table, operation: str = "delete", *, try_number: int = 1, **arguments: Any) -> JobSpec:
    return job_spec(
        operation=operation,
        table_uri=table.uri,
        arguments=arguments,
        application=application(),
        saved_work_key=KEY,
        annotations={"try_number": try_number},
    )


def logged(spec: JobSpec) -> list[str]:
    lines: list[str] = []
    committed(run_job(spec, None, log=lines.append))
    return lines


def about_earlier_work(lines: list[str]) -> list[str]:
    words = ("earlier", "reused", "staged before", "resuming")
    return [line for line in lines if any(word in line for word in words)]


@pytest.mark.parametrize("properties", [{}, VECTORS], ids=["files", "deletion vectors"])
def test_a_first_attempt_mentions_no_earlier_one(tmp_path: Path, properties: dict[str, str]) -> None:
    table = make_table(tmp_path / "t", rows(1000), properties=properties)
    assert about_earlier_work(logged(spec_of(table, predicate="id = 3"))) == []
    assert about_earlier_work(logged(spec_of(table, "update", set={"name": "'x'"}, predicate="id = 4"))) == []


def test_an_attempt_that_lost_mentions_what_it_reuses(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10), rows(10, start=100))
    log = winning("staged", lambda: append(table, rows(10, start=200)))
    result = committed(run_job(spec_of(table, predicate="id IN (3, 203)"), None, log=log))
    assert result.attempts == 2
    assert [line for line in log.lines if line.startswith("reused what was staged before: 1 file (")]


def test_an_attempt_that_lost_mentions_what_it_cannot_use(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    other = job_spec(operation="delete", table_uri=table.uri, arguments={"predicate": "id = 4"})
    log = winning("staged", lambda: committed(run_job(other, None)))
    result = committed(run_job(spec_of(table, predicate="id = 3"), None, log=log))
    assert result.attempts == 2
    (line,) = [line for line in log.lines if line.startswith("not used of what was staged before: 1 file (")]
    assert line.endswith("as the rows that they were made of have changed since")


def test_a_retry_that_finds_nothing_mentions_it(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    lines = about_earlier_work(logged(spec_of(table, try_number=2, predicate="id = 3")))
    assert lines == [
        "nothing of an earlier try is reused: it ended before it saved any work. Data files that it staged and did not "
        "commit are left to VACUUM"
    ]
    unsaved = spec_of(table, try_number=2, predicate="id = 4").replace(saved_work_key=None)
    assert about_earlier_work(logged(unsaved)) == [
        "nothing of an earlier try is reused: this job saves no work for its retries"
    ]


def test_a_cleared_task_is_new_work_and_mentions_no_earlier_try(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    spec = spec_of(table, try_number=3, predicate="id = 3")
    cleared = spec.replace(application=replace(application(), is_first_try=True))
    assert about_earlier_work(logged(cleared)) == []


def test_a_retry_mentions_the_rows_that_a_killed_try_has_left_unfinished(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    spec = spec_of(table, predicate="id = 3")
    folder = work_folder(table.uri, spec.application, KEY)
    table.store.put_if_absent(f"{folder}/part-0.parquet", b"x" * 3000)
    (line,) = about_earlier_work(logged(spec))
    assert f"1 file (2.9 KiB) that it left in {folder} go when this job ends" in line
    assert list(table.store.list(str(folder))) == []


def test_a_job_that_goes_on_with_spark_takes_its_own_rows_for_no_earlier_ones(tmp_path: Path) -> None:
    """A merge that writes its source down and then asks for Spark looks for saved work twice."""
    from airflow_txlog.jobs.context import JobContext
    from airflow_txlog.jobs.resume.saved_work import SavedWork
    from tests.helpers.jobs import begin_job

    table = make_table(tmp_path / "t", rows(10))
    lines: list[str] = []
    spec = spec_of(table, try_number=1, predicate="id = 3")
    tried: JobContext = begin_job(spec, None, table, lines.append)
    table.store.put_if_absent(f"{tried.inputs_folder}/part-0.parquet", b"x")
    SavedWork(begin_job(spec, None, table, lines.append, tried)).load()
    assert about_earlier_work(lines) == []


@pytest.mark.parametrize("others", [0, 120])
def test_a_cleared_task_mentions_what_it_does_again(tmp_path: Path, others: int) -> None:
    table = make_table(tmp_path / "t", rows(10))
    pq.write_table(rows(3, start=50), tmp_path / "in.parquet")
    work = application()
    source = {"format": "parquet", "path": str(tmp_path / "in.parquet")}
    spec = job_spec(operation="write", table_uri=table.uri, arguments={"source": source}, application=work)
    version = committed(run_job(spec, None)).version
    for number in range(others):
        append(table, rows(1, start=1000 + number))
    cleared = ApplicationTransaction(app_id=work.app_id, version=work.version + 1)
    lines = logged(spec.replace(application=cleared))
    at = f"version {version}" if not others else f"before version {table.latest_version() - 1}"
    expected = f"an earlier run of this task has committed {at} already, and the task was cleared since: this write is"
    assert [line for line in lines if line.startswith(expected)]
    assert not [line for line in logged(spec.replace(application=application())) if "earlier run" in line]
    assert pa.types.is_int64(table.to_arrow().schema.field("id").type)
