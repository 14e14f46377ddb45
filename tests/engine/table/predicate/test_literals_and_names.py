"""Literals that two parsers read differently, and the columns that a text names (soundness A3)."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.predicate import may_hold_match
from airflow_txlog.sql.sql_text import sql_text
from tests.engine.table.predicate.tables import PARTITIONS, SCHEMA, file, files, read, told


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
