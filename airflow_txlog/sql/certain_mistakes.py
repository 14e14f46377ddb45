"""Mistakes that the tokens of an SQL text show without a table or a Spark session.

A job refuses such a text at once, and an operator refuses it when its DAG is parsed. The invariant: only a text that
Spark is certain to refuse is refused here, and a column that is compared with itself. A word that may be a keyword
counts as one, and brackets that may hold aliases or types are not examined.
Source: Spark 4.2, SqlBaseLexer.g4 and SqlBaseParser.g4; tests/jobs/sql/test_certain_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_txlog.errors.names import did_you_mean
from airflow_txlog.sql.lexer import CLOSE, DOT, KEYWORDS, OPEN, OUTSIDE, Token, neighbours
from airflow_txlog.sql.sql_text import sql_text

# Between two operands; neither a sign, a star nor part of a type may be one of these.
_BETWEEN = frozenset(("=", "==", "!=", "<=", ">=", "<=>", "||", "%", "/", "&", "^"))
_NEEDS_MORE = _BETWEEN | {"+", "-", "~", "!", "<", "."}
_ENDS = (")", "]", ",")
# The operators of other languages.
_INSTEAD = {"&&": ": write AND", "===": ": write ="}
_CONNECTING = frozenset(("and", "or"))
_TESTING = _CONNECTING | {"like", "ilike", "rlike", "regexp", "in", "is", "between", "div", "not"}
_BEFORE_GROUPS = _CONNECTING | {"not", "when", "then", "else"}
_BEFORE_NAMES = _CONNECTING | {"when", "then", "else", "case"}
# Types whose literals are a word and a text.
_TYPES_OF_LITERALS = frozenset(
    ("binary", "date", "interval", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "x")
)
# In types with members `<` and `>` are brackets.
_WITH_MEMBERS = frozenset(("array", "map", "struct"))
_QUERIES = frozenset(("select", "values", "table", "with"))
# After any other word a colon may separate a column from its member.
_BEFORE_VALUES = frozenset(
    ("and", "between", "else", "having", "in", "like", "limit", "not", "on", "or", "rlike", "select", "then", "when")
) | {"where"}


# Source: Spark 4.2, SqlBaseParser.g4 (`type`).
_TYPES = (
    *("ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT"),
    *("GEOGRAPHY", "GEOMETRY", "INT", "INTEGER", "INTERVAL", "LONG", "MAP", "NUMERIC", "REAL", "SHORT", "SMALLINT"),
    *("STRING", "STRUCT", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT"),
    "VOID",
)


def wrong_type(columns: str) -> str | None:
    """Return what is wrong with the first type in `id BIGINT, day DATE` that Spark does not know; None without one."""
    cut = sql_text(columns)
    if cut.tokens and cut.tokens[0].text.upper() in _TYPES and not any(token.symbol == "," for token in cut.tokens):
        # One type of several words, such as INTERVAL DAY TO SECOND.
        return None
    depth = 0
    for before, name, kind in () if cut.problem is not None else neighbours(cut.tokens):
        is_column = depth == 0 and (before is OUTSIDE or before.symbol == ",") and name.is_name
        if is_column and kind.kind == "word" and kind.text.upper() not in _TYPES:
            near = did_you_mean(kind.text, _TYPES) or f" The types are {', '.join(_TYPES)}."
            return f"{kind.text} is no type.{near}"
        depth += (name.symbol in ("(", "<")) - (name.symbol in (")", ">"))
    return None


def compared_with_itself(text: str, aliases: tuple[str, str]) -> str | None:
    """Return what is wrong with a comparison such as `t.id = t.id` of one of two aliases; None without one.

    Spark would evaluate it: it is true for every row that has a value there.
    """
    around = [OUTSIDE, *sql_text(text).tokens, OUTSIDE]
    others = {alias.lower(): other for alias, other in zip(aliases, reversed(aliases), strict=True)}
    groups: list[bool] = []
    for at in range(len(around) - 8):
        before, alias, dot, column, equals, *right, after = around[at : at + 9]
        if before == OPEN:
            # Only in brackets of the condition itself: in NOT (…) or f(…) it may be meant.
            outer = around[at - 1]
            groups.append(outer in (OUTSIDE, OPEN) or outer.word in _CONNECTING)
        elif before == CLOSE and groups:
            groups.pop()
        is_equality = equals.symbol in ("=", "==", "<=>") and dot == DOT == right[1]
        is_whole = before in (OUTSIDE, OPEN) or before.word in _CONNECTING
        is_whole = is_whole and (after in (OUTSIDE, CLOSE) or after.word in _CONNECTING)
        is_same = [each.text.lower() for each in (alias, dot, column)] == [each.text.lower() for each in right]
        is_mistake = is_equality and is_whole and is_same and all(groups)
        if is_mistake and column.is_name and alias.text.lower() in others:
            name, other = f"{alias.text}.{column.text}", others[alias.text.lower()]
            return (
                f"compares {name} with itself. Did you mean {other}.{column.text} on one side? For rows with a value "
                f"there, write {name} IS NOT NULL"
            )
    return None


def why_not_cut(text: str) -> str | None:
    """Return why Spark cannot read the text of a query or an expression, such as a quote without its partner."""
    cut = sql_text(text)
    if cut.is_refused:
        return None if cut.problem in ("the character ';'", "the character '{'") else f"it has {cut.problem}"
    return cut.unbalanced()


def why_no_expression(text: str) -> str | None:
    """Return why the text cannot be one SQL expression, such as `nothing comes after =`; None if it may be one."""
    cut = sql_text(text)
    if cut.is_refused:
        hint = ": leave that out" if cut.problem == "the character ';'" else ""
        return f"it has {cut.problem}{hint}"
    if cut.problem is not None:
        return None
    if not cut.tokens:
        return "it is empty"
    return cut.unbalanced() or _misplaced(cut.tokens)


def parameters_of(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the parameters, except what may be a member of a column or a type: `raw:price`, `STRUCT<limit: INT>`."""
    earlier = OUTSIDE
    for before, token, _ in neighbours(tokens):
        if before.kind == "symbol":
            is_value = before.text not in (")", "]")
        else:
            is_value = before is OUTSIDE or (before.word in _BEFORE_VALUES and not _is_name(earlier, before))
        if token.kind == "parameter" and is_value:
            yield token.text
        earlier = before


def _is_name(before: Token, word: Token) -> bool:
    is_prefix = word.word in ("not", "select", "when")
    if before.kind == "symbol" or before is OUTSIDE:
        return before.symbol in ("<", ",", ".") or not (is_prefix or before.symbol in (")", "]"))
    return before.word in _BEFORE_NAMES and not is_prefix


def is_operand(token: Token) -> bool:
    """Return whether the token certainly ends an operand."""
    if token.kind == "word":
        return token.word not in KEYWORDS
    return token.kind in ("name", "string", "number", "parameter") or token.symbol in (")", "]")


def _misplaced(tokens: Sequence[Token]) -> str | None:
    words = {token.word for token in tokens}
    if _QUERIES & words:
        return None
    second = tokens[1] if len(tokens) > 1 else OUTSIDE
    if tokens[0].word == "where" and (second.kind in ("number", "string") or (second.is_name and is_operand(second))):
        return "it begins with WHERE: leave that out"
    if _has_comma([OPEN, *tokens], 0) and all(token.symbol != "<" for token in tokens):
        return "it has a comma outside of brackets"
    has_types = bool(_WITH_MEMBERS & words)
    for (before, token, after), is_expression in zip(neighbours(tokens), _in_groups(tokens), strict=True):
        wrong = _wrong_symbol(before, token, after, has_types=has_types)
        if wrong is None and is_expression:
            wrong = _wrong_word(before, token, after) or _wrong_neighbours(token, after)
        if wrong is not None:
            return wrong
    return None


def _wrong_symbol(before: Token, token: Token, after: Token, *, has_types: bool) -> str | None:
    """Return what is wrong with an operator without its operands, in brackets of any kind too."""
    if token.symbol in _BETWEEN:
        if before is OUTSIDE:
            return f"nothing comes before {token.text}"
        if before.symbol in ("(", "[", ",", *_BETWEEN):
            return f"{before.text} is followed by {token.text}{_INSTEAD.get(before.text + token.text, '')}"
    if token.symbol in _NEEDS_MORE and after.symbol in _ENDS:
        return f"{token.text} is followed by {after.text}"
    # The end of a type, otherwise, as in `x::ARRAY<INT>`.
    if after is OUTSIDE and (token.symbol in _NEEDS_MORE or (token.symbol == ">" and not has_types)):
        return f"nothing comes after {token.text}"
    return None


def _wrong_word(before: Token, token: Token, after: Token) -> str | None:
    if token.word not in _TESTING or not is_operand(before):
        return None
    if after is OUTSIDE or after.symbol in _ENDS:
        return f"nothing comes after {token.text}"
    if token.word in _CONNECTING and after.symbol in _BETWEEN:
        return f"{token.text} is followed by {after.text}"
    return None


def _wrong_neighbours(token: Token, after: Token) -> str | None:
    if not (is_operand(token) and is_operand(after)) or after.kind in ("parameter", "symbol"):
        return None
    if after.kind == "string" and (token.kind == "string" or token.word in _TYPES_OF_LITERALS):
        return None
    shown = "a text" if after.kind == "string" else after.text
    return f"an operator such as AND is missing before {shown}"


def _in_groups(tokens: Sequence[Token]) -> Iterator[bool]:
    """Yield for each token whether it is in no brackets except those that group an expression.

    Such brackets hold neither an alias nor a type.
    """
    levels = [True]
    for at, (before, token, _) in enumerate(neighbours(tokens)):
        if token.symbol in (")", "]"):
            levels.pop()
        yield levels[-1]
        if token.symbol in ("(", "["):
            is_group = before is OUTSIDE or before.symbol in ("(", *_BETWEEN) or before.word in _BEFORE_GROUPS
            levels.append(levels[-1] and token == OPEN and is_group and not _has_comma(tokens, at))


def _has_comma(tokens: Sequence[Token], opened: int) -> bool:
    depth = 0
    for token in tokens[opened:]:
        depth += (token.symbol in ("(", "[")) - (token.symbol in (")", "]"))
        if token.symbol == "," and depth == 1:
            return True
        if depth == 0:
            break
    return False
