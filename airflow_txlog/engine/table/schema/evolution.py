"""Changes of a table's schema: evolution to take rows of another schema, and type widening.

Evolution adds columns that the table lacks behind its own, nullable, at every depth; gives a void column a type; and,
if the table allows it, widens a type by a change that loses nothing in older files. It never drops, renames, reorders
or narrows: the writer of the rows refuses rows that do not fit. `datafiles/parquet/conversion` reads files in the
current type and allows the same changes. The invariant: every file of the table is read right under the new schema,
value for value. Source: protocol, "Type Widening", "Column Mapping"; delta-spark, SchemaMergingUtils.mergeSchemas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_txlog.engine.table.schema.schema import INTEGERS, type_from_json
from airflow_txlog.engine.table.schema.types import (
    TYPE_CHANGES_KEY,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    nullable_inside,
    parts_of,
    walk_fields,
)
from airflow_txlog.errors import CorruptTable, UnsupportedFeature

# Digits before the point that hold every value.
_LONG_DIGITS, _OTHER_DIGITS = 20, 10


def check_type_changes(schema: StructType, table: str) -> None:
    """Raise UnsupportedFeature for a change that the protocol does not list, CorruptTable for a malformed one."""
    for member in walk_fields(schema):
        for change in _changes(member) if member.metadata else ():
            try:
                before, after = type_from_json(change["fromType"]), type_from_json(change["toType"])
            except (KeyError, TypeError) as error:
                raise CorruptTable(
                    f"{table}: {TYPE_CHANGES_KEY} of column {member.name!r} holds {change!r}, which is no change of a "
                    "type. Nothing was read.",
                    table=table,
                ) from error
            if not is_widening(before, after):
                raise UnsupportedFeature(
                    f"{table}: column {member.name!r} was changed from {before} to {after} (typeWidening), which this "
                    "engine does not know how to read in older files. Nothing was read.",
                    table=table,
                    feature="typeWidening",
                    needed_to="read",
                )


def is_widening(before: DataType, after: DataType) -> bool:
    """Return whether the protocol lets a column of one type become the other."""
    if before in INTEGERS and after in INTEGERS:
        return INTEGERS[before].greatest <= INTEGERS[after].greatest
    if before in INTEGERS and isinstance(after, DecimalType):
        return after.precision - after.scale >= (_LONG_DIGITS if before is Primitive.LONG else _OTHER_DIGITS)
    if after is Primitive.DOUBLE:
        return before is Primitive.FLOAT or (before in INTEGERS and before is not Primitive.LONG)
    if isinstance(before, DecimalType) and isinstance(after, DecimalType):
        more_after_point = after.scale - before.scale
        return 0 <= more_after_point <= after.precision - before.precision
    return before is Primitive.DATE and after is Primitive.TIMESTAMP_NTZ


def _changes(member: StructField) -> list[Any]:
    changes = member.metadata.get(TYPE_CHANGES_KEY, [])
    return changes if isinstance(changes, list) else [changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """A schema, the dotted names of its new members (or newly typed void ones), and its widened types as text."""

    schema: StructType
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return not self.added and not self.widened


def evolved(table: StructType, rows: StructType, *, may_widen: bool = False, fixed: Collection[str] = ()) -> Evolution:
    """Return the table's schema with the additions of rows with the schema `rows`; names match in any case.

    `may_widen`: the table has type widening enabled. `fixed`: top-level columns whose type stays. Void columns of the
    rows add nothing. Source: delta-spark, TypeWidening (the automatic changes of schema evolution).
    """
    merger = _Merger(may_widen, frozenset(name.lower() for name in fixed))
    schema = merger.struct(table, rows)
    return Evolution(schema=schema, added=tuple(merger.added), widened=tuple(merger.widened))


@dataclass(slots=True)
class _Merger:
    may_widen: bool
    fixed: frozenset[str]
    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)

    def struct(self, table: StructType, rows: StructType, path: str = "", is_fixed: bool = False) -> StructType:
        """Return the merged struct. `path` ends with a dot; `is_fixed`: in a column whose type stays."""
        fields = []
        for member in table:
            found = rows.find(member.name)
            stays = is_fixed or (not path and member.name.lower() in self.fixed)
            fields.append(member if found is None else self._member(member, found.type, path + member.name, stays))
        for member in rows:
            if table.find(member.name) is None and member.type is not Primitive.VOID:
                self.added.append(path + member.name)
                fields.append(StructField(member.name, _nullable(member.type)))
        return StructType(tuple(fields))

    def _member(self, member: StructField, found: DataType, name: str, is_fixed: bool) -> StructField:
        changes: list[dict[str, str]] = []
        merged = self._type(member.type, found, name, (), is_fixed, changes)
        if not changes:
            return member if merged == member.type else replace(member, type=merged)
        before = member.metadata.get(TYPE_CHANGES_KEY) or []
        return replace(member, type=merged, metadata={**member.metadata, TYPE_CHANGES_KEY: [*before, *changes]})

    def _type(
        self,
        table: DataType,
        rows: DataType,
        name: str,
        inside: tuple[str, ...],
        is_fixed: bool,
        changes: list[dict[str, str]],
    ) -> DataType:
        """Return the merged type and note a widened leaf in `changes`, with its path `inside` arrays and maps."""
        match table, rows:
            case StructType(), StructType():
                return self.struct(table, rows, f"{name}.", is_fixed)
            case (ArrayType(), ArrayType()) | (MapType(), MapType()):
                assert isinstance(table, ArrayType | MapType)
                pairs = zip(parts_of(table), parts_of(rows), strict=True)
                merged: dict[str, Any] = {
                    step: self._type(own, other, f"{name}.{step}", (*inside, step), is_fixed, changes)
                    for (step, own), (_, other) in pairs
                }
                return replace(table, **merged)
        if table is Primitive.VOID and rows is not Primitive.VOID and not is_fixed:
            # No file holds values of a void column, so it may get any type.
            self.added.append(name)
            return _nullable(rows)
        if table == rows or not _widens_by_itself(table, rows) or is_fixed or not self.may_widen:
            return table
        self.widened.append(f"{name}: {table} to {rows}")
        path = {"fieldPath": ".".join(inside)} if inside else {}
        changes.append({"fromType": str(table), "toType": str(rows), **path})
        return rows


def _widens_by_itself(before: DataType, after: DataType) -> bool:
    """Return whether the protocol allows the change and it keeps the kind, so no integer becomes a decimal."""
    kinds_kept = (
        (before in INTEGERS and after in INTEGERS)
        or (before is Primitive.FLOAT and after is Primitive.DOUBLE)
        or (isinstance(before, DecimalType) and isinstance(after, DecimalType))
        or (before is Primitive.DATE and after is Primitive.TIMESTAMP_NTZ)
    )
    return kinds_kept and is_widening(before, after)


def _nullable(data_type: DataType) -> DataType:
    """Return the type of a new column: nullable at every level, without metadata."""
    if isinstance(data_type, StructType):
        kept = [member for member in data_type if member.type is not Primitive.VOID]
        return StructType(tuple(StructField(member.name, _nullable(member.type)) for member in kept))
    return nullable_inside(data_type, _nullable)
