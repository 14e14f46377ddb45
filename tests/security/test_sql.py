"""Alone in showing that a SQL text of any origin runs no code, reads no environment, and stays within its row."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from airflow_txlog.engine import Table
from airflow_txlog.errors import InvalidJobSpec, InvalidPredicate, UnsupportedPredicate
from airflow_txlog.jobs.spark.session import job_settings
from airflow_txlog.jobs.sql import functions
from airflow_txlog.jobs.sql.gate import SqlGate, aliased
from airflow_txlog.storage import PLAIN
from tests.helpers.jobs import begin_job, committed, delete, error_of, files_on_disk, insert, merge, run, update
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A property of the JVM that the attacks would set.
RAN = "txlog.test.ran"
SET = f"'java.lang.System', 'setProperty', '{RAN}', 'yes'"
CALL = f"reflect({SET})"

RUNS_CODE = [
    CALL,
    f"java_method({SET})",
    f"try_reflect({SET})",
    f"REFLECT /* */ ({SET})",
    f"`reflect`({SET})",
    f"system.builtin.reflect({SET})",
    f"IDENTIFIER('reflect')({SET})",
    f"IDENTIFIER('ref' || 'lect')({SET})",
    f"IDENTIFIER({CALL})",
    f"reflect\u00a0({SET})",
    f"'\u00a0' || {CALL}",
    f"concat({CALL}, '${{x}}')",
    f"array_max(transform(array(1), x -> {CALL}))",
    f"aggregate(array('a'), '', (a, x) -> java_method({SET}))",
    f"CASE WHEN TRUE THEN {CALL} END",
    f"named_struct('a', {CALL}).a",
    f"CAST({CALL} AS STRING)",
    f"'x' LIKE {CALL}",
    f"CAST(from_json('1', {CALL}) AS STRING)",
    f"if(FALSE, 'x', coalesce(NULL, {CALL}))",
]
# Spark instantiates the class of a user-defined type while it analyses the text.
UDT = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "a", "nullable": True, "metadata": {}, "type": {"type": "udt", "class": "x.Y", "sqlType": "long"}}
        ],
    }
)
REACHES_OUT = [
    f"from_json('1', '{UDT}')",
    f"from_json('1', ' \n{UDT}')",
    f"from_json('1', concat('{UDT}', ''))",
    "from_json('1', :udt)",
    f"from_csv('1', '{UDT}')",
    f"variant_get(parse_json('1'), '$', '{UDT}')",
    f"variant_get(type => '{UDT}', v => parse_json('1'), path => '$')",
    "from_protobuf(X'00', 'a', '/etc/passwd')",
    "from_avro(X'00', '\"long\"')",
    "from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "xpath_string('<a/>', 'a')",
    "input_file_name()",
    "(SELECT max(1))",
    "(SELECT 1 FROM text.`/etc/passwd`)",
    "EXISTS (SELECT 1)",
    "1 IN (SELECT 1)",
    "read_files('/etc')",
    "current_user",
    "user",
    "session_user()",
    "current_database()",
    "version()",
    "raise_error('x')",
    "assert_true(id > 0)",
    "spark_catalog.default.abs(id)",
    "a_function_of_a_newer_spark(id)",
    "sum(id)",
    "first(id)",
    "sum(id) OVER (ORDER BY id)",
    "explode(array(id))",
    "window(now(), '1 day')",
    "?",
    "struct(*)",
    # A comment that ends so goes on in the next line.
    "id --\\",
    "id); SELECT (1",
]
# Of a query in a text, where names alone decide: how it may begin, and what may follow that.
QUERIES = [
    "(SELECT -max(id) FROM t)",
    "(SELECT(1))",
    "(SELECT .5)",
    "((SELECT 1))",
    "( /* a comment */ select+1)",
    "id IN (SELECT -id FROM t)",
    "EXISTS (TABLE t)",
    "(VALUES (1))",
    "(WITH a AS (SELECT 1) SELECT * FROM a)",
    "(FROM t SELECT id)",
    "(MAP id USING 'cat' FROM t)",
    "(REDUCE id USING 'cat' FROM t)",
]
ORDINARY = """
    id + 1; -id % 7; id DIV 2; id & 3 | 4 ^ 1; ~id; id << 2; abs(id); round(x, 2); ceil(x); power(id, 2); x / 2.5
    try_divide(id, 0); id BETWEEN 1 AND 5; id NOT IN (1, 2, 3); id <=> NULL; id IS DISTINCT FROM 3; flag IS NOT TRUE
    flag IS UNKNOWN; NOT flag; name LIKE 'a%' ESCAPE '/'; name ILIKE '%B'; name RLIKE '^a+$'
    name LIKE ANY ('a%', '%b'); name NOT LIKE ALL ('a', 'b'); name || 'x'; upper(trim(name)); trim(BOTH 'x' FROM name)
    substring(name FROM 2 FOR 3); position('a' IN name); overlay(name PLACING 'x' FROM 1); substr(name, 1, 2)
    left(name, 1); regexp_replace(name, '(?<n>a)', '${n}'); split(name, ',')[0]; format_string('%05d', id)
    name = "it''s"; md5(name); sha2(name, 256); xxhash64(name, id); base64(CAST(name AS BINARY))
    mask(name, digitChar => '#'); name COLLATE UTF8_LCASE = 'a'; year(day); date_trunc('HOUR', at)
    extract(DAY FROM at); at + INTERVAL 1 DAY; date_add(day, 1); day - DATE'2024-01-01'; datediff(day, day)
    timestampdiff(HOUR, at, at); dateadd(MONTH, 1, at); to_date(name, 'yyyy-MM-dd'); date_format(at, 'yyyy-MM')
    unix_micros(at); now(); current_date; current_timestamp(); from_utc_timestamp(at, 'Europe/Oslo')
    convert_timezone('UTC', 'Asia/Tokyo', ntz); at::DATE; CASE WHEN id > 1 THEN 'a' ELSE 'b' END
    CASE id WHEN 1 THEN 'a' END; if(flag, 1, 2); coalesce(name, 'x'); nullif(id, 0); nvl2(name, 1, 2)
    CAST(name AS INT); TRY_CAST(name AS DECIMAL(10, 2)); int(name); to_number('1', '9'); typeof(id); greatest(id, 1)
    isnan(x); equal_null(id, 1); s.a; s.`first name`; a[0]; m['k']; element_at(a, 1); try_element_at(m, 'k')
    named_struct('a', id).a; struct(id, name AS n); map('a', 1); transform(a, x -> x + 1); filter(a, (x, i) -> i > 0)
    aggregate(a, 0, (l, r) -> l + r); exists(a, x -> x = 1); array_sort(a, (l, r) -> r - l)
    map_filter(m, (k, v) -> v > 0); zip_with(a, a, (x, y) -> x + y); sort_array(a); array_contains(a, 1); size(a)
    flatten(array(a)); array(); get_json_object(name, '$.a'); from_json(name, 'a INT, `b c` STRING').a
    from_json(name, schema_of_json('{"a": 1}')); to_json(s); from_csv(name, 'a INT')
    variant_get(parse_json('{"a": 1}'), '$.a', 'int'); parse_json(name):a::INT; aes_decrypt(unbase64(name), 'k')
    hash(id); crc32(name); uuid(); rand(7); pi(); e(); parse_url(name, 'HOST'); url_decode(name); luhn_check(name)
    hex(id); conv('a', 16, 10)
"""
ORDINARY_TEXTS = [text.strip() for line in ORDINARY.strip().splitlines() for text in line.split("; ")]


def schema_of_spark() -> Any:
    from pyspark.sql import types as t

    named = t.StructType([t.StructField("a", t.LongType()), t.StructField("first name", t.StringType())])
    columns: dict[str, Any] = {
        "id": t.LongType(),
        "x": t.DoubleType(),
        "name": t.StringType(),
        "flag": t.BooleanType(),
        "day": t.DateType(),
        "at": t.TimestampType(),
        "ntz": t.TimestampNTZType(),
        "s": named,
        "a": t.ArrayType(t.IntegerType()),
        "m": t.MapType(t.StringType(), t.IntegerType()),
    }
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


@pytest.fixture
def gate(spark: SparkSession) -> Iterator[tuple[SqlGate, str]]:
    """A gate, and the FROM clause of a relation with columns of many types."""
    spec = job_spec(operation="delete", table_uri="/t", arguments={"predicate": "TRUE"})
    context = begin_job(spec, spark, Table.at("/t", PLAIN), print)
    with job_settings(spark, "UTC"):
        made = SqlGate(context, {"udt": UDT, "p": "2024-01-01"})
        yield made, aliased(made.shape(schema_of_spark()))
    context.drop_views()


@pytest.fixture
def system(spark: SparkSession) -> Iterator[Any]:
    """The JVM's properties, in which no attack may have left anything."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.clearProperty(RAN)
    yield jvm.java.lang.System
    assert jvm.java.lang.System.getProperty(RAN) is None


# --- what a text may call --------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_no_text_runs_code_or_reaches_out_of_its_row(gate: tuple[SqlGate, str], system: Any) -> None:
    judge, relation = gate
    checks = [(judge.value, text) for text in [*RUNS_CODE, *REACHES_OUT]]
    checks += [(judge.condition, f"{text} IS NULL") for text in RUNS_CODE]
    for check, text in checks:
        with pytest.raises(InvalidPredicate):
            check(text, relation)
    assert len(RUNS_CODE) + len(REACHES_OUT) > 50


@pytest.mark.spark
def test_a_refused_function_is_named_and_so_is_what_to_do(gate: tuple[SqlGate, str]) -> None:
    judge, relation = gate
    with pytest.raises(UnsupportedPredicate) as caught:
        judge.value("upper(reflect('a', 'b'))", relation)
    assert caught.value.construct == "the function reflect()"
    assert "docs/operators/shared.md" in caught.value.message


@pytest.mark.spark
def test_ordinary_texts_are_accepted(gate: tuple[SqlGate, str]) -> None:
    judge, relation = gate
    for start in range(0, len(ORDINARY_TEXTS), 10):
        judge.value(f"array({', '.join(f'({text}) IS NULL' for text in ORDINARY_TEXTS[start : start + 10])})", relation)
    assert len(ORDINARY_TEXTS) > 100


@pytest.mark.spark
@pytest.mark.long("every example of every listed function in Spark's own documentation: 800 analyses")
def test_every_listed_function_is_accepted_as_spark_documents_it(
    gate: tuple[SqlGate, str], spark: SparkSession
) -> None:
    judge, relation = gate
    jvm: Any = spark._jvm
    registry = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()
    names = registry.listFunction().iterator()
    refused = []
    while names.hasNext():
        name = names.next()
        if name.funcName() not in functions.FUNCTIONS:
            continue
        examples = registry.lookupFunction(name).get().getExamples().replace("_FUNC_", name.funcName())
        for text in re.findall(r"> SELECT (.*?)(?: AS \w+)?;\s*$", examples, re.M):
            try:
                judge.value(text, relation)
            except UnsupportedPredicate as error:
                refused.append((text, error.construct))
            except InvalidPredicate:
                pass  # a query, several columns, or a type that this Spark does not have
    # An example with a subquery or an aggregate in it.
    assert [text for text, construct in refused if "FROM" not in text and "sketch_agg" not in text] == []


@pytest.mark.spark
def test_every_listed_function_is_one_of_sparks_own(spark: SparkSession) -> None:
    assert functions._built_in(spark._jvm) >= functions.FUNCTIONS


@pytest.mark.spark
def test_a_function_or_variable_of_the_session_does_not_take_the_place_of_sparks(
    gate: tuple[SqlGate, str], spark: SparkSession
) -> None:
    spec = job_spec(operation="delete", table_uri="/t", arguments={"predicate": "TRUE"})
    session = spark.newSession()
    context = begin_job(spec, session, Table.at("/t", PLAIN), print)
    session.udf.register("upper", lambda value: value)
    session.udf.register("mine", lambda value: value)
    session.sql("CREATE TEMPORARY FUNCTION lower(x STRING) RETURNS STRING RETURN concat(x, '!')")
    session.sql("DECLARE VARIABLE secret INT DEFAULT 7")
    session.conf.set("spark.sql.functionResolution.sessionOrder", "first")
    judge = SqlGate(context, {})
    with job_settings(session, "UTC"):
        relation = aliased(judge.shape(schema_of_spark()))
        for text in ("upper(name)", "lower(name)", "mine(name)", "secret"):
            with pytest.raises(UnsupportedPredicate):
                judge.value(text, relation)
        judge.value("concat(name, 'x')", relation)


def test_a_listed_function_that_the_server_does_not_have_may_be_a_catalogs() -> None:
    functions.check_named("upper(name)", {"upper"})
    with pytest.raises(UnsupportedPredicate) as caught:
        functions.check_named("vector_norm(a)", {"upper"})
    assert caught.value.construct == "the function vector_norm()"


def test_where_the_plan_is_out_of_reach_the_names_in_the_text_decide() -> None:
    typed = ("from_json", "from_csv", "variant_get", "${", "parse_json(name):")
    for text in ORDINARY_TEXTS:
        if not any(each in text for each in typed):
            functions.check_named(text, functions.FUNCTIONS)
    # A star is refused by the gate; a name without parentheses gives away no more than the session's user.
    hidden = [each for each in REACHES_OUT if re.match(r"[\w.]+\((?!\*)", each) or "SELECT" in each]
    for text in [*RUNS_CODE, *hidden, *QUERIES]:
        with pytest.raises(UnsupportedPredicate):
            functions.check_named(text, functions.FUNCTIONS)


# --- where a text comes from ---------------------------------------------------------------------------------------


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.string())])
ROW = "SELECT 1L AS id, 'x' AS name, 'p' AS part"


def table_of(
    folder: Path, marks: dict[str, dict[str, Any]] | None = None, schema: pa.Schema = SCHEMA, **properties: str
) -> Table:
    """A table whose columns carry these marks in their metadata, as any writer can write them."""
    partitions = ["part"] if "part" in schema.names else []
    table = Table.create(str(folder), schema, partitions, properties)
    tx = table.begin()
    assert tx.metadata is not None
    described = json.loads(tx.metadata.schema_string or "")
    for field in described["fields"]:
        field["metadata"] |= (marks or {}).get(field["name"], {})
    tx.set_metadata(msgspec.structs.replace(tx.metadata, schema_string=json.dumps(described)))
    tx.commit("CHANGE COLUMNS")
    return table


@pytest.mark.spark
def test_the_metadata_of_a_table_runs_no_code(tmp_path: Path, spark: SparkSession, system: Any) -> None:
    def invariant(text: str) -> str:
        return json.dumps({"expression": {"expression": f"{text} IS NOT NULL"}})

    attacks = [f"IDENTIFIER('reflect')({SET})", f"concat({CALL}, '${{x}}')", f"reflect\u00a0({SET})"]
    for number, text in enumerate(attacks):
        tables = [
            table_of(tmp_path / f"check{number}", **{"delta.constraints.c": f"{text} IS NOT NULL"}),
            table_of(tmp_path / f"invariant{number}", {"id": {"delta.invariants": invariant(text)}}),
            table_of(tmp_path / f"generated{number}", {"name": {"delta.generationExpression": text}}),
            table_of(tmp_path / f"default{number}", {"name": {"CURRENT_DEFAULT": text}}),
        ]
        for table in tables:
            before = files_on_disk(table)
            error = error_of(run(spark, "write", table, source={"sql": "SELECT 1L AS id, 'p' AS part"}))
            assert error["type"] == "UnsupportedFeature", error
            assert files_on_disk(table) == before


@pytest.mark.spark
def test_the_texts_of_an_author_run_no_code(tmp_path: Path, spark: SparkSession, system: Any) -> None:
    table = table_of(tmp_path / "t")
    committed(run(spark, "write", table, source={"sql": ROW}))
    before = files_on_disk(table)
    text = f"IDENTIFIER('reflect')({SET})"
    is_true = f"'\u00a0' <> {CALL}"
    results = [
        run(spark, "delete", table, predicate=is_true),
        run(spark, "delete", table, predicate="id = 1", partition_predicate=is_true),
        run(spark, "update", table, predicate=is_true, set={"name": "'y'"}),
        run(spark, "update", table, predicate="id = 1", set={"name": text}),
        merge(spark, table, ROW, update({"name": text})),
        merge(spark, table, ROW, update({"name": "'y'"}, condition=is_true)),
        merge(spark, table, ROW, insert({"id": "9", "name": text})),
        merge(spark, table, ROW, delete(), on=f"t.id = s.id AND {is_true}"),
        run(spark, "write", table, source={"sql": ROW}, mode="overwrite", replace_where=is_true),
        run(spark, "optimize", table, partition_predicate=is_true),
    ]
    assert {error_of(result)["type"] for result in results} == {"UnsupportedPredicate"}
    assert files_on_disk(table) == before


@pytest.mark.spark
def test_a_default_names_no_column_and_no_user(tmp_path: Path, spark: SparkSession) -> None:
    # Beside a source's rows, which lack the table's column, Spark would take `user` for the user of the job.
    schema = pa.schema([("id", pa.int64()), ("user", pa.string()), ("name", pa.string())])
    table = table_of(tmp_path / "t", {"name": {"CURRENT_DEFAULT": "user"}}, schema)
    error = error_of(run(spark, "write", table, source={"sql": "SELECT 1L AS id, 'x' AS user"}))
    assert (error["type"], error["facts"]["feature"]) == ("UnsupportedFeature", "allowColumnDefaults")


@pytest.mark.spark
def test_rules_as_delta_tables_usually_have_them_are_kept(tmp_path: Path, spark: SparkSession) -> None:
    generated = {
        "day": "CAST(at AS DATE)",
        "hour": "DATE_TRUNC('HOUR', at)",
        "year": "YEAR(at)",
        "month": "DATE_FORMAT(at, 'yyyy-MM')",
        "start": "SUBSTRING(name, 1, 2)",
        "bucket": "CAST(id % 10 AS INT)",
    }
    types = {"day": pa.date32(), "hour": pa.timestamp("us", "UTC"), "year": pa.int32(), "bucket": pa.int32()}
    schema = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))]
        + [(name, types.get(name, pa.string())) for name in generated]
    )
    marks: dict[str, dict[str, Any]] = {name: {"delta.generationExpression": text} for name, text in generated.items()}
    marks["at"] = {"CURRENT_DEFAULT": "current_timestamp()"}
    marks["name"] = {"CURRENT_DEFAULT": "concat('de', 'fault')"}
    checks = {"delta.constraints.c": "id >= 0 AND (name RLIKE '^[a-z]+$' OR name IS NULL) AND year BETWEEN 1 AND 9999"}
    table = table_of(tmp_path / "t", marks, schema, **checks)
    committed(run(spark, "write", table, source={"sql": "SELECT 42L AS id, TIMESTAMP '2024-03-01 23:30:00' AS at"}))
    (row,) = table.to_arrow().to_pylist()
    assert (row["name"], row["start"], row["year"], row["month"]) == ("default", "de", 2024, "2024-03")
    assert (str(row["day"]), row["hour"].hour, row["bucket"]) == ("2024-03-01", 23, 2)


# --- names that become SQL -------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_name_of_a_structs_member_is_a_name_in_every_cast(tmp_path: Path, spark: SparkSession, system: Any) -> None:
    hostile = f"a: STRING>) AS STRUCT<x: STRING>), {CALL} --`"
    member = pa.struct([("first name", pa.string()), (hostile, pa.int32())])
    schema = pa.schema([("id", pa.int64()), ("given", member), ("made", member), ("list", pa.list_(member))])
    spelled = hostile.replace("'", "\\'")
    value = f"named_struct('first name', 'x', '{spelled}', 7L)"
    marks = {
        "given": {"CURRENT_DEFAULT": value},
        "list": {"CURRENT_DEFAULT": f"array({value})"},
        "made": {"delta.generationExpression": f"named_struct('first name', string(id), '{spelled}', 7L)"},
    }
    table = table_of(tmp_path / "t", marks, schema, **{"delta.columnMapping.mode": "name"})
    committed(run(spark, "write", table, source={"sql": "SELECT 1L AS id"}))
    committed(merge(spark, table, "SELECT 2L AS id", insert({"id": "s.id", "given": "DEFAULT"})))
    committed(run(spark, "update", table, predicate="id = 2", set={"given": value}))
    for row in table.to_arrow().to_pylist():
        assert row["given"] == {"first name": "x", hostile: 7}
        assert row["made"] == {"first name": str(row["id"]), hostile: 7}
        assert row["list"] == [{"first name": "x", hostile: 7}]


# --- substitution ------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(spark: SparkSession) -> Iterator[str]:
    """A word that substitution would bring in: a property of the JVM and a setting of the session."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.setProperty("txlog.canary", "canary-9f1c")
    spark.conf.set("txlog.canary", "canary-9f1c")
    yield "canary-9f1c"
    jvm.java.lang.System.clearProperty("txlog.canary")
    spark.conf.unset("txlog.canary")
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.mark.spark
def test_nothing_is_substituted_in_any_text(tmp_path: Path, spark: SparkSession, secret: str) -> None:
    jvm: Any = spark._jvm
    # The variables that the JVM started with: the interpreter is one of them.
    asked = "${env:PYSPARK_PYTHON}${system:txlog.canary}${txlog.canary}"
    lines: list[str] = []
    # As in a process whose Spark has another session at work, in which substitution is on.
    other = spark.newSession()
    other.conf.set("txlog.canary", secret)
    assert other.sql(f"SELECT '{asked}'").collect()[0][0] == f"{sys.executable}{secret}{secret}"
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(other._jsparkSession)
    schema = pa.schema(
        [("id", pa.int64()), (asked, pa.string()), ("made", pa.string()), ("given", pa.string()), ("part", pa.string())]
    )
    marks = {
        "id": {"delta.invariants": json.dumps({"expression": {"expression": f"length('{asked}') = {len(asked)}"}})},
        "made": {"delta.generationExpression": f"concat(`{asked}`, '{asked}')"},
        "given": {"CURRENT_DEFAULT": f"'{asked}'"},
    }
    properties = {"delta.constraints.c": f"part = '{asked}'", "delta.columnMapping.mode": "name"}
    table = table_of(tmp_path / "t", marks, schema, **properties)
    results: list[str] = []

    def job(operation: str, **arguments: Any) -> dict[str, Any]:
        result = run(spark, operation, table, log=lines.append, **arguments)
        results.append(repr(result))
        return result.error or {}

    csv = tmp_path / "rows.csv"
    csv.write_text(f"id,{asked},part\n2,-,{asked}\n")
    row = f"SELECT 1L AS id, '{asked}' AS `{asked}`, '{asked}' AS part"
    is_it = f"`{asked}` = '{asked}' AND part = '{asked}'"
    is_part = f"part = '{asked}'"
    view = {"path": str(csv), "format": "csv", "options": {"header": "true", "nullValue": asked}}
    assert job("write", source={"sql": row}) == {}
    assert job("write", source={"sql": f"SELECT 2L AS id, `{asked}`, part FROM v", "views": {"v": view}})["type"]
    assert job("write", source={"path": f"{tmp_path}/{asked}", "format": "csv"})["type"] == "SourceNotFound"
    assert job("update", predicate=is_it, set={asked: f"'{asked}'"}, partition_predicate=is_part) == {}
    clauses = [
        {"when": "matched", "then": "update", "set": {asked: f"s.`{asked}` || ''"}, "condition": f"'{asked}' = s.part"},
        {"when": "not_matched", "then": "insert", "values": {"id": "s.id", asked: f"'{asked}'", "part": "s.part"}},
    ]
    on = f"t.id = s.id AND t.`{asked}` = '{asked}'"
    both = {"sql": f"{row} UNION ALL SELECT 2L, '{asked}', '{asked}'"}
    assert job("merge", source=both, on=on, clauses=clauses) == {}
    assert job("write", source={"sql": row}, mode="overwrite", replace_where=f"id = 1 AND {is_it}") == {}
    assert job("optimize", partition_predicate=is_part) == {}
    assert job("delete", predicate=f"id = 1 AND {is_it}", require_match=True) == {}
    for text in (asked, f"id = {asked}", f"nope{asked} = 1", f"id = CAST('{asked}' AS INT)", f"`{asked}x` = 1"):
        assert job("delete", predicate=text)["type"]
    for found in table.to_arrow().to_pylist():
        assert (found[asked], found["part"]) == (asked, asked)
    written = b"".join(path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file())
    everything = "".join([*results, *lines, *(str(path) for path in tmp_path.rglob("*"))]).encode() + written
    assert secret.encode() not in everything
    assert sys.executable.encode() not in everything


# --- parameters in literals ------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_parameter_in_a_literal_is_an_error_that_shows_what_to_write(gate: tuple[SqlGate, str]) -> None:
    judge, relation = gate
    wrong = {
        "day = DATE :p": "for DATE :p write CAST(:p AS DATE)",
        "at > timestamp :p": "for TIMESTAMP :p write CAST(:p AS TIMESTAMP)",
        "at > now() - INTERVAL :p DAY": "for INTERVAL :p write :p * INTERVAL 1 DAY",
    }
    for text, advice in wrong.items():
        with pytest.raises(InvalidPredicate) as caught:
            judge.value(text, relation)
        assert advice in caught.value.message
        with pytest.raises(InvalidJobSpec) as refused:
            judge.query(f"SELECT * FROM {relation} WHERE {text}")
        assert advice in refused.value.message
    for right in ("day = CAST(:p AS DATE)", "day = :p", "at > now() - int(:p) * INTERVAL 1 DAY"):
        judge.value(right, relation)
