"""The columns of a job's rows: their names in sources, assignments and texts, and the columns that the table gains.

The invariants: `check_names` refuses only a name that Spark is certain not to find. Spark judges every other text, and
its opaque parts. The table for which rows are staged is the table as the commit leaves it. The engine decides which
schema evolution is allowed. Columns that a rule of the table reads keep their type, and every attempt and try gives new
columns the same physical names, because files that were staged under them are kept. Source: Spark, name resolution
(case-insensitive; alias, then column, then member); tests/jobs/sql/test_certain_mistakes.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from airflow_txlog.contract.operations import (
    AnyClause,
    DeleteClause,
    Merge,
    Operation,
    SourceOperation,
    Update,
    UpdateClause,
)
from airflow_txlog.engine import Snapshot, Transaction
from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.predicate.names import SPECIAL_NAMES, columns_in_text
from airflow_txlog.engine.table.schema.rules import read_rules
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, StructType, bare_columns
from airflow_txlog.errors import ConstraintViolation, InvalidPredicate, SchemaMismatch, UnknownColumn
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.sql.expression import Call, Name, parts_of
from airflow_txlog.sql.lexer import DOT, Token
from airflow_txlog.sql.sql_text import sql_text

Column = TypeVar("Column")

_NO_SUCH_COLUMN = "the table has no such column"
_SPARKS_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}

# Words that are expressions, or begin one: they cannot mean a column.
_CONSTANTS = frozenset(("default", "end", "all", "any", "some", "distinct"))


def check_names_are_free(names: Sequence[str], what: str) -> None:
    """Raise SchemaMismatch for a column with a reserved name."""
    taken = [name for name in names if name.lower().startswith(("_txlog_", "__txlog_"))]
    if taken:
        raise SchemaMismatch(
            f"{what} has columns {taken}; names that begin with _txlog_ or __txlog_ are used by the job itself. Rename "
            "them.",
            columns=taken,
        )


def check_source_names(names: Sequence[str]) -> None:
    """Raise SchemaMismatch for names of a source's columns that our files cannot have."""
    check_distinct(names)
    check_names_are_free(names, "The source")


def check_distinct(names: Sequence[str]) -> None:
    """Raise SchemaMismatch for two columns of a source whose names differ at most in case."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaMismatch(
                f"The source has two columns named {name!r} (case does not count). Give one another name. Nothing was "
                "staged.",
                columns=[name],
            )
        seen.add(name.lower())


def rows_do_not_fit(
    problems: Sequence[str],
    source: Sequence[tuple[str, str]],
    table: Sequence[tuple[str, str]],
    table_uri: str,
    where: str = 'in SQL, such as source=query("SELECT … FROM raw", raw=files(…))',
) -> SchemaMismatch:
    """Return the error that names every column that does not fit, and shows both sides, each with names and types.

    `where`: the place in which the author converts columns.
    """
    have = {name.lower(): (name, kind) for name, kind in source}
    lines = [("column", "table", "source")]
    for name, kind in table:
        other = have.pop(name.lower(), None)
        lines.append((name, kind, "-" if other is None else other[1]))
    lines += [(name, "-", kind) for name, kind in have.values()]
    widths = [max(len(line[index]) for line in lines) for index in range(3)]
    shown = (
        "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    is_new = any(problem.endswith(_NO_SUCH_COLUMN) for problem in problems)
    added = '. schema_evolution=True (in an increment: on_schema_change="append_new_columns") adds new columns'
    added = added if is_new else ""
    return SchemaMismatch(
        # The first line is all that a retry policy logs: it names the columns.
        f"The rows do not fit the table {table_uri}: " + "; ".join(problems) + added + "\n" + "\n".join(shown) + "\n"
        f"Cast, rename or leave out columns {where}. Nothing was staged.",
        table=table_uri,
        columns=[problem.split(":", 1)[0] for problem in problems],
    )


def no_such_column(name: str) -> str:
    """Return the problem of a column of the source that the table lacks, for `rows_do_not_fit`."""
    return f"{name}: {_NO_SUCH_COLUMN}"


def shown_type(kind: DataType) -> str:
    """Return a type as Spark spells it, such as `array<bigint>`: so an error spells it whatever did the work."""
    match kind:
        case StructType():
            return f"struct<{','.join(f'{member.name}:{shown_type(member.type)}' for member in kind)}>"
        case ArrayType():
            return f"array<{shown_type(kind.element)}>"
        case MapType():
            return f"map<{shown_type(kind.key)},{shown_type(kind.value)}>"
    return _SPARKS_NAMES.get(str(kind), str(kind))


def without_not_null_column(table_uri: str, column: str) -> ConstraintViolation:
    """Return the error for rows that lack a column that is NOT NULL."""
    return ConstraintViolation(
        f"{table_uri}: column {column!r} is NOT NULL, and the source has no such column. Nothing was staged.",
        constraint="NOT NULL",
        column=column,
    )


def check_has_columns(argument: str, wanted: Sequence[str], known: Sequence[str], owner: str) -> None:
    """Raise UnknownColumn for a column that an argument names and the owner of the `known` ones does not have."""
    have = {name.lower() for name in known}
    for name in wanted:
        if name.lower() not in have:
            raise missing_column(
                f"{owner} has no column {name!r}, which {argument} names", name, known, "Nothing was changed."
            )


def check_fits_by_name(given: StructType, table: StructType, fills: Collection[str], table_uri: str) -> None:
    """Raise SchemaMismatch for columns that the table lacks; ConstraintViolation if new rows lack one that is NOT NULL.

    `fills`: the columns to which the table itself gives a value.
    """
    for column in table:
        if not column.nullable and given.find(column.name) is None and column.name not in fills:
            raise without_not_null_column(table_uri, column.name)
    problems = [no_such_column(each.name) for each in given if table.find(each.name) is None]
    if problems:
        raise rows_do_not_fit(problems, shown_types(given), shown_types(table), table_uri)


def shown_types(columns: StructType) -> list[tuple[str, str]]:
    """Return the columns and their types as errors show them."""
    return [(each.name, f"{shown_type(each.type)}{'' if each.nullable else ' not null'}") for each in columns]


def assigned_column(name: str, columns: Mapping[str, Column], alias: str) -> Column | None:
    """Return the column of a table that an assignment names, bare or after the table's alias.

    `columns` are the table's by their names in lower case.
    """
    return next((columns[each] for each in _assigned_names(name, alias) if each in columns), None)


def _assigned_names(name: str, alias: str) -> tuple[str, ...]:
    """Return the names, in lower case, that an assignment to `name` may mean, the likeliest first."""
    text, prefix = name.strip().lower(), alias.lower() + "."
    return _unquoted(text), *([_unquoted(text.removeprefix(prefix))] if text.startswith(prefix) else [])


def _unquoted(name: str) -> str:
    is_quoted = len(name) > 1 and name[0] == name[-1] == "`"
    return name[1:-1].replace("``", "`") if is_quoted else name


def unassignable(name: str, columns: Sequence[str], table_uri: str) -> UnknownColumn:
    """Return the error for an assignment to a column that the table does not have."""
    return missing_column(
        f"A new value is assigned to {name!r}, a column that {table_uri} does not have", name, columns
    )


def missing_column(what: str, name: str, columns: Sequence[str], end: str = "Nothing was read.") -> UnknownColumn:
    """Return the error for an argument that names none of the columns.

    `what`: the rows that lack the column and the argument that names it, as a sentence without its end.
    """
    return UnknownColumn(
        f"{what}.{did_you_mean(name, columns)} The columns are: {shown_names(columns)}. {end}",
        column=name,
        columns=list(columns),
    )


@dataclass(frozen=True, kw_only=True)
class NamedRows:
    """Rows whose columns a text may name.

    `alias` may come before the names; with None, nothing may. If only Spark knows the columns, `columns` is None, and
    `lacks` returns whether no struct among them has a name. `whose`: "the table" or "the source".
    """

    alias: str | None
    columns: StructType | None
    whose: str = "the table"
    lacks: Callable[[str], bool] = lambda name: False


def check_names(text: str, sides: Sequence[NamedRows], note: str = "") -> None:
    """Check the names in an expression over these rows. `note` is for the end of an error's message.

    Raises UnknownColumn for a name that no side has, and InvalidPredicate for one that two have.
    """
    expression = sql_text(text).expression
    for part in () if expression is None else parts_of(expression):
        match part:
            # Spark also knows a clock or a user by its name in backquotes.
            case Name((first, *_)) if first.text.lower() not in SPECIAL_NAMES and first.word not in _CONSTANTS:
                _check_name(text, [token.text for token in part.parts], False, sides, note)
            case Call(operator) if part.is_function and "." in operator:
                _check_name(text, operator.removesuffix("()").split("."), True, sides, note)


def _check_name(text: str, parts: Sequence[str], is_call: bool, sides: Sequence[NamedRows], note: str) -> None:
    first = parts[0].lower()
    by_name = [side for side in sides if side.columns is None or side.columns.find(first) is not None]
    aliased = [side for side in sides if side.alias is not None and side.alias.lower() == first]
    if len(parts) > 1 and aliased:
        side = aliased[0]
        # A column with the alias's name may be a struct, and a dotted call a function of a schema.
        may_be_struct = any(other.columns is not None or not other.lacks(first) for other in by_name)
        if not (may_be_struct or is_call or side.columns is None) and side.columns.find(parts[1]) is None:
            raise _unknown_column(text, f"{parts[0]}.{parts[1]}", [side], note)
        return
    if is_call:
        return
    if len(parts) > 1 and all(side.columns is None and side.lacks(first) for side in by_name):
        named = [(side.whose, side.columns.names) for side in sides if side.columns is not None]
        raise unknown_alias(text, ".".join(parts), named, note)
    if not by_name:
        raise _unknown_column(text, ".".join(parts), sides, note)
    if len(parts) == 1 and len(by_name) > 1 and all(side.columns is not None for side in by_name):
        owners = " and ".join(side.whose for side in by_name)
        raise InvalidPredicate(
            f"The text {text!r} names {parts[0]!r}, which both {owners} have.{note} Nothing was read.", predicate=text
        )
    if len(by_name) == 1 and len(parts) > 1 and by_name[0].columns is not None:
        _check_member(text, parts, by_name[0].columns, note)


def _unknown_column(text: str, name: str, sides: Sequence[NamedRows], note: str) -> UnknownColumn:
    known = [column for side in sides for column in (() if side.columns is None else side.columns.names)]
    owners = [side.whose for side in sides]
    lacking = f"{owners[0]} does not have" if len(owners) == 1 else f"neither {' nor '.join(owners)} has"
    listed = columns_by_side([(side.whose, side.columns.names) for side in sides if side.columns is not None])
    return UnknownColumn(
        f"The text {text!r} names {name!r}, which {lacking}.{did_you_mean(name.rpartition('.')[2], known)}{note}"
        f"{listed} Nothing was read.",
        predicate=text,
        column=name,
        columns=list(dict.fromkeys(known)),
    )


def unknown_alias(text: str, name: str, sides: Sequence[tuple[str, Sequence[str]]], note: str) -> UnknownColumn:
    """Return the error for a name such as `target.id`, where neither rows nor a column are called `target`.

    `sides`: the names of columns by their owner: "the table" or "the source". `note` gives the names of the rows.
    """
    alias, _, column = name.partition(".")
    return UnknownColumn(
        f"The text {text!r} names {name!r}, and no column and no rows that it sees are called {alias!r}."
        f"{note or f' Write the column without an alias: {column}.'}{columns_by_side(sides)} Nothing was read.",
        predicate=text,
        column=name,
        columns=list(dict.fromkeys(each for _, names in sides for each in names)),
    )


def columns_by_side(sides: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return the names of columns by their owner, for the end of a message; empty without any."""
    listed = (
        f"{'those' if at else 'The columns'} of {whose} are: {shown_names(names)}"
        for at, (whose, names) in enumerate(sides)
    )
    return f" {'; '.join(listed)}." if sides else ""


def _check_member(text: str, parts: Sequence[str], columns: StructType, note: str) -> None:
    """Raise UnknownColumn for a member that a struct does not have. Only Spark knows the members of other types."""
    found = columns.find(parts[0])
    for depth, part in enumerate(parts[1:], 1):
        inside = None if found is None else found.type
        if not isinstance(inside, StructType):
            return
        found = inside.find(part)
        if found is None:
            raise UnknownColumn(
                f"The text {text!r} names {part!r}, which the struct {'.'.join(parts[:depth])} does not have."
                f"{did_you_mean(part, inside.names)}{note} Its members are: {shown_names(inside.names)}. Nothing was "
                "read.",
                predicate=text,
                column=".".join(parts),
                columns=list(columns.names),
            )


def aliases_of(operation: Operation) -> str:
    """Return the names of an operation's rows in its texts, for the end of a message; empty if they have none."""
    if isinstance(operation, Merge):
        target, source = operation.target_alias, operation.source_alias
        return (
            f" In a MERGE the table is called {target} and the source {source}: write {target}.name or {source}.name "
            "(target_alias and source_alias set these names)."
        )
    if isinstance(operation, Update):
        return f" In an UPDATE the table is called {operation.target_alias}. target_alias sets this name."
    return ""


def rows_called(operation: Operation) -> dict[str, str]:
    """Return the owner of an operation's rows by the name of these rows in its texts."""
    if isinstance(operation, Merge):
        return {operation.target_alias: "the table", operation.source_alias: "the source"}
    return {operation.target_alias: "the table"} if isinstance(operation, Update) else {}


def columns_named(sql: str, schema: StructType, other_alias: str = "") -> frozenset[str]:
    """Return the schema's columns that the text can mean, or more: all if a star or IDENTIFIER() may hide some.

    Every name that Spark resolves occurs in the text as a word. A name after `other_alias.` is another relation's,
    unless the schema itself has a column of the alias's name.
    """
    lexed = sql_text(sql)
    if other_alias and schema.find(other_alias) is None:
        lexed = replace(lexed, tokens=_without_members_of(other_alias, lexed.tokens))
    named = None if lexed.problem is not None else columns_in_text(schema, lexed)
    return frozenset(schema.names) if named is None else named


def _without_members_of(alias: str, tokens: Sequence[Token]) -> list[Token]:
    kept: list[Token] = []
    at = 0
    while at < len(tokens):
        here = tokens[at : at + 3]
        is_member = len(here) == 3 and here[1] == DOT and here[0].is_name and here[2].is_name
        # A dot before it makes the alias itself a member of something.
        if is_member and here[0].text.lower() == alias.lower() and kept[-1:] != [DOT]:
            at += 3
        else:
            kept.append(tokens[at])
            at += 1
    return kept


SchemaJson: TypeAlias = Mapping[str, Any]
"""The columns of rows: Spark's JSON, which the log uses too."""

_NAMES = uuid.UUID("0a3c1f6e-54b5-5b0e-8c8e-3d1f2a9b7c64")


def evolved_metadata(context: JobContext, tx: Transaction, rows: SchemaJson) -> Metadata:
    """Return the table's metadata as the transaction leaves it, so that rows with these columns can be stored.

    Without the job's `schema_evolution` it stays. Raises SchemaMismatch, UnsupportedFeature.
    """
    assert tx.snapshot is not None
    if not context.record(SourceOperation).schema_evolution:
        return tx.snapshot.metadata
    check_source_names([field["name"] for field in rows["fields"]])
    schema = bare_columns(parse_schema(json.dumps(rows)))
    fixed = _columns_of_rules(tx.snapshot)
    evolution = tx.evolve_schema(schema, fixed=fixed, new_name=lambda number: _name(context, number))
    if evolution.added:
        context.log(f"the table gets the columns {', '.join(evolution.added)}")
    if evolution.widened:
        context.log(f"the table's types are widened: {', '.join(evolution.widened)}")
    assert tx.metadata is not None
    return tx.metadata


def evolved_by_source(context: JobContext, tx: Transaction, source: SchemaJson | None) -> Metadata:
    """Do the same as `evolved_metadata` for all columns of the source; None: of the source whose rows are staged."""
    assert tx.snapshot is not None
    if not context.record(SourceOperation).schema_evolution:
        return tx.snapshot.metadata
    if source is not None:
        context.saved_inputs.source_schema = dict(source)
    assert context.saved_inputs.source_schema is not None
    return evolved_metadata(context, tx, context.saved_inputs.source_schema)


def assigned_columns(source: SchemaJson, clauses: Sequence[AnyClause], target_alias: str) -> SchemaJson:
    """Return the source's columns that a MERGE stores under their own name: those that `*` or an assignment names."""
    names: set[str] = set()
    for clause in clauses:
        if isinstance(clause, DeleteClause):
            continue
        assigned = clause.set if isinstance(clause, UpdateClause) else clause.values
        if isinstance(assigned, str):
            return source
        for name in assigned:
            names.update(_assigned_names(name, target_alias))
    return {**source, "fields": [field for field in source["fields"] if field["name"].lower() in names]}


def _columns_of_rules(snapshot: Snapshot) -> frozenset[str]:
    """Return the columns that a rule of the table reads: under another type it might judge them differently."""
    rules = read_rules(snapshot.metadata, snapshot.delta_schema, snapshot.uri)
    texts = [check.sql for check in rules.checks] + list(rules.generated.values())
    found = frozenset(rules.generated) | frozenset(rules.identities)
    return found.union(*(columns_named(text, snapshot.delta_schema) for text in texts))


def _name(context: JobContext, number: int) -> str:
    """Return a physical name that no other column ever had, and that this work gives its column every time."""
    application = context.spec.application
    work = context.job_id if application is None else f"{application.app_id} {application.version}"
    unique = uuid.uuid5(_NAMES, f"{context.root} {work} {number}")
    return f"col-{unique}"
