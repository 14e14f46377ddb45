"""Changes of columns at every depth: added, renamed, dropped, widened, commented, made nullable or not.

A column is named by its path: `address.city`, and `items.element.price`, `prices.key` and `prices.value` inside arrays
and maps; backquotes enclose a name with dots. Names are found in any case. The invariants: a column keeps its id and
its physical name, so files that exist stay right without being read; and nothing changes under a constraint, a
generated column or the partitioning that reads it.
Source: protocol, "Column Mapping", "Type Widening"; delta-spark, AlterTableAddColumnsDeltaCommand and its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from airflow_txlog.engine.table.schema.ddl import type_of_ddl
from airflow_txlog.engine.table.schema.evolution import is_widening
from airflow_txlog.engine.table.schema.identities import is_identity
from airflow_txlog.engine.table.schema.rules import DEFAULT_KEY, GENERATION_KEY
from airflow_txlog.engine.table.schema.schema import INTEGERS
from airflow_txlog.engine.table.schema.types import (
    CHAR_VARCHAR_KEY,
    TYPE_CHANGES_KEY,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Path,
    Primitive,
    StructField,
    StructType,
    parse_path,
    parts_of,
    path_text,
)
from airflow_txlog.errors import SchemaMismatch
from airflow_txlog.errors.names import did_you_mean, shown_names
from airflow_txlog.sql.expression import Cast, Literal
from airflow_txlog.sql.lexer import DOT, OUTSIDE, Token
from airflow_txlog.sql.sql_text import sql_text

_COMMENT = "comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumn:
    """A column to add: its type as DDL, its comment, and SQL for its value in later rows that lack it."""

    type: str
    comment: str | None = None
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The uses of the table's columns: partitioning, clustering (paths of physical names), and rules in SQL by the
    words for them."""

    partition_columns: Sequence[str]
    clustering: Collection[Path]
    rules: Mapping[str, str]


def invariant_name(column: str) -> str:
    """Return the name, for people, of the rule `delta.invariants` of a column."""
    return f"the invariant of column {column!r}"


class Columns:
    """The columns of one table while they are changed, step after step."""

    def __init__(self, schema: StructType, uses: Uses, table: str) -> None:
        self.schema = schema
        self.partition_columns = list(uses.partition_columns)
        self._uses = uses
        self._table = table

    # --- steps ------------------------------------------------------------------------------------------------------

    def drop(self, names: Iterable[str]) -> list[Path]:
        """Drop columns and members; return their paths."""
        paths = [self._field_path(name, "dropped") for name in names]
        for path in paths:
            if any(path[: len(other)] == other for other in paths if other is not path):
                self._refuse(path, "be dropped: it is named twice, or is inside another column that is dropped")
            self._check_free(path, "dropped", also_layout=True)
        for path in paths:
            self._in_parent(path, partial(self._without, path))
        partitions = {name.lower() for name in self.partition_columns}
        if all(member.name.lower() in partitions for member in self.schema):
            self._refuse(paths[-1], "be dropped: no data column would be left")
        return paths

    def _without(self, path: Path, parent: StructType) -> StructType:
        kept = tuple(member for member in parent if member.name != path[-1])
        if not kept:
            self._refuse(path, "be dropped: nothing would be left beside it")
        return StructType(kept)

    def rename(self, names: Mapping[str, str]) -> dict[Path, Path]:
        """Rename columns and members, all at once; return the new path of each."""
        paths = {self._field_path(name, "renamed"): new for name, new in names.items()}
        if len(paths) < len(names):
            self._refuse(next(iter(paths)), "be renamed twice")
        for path in paths:
            self._check_free(path, "renamed", also_layout=False)
        self.schema = self._renamed(self.schema, (), paths)
        new_names = {path[0].lower(): new for path, new in paths.items() if len(path) == 1}
        self.partition_columns = [new_names.get(name.lower(), name) for name in self.partition_columns]
        return {path: _renamed_path(path, paths) for path in paths}

    def _renamed(self, kind: Any, path: Path, names: Mapping[Path, str]) -> Any:
        """Return the type with members renamed, at every depth. Raises SchemaMismatch if two have one name then."""
        match kind:
            case StructType():
                members = []
                for member in kind:
                    here = (*path, member.name)
                    inner = self._renamed(member.type, here, names)
                    members.append(replace(member, name=names.get(here, member.name), type=inner))
                return self._struct(members, path)
            case ArrayType():
                return replace(kind, element=self._renamed(kind.element, (*path, "element"), names))
            case MapType():
                key = self._renamed(kind.key, (*path, "key"), names)
                return replace(kind, key=key, value=self._renamed(kind.value, (*path, "value"), names))
        return kind

    def add(self, columns: Mapping[str, NewColumn]) -> list[Path]:
        """Add nullable columns and members behind the others; return their paths."""
        added = []
        for name, column in columns.items():
            *parent, last = self._path_of(name)
            above = self._found(tuple(parent), name) if parent else ()
            if column.default is not None and parent:
                self._refuse((*above, last), "have a default: only whole columns have one")
            if not parent and self.schema.find(last) is not None:
                self._refuse((last,), "be added: the table has one of this name already")
            field = StructField(last, self._type(column.type, name), True, _metadata_of(column))
            if column.default is not None and not _may_be(column.default, field.type):
                self._refuse((last,), f"have the default {column.default}: it is no constant of the type {field.type}")
            self._in_parent((*above, last), partial(self._with, above, field))
            added.append((*above, last))
        return added

    def _with(self, above: Path, field: StructField, parent: StructType) -> StructType:
        return self._struct([*parent, field], above)

    def _type(self, ddl: str, name: str) -> DataType:
        try:
            return type_of_ddl(ddl)
        except SchemaMismatch as error:
            raise self._error(f"column {name!r}: {error.message} Nothing was changed.", [name]) from error

    def change_types(self, types: Mapping[str, str]) -> list[Path]:
        """Widen the types of columns, members, elements, keys and values; return the paths whose type was another."""
        changed = []
        for name, ddl in types.items():
            path, after = self._found(self._path_of(name), name), self._type(ddl, name)
            before = self._type_at(path)
            if before == after:
                continue
            owner = self._owner(path)
            if not isinstance(before, Primitive | DecimalType) or not is_widening(before, after):
                self._refuse(
                    path,
                    f"become {after}: it is {before}, and files hold it so. A type may become a wider one: "
                    "BYTE, SHORT, INT and LONG a larger one or a DECIMAL that holds all of it; BYTE, SHORT, INT and "
                    "FLOAT DOUBLE; a DECIMAL one with as many digits before its point; DATE TIMESTAMP_NTZ",
                )
            self._check_free(owner, "given another type", also_layout=True, clustering=False)
            self._widen(path, owner, before, after)
            changed.append(path)
        return changed

    def _widen(self, path: Path, owner: Path, before: DataType, after: DataType) -> None:
        inside = path[len(owner) :]
        note: dict[str, str] = {"fromType": str(before), "toType": str(after)}
        if inside:
            note["fieldPath"] = ".".join(inside)

        def widened(member: StructField) -> StructField:
            if is_identity(member) or GENERATION_KEY in member.metadata or CHAR_VARCHAR_KEY in member.metadata:
                self._refuse(
                    path, "get another type: it is an identity or a generated column, or char(n) or varchar(n)"
                )
            changes = [*(member.metadata.get(TYPE_CHANGES_KEY) or []), note]
            kind = _rewritten(member.type, inside, lambda kind: after)
            return replace(member, type=kind, metadata={**member.metadata, TYPE_CHANGES_KEY: changes})

        self._change(owner, widened)

    def set_comments(self, comments: Mapping[str, str | None]) -> None:
        """Give columns and members comments, or take them away."""
        for name, comment in comments.items():
            kept = {} if comment is None else {_COMMENT: comment}

            def commented(member: StructField, kept: dict[str, str] = kept) -> StructField:
                return replace(member, metadata={**{k: v for k, v in member.metadata.items() if k != _COMMENT}, **kept})

            self._change(self._field_path(name, "given a comment"), commented)

    def set_nullable(self, names: Iterable[str], *, nullable: bool) -> list[Path]:
        """Allow or forbid null in columns and members of structs; return the paths for which that is new."""
        changed = []
        for name in names:
            path = self._field_path(name, "made NOT NULL")
            if not nullable and any(
                not isinstance(self._type_at(path[:size]), StructType) for size in range(1, len(path))
            ):
                self._refuse(path, "be made NOT NULL: it is inside an array or a map")
            if self._field(path).nullable is not nullable:
                self._change(path, lambda member: replace(member, nullable=nullable))
                changed.append(path)
        return changed

    def check_identities(self, names: Iterable[str]) -> list[str]:
        """Return identity columns in the schema's spelling. Raises SchemaMismatch for any other column."""
        paths = [self._found(self._path_of(name), name) for name in names]
        for path in paths:
            if len(path) > 1 or not is_identity(self._field(path)):
                identities = [member.name for member in self.schema if is_identity(member)]
                self._refuse(path, f"be synchronized: it is no identity column. The table has {identities or 'none'}")
        return [path[0] for path in paths]

    # --- paths ------------------------------------------------------------------------------------------------------

    def check_there(self, paths: Iterable[Path]) -> None:
        """Raise SchemaMismatch for a path that leads to no column."""
        for path in paths:
            self._found(path, path_text(path))

    def _field_path(self, name: str, done: str) -> Path:
        """Return the path of a column or a member, in the schema's spelling. Raises SchemaMismatch."""
        path = self._found(self._path_of(name), name)
        if not isinstance(self._type_at(path[:-1]), StructType):
            self._refuse(path, f"be {done}: an element, a key or a value of a {self._type_at(path[:-1])} is no column")
        return path

    def _found(self, path: Path, name: str) -> Path:
        here: DataType = self.schema
        found: list[str] = []
        for part in path:
            names = [inner for inner, _ in parts_of(here)]
            spelled = next((each for each in names if each.lower() == part.lower()), None)
            if spelled is None:
                where = f"{'.'.join(found)} ({here})" if found else "the table"
                raise self._error(
                    f"there is no column {name!r}: {where} has {shown_names(names) or 'nothing'}."
                    f"{did_you_mean(part, names)} Nothing was changed.",
                    [name],
                )
            found.append(spelled)
            here = dict(parts_of(here))[spelled]
        return tuple(found)

    def _path_of(self, name: str) -> Path:
        try:
            return parse_path(name)
        except ValueError as error:
            raise self._error(
                f"{error}. Write parts joined by dots, such as address.city, and backquotes around a part that has a "
                "dot or a backquote. Nothing was changed.",
                [name],
            ) from error

    def _type_at(self, path: Path) -> DataType:
        here: DataType = self.schema
        for part in path:
            here = dict(parts_of(here))[part]
        return here

    def _owner(self, path: Path) -> Path:
        """Return the path of the column or member that holds the type at `path`."""
        return next(
            path[:size] for size in range(len(path), 0, -1) if isinstance(self._type_at(path[: size - 1]), StructType)
        )

    def _field(self, path: Path) -> StructField:
        parent = self._type_at(path[:-1])
        assert isinstance(parent, StructType)
        return next(member for member in parent if member.name == path[-1])

    def _change(self, path: Path, change: Callable[[StructField], StructField]) -> None:
        self._in_parent(
            path,
            lambda parent: StructType(tuple(change(each) if each.name == path[-1] else each for each in parent)),
        )

    def _in_parent(self, path: Path, change: Callable[[StructType], StructType]) -> None:
        def changed(kind: DataType) -> DataType:
            if not isinstance(kind, StructType):
                self._refuse(path, f"be added: {'.'.join(path[:-1])} is {kind}, and has no members")
            return change(kind)

        schema = _rewritten(self.schema, path[:-1], changed)
        assert isinstance(schema, StructType)
        self.schema = schema

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _check_free(self, path: Path, done: str, *, also_layout: bool, clustering: bool = True) -> None:
        """Raise SchemaMismatch if a rule reads the column, or (`also_layout`) partitions or clusters depend on it."""
        if also_layout and len(path) == 1 and path[0].lower() in {name.lower() for name in self.partition_columns}:
            self._refuse(path, f"be {done}: the table is partitioned by it")
        physical = tuple(
            self._field(path[:s]).physical_name for s in range(1, len(path) + 1) if self._is_field(path[:s])
        )
        if also_layout and clustering and any(each[: len(physical)] == physical for each in self._uses.clustering):
            self._refuse(path, f"be {done}: the table is clustered by it. Change cluster_by first")
        for rule, sql in self._uses.rules.items():
            # A column that is dropped takes its own invariant along.
            is_gone = done == "dropped" and path == (path[0],) and rule == invariant_name(path[0])
            if not is_gone and self._may_read(sql, path):
                self._refuse(path, f"be {done}: {rule} reads it ({sql}). Drop that first")

    def _may_read(self, sql: str, path: Path) -> bool:
        """Return whether SQL may read a column or a member: by its name, or with all of a struct around it."""
        text = sql_text(sql)
        if text.problem is not None or text.has_star():
            return True
        starts = [at for at, token in enumerate(text.tokens) if token.is_name and token.text.lower() == path[0].lower()]
        return not all(self._is_beside(text.tokens[at + 1 :], path) for at in starts)

    def _is_beside(self, after: Sequence[Token], path: Path) -> bool:
        """Return whether the tokens after a column's name lead to a member that is neither in nor around the path."""
        for size, part in enumerate(path[1:], start=1):
            dot, member = [*after[2 * size - 2 : 2 * size], OUTSIDE, OUTSIDE][:2]
            # SQL has no names for the elements, keys and values of the path.
            if dot != DOT or not member.is_name or not isinstance(self._type_at(path[:size]), StructType):
                return False
            if member.text.lower() != part.lower():
                return True
        return False

    def _is_field(self, path: Path) -> bool:
        return isinstance(self._type_at(path[:-1]), StructType)

    def _struct(self, members: Sequence[StructField], path: Path) -> StructType:
        try:
            return StructType(tuple(members))
        except SchemaMismatch as error:
            where = f" in {'.'.join(path)}" if path else ""
            raise self._error(f"{error.message.removesuffix('.')}{where}. Nothing was changed.", []) from error

    def _refuse(self, path: Path, what: str) -> NoReturn:
        raise self._error(f"column {'.'.join(path)!r} cannot {what}. Nothing was changed.", [".".join(path)])

    def _error(self, what: str, columns: list[str]) -> SchemaMismatch:
        return SchemaMismatch(f"{self._table}: {what}", table=self._table, columns=columns)


def _may_be(default: str, kind: DataType) -> bool:
    """Return False for a constant of another type than the column's. Spark judges any other expression."""
    expression = sql_text(default).expression
    if isinstance(expression, Cast) and isinstance(expression.operand, Literal):
        try:
            return type_of_ddl(expression.target) == kind
        except SchemaMismatch:
            return False
    if not isinstance(expression, Literal) or expression.kind == "null":
        return True
    if expression.kind == "number":
        is_whole = expression.text.removeprefix("-").isdecimal()
        if kind in INTEGERS:
            most = INTEGERS[kind].greatest
            return is_whole and -most - 1 <= int(expression.text) <= most
        return isinstance(kind, DecimalType) or kind in (Primitive.FLOAT, Primitive.DOUBLE)
    return kind is {"string": Primitive.STRING, "boolean": Primitive.BOOLEAN}.get(expression.kind)


def _metadata_of(column: NewColumn) -> dict[str, str]:
    comment = {} if column.comment is None else {_COMMENT: column.comment}
    return comment if column.default is None else {**comment, DEFAULT_KEY: column.default}


def _renamed_path(path: Path, names: Mapping[Path, str]) -> Path:
    return tuple(names.get(path[: size + 1], part) for size, part in enumerate(path))


def _rewritten(kind: DataType, path: Path, change: Callable[[DataType], DataType]) -> DataType:
    """Return the type with the one at `path` (in the schema's spelling) changed."""
    if not path:
        return change(kind)
    head, rest = path[0], path[1:]
    match kind:
        case StructType():
            members = (
                replace(each, type=_rewritten(each.type, rest, change)) if each.name == head else each for each in kind
            )
            return StructType(tuple(members))
        case ArrayType():
            return replace(kind, element=_rewritten(kind.element, rest, change))
        case MapType() if head == "key":
            return replace(kind, key=_rewritten(kind.key, rest, change))
        case MapType():
            return replace(kind, value=_rewritten(kind.value, rest, change))
    raise TypeError(f"{kind} has no {head}")
