"""Alone in showing that a text which is refused without Spark is one that Spark refuses: the rules on tokens and names
are put to Spark's own parser and analysis.

The texts are the examples that Spark gives of each of its functions, predicates that the grammar of the engine draws,
and both with tokens left out, doubled, exchanged and misspelt.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.errors import InvalidPredicate, UnsupportedPredicate
from airflow_txlog.jobs.spark.session import silence_query_errors
from airflow_txlog.jobs.sql.columns import NamedRows, check_names
from airflow_txlog.jobs.sql.functions import check_listed, check_parsed
from airflow_txlog.jobs.sql.schemas import as_spark_schema
from airflow_txlog.sql.certain_mistakes import why_no_expression
from airflow_txlog.sql.lexer import KEYWORDS
from tests.conftest import REPORTED
from tests.engine.table.predicate.examples import SCHEMA
from tests.engine.table.predicate.generator import Generator
from tests.helpers.depth import depth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.seeded]

_SOURCE = StructType(
    (
        StructField("id", Primitive.LONG),
        StructField("day", Primitive.DATE),
        StructField("n", StructType((StructField("x", Primitive.INTEGER), StructField("end", Primitive.STRING)))),
        StructField("s", Primitive.STRING),
    )
)
_BY_HAND = """
    id = 1 | id = 1 AND | id = 1 foo | struct(id foo) | (id foo) | where id = 1 | where = 1 | id = 1; | ``
    and = 1 | x -> x | transform(array(1), x -> x + id) | transform(array(1), (x, i) -> x + i + id)
    exists(array(id), e -> e = 1) | extract(week from day) | extract(doy from day) | trim(both 'x' from s)
    timestampadd(month, 1, day) | id::int | cast(id as decimal(10, 2)) = 1
    cast(n as struct<x: int, end: string>) is null | interval 1 day | day + interval 1 day | day = current_date
    day = current_date() | current_user = 'a' | s collate utf8_lcase = 'a' | day = 1 | end = 1 | n.x = 1 | n.y = 1
    n.end = 'a' | n.x.y = 1 | t.id = 1 | T.ID = 1 | t.idd = 1 | s.id = 1 | id.x = 1 | `t`.`id` = 1
    case when id = 1 then s else 'b' end = 'b' | case id when 1 then 2 end = 2 | s like 'a' escape '/'
    date 'x' = day | s rlike 'a' | s in ('a', s) | not id | ! id | - id = 1 | id between 1 and 2
    id between id and day | id is not null | any = 1 | map('a', id)['a'] = 1 | array(id)[0] = 1
    named_struct('a', id).a = 1 | (id) = 1 | ((id = 1) and (s = 'a')) | year = 1 | month = 2 | value = 1
    type = 'a' | user = 'a' | date = day | timestamp = 1 | null = 1 | true = true | id = 1 or | or id = 1
    id == = 1 | id = = 1 | id = ) | f( | (id = 1)) | 1 = 1 -- x | /* a */ id = 1 | id = 1 /* a | id in ()
    id in (1 | s = 'a | s = "a" | s = 'a' 'b' | 'a' id | id 'a' | 5 id | id 5 | 5 5 | id id | `id` `id` | (1) 2
    id % | % id | id || s | || s | id & 1 | id ^ | a.b.c.d = 1 | id:s = 1 | :a = 1 | id = :a s | id => 1
    id -> 1 = 2 | if(id = 1, s, 'x') = 'x' | coalesce(id, idd) = 1 | lowr(s) = 'a' | lower(S) = 'a'
    system.builtin.lower(s) = 'a' | date_add(day, 1) = day | datediff(day, day) = 1 | dateadd(day, 1, day) = day
    dateadd(dayy, 1, day) = day | 1e3 = id | overlay(s placing 'a' from 1) = 's' | position('a' in s) = 1
    substring(s from 1 for 2) = 'a' | id is distinct from 1 | s || idd = 'a' | t.n.x = 1 | t.n.y = 1 | _id = 1
    id_ = 1 | ID = 1 | iD <> 2 | id <=> null | id != 1 | id ! = 1 | cast(id as foo) = 1 | id::foo = 1
    try_cast(s as int) = 1 | timestamp_ntz '2024-01-01' < day | x'1F' = s | r'a' = s | s not like 'a'
    s not in ('a') | s not 'a' | id < | id > | > id | id >= | id, s | (id, s) | (id, s) = (1, 'a') | *
    id * 2 = 1 | id * = 1 | * 2 | t.* | count(*) | id at time zone 'x' = 1 | localtime = 1 | localtimestamp = 1
    over = 1 | rows = 1 | table = 1 | values = 1 | select = 1 | with = 1 | array = 1 | map = 1 | struct = 1
    left = 1 | sum(id) = 1 | rand() = 1 | id = (select 1) | exists (select 1) | id in (select id) | window = 1
    group = 1 | zone = 1 | `current_date` = day | `user` = 'a' | `current_timestamp` is null | `userr` = 'a'
"""
_RELATION = "certain_mistakes"


@pytest.fixture
def refusal(spark: SparkSession) -> Callable[..., str | None]:
    """What Spark says of a text as a condition on the rows of a relation, or as what is selected; None: it accepts."""
    from pyspark.errors import PySparkException

    silence_query_errors()
    tables = {"source": _SOURCE, "examples": SCHEMA, "nothing": StructType(())}
    for name, schema in tables.items():
        frame = spark.createDataFrame([], as_spark_schema(schema))
        frame.createOrReplaceTempView(f"{_RELATION}_{name}")
    parser: Any = spark._jsparkSession.sessionState().sqlParser()

    def refused(text: str, name: str, *, is_condition: bool = True, **parameters: Any) -> str | None:
        relation = f"{_RELATION}_{name} AS t"
        query = (
            f"SELECT 1 FROM {relation} WHERE (\n{text}\n) IS NULL" if is_condition else f"SELECT {text} FROM {relation}"
        )
        try:
            if is_condition:
                parser.parseExpression(text)
            spark.sql(query, args={"a": 1, **parameters})
        except PySparkException as error:
            return str(error)
        except Exception as error:
            return str(error)
        return None

    return refused


def _words_of(text: str) -> list[str]:
    return re.findall(r"'[^']*'|`[^`]*`|\w+|[^\w\s]", text)


def _mutated(text: str, chance: random.Random) -> str:
    """The text with one of its tokens left out, doubled, exchanged with another, misspelt or put elsewhere."""
    parts = _words_of(text)
    at, other = chance.randrange(len(parts)), chance.randrange(len(parts))
    match chance.randrange(5):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, parts[at])
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case 3:
            parts[at] = parts[at][:-1] + "q" + parts[at][-1:]
        case _:
            parts.insert(other, parts.pop(at))
    return " ".join(parts)


def _examples(spark: SparkSession) -> list[str]:
    """What Spark shows of its functions, without the SELECT before it."""
    registry: Any = spark._jsparkSession.sessionState().functionRegistry()
    names = registry.listFunction().iterator()
    found = []
    while names.hasNext():
        info = registry.lookupFunction(names.next())
        text = str(info.get().getExamples()) if info.isDefined() else ""
        found += re.findall(r">\s*SELECT (.*?);?\s*$", text, re.MULTILINE)
    return sorted(set(found))


def _mistake(text: str, schema: StructType) -> str | None:
    """What is refused of a text without Spark, and why."""
    why = why_no_expression(text)
    if why is not None:
        return why
    try:
        check_names(text, [NamedRows(alias="t", columns=schema)])
    except InvalidPredicate as error:
        return error.message
    return None


@pytest.mark.long("Spark judges hundreds of texts")
def test_spark_refuses_each_text_that_is_refused_without_it(
    spark: SparkSession,
    refusal: Callable[..., str | None],
    record_property: Callable[[str, object], None],
) -> None:
    chance, generator = random.Random("certain"), Generator(31)
    by_hand = [text.strip() for line in _BY_HAND.strip().split("\n") for text in line.split(" | ")]
    drawn = [generator.case() for _ in range(depth(40, 100, 1500))]
    cases: list[tuple[str, str, StructType, dict[str, Any]]] = [(text, "source", _SOURCE, {}) for text in by_hand]
    cases += [(_mutated(chance.choice(by_hand), chance), "source", _SOURCE, {}) for _ in range(depth(30, 250, 5000))]
    cases += [(_mutated(case.sql, chance), "examples", SCHEMA, case.parameters) for case in drawn]
    cases += [(case.sql, "examples", SCHEMA, case.parameters) for case in drawn]
    counts: Counter[str] = Counter()
    wrong = []
    for text, name, schema, parameters in cases:
        mistake, said = _mistake(text, schema), refusal(text, name, **parameters)
        kind = (
            "both" if mistake and said else "neither" if not (mistake or said) else "Spark alone" if said else "wrong"
        )
        counts[kind] += 1
        if kind == "wrong":
            wrong.append((text, mistake))
    record_property(REPORTED, f"texts judged without Spark and with it: {dict(counts)}")
    assert not wrong, wrong
    # A rule that refuses nothing would pass as well.
    assert counts["both"] > counts["Spark alone"]
    assert counts["neither"] > 100


def test_no_example_of_sparks_own_functions_is_refused(spark: SparkSession, refusal: Callable[..., str | None]) -> None:
    examples = _examples(spark)
    assert len(examples) > 1000
    wrong = []
    accepted = 0
    for text in examples:
        # Several columns are no mistake in a SELECT.
        mistake = _mistake(text, StructType(()))
        if mistake is None or "comma outside" in mistake:
            continue
        if refusal(text, "nothing", is_condition=False) is None:
            wrong.append((text, mistake))
    accepted = sum(_mistake(text, StructType(())) is None for text in examples)
    assert not wrong, wrong
    assert accepted > 900


def test_a_function_that_is_refused_by_its_name_is_refused_by_sparks_tree(spark: SparkSession) -> None:
    refused = 0
    for text in _examples(spark):
        try:
            check_listed(text)
        except UnsupportedPredicate:
            if " FROM " not in text and why_no_expression(text) is None:
                refused += 1
                with pytest.raises(UnsupportedPredicate):
                    check_parsed(spark, text.partition(" AS ")[0], {})
    assert refused > 50


@pytest.mark.long("seven seconds for what changes with a Spark alone")
def test_no_keyword_of_the_installed_spark_is_missing(spark: SparkSession) -> None:
    assert {row[0].lower() for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()} <= KEYWORDS
