"""The tree of a text. That it is Spark's: tests/engine/table/predicate/test_differential.py."""

from __future__ import annotations

import pytest

from airflow_txlog.sql.expression import Call, Cast, Expression, Literal, Name, Opaque, Parameter
from airflow_txlog.sql.sql_text import sql_text


def shape(node: Expression | None) -> str:
    """The tree as nested lists, an opaque part as <what it is>."""
    match node:
        case Call(operator, operands):
            return f"({operator} {' '.join(map(shape, operands))})"
        case Cast(operand, target):
            return f"(cast {shape(operand)} {target})"
        case Name():
            return str(node)
        case Literal(kind, text):
            return f"'{text}'" if kind == "string" else text
        case Parameter(name):
            return f":{name}"
        case Opaque(what):
            return f"<{what}>"
    return "nothing"


@pytest.mark.parametrize(
    ("sql", "tree"),
    [
        ("a OR b AND NOT c = 1", "(or a (and b (not (= c 1))))"),
        ("a AND b AND (c AND d)", "(and a b (and c d))"),
        ("NOT NOT ! a", "(not a)"),
        ("a = b IS NULL", "(is null (= a b))"),
        ("a BETWEEN 1 AND 2 AND b", "(and (between a 1 2) b)"),
        ("a NOT BETWEEN 1 + 1 AND b = c", "(not (between a (+ 1 1) (= b c)))"),
        ("a BETWEEN symmetric AND 5", "(between a symmetric 5)"),
        ("a NOT IN (1, -2, :p)", "(not (in a 1 -2 :p))"),
        ("a LIKE 'x' || '%'", "(like a (|| 'x' '%'))"),
        ("a == b <> c", "(!= (= a b) c)"),
        ("1 + 2 * -a - 3", "(- (+ 1 (* 2 (negate a))) 3)"),
        ("a - -1 DIV 2", "(- a (div -1 2))"),
        ("a | b ^ c & d", "(| a (^ b (& c d)))"),
        ("+5 = +'5'", "(= 5 (positive '5'))"),
        ("a IS DISTINCT FROM b", "(not (<=> a b))"),
        ("a IS NOT DISTINCT FROM NULL", "(<=> a null)"),
        ("DATE '2024-01-01' = CAST(:d AS date)", "(= (cast '2024-01-01' date) (cast :d date))"),
        ("a::INT + int('1')", "(+ (cast a int) (cast '1' int))"),
        ("`a b`.c = x.`d`", "(= a b.c x.d)"),
        ("upper(a, f()) = 'A'", "(= (upper() a (f() )) 'A')"),
        ("LIKE(a, 'x%')", "(like() a 'x%')"),
        ("exists(a, x -> x AND b) OR c", "(or <the function exists()> c)"),
        ("CASE WHEN a AND b THEN 1 ELSE 2 END = 1 OR c", "(or (= (case (and a b) 1 2) 1) c)"),
        ("a - INTERVAL 1 DAY < b", "(< (- a (cast '1' interval day)) b)"),
        ("a - interval -'-07' Weeks - 1", "(- (- a (cast '7' interval week)) 1)"),
        ("a - INTERVAL 1 DAY 2 HOURS < b", "(< (- a (cast '1 2' interval day hour)) b)"),
        ("a - INTERVAL '1' year 02 Months", "(- a (cast '1 2' interval year month))"),
        ("a - INTERVAL 1 DAY -2 HOURS", "(- a <INTERVAL>)"),
        ("a - INTERVAL - 1 DAY 2 HOURS", "(- a <INTERVAL>)"),
        ("a - INTERVAL 1 DAY 2 < b", "(< (- a <INTERVAL>) b)"),
        ("a - INTERVAL 1 2 DAYS", "(- a <INTERVAL>)"),
        ("a - INTERVAL '1 day -2 hours'", "(- a <INTERVAL>)"),
        ("a - INTERVAL '1 2' DAY TO HOUR", "(- a <INTERVAL>)"),
        ("a - INTERVAL 1.5 DAYS", "(- a <INTERVAL>)"),
        ("a - INTERVAL '-30 Days'", "(- a (cast '-30' interval day))"),
        ("a - INTERVAL '1 Day 2 hours'", "(- a (cast '1 2' interval day hour))"),
        ("a - INTERVAL '1 day' DAY", "(- a <INTERVAL>)"),
        ("a - INTERVAL '1' '2'", "(- a <INTERVAL>)"),
        ("a - INTERVAL :p DAYS", "(- a <INTERVAL>)"),
        ("interval = 1", "(= interval 1)"),
        ("cast(a AS ARRAY<INT>)[0] = 1 AND b", "(and (= <an element in brackets> 1) b)"),
        ("from IS NULL AND end = 1", "(and (is null from) (= end 1))"),
    ],
)
def test_a_text_has_the_tree_of_sparks_grammar(sql: str, tree: str) -> None:
    assert shape(sql_text(sql).expression) == tree


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "a b",
        "a = = 1",
        "a AND",
        "OR a",
        "a = NOT b",
        "a IS NULL IS NULL",
        "a IN ()",
        "a NOT NULL",
        "a NOT IS NULL",
        "a NOT IS DISTINCT FROM 5",
        "a = 1 'div' 2",
        "NOT " * 60 + "a",
        "case = 1 OR a AND end = 2",
        "foo 'x'",
        "(SELECT 1)",
        "a -> b",
        "v:path = 1",
        "a, b",
        "(" * 60 + "a" + ")" * 60,
        " + ".join(["a"] * 101) + " > 0",
        " || ".join(["(" + " || ".join(["a"] * 60) + ")", *["a"] * 60]),
    ],
)
def test_what_is_not_one_expression_has_no_tree(sql: str) -> None:
    assert sql_text(sql).expression is None


def test_a_part_of_the_tree_leads_back_to_the_text() -> None:
    text = sql_text("a = (b  + 1) -- why\n AND c")
    assert isinstance(text.expression, Call)
    assert text.part(text.expression.operands[0].span) == "a = (b  + 1)"
    assert isinstance(text.expression.operands[0], Call)
    assert text.part(text.expression.operands[0].operands[1].span) == "(b  + 1)"


def test_the_members_of_a_list_are_literals_or_expressions() -> None:
    assert shape(sql_text("a IN (1, -2, 'x', 3 + 1, 'y' || 'z', 5)").expression) == (
        "(in a 1 -2 'x' (+ 3 1) (|| 'y' 'z') 5)"
    )


def test_the_last_long_text_is_cut_and_parsed_once() -> None:
    long, other = (f"a IN ({', '.join(['12345'] * count)})" for count in (9_000, 9_001))
    first = sql_text(long)
    assert sql_text(" ".join([long])) is first
    assert len(sql_text(other).tokens) == len(first.tokens) + 2
    assert sql_text(long) is not first


def test_a_text_of_megabytes_is_not_kept() -> None:
    huge = f"name = '{'x' * 2_000_000}'"
    assert sql_text(huge) is not sql_text(huge)
    assert sql_text(huge).expression == sql_text(huge).expression
