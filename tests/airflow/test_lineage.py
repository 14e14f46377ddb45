"""Lineage without its listener: how datasets are named, which are read, and which columns are copies of which."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.contract.job import Lineage
from airflow_txlog.contract.operations import Delete, Merge, Operation, Update, Upsert, Write
from airflow_txlog.lineage.assignments import copied_columns
from airflow_txlog.lineage.datasets import dataset_name, datasets_read, sizes_read
from airflow_txlog.operators.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_txlog.operators.sources import files, query, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.airflow

TARGET = "/lake/t"


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/lake/t/", "file", "/lake/t"),
        ("file:///lake/a b", "file", "/lake/a b"),
        ("file://localhost/lake/t", "file", "/lake/t"),
        ("s3://bucket/lake/t", "s3://bucket", "lake/t"),
        ("s3a://bucket/lake/t/", "s3://bucket", "lake/t"),
        ("s3://bucket/", "s3://bucket", "/"),
        ("s3://KEY:SECRET@bucket/t", "s3://bucket", "t"),
        ("gcs://bucket/t", "gs://bucket", "t"),
        ("abfs://c@acct.dfs.core.windows.net/t", "abfss://c@acct.dfs.core.windows.net", "t"),
        ("wasbs://c@acct.blob.core.windows.net/t", "abfss://c@acct.dfs.core.windows.net", "t"),
        ("wasbs://c:SECRET@acct.blob.core.windows.net/t", "abfss://c@acct.dfs.core.windows.net", "t"),
        ("az://c/t", "abfss://c", "t"),
        ("hdfs://host:8020/lake/t", "hdfs://host:8020", "/lake/t"),
        ("sftp://me:SECRET@host/t", "sftp://host", "/t"),
    ],
)
def test_a_location_has_one_name_without_credentials(uri: str, namespace: str, name: str) -> None:
    assert dataset_name(uri) == (namespace, name)


def test_the_datasets_read_have_their_versions_where_there_is_one() -> None:
    source = query(
        "SELECT 1",
        named=table("/lake/a", version=3),
        latest=table("s3://b/latest"),
        same=table("/lake/c", version=1),
        other=table("/lake/c", version=2),
        globbed=files("/in/2024-*/part-?.csv", format="csv"),
        listed=files(["/in/x.json", "/in/y.json"], format="json"),
    )
    found = datasets_read(Write(source=source), {"s3://b/latest": 9})  # type: ignore[arg-type]
    assert {"/".join(name): version for name, version in found.items()} == {
        "file//lake/a": "3",
        "s3://b/latest": "9",
        "file//lake/c": None,
        "file//in": None,
        "file//in/x.json": None,
        "file//in/y.json": None,
    }
    keys = {"column": "id", "source": table("/lake/keys"), "source_column": None}
    by_keys = Delete(predicate=None, keys=keys)  # type: ignore[arg-type]
    assert list(datasets_read(by_keys, {})) == [("file", "/lake/keys")]
    assert datasets_read(Delete(predicate="TRUE"), {}) == {}


def test_the_size_of_a_dataset_is_that_of_the_one_view_that_reads_it() -> None:
    source: Any = query(
        "SELECT 1",
        named=table("/lake/a", version=3),
        globbed=files("s3a://in/2024-*/part-?.csv", format="csv"),
        two_places=files(["/in/x.json", "/in/y.json"], format="json"),
        old=table("/lake/c", version=1),
        new=table("file:///lake/c", version=2),
        unknown=table("/lake/d"),
    )
    sizes = {name: {"bytes": number} for number, name in enumerate(source["views"]) if name != "unknown"}
    found = sizes_read(Write(source=source), sizes)
    assert {"/".join(name): size["bytes"] for name, size in found.items()} == {"file//lake/a": 0, "s3://in//": 1}
    whole = {"": {"rows": 3}}
    keys: Any = {"column": "id", "source": table("/lake/keys"), "source_column": None}
    for operation in (Write(source=table("/lake/keys")), Delete(predicate=None, keys=keys)):  # type: ignore[arg-type]
        assert sizes_read(operation, whole) == {("file", "/lake/keys"): {"rows": 3}}
    assert sizes_read(Delete(predicate="TRUE"), whole) == sizes_read(None, whole) == {}


def copied(operation: Operation, columns: str, **views: str) -> dict[str, set[str]]:
    """By column of the table: `place.column` of each that it is a copy of."""
    lineage = Lineage(
        columns=dict.fromkeys(columns.split(), "string"),
        views={name.strip("_"): names.split() for name, names in views.items()},
    )
    return {
        column: {f"{uri}.{name}" for uri, name in origins}
        for column, origins in copied_columns(operation, TARGET, lineage).items()
    }


def test_a_write_and_an_upsert_copy_the_columns_that_the_source_has() -> None:
    source: Any = files("/in/*.parquet")
    expected = {"id": {"/in.ID"}, "a": {"/in.a"}}
    assert copied(Write(source=source), "id a missing", _="ID a more") == expected
    assert copied(Upsert(source=source, keys=("id",)), "id a missing", _="ID a") == expected
    # A retry that goes on with the rows of an earlier try has not seen the source.
    assert copied(Write(source=source), "id a") == {}
    # Of two folders, one may lack the column.
    assert copied(Write(source=files(["/in", "/more"])), "id a", _="id a") == {}  # type: ignore[arg-type]
    # A name for two columns, in a session that heeds case.
    assert copied(Write(source=source), "id a", _="id ID a") == {}


def merge(*clauses: dict[str, Any]) -> Merge:
    return Merge(source=table("/in"), on="t.id = s.id", clauses=clauses)  # type: ignore[arg-type]


def test_what_the_clauses_of_a_merge_assign_is_united() -> None:
    both = merge(
        when_matched_delete(condition="s.gone"),
        when_matched_update({"a": "s.b", "prev": "`T`.a", "n": "-1", "at": ":now", "c": "upper(s.c)"}),
        when_not_matched_insert({"id": "id", "a": "s.a", "n": "s.n", "c": "s.c"}),
        when_not_matched_by_source_update({"n": "NULL", "prev": "a"}),
    )
    assert copied(both, "id a prev n at c kept", _="id a b c n gone") == {
        "id": {"/in.id"},
        "a": {"/in.b", "/in.a"},
        "prev": {f"{TARGET}.a"},
        "n": {"/in.n"},
        "at": set(),
    }
    star = merge(when_matched_update(), when_not_matched_insert())
    assert copied(star, "id a kept", _="id a more") == {"id": {"/in.id"}, "a": {"/in.a"}}


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "s.nothing",
        "x.a",
        "s.a.b",
        "s.a + 1",
        "s.a || ''",
        "current_date",
        '"a"',
        "CAST(s.a AS INT)",
    ],
)
def test_a_column_that_may_be_computed_has_no_lineage(text: str) -> None:
    assert copied(merge(when_matched_update({"a": text, "b": "s.b"})), "a b", _="a b") == {"b": {"/in.b"}}


def test_a_clause_that_assigns_a_member_leaves_nothing_certain() -> None:
    assert copied(merge(when_matched_update({"a.x": "s.x", "b": "s.b"})), "a b", _="x b") == {}


def test_an_update_copies_within_the_table() -> None:
    update = Update(set={"a": "b", "b": "t.c", "c": "'x'", "d": "a + 1"})
    assert copied(update, "a b c d") == {"a": {f"{TARGET}.b"}, "b": {f"{TARGET}.c"}, "c": set()}


# --- queries, against Spark's own answers -----------------------------------------------------------------------------

PLAIN = [
    ("SELECT a, b AS c FROM v", {"a": {"/in.a"}, "c": {"/in.b"}}),
    ("select `A`, x.b from V as x where a like 'a%' and b is not null", {"a": {"/in.a"}, "b": {"/in.b"}}),
    ("SELECT * FROM v ORDER BY a LIMIT 3", {"a": {"/in.a"}, "b": {"/in.b"}, "c": {"/in.c"}}),
    ("SELECT x.*, 'k' AS k, 1 AS one, NULL AS no FROM v x", {"a": {"/in.a"}, "k": set(), "one": set(), "no": set()}),
    ("SELECT a, count(*) AS n FROM v GROUP BY a", {"a": {"/in.a"}}),
    ("SELECT b AS a, a AS b FROM v -- swapped", {"a": {"/in.b"}, "b": {"/in.a"}}),
    # The name is a column's before it is an earlier item's.
    ("SELECT c AS b, b AS d FROM v", {"b": {"/in.c"}, "d": {"/in.b"}}),
    ("SELECT upper(a) AS a, b FROM v", {"b": {"/in.b"}}),
    ("SELECT DISTINCT a FROM v", {"a": {"/in.a"}}),
    ("SELECT a b FROM v", {"b": {"/in.a"}}),
    ("SELECT a, upper(b) FROM v", {"a": {"/in.a"}}),
    ("SELECT a FROM v UNION ALL SELECT b FROM v", {"a": {"/in.a", "/in.b"}}),
    ("SELECT a FROM v WHERE TRUE UNION SELECT c FROM v", {"a": {"/in.a", "/in.c"}}),
    ("SELECT a FROM v WHERE b IN (SELECT b FROM v)", {"a": {"/in.a"}}),
    ("SELECT a FROM v WHERE TRUE UNION SELECT 'x'", {"a": {"/in.a"}}),
    ("SELECT v.a, w.b FROM v LEFT JOIN v AS w ON v.a = w.b", {"a": {"/in.a"}, "b": {"/in.b"}}),
    ("SELECT v.a FROM v, v AS w", {"a": {"/in.a"}}),
    ("SELECT a FROM v JOIN (SELECT b AS d FROM v) AS w ON TRUE", {"a": {"/in.a"}}),
    ("SELECT a FROM (SELECT b AS a FROM v)", {"a": {"/in.b"}}),
    ("WITH v AS (SELECT 'other' AS a) SELECT a FROM v", {"a": set()}),
    ("WITH w AS (SELECT b AS a, c FROM v) SELECT * FROM w", {"a": {"/in.b"}, "c": {"/in.c"}}),
    ("SELECT * EXCEPT (a) FROM v", {"b": {"/in.b"}, "c": {"/in.c"}}),
    ("FROM v SELECT b AS a", {"a": {"/in.b"}}),
]
NOT_PLAIN = [
    "SELECT a FROM v WHERE TRUE EXCEPT SELECT c FROM v",
    "SELECT a FROM v WHERE TRUE UNION VALUES ('x')",
    "SELECT a FROM v WHERE b = 'it''s'",
    "SELECT coalesce(a, b) AS a FROM v",
    "SELECT * FROM v NATURAL JOIN v AS w",
    "SELECT * FROM v LEFT SEMI JOIN v AS w ON v.a = w.a",
    "SELECT a FROM v JOIN v AS w USING (a)",
    "WITH RECURSIVE w(a) AS (SELECT a FROM v UNION ALL SELECT a FROM w) SELECT a FROM w",
    "SELECT a FROM v LATERAL VIEW explode(array('x')) AS a",
    "SELECT a FROM v WHERE TRUE UNION TABLE w",
    "SELECT a FROM v WHERE TRUE |> SET a = 'x'",
    "SELECT a, b AS a FROM v",
    "SELECT a FROM v AS x(c, b, a)",
    "SELECT stack(1, b) AS (a) FROM v",
    "SELECT a IS DISTINCT FROM v AS a FROM v",
    "VALUES ('x')",
]


@pytest.mark.parametrize(("sql", "expected"), PLAIN)
def test_a_plain_query_copies_what_it_names(sql: str, expected: dict[str, set[str]]) -> None:
    write = Write(source=query(sql, v=files("/in")))  # type: ignore[arg-type]
    assert {
        name: found for name, found in copied(write, "a b c d k one no n", v="a b c").items() if name in expected
    } == (expected)
    assert "n" not in copied(write, "n", v="a b c")


@pytest.mark.parametrize("sql", NOT_PLAIN)
def test_a_query_that_is_not_plain_has_no_lineage(sql: str) -> None:
    write = Write(source=query(sql, v=files("/in")))  # type: ignore[arg-type]
    assert copied(write, "a b c", v="a b c") == {}


@pytest.mark.spark
def test_spark_gives_each_copied_column_the_values_of_its_origin(spark: SparkSession) -> None:
    """Every value of the view is the name of its column."""
    # Spark computes queries of a list of rows as it plans them.
    spark.sql("SELECT * FROM VALUES ('a', 'b', 'c') AS v(a, b, c)").createOrReplaceTempView("v")
    items = ["a", "b AS c", "v.c AS a", "'k' AS b", "upper(b) AS a", "b", "c AS `B`"]
    queries = [sql for sql, _ in PLAIN]
    queries += [f"SELECT {one}, {two} FROM v" for one, two in itertools.permutations(items, 2)]
    checked = 0
    for sql in queries:
        write = Write(source=query(sql, v=files("/in")))  # type: ignore[arg-type]
        found = copied(write, "a b c d", v="a b c")
        if not found:
            continue
        frame = spark.sql(sql)
        for row in frame.collect():
            given = {name.lower(): value for name, value in row.asDict().items()}
            for column, origins in found.items():
                # A constant is a copy of nothing, and a row of an outer join may have none.
                names = {origin.rpartition(".")[2] for origin in origins} or {"k"}
                assert given[column] in names | {"x", "other", None}, (sql, column)
                checked += 1
    spark.catalog.dropTempView("v")
    assert checked > 50
