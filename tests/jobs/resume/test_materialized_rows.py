"""A source's pinned rows: all of them or an error, and those of the work that is asked for now."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.jobs.operations.merge import by_spark
from airflow_txlog.jobs.operations.merge import job as merge_job
from tests.helpers.jobs import application, by_id, committed, error_of, rows, run
from tests.helpers.racing import killed_before_commit
from tests.helpers.rows import make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def inserting(source: Path, name: str, value: str = "s.name") -> dict[str, Any]:
    """The arguments of a merge that inserts one row, of this name (or what SQL makes of it), from a Parquet file."""
    pq.write_table(pa.table({"id": pa.array([100], pa.int64()), "name": [name]}), source)
    clause = {"when": "not_matched", "then": "insert", "values": {"id": "s.id", "name": value}}
    return {"source": {"format": "parquet", "path": str(source)}, "on": "t.id = s.id", "clauses": [clause]}


@pytest.fixture
def lenient(spark: SparkSession) -> Iterator[None]:
    """A session that passes over files that are gone, as an author may set it for a source of theirs."""
    name = "spark.sql.files.ignoreMissingFiles"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


@pytest.mark.parametrize(("way", "value"), [("plain_inserts", "s.name"), ("inserts", "upper(s.name)")])
def test_materialized_rows_that_are_gone_are_an_error_whatever_the_session_ignores(
    tmp_path: Path, spark: SparkSession, lenient: None, monkeypatch: pytest.MonkeyPatch, way: str, value: str
) -> None:
    table, given = make_table(tmp_path / "t", rows(3)), inserting(tmp_path / "s.parquet", "new", value)
    owner = merge_job if way == "plain_inserts" else by_spark.JudgedMerge
    real = getattr(owner, way)

    def swept(*arguments: Any, **more: Any) -> Any:
        frame = real(*arguments, **more)
        for folder in (tmp_path / "t").glob("txlog-inputs-*"):
            shutil.rmtree(folder)
        return frame

    monkeypatch.setattr(owner, way, swept)
    error = error_of(run(spark, "merge", table, application=application(), **given))
    assert "keeps its source's rows, is gone" in error["message"]
    assert table.snapshot().version == 1


def test_a_cleared_task_reads_its_source_anew_where_nothing_was_committed(tmp_path: Path, spark: SparkSession) -> None:
    """It has the number of the tries before the clear, because none was recorded, and began later."""
    table, source = make_table(tmp_path / "t", rows(3)), tmp_path / "s.parquet"
    now_ms = time.time_ns() // 1_000_000
    first = application(first_tried_ms=now_ms - 60_000)
    with killed_before_commit():
        run(spark, "merge", table, application=first, **inserting(source, "old"))
    log: list[str] = []
    mended = inserting(source, "mended")
    retried = dataclasses.replace(first, first_tried_ms=now_ms)
    committed(run(spark, "merge", table, application=retried, log=log.append, **mended))
    assert by_id(table)[100] == "mended"
    assert not any("resuming" in line for line in log)
