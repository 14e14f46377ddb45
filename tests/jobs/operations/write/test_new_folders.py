"""A first write makes no table beside files of others by accident, and a killed one can be retried."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.jobs.run import run_job
from tests.helpers.jobs import KEY, application, committed, error_of, ids, rows
from tests.helpers.racing import killed_before_commit
from tests.helpers.specs import job_spec


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    pq.write_table(rows(3), tmp_path / "in" / "a.parquet")
    return tmp_path / "in"


def write(table: Path, source: Path, more: dict[str, Any] | None = None, **arguments: Any) -> JobResult:
    arguments = {"source": {"format": "parquet", "path": str(source)}, **arguments}
    return run_job(job_spec(operation="write", table_uri=str(table), arguments=arguments, **(more or {})), None)


def test_a_write_into_a_folder_of_files_is_refused_and_stages_nothing(tmp_path: Path, source: Path) -> None:
    for target in (source, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        error = error_of(write(target, source))
        assert (error["type"], error["retryable"]) == ("FolderNotEmpty", False)
        assert "a.parquet" in error["message"]
        assert sorted(tmp_path.rglob("*")) == before


def test_the_author_may_have_the_table_made_beside_them(tmp_path: Path, source: Path) -> None:
    theirs = tmp_path / "t" / "theirs.parquet"
    theirs.parent.mkdir()
    theirs.write_bytes(b"somebody's")
    os.utime(theirs, (1, 1))
    committed(write(tmp_path / "t", source, allow_non_empty=True))
    assert Table.open(str(tmp_path / "t")).snapshot().properties["txlog.sharedFolder"] == "true"
    # From then on it is a table like any other.
    assert committed(write(tmp_path / "t", source)).version == 1

    def vacuum(**arguments: bool) -> JobResult:
        return run_job(job_spec(operation="vacuum", table_uri=str(tmp_path / "t"), arguments=arguments), None)

    assert error_of(vacuum())["type"] == "FolderNotEmpty"
    assert theirs.exists()
    assert committed(vacuum(include_foreign=True)).files["removed"] == 1
    assert not theirs.exists()


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_a_first_write_that_was_killed_is_done_once_by_its_retry(
    tmp_path: Path, source: Path, partition_by: list[str]
) -> None:
    more = {"application": application(), "saved_work_key": KEY}
    for _ in range(2):
        with killed_before_commit():
            write(tmp_path / "t", source, more, partition_by=partition_by)
    assert list((tmp_path / "t").rglob("*.parquet")), "what the killed tries have staged"
    assert committed(write(tmp_path / "t", source, more, partition_by=partition_by)).version == 0
    assert write(tmp_path / "t", source, more, partition_by=partition_by).status == "already_done"
    table = Table.open(str(tmp_path / "t"))
    assert ids(table) == [0, 1, 2]
    assert "txlog.sharedFolder" not in table.snapshot().properties
