"""What the closed grammar holds, and what lies outside it (soundness A4)."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.predicate import may_hold_match
from airflow_txlog.engine.table.predicate.tree import Predicate
from airflow_txlog.sql.expression import TRUE
from airflow_txlog.sql.sql_text import sql_text
from tests.engine.table.predicate.tables import PARTITIONS, SCHEMA, file, files, is_decided, read, told

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
    ("name LIKE '%a'", "name LIKE '%a'"),
    ("name NOT LIKE 'a%b%'", "name NOT LIKE 'a%b%'"),
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
    ("i = 1 + 1", "i = 2"),
    ("i = - - 5", "i = 5"),
    ("i = -(5)", "i = -5"),
    ("day >= date_sub(DATE '2024-03-01', 1)", "day >= '2024-02-29'"),
    ("day < DATE '2024-03-01' - 30 AND name = concat('a', 1)", "day < '2024-01-31' AND name = 'a1'"),
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
    ("upper(name) = 'A'", "the function upper()"),
    ("to_timestamp(name, 'yyyy') = at", "the function to_timestamp()"),
    ("concat(name, 'a') = 'ba'", "the function concat()"),
    ("name || 'a' = 'ba'", "the operator ||"),
    ("name RLIKE 'a.*'", "the operator rlike"),
    ("name ILIKE 'a%'", "the operator ilike"),
    ("name LIKE 'a_'", "a LIKE pattern with another wildcard than %"),
    ("name LIKE '%\ufffd'", "a LIKE pattern with another wildcard than %"),
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
    ("day = DATE '2024-01-01' - INTERVAL 1 HOUR", "the operator -"),
    ("day = INTERVAL 1 DAY", "INTERVAL"),
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


def test_a3_obrien_is_forgotten() -> None:
    """Spark reads O'Brien where a parser that concatenates reads OBrien, which no bound of his file holds."""
    his = files(file(lower={"name": "O'Brien"}, upper={"name": "O'Brien"}))
    for sql in ("name = 'O''Brien'", "name = 'O\\'Brien'", 'name = "O\'Brien"', "name IN ('x', 'O''Brien')"):
        assert may_hold_match(read(sql), his, SCHEMA, PARTITIONS).to_pylist() == [True], sql
    bound = read("name = :name", parameters={"name": "O'Brien"})
    assert may_hold_match(bound, his, SCHEMA, PARTITIONS).to_pylist() == [True]
    other = read("name = :name", parameters={"name": "OBrien"})
    assert may_hold_match(other, his, SCHEMA, PARTITIONS).to_pylist() == [False]


# What another parser reads otherwise than Spark, and its relatives.
DIFFERENT = [
    ("name = 'it''s'", "<a string with a doubled quote>"),
    ("name = 'it' 's'", "<a string in several pieces>"),
    ('name = "its"', "<a double-quoted string>"),
    ('name = "it""s"', "<a double-quoted string>"),
    ("name = '\\x41'", "<a string with a backslash>"),
    ("name = '\\Z'", "<a string with a backslash>"),
    ("name = '\\101'", "<a string with a backslash>"),
    ("name = R'a\\b'", "<a raw string>"),
    ("name = r'a'", "<a raw string>"),
    ("name = N'x'", "<the prefixed string N'…'>"),
    ("raw = X'1F'", "<the prefixed string X'…'>"),
    ("raw = x '1F'", "<the prefixed string x'…'>"),
    ("i ^ 3 & 1 = 5", "<the operator ^>"),
    ("i = 1 AND name = 'a''b'", "i = 1 AND <a string with a doubled quote>"),
    ("price = 1.5BD", "price = 1.50"),
    ("i = 1L", "i = 1"),
    ("tiny = 1Y", "tiny = 1"),
    ("i = 2147483648Y", "<the number 2147483648Y, which is no byte>"),
    ("x = 1.5D", "x = 1.5"),
    ("x = 1e3", "x = 1000.0"),
    ("name LIKE 'a\\_%'", "<a string with a backslash>"),
]


@pytest.mark.parametrize(("sql", "tree"), DIFFERENT, ids=[sql for sql, _ in DIFFERENT])
def test_literals_that_parsers_read_differently_are_unknown(sql: str, tree: str) -> None:
    assert told(sql).startswith(tree)


def test_a_text_is_cut_into_sparks_tokens() -> None:
    text = sql_text("a = 'x' AND `b c` < 1.5 AND d = :name AND e = R'\\' -- 'f'")
    assert [token.text for token in text.tokens if token.kind == "string"] == ["x", "\\"]
    assert [token.text for token in text.tokens if token.kind == "number"] == ["1.5"]
    assert text.parameters == ["name"]


@pytest.mark.parametrize(
    "sql", ["a = ${b}", "a = '${b}'", "/* /* */ a", "a.5", "f(x).5", "a = 5.x", "a\u00a0= 1", "a = 1\x0b"]
)
def test_text_that_could_be_cut_in_two_ways_is_not_cut(sql: str) -> None:
    assert sql_text(sql).problem is not None


COLUMNS = [
    ("day = '2024-01-01' AND name = 'x'", {"day", "name"}),
    ("i = 5.5", {"i"}),
    ("day = DATE '2024-01-01'", {"day"}),
    ("`größe` = 1", {"größe"}),
    ("st.a = 1", {"st"}),
    ("upper(NAME) = 'A'", {"name"}),
    ("exists(tags, i -> i = name)", {"tags", "i", "name"}),
    ('upper(name) = "year"', {"name", "year"}),
    ("named_struct('a', i).a = 1", {"i"}),
    ("struct(*) = named_struct('a', 1)", None),
    ("hash(i, *) = 1", None),
    ("i * id = 1", {"i", "id"}),
    ("(i) * (id) = 1", {"i", "id"}),
    ("IDENTIFIER('day') = '2024-01-01'", None),
    ("FALSE AND upper(name) = 'A'", {"name"}),
]


@pytest.mark.parametrize(("sql", "columns"), COLUMNS, ids=[sql for sql, _ in COLUMNS])
def test_the_columns_that_a_text_names_are_never_too_few(sql: str, columns: set[str] | None) -> None:
    assert read(sql).columns == columns


def test_an_alias_may_qualify_the_columns() -> None:
    assert told("t.day = '2024-01-01' AND T.name = 'x'", alias="t") == "day = '2024-01-01' AND name = 'x'"
    assert "st.a" in told("t.st.a = 1 AND i = 1", alias="t").replace("t.st.a", "st.a")
    # A column of the alias's name: nobody can tell which is meant.
    assert told("st.a = 1", alias="st").startswith("<")


def test_names_of_other_cases_are_the_schemas() -> None:
    assert read("DAY = '2024-01-01' AND Name = 'x'").columns == {"day", "name"}
