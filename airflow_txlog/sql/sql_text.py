"""One text of SQL: its tokens and, for an expression, its tree. Every interpretation of a text starts here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from airflow_txlog.sql.expression import Expression, Span
from airflow_txlog.sql.lexer import DOUBLE_QUOTED, Token, Uncut, Unreadable, cut, has_half_of_a_character
from airflow_txlog.sql.parser import NoExpression, parse

_NAMING = ("word", "name")
_OPENING, _STAR = Token("symbol", "("), Token("symbol", "*")
# The characters of a text that is kept after it was cut: an IN list may have megabytes of them.
_MOST_REMEMBERED = 20_000


@dataclass(frozen=True)
class SqlText:
    """A text, its tokens in order, and their places in it, from the first character to the one after the last.

    A text that cannot be cut has a `problem` and no tokens; with `is_refused`, Spark cannot cut it either.
    """

    sql: str
    tokens: Sequence[Token] = ()
    spans: Sequence[tuple[int, int]] = ()
    problem: str | None = None
    is_refused: bool = False

    @cached_property
    def expression(self) -> Expression | None:
        """The tree of the one expression that the text is; None where it is none, or only Spark can parse it."""
        try:
            return parse(self.tokens) if self.problem is None else None
        except (NoExpression, RecursionError):
            return None

    @property
    def parameters(self) -> list[str]:
        """What looks like the names of parameters, in order."""
        return [token.text for token in self.tokens if token.kind == "parameter"]

    def part(self, span: Span) -> str:
        """Return the author's text of a part of the tree."""
        return self.sql[self.spans[span[0]][0] : self.spans[span[1] - 1][1]]

    def calls(self) -> list[str]:
        """Lower-case names of everything that stands before an opening parenthesis, keywords included."""
        pairs = zip(self.tokens, self.tokens[1:], strict=False)
        return [this.text.lower() for this, following in pairs if this.kind in _NAMING and following == _OPENING]

    def has_star(self) -> bool:
        """Whether a `*` multiplies nothing: after an opening parenthesis, a comma or a dot, or at the start."""
        befores = [_OPENING, *self.tokens]
        return any(
            token == _STAR and before.kind == "symbol" and before.text in ("(", ",", ".")
            for before, token in zip(befores, self.tokens, strict=False)
        )

    def words(self) -> set[str]:
        """Everything that could name a column, in lower case.

        With the content of double-quoted strings: a session may be set to read those as names.
        """
        return {token.text.lower() for token in self.tokens if token.kind in _NAMING or token.doubt == DOUBLE_QUOTED}


def sql_text(sql: str) -> SqlText:
    """Return the text cut into tokens; a text that was asked for lately is cut, and parsed, only once."""
    return _text(sql) if len(sql) <= _MOST_REMEMBERED else _text.__wrapped__(sql)


@lru_cache(maxsize=32)
def _text(sql: str) -> SqlText:
    # A Spark that substitutes replaces ${name} in the whole text, strings included, before it reads anything.
    if "${" in sql:
        return SqlText(sql, problem="variable substitution `${…}`")
    if has_half_of_a_character(sql):
        return SqlText(sql, problem="half of a character, a lone surrogate")
    return _cut(sql)


def statement_text(sql: str) -> SqlText:
    """Return a whole statement of a session that substitutes no variables: hints are cut like the rest."""
    return _cut(sql, has_hints=True)


def _cut(sql: str, *, has_hints: bool = False) -> SqlText:
    try:
        tokens, spans = cut(sql, has_hints=has_hints)
    except Unreadable as error:
        return SqlText(sql, problem=str(error), is_refused=isinstance(error, Uncut))
    return SqlText(sql, tokens, spans)


def quoted_hint(texts: Iterable[str], name: str) -> str:
    """What to do where one of the texts has `':name'` in quotes, as a sentence for a message; empty where none has."""
    tokens = (token for text in texts for token in sql_text(text).tokens)
    if any(token.kind == "string" and token.text == f":{name}" for token in tokens):
        return f" A parameter in quotes is a text: write :{name} without quotes."
    return ""
