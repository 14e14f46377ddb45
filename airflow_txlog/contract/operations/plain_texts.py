"""A guess whether an SQL text is plain, from its tokens alone: the types of the columns are not known here.

The job itself decides (`jobs/sql`). A wrong guess starts a process, or a Spark, that was not needed; it changes no
result.
"""

from __future__ import annotations

from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.text import sql_text

_COMPARING = frozenset({"=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>", "(", ")", ",", "."})
_CALCULATING = frozenset({"+", "-", "*"})
# What may stand before a parenthesis and is no function.
_CONNECTING = frozenset({"and", "or", "not", "in", "between"})
_OF_SPARK = frozenset({"case", "like", "ilike", "rlike", "regexp", "exists", "select", "cast"})


def looks_plain(text: str, *, is_value: bool = False) -> bool:
    """Whether a text consists of names, constants and comparisons; with `is_value`, also of `+`, `-` and `*`."""
    cut = sql_text(text)
    if cut.problem is not None:
        return False
    symbols = _COMPARING | _CALCULATING if is_value else _COMPARING
    before: Token | None = None
    for token in cut.tokens:
        word = token.text.lower()
        if token.kind == "symbol" and token.text not in symbols:
            # A sign begins a number, and ends nothing.
            is_sign = token.text == "-" and (before is None or before.kind in ("symbol", "word"))
            if not is_sign:
                return False
        if token.kind == "word" and word in _OF_SPARK:
            return False
        if token == Token("symbol", "(") and before is not None and _is_called(before):
            return False
        before = token
    return True


def _is_called(before: Token) -> bool:
    return before.kind == "name" or (before.kind == "word" and before.text.lower() not in _CONNECTING)
