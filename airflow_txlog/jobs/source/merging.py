"""The columns of several Parquet files in one schema, as Spark merges them with the option mergeSchema.

Columns have the order of the first files that contain them. Two types are merged if they are equal, or decimals of one
scale; of structs, lists and maps the members are. The invariant: a schema that Spark refuses is refused here, and the
error names two files that disagree. Source: Spark, StructType.merge and SchemaMergeUtils.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from airflow_txlog.engine.table.schema.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType
from airflow_txlog.errors import SchemaMismatch


class _Apart(Exception):
    """Two types that Spark does not merge: of the column at this path."""


def merged(table: str, files: Iterable[tuple[str, StructType]], *, besides: Collection[str] = ()) -> StructType:
    """Return the columns of all files, each given with its path, in the order in which Spark reads them.

    `besides`: lower-case names of columns whose types do not matter. Raises SchemaMismatch.
    """
    known: dict[StructType, str] = {}
    # Most files share the very same columns, whose hash takes longer than the rest.
    last: StructType | None = None
    for path, columns in files:
        if columns is not last:
            known.setdefault(columns, path)
            last = columns
    found = StructType(())
    seen: list[tuple[str, StructType]] = []
    for columns, path in known.items():
        shown = StructType(tuple(field for field in columns if field.name.lower() not in besides))
        try:
            _merged_structs(found, shown)
        except _Apart as error:
            other = next(each for each, before in seen if not _do_merge(before, shown))
            raise SchemaMismatch(
                f"{table} cannot be converted: the files {other} and {path} have {error}, which Spark does not merge "
                "into one column. Nothing was committed. Have one of the files written with the type and the spelling "
                "of the other.",
                table=table,
            ) from error
        seen.append((path, shown))
        found = _merged_structs(found, columns) if not besides else _with_places(found, columns, besides)
    return found


def _with_places(found: StructType, columns: StructType, besides: Collection[str]) -> StructType:
    """Merge columns; those `besides` keep the place and the type of the first file that has them."""
    kept = [found.find(each.name) or each if each.name.lower() in besides else each for each in columns]
    return _merged_structs(found, StructType(tuple(kept)))


def _do_merge(one: StructType, other: StructType) -> bool:
    try:
        _merged_structs(one, other)
    except _Apart:
        return False
    return True


def _merged_structs(one: StructType, other: StructType, path: str = "") -> StructType:
    fields: list[StructField] = []
    for field in one:
        same = other.find(field.name)
        if same is None:
            fields.append(field)
            continue
        place = f"{path}{field.name}"
        if same.name != field.name:
            # Spark reads both as one column; readers that distinguish cases would find one of them empty.
            raise _Apart(f"columns that differ in the case of their names, {place!r} and {path + same.name!r}")
        fields.append(replace(field, type=_merged(field.type, same.type, place)))
    return StructType((*fields, *(field for field in other if one.find(field.name) is None)))


def _merged(one: DataType, other: DataType, path: str) -> DataType:
    if one == other:
        return one
    match one, other:
        case StructType(), StructType():
            return _merged_structs(one, other, f"{path}.")
        case ArrayType(), ArrayType():
            return replace(one, element=_merged(one.element, other.element, path))
        case MapType(), MapType():
            key, value = _merged(one.key, other.key, path), _merged(one.value, other.value, path)
            return replace(one, key=key, value=value)
        case DecimalType(), DecimalType() if one.scale == other.scale:
            return one if one.precision > other.precision else other
    raise _Apart(f"column {path!r} as {one} and as {other}")
