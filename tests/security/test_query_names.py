"""Alone in showing that a query which passes by its tokens, as over Spark Connect, does no more than its tree allows.

In a classic session, so that both judges see each text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, ParseException, PySparkException

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec
from airflow_txlog.jobs.spark.session import FILES_BY_SQL, job_settings
from airflow_txlog.jobs.sql.functions import built_into_server, names_of
from airflow_txlog.jobs.sql.gate import SqlGate
from airflow_txlog.jobs.sql.query_gate import _TABLE_FUNCTIONS, QUERY_FUNCTIONS, Unjudged, check_names, check_query
from airflow_txlog.storage import PLAIN
from tests.conftest import REPORTED
from tests.helpers.depth import depth
from tests.helpers.jobs import begin_job
from tests.helpers.specs import job_spec
from tests.security.test_trust import CALL, ORDINARY, PROPERTY, READS_FILES, RUNS_CODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Relations where clauses seem to be, since most words of SQL may be names.
HIDDEN = [
    "SELECT * FROM v AS where, secret_view",
    "SELECT * FROM v where (flag), secret_view",
    "SELECT * FROM v limit, secret_view",
    "SELECT * FROM v AS order, SECRET_VIEW AS by",
    "SELECT * FROM v group, `secret_view`",
    "SELECT * FROM v, -- a comment\n secret_view",
    "SELECT * FROM v, /* a /* nested */ comment */ secret_view",
    "SELECT * FROM ((secret_view))",
    "SELECT * FROM (v JOIN secret_view)",
    "SELECT * FROM v NATURAL JOIN secret_view",
    "SELECT * FROM v LEFT ANTI JOIN secret_view ON TRUE",
    "SELECT * FROM v, LATERAL (SELECT * FROM secret_view)",
    "SELECT (TABLE secret_view)",
    "SELECT id FROM v UNION TABLE secret_view",
    "SELECT * FROM default.secret_view",
    "SELECT * FROM spark_catalog.default.secret_view",
    "SELECT * FROM v AS text, text.`{secret}`",
    "FROM v |> JOIN secret_view ON TRUE",
    "FROM v |> UNION ALL (FROM secret_view)",
    "SELECT id IN (SELECT 1 FROM secret_view) FROM v",
    "SELECT * FROM STREAM secret_view",
    "SELECT * FROM STREAM(secret_view)",
    "SELECT * FROM explode(TABLE secret_view)",
    "WITH a AS (TABLE secret_view) SELECT * FROM a",
]
CALLS = [
    "SELECT spark_catalog.default.upper('a')",
    "SELECT default.upper('a')",
    "SELECT a.upper('a') FROM v AS a",
    "SELECT `upper`.`lower`('a')",
    'SELECT "reflect"{call}',
    "SELECT `select`('a')",
    "SELECT 1 AS identifier('a')",
    "SELECT from_json('{{}}', 'a INT')",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '{secret}'))",
    "SELECT a_function_of_a_newer_spark(id) FROM v",
]
USUAL = [
    "SELECT id FROM range(10)",
    "SELECT 1L AS id, 'x' AS name",
    "SELECT id, sum(id) AS total FROM v GROUP BY id HAVING sum(id) > 0 ORDER BY id DESC LIMIT 5",
    "SELECT a.id, b.id AS other FROM v a JOIN v AS b ON a.id = b.id WHERE a.id IN (1, 2) AND upper('a') LIKE 'A%'",
    "SELECT a.* FROM v a LEFT JOIN v b USING (id) WHERE b.id IS NULL",
    "WITH a AS (SELECT id FROM v), b AS (SELECT id FROM a) SELECT * FROM b WHERE EXISTS (SELECT 1 FROM a)",
    "SELECT id, row_number() OVER (PARTITION BY id ORDER BY id DESC) AS n FROM v QUALIFY n = 1",
    "SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(id, name)",
    "SELECT CAST(id AS DECIMAL(10, 2)) AS d, CASE WHEN id = 1 THEN 'a' ELSE 'b' END AS c FROM v",
    "SELECT DISTINCT id::INT AS i, coalesce(NULL, id) AS c, struct(id).id AS s FROM v UNION ALL SELECT 1, 2, 3",
    "SELECT explode(array(id)) AS e FROM v",
    "SELECT id, e FROM v LATERAL VIEW explode(array(1, 2)) t AS e",
    "SELECT count(*) FILTER (WHERE id > 0) AS n, max_by(id, id) AS m FROM v GROUP BY ROLLUP (id)",
    "SELECT transform(array(id), x -> x + 1) AS t, date_trunc('DAY', now()) AS d, EXTRACT(YEAR FROM now()) AS y FROM v",
    "SELECT * FROM (SELECT id FROM v) AS inner_query WHERE id BETWEEN 0 AND 5",
    "TABLE v",
]


@pytest.fixture
def judged(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], bool]]:
    """Whether a query passes by its tokens. A view `v` is its source's, and a `secret_view` the catalog's."""
    (tmp_path / "secret").write_text("the canary of a file\n")
    spark.range(2).createOrReplaceTempView("v")
    spark.sql(f"CREATE VIEW secret_view AS SELECT * FROM text.`{tmp_path}/secret`")

    def accepts(text: str) -> bool:
        given = text.format(call=CALL, canary=tmp_path / "canary", secret=tmp_path / "secret")
        try:
            check_names(spark, f"SELECT * FROM (\n{given}\n)", ["V"], QUERY_FUNCTIONS | _TABLE_FUNCTIONS)
        except Unjudged:
            return False
        return True

    with job_settings(spark, "UTC"):
        yield accepts
    spark.sql("DROP VIEW secret_view")
    spark.catalog.dropTempView("v")
    assert spark._jvm.java.lang.System.getProperty(PROPERTY) is None
    assert not (tmp_path / "canary").exists()


def test_no_query_that_runs_code_or_reads_more_than_its_views_passes_by_its_tokens(
    judged: Callable[[str], bool],
) -> None:
    texts = [*RUNS_CODE.values(), *READS_FILES.values(), *HIDDEN, *CALLS]
    assert [text for text in texts if judged(text)] == []
    assert len(texts) > 60


def test_usual_queries_pass_by_their_tokens(judged: Callable[[str], bool]) -> None:
    assert [text for text in USUAL if not judged(text)] == []


def test_no_relation_is_a_file_in_a_session_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a line\n")
    query = f"SELECT * FROM text.`{tmp_path}/in`"
    with job_settings(spark, "UTC"), pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(query)
    with job_settings(spark, "UTC", unrestricted=("query",)):
        assert spark.sql(query).count() == 1


def test_a_server_that_keeps_files_as_relations_has_no_query_judged(spark: SparkSession) -> None:
    assert spark.conf.get(FILES_BY_SQL) == "true"
    with pytest.raises(Unjudged, match=FILES_BY_SQL):
        check_names(spark, "SELECT 1", [], QUERY_FUNCTIONS)


def test_all_listed_functions_are_built_into_the_release_that_they_are_listed_of(spark: SparkSession) -> None:
    listed = QUERY_FUNCTIONS | _TABLE_FUNCTIONS
    if spark.version.startswith("4.2"):
        assert listed - names_of(spark, "SHOW SYSTEM FUNCTIONS") == set()
    assert built_into_server(spark, listed) <= listed


# --- both judges ------------------------------------------------------------------------------------------------------

_NAMES = ["v", "secret_view", "default.secret_view", "t", "id", "a", "where", "from", "table", "using", "as", "select"]
_WORDS = [
    "AS",
    "where",
    "WHERE",
    "ON",
    "USING",
    "JOIN",
    "CROSS JOIN",
    "LATERAL",
    "FROM",
    "TABLE",
    "GROUP BY",
    "ORDER BY",
]
_WORDS += ["LIMIT", "UNION", "HAVING", "SELECT", "VALUES", "|> WHERE", "|> JOIN", "LATERAL VIEW", "TABLESAMPLE", ","]
_CALLS = ["upper", "reflect", "range", "explode", "count", "java_method", "identifier", "`reflect`", "default.upper"]
_REST = ["(", ")", ",", "'x'", "1", "=", "(id)", "(1)", "('x')", "*", "a.id", "TRUE", "-- c\n", "/* c */", "'touch x'"]


def _text(rng: random.Random) -> str:
    """Something like a query, with names, words and calls where they may belong and where not."""
    pools = (_NAMES, _WORDS, _CALLS, _REST)
    tail = " ".join(rng.choice(rng.choices(pools, (5, 4, 1, 3))[0]) for _ in range(rng.randrange(1, 7)))
    return f"SELECT {rng.choice(['*', 'id', '1', 'count(*)'])} FROM {rng.choice(_NAMES)} {tail}"


@pytest.mark.seeded
def test_what_passes_by_its_tokens_passes_by_its_tree_or_cannot_be_analysed(
    spark: SparkSession, judged: Callable[[str], bool], record_property: Callable[[str, Any], None]
) -> None:
    rng, num_parsed, num_accepted = random.Random(7), 0, 0
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    for _ in range(depth(100, 500, 3_000)):
        text = _text(rng)
        statement = f"SELECT * FROM (\n{text}\n)"
        try:
            parser.parsePlan(statement)
        except PySparkException:
            continue
        num_parsed += 1
        if not judged(text):
            continue
        num_accepted += 1
        try:
            check_query(spark, statement, {}, [])
        except InvalidJobSpec:
            with pytest.raises(PySparkException):
                spark.sql(statement)
        except ParseException:
            pass
    assert num_accepted > 10
    record_property(REPORTED, f"queries by tokens and by tree: {num_accepted} of {num_parsed} pass by their tokens")


def test_ordinary_queries_that_pass_by_their_tokens_pass_by_their_tree(
    spark: SparkSession, judged: Callable[[str], bool], tmp_path: Path
) -> None:
    spec = job_spec(operation="write", table_uri=str(tmp_path / "t"), arguments={"source": {"sql": "SELECT 1"}})
    gate = SqlGate(begin_job(spec, spark, Table.at(spec.table_uri, PLAIN), print), {"path": "x"})
    for text in [*USUAL, *(each for each in ORDINARY if "{" not in each and judged(each))]:
        _ = gate.query(text).schema
