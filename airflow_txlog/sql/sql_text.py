"""One text of SQL: its tokens and, for an expression, its tree. Every interpretation of a text starts here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from airflow_txlog.sql.expression import Cast, Expression, Literal, Span
from airflow_txlog.sql.lexer import (
    DOUBLE_QUOTED,
    OPEN,
    OUTSIDE,
    Lexer,
    Token,
    Uncut,
    Unreadable,
    has_half_of_a_character,
    neighbours,
)
from airflow_txlog.sql.parser import NoExpression, parse

_OPENS, _CLOSES = {"(": ")", "[": "]"}, {")": "(", "]": "["}
# Of longer texts, only the last one is cached, and not if it is very long or has very many tokens.
_MOST_REMEMBERED = 20_000
# A job reads each of its texts several times, and a wide MERGE has thousands of short ones.
_SHORT, _MOST_SHORT = 200, 4096
_MOST_OF_LAST, _MOST_TOKENS_OF_LAST = 2_000_000, 50_000
_last_long_text: list[SqlText] = []


@dataclass(frozen=True)
class SqlText:
    """A text, its tokens, and their places in it as half-open ranges of characters.

    A text that cannot be cut has a `problem` and no tokens; with `is_refused`, Spark cannot cut it either.
    """

    sql: str
    tokens: Sequence[Token] = ()
    spans: Sequence[tuple[int, int]] = ()
    problem: str | None = None
    is_refused: bool = False

    @cached_property
    def expression(self) -> Expression | None:
        """The tree, if the text is one expression that the parser reads."""
        try:
            return parse(self.tokens) if self.problem is None else None
        except (NoExpression, RecursionError):
            return None

    @property
    def parameters(self) -> list[str]:
        """The apparent names of parameters, in order."""
        return [token.text for token in self.tokens if token.kind == "parameter"]

    def part(self, span: Span) -> str:
        """Return the author's text of a part of the tree."""
        return self.sql[self.spans[span[0]][0] : self.spans[span[1] - 1][1]]

    def calls(self) -> list[str]:
        """Return the lower-case names of whatever precedes an opening parenthesis, keywords included."""
        return [token.text.lower() for _, token, after in neighbours(self.tokens) if token.is_name and after == OPEN]

    def has_star(self) -> bool:
        """Return whether a `*` does not multiply: it comes first, or after `(`, a comma or a dot."""
        starts = ("(", ",", ".")
        return any(t.symbol == "*" and (b is OUTSIDE or b.symbol in starts) for b, t, _ in neighbours(self.tokens))

    def words(self) -> set[str]:
        """Return everything that could name a column, in lower case.

        That includes double-quoted strings, which a session may be set to read as names.
        """
        return {token.text.lower() for token in self.tokens if token.is_name or token.doubt == DOUBLE_QUOTED}

    def unbalanced(self) -> str | None:
        """Return which bracket lacks its partner, as the rest of a sentence that begins with "it"."""
        open_ones: list[str] = []
        for token in self.tokens:
            if token.symbol in _OPENS:
                open_ones.append(token.text)
            elif token.symbol in _CLOSES and (not open_ones or open_ones.pop() != _CLOSES[token.text]):
                return f"it has a {token.text} without its {_CLOSES[token.text]}"
        return f"it has a {open_ones[-1]} without its {_OPENS[open_ones[-1]]}" if open_ones else None


def sql_text(sql: str) -> SqlText:
    """Return the text cut into tokens; a recently used text is not cut and parsed again."""
    if len(sql) <= _SHORT:
        return _short_text(sql)
    if len(sql) <= _MOST_REMEMBERED:
        return _text(sql)
    for last in _last_long_text:
        if last.sql == sql:
            return last
    found = _text.__wrapped__(sql)
    if len(sql) <= _MOST_OF_LAST and len(found.tokens) <= _MOST_TOKENS_OF_LAST:
        _last_long_text[:] = [found]
    return found


@lru_cache(maxsize=32)
def _text(sql: str) -> SqlText:
    # A Spark that substitutes replaces ${name} in the whole text, strings included, before it reads anything.
    if "${" in sql:
        return SqlText(sql, problem="variable substitution `${…}`")
    if has_half_of_a_character(sql):
        return SqlText(sql, problem="half of a character, a lone surrogate")
    return _cut(sql)


_short_text = lru_cache(maxsize=_MOST_SHORT)(_text.__wrapped__)


def statement_text(sql: str) -> SqlText:
    """Return a whole statement of a session that substitutes no variables: hints are cut like the rest."""
    return _cut(sql, has_hints=True)


def _cut(sql: str, *, has_hints: bool = False) -> SqlText:
    try:
        tokens, spans = Lexer(sql, has_hints=has_hints).run()
    except Unreadable as error:
        return SqlText(sql, problem=str(error), is_refused=isinstance(error, Uncut))
    return SqlText(sql, tokens, spans)


def is_constant(sql: str) -> bool:
    """Return whether the text is one constant: a literal, or a cast of one, such as `DATE '2024-01-31'`."""
    expression = sql_text(sql).expression
    return isinstance(expression.operand if isinstance(expression, Cast) else expression, Literal)


def quoted_hint(texts: Iterable[str], name: str) -> str:
    """Return what to do if one of the texts has `':name'` in quotes, for the end of a message; else nothing."""
    tokens = (token for text in texts for token in sql_text(text).tokens)
    if any(token.kind == "string" and token.text == f":{name}" for token in tokens):
        return f" A parameter in quotes is a text: write :{name} without quotes."
    return ""
