"""Which column of the table a name in a predicate means.

The invariant: a name is taken for a column only where Spark could not take it for anything else: not for a member of a
struct, a column of a merge's source or a special name; else it is outside the grammar, or an error that lists the
columns. Source: Spark, name resolution (case-insensitive; alias, then column, then member).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate.constants import OutsideGrammar
from airflow_txlog.engine.table.predicate.tree import Operand
from airflow_txlog.engine.table.schema.types import Primitive, StructField, StructType, VariantType
from airflow_txlog.errors import UnknownColumn
from airflow_txlog.sql.expression import Expression, Name, parts_of
from airflow_txlog.sql.sql_text import SqlText

# Spark reads these as functions where no column has the name.
SPECIAL_NAMES = frozenset(
    (
        "current_catalog",
        "current_database",
        "current_date",
        "current_path",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_user",
        "localtime",
        "localtimestamp",
        "session_user",
        "user",
    )
)
_COLUMNS_SHOWN = 50


def did_you_mean(name: str, names: Collection[str]) -> str:
    """` Did you mean 'id'?` where one of the names is near; else nothing."""
    lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]!r}?" if near else ""


def shown_names(names: Sequence[str]) -> str:
    """The first names of a table's, in a message."""
    return ", ".join(names[:_COLUMNS_SHOWN]) + (", …" if len(names) > _COLUMNS_SHOWN else "")


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a predicate may use.

    `alias` qualifies the table's columns. `only_qualified` says that a bare name may mean something else (a merge's
    source) unless `other_columns` lists all that it could mean there.
    """

    schema: StructType
    text: SqlText
    alias: str | None = None
    only_qualified: bool = False
    other_columns: frozenset[str] | None = None

    def column(self, name: Name) -> Operand:
        """The column. Raises OutsideGrammar when it may be something else, or has a type that never prunes."""
        if is_special(name):
            raise OutsideGrammar(f"the function {name}()")
        parts, qualified = self._without_alias(name)
        if len(parts) != 1:
            raise OutsideGrammar(f"{name}, which is not a column of the table alone")
        found = self.schema.find(parts[0])
        if found is None or not (qualified or self._is_ours(parts[0])):
            raise OutsideGrammar(f"the name {name}")
        return _usable(found)

    def unknown(self, tree: Expression) -> str | None:
        """The first name that is certainly meant for this table, and that the table does not have; else None."""
        for name in _names_in(tree):
            parts, qualified = self._without_alias(name)
            # A bare name beside a source may be the source's.
            certain = qualified or not self.only_qualified
            if parts and certain and self.schema.find(parts[0]) is None and not is_special(name):
                return parts[0]
        return None

    def columns_in(self, tree: Expression) -> frozenset[str]:
        """The table's columns in a tree of which every leaf was read."""
        named = (self._without_alias(name)[0] for name in _names_in(tree))
        found = (self.schema.find(parts[0]) for parts in named if parts)
        return frozenset(field.name for field in found if field is not None)

    def columns_named(self) -> frozenset[str] | None:
        """A superset of the table's columns that the text names; None when a star or IDENTIFIER() hides some."""
        if "identifier" in self.text.calls() or self.text.has_star():
            return None
        words = self.text.words()
        return frozenset(name for name in self.schema.names if name.lower() in words)

    def _without_alias(self, name: Name) -> tuple[list[str], bool]:
        """The rest of the name, and whether the alias stood before it."""
        parts = [part.text for part in name.parts]
        if self.alias is None or len(parts) == 1 or parts[0].lower() != self.alias.lower():
            return parts, False
        if self.schema.find(parts[0]) is not None:
            # A column and the alias share the name: which one is meant depends on what each holds.
            return [], False
        return parts[1:], True

    def _is_ours(self, name: str) -> bool:
        if not self.only_qualified:
            return True
        return self.other_columns is not None and name.lower() not in self.other_columns


def unknown_column(sql: str, name: str, schema: StructType) -> UnknownColumn:
    """The error for a name that the table does not have: the nearest one, and what there is."""
    return UnknownColumn(
        f"The predicate {sql!r} names the column {name!r}, which the table does not have."
        f"{did_you_mean(name, schema.names)} Its columns are: {shown_names(schema.names)}. Nothing was read.",
        predicate=sql,
        column=name,
        columns=schema.names,
    )


def _usable(field: StructField) -> Operand:
    # Collated strings compare by other rules than bytes; char(n) is stored padded and compared without the padding.
    if field.is_collated or field.is_char or "__CHAR_VARCHAR_TYPE_STRING" in field.metadata:
        raise OutsideGrammar(f"the column {field.name} with a collation, char or varchar type")
    if field.type is Primitive.VOID:
        raise OutsideGrammar(f"the column {field.name} without a type")
    if isinstance(field.type, VariantType):
        raise OutsideGrammar(f"the variant column {field.name}")
    return Operand.of(field)


def _names_in(tree: Expression) -> Iterator[Name]:
    return (part for part in parts_of(tree) if isinstance(part, Name))


def is_special(name: Name) -> bool:
    """Whether Spark takes the name for a clock or a user where no column has it."""
    first = name.parts[0]
    return len(name.parts) == 1 and first.kind == "word" and first.text.lower() in SPECIAL_NAMES
