"""Types as SQL spells them: `DECIMAL(10, 2)`, `ARRAY<STRUCT<id: BIGINT NOT NULL, name: STRING COMMENT 'n'>>`.

The invariant: a text is the type that Spark reads from it, or it is refused. Source: Spark 4.2, SqlBaseParser.g4
(`dataType`, `complexColType`).
"""

from __future__ import annotations

import re

from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    VariantType,
    walk_types,
)
from airflow_txlog.errors import SchemaMismatch

DECIMALS = ("DECIMAL", "DEC", "NUMERIC")
PLAIN_TYPES: dict[str, Primitive] = {
    "STRING": Primitive.STRING,
    "BOOLEAN": Primitive.BOOLEAN,
    "DATE": Primitive.DATE,
    "DOUBLE": Primitive.DOUBLE,
    **dict.fromkeys(("TINYINT", "BYTE"), Primitive.BYTE),
    **dict.fromkeys(("SMALLINT", "SHORT"), Primitive.SHORT),
    **dict.fromkeys(("INT", "INTEGER"), Primitive.INTEGER),
    **dict.fromkeys(("BIGINT", "LONG"), Primitive.LONG),
    **dict.fromkeys(("FLOAT", "REAL"), Primitive.FLOAT),
}
"""The types of one word that text files may hold, by name."""
TIMES: dict[str, DataType] = {
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), Primitive.TIMESTAMP),
    "TIMESTAMP_NTZ": Primitive.TIMESTAMP_NTZ,
}
"""The types of times, by name."""
_OTHERS: dict[str, DataType] = {
    "BINARY": Primitive.BINARY,
    **TIMES,
    "VARIANT": VariantType(),
}

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|'((?:[^'\\]|'')*)'|(\w+)|([<>(),:]))", re.ASCII)
_MAX_DEPTH = 50


def type_of_ddl(text: str) -> DataType:
    """Return the type that a text names. Raises SchemaMismatch, which repeats the text, for any other text."""
    return _Ddl(text).whole()


# Comments and texts, names in quotes, brackets, commas, and words.
_PART = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`((?:[^`]|``)*)`|([<(])|([>)])|(,)|([^\s,:<>()`'"]+)""",
    re.DOTALL,
)


def column_names(text: str) -> list[str]:
    """Return the names of the columns of `id BIGINT, name STRING COMMENT 'n'`, whatever their types."""
    names: list[str] = []
    depth, is_next = 0, True
    for quoted, opens, closes, comma, word in _PART.findall(text):
        depth += bool(opens) - bool(closes)
        if is_next and (quoted or word):
            names.append(word or quoted.replace("``", "`"))
        is_next = (is_next and not (quoted or word)) or (bool(comma) and depth == 0)
    return names


class _Ddl:
    """One text, cut into (kind, text) pairs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        end = 0
        while text[end:].strip():
            found = _TOKEN.match(text, end)
            if found is None:
                raise self._refused()
            quoted, comment, word, symbol = found.groups()
            kind, value = next(
                (kind, value)
                for kind, value in (("name", quoted), ("text", comment), ("word", word), ("symbol", symbol))
                if value is not None
            )
            self._tokens.append((kind, value.replace("``", "`") if kind == "name" else value))
            end = found.end()

    def whole(self) -> DataType:
        found = self._type(0)
        if self._at < len(self._tokens):
            raise self._refused()
        return found

    def _type(self, depth: int) -> DataType:
        kind, name = self._take()
        if kind != "word" or depth > _MAX_DEPTH:
            raise self._refused()
        name = name.upper()
        if name in PLAIN_TYPES or name in _OTHERS:
            return PLAIN_TYPES.get(name) or _OTHERS[name]
        if name in DECIMALS:
            return self._decimal()
        if name == "ARRAY":
            self._needs("<")
            element = self._type(depth + 1)
            self._needs(">")
            return ArrayType(element)
        if name == "MAP":
            self._needs("<")
            key = self._type(depth + 1)
            if any(isinstance(each, VariantType) for each in walk_types(key)):
                raise self._refused()
            self._needs(",")
            value = self._type(depth + 1)
            self._needs(">")
            return MapType(key, value)
        if name == "STRUCT":
            return self._struct(depth)
        raise self._refused()

    def _decimal(self) -> DecimalType:
        if not self._takes("("):
            return DecimalType(10, 0)
        precision, scale = self._number(), 0
        if self._takes(","):
            scale = self._number()
        self._needs(")")
        return DecimalType(precision, scale)

    def _struct(self, depth: int) -> StructType:
        self._needs("<")
        members: list[StructField] = []
        while not members or self._takes(","):
            kind, name = self._take()
            if kind not in ("name", "word"):
                raise self._refused()
            self._takes(":")
            members.append(self._member(name, depth))
        self._needs(">")
        return StructType(tuple(members))

    def _member(self, name: str, depth: int) -> StructField:
        found, nullable, metadata = self._type(depth + 1), True, {}
        if self._takes_word("NOT"):
            if not self._takes_word("NULL"):
                raise self._refused()
            nullable = False
        if self._takes_word("COMMENT"):
            kind, comment = self._take()
            if kind != "text":
                raise self._refused()
            metadata = {"comment": comment.replace("''", "'")}
        return StructField(name, found, nullable, metadata)

    def _take(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise self._refused()
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, symbol: str) -> bool:
        found = self._tokens[self._at : self._at + 1] == [("symbol", symbol)]
        self._at += found
        return found

    def _takes_word(self, word: str) -> bool:
        following = self._tokens[self._at : self._at + 1]
        found = bool(following) and following[0][0] == "word" and following[0][1].upper() == word
        self._at += found
        return found

    def _needs(self, symbol: str) -> None:
        if not self._takes(symbol):
            raise self._refused()

    def _number(self) -> int:
        kind, text = self._take()
        if kind != "word" or not text.isdecimal():
            raise self._refused()
        return int(text)

    def _refused(self) -> SchemaMismatch:
        return SchemaMismatch(
            f"{self._text!r} is no type that a column can be given. Write one of "
            f"{', '.join([*PLAIN_TYPES, *_OTHERS])}, DECIMAL(p, s), ARRAY<…>, MAP<…, …> or STRUCT<name: …, …>."
        )
