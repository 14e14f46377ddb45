"""Which names the columns of a source may have, and which column an assignment names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_txlog.contract.operations import Merge, Operation, Update
from airflow_txlog.engine.table.predicate.names import SPECIAL_NAMES, did_you_mean, shown_names
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import InvalidPredicate, SchemaMismatch, UnknownColumn
from airflow_txlog.sql.expression import Call, Expression, Name, parts_of
from airflow_txlog.sql.sql_text import sql_text

Column = TypeVar("Column")


def check_names_are_free(names: Sequence[str], what: str) -> None:
    """Raises SchemaMismatch for a column that bears a name of ours."""
    taken = [name for name in names if name.lower().startswith("_txlog_")]
    if taken:
        raise SchemaMismatch(
            f"{what} has columns {taken}; names that begin with _txlog_ are used by the job itself. Rename them.",
            columns=taken,
        )


def check_distinct(names: Sequence[str], what: str) -> None:
    """Raises SchemaMismatch where two columns differ in nothing but case, or not at all."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaMismatch(
                f"{what} has two columns named {name!r} (case does not count). Give one another name. Nothing was "
                "staged.",
                columns=[name],
            )
        seen.add(name.lower())


def assigned_column(name: str, columns: Mapping[str, Column], alias: str) -> Column | None:
    """Return the column of a table that an assignment names, bare or behind the table's alias; None if it has none.

    `columns` are the table's by their names in lower case.
    """
    bare = name.strip().strip("`").lower()
    prefix = alias.lower() + "."
    if bare in columns:
        return columns[bare]
    return columns.get(bare[len(prefix) :].strip("`")) if bare.startswith(prefix) else None


def unassignable(name: str, columns: Sequence[str], table_uri: str) -> UnknownColumn:
    """The error for an assignment to a column that the table does not have."""
    return missing_column(
        f"A new value is assigned to {name!r}, a column that {table_uri} does not have", name, columns
    )


def missing_column(what: str, name: str, columns: Sequence[str], end: str = "Nothing was read.") -> UnknownColumn:
    """The error for a name of an argument that none of the columns has. `what`: who lacks it and which argument names
    it, as a sentence without its end."""
    return UnknownColumn(
        f"{what}.{did_you_mean(name, columns)} The columns are: {shown_names(columns)}. {end}",
        column=name,
        columns=list(columns),
    )


# Words that are expressions, or begin one: no column may be meant by them.
_CONSTANTS = frozenset(("default", "end", "all", "any", "some", "distinct"))


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
    expression = sql_text(text).expression
    for parts, is_call in () if expression is None else _names(expression):
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


def _names(expression: Expression) -> Iterator[tuple[list[str], bool]]:
    """The parts of each name that can be nothing but a column's, and whether a call follows them."""
    for part in parts_of(expression):
        match part:
            # Of a clock or a user, Spark knows the name in backquotes too.
            case Name((first, *_)) if first.text.lower() not in SPECIAL_NAMES:
                if first.kind == "name" or first.text.lower() not in _CONSTANTS:
                    yield [token.text for token in part.parts], False
            case Call(operator) if part.is_function and "." in operator:
                yield operator.removesuffix("()").split("."), True
