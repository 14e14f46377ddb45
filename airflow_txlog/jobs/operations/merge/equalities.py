"""The equalities that ON is a conjunction of, read out of its text.

The invariant: what is given as an equality is one to Spark, whatever the precedences and names; where that is not
certain, it is not given. Source: soundness A14.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate.plain import is_certain_name
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.text import SqlText, sql_text

_EQUALITIES = {"=": False, "==": False, "<=>": True}
_COMPARISONS = frozenset({*_EQUALITIES, "<>", "!=", "<", "<=", ">", ">=", "!", "->", "=>"})
# Words that bind as loosely as a comparison, or more: beside one of these, what stands next to `=` is not its operand.
_LOOSE_WORDS = frozenset({"and", "or", "not", "is", "in", "between", "like", "ilike", "rlike", "regexp", "exists"})
# Words that open and close as parentheses do; a bare column of one of these names cannot be distinguished from them.
_CASES = {"case": 1, "end": -1}
_OPENING, _CLOSING = frozenset("(["), frozenset(")]")
_OPEN, _CLOSE, _DOT = Token("symbol", "("), Token("symbol", ")"), Token("symbol", ".")

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Equality:
    """`column = sql` or, null-safe, `column <=> sql`: a column of the target, and the SQL on the other side."""

    column: str
    sql: str
    null_safe: bool


def scoping_equalities(
    on: str,
    *,
    target_alias: str,
    columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality]:
    """The conjuncts of a condition that compare one of `columns`, bare, for equality; with what, Spark judges.

    Empty where the text or a name in it may mean something else.
    """
    found = conjuncts_as_equalities(
        on,
        target_alias=target_alias,
        columns=columns,
        target_columns=target_columns,
        source_columns=source_columns,
    )
    return [equality for equality in found if equality is not None]


def conjuncts_as_equalities(
    on: str,
    *,
    target_alias: str,
    columns: Collection[str],
    target_columns: Collection[str],
    source_columns: Collection[str],
) -> list[Equality | None]:
    """All conjuncts of a condition in their order, None for one that is no such equality of one of `columns`.

    Empty where the text or a name in it may mean something else.
    """
    others = {name.lower() for name in source_columns}
    every = others | {name.lower() for name in target_columns}
    lexed = sql_text(on)
    if lexed.problem is not None:
        return []
    # Spark takes no text that ends in a backslash.
    if target_alias.lower() in every or on.endswith("\\") or not _is_nested_plainly(lexed, every):
        return []
    named = {name.lower(): name for name in columns}

    def target_column(span: Span) -> str | None:
        tokens = lexed.tokens[slice(*span)]
        if not tokens or not is_certain_name(tokens[0]) or tokens[-1].kind not in ("word", "name"):
            return None
        if len(tokens) == 3 and tokens[1] == _DOT and tokens[0].text.lower() == target_alias.lower():
            return named.get(tokens[2].text.lower())
        if len(tokens) == 1 and tokens[0].text.lower() not in others:
            return named.get(tokens[0].text.lower())
        return None

    return [_equality(lexed, conjunct, target_column, on) for conjunct in _conjuncts(lexed, (0, len(lexed.tokens)))]


def _conjuncts(lexed: SqlText, span: Span) -> Iterator[Span]:
    """The conjuncts of a condition, those within parentheses too; what an OR stands in is one."""
    parts, has_or = _split(lexed, span)
    if has_or:
        yield span
        return
    for part in parts:
        inner = _within_parentheses(lexed, part)
        if inner is None:
            yield part
        else:
            yield from _conjuncts(lexed, inner)


def _split(lexed: SqlText, span: Span) -> tuple[list[Span], bool]:
    """The text cut at each AND that joins conditions, and whether an OR does."""
    parts = []
    start, betweens = span[0], 0
    for index, word in _loose_words(lexed, span):
        if word == "or":
            return [], True
        if word == "between":
            betweens += 1
        elif word == "and" and betweens:
            betweens -= 1
        elif word == "and":
            parts.append((start, index))
            start = index + 1
    return [*parts, (start, span[1])], False


def _is_nested_plainly(lexed: SqlText, columns: Collection[str]) -> bool:
    """Every parenthesis and every CASE closes, and no column has the name of either end of a CASE."""
    depth = 0
    for index in range(len(lexed.tokens)):
        depth += _nesting(lexed, index)
        if depth < 0:
            return False
    return depth == 0 and not set(_CASES) & set(columns)


def _nesting(lexed: SqlText, index: int) -> int:
    """1 for a token that opens, -1 for one that closes, else 0."""
    token = lexed.tokens[index]
    if token.kind == "symbol":
        return (token.text in _OPENING) - (token.text in _CLOSING)
    return _CASES.get(token.text.lower(), 0) if token.kind == "word" and not _is_member(lexed, index) else 0


def _is_member(lexed: SqlText, index: int) -> bool:
    """After a dot, a word is a name and nothing else."""
    return index > 0 and lexed.tokens[index - 1] == _DOT


def _loose_words(lexed: SqlText, span: Span) -> Iterator[tuple[int, str]]:
    """The words of `_LOOSE_WORDS` and the comparisons outside of every parenthesis and CASE, with their places."""
    depth = 0
    for index in range(*span):
        token = lexed.tokens[index]
        depth += _nesting(lexed, index)
        if depth == 0 and token.kind == "symbol" and token.text in _COMPARISONS:
            yield index, token.text
        elif depth == 0 and token.kind == "word" and not _is_member(lexed, index):
            word = token.text.lower()
            if word in _LOOSE_WORDS:
                yield index, word


def _within_parentheses(lexed: SqlText, span: Span) -> Span | None:
    """What one pair of parentheses around the whole text holds, or None."""
    first, end = span
    if end - first < 3 or lexed.tokens[first] != _OPEN:
        return None
    depth = 0
    for index in range(first, end):
        token = lexed.tokens[index]
        depth += (token == _OPEN) - (token == _CLOSE)
        if depth == 0:
            return (first + 1, end - 1) if index == end - 1 else None
    return None


def _equality(lexed: SqlText, span: Span, column_of: Callable[[Span], str | None], on: str) -> Equality | None:
    loose = list(_loose_words(lexed, span))
    if len(loose) != 1 or loose[0][1] not in _EQUALITIES:
        return None
    ((at, operator),) = loose
    sides = ((span[0], at), (at + 1, span[1]))
    for one, other in (sides, sides[::-1]):
        column = column_of(one)
        if column is not None and other[0] < other[1]:
            sql = on[lexed.spans[other[0]][0] : lexed.spans[other[1] - 1][1]]
            return Equality(column=column, sql=sql, null_safe=_EQUALITIES[operator])
    return None
