"""Mistakes that the tokens of a text show without Spark. Spark's answers: tests/jobs/sql/test_certain_mistakes.py."""

from __future__ import annotations

import pytest

from airflow_txlog.sql.certain_mistakes import parameters_of, why_no_expression, why_not_cut, wrong_type
from airflow_txlog.sql.sql_text import quoted_hint, sql_text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id = ", "nothing comes after ="),
        ("= 1", "nothing comes before ="),
        ("id = = 1", "= is followed by ="),
        ("id = 1 && x = 2", "& is followed by &: write AND"),
        ("id === 1", "== is followed by =: write ="),
        ("f(id = )", "= is followed by )"),
        ("id -", "nothing comes after -"),
        ("t.", "nothing comes after ."),
        ("id = 1 AND", "nothing comes after AND"),
        ("(id = 1 OR)", "nothing comes after OR"),
        ("mail LIKE", "nothing comes after LIKE"),
        ("id = 1 AND = 2", "AND is followed by ="),
        ("id = 1 mail = 2", "an operator such as AND is missing before mail"),
        ("id 'x'", "an operator such as AND is missing before a text"),
        ("f(id) `x`", "an operator such as AND is missing before x"),
        ("id = 1, x = 2", "it has a comma outside of brackets"),
        ("WHERE id = 1", "it begins with WHERE: leave that out"),
        ("id = 1;", "it has the character ';': leave that out"),
        ("id # 1", "it has the character '#'"),
        ("name = 'O", "it has a string without its closing quote"),
        ("`id = 1", "it has a backquote without its partner"),
        ("id = 1 /* why", "it has a comment that is not closed"),
        ("(id = 1]", "it has a ] without its ["),
        ("-- nothing", "it is empty"),
    ],
)
def test_a_text_that_is_no_expression_is_refused_with_its_reason(text: str, why: str) -> None:
    assert why_no_expression(text) == why


@pytest.mark.parametrize(
    "text",
    [
        "and = 1",
        "flag OR and",
        "where = 1",
        "`a``b` = 1",
        "struct(id name)",
        "(id name, x)",
        "cast(a AS struct<>) IS NULL",
        "a::array<int>",
        "a::map<int, int>",
        "INTERVAL 1 DAY > x",
        "DATE '2024-01-01' = day",
        "x'1F' = a",
        "'a' 'b' = name",
        "name RLIKE 'a'",
        "name NOT REGEXP 'a'",
        "CASE id WHEN 1 THEN 2 END = 2",
        "transform(a, x -> x + 1)",
        "EXTRACT(doy FROM day) = 1",
        "naïve = 1",
        "v:path = 1",
        "id = 1 -- AND",
        "id = (SELECT max(x) m FROM t u)",
    ],
)
def test_what_spark_may_accept_is_no_mistake(text: str) -> None:
    assert why_no_expression(text) is None


def test_a_query_is_only_cut() -> None:
    assert why_not_cut("SELECT a FROM b WHERE name = 'x") == "it has a string without its closing quote"
    assert why_not_cut("SELECT (a FROM b") == "it has a ( without its )"
    assert why_not_cut("SELECT a b, FROM;") is None


def test_a_parameter_in_quotes_is_pointed_out() -> None:
    assert quoted_hint(["id = 1", "name = ':u'"], "u") == " A parameter in quotes is a text: write :u without quotes."
    assert quoted_hint(["name = ':user' OR x = :v"], "u") == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id = :a AND NOT :b OR f(:c, -:d)", ["a", "b", "c", "d"]),
        ("name LIKE :a AND id IN (:b) AND x BETWEEN :c AND :d", ["a", "b", "c", "d"]),
        ("CASE WHEN :a THEN :b ELSE :c END", ["a", "b", "c"]),
        ("f(id) NOT LIKE :a", ["a"]),
        ("raw:price > 1 AND f(raw):a[0]:b = 1", []),
        ("CAST(x AS STRUCT<limit: INT, on: INT>).limit = 1", []),
        ("CAST(x AS STRUCT<not: INT>) IS NULL", []),
        ("limit:price = 1", []),
        ("id = 1 AND limit:price = 1", []),
        ("`limit`:price = 1 AND t.limit:price = 1", []),
    ],
)
def test_a_parameter_is_no_member_of_a_column_or_a_type_whatever_its_name(text: str, names: list[str]) -> None:
    assert list(parameters_of(sql_text(text).tokens)) == names


def test_a_type_that_spark_does_not_know_is_named_with_the_nearest() -> None:
    assert wrong_type("id BIGNT, day DATE") == "BIGNT is no type. Did you mean 'BIGINT'?"
    assert str(wrong_type("`a b` DECIMAL(10, 2) NOT NULL, x nmbr2 COMMENT 'c'")).startswith("nmbr2 is no type.")
    for fits in (
        "id bigint, `a, b` ARRAY<STRUCT<a: INT, b: odd>>, t TIMESTAMP_NTZ COMMENT 'a, b c', v VARCHAR(3)",
        "id {{ kind }}, {{ more columns }}",
        "id: BIGINT",
        "struct<a: odd>",
        "odd",
        "INTERVAL DAY TO SECOND",
    ):
        assert wrong_type(fits) is None
