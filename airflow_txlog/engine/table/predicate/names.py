"""The column that a name in a predicate means.

The invariant: a name is a column only if Spark, which looks for an alias, a column and a member in this order and any
case, cannot resolve it to anything else. Otherwise it is outside the grammar, or an error that lists the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_txlog.engine.table.predicate.constants import OutsideGrammar
from airflow_txlog.engine.table.predicate.tree import Operand
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY, Primitive, StructType, VariantType
from airflow_txlog.sql.expression import Expression, Name, parts_of
from airflow_txlog.sql.sql_text import SqlText

SPECIAL_NAMES = frozenset(
    {
        *("current_catalog", "current_database", "current_date", "current_path", "current_schema", "current_time"),
        *("current_timestamp", "current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)
"""Names that Spark reads as functions if no column has them."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a predicate may use; `alias` qualifies the table's columns.

    `only_qualified`: a bare name may mean a column of a merge's source, unless `other_columns` lists these.
    """

    schema: StructType
    alias: str | None = None
    only_qualified: bool = False
    other_columns: frozenset[str] | None = None

    def column(self, name: Name) -> Operand:
        """Return the column. Raises OutsideGrammar if it may be something else, or its type never prunes."""
        if is_special(name):
            raise OutsideGrammar(f"the function {name}()")
        parts, qualified = self._without_alias(name)
        if len(parts) != 1:
            raise OutsideGrammar(f"{name}, which is not a column of the table alone")
        found = self.schema.find(parts[0])
        others = () if not self.only_qualified or qualified else self.other_columns
        if found is None or others is None or parts[0].lower() in others:
            raise OutsideGrammar(f"the name {name}")
        # Collated strings do not compare by bytes; char(n) is stored with padding and compared without.
        if found.is_collated or CHAR_VARCHAR_KEY in found.metadata:
            raise OutsideGrammar(f"the column {found.name} with a collation, char or varchar type")
        if found.type is Primitive.VOID or isinstance(found.type, VariantType):
            raise OutsideGrammar(f"the column {found.name}, of the type {found.type}")
        return Operand.of(found)

    def unknown(self, tree: Expression) -> str | None:
        """Return the first name that can only mean this table and that the table lacks, or None."""
        for name in _names_in(tree):
            parts, qualified = self._without_alias(name)
            is_certain = parts and (qualified or not self.only_qualified) and not is_special(name)
            if is_certain and self.schema.find(parts[0]) is None:
                return parts[0]
        return None

    def columns_in(self, tree: Expression) -> frozenset[str]:
        """Return the table's columns in a tree whose every leaf was read."""
        named = (self._without_alias(name)[0] for name in _names_in(tree))
        found = (self.schema.find(parts[0]) for parts in named if parts)
        return frozenset(field.name for field in found if field is not None)

    def _without_alias(self, name: Name) -> tuple[list[str], bool]:
        """Return the name without the alias, and whether it had one."""
        parts = [part.text for part in name.parts]
        if self.alias is None or len(parts) == 1 or parts[0].lower() != self.alias.lower():
            return parts, False
        if self.schema.find(parts[0]) is not None:
            # A column has the same name as the alias: the meaning depends on the members of both.
            return [], False
        return parts[1:], True


def columns_in_text(schema: StructType, text: SqlText) -> frozenset[str] | None:
    """Return a superset of the table's columns that the text names; None if a star or IDENTIFIER() hides some."""
    if "identifier" in text.calls() or text.has_star():
        return None
    words = text.words()
    return frozenset(name for name in schema.names if name.lower() in words)


def _names_in(tree: Expression) -> Iterator[Name]:
    return (part for part in parts_of(tree) if isinstance(part, Name))


def is_special(name: Name) -> bool:
    """Return whether Spark reads the name as a function if no column has it."""
    first = name.parts[0]
    return len(name.parts) == 1 and first.kind == "word" and first.text.lower() in SPECIAL_NAMES
