"""A predicate is one boolean expression about one row, whatever was templated into it (soundness A2, B6)."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.predicate.reading import read_predicate
from airflow_txlog.errors import InvalidPredicate, UnknownColumn, UnsupportedPredicate
from tests.engine.table.predicate.tables import SCHEMA, is_decided, read

NOT_ONE_EXPRESSION = [
    ("", "it is empty"),
    ("  -- nothing", "it is empty"),
    ("i = 1; DROP TABLE t", "';'"),
    ("i = 1;", "';'"),
    ("1=1) UNION SELECT * FROM secrets WHERE (1=1", "a ) without its ("),
    ("1=1) OR (1=1", "a ) without its ("),
    ("(i = 1", "a ( without its )"),
    ("SELECT 1", "SELECT"),
    ("i = 1 UNION SELECT 1", "UNION"),
    ("i = 1 ORDER BY i", "ORDER"),
    ("i = 1 LIMIT 1", "LIMIT"),
    ("i = 1 AS z", "AS"),
    ("i = 1 z", "cannot be parsed"),
    ("i = 1 GROUP BY i", "GROUP"),
    ("i = 1 AND", "cannot be parsed"),
    ("AND i = 1", "cannot be parsed"),
    ("i = ", "cannot be parsed"),
    ("i = ?", "'?'"),
    ("i = 1 && flag", "cannot be parsed"),
    ("i = 1 /* open", "not closed"),
    ("/*+ BROADCAST(t) */ i = 1", "a hint"),
    ("name = 'open", "closing quote"),
    ("`i = 1", "backquote"),
    ("i = ${spark.x}", "variable substitution"),
    ("{{ x }} = 1", "'{'"),
    ("i = @x", "'@'"),
    ("größe = 1", "'ö'"),
    ("flag ISNULL", "the alias ISNULL"),
    ("i = 1.5.2", "1.5"),
]


@pytest.mark.parametrize(("sql", "what"), NOT_ONE_EXPRESSION, ids=[sql for sql, _ in NOT_ONE_EXPRESSION])
def test_what_is_not_one_expression_is_refused(sql: str, what: str) -> None:
    with pytest.raises(InvalidPredicate) as caught:
        read(sql)
    assert type(caught.value) is InvalidPredicate
    assert what in caught.value.message
    assert caught.value.predicate == sql  # type: ignore[attr-defined]
    assert not caught.value.retryable


REFUSED_BY_NAME = [
    ("rand() < 0.5", "rand()"),
    ("RAND () < 0.5", "rand()"),
    ("`rand`() < 0.5", "rand()"),
    ("system.builtin.randn(1) < 0.5", "randn()"),
    ("name = uuid()", "uuid()"),
    ("shuffle(tags)[0] = 'a'", "shuffle()"),
    ("monotonically_increasing_id() = 1", "monotonically_increasing_id()"),
    ("input_file_name() = 'a'", "input_file_name()"),
    ("spark_partition_id() = 1", "spark_partition_id()"),
    ("java_method('java.lang.Runtime', 'getRuntime') IS NULL", "java_method()"),
    ("reflect('java.lang.System', 'exit', 1) IS NULL", "reflect()"),
    ("try_reflect('java.lang.System', 'exit', 1) IS NULL", "try_reflect()"),
    ("count(*) = 1", "count()"),
    ("max(i) = 1", "max()"),
    ("any(flag)", "any()"),
    ("row_number() OVER (ORDER BY i) = 1", "row_number()"),
    ("abs(i) OVER (PARTITION BY id) = 1", "window function"),
    ("explode(tags) = 'a'", "explode()"),
    ("i IN (SELECT 1)", "a subquery"),
    ("EXISTS (SELECT 1 FROM t)", "a subquery"),
    ("i = (SELECT max(x) FROM t)", "a subquery"),
    ("i IN (VALUES (1))", "a subquery"),
    ("i IN (WITH a AS (SELECT 1) SELECT * FROM a)", "a subquery"),
    ("i IN (FROM t SELECT i)", "a subquery"),
    ("exists(select -x from other)", "a subquery"),
    ("exists(select not b from other)", "a subquery"),
    ("i = 1 AND s LIKE ANY (select -x from o)", "a subquery"),
    ("i IN (/* c */ select 1)", "a subquery"),
]


@pytest.mark.parametrize(("sql", "construct"), REFUSED_BY_NAME, ids=[sql for sql, _ in REFUSED_BY_NAME])
@pytest.mark.parametrize("lenient", [False, True])
def test_what_may_not_stand_in_a_predicate_is_refused_by_name(sql: str, construct: str, lenient: bool) -> None:
    with pytest.raises(UnsupportedPredicate) as caught:
        read(sql, lenient=lenient)
    assert construct in caught.value.construct  # type: ignore[attr-defined]
    assert construct in caught.value.message


@pytest.mark.parametrize(
    "sql",
    ["name = 'rand()'", "name = 'a; b'", "name = 'x) UNION SELECT (1'", "name LIKE ANY ('a%')", "i IN (1) -- rand()"],
)
def test_what_only_looks_like_it_is_accepted(sql: str) -> None:
    assert read(sql).columns is not None


def test_a_column_may_have_the_name_of_a_keyword() -> None:
    from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType

    names = ["select", "from", "rand", "count", "date", "timestamp", "end", "user", "values"]
    schema = StructType(tuple(StructField(name, Primitive.INTEGER) for name in names))
    for name in names:
        quoted = f"(`{name}` IS NULL OR `{name}` IN (1, 2))"
        assert read_predicate(quoted, schema).columns == {name}
    for name in ("rand", "count", "date", "timestamp", "end", "user"):
        assert read_predicate(f"({name} = 1)", schema).columns == {name}
    assert read_predicate("(from IS NULL AND from IN (1))", schema).columns == {"from"}


def test_text_that_only_spark_can_parse_is_unknown_when_spark_has_parsed_it() -> None:
    sql = "day = '2024-01-01' AND variant_column:path.to[0] = 1"
    predicate = read_predicate(sql, SCHEMA, lenient=True, parameters=None)
    assert predicate.columns is None
    assert not is_decided(predicate)
    assert predicate.sql == sql


@pytest.mark.parametrize(
    "sql", ["lower(name) = :p", "name LIKE ANY (:p)", "name LIKE ANY ('a', :p)", "name = :p COLLATE UTF8_LCASE"]
)
def test_a_parameter_without_a_value_is_refused_wherever_it_stands(sql: str) -> None:
    with pytest.raises(InvalidPredicate, match="needs a value for its parameter :p"):
        read(sql)
    read(sql, parameters={"p": "x"})
    assert not is_decided(
        read("variant:path = 1 AND f(variant):path = 1", lenient=True, unknown_columns_are_opaque=True)
    )


def test_functions_of_the_clock_are_unknown_and_not_refused() -> None:
    for sql in (
        "day = current_date()",
        "at < current_timestamp",
        "at < now()",
        "day > curdate()",
        "wall < localtimestamp",
    ):
        assert not is_decided(read(sql))


def test_a_wrong_column_is_named_with_the_nearest_and_the_others() -> None:
    with pytest.raises(UnknownColumn) as caught:
        read("dya = '2024-01-01'")
    assert caught.value.column == "dya"  # type: ignore[attr-defined]
    assert "Did you mean 'day'?" in caught.value.message
    assert "country, year" in caught.value.message
    assert caught.value.columns == SCHEMA.names  # type: ignore[attr-defined]
    for sql in ("st.a = 1 AND nme = 'a'", "upper(nme) = 'A'", "x = 0x1F", "nme.a = 1", "other.day = '2024-01-01'"):
        with pytest.raises(UnknownColumn):
            read(sql)


def test_a_wrong_column_may_be_unknown_instead() -> None:
    predicate = read("dya = '2024-01-01' AND i = 1", unknown_columns_are_opaque=True)
    assert predicate.columns == {"i"}
    assert not is_decided(predicate)
