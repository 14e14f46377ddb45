"""Partition values on their way in: the strings of the log to typed Arrow arrays.

The way out is in `datafiles/partitioning`. The invariant: a value is either exactly the one that every reader would
see, or it is marked as not known; it is never guessed.
Source: protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.text import SECOND_US, parse_date, parse_timestamp
from airflow_txlog.engine.table.schema.schema import (
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

# The instants at which the clocks of some zone show these times, all in microseconds since 1970; None where unknown.
Instants: TypeAlias = Callable[[Sequence[int]], Sequence[int | None]]


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """A partition column over a table of files: one value a file, in the files' order.

    `values` is of the column's own Arrow type, and null where the value is null or not known; `known` (never null)
    distinguishes the two. A pruner keeps a file whose value is not known.
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
    instants: Instants | None = None,
) -> dict[str, PartitionValues]:
    """The partition columns of `files` (a FILES table) as typed values, keyed by the schema's spelling of the name.

    `only` limits the work to the columns named, in any case; names in it that are no partition column are skipped.
    `time_zone` and `instants` are those of `parse_partition_values`. Raises UnknownColumn when a partition column is
    not in the schema. Called for a million files, parses each distinct string once.
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
            typed[member.name] = parse_partition_values(strings, member.type, time_zone=time_zone, instants=instants)
    return typed


def parse_partition_values(
    strings: pa.Array | pa.ChunkedArray,
    data_type: DataType,
    *,
    time_zone: str | None = None,
    instants: Instants | None = None,
) -> PartitionValues:
    """Partition strings as values of `data_type`. Null and "" are null; text that is no such value is not known.

    A timestamp without a zone is read in `time_zone`. Where that is a fixed offset from UTC, it is known; where it is a
    named zone, its rules are another's to apply: `instants` does, and without it the value is not known.
    """
    encoded = strings.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    texts = encoded.dictionary.to_pylist()
    zone = None if time_zone is None else fixed_zone(time_zone)
    if data_type is Primitive.TIMESTAMP and zone is None and instants is not None:
        plain = _by_instants(texts, instants)
    else:
        parse = _parser(data_type, zone)
        plain = [parse(text) if text else None for text in texts]
    known = [not text or value is not None for text, value in zip(texts, plain, strict=True)]
    distinct = array_of(plain, data_type)
    indices = encoded.indices
    # A null string has no index: its value is null, and that is known.
    return PartitionValues(distinct.take(indices), pc.fill_null(pa.array(known, pa.bool_()).take(indices), True))


def fixed_zone(name: str) -> datetime.timezone | None:
    """The fixed offset from UTC that Spark means by `name`, such as `UTC`, `+08:00` or `UTC+8`; None for other zones.

    The rules of a named zone change with every release of the zone data, and Java and Python come with different
    releases: only Spark converts a time in such a zone.
    """
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    offset = _FIXED_OFFSET.fullmatch(name)
    if offset is None or int(offset[2]) > 18:
        return None
    size = datetime.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    return datetime.timezone(-size if offset[1] == "-" else size)


def at_offset(wall_us: int, zone: datetime.timezone) -> int:
    """Microseconds since 1970 UTC when a clock with this offset shows `wall_us`."""
    return wall_us - zone.utcoffset(None) // datetime.timedelta(microseconds=1)


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


def _parser(data_type: DataType, zone: datetime.timezone | None) -> Callable[[str], Any]:
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
    # Arrow brings the digits to 32 bits in one step; by way of a double they would be rounded twice.
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


def _instant_us(text: str, zone: datetime.timezone | None) -> int | None:
    parsed = parse_timestamp(text)
    if parsed is None:
        return None
    wall_us, offset_s = parsed
    if offset_s is not None:
        return _in_range(wall_us - offset_s * SECOND_US)
    return None if zone is None else _in_range(at_offset(wall_us, zone))


def _by_instants(texts: Sequence[str | None], instants: Instants) -> list[int | None]:
    """The instants of timestamps, those without a zone converted by `instants`."""
    parsed = [parse_timestamp(text) if text else None for text in texts]
    local = {each[0] for each in parsed if each is not None and each[1] is None}
    walls = [wall_us for wall_us in local if _in_range(wall_us) is not None]
    converted = dict(zip(walls, instants(walls), strict=True)) if walls else {}
    return [
        converted.get(each[0]) if each is not None and each[1] is None else _instant_us(text or "", None)
        for text, each in zip(texts, parsed, strict=True)
    ]


def _in_range(microseconds: int) -> int | None:
    return microseconds if -(1 << 63) <= microseconds < 1 << 63 else None
