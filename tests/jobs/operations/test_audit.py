"""AUDIT: SQL over the table as a staged change would leave it; and the changes that only Spark can stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from tests.helpers.jobs import application, by_id, committed, error_of, ids, rows, run
from tests.helpers.rows import append, make_table
from tests.helpers.staged import Handle, publish, stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def audit(spark: SparkSession, table: Table, handle: Handle, **audits: Any) -> JobResult:
    named = {name: handle[name] for name in ("id", "digest", "base_version")}
    return run(spark, "audit", table, **named, **audits)


def test_an_audit_sees_the_staged_rows_and_names_what_fails_by_numbers(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    handle = stage("update", table, set={"amount": "-1.0"}, predicate="id < 3")
    append(table, rows(5, start=100))
    result = audit(
        spark,
        table,
        handle,
        checks={"all": "COUNT(*) = 10", "some": "MIN(amount) < :least", "known": "name IS NOT NULL -- of all"},
        no_rows={"new": "SELECT id FROM staged EXCEPT SELECT id FROM before", "twice": "SELECT 1 WHERE 1 = 2"},
        parameters={"least": 0},
    )
    assert (result.status, result.error, result.metrics) == ("nothing_to_do", None, {"numAuditsPassed": 5})
    failed = error_of(
        audit(
            spark,
            table,
            handle,
            checks={
                "positive": "amount >= 0",
                "all": "COUNT(*) = 10",
                "null": "NULLIF(id, 4) > -1",
                "few": "SUM(id) < 3",
            },
            no_rows={"changed": "SELECT * FROM staged EXCEPT SELECT * FROM before"},
        )
    )
    assert (failed["type"], failed["retryable"]) == ("AuditFailed", False)
    assert failed["facts"]["failed"] == {"positive": 3, "null": 1, "few": 1, "changed": 3}
    assert "positive (3 rows)" in failed["message"]


def test_an_audit_refuses_what_it_cannot_check(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    handle = stage("delete", table, predicate="id < 3")
    with pytest.raises(InvalidJobSpec, match="nothing to check"):
        audit(spark, table, handle)
    for wrong in ({"checks": {"a": "reflect('java.lang.System', 'exit', 1) = 1"}}, {"no_rows": {"a": "SELEC 1"}}):
        assert error_of(audit(spark, table, handle, **wrong))["type"] in ("InvalidJobSpec", "InvalidPredicate")
    spare = audit(spark, table, handle, checks={"a": "TRUE"}, parameters={"x": 1})
    assert error_of(spare)["type"] == "InvalidPredicate"
    committed(publish(handle))
    gone = audit(spark, table, handle, checks={"a": "TRUE"})
    assert error_of(gone)["type"] == "StagedChangeGone"


def test_what_spark_has_staged_is_published_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", rows(10))
    sql = "SELECT id + 5 AS id, day, reverse(name) AS name, amount, 'new' AS extra FROM t"
    result = run(
        spark,
        "merge",
        table,
        application=application(),
        publish=False,
        source={"sql": sql, "views": {"t": {"table": table.uri}}},
        on="t.id = s.id",
        clauses=[
            {"when": "matched", "then": "update", "set": "*"},
            {"when": "not_matched", "then": "insert", "values": "*"},
        ],
        schema_evolution=True,
    )
    assert (result.status, ids(table)) == ("staged", list(range(10))), result.error
    handle = result.details.staged
    assert handle is not None
    committed(publish(handle))
    assert by_id(table, "extra")[9] == "new"
    assert ids(table) == list(range(15))
