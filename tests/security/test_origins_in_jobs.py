"""Every text of a job, with every hostile payload in it: typed error or right rows, and no more.

A case is one origin and one payload. `make test` draws a few cases, `make test-long` some hundreds, and
TXLOG_TEST_ALL=1 all; each prints their number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import ApplicationTransaction, JobResult
from tests.conftest import REPORTED
from tests.helpers.hostile import Log, Watched, check, drawn, line_of
from tests.helpers.jobs import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.seeded

_MATCHED_UPDATE = {"when": "matched", "then": "update"}


def _merge(spark: SparkSession, table: Path, **more: Any) -> JobResult:
    given = {"source": {"sql": "SELECT 1L AS id"}, "on": "t.id = s.id", "clauses": [{**_MATCHED_UPDATE, "set": "*"}]}
    return run(spark, "merge", table, **(given | more))


TEXTS: dict[str, Callable[[SparkSession, Path, str], JobResult]] = {
    "parameter": lambda spark, table, text: run(
        spark, "delete", table, predicate="CAST(id AS STRING) = :p", parameters={"p": text}
    ),
    "name of a parameter": lambda spark, table, text: run(
        spark, "delete", table, predicate="id = :p", parameters={"p": 1, text: 1}
    ),
    "key": lambda spark, table, text: run(
        spark, "delete", table, predicate=None, keys={"column": "id", "values": [text]}
    ),
    "key column": lambda spark, table, text: run(
        spark, "delete", table, predicate=None, keys={"column": text, "values": [1]}
    ),
    "predicate": lambda spark, table, text: run(spark, "delete", table, predicate=text),
    "predicate's value": lambda spark, table, text: run(spark, "delete", table, predicate=f"({text}) = 'a'"),
    "partition predicate": lambda spark, table, text: run(
        spark, "delete", table, predicate="TRUE", partition_predicate=text
    ),
    "set": lambda spark, table, text: run(spark, "update", table, set={"id": text}, predicate="TRUE"),
    "column of set": lambda spark, table, text: run(spark, "update", table, set={text: "1"}, predicate="TRUE"),
    "merge condition": lambda spark, table, text: _merge(spark, table, on=text),
    "clause's condition": lambda spark, table, text: _merge(
        spark, table, clauses=[{"when": "matched", "then": "delete", "condition": text}]
    ),
    "clause's value": lambda spark, table, text: _merge(
        spark, table, clauses=[{"when": "not_matched", "then": "insert", "values": {"id": text}}]
    ),
    "alias": lambda spark, table, text: _merge(spark, table, target_alias=text, on="s.id = 1"),
    "query": lambda spark, table, text: run(spark, "write", table, source={"sql": text}, mode="append"),
    "query's value": lambda spark, table, text: run(
        spark, "write", table, source={"sql": f"SELECT length({text}) AS id"}, mode="append"
    ),
    "view": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"sql": "SELECT 1L AS id", "views": {"v": {"path": text, "format": "parquet"}}},
        mode="append",
    ),
    "name of a view": lambda spark, table, text: run(
        spark, "write", table, source={"sql": "SELECT 1L AS id", "views": {text: {"table": str(table)}}}, mode="append"
    ),
    "option": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"path": f"{table.parent}/in.csv", "format": "csv", "options": {"sep": text, text: text, "header": "x"}},
        mode="append",
    ),
    "source's schema": lambda spark, table, text: run(
        spark,
        "write",
        table,
        source={"path": f"{table.parent}/in.csv", "format": "csv", "schema": text},
        mode="append",
    ),
    "replaced rows": lambda spark, table, text: run(
        spark, "write", table, source={"sql": "SELECT 1L AS id"}, mode="overwrite", replace_where=text
    ),
    "Z-order": lambda spark, table, text: run(spark, "optimize", table, zorder_by=[text]),
    "time zone": lambda spark, table, text: run(spark, "delete", table, predicate="id = 1", time_zone=text),
    "application transaction": lambda spark, table, text: run(
        spark, "delete", table, predicate="id = 1", application=ApplicationTransaction(app_id=text, version=1)
    ),
}
CASES = [case[:2] for case in drawn(list(TEXTS))]


@pytest.mark.spark
@pytest.mark.parametrize(("origin", "payload"), CASES)
def test_a_jobs_texts_are_input(
    spark: SparkSession, tmp_path: Path, watched: Watched, origin: str, payload: str
) -> None:
    root = Log().make(tmp_path / "t")
    check(watched, spark, root, lambda: TEXTS[origin](spark, root, watched.payload(payload)))


def test_every_text_of_a_job_meets_every_payload(record_property: Callable[[str, object], None]) -> None:
    record_property(REPORTED, line_of(CASES, list(TEXTS)) + " of a job")
