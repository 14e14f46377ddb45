"""Names in the author's texts that no column has, found by the tokens and the columns, without Spark.

A word is taken for a column's name only where it can be nothing else: no keyword, function, alias, type, unit or
variable of a lambda. The invariant: only a name that Spark is certain not to find is refused here; Spark judges every
text that is not.
Source: Spark, name resolution (case-insensitive; alias, then column, then member);
tests/jobs/sql/test_certain_mistakes.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_txlog.contract.operations import Merge, Operation, Update
from airflow_txlog.engine.table.predicate.suggestions import SPECIAL_NAMES, did_you_mean, shown_names
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import InvalidPredicate, UnknownColumn
from airflow_txlog.sql.certain_mistakes import is_operand, words_of_types
from airflow_txlog.sql.keywords import KEYWORDS
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import sql_text

_COMPARISONS = frozenset(("=", "==", "!=", "<>", "<=", ">=", "<=>", "<", ">"))
# Words that are expressions, or begin one: no column may be meant by them.
_CONSTANTS = SPECIAL_NAMES | {"null", "true", "false", "default", "end", "all", "any", "some", "distinct", "case"}
_BEFORE_OPERANDS = frozenset(("and", "or", "not", "when", "then", "else", "between"))
_AFTER_OPERANDS = frozenset(("and", "or", "is", "in", "like", "ilike", "rlike", "between", "then", "else"))
# Keywords that connect or begin what is more than a name.
_CONNECTING = _BEFORE_OPERANDS | _AFTER_OPERANDS | {"exists", "interval", "from", "as", "escape", "div", "regexp", "by"}
# What makes the text more than columns, values and calls.
_LEFT_TO_SPARK = frozenset(("select", "values", "table", "with", "identifier", "over", "window", "group", "match"))
_WITH_UNITS = frozenset(("timestampadd", "timestampdiff", "dateadd", "date_add", "datediff", "date_diff", "timediff"))
_BEFORE_OTHERS = frozenset(("as", "collate", "over", "interval"))
_START, _END = Token("start", ""), Token("end", "")
_OPEN, _DOT = Token("symbol", "("), Token("symbol", ".")


@dataclass(frozen=True, kw_only=True)
class NamedRows:
    """Rows that a text may name columns of.

    `alias` may stand before their names; None: nothing may. `columns` None: only Spark knows them, but
    `lacks` are names in small letters that no struct among them has.
    `whose` rows they are, for people: "the table" or "the source".
    """

    alias: str | None
    columns: StructType | None
    whose: str = "the table"
    lacks: frozenset[str] = frozenset()


def check_names(text: str, sides: Sequence[NamedRows], note: str = "") -> None:
    """Raises UnknownColumn for a name in an expression over these rows that none of them has, and InvalidPredicate for
    one that two of them have. `note`: for the end of the message.
    """
    for parts, is_call in _names(sql_text(text).tokens):
        _check_name(text, parts, is_call, sides, note)


def unknown_column(text: str, name: str, sides: Sequence[NamedRows], note: str = "") -> UnknownColumn:
    """The error for a name in a text that none of the sides has."""
    known = {column: side for side in sides for column in (() if side.columns is None else side.columns.names)}
    wanted = name.rpartition(".")[2] if "." in name else name
    near = did_you_mean(wanted, known)
    owners = [side.whose for side in sides]
    lacking = f"{owners[0]} does not have" if len(owners) == 1 else f"neither {' nor '.join(owners)} has"
    listed = "; ".join(
        f"{'The columns' if side is sides[0] else 'those'} of {side.whose} are: {shown_names(side.columns.names)}"
        for side in sides
        if side.columns is not None
    )
    return UnknownColumn(
        f"The text {text!r} names {name!r}, which {lacking}.{near}{note}"
        f"{f' {listed}.' if listed else ''} Nothing was read.",
        predicate=text,
        column=name,
        columns=list(known),
    )


def aliases_of(operation: Operation) -> str:
    """How the texts of an operation may call its rows, as a sentence for the end of a message; empty for a text that
    has no name for them."""
    if isinstance(operation, Merge):
        target, source = operation.target_alias, operation.source_alias
        return (
            f" In a MERGE the table is called {target} and the source {source}: write {target}.name or {source}.name."
        )
    if isinstance(operation, Update):
        return f" In an UPDATE the table is called {operation.target_alias}."
    return ""


def _check_name(text: str, parts: Sequence[str], is_call: bool, sides: Sequence[NamedRows], note: str) -> None:
    first = parts[0].lower()
    by_name = [side for side in sides if side.columns is None or side.columns.find(first) is not None]
    aliased = [side for side in sides if side.alias is not None and side.alias.lower() == first]
    if len(parts) > 1 and aliased:
        side = aliased[0]
        # A column of the alias's name may be a struct, and a dotted call a function of a schema.
        may_be_struct = any(other.columns is not None or first not in other.lacks for other in by_name)
        if not (may_be_struct or is_call or side.columns is None) and side.columns.find(parts[1]) is None:
            raise unknown_column(text, f"{parts[0]}.{parts[1]}", [side], note)
        return
    if is_call:
        return
    if not by_name:
        raise unknown_column(text, ".".join(parts), sides, note)
    if len(parts) == 1 and len(by_name) > 1 and all(side.columns is not None for side in by_name):
        owners = " and ".join(side.whose for side in by_name)
        raise InvalidPredicate(
            f"The text {text!r} names {parts[0]!r}, which both {owners} have.{note} Nothing was read.", predicate=text
        )
    if len(by_name) == 1 and len(parts) > 1 and by_name[0].columns is not None:
        _check_member(text, parts, by_name[0].columns, note)


def _check_member(text: str, parts: Sequence[str], columns: StructType, note: str) -> None:
    """Raises UnknownColumn for a member that a struct does not have. Of other types only Spark knows the members."""
    above = parts[0]
    found = columns.find(parts[0])
    for part in parts[1:]:
        inside = None if found is None else found.type
        if not isinstance(inside, StructType):
            return
        found = inside.find(part)
        if found is None:
            raise UnknownColumn(
                f"The text {text!r} names {part!r}, which the struct {above} does not have."
                f"{did_you_mean(part, inside.names)}{note} Its members are: {shown_names(inside.names)}. Nothing was "
                "read.",
                predicate=text,
                column=".".join(parts),
                columns=list(columns.names),
            )
        above = f"{above}.{part}"


def _names(tokens: Sequence[Token]) -> Iterator[tuple[list[str], bool]]:
    """The parts of each name that can be nothing but a column's, and whether a call follows them."""
    words = [token.text.lower() if token.kind == "word" else "" for token in tokens]
    if _LEFT_TO_SPARK & set(words) or (words_of_types(words) and Token("symbol", "<") in tokens):
        return
    variables = _variables(tokens)
    for at, token in enumerate(tokens):
        if token.kind not in ("word", "name") or token.text.lower() in variables:
            continue
        before, word_before = (tokens[at - 1], words[at - 1]) if at else (_START, "")
        if before == _DOT or word_before in _BEFORE_OTHERS or _is_taken(before, at, words):
            continue
        end = at + 1
        while tokens[end : end + 1] == [_DOT] and end + 1 < len(tokens) and tokens[end + 1].kind in ("word", "name"):
            end += 2
        after = tokens[end] if end < len(tokens) else _END
        if after.kind == "symbol" and after.text in ("->", "=>", ":", "::", "."):
            # `a.*`, `v:path` and the like: more than a name.
            continue
        is_call = after == _OPEN
        # A function, a literal with its type, or the field of EXTRACT.
        if (
            (is_call and end == at + 1)
            or after.kind in ("string", "number", "parameter")
            or "from" in words[end : end + 1]
        ):
            continue
        # Of a clock or a user, Spark knows the name in backquotes too.
        taken = SPECIAL_NAMES if token.kind == "name" else KEYWORDS | _CONSTANTS
        is_free = token.text.lower() not in taken
        word_after = words[end] if end < len(words) else ""
        if is_free or _is_alone(before, token.text.lower(), word_before, after, word_after):
            yield [part.text for part in tokens[at:end:2]], is_call


def _is_taken(before: Token, at: int, words: Sequence[str]) -> bool:
    """Whether what stands before a name makes it an alias, a member, a part of a type, or a unit of time."""
    if is_operand(before) or (before.kind == "symbol" and before.text in (":", "::")):
        return True
    return before == _OPEN and at > 1 and words[at - 2] in _WITH_UNITS


def _is_alone(before: Token, word: str, word_before: str, after: Token, word_after: str) -> bool:
    """Whether a keyword can only be a column, as it stands where an operand does: `day = 1`, `upper(name)`."""
    begins = before is _START or word_before in _BEFORE_OPERANDS
    ends = after is _END or word_after in _AFTER_OPERANDS
    begins |= before.kind == "symbol" and before.text in ("(", ",", *_COMPARISONS)
    ends |= after.kind == "symbol" and after.text in (")", ",", *_COMPARISONS)
    return begins and ends and word not in _CONSTANTS | _CONNECTING


def _variables(tokens: Sequence[Token]) -> frozenset[str]:
    """The names that lambdas give their arguments, anywhere in the text, in small letters."""
    found: set[str] = set()
    for at, token in enumerate(tokens):
        if token != Token("symbol", "->"):
            continue
        here = at - 1
        if tokens[here : here + 1] == [Token("symbol", ")")]:
            while here >= 0 and tokens[here] != _OPEN:
                here -= 1
        found |= {each.text.lower() for each in tokens[max(here, 0) : at] if each.kind in ("word", "name")}
    return frozenset(found)
