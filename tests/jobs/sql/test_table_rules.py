"""Alone in showing that every new row keeps its table's rules: constraints, generated columns, defaults, lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.datafiles.parquet.judging import VIOLATION_COLUMN, without_violations
from airflow_txlog.engine import Table
from airflow_txlog.errors import ConstraintViolation, JobError
from tests.helpers.jobs import committed, error_of, files_on_disk, insert, merge, run, set_property, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def table_with(
    folder: Path,
    schema: pa.Schema = IDS,
    marks: Mapping[str, Mapping[str, Any]] | None = None,
    properties: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> Table:
    """An empty table whose columns carry these marks in their metadata, and which has these properties."""
    table = Table.create(str(folder), schema, partition_by)
    old = table.snapshot().metadata
    described = json.loads(old.schema_string or "")
    for field in described["fields"]:
        field["metadata"] = dict((marks or {}).get(field["name"], {}))
    tx = table.begin()
    tx.set_metadata(
        msgspec.structs.replace(
            old, schema_string=json.dumps(described), configuration={**old.configuration, **(properties or {})}
        )
    )
    tx.commit("CHANGE COLUMNS")
    return table


def refused(spark: SparkSession, table: Table, sql: str, **arguments: Any) -> dict[str, Any]:
    """The error of a write that the table's rules forbid; nothing of it is left."""
    before, version = files_on_disk(table), table.snapshot().version
    error = error_of(run(spark, "write", table, source={"sql": sql}, **arguments))
    assert (files_on_disk(table), table.snapshot().version) == (before, version)
    return error


def write(spark: SparkSession, table: Table, sql: str, **arguments: Any) -> None:
    committed(run(spark, "write", table, source={"sql": sql}, **arguments))


def rows_of(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return sorted(found, key=repr)


# --- CHECK and invariants -------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_row_that_breaks_a_check_constraint_stops_the_write(tmp_path: Path, spark: SparkSession) -> None:
    rules = {"delta.constraints.positive": "id > 0 -- never less", "delta.constraints.named": "length(name) < 100"}
    table = table_with(tmp_path / "t", properties=rules)
    write(spark, table, "SELECT id + 1 AS id, 'x' AS name FROM range(3)")
    sql = "SELECT id - 5 AS id, 'x' AS name FROM range(100)"
    error = refused(spark, table, sql)
    assert (error["type"], error["facts"]["constraint"], error["retryable"]) == (
        "ConstraintViolation",
        "positive",
        False,
    )
    assert "CHECK constraint 'positive' (id > 0 -- never less) (it reads id)." in error["message"]
    # Null is not true.
    assert refused(spark, table, "SELECT 1 AS id, NULL AS name")["facts"]["constraint"] == "named"
    # An error shows nothing of a value (soundness C8).
    error = refused(spark, table, "SELECT 1 AS id, concat('secret', repeat('x', 500), 'tail') AS name")
    assert "secret" not in json.dumps(error)
    assert [row["id"] for row in rows_of(table)] == [1, 2, 3]


@pytest.mark.spark
def test_a_new_table_with_constraints_holds_its_first_rows_to_them(tmp_path: Path, spark: SparkSession) -> None:
    properties = {"delta.constraints.even": "id % 2 = 0"}
    sql = "SELECT id FROM range(4)"
    error = error_of(run(spark, "write", tmp_path / "t", source={"sql": sql}, properties=properties))
    assert error["facts"]["constraint"] == "even"
    assert files_on_disk(tmp_path / "t") == set()
    write_new = run(
        spark, "write", tmp_path / "v", source={"sql": "SELECT 2 * id AS id FROM range(4)"}, properties=properties
    )
    assert committed(write_new).version == 0
    assert Table.open(str(tmp_path / "v")).snapshot().protocol.writer_features == [
        "appendOnly",
        "checkConstraints",
        "invariants",
    ]


@pytest.mark.spark
def test_an_invariant_of_a_column_is_kept(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    marks = {"id": {"delta.invariants": '{"expression":{"expression":"id < 10 AND s.a IS NOT NULL"}}'}}
    table = table_with(tmp_path / "t", schema, marks)
    write(spark, table, "SELECT 1 AS id, named_struct('a', 2L) AS s")
    error = refused(spark, table, "SELECT 1 AS id, named_struct('a', CAST(NULL AS BIGINT)) AS s")
    assert (error["facts"]["constraint"], error["facts"]["column"]) == ("INVARIANT", "id")
    assert "(it reads id, s)" in error["message"]


@pytest.mark.spark
def test_a_constraint_that_cannot_be_evaluated_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    odd = [
        ("gone > 1", "gone"),
        ("id > 0) OR (1 = 1", "one SQL expression"),
        ("reflect('java.lang.Runtime', 'getRuntime') IS NULL", "reflect"),
        ("id", "BOOLEAN"),
    ]
    for number, (sql, what) in enumerate(odd):
        table = table_with(tmp_path / str(number), properties={"delta.constraints.odd": sql})
        error = refused(spark, table, "SELECT 1 AS id")
        assert (error["type"], error["facts"]["feature"]) == ("UnsupportedFeature", "checkConstraints"), sql
        assert what in error["message"]
        assert "'odd'" in error["message"]
    assert run(spark, "delete", table, predicate="id = 4").status == "nothing_to_do"


# --- columns that the table fills in --------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_generated_column_is_computed_when_absent_and_verified_when_given(
    tmp_path: Path, spark: SparkSession
) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
    marks = {"day": {"delta.generationExpression": "CAST(at AS DATE)"}}
    table = table_with(tmp_path / "t", schema, marks)
    write(spark, table, "SELECT 1 AS id, timestamp'2024-03-01 23:00:00' AS at")
    given = "(2, timestamp'2024-03-01 23:00:00', date'2024-03-01'), (3, NULL, NULL)"
    write(spark, table, f"SELECT * FROM VALUES {given} AS (id, at, day)")
    assert [str(row["day"]) for row in rows_of(table)] == ["2024-03-01", "2024-03-01", "None"]
    error = refused(spark, table, "SELECT 4 AS id, timestamp'2024-03-01 23:00:00' AS at, date'2024-03-02' AS day")
    assert (error["facts"]["constraint"], error["facts"]["column"]) == ("GENERATED", "day")
    assert "(it reads day, at)" in error["message"]
    assert "2024-03-0" not in error["message"]
    assert refused(spark, table, "SELECT timestamp'2024-03-01 23:00:00' AS at, NULL AS day")["facts"]["column"] == "day"


@pytest.mark.spark
def test_a_default_fills_a_column_that_nobody_named(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            pa.field("name", pa.string(), nullable=False),
            ("twice", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    marks = {
        "at": {"CURRENT_DEFAULT": "current_timestamp()"},
        "id": {"CURRENT_DEFAULT": "7"},
        "name": {"CURRENT_DEFAULT": "concat('a', 'b')"},
        "twice": {"delta.generationExpression": "id * 2"},
    }
    now = "at BETWEEN current_timestamp() - INTERVAL 1 HOUR AND current_timestamp()"
    table = table_with(tmp_path / "t", schema, marks, {"delta.constraints.now": now})
    write(spark, table, "SELECT 'x' AS name")
    write(spark, table, "SELECT * FROM VALUES (8L), (NULL) AS (id)")
    assert [{name: row[name] for name in ("id", "name", "twice")} for row in rows_of(table)] == [
        {"id": 7, "name": "x", "twice": 14},
        {"id": 8, "name": "ab", "twice": 16},
        {"id": None, "name": "ab", "twice": None},
    ]
    assert refused(spark, table, "SELECT CAST(NULL AS STRING) AS name")["facts"]["constraint"] == "NOT NULL"


@pytest.mark.spark
def test_no_row_brings_null_for_an_identity_column(tmp_path: Path, spark: SparkSession) -> None:
    marks = {"id": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}}
    table = table_with(tmp_path / "t", marks=marks)
    assert refused(spark, table, "SELECT CAST(NULL AS BIGINT) AS id")["facts"]["constraint"] == "IDENTITY"
    error = error_of(merge(spark, table, "SELECT 9L AS k", insert({"id": "NULL"}), on="t.id = s.k"))
    assert error["facts"]["constraint"] == "IDENTITY"


# --- lengths --------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_char_is_padded_varchar_is_not_and_neither_is_exceeded(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("c", pa.string()), ("v", pa.string())])
    marks = {"c": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}, "v": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}
    table = table_with(tmp_path / "t", schema, marks, {"delta.constraints.stored": "length(c) = 3 AND length(v) <= 3"})
    texts = "VALUES (1, 'é', 'é'), (2, 'abc', 'abc'), (3, 'abc  ', 'ab    '), (4, '', '') AS (id, c, v)"
    write(spark, table, f"SELECT * FROM {texts}")
    # As Spark's own tables store them.
    stored = [(1, "é  ", "é"), (2, "abc", "abc"), (3, "abc", "ab "), (4, "   ", "")]
    assert rows_of(table) == [dict(zip(("id", "c", "v"), row, strict=True)) for row in stored]
    error = refused(spark, table, "SELECT 'abcd' AS c, 'x' AS v")
    assert (error["facts"]["constraint"], error["facts"]["column"]) == ("char(3)", "c")
    assert "(it reads c)" in error["message"]
    assert "abcd" not in error["message"]
    assert refused(spark, table, "SELECT 'x' AS c, 'ab d' AS v")["facts"]["constraint"] == "varchar(3)"


@pytest.mark.long("Spark runs many jobs")
@pytest.mark.spark
def test_a4_a_char_is_compared_as_spark_compares_it_in_its_own_tables(tmp_path: Path, spark: SparkSession) -> None:
    schema = pa.schema([("id", pa.int64()), ("c", pa.string())])
    char = {"c": {"__CHAR_VARCHAR_TYPE_STRING": "char(4)"}}
    table = table_with(tmp_path / "t", schema, char)
    write(spark, table, "SELECT * FROM VALUES (1, 'ab'), (2, 'abcd'), (3, 'x'), (4, NULL) AS (id, c)")
    assert run(spark, "delete", table, predicate="c = 'ab'").metrics["numDeletedRows"] == 1
    committed(run(spark, "update", table, predicate="c IN ('x', 'y')", set={"c": "'yy'"}))
    clause = update({"c": "'end'"}, "t.c = 'abcd'")
    committed(merge(spark, table, "SELECT 'abcd' AS k", clause, on="t.c = s.k"))
    kept = [{"id": 2, "c": "end "}, {"id": 3, "c": "yy  "}, {"id": 4, "c": None}]
    assert rows_of(table) == sorted(kept, key=repr)
    parted = table_with(tmp_path / "u", schema, char, partition_by=["c"])
    write(spark, parted, "SELECT * FROM VALUES (1, 'ab'), (2, 'abcd') AS (id, c)")
    committed(run(spark, "delete", parted, predicate="c = 'ab'"))
    assert rows_of(parted) == [{"id": 2, "c": "abcd"}]


# --- update and merge -----------------------------------------------------------------------------------------------

GENERATED = {
    "name": {"__CHAR_VARCHAR_TYPE_STRING": "char(4)", "CURRENT_DEFAULT": "'new'"},
    "twice": {"delta.generationExpression": "id * 2"},
}
WIDE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("twice", pa.int64()), ("n", pa.int64())])


@pytest.mark.spark
def test_new_images_of_an_update_keep_the_rules(tmp_path: Path, spark: SparkSession) -> None:
    table = table_with(tmp_path / "t", WIDE, GENERATED, {"delta.constraints.small": "n < 100"})
    write(spark, table, "SELECT id, 'x' AS name, id AS n FROM range(4)")
    committed(run(spark, "update", table, predicate="id = 1", set={"id": "10", "name": "'yy'"}))
    committed(run(spark, "update", table, predicate="id = 2", set={"twice": "4", "name": "DEFAULT"}))
    kept = [
        {"id": 0, "name": "x   ", "twice": 0, "n": 0},
        {"id": 10, "name": "yy  ", "twice": 20, "n": 1},
        {"id": 2, "name": "new ", "twice": 4, "n": 2},
        {"id": 3, "name": "x   ", "twice": 6, "n": 3},
    ]
    assert rows_of(table) == sorted(kept, key=repr)
    before = files_on_disk(table)
    for values, constraint in (
        (("n", "n + 99"), "small"),
        (("twice", "5"), "GENERATED"),
    ):
        error = error_of(run(spark, "update", table, predicate="id > 0", set=dict([values])))
        assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", constraint)
    assert files_on_disk(table) == before


@pytest.mark.spark
def test_new_rows_of_a_merge_keep_the_rules(tmp_path: Path, spark: SparkSession) -> None:
    table = table_with(tmp_path / "t", WIDE, GENERATED, {"delta.constraints.small": "n < 100"})
    write(spark, table, "SELECT id, 'x' AS name, id AS n FROM range(4)")

    # Some clauses give the generated column a value, and others leave it to the table.
    result = merge(
        spark,
        table,
        "SELECT * FROM VALUES (0L, 0L), (1L, 5L), (7L, 7L), (8L, 99L) AS (k, n)",
        update({"twice": "0", "name": "'set'"}, "s.k = 0"),
        update({"id": "50", "n": "s.n"}),
        insert({"id": "s.k", "n": "s.n"}, "s.k = 7"),
        insert({"id": "s.k", "n": "s.n", "twice": "16", "name": "DEFAULT"}),
        on="t.id = s.k",
    )
    committed(result)
    kept = [
        {"id": 0, "name": "set ", "twice": 0, "n": 0},
        {"id": 50, "name": "x   ", "twice": 100, "n": 5},
        {"id": 2, "name": "x   ", "twice": 4, "n": 2},
        {"id": 3, "name": "x   ", "twice": 6, "n": 3},
        {"id": 7, "name": "new ", "twice": 14, "n": 7},
        {"id": 8, "name": "new ", "twice": 16, "n": 99},
    ]
    assert rows_of(table) == sorted(kept, key=repr)
    before = files_on_disk(table)
    for clause, constraint in (
        (update({"n": "100"}), "small"),
        (insert({"id": "s.k", "n": "1", "name": "'abcde'"}), "char(4)"),
    ):
        error = error_of(merge(spark, table, "SELECT * FROM VALUES (2L), (9L) AS (k)", clause, on="t.id = s.k"))
        assert (error["type"], error["facts"]["constraint"]) == ("ConstraintViolation", constraint)
    assert not {path for path in files_on_disk(table) - before if not path.startswith("txlog-inputs")}
    # `*` leaves out what the table fills in.
    star = "SELECT id, 'star' AS name, n FROM VALUES (2L, 20L), (9L, 9L) AS (id, n)"
    committed(merge(spark, table, star, update(), insert()))
    assert {"id": 2, "name": "star", "twice": 4, "n": 20} in rows_of(table)
    assert {"id": 9, "name": "star", "twice": 18, "n": 9} in rows_of(table)


@pytest.mark.spark
def test_an_update_by_spark_assigns_no_identity(tmp_path: Path, spark: SparkSession) -> None:
    marks = {"id": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": True}}
    table = table_with(tmp_path / "t", marks=marks)
    write(spark, table, "SELECT id, 'x' AS name FROM range(3)")
    committed(run(spark, "update", table, predicate="id = 1", set={"name": "reverse('y')"}))
    refused_update = run(spark, "update", table, predicate="id = 1", set={"id": "crc32('y')"})
    assert error_of(refused_update)["type"] == "UnsupportedFeature"
    clause = update({"id": "crc32('y')"})
    assert error_of(merge(spark, table, "SELECT 1L AS id", clause))["type"] == "UnsupportedFeature"
    assert [row["name"] for row in rows_of(table)] == ["x", "y", "x"]


@pytest.mark.spark
def test_rows_from_before_a_rule_are_moved_without_being_judged(tmp_path: Path, spark: SparkSession) -> None:
    table = table_with(tmp_path / "t")
    for start in (1, 2):
        write(spark, table, f"SELECT id + {start} AS id, 'x' AS name FROM range(1)")
    set_property(table, "delta.constraints.big", "id > 1")
    committed(run(spark, "optimize", table, zorder_by=["id"]))
    assert (table.snapshot().num_files, [row["id"] for row in rows_of(table)]) == (1, [1, 2])
    # A copy without the deleted row keeps the other, which breaks the rule since before the rule.
    committed(run(spark, "delete", table, predicate="id = 2"))
    assert [row["id"] for row in rows_of(table)] == [1]
    assert error_of(run(spark, "update", table, set={"name": "'y'"}))["facts"]["constraint"] == "big"


# --- the writer -----------------------------------------------------------------------------------------------------


def test_rows_that_nobody_checked_are_not_written() -> None:
    batch = pa.record_batch({"id": [1, 2]})
    assert without_violations(batch, must_check=False) is batch
    with pytest.raises(JobError, match="without a check"):
        without_violations(batch, must_check=True)


def test_the_first_violation_of_a_batch_is_the_error() -> None:
    told = {"constraint": "positive", "what": "the CHECK constraint 'positive' (id > 0)", "column": None}
    texts = [None, json.dumps({**told, "columns": ["id", "name"]}), json.dumps(told)]
    batch = pa.record_batch({"id": [1, -1, -2], VIOLATION_COLUMN: pa.array(texts, pa.string())})
    with pytest.raises(
        ConstraintViolation, match=r"A row breaks the CHECK constraint 'positive' \(id > 0\) \(it reads id, name\)"
    ) as caught:
        without_violations(batch, must_check=True)
    assert caught.value.constraint == "positive"
    good = pa.record_batch({"id": [1], VIOLATION_COLUMN: pa.array([None], pa.string())})
    assert without_violations(good, must_check=True).schema.names == ["id"]
