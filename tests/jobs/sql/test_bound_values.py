"""Alone in showing that no value of a parameter is part of a text: each kind directly after each operator.

What is right is computed without parameters: the same text over a column that holds the value.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.contract.parameters import encode_parameters
from airflow_txlog.engine import Table
from airflow_txlog.jobs.spark.connect import ConnectTarget
from airflow_txlog.jobs.sql.bound import _BEFORE_AN_OPERAND, reference, with_references
from airflow_txlog.jobs.sql.schemas import spark_schema
from airflow_txlog.sql.sql_text import sql_text
from tests.conftest import REPORTED
from tests.helpers.connected import connect_server, run_connected
from tests.helpers.depth import depth
from tests.helpers.jobs import committed, run, update
from tests.helpers.rows import make_table
from tests.helpers.specs import job_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# --- the text ---------------------------------------------------------------------------------------------------------

X = {"x": " v.p0", "y": " v.p1"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("id = 7-:x AND a", "id = 7- v.p0 AND a"),
        ("7 -: x", "7 - v.p0"),
        ("a AND:x", "a AND v.p0"),
        ("CASE WHEN:x THEN:y ELSE :x END", "CASE WHEN v.p0 THEN v.p1 ELSE  v.p0 END"),
        ("f(:x,:y)[:x]", "f( v.p0, v.p1)[ v.p0]"),
        ("transform(a, x -> :x)", "transform(a, x ->  v.p0)"),
        (":x::INT", " v.p0::INT"),
        ("SELECT /*+ BROADCAST(s) */ :x AS `:x`, ':x', r':x' -- :x", None),
        ("a = :other", "a = :other"),
        # A member of what precedes it, or the part of a literal.
        ("payload:x", "payload:x"),
        ("`payload`:x", "`payload`:x"),
        ("f(a):x", "f(a):x"),
        ("a[0]:x", "a[0]:x"),
        ("DATE :x", "DATE :x"),
        # What cannot be cut into tokens.
        ("a = 'x AND :x", "a = 'x AND :x"),
    ],
)
def test_a22_a_marker_becomes_a_reference_where_an_operand_begins_and_nowhere_else(text: str, sent: str | None) -> None:
    wanted = "SELECT /*+ BROADCAST(s) */  v.p0 AS `:x`, ':x', r':x' -- :x" if sent is None else sent
    assert with_references(text, X) == wanted


@pytest.mark.parametrize("before", [*sorted(_BEFORE_AN_OPERAND), "default.limit", "`a`.like", "1 in"])
def test_a22_no_reference_makes_a_call_of_the_name_before_it(before: str) -> None:
    # The gate looks for calls in the text as it was before.
    sent = with_references(f"{before}:x", {"x": reference("v.p0", "STRING")})
    assert sql_text(sent).calls() in ([], ["cast"]), sent


# --- each kind after each operator ------------------------------------------------------------------------------------

COMPARED = ["{v}<:p", "{v}>:p", "{v}<=:p", "{v}>=:p", "{v}=:p", "{v}==:p", "{v}<>:p", "{v}!=:p", "{v}<=>:p"]
ANYWHERE = [
    "(:p)",
    "NOT {v}=:p",
    "coalesce(:p,{v})",
    "greatest({v},:p)",
    "{v} IN(:p,{v})",
    "{v} IN({v},:p)",
    "{v} BETWEEN:p AND {v}",
    "{v} BETWEEN {v} AND:p",
    "{v} IS DISTINCT FROM:p",
    "CASE WHEN:p={v} THEN:p ELSE:p END",
    "CASE:p WHEN {v} THEN 1 END",
    "transform(array({v}),each->:p)[0]",
    "array({v},:p)[1]",
    "map('k',:p)['k']",
    "named_struct('a',:p).a",
    "{v}/* a comment */=:p",
    "{v}=\n:p",
    "{v}=:p AND {v}=:p",
    *COMPARED,
]
NUMERIC = [
    "{v}-:p",
    "{v} -:p",
    "{v} - :p",
    "-:p",
    "- -:p",
    "+:p",
    "{v}+:p",
    "{v}*:p",
    "({v})-:p",
    ":p-:p",
    "abs(:p)-:p",
]
DIVIDED = ["{v}/:p", "{v}%:p", "try_divide({v},:p)"]
INTEGRAL = ["{v}&:p", "{v}|:p", "{v}^:p", "~:p", "{v} DIV:p", "array(1,2)[abs(:p)%2]"]
TEXTUAL = ["'a'||:p", ":p||:p", "upper(:p)", "concat('a',:p)", "contains('abc',:p)", "length(:p)"]
STRINGS = [
    "",
    "a",
    "it's",
    'say "x"',
    "a\\",
    "\\'",
    "--",
    "-- x\n",
    "/*",
    "*/",
    "/*+ x */",
    "`",
    ";",
    ":p",
    "{v}",
    "${p}",
]
STRINGS += [
    "${p}",
    "a\x00b",
    "a\nb\r\t",
    "é😀\uffff",
    "' OR '1'='1",
    "\\' OR 1=1 --",
    "x'00'",
    "7",
    "NULL",
    "a" * 70_000,
]
DAY, NOON = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12)

# Of each kind: a literal to meet, what stands around the value, and values with the type of a column that holds them.
KINDS: dict[str, tuple[str, list[str], pa.DataType, list[Any]]] = {
    "int": ("7", [*NUMERIC, *DIVIDED, *INTEGRAL], pa.int32(), [-1, 3, -(2**20)]),
    "bigint": ("7", [*NUMERIC, *DIVIDED, *INTEGRAL], pa.int64(), [-(2**40), 2**40]),
    "extreme bigint": ("7", ["-(:p+1)"], pa.int64(), [-(2**63)]),
    "double": ("7", [*NUMERIC, *DIVIDED], pa.float64(), [-1.5, 1e300, -1e-300, -1e-7, 0.1]),
    "zero": ("7", NUMERIC, pa.float64(), [-0.0, 0.0]),
    "decimal": ("7", [*NUMERIC, *DIVIDED], pa.decimal128(3, 2), [decimal.Decimal("-1.50")]),
    "long decimal": ("7", ["-:p"], pa.decimal128(37, 0), [decimal.Decimal("-" + "2" * 37)]),
    "boolean": ("TRUE", ["NOT:p", "!:p", "TRUE AND:p", "FALSE OR:p"], pa.bool_(), [True, False]),
    "date": (
        "DATE'2024-01-02'",
        ["DATE'2024-01-02'-:p", "date_add(:p,1)", "unix_date(:p)"],
        pa.date32(),
        [DAY, dt.date(1, 1, 1), dt.date(1500, 3, 1), dt.date(9999, 12, 31)],
    ),
    "timestamp": (
        "TIMESTAMP_LTZ'2024-01-02 00:00:00'",
        ["unix_micros(:p)", "TIMESTAMP_LTZ'2024-01-02 00:00:00'-:p"],
        pa.timestamp("us", "UTC"),
        # The second of the two half hours that clocks of New York show at half past one, and years of other calendars.
        [dt.datetime(2024, 11, 3, hour, 30, 0, 1, dt.UTC) for hour in (5, 6)]
        + [dt.datetime(1500, 1, 1, tzinfo=dt.UTC), dt.datetime(1883, 11, 18, 17, tzinfo=dt.UTC)],
    ),
    "time without a zone": (
        "TIMESTAMP_NTZ'2024-01-02 00:00:00'",
        ["TIMESTAMP_NTZ'2024-01-02 00:00:00'-:p"],
        pa.timestamp("us"),
        [NOON, dt.datetime(1, 1, 1), dt.datetime(2024, 3, 10, 2, 30), dt.datetime(1582, 10, 10, 1, 2, 3, 4)],
    ),
    "string": (
        "'a'",
        TEXTUAL,
        pa.string(),
        STRINGS,
    ),
    "binary": ("X'00'", ["X'00'||:p", "hex(:p)"], pa.binary(), [b"", b"a'b", b"\x00\xff", b"--"]),
    "null": ("7", ["{v}-:p", "-:p", "coalesce(:p)"], pa.null(), [None]),
    "list": (
        "array(7)",
        ["array(7)||:p", "size(:p)", ":p[0]", "array_contains(:p,7)"],
        pa.list_(pa.int32()),
        [[-1, 7], [3]],
    ),
    "list of texts": ("array('a')", ["array('a')||:p", ":p[0]"], pa.list_(pa.string()), [["it's", "--", "\\"]]),
    "list of times": (
        "array(TIMESTAMP_LTZ'2024-01-02 00:00:00')",
        [":p[0]"],
        pa.list_(pa.timestamp("us", "UTC")),
        [[NOON.replace(tzinfo=dt.UTC)]],
    ),
}
# Neither is ordered, nor compared by Spark.
UNORDERED = {"null": {"CASE:p WHEN {v} THEN 1 END"}}


class Case:
    """A text, the number of its value, and the value's kind."""

    def __init__(self, kind: str, template: str, number: int) -> None:
        self.template = template.replace("{v}", KINDS[kind][0])
        self.number = number
        self.label = f"{kind}: {template}"

    def sql(self, operand: Callable[[int], str]) -> str:
        return self.template.replace(":p", operand(self.number))


def cases() -> tuple[list[Any], list[pa.DataType], list[Case]]:
    """All values, the types of columns that hold them, and each value directly after each operator of its kind."""
    values: list[Any] = []
    types: list[pa.DataType] = []
    found: list[Case] = []
    for kind, (_, own, data_type, held) in KINDS.items():
        for value in held:
            found += [
                Case(kind, each, len(values)) for each in [*ANYWHERE, *own] if each not in UNORDERED.get(kind, ())
            ]
            values.append(value)
            types.append(data_type)
    return values, types, found


def query_of(found: list[Case], operand: Callable[[int], str]) -> str:
    """One row for each case: its number, and the result as JSON."""
    rows = (
        f"struct({number} AS number, to_json(named_struct('r', (\n{case.sql(operand)}\n))) AS result)"
        for number, case in enumerate(found)
    )
    return f"SELECT inline(array({', '.join(rows)}))"


def results_in(table: Table) -> list[str]:
    found = sorted(table.to_arrow().to_pylist(), key=lambda row: row["number"])
    return [row["result"] for row in found]


ZONE = "America/New_York"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ConnectTarget]]:
    with connect_server(tmp_path_factory.mktemp("servers") / "warm") as new_session:
        yield new_session


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.long("Spark runs many jobs, also over Connect")
@pytest.mark.slow("a Spark Connect server")
def test_a22_each_kind_of_value_directly_after_each_operator_is_that_value_on_every_spark(
    tmp_path: Path,
    spark: SparkSession,
    server: Callable[[], ConnectTarget],
    record_property: Callable[[str, Any], None],
) -> None:
    values, types, every = cases()
    found = every[:: depth(4, 4, 1)]
    # What is right: the values lie in columns.
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", ZONE)
    names = [f"v{number}" for number in range(len(values))]
    columns = [pa.array([value], data_type) for value, data_type in zip(values, types, strict=True)]
    held = pa.table(columns, names=names)
    session.createDataFrame(held, spark_schema(held.schema)).createOrReplaceTempView("held")
    query = f"{query_of(found, lambda number: f' v{number} ')} FROM held"
    right = [row.result for row in sorted(session.sql(query).collect(), key=lambda row: row.number)]
    # By each Spark, as parameters.
    arguments = {"source": {"sql": query_of(found, lambda number: f":v{number}")}}
    parameters = dict(zip(names, values, strict=True))
    given: dict[str, Any] = {"unrestricted": ("query",), "time_zone": ZONE}
    committed(run(spark, "write", tmp_path / "classic", parameters=parameters, **given, **arguments))
    spec = job_spec(
        operation="write",
        table_uri=str(tmp_path / "connect"),
        arguments={**arguments, "parameters": encode_parameters(parameters)},
        **given,
    )
    (result,) = run_connected(server(), [spec])
    assert result.error is None, result.error
    for name in ("classic", "connect"):
        differing = [
            (case.label, values[case.number], wanted, got)
            for case, wanted, got in zip(found, right, results_in(Table.open(str(tmp_path / name))), strict=True)
            if wanted != got
        ]
        assert differing == [], name
    assert len(every) > 2000
    line = f"values directly after an operator: {len(found)} texts of {len(values)} values, on a Spark and over Connect"
    record_property(REPORTED, line)


# --- each place of a text ---------------------------------------------------------------------------------------------

ROWS = pa.table({"id": pa.array([7, 7, 8, 8], pa.int64()), "tenant": ["a", "b", "a", "b"], "n": [1.0, 1.0, 1.0, 1.0]})
ONE = "SELECT 8L AS id, 'a' AS tenant, 5D AS n"
A = "id = 7-:x AND reverse(tenant) = 'a'"
ALIASED = "t.id = 7-:x AND reverse(t.tenant) = 'a'"
# The texts of each kind, with -1 for :x, and what is in `n` of the rows (7, a), (7, b), (8, a), (8, b) after it.
PLACES: dict[str, tuple[str, dict[str, Any], list[float | None]]] = {
    "a condition": ("delete", {"predicate": A}, [1, 1, None, 1]),
    "a scope": (
        "delete",
        {"predicate": "tenant > ''", "partition_predicate": "id = 7-:x AND pmod(id, 100) > 0"},
        [1, 1, None, None],
    ),
    "an assignment": ("update", {"predicate": A, "set": {"n": "sqrt(n)-:x"}}, [1, 1, 2, 1]),
    "ON": (
        "merge",
        {"source": {"sql": ONE}, "on": "t.id = s.id-:x-1 AND t.tenant = s.tenant", "clauses": [update({"n": "s.n"})]},
        [1, 1, 5, 1],
    ),
    "a clause": (
        "merge",
        {"source": {"sql": ONE}, "on": "t.tenant = s.tenant", "clauses": [update({"n": "sqrt(t.n)-:x"}, ALIASED)]},
        [1, 1, 2, 1],
    ),
    "replace_where": (
        "write",
        {"source": {"sql": ONE}, "mode": "overwrite", "replace_where": A},
        [1, 1, 5, 1],
    ),
    "a query": (
        "write",
        {"source": {"sql": "SELECT 7-:x AS id, 'a' AS tenant, 6D-:x AS n"}, "mode": "overwrite", "replace_where": A},
        [1, 1, 7, 1],
    ),
}


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.long("Spark runs many jobs, also over Connect")
@pytest.mark.slow("a Spark Connect server")
def test_a22_a_negative_value_directly_after_a_minus_hides_nothing_wherever_the_text_is_evaluated(
    tmp_path: Path, spark: SparkSession, server: Callable[[], ConnectTarget]
) -> None:
    given: dict[str, Any] = {"unrestricted": ("query",)}
    specs, tables = [], []
    places = list(PLACES.items())
    for number, (_, (operation, arguments, _)) in enumerate(places):
        table = make_table(tmp_path / f"connect{number}", ROWS, partition_by=["id"])
        bound = {**arguments, "parameters": encode_parameters({"x": -1})}
        specs.append(job_spec(operation=operation, table_uri=table.uri, arguments=bound, **given))
        tables.append(table)
    results = run_connected(server(), specs)
    for number, (place, (operation, arguments, wanted)) in enumerate(places):
        assert results[number].error is None, (place, results[number].error)
        local = make_table(tmp_path / f"classic{number}", ROWS, partition_by=["id"])
        committed(run(spark, operation, local, parameters={"x": -1}, **given, **arguments))
        for table in (local, tables[number]):
            left = {(row["id"], row["tenant"]): row["n"] for row in table.to_arrow().to_pylist()}
            assert [left.get(key) for key in ((7, "a"), (7, "b"), (8, "a"), (8, "b"))] == wanted, place


@pytest.mark.long("it starts a Spark of its own")
@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.slow("a Spark Connect server")
def test_what_cannot_be_bound_over_connect_is_refused_and_a_name_is_the_same_on_each_spark(
    tmp_path: Path, server: Callable[[], ConnectTarget], spark: SparkSession
) -> None:
    def spec(name: str, sql: str) -> Any:
        return job_spec(
            operation="write",
            table_uri=str(tmp_path / name),
            arguments={"source": {"sql": sql}, "parameters": encode_parameters({"x": -1})},
            unrestricted=("query",),
        )

    unnamed, unplaced, named = run_connected(
        server(),
        [
            spec("unnamed", "SELECT :x"),
            spec("unplaced", "SELECT :x AS a, 1 AS isnull"),
            spec("named", "SELECT to_json(struct(:x, 7 AS a)) AS made"),
        ],
    )
    assert unnamed.error is not None
    assert (unnamed.error["type"], unnamed.error["facts"].get("is_local_only")) == ("InvalidJobSpec", True)
    assert "… AS name" in unnamed.error["message"]
    assert unplaced.error is not None
    assert (unplaced.error["type"], unplaced.error["facts"].get("is_local_only")) == ("InvalidPredicate", True)
    assert named.error is None, named.error
    (row,) = Table.open(str(tmp_path / "named")).to_arrow().to_pylist()
    assert json.loads(row["made"]) == {"col1": -1, "a": 7}


@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.long("a Spark Connect server; tests/security/test_query_names.py judges by tokens without one")
def test_a_query_is_judged_over_connect_before_the_server_has_it(
    tmp_path: Path, server: Callable[[], ConnectTarget]
) -> None:
    (tmp_path / "secret").write_text("the canary of a file\n")
    pq.write_table(pa.table({"id": pa.array([0, 1, 2], pa.int64())}), tmp_path / "in.parquet")
    views = {"v": {"format": "parquet", "path": str(tmp_path / "in.parquet")}}
    harmless = "WITH w AS (SELECT id FROM v WHERE id > 0) SELECT w.id - :x AS id FROM w JOIN v ON w.id = v.id"
    refused = {
        "the function reflect()": "SELECT reflect('java.lang.System', 'setProperty', 'a', 'b') AS id, :x AS x FROM v",
        "the path of a file": f"SELECT value AS id, :x AS x FROM v, text.`{tmp_path}/secret`",
        "USING": f"SELECT TRANSFORM(id) USING 'touch {tmp_path}/canary' AS (id STRING), :x AS x FROM v",
    }
    specs = [
        job_spec(
            operation="write",
            table_uri=str(tmp_path / f"t{number}"),
            arguments={"source": {"sql": text, "views": views}, "parameters": encode_parameters({"x": -1})},
        )
        for number, text in enumerate([harmless, *refused.values()])
    ]
    done, *results = run_connected(server(), specs)
    assert done.error is None, done.error
    assert sorted(Table.open(str(tmp_path / "t0")).to_arrow().column("id").to_pylist()) == [2, 3]
    for what, result in zip(refused, results, strict=True):
        assert result.error is not None, what
        assert (result.error["type"], result.error["facts"].get("is_local_only")) == ("InvalidJobSpec", True)
        assert what in result.error["message"], result.error["message"]
    assert not (tmp_path / "canary").exists()


@pytest.mark.long("it starts a Spark of its own")
@pytest.mark.spark
@pytest.mark.airflow
@pytest.mark.slow("a Spark Connect server")
def test_a2_a_clock_that_no_parameter_replaces_is_refused_over_connect_unless_it_is_a_column(
    tmp_path: Path, server: Callable[[], ConnectTarget]
) -> None:
    times = make_table(tmp_path / "times", pa.table({"id": [1, 2], "current_time": ["a", "b"], "user": ["c", "d"]}))
    plain = make_table(tmp_path / "plain", pa.table({"id": [1, 2]}))
    texts = {
        "current_time() IS NULL": "the clock current_time",
        "current_time IS NOT NULL": "the clock current_time",
        "`current_timestamp` > TIMESTAMP_LTZ'2020-01-01'": "the clock current_timestamp",
        "current_user = 'root'": "the function current_user",
        "`User` = 'root'": "the function user",
    }
    specs = [
        job_spec(operation="delete", table_uri=plain.uri, arguments={"predicate": f"pmod(id, 100) = 1 AND {text}"})
        for text in texts
    ]
    texts |= {"length(session_user)": "the function session_user"}
    specs.append(job_spec(operation="update", table_uri=plain.uri, arguments={"set": {"id": "length(session_user)"}}))
    column = {"predicate": "pmod(id, 100) > 0 AND reverse(current_time) = 'a' AND reverse(user) = 'c'"}
    *refused, done = run_connected(
        server(), [*specs, job_spec(operation="delete", table_uri=times.uri, arguments=column)]
    )
    for (text, what), result in zip(texts.items(), refused, strict=True):
        assert result.error is not None, text
        assert (result.error["type"], result.error["facts"]["is_local_only"]) == ("UnsupportedPredicate", True), text
        assert what in result.error["message"], result.error["message"]
    assert done.error is None, done.error
    assert times.to_arrow().column("id").to_pylist() == [2]
