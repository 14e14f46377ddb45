"""Increments whose query Spark evaluates: other tables at fixed versions, change rows by keys, retries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import JobResult
from airflow_txlog.engine import Table
from airflow_txlog.engine.commit.content.watermarks import watermarks_of
from tests.helpers.jobs import SCHEMA, application, by_id, committed, delete, error_of, ids, insert, rows, run, update
from tests.helpers.racing import killed_before_commit
from tests.helpers.rows import append, make_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long("each job is a query of Spark's")]


def increment(
    spark: SparkSession, target: Table | Path, sql: str, *, consumer: str = "c", **arguments: Any
) -> JobResult:
    views = arguments.pop("views")
    source = {"sql": sql, "views": {name: {"table": view.uri} for name, view in views.items()}}
    return run(spark, "incremental", target, source=source, consumer=consumer, **arguments)


def test_other_tables_are_read_at_versions_that_the_watermark_records(spark: SparkSession, tmp_path: Path) -> None:
    orders = make_table(tmp_path / "o", rows(3))
    names = make_table(tmp_path / "n", rows(3))
    sql = "SELECT o.id, n.name, :x AS x FROM orders o JOIN names n USING (id)"
    views = {"orders": orders, "names": names}
    given: dict[str, Any] = {"views": views, "driving": "orders", "parameters": {"x": 5}}
    work = application()
    with killed_before_commit():
        increment(spark, tmp_path / "t", sql, application=work, **given)
    committed(increment(spark, tmp_path / "t", sql, application=work, **given))
    append(orders, rows(1, start=3))
    append(names, rows(9, start=3))
    with killed_before_commit():
        increment(spark, tmp_path / "t", sql, application=(retried := application()), **given)
    # The retry goes on with the rows that the killed try has written, of the versions that it read.
    append(names, rows(1, start=50))
    append(orders, rows(1, start=50))
    committed(increment(spark, tmp_path / "t", sql, application=retried, **given))
    target = Table.open(tmp_path / "t")
    mark = watermarks_of(target.snapshot().state.domains)["c"]
    assert (ids(target), mark.version, mark.others) == ([0, 1, 2, 3], 2, {names.uri: 2})
    committed(increment(spark, target, sql, **given))
    assert ids(target) == [0, 1, 2, 3, 50]
    assert error_of(increment(spark, target, "SELECT * FROM names", **given))["type"] != "JobError"


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"},
        {"delta.enableRowTracking": "true", "delta.columnMapping.mode": "name"},
    ],
)
def test_changes_are_merged_by_keys(spark: SparkSession, tmp_path: Path, properties: dict[str, str]) -> None:
    source = make_table(tmp_path / "s", rows(6), partition_by=["day"], properties=properties)
    target = make_table(tmp_path / "t", schema=SCHEMA)
    sql = """SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC,
        _change_type = 'delete') AS n FROM s WHERE _change_type <> 'update_preimage') WHERE n = 1"""
    values = {name: f"s.{name}" for name in SCHEMA.names}
    given: dict[str, Any] = {
        "views": {"s": source},
        "mode": "merge",
        "changes": True,
        "starting": 0,
        "on": "t.id = s.id",
        "clauses": [
            delete("s._change_type = 'delete'"),
            update(values),
            insert(values, "s._change_type <> 'delete'"),
        ],
    }
    for number in range(2):
        committed(run(None, "update", source, set={"name": f"'x{number}'"}, predicate=f"id in ({number}, 5)"))
        committed(run(None, "delete", source, predicate=f"id = {number + 1}"))
        append(source, rows(2, start=20 + 10 * number))
        committed(increment(spark, target, sql, **given))
        assert by_id(target) == by_id(source)


def test_columns_of_a_query_that_the_target_lacks(spark: SparkSession, tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(2))
    committed(increment(spark, tmp_path / "t", "SELECT id FROM s", views={"s": source}))
    target = Table.open(tmp_path / "t")
    append(source, rows(1, start=7))
    wider = "SELECT id, name FROM s"
    assert error_of(increment(spark, target, wider, views={"s": source}))["type"] == "SchemaMismatch"
    committed(increment(spark, target, wider, views={"s": source}, on_schema_change="ignore"))
    append(source, rows(1, start=8))
    committed(increment(spark, target, wider, views={"s": source}, on_schema_change="append_new_columns"))
    assert by_id(target) == {0: None, 1: None, 7: None, 8: "n8"}


def test_the_query_may_read_the_target(spark: SparkSession, tmp_path: Path) -> None:
    source = make_table(tmp_path / "s", rows(3))
    target = make_table(tmp_path / "t", rows(2))
    sql = "SELECT * FROM s WHERE id NOT IN (SELECT id FROM t)"
    given: dict[str, Any] = {"views": {"s": source, "t": target}, "driving": "s"}
    committed(increment(spark, target, sql, **given))
    assert ids(target) == [0, 1, 2]
    # A range without a row moves the watermark all the same.
    append(source, rows(3))
    committed(increment(spark, target, sql, **given))
    assert ids(target) == [0, 1, 2]
    assert increment(spark, target, sql, **given).status == "nothing_to_do"
