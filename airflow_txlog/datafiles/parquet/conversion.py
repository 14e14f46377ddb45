"""Record batches in the Arrow schema that the table wants, whatever the file or the sender holds.

Columns of rows are found by name in any case, those of a data file as column mapping demands, nested fields likewise. A
missing column is null. The invariant: a conversion gives the same values in another form, or raises `ColumnMismatch`;
it never rounds, cuts or wraps. A timestamp without a zone (INT96, read as microseconds) that is wanted with one is an
instant already, because Spark stores instants. `conforming` also checks new rows against NOT NULL at every depth.
Source: soundness A7, A19; protocol, "Type Widening", "Column Invariants".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.physical import VARIANT, FileFields, holds_mapped, inner_fields, is_variant
from airflow_txlog.datafiles.parquet.variants import Malformed, assembled, is_shredded
from airflow_txlog.errors import ConstraintViolation, SchemaMismatch


class ColumnMismatch(Exception):
    """The values of one column do not fit the wanted type."""

    def __init__(self, column: str, found: pa.DataType, wanted: pa.DataType, reason: str) -> None:
        super().__init__(f"column {column!r} holds {found} and cannot be taken as {wanted}: {reason}")
        self.column = column


@dataclass(frozen=True, slots=True)
class ValueSource:
    """An origin of values: how a wanted field is found among its fields, and which leaf types may become which."""

    find: Callable[[FileFields, pa.Field], int | None]
    keeps_values: Callable[[pa.DataType, pa.DataType], bool]
    is_file: bool


def convert_columns(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar] | None = None
) -> list[pa.Array]:
    """Return sent rows as one array for each column of `schema`, with exactly its types.

    `constants` (partition columns, by the schema's spelling) win over a column of the batch. Only a dictionary type in
    `schema` makes a dictionary. Raises ColumnMismatch.
    """
    return _columns(batch, schema, constants, ROWS)


def columns_of_file(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar] | None = None
) -> list[pa.Array]:
    """Return rows of a data file, as `convert_columns` does, in the current types of a table with this Arrow schema.

    Columns are found by the marks of the schema (see `physical`), and may have a narrower type only if the protocol
    allows to widen a column. Raises ColumnMismatch.
    """
    return _columns(batch, schema, constants, FILE)


def _columns(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar] | None, source: ValueSource
) -> list[pa.Array]:
    columns = []
    members = FileFields(batch.schema)
    for field in schema:
        if constants is not None and field.name in constants:
            columns.append(_constant(constants[field.name], field, batch.num_rows))
            continue
        found = source.find(members, field)
        if found is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(convert_array(batch.column(found), field.type, field.name, source))
    return columns


def nullable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with every top-level column nullable: a column that a file lacks reads as null."""
    return pa.schema([field.with_nullable(True) for field in schema])


def convert_array(array: pa.Array, wanted: pa.DataType, column: str, source: ValueSource | None = None) -> pa.Array:
    """Return the same values as the wanted type. Raises ColumnMismatch, which names `column`."""
    source = ROWS if source is None else source
    # Equal types may still hold a struct whose members exchanged their names.
    if array.type == wanted and not (source.is_file and holds_mapped(wanted)):
        return array
    if pa.types.is_dictionary(array.type):
        return convert_array(array.dictionary_decode(), wanted, column, source)
    if pa.types.is_run_end_encoded(array.type):
        return convert_array(pc.run_end_decode(array), wanted, column, source)
    if isinstance(array, pa.ExtensionArray):
        return convert_array(array.storage, wanted, column, source)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    try:
        if pa.types.is_struct(wanted):
            return _struct(array, wanted, column, source)
        if pa.types.is_list(wanted):
            return _list(array, wanted, column, source)
        if pa.types.is_map(wanted):
            return _map(array, wanted, column, source)
        return _leaf(array, wanted, column, source)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        # Arrow's text quotes the value, and a traceback shows the text of a cause.
        raise ColumnMismatch(column, array.type, wanted, "a value would not fit") from None


def _constant(value: pa.Scalar, field: pa.Field, length: int) -> pa.Array:
    if not value.is_valid:
        return pa.nulls(length, field.type)
    return convert_array(pa.repeat(value, length), field.type, field.name)


def _struct(array: pa.Array, wanted: pa.StructType, column: str, source: ValueSource) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise ColumnMismatch(column, array.type, wanted, "it is no struct")
    if is_variant(wanted):
        array = _whole_variants(array, column)
    members = FileFields(array.type)
    # Not `field(i)`, which would show what lies under a null struct, and not what a slice left out.
    children = array.flatten()
    columns = []
    for field in wanted:
        found = source.find(members, field)
        if found is None:
            columns.append(pa.nulls(len(array), field.type))
        else:
            columns.append(convert_array(children[found], field.type, f"{column}.{field.name}", source))
    return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=array.is_null())


def _whole_variants(array: pa.StructArray, column: str) -> pa.StructArray:
    """Return variants with a value and metadata in each row. Raises ColumnMismatch for a struct that is no variant."""
    if not is_shredded(array.type) and array.flatten()[_value_of(array.type, column)].null_count == array.null_count:
        return array
    try:
        binaries = assembled(array)
    except Malformed as error:
        raise ColumnMismatch(column, array.type, VARIANT, f"the parts of a variant do not fit: {error}") from error
    return pa.StructArray.from_arrays(list(binaries), names=VARIANT.names, mask=array.is_null())


def _value_of(found: pa.StructType, column: str) -> int:
    indexes = [found.get_field_index(field.name) for field in VARIANT]
    if min(indexes) < 0:
        raise ColumnMismatch(column, found, VARIANT, "a variant has both a value and metadata")
    return int(indexes[0])


def _list(array: pa.Array, wanted: pa.ListType, column: str, source: ValueSource) -> pa.Array:
    kind = array.type
    is_view = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    if not (is_view or pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ColumnMismatch(column, kind, wanted, "it is no list")
    if is_view or (pa.types.is_fixed_size_list(kind) and array.null_count):
        # Values lie under a null too, and offsets alone would give them to the list before it. Views lie in any order.
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        valid = pa.concat_arrays([array.is_valid(), pa.array([True])])
        offsets = pc.if_else(valid, offsets, pa.scalar(None, pa.int32()))
        array = pa.ListArray.from_arrays(offsets, array.flatten())
    elif not pa.types.is_list(kind):
        array = array.cast(pa.list_(kind.value_field))
    values = convert_array(array.values, wanted.value_type, f"{column}.element", source)
    return pa.ListArray.from_arrays(values=values, type=wanted, **_lists(array))


def _map(array: pa.Array, wanted: pa.MapType, column: str, source: ValueSource) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise ColumnMismatch(column, array.type, wanted, "it is no map")
    keys = convert_array(array.keys, wanted.key_type, f"{column}.key", source)
    items = convert_array(array.items, wanted.item_type, f"{column}.value", source)
    return pa.MapArray.from_arrays(keys=keys, items=items, type=wanted, **_lists(array))


def _lists(array: pa.Array) -> dict[str, Any]:
    """Return the offsets and null lists as arguments of `from_arrays`."""
    if array.null_count == 0:
        return {"offsets": array.offsets}
    # A null list may have values below it. Were its offset null, they would go to the list before it. The sum is a
    # copy, because Arrow takes the nulls only with offsets that begin their buffer.
    return dict(offsets=pc.add(array.offsets, 0), mask=array.is_null())  # noqa: C408


def _leaf(array: pa.Array, wanted: pa.DataType, column: str, source: ValueSource) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(wanted):
        # Through integers, so that no zone is ever applied: both sides count from the same epoch.
        try:
            in_unit = array.cast(pa.timestamp(wanted.unit, tz=kind.tz))
        except pa.ArrowInvalid:
            if kind.unit != "ns":
                raise
            raise ColumnMismatch(column, kind, wanted, _NANOSECONDS) from None
        return in_unit.cast(pa.int64()).cast(wanted)
    if not source.keeps_values(kind, wanted):
        raise ColumnMismatch(column, kind, wanted, "the types do not match")
    if not source.is_file and pa.types.is_integer(kind) and pa.types.is_decimal(wanted):
        # At once, Arrow refuses a decimal with room for these values but not for every value of the integer's type.
        array = array.cast(pa.decimal256(_MOST_DIGITS, wanted.scale))
    return array.cast(wanted)


def _keeps_values(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a checked cast from one leaf type to the other keeps values or fails."""
    is_a = pa.types
    if is_a.is_integer(kind):
        return bool(is_a.is_integer(wanted) or is_a.is_floating(wanted) or is_a.is_decimal(wanted))
    if is_a.is_floating(kind):
        return bool(is_a.is_floating(wanted) and kind.bit_width <= wanted.bit_width)
    if is_a.is_decimal(kind):
        return bool(is_a.is_decimal(wanted) or (kind.scale == 0 and is_a.is_integer(wanted)))
    if is_a.is_date(kind):
        return bool(is_a.is_date(wanted) or (is_a.is_timestamp(wanted) and wanted.tz is None))
    if _is_text(kind):
        return _is_text(wanted)
    if _is_bytes(kind):
        # Old writers leave the annotation of strings out. The cast checks that they are UTF-8.
        return _is_bytes(wanted) or _is_text(wanted)
    return False


def _is_widened(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a file may hold a column of type `wanted` as `kind`, another form of it or a narrower type.

    Source: protocol, "Type Widening".
    """
    is_a = pa.types
    if is_a.is_integer(kind) and is_a.is_integer(wanted):
        # Bytes and shorts are stored in 32 bits, with or without a note of their width; the cast checks each value.
        return bool(kind.bit_width <= max(wanted.bit_width, 32))
    if is_a.is_integer(kind) and is_a.is_floating(wanted):
        return bool(is_a.is_float64(wanted) and kind.bit_width <= 32)
    if is_a.is_integer(kind) and is_a.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= (20 if kind.bit_width > 32 else 10))
    if is_a.is_decimal(kind):
        whole_digits = kind.precision - kind.scale
        is_wider = is_a.is_decimal(wanted) and wanted.scale >= kind.scale
        return bool(is_wider and wanted.precision - wanted.scale >= whole_digits)
    return _keeps_values(kind, wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


# Those of the widest decimal of Arrow.
_MOST_DIGITS = 76
_NANOSECONDS = (
    "a time has nanoseconds, which neither Spark nor a Delta table has. Have the column written in microseconds (of "
    "pandas: .astype('datetime64[us]'), which cuts the nanoseconds off)"
)
ROWS = ValueSource(lambda fields, wanted: fields.find_name(wanted.name), _keeps_values, False)
FILE = ValueSource(FileFields.find, _is_widened, True)


def relabel(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values as a type that differs only in names and metadata of struct members."""
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind):
        children = [relabel(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = relabel(array.keys, kind.key_type), relabel(array.items, kind.item_type)
        return pa.MapArray.from_arrays(keys=keys, items=items, type=kind, **_lists(array))
    if pa.types.is_list(kind):
        values = relabel(array.values, kind.value_type)
        return pa.ListArray.from_arrays(values=values, type=kind, **_lists(array))
    return array


def map_entries(array: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps of an array, without those below a null."""
    kind = array.type
    keys, items = (
        pa.ListArray.from_arrays(values=values, type=pa.list_(field), **_lists(array)).flatten()
        for values, field in ((array.keys, kind.key_field), (array.items, kind.item_field))
    )
    return keys, items


def hides_nulls(kind: pa.DataType) -> bool:
    """Return whether a type has, at any depth, a NOT NULL member in a struct that may be null."""
    fields = inner_fields(kind)
    return any((pa.types.is_struct(kind) and not field.nullable) or hides_nulls(field.type) for field in fields)


def without_hidden_nulls(array: pa.Array) -> pa.Array:
    """Return the same values, without nulls of a NOT NULL member under a struct that is null.

    Arrow writes such a member to Parquet only if it has no null at all, though no reader sees nulls below another one.
    A null that a reader would see stays.
    """
    kind = array.type
    if not hides_nulls(kind):
        return array
    if pa.types.is_struct(kind):
        members = [without_hidden_nulls(child) for child in array.flatten()]
        members = [
            child if field.nullable or not child.null_count or _shows_null(child, array) else _without_nulls(child)
            for child, field in zip(members, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = without_hidden_nulls(array.keys), without_hidden_nulls(array.items)
        return pa.MapArray.from_arrays(keys=keys, items=items, type=kind, **_lists(array))
    return pa.ListArray.from_arrays(values=without_hidden_nulls(array.values), type=kind, **_lists(array))


def _shows_null(child: pa.Array, struct: pa.StructArray) -> bool:
    return bool(pc.any(pc.and_(child.is_null(), struct.is_valid())).as_py())


def _without_nulls(array: pa.Array) -> pa.Array:
    """Return the array with arbitrary values instead of its nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        # Not `flatten`, which would give the members the nulls of the struct again.
        return pa.StructArray.from_arrays([array.field(number) for number in range(len(kind))], fields=list(kind))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, array.values, type=kind)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset)


def leaves(array: pa.Array | Any) -> list[pa.Array]:
    """Return the arrays of leaf values inside a column; nulls of the levels above are left out or null."""
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        return [leaf for chunk in array.chunks for leaf in leaves(chunk)]
    if pa.types.is_struct(kind):
        return [leaf for child in array.flatten() for leaf in leaves(child)]
    if pa.types.is_map(kind):
        return [leaf for entries in map_entries(array) for leaf in leaves(entries)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return leaves(array.flatten())
    return [array]


# --- new rows ---------------------------------------------------------------------------------------------------------


def conforming(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with the columns and types of the table's schema, checked against NOT NULL.

    Raises SchemaMismatch for a column that does not fit or that the table lacks, ConstraintViolation for a null in a
    NOT NULL column.
    """
    columns_of_table = FileFields(schema)
    unknown = [name for name in batch.schema.names if columns_of_table.find_name(name) is None]
    if unknown:
        raise SchemaMismatch(f"The rows have columns that the table does not have: {unknown}.", columns=unknown)
    try:
        columns = convert_columns(batch, schema)
    except ColumnMismatch as error:
        raise unfit_rows(error) from error
    for column, field in zip(columns, schema, strict=True):
        _check_not_null(column, field, field.name)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unfit_rows(error: ColumnMismatch) -> SchemaMismatch:
    """Return the error for rows that the table cannot hold."""
    return SchemaMismatch(f"The rows do not fit the table: {error}.", columns=[error.column])


def _check_not_null(array: pa.Array, field: pa.Field, name: str, below: pa.Array | None = None) -> None:
    """Raise ConstraintViolation for a null that the field forbids; `below` marks values of the level above."""
    if not field.nullable and array.null_count:
        nulls = array.is_null() if below is None else pc.and_(array.is_null(), below)
        if pc.any(nulls, min_count=0).as_py():
            raise null_in(name, "" if below is None else ", in a struct that is not null")
    kind = field.type
    if not forbids_null(kind):
        return
    if pa.types.is_struct(kind):
        for child, child_field in zip(array.flatten(), kind, strict=True):
            _check_not_null(child, child_field, f"{name}.{child_field.name}", array.is_valid())
    elif pa.types.is_map(kind):
        _, items = map_entries(array)
        _check_not_null(items, kind.item_field, f"{name}.value")
    elif pa.types.is_list(kind):
        _check_not_null(array.flatten(), kind.value_field, f"{name}.element")


def forbids_null(kind: pa.DataType) -> bool:
    """Return whether a level inside the type is NOT NULL; a map's keys always are, and do not count."""
    fields = [kind.item_field] if pa.types.is_map(kind) else inner_fields(kind)
    return any(not field.nullable or forbids_null(field.type) for field in fields)


def null_in(name: str, where: str) -> ConstraintViolation:
    """Return the error for a null in a NOT NULL column."""
    return ConstraintViolation(
        f"Column {name!r} is NOT NULL, and a row has no value for it{where}. Nothing was committed. Correct such rows, "
        "or leave them out, in the SQL that makes them.",
        constraint="NOT NULL",
        column=name,
    )
