"""What the closed grammar holds, and what lies outside it (soundness A4)."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.predicate.tree import Predicate
from airflow_txlog.sql.expression import TRUE
from tests.engine.table.predicate.tables import PARTITIONS, is_decided, read, told

INSIDE = [
    ("i = 5", "i = 5"),
    ("I == 5", "i = 5"),
    ("5 < i", "i > 5"),
    ("5 >= i", "i <= 5"),
    ("i <> 5", "i != 5"),
    ("(i) = (5)", "i = 5"),
    ("`i` = - 5", "i = -5"),
    ("i = +5", "i = 5"),
    ("i <=> 5", "i = 5"),
    ("i <=> NULL", "i IS NULL"),
    ("NOT i <=> NULL", "i IS NOT NULL"),
    ("NOT i <=> 5", "i != 5 OR i IS NULL"),
    ("i IS DISTINCT FROM 5", "i != 5 OR i IS NULL"),
    ("i IS NOT DISTINCT FROM 5", "i = 5"),
    ("i IN (1, 2, 2)", "i IN (1, 2)"),
    ("i IN (1, NULL)", "i IN (1)"),
    ("i NOT IN (1, 2)", "i NOT IN (1, 2)"),
    ("i NOT IN (1, NULL)", "FALSE"),
    ("i IN (NULL)", "FALSE"),
    ("i = NULL", "FALSE"),
    ("NOT i = NULL", "FALSE"),
    ("i BETWEEN 1 AND 3", "i >= 1 AND i <= 3"),
    ("i NOT BETWEEN 1 AND 3", "i < 1 OR i > 3"),
    ("i NOT BETWEEN 1 AND NULL", "i < 1"),
    ("i IS NULL", "i IS NULL"),
    ("NOT i IS NOT NULL", "i IS NULL"),
    ("st IS NULL", "st IS NULL"),
    ("name LIKE 'ab%'", "name LIKE 'ab%'"),
    ("name LIKE 'ab'", "name = 'ab'"),
    ("name LIKE '%'", "name IS NOT NULL"),
    ("name NOT LIKE 'ab%'", "name NOT LIKE 'ab%'"),
    ("NOT name NOT LIKE 'ab%'", "name LIKE 'ab%'"),
    ("flag", "flag = TRUE"),
    ("NOT flag", "flag != TRUE"),
    ("!flag", "flag != TRUE"),
    ("flag IS TRUE", "flag = TRUE"),
    ("flag IS NOT TRUE", "flag != TRUE OR flag IS NULL"),
    ("flag = FALSE", "flag = FALSE"),
    ("TRUE", "TRUE"),
    ("NOT TRUE", "FALSE"),
    ("NULL", "FALSE"),
    ("NOT NULL", "FALSE"),
    ("i = 1 AND TRUE", "i = 1"),
    ("i = 1 OR TRUE", "TRUE"),
    ("i = 1 AND (id = 2 OR id = 3)", "i = 1 AND (id = 2 OR id = 3)"),
    ("NOT (i = 1 AND name LIKE 'a%')", "i != 1 OR name NOT LIKE 'a%'"),
    ("NOT (i = 1 OR NOT (id > 2))", "i != 1 AND id > 2"),
    ("i = 1 OR i = 2 AND id = 3", "i = 1 OR (i = 2 AND id = 3)"),
    ("i = 1 -- it's a comment", "i = 1"),
    ("/* 'a' /* nested */ */ i = 1", "i = 1"),
    ("raw = :raw", "raw = b'\\xff'"),
]


@pytest.mark.parametrize(("sql", "tree"), INSIDE, ids=[sql for sql, _ in INSIDE])
def test_the_grammar_is_read(sql: str, tree: str) -> None:
    parameters = {"raw": b"\xff"} if ":raw" in sql else None
    assert told(sql, parameters=parameters) == tree
    assert is_decided(read(sql, parameters=parameters))


OUTSIDE = [
    ("i = id", "a column where a constant should stand"),
    ("i + 1 = 5", "the operator +"),
    ("-i = 5", "the operator negate"),
    ("i = 1 + 1", "the operator +"),
    ("i = - - 5", "the operator negate"),
    ("i = -(5)", "the operator negate"),
    ("upper(name) = 'A'", "the function upper()"),
    ("to_timestamp(name, 'yyyy') = at", "the function to_timestamp()"),
    ("concat(name, 'a') = 'ba'", "the function concat()"),
    ("name || 'a' = 'ba'", "the operator ||"),
    ("name RLIKE 'a.*'", "the operator rlike"),
    ("name ILIKE 'a%'", "the operator ilike"),
    ("name LIKE '%a'", "a LIKE pattern other than 'prefix%'"),
    ("name LIKE 'a_'", "a LIKE pattern other than 'prefix%'"),
    ("name LIKE 'a%b%'", "a LIKE pattern other than 'prefix%'"),
    ("name LIKE 'a!%' ESCAPE '!'", "LIKE with ESCAPE"),
    ("name LIKE ANY ('a%', 'b%')", "LIKE ANY"),
    ("i LIKE '5%'", "LIKE on the integer column i"),
    ("i BETWEEN SYMMETRIC 3 AND 1", "BETWEEN with symmetric"),
    ("st.a = 5", "st.a, which is not a column of the table alone"),
    ("st.a.b.c.d = 5", "st.a.b.c.d, which is not a column of the table alone"),
    ("tags[0] = 'a'", "bracket"),
    ("(i, id) IN ((1, 2))", "tuple"),
    ("(i = 1) = (id = 2)", "the operator ="),
    ("i = 1 = flag", "the operator ="),
    ("CASE WHEN i = 1 THEN flag ELSE TRUE END", "CASE"),
    ("at > now()", "the function now()"),
    ("at > current_timestamp()", "the function current_timestamp()"),
    ("day = current_date", "the function current_date()"),
    ("day = DATE '2024-01-01' - INTERVAL 1 DAY", "the operator -"),
    ("name = 'a' COLLATE UTF8_LCASE", "COLLATE"),
    ("code = 'ab'", "the column code with a collation, char or varchar type"),
    ("short_text = 'ab'", "the column short_text with a collation, char or varchar type"),
    ("folded = 'ab'", "the column folded with a collation, char or varchar type"),
    ("code IS NULL", "the column code with a collation, char or varchar type"),
    ("i", "a integer column beside a constant of type boolean"),
    ("i = CAST('5' AS DECIMAL(5,0))", "a cast"),
    ("CAST(i AS STRING) = '5'", "cast"),
]


@pytest.mark.parametrize(("sql", "reason"), OUTSIDE, ids=[sql for sql, _ in OUTSIDE])
def test_what_lies_outside_the_grammar_is_unknown_and_says_why(sql: str, reason: str) -> None:
    predicate = read(sql)
    assert not is_decided(predicate)
    assert reason in told(sql)


def test_not_of_the_unknown_is_unknown() -> None:
    assert told("NOT (upper(name) = 'A')") == "<the function upper()>"
    assert told("i = 1 AND NOT (flag OR upper(name) = 'A')") == "i = 1 AND flag != TRUE AND <the function upper()>"


def test_a_chain_of_thousands_is_read_without_recursion() -> None:
    chain = " OR ".join(f"i = {number}" for number in range(3000))
    assert is_decided(read(chain))
    assert len(read(f"NOT ({chain})").tree.operands) == 3000  # type: ignore[union-attr]


def test_nesting_beyond_reason_is_refused_or_unknown() -> None:
    deep = "(" * 5000 + "i = 1" + ")" * 5000
    assert read(deep, lenient=True).columns is None


def test_true_is_the_whole_table() -> None:
    assert Predicate.true().tree == TRUE
    assert read("1 = 1").tree != TRUE
    assert read("TRUE").tree == TRUE


def test_long_lists_are_cut_in_messages() -> None:
    text = told(f"i IN ({', '.join(map(str, range(100)))})")
    assert text.endswith("9, … and 90 more)")
    assert PARTITIONS == ["day", "country", "year", "flag"]
