"""Partition values on their way in: the strings of the log to typed Arrow arrays.

The way out is in `datafiles/partitioning`. The invariant: a value is either exactly the one that every reader would
see, or it is marked as not known; it is never guessed.
Source: protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.text import SECOND_US, parse_date, parse_timestamp
from airflow_txlog.engine.table.schema import (
    DataType,
    DecimalType,
    Primitive,
    StructField,
    StructType,
    array_of,
    arrow_type,
)
from airflow_txlog.errors import CorruptTable, UnknownColumn

_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_INTEGER_BITS = {Primitive.BYTE: 8, Primitive.SHORT: 16, Primitive.INTEGER: 32, Primitive.LONG: 64}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)
# Spark, Java and delta-rs spell them differently, and each reads the others' spelling.
_SPECIAL_FLOATS = {"nan": "nan", "infinity": "inf", "inf": "inf"}
_FIXED_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """A partition column over a table of files: one value a file, in the files' order.

    `values` is of the column's own Arrow type, and null where the value is null or not known; `known` (never null)
    tells the two apart. A pruner keeps a file whose value is not known.
    """

    values: pa.Array
    known: pa.BooleanArray

    def for_rows(self, column: str) -> pa.Array:
        """The values, for building rows of the files. Raises CorruptTable when one is not known."""
        if not pc.all(self.known, min_count=0).as_py():
            raise CorruptTable(
                f"A file has a partition value of {column!r} that is no {self.values.type}, or a timestamp without a "
                "zone where none was given. Reading it would mean to guess; nothing was read."
            )
        return self.values


def typed_partition_columns(
    files: pa.Table,
    schema: StructType,
    partition_columns: Sequence[str],
    only: Iterable[str] | None = None,
    *,
    time_zone: str | None = None,
) -> dict[str, PartitionValues]:
    """The partition columns of `files` (a FILES table) as typed values, keyed by the schema's spelling of the name.

    `only` limits the work to the columns named, in any case; names in it that are no partition column are skipped.
    `time_zone` is what timestamps without a zone are read in; without it they are not known. Raises UnknownColumn
    when a partition column is not in the schema. Called for a million files, parses each distinct string once.
    """
    wanted = None if only is None else {name.lower() for name in only}
    typed: dict[str, PartitionValues] = {}
    for name in partition_columns:
        member = schema.find(name)
        if member is None:
            raise UnknownColumn(
                f"The partition column {name!r} is not in the table's schema.", column=name, columns=schema.names
            )
        if wanted is None or member.name.lower() in wanted:
            strings = _strings_of(files.column("partition_values"), member, name)
            typed[member.name] = parse_partition_values(strings, member.type, time_zone=time_zone)
    return typed


def parse_partition_values(
    strings: pa.Array | pa.ChunkedArray, data_type: DataType, *, time_zone: str | None = None
) -> PartitionValues:
    """Partition strings as values of `data_type`. Null and "" are null; text that is no such value is not known.

    A timestamp without a zone is read in `time_zone` (as Spark does: the earlier instant where a clock was set back,
    the later one where it was set forward), and is not known without one, or when the zone has no such name.
    """
    encoded = strings.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    parse = _parser(data_type, time_zone)
    plain: list[Any] = []
    known: list[bool] = []
    for text in encoded.dictionary.to_pylist():
        value = parse(text) if text else None
        plain.append(value)
        known.append(not text or value is not None)
    distinct = array_of(plain, data_type)
    indices = encoded.indices
    # A null string has no index: its value is null, and that is known.
    return PartitionValues(distinct.take(indices), pc.fill_null(pa.array(known, pa.bool_()).take(indices), True))


def session_zone(name: str) -> datetime.tzinfo | None:
    """The zone that Spark means by `name` (a region, or an offset such as `+08:00` or `UTC+8`), or None."""
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    offset = _FIXED_OFFSET.fullmatch(name)
    if offset is not None and int(offset[2]) <= 18:
        size = datetime.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        return datetime.timezone(-size if offset[1] == "-" else size)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _strings_of(column: pa.ChunkedArray, member: StructField, spelled: str) -> pa.ChunkedArray:
    strings = _looked_up(column, member.physical_name)
    if spelled != member.name and member.physical_name == member.name:
        # The list of partition columns may spell the name in another case than the schema, and writers have followed
        # either.
        strings = pc.coalesce(strings, _looked_up(column, spelled))
    return strings


def _looked_up(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The value of the key in every map, null where it has none."""
    return pa.chunked_array([_looked_up_in(chunk, name) for chunk in column.chunks], pa.string())


def _looked_up_in(maps: pa.MapArray, name: str) -> pa.Array:
    # Where every map holds the key once and nothing else (one partition column), its values are the answer as they are.
    if len(maps) and not maps.null_count:
        first, end = maps.offsets[0].as_py(), maps.offsets[len(maps)].as_py()
        keys = maps.keys.slice(first, end - first)
        one_each = pc.equal(pc.subtract(maps.offsets.slice(1), maps.offsets.slice(0, len(maps))), 1)
        if one_each.true_count == len(maps) and pc.equal(keys, name).true_count == len(maps):
            return maps.items.slice(first, end - first)
    return pc.map_lookup(maps, pa.scalar(name), "first")


# --- one string ------------------------------------------------------------------------------------------------------


def _parser(data_type: DataType, time_zone: str | None) -> Callable[[str], Any]:
    """The function from a string that is not empty to its value as Python (dates and timestamps as integers), or None
    where it is no such value."""
    match data_type:
        case Primitive.STRING:
            return str
        case Primitive.BINARY:
            return str.encode
        case Primitive.BOOLEAN:
            return lambda text: {"true": True, "false": False}.get(text.lower())
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG:
            bound = 1 << (_INTEGER_BITS[data_type] - 1)
            return lambda text: _integer(text, bound)
        case Primitive.FLOAT | Primitive.DOUBLE:
            arrow = arrow_type(data_type)
            return lambda text: _float(text, arrow)
        case DecimalType(precision, scale):
            return lambda text: _decimal(text, precision, scale)
        case Primitive.DATE:
            return parse_date
        case Primitive.TIMESTAMP_NTZ:
            return _wall_us
        case Primitive.TIMESTAMP:
            zone = None if time_zone is None else session_zone(time_zone)
            return lambda text: _instant_us(text, zone)
    # void and nested types: no partition column has them, so no text is one of their values.
    return lambda text: None


def _integer(text: str, bound: int) -> int | None:
    value = int(text) if _INTEGER.fullmatch(text) else bound
    return value if -bound <= value < bound else None


def _float(text: str, arrow: pa.DataType) -> float | None:
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text.removeprefix("+"))
    special = _SPECIAL_FLOATS.get(digits.lower())
    if special is not None:
        return float(sign + special)
    if not _NUMBER.fullmatch(digits):
        return None
    # Arrow rounds the digits to 32 bits once; by way of a double they would be rounded twice.
    try:
        value: float = pa.scalar(sign + digits).cast(arrow).as_py()
    except pa.ArrowInvalid:
        return None
    return value if value not in (float("inf"), float("-inf")) else None


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    try:
        value = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except (Inexact, InvalidOperation):
        return None
    return value if len(value.as_tuple().digits) <= precision else None


def _wall_us(text: str) -> int | None:
    parsed = parse_timestamp(text)
    # An offset in a value that has none by type: readers disagree whether it counts.
    return None if parsed is None or parsed[1] is not None else _in_range(parsed[0])


def _instant_us(text: str, zone: datetime.tzinfo | None) -> int | None:
    parsed = parse_timestamp(text)
    if parsed is None:
        return None
    wall_us, offset_s = parsed
    if offset_s is None:
        offset_us = None if zone is None else _offset_us(wall_us, zone)
        return None if offset_us is None else _in_range(wall_us - offset_us)
    return _in_range(wall_us - offset_s * SECOND_US)


def _offset_us(wall_us: int, zone: datetime.tzinfo) -> int | None:
    try:
        # Fold 0, as Java: the earlier instant of two; inside a gap the offset before it, hence the later wall time.
        offset = (_EPOCH + datetime.timedelta(microseconds=wall_us)).replace(tzinfo=zone).utcoffset()
    except OverflowError:
        return None
    return None if offset is None else offset // datetime.timedelta(microseconds=1)


def _in_range(microseconds: int) -> int | None:
    return microseconds if -(1 << 63) <= microseconds < 1 << 63 else None
