"""Types as SQL spells them: read as Spark reads them, or refused."""

from __future__ import annotations

import pytest

from airflow_txlog.engine.table.schema.ddl import column_names, type_of_ddl
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import SchemaMismatch

TYPES = {
    "int": "integer",
    " BIGINT ": "long",
    "Timestamp_NTZ": "timestamp_ntz",
    "timestamp": "timestamp",
    "numeric": "decimal(10,0)",
    "DECIMAL(5)": "decimal(5,0)",
    "dec( 38 , 10 )": "decimal(38,10)",
    "ARRAY<INT>": "array<integer>",
    "map<int, array<Variant>>": "map<integer,array<variant>>",
    "map<string, array<map<int,binary>>>": "map<string,array<map<integer,binary>>>",
    "STRUCT<a: INT, `b c` STRING>": "struct<a:integer,b c:string>",
    "struct<x: struct<`y``z`: date>>": "struct<x:struct<y`z:date>>",
}


@pytest.mark.parametrize("text", TYPES)
def test_a_type_is_read_in_every_spelling(text: str) -> None:
    assert str(type_of_ddl(text)) == TYPES[text]


def test_a_member_has_its_comment_and_may_forbid_null() -> None:
    found = type_of_ddl("STRUCT<a: INT NOT NULL COMMENT 'it''s', b: INT COMMENT 'b'>")
    assert isinstance(found, StructType)
    a, b = found
    assert (a.nullable, a.metadata, b.nullable, b.metadata) == (False, {"comment": "it's"}, True, {"comment": "b"})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "INT INT",
            "INT,",
            "FOO",
            "CHAR(3)",
            "MAP<VARIANT, INT>",
            "INTERVAL DAY",
            "DECIMAL(39)",
            "DECIMAL(2,3)",
            "DECIMAL(x)",
        ),
        *("ARRAY", "ARRAY<>", "ARRAY<INT", "MAP<INT>", "STRUCT<>", "STRUCT<a INT, A INT>", "STRUCT<a INT NOT>", "INT;"),
        "ARRAY<" * 60 + "INT" + ">" * 60,
    ],
)
def test_no_other_text_is_a_type(text: str) -> None:
    with pytest.raises(SchemaMismatch):
        type_of_ddl(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id INT, name STRING", ["id", "name"]),
        ("`a ``b``, c` DECIMAL(12, 2) COMMENT 'x, y INT', z:STRING NOT NULL", ["a `b`, c", "z"]),
        ('a STRUCT<b: INT, c: ARRAY<MAP<STRING, INT>>>, d INT COMMENT "it\'s, e"', ["a", "d"]),
        ("a INT -- , b INT\n, c INT /* , d */", ["a", "c"]),
        ("", []),
    ],
)
def test_the_names_of_columns_are_those_outside_of_types_and_comments(text: str, names: list[str]) -> None:
    assert column_names(text) == names
