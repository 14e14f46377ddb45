"""A14: a scope that cannot be computed is no scope; the merge itself decides whether its source is at fault."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.storage.limits import Limits
from tests.helpers.jobs import SCHEMA, committed, error_of, rows, run
from tests.helpers.rows import append, bag, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = {"sql": "SELECT * FROM VALUES (1L, 'day', '2024-01-02'), (0L, 'text', 'Ann') AS s(id, kind, value)"}
CLAUSES = [{"when": "matched", "then": "update", "set": {"name": "s.value"}}]


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_a14_an_expression_that_on_guards_makes_no_scope_and_no_failure(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t", rows(1, day=dt.date(2024, 1, 1)), schema=SCHEMA, partition_by=["day"])
    append(table, rows(1, start=1, day=dt.date(2024, 1, 2)))
    work: dict[str, Any] = {"source": SOURCE, "clauses": CLAUSES}
    guarded = "s.kind = 'day' AND t.day = CAST(s.value AS DATE) AND t.id = s.id"
    lines: list[str] = []
    result = committed(run(spark, "merge", table, on=guarded, log=lines.append, **work))
    assert (result.metrics["numTargetRowsUpdated"], result.files["considered"]) == (1, 2)
    assert bag(table, "name") == {"{'name': 'n0'}": 1, "{'name': '2024-01-02'}": 1}
    (told,) = (line for line in lines if "do not bound what is read" in line)
    assert "CAST_INVALID_INPUT" in told
    assert not any("Ann" in line for line in lines), "a log line shows no value"

    committed(run(spark, "merge", table, on=guarded, **work, limits=Limits(scope_values=0)))

    error = error_of(run(spark, "merge", table, on="t.day = CAST(s.value AS DATE)", **work))
    assert (error["type"], error["retryable"]) == ("InvalidInput", False), "what Spark's own join cannot evaluate fails"
