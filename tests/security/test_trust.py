"""Alone in showing that a source's query computes rows of its views, and runs and reads nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.query_gate import QUERY_FUNCTIONS
from airflow_txlog.storage import PLAIN
from tests.helpers.jobs import begin_job, committed, error_of, run
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTY = "txlog.canary"
# A static method of Java with an effect.
CALL = f"('java.lang.System', 'setProperty', '{PROPERTY}', 'it ran')"

RUNS_CODE = {
    "a program": "SELECT TRANSFORM(id) USING 'touch {canary}' AS (x STRING) FROM v",
    "a program in a subquery": "SELECT (SELECT count(*) FROM (SELECT TRANSFORM(1) USING 'touch {canary}')) AS n FROM v",
    "a program in a CTE": "WITH a AS (SELECT TRANSFORM(1) USING 'touch {canary}') SELECT * FROM a",
    "reflect": "SELECT reflect{call} FROM v",
    "java_method": "SELECT java_method{call} FROM v",
    "try_reflect": "SELECT try_reflect{call} FROM v",
    "a quoted name": "SELECT `Reflect`{call} FROM v",
    "a qualified name": "SELECT system.builtin.reflect{call} FROM v",
    "a name by IDENTIFIER": "SELECT IDENTIFIER('ref' || 'lect'){call} FROM v",
    "a space that is none of ASCII": "SELECT\u00a0reflect\u00a0{call} FROM v",
    "beside a dollar and a brace": "SELECT reflect{call} AS a, '${{x}}' AS b FROM v",
    "a window": "SELECT sum(id) OVER w FROM v WINDOW w AS (PARTITION BY reflect{call})",
    "a hint": "SELECT /*+ REPARTITION(3, reflect{call}) */ * FROM v",
    "an order": "SELECT * FROM v ORDER BY reflect{call}",
    "a filter of an aggregate": "SELECT count(*) FILTER (WHERE reflect{call} = '') FROM v",
    "a lambda": "SELECT transform(array(1), x -> reflect{call}) FROM v",
    "a table of values": "SELECT * FROM VALUES (reflect{call}) AS t(a)",
    "a join": "SELECT * FROM v a JOIN v b ON reflect{call} = ''",
    "a pivot": "SELECT * FROM v PIVOT (sum(id) FOR id IN (length(reflect{call})))",
    "a lateral view": "SELECT * FROM v LATERAL VIEW explode(array(reflect{call})) AS x",
    "a pipe": "FROM v |> EXTEND reflect{call} AS x",
    "a table function": "SELECT * FROM explode(array(reflect{call}))",
}
READS_FILES = {
    "text by path": "SELECT * FROM text.`{secret}`",
    "csv by path": "SELECT * FROM csv.`{secret}`",
    "bytes by path": "SELECT content FROM binaryFile.`{secret}`",
    "a path in a subquery": "SELECT * FROM v WHERE id IN (SELECT length(value) FROM text.`{secret}`)",
    "a path in a lateral join": "SELECT * FROM v, LATERAL (SELECT * FROM text.`{secret}`)",
    "a path by IDENTIFIER": "SELECT * FROM IDENTIFIER('text.`{secret}`')",
    "a path by a parameter": "SELECT * FROM IDENTIFIER(:path)",
    "a closing parenthesis": "SELECT '' AS value) UNION (SELECT * FROM text.`{secret}`",
    "a class by name": "SELECT * FROM `org.apache.spark.sql.execution.datasources.text.TextFileFormat`.`{secret}`",
    "a view of the catalog": "SELECT * FROM secret_view",
    "a name that WITH gives elsewhere": "SELECT * FROM (WITH secret_view AS (SELECT 1) SELECT 1), secret_view",
    "options of a relation": "SELECT * FROM secret_view WITH ('fs.none.impl' = 'none')",
    "a schema's file": "SELECT from_xml('<r><a>1</a></r>', 'a STRING', map('rowValidationXSDPath', '{secret}'))",
    "the type of an XML document": """SELECT xpath_string('<!DOCTYPE a SYSTEM "file://{secret}"><a>&b;</a>', 'a')""",
    "an unknown table function": "SELECT * FROM python_worker_logs()",
}


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Iterator[SqlGate]:
    """The gate of a job in whose session a view `v` is, and in whose catalog a view of the file `secret`."""
    (tmp_path / "secret").write_text("the canary of a file\n")
    spark.range(2).createOrReplaceTempView("v")
    spark.sql(f"CREATE VIEW secret_view AS SELECT * FROM text.`{tmp_path}/secret`")
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "t"),
        arguments={"source": {"sql": "SELECT 1"}, "parameters": {"path": f"text.`{tmp_path}/secret`"}},
    )
    yield SqlGate(begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print))
    spark.sql("DROP VIEW secret_view")
    spark.catalog.dropTempView("v")
    spark._jvm.java.lang.System.clearProperty(PROPERTY)


@pytest.mark.spark
def test_a_query_runs_no_code_wherever_it_asks_for_it(gate: SqlGate, spark: SparkSession, tmp_path: Path) -> None:
    for name, text in RUNS_CODE.items():
        with pytest.raises(InvalidJobSpec) as caught:
            gate.query(text.format(call=CALL, canary=tmp_path / "canary")).collect()
        assert spark._jvm.java.lang.System.getProperty(PROPERTY) is None, name
        assert not (tmp_path / "canary").exists(), name
        assert "unrestricted" in str(caught.value), (name, caught.value)


@pytest.mark.spark
def test_a_query_reads_the_views_of_its_source_and_nothing_else(gate: SqlGate, tmp_path: Path) -> None:
    for name, text in READS_FILES.items():
        with pytest.raises(InvalidJobSpec) as caught:
            gate.query(text.format(secret=tmp_path / "secret")).collect()
        assert "canary of a file" not in str(caught.value), name
        assert "unrestricted" in str(caught.value), (name, caught.value)


ORDINARY = [
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n JOIN V ON i = id",
    "WITH a AS (SELECT id FROM v), b(x) AS (SELECT id FROM a) SELECT * FROM b WHERE EXISTS (SELECT 1 FROM a)",
    "SELECT id, sum(id) OVER w, rank() OVER (ORDER BY id) FROM v WINDOW w AS (PARTITION BY id)"
    " QUALIFY count(*) OVER w > 0",
    "SELECT id, count(*) AS n FROM v GROUP BY ROLLUP (id) HAVING n > 0 ORDER BY id LIMIT 5 OFFSET 0",
    "SELECT id, g, grouping(g) FROM v CROSS JOIN VALUES (1), (2) AS t(g) GROUP BY GROUPING SETS ((id, g), ())",
    "SELECT * FROM v PIVOT (sum(id) FOR id IN (1, 2)) UNION SELECT 1, 2 EXCEPT (SELECT 3, 4 INTERSECT SELECT 5, 6)",
    "SELECT /*+ BROADCAST(b) */ a.* EXCEPT (id), b.id AS x FROM v a LEFT JOIN v b ON a.id = b.id",
    "SELECT * FROM v LATERAL VIEW OUTER explode(array(1, id)) AS x DISTRIBUTE BY id SORT BY x",
    "FROM v |> WHERE id >= 0 |> AGGREGATE count(*) AS n GROUP BY id |> EXTEND n + 1 AS m |> DROP n |> LIMIT 3",
    "SELECT t.*, s.* FROM range(3) AS t, LATERAL (SELECT t.id + 1 AS y) AS s, explode(array(1)) AS e(z)",
    "SELECT * FROM (SELECT id AS a, id AS b FROM v TABLESAMPLE (50 PERCENT)) UNPIVOT (x FOR name IN (a, b))",
    "SELECT DISTINCT named_struct('x', id).x, CASE WHEN id = 1 THEN 'a' END, CAST(id AS STRING) LIKE ANY ('1%', '2'),"
    " transform(array(id), (x, i) -> x + i), id::INT, current_date(), INTERVAL 3 DAYS, id IN (SELECT id FROM v) FROM v",
    "SELECT listagg(DISTINCT CAST(id AS STRING), ',') WITHIN GROUP (ORDER BY CAST(id AS STRING)), percentile_cont(0.5)"
    " WITHIN GROUP (ORDER BY id), max_by(id, id) FILTER (WHERE id > 0), from_xml('<r/>', 'a INT') FROM v",
    "TABLE v",
    "VALUES (1, 'a'), (2, :path)",
]  # fmt: skip


@pytest.mark.spark
def test_ordinary_queries_pass(gate: SqlGate) -> None:
    for text in ORDINARY:
        _ = gate.query(text).schema


@pytest.mark.spark
def test_the_functions_of_spark_are_judged_one_by_one(spark: SparkSession) -> None:
    names = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.functionSet().mkString("\n").split("\n")
    built_in = {name.replace("`", "").rsplit(".", 1)[-1] for name in names}
    avro = {"from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"}
    types = ("boolean", "double", "float", "int", "long", "number", "short", "string")
    xpath = {"xpath", *(f"xpath_{kind}" for kind in types)}
    assert {name for name in built_in if name.isidentifier()} - QUERY_FUNCTIONS == {
        "java_method",
        "reflect",
        "try_reflect",
        *avro,
        *xpath,
    }


@pytest.mark.spark
def test_a_query_that_the_operator_leaves_unrestricted_may_read_any_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a line\n")
    source = {"sql": f"SELECT value FROM text.`{tmp_path}/in`"}
    error = error_of(run(spark, "write", tmp_path / "t", source=source))
    assert (error["type"], error["facts"]["argument"]) == ("InvalidJobSpec", "source")
    assert not (tmp_path / "t").exists()
    committed(run(spark, "write", tmp_path / "t", source=source, unrestricted=("query",)))
    assert Table.open(str(tmp_path / "t")).to_arrow().to_pylist() == [{"value": "a line"}]
