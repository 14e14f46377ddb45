"""Which texts Spark is certain to accept, and to answer without an error: where it need not be asked.

The closed grammar says what a text means where Spark takes it. Here is a narrower one, of which Spark also takes every
text: comparisons of columns of text, whole numbers and dates with constants of the very same kind, or with the texts
that Spark writes for such a number or date, joined by AND, OR, NOT and parentheses. The invariant: no text that is
plain is refused by Spark, or fails on a value.
Source: Spark 4.2, SqlBaseParser.g4; tests/engine/table/predicate/test_differential.py.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

from airflow_txlog.datafiles.text import date_text, parse_date
from airflow_txlog.engine.table.predicate.constants import INTEGER_BITS
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.text import SqlText, sql_text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHOLE = frozenset((Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG))
_COMPARISONS = frozenset(("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"))
_NUMBER = re.compile("[0-9]{1,18}", re.ASCII)
_WHOLE_TEXT = re.compile("0|-?[1-9][0-9]{0,17}", re.ASCII)
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Spark counts the days of a date in 32 bits.
_DAYS = 1 << 31
_MOST_TOKENS = 10_000
_MOST_DEPTH = 50
# Words that begin, or go on with, an expression of another form: a column of such a name is written in backquotes.
_WORDS = _words(
    """all and any array at between by case cast collate current_date current_path current_time
    current_timestamp current_user distinct div else end escape except exists extract false filter first following for
    from group having identifier ilike in intersect interval is last lateral like limit localtime localtimestamp map
    minus named_struct not null on or order over overlay position regexp rlike select session_user set some struct
    substr substring table then timestampadd timestampdiff trim true union unique user using values when where window
    with within x"""
)


class NotPlain(Exception):
    """`args[0]` says what is not."""


def why_not_plain(sql: str, schema: StructType, parameters: Mapping[str, object]) -> str | None:
    """What in the text is not plain; None where all of it is. `schema`: the columns that it may name."""
    if sql.endswith("\\"):
        return "a backslash at its end"  # in a comment, which goes on with what a job writes behind the text
    text = sql_text(sql)
    if text.problem is not None:
        return "a literal that two parsers may read differently"
    try:
        reader = _Reader(text, schema, parameters)
        reader.expression(0)
        if reader.at < len(reader.tokens):
            return "more than one expression"
    except NotPlain as found:
        return str(found.args[0])
    return None


class _Reader:
    """The tokens, of which those before `at` are read."""

    def __init__(self, text: SqlText, schema: StructType, parameters: Mapping[str, object]) -> None:
        if len(text.tokens) > _MOST_TOKENS:
            raise NotPlain("a very long text")
        if any(token.doubt is not None for token in text.tokens):
            raise NotPlain("a text that two parsers may read differently")
        self.tokens = text.tokens
        self.at = 0
        self._schema = schema
        self._parameters = parameters

    def expression(self, depth: int) -> None:
        self._term(depth)
        while self._takes("and") or self._takes("or"):
            self._term(depth)

    def _term(self, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise NotPlain("many parentheses")
        if self._takes("not"):
            self._term(depth + 1)
        elif self._takes_symbol("("):
            self.expression(depth + 1)
            self._needs_symbol(")")
        elif not (self._takes("true") or self._takes("false")):
            self._comparison()

    def _comparison(self) -> None:
        field = self._column()
        if self._takes("is"):
            self._takes("not")
            self._needs("null")
            return
        negated = self._takes("not")
        if self._takes("in"):
            self._needs_symbol("(")
            self._constant(field)
            while self._takes_symbol(","):
                self._constant(field)
            self._needs_symbol(")")
        elif self._takes("between"):
            self._constant(field)
            self._needs("and")
            self._constant(field)
        elif not negated and self._next().kind == "symbol" and self._next().text in _COMPARISONS:
            self.at += 1
            self._constant(field)
        else:
            raise NotPlain("another comparison")

    def _column(self) -> StructField:
        field = plain_column(self._next(), self._schema)
        self.at += 1
        is_one_text = field.type is Primitive.STRING and not (field.is_collated or field.is_char)
        if not (is_one_text or field.type in WHOLE or field.type is Primitive.DATE):
            raise NotPlain(f"the column {field.name}, of the type {field.type}")
        return field

    def _constant(self, field: StructField) -> None:
        is_date = self._takes("date")
        is_negative = not is_date and self._takes_symbol("-")
        token = self._next()
        self.at += 1
        if is_negative or token.kind == "number":
            is_number = token.kind == "number" and _NUMBER.fullmatch(token.text) is not None
            fits = field.type in WHOLE and is_number and not is_date
        elif token.kind == "string":
            fits = fits_plainly(token.text, field) and not (is_date and field.type is not Primitive.DATE)
        else:
            fits = not is_date and token.kind == "parameter" and fits_plainly(self._parameters.get(token.text), field)
        if not fits:
            raise NotPlain(f"a constant that is not of the type of the column {field.name}")

    def _next(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else Token("end", "")

    def _takes(self, word: str) -> bool:
        token = self._next()
        if token.kind == "word" and token.text.lower() == word:
            self.at += 1
            return True
        return False

    def _takes_symbol(self, text: str) -> bool:
        if self._next() == Token("symbol", text):
            self.at += 1
            return True
        return False

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise NotPlain("another expression")

    def _needs_symbol(self, text: str) -> None:
        if not self._takes_symbol(text):
            raise NotPlain("another expression")


def is_certain_name(token: Token) -> bool:
    """Whether a token, where nothing stands before it, is the name of something, and can be nothing else."""
    is_free = token.kind == "word" and bool(_NAME.fullmatch(token.text)) and token.text.lower() not in _WORDS
    return token.kind == "name" or is_free


def plain_column(token: Token, schema: StructType) -> StructField:
    """The column that a token names, and can name nothing else. Raises NotPlain."""
    field = schema.find(token.text) if is_certain_name(token) else None
    if field is None:
        raise NotPlain(f"the name {token.text}" if token.kind in ("word", "name") else "another expression")
    return field


def fits_plainly(value: object, field: StructField) -> bool:
    """Whether a text or a parameter's value is of the column's kind, and not only made so by a cast that may fail."""
    if field.type is Primitive.STRING:
        return isinstance(value, str)
    if field.type is Primitive.DATE:
        if isinstance(value, str):
            days = parse_date(value)
            return days is not None and -_DAYS <= days < _DAYS and date_text(days) == value
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if isinstance(value, str):
        # As Jinja renders a number. Spark reads it, whether it casts the text or, without ANSI mode, the column.
        is_canonical = _WHOLE_TEXT.fullmatch(value) is not None
        return is_canonical and field.type in INTEGER_BITS and abs(int(value)) < 1 << (INTEGER_BITS[field.type] - 1)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
