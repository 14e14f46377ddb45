"""Schema evolution: the schema that a table must have to take rows of another one, as one pure function.

Columns that the table lacks are added behind its own, at every depth, and are nullable. A void column gets a type. One
of a narrower type is widened, where the table allows it, by the changes that lose nothing of what older files hold.
Nothing is ever dropped, renamed, reordered or narrowed: what does not fit in this way is left as it is, and the writer
of the rows refuses it.
The invariant: every file of the table is read right under the schema made here.
Source: protocol, "Type Widening", "Column Mapping"; delta-spark, SchemaMergingUtils.mergeSchemas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_txlog.engine.table.schema.schema import INTEGERS, type_from_json
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructField,
    StructType,
    walk_fields,
)
from airflow_txlog.errors import CorruptTable, UnsupportedFeature

TYPE_CHANGES_KEY = "delta.typeChanges"

# Digits before the point that hold every value.
_LONG_DIGITS, _OTHER_DIGITS = 20, 10


def check_type_changes(schema: StructType, table: str) -> None:
    """Raises UnsupportedFeature for a change that the protocol does not list, CorruptTable for what is no change."""
    for member in walk_fields(schema):
        for change in _changes(member):
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
    """Whether the protocol lets a column of one type become the other."""
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


_NUMBERS = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """A schema and what makes it differ from the one before: dotted names of members that are new, and of widened ones.

    A void member that gets a type counts as new. `widened` says each change as text, such as `id: integer to long`. A
    column that is new as a whole is named once.
    """

    schema: StructType
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        return not self.added and not self.widened


@dataclass(kw_only=True)
class _Merging:
    may_change: Callable[[str], bool]
    may_widen: Callable[[str], bool]
    added: list[str] = field(default_factory=list)
    widened: list[str] = field(default_factory=list)


def evolved(table: StructType, rows: StructType, *, may_widen: bool = False, fixed: Collection[str] = ()) -> Evolution:
    """The table's schema with what rows of the schema `rows` bring besides; names are compared without case.

    `may_widen`: the table has type widening enabled. `fixed`: top-level columns whose type stays. Void columns of the
    rows bring nothing. Source: delta-spark, TypeWidening (the changes that schema evolution makes by itself).
    """
    keep = {name.lower() for name in fixed}
    merging = _Merging(
        may_change=lambda column: column.lower() not in keep,
        may_widen=lambda column: may_widen and column.lower() not in keep,
    )
    schema = _struct(table, rows, "", merging, "")
    return Evolution(schema=schema, added=tuple(merging.added), widened=tuple(merging.widened))


def _struct(table: StructType, rows: StructType, path: str, merging: _Merging, column: str) -> StructType:
    """`column` is the top-level column that the struct is in, "" for the table itself."""
    fields = []
    for member in table:
        found = rows.find(member.name)
        fields.append(member if found is None else _member(member, found.type, path, merging, column or member.name))
    for member in rows:
        if table.find(member.name) is None and member.type is not Primitive.VOID:
            merging.added.append(path + member.name)
            fields.append(StructField(member.name, _nullable(member.type)))
    return StructType(tuple(fields))


def _member(member: StructField, found: DataType, path: str, merging: _Merging, column: str) -> StructField:
    changes: list[dict[str, str]] = []
    name = path + member.name
    merged = _type(member.type, found, name, "", merging, column, changes)
    if not changes:
        return member if merged == member.type else replace(member, type=merged)
    before = member.metadata.get(TYPE_CHANGES_KEY) or []
    return replace(member, type=merged, metadata={**member.metadata, TYPE_CHANGES_KEY: [*before, *changes]})


def _type(
    table: DataType,
    rows: DataType,
    name: str,
    inside: str,
    merging: _Merging,
    column: str,
    changes: list[dict[str, str]],
) -> DataType:
    """The merged type; a widened leaf is noted in `changes`, with the way to it inside of arrays and maps."""

    def deeper(own: DataType, other: DataType, step: str) -> DataType:
        return _type(own, other, f"{name}.{step}", f"{inside}.{step}".lstrip("."), merging, column, changes)

    match table, rows:
        case StructType(), StructType():
            return _struct(table, rows, f"{name}.", merging, column)
        case ArrayType(), ArrayType():
            return replace(table, element=deeper(table.element, rows.element, "element"))
        case MapType(), MapType():
            return replace(
                table, key=deeper(table.key, rows.key, "key"), value=deeper(table.value, rows.value, "value")
            )
    if table is Primitive.VOID and rows is not Primitive.VOID and merging.may_change(column):
        # No file holds anything of a void column, so it may become of any type.
        merging.added.append(name)
        return _nullable(rows)
    if table == rows or not _widens_by_itself(table, rows) or not merging.may_widen(column):
        return table
    merging.widened.append(f"{name}: {table} to {rows}")
    changes.append({"fromType": str(table), "toType": str(rows), **({"fieldPath": inside} if inside else {})})
    return rows


def _widens_by_itself(before: DataType, after: DataType) -> bool:
    """Of the changes that the protocol allows, those that keep the kind: no integer becomes a decimal or a double."""
    kinds_kept = (
        (before in _NUMBERS and after in _NUMBERS)
        or (before is Primitive.FLOAT and after is Primitive.DOUBLE)
        or (isinstance(before, DecimalType) and isinstance(after, DecimalType))
        or (before is Primitive.DATE and after is Primitive.TIMESTAMP_NTZ)
    )
    return kinds_kept and is_widening(before, after)


def _nullable(data_type: DataType) -> DataType:
    """The type of a new column: every level of it may be null, and no marks of where it came from."""
    match data_type:
        case StructType():
            kept = [member for member in data_type if member.type is not Primitive.VOID]
            return StructType(tuple(StructField(member.name, _nullable(member.type)) for member in kept))
        case ArrayType():
            return ArrayType(_nullable(data_type.element))
        case MapType():
            return MapType(_nullable(data_type.key), _nullable(data_type.value))
    return data_type
