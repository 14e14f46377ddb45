"""Mistakes that the tokens of an SQL text show by themselves, before there is a table or a Spark to ask.

A job refuses such a text at once, and an operator when its DAG is parsed. The invariant: only a text that Spark is
certain to refuse is refused here: a word that may be a keyword is taken for one, and where brackets may hold aliases or
types nothing is said of what is in them.
Source: Spark 4.2, SqlBaseLexer.g4 and SqlBaseParser.g4; tests/jobs/sql/test_certain_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from airflow_txlog.sql.keywords import KEYWORDS
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import sql_text

_OPENS, _CLOSES = {"(": ")", "[": "]"}, {")": "(", "]": "["}
# Between two operands; neither a sign, a star nor part of a type may be one of these.
_BETWEEN = frozenset(("=", "==", "!=", "<=", ">=", "<=>", "||", "%", "/", "&", "^"))
_NEEDS_MORE = _BETWEEN | {"+", "-", "~", "!", "<", "."}
_CONNECTING = frozenset(("and", "or"))
_TESTING = _CONNECTING | {"like", "ilike", "rlike", "regexp", "in", "is", "between", "div", "not"}
_BEFORE_GROUPS = _CONNECTING | {"not", "when", "then", "else"}
_BEFORE_NAMES = _CONNECTING | {"when", "then", "else", "case"}
# Types whose literals are a word and a text.
_TYPES_OF_LITERALS = frozenset(
    ("binary", "date", "interval", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "x")
)
_QUERIES = frozenset(("select", "values", "table", "with"))
# After any other word a colon may part a column from its member.
_BEFORE_VALUES = frozenset(
    ("and", "between", "else", "having", "in", "like", "limit", "not", "on", "or", "rlike", "select", "then", "when")
) | {"where"}
_START, _END = Token("start", ""), Token("end", "")


def why_not_cut(text: str) -> str | None:
    """Return why Spark cannot read the text of a query or an expression, such as a quote without its partner; None
    where it may."""
    cut = sql_text(text)
    if cut.is_refused:
        return None if cut.problem in ("the character ';'", "the character '{'") else f"it has {cut.problem}"
    return _unbalanced(cut.tokens)


def why_no_expression(text: str) -> str | None:
    """Return why the text cannot be one SQL expression, such as `nothing comes after =`; None where it may be one."""
    cut = sql_text(text)
    if cut.is_refused:
        hint = ": leave that out" if cut.problem == "the character ';'" else ""
        return f"it has {cut.problem}{hint}"
    if cut.problem is not None:
        return None
    if not cut.tokens:
        return "it is empty"
    return _unbalanced(cut.tokens) or _misplaced(cut.tokens)


def parameters_of(tokens: Iterable[Token]) -> Iterator[str]:
    """Yield the parameters, but for what may be a member of a column or a type: `raw:price`, `STRUCT<limit: INT>`."""
    earlier, before = _START, Token("symbol", "(")
    for token in tokens:
        if before.kind == "symbol":
            is_value = before.text not in (")", "]")
        else:
            is_value = before.kind == "word" and before.text.lower() in _BEFORE_VALUES and not _is_name(earlier, before)
        if token.kind == "parameter" and is_value:
            yield token.text
        earlier, before = before, token


def _is_name(before: Token, word: Token) -> bool:
    """Return whether a keyword may name a column or a member, by what is before it."""
    is_prefix = word.text.lower() in ("not", "select", "when")
    if before.kind == "symbol":
        return before.text in ("<", ",", ".") or not (is_prefix or before in (_CLOSE, _END_OF_LIST))
    return before.kind == "word" and not is_prefix and before.text.lower() in _BEFORE_NAMES


def is_operand(token: Token) -> bool:
    """Return whether the token certainly ends an operand."""
    if token.kind == "word":
        return token.text.lower() not in KEYWORDS
    return token.kind in ("name", "string", "number", "parameter") or token in (_CLOSE, _END_OF_LIST)


_CLOSE, _END_OF_LIST = Token("symbol", ")"), Token("symbol", "]")


def _unbalanced(tokens: Sequence[Token]) -> str | None:
    open_ones: list[str] = []
    for token in tokens:
        if token.kind != "symbol":
            continue
        if token.text in _OPENS:
            open_ones.append(token.text)
        elif token.text in _CLOSES and (not open_ones or open_ones.pop() != _CLOSES[token.text]):
            return f"it has a {token.text} without its {_CLOSES[token.text]}"
    return f"it has a {open_ones[-1]} without its {_OPENS[open_ones[-1]]}" if open_ones else None


def _misplaced(tokens: Sequence[Token]) -> str | None:
    """The first place where no expression can go on as this text does."""
    words = [token.text.lower() if token.kind == "word" else "" for token in tokens]
    if _QUERIES & set(words):
        return None
    if words[0] == "where" and (_is_free(tokens, 1) or (tokens[1:2] and tokens[1].kind in ("number", "string"))):
        return "it begins with WHERE: leave that out"
    are_expressions = _in_groups(tokens, words)
    if _has_comma([Token("symbol", "("), *tokens], 0) and Token("symbol", "<") not in tokens:
        return "it has a comma outside of brackets"
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else _START
        after = tokens[at + 1] if at + 1 < len(tokens) else _END
        wrong = _wrong_symbol(before, token, after, words)
        if wrong is None and are_expressions[at]:
            wrong = _wrong_word(before, token, after) or (
                _wrong_neighbours(token, after) if after is not _END else None
            )
        if wrong is not None:
            return wrong
    return None


def _is_free(tokens: Sequence[Token], at: int) -> bool:
    """Whether a name is there that is no keyword."""
    return at < len(tokens) and tokens[at].kind in ("word", "name") and is_operand(tokens[at])


def _wrong_symbol(before: Token, token: Token, after: Token, words: Sequence[str]) -> str | None:
    """An operator without what it works on: in brackets of any kind too."""
    if token.kind != "symbol":
        return None
    ends = after is _END or (after.kind == "symbol" and after.text in (")", "]", ","))
    if token.text in _BETWEEN:
        begins = before is _START or (before.kind == "symbol" and before.text in ("(", "[", ",", *_BETWEEN))
        if begins:
            return (
                f"nothing comes before {token.text}"
                if before is _START
                else f"{before.text} is followed by {token.text}"
            )
    if token.text in _NEEDS_MORE and ends:
        return f"nothing comes after {token.text}" if after is _END else _followed(token, after)
    # The end of a type, otherwise, as in `x::ARRAY<INT>`.
    if token.text == ">" and after is _END and not words_of_types(words):
        return "nothing comes after >"
    return None


def _followed(token: Token, after: Token) -> str:
    return f"{token.text} is followed by {after.text}"


def words_of_types(words: Iterable[str]) -> bool:
    """Whether a text may hold a type with members, in which `<` and `>` are brackets."""
    return bool({"array", "map", "struct"} & set(words))


def _wrong_word(before: Token, token: Token, after: Token) -> str | None:
    """AND, LIKE and the like, where they can only connect two operands, and one of these is not there."""
    word = token.text.lower() if token.kind == "word" else ""
    if word not in _TESTING or not is_operand(before):
        return None
    if after is _END or (after.kind == "symbol" and after.text in (")", "]", ",")):
        return f"nothing comes after {token.text}"
    if word in _CONNECTING and after.kind == "symbol" and after.text in _BETWEEN:
        return _followed(token, after)
    return None


def _wrong_neighbours(token: Token, after: Token) -> str | None:
    """Two operands with nothing between them."""
    if not (is_operand(token) and is_operand(after)) or after.kind in ("parameter", "symbol"):
        return None
    if after.kind == "string" and (
        token.kind == "string" or (token.kind == "word" and token.text.lower() in _TYPES_OF_LITERALS)
    ):
        return None
    shown = "a text" if after.kind == "string" else after.text
    return f"an operator such as AND is missing before {shown}"


def _in_groups(tokens: Sequence[Token], words: Sequence[str]) -> list[bool]:
    """For each token whether it is in no brackets but those that group: such hold one expression, and neither an alias
    nor a type."""
    found: list[bool] = []
    levels = [True]
    for at, token in enumerate(tokens):
        is_symbol = token.kind == "symbol"
        if is_symbol and token.text in _CLOSES:
            levels.pop()
        found.append(levels[-1])
        if is_symbol and token.text in _OPENS:
            before = tokens[at - 1] if at else _START
            is_group = before is _START or (
                before.text in ("(", *_BETWEEN) if before.kind == "symbol" else words[at - 1] in _BEFORE_GROUPS
            )
            levels.append(levels[-1] and token.text == "(" and is_group and not _has_comma(tokens, at))
    return found


def _has_comma(tokens: Sequence[Token], opened: int) -> bool:
    """Whether the bracket that opens there holds a comma outside of further ones."""
    depth = 0
    for token in tokens[opened:]:
        if token.kind == "symbol":
            depth += (token.text in _OPENS) - (token.text in _CLOSES)
            if token.text == "," and depth == 1:
                return True
            if depth == 0:
                break
    return False
