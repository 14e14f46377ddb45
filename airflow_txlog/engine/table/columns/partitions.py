"""Partition values, from the strings of the log to typed Arrow arrays; `datafiles/partitioning` is the other way.

The invariant: a value is either exactly the one that every reader sees, or marked as not known; it is never guessed.
Source: protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import WALL_TIME, Codec, Instant, codec_of
from airflow_txlog.engine.table.schema.schema import array_of, arrow_type
from airflow_txlog.engine.table.schema.types import DataType, StructType
from airflow_txlog.errors import CorruptTable, UnknownColumn

_FIXED_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?([0-5]\d))?", re.ASCII)
Instants: TypeAlias = Callable[[Sequence[int]], Sequence[int | None]]
"""Converts wall times of some zone to instants, in microseconds since 1970; None if unknown."""


@dataclass(frozen=True, slots=True)
class PartitionValues:
    """One value per file, null if null or not known; `known` (never null) distinguishes the two."""

    values: pa.Array
    known: pa.BooleanArray

    def for_rows(self, column: str) -> pa.Array:
        """Return the values for rows of the files. Raises CorruptTable if one is not known."""
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
    """Return the partition columns of `files` (a FILES table) as typed values, keyed by the schema's spelling.

    `only`: the wanted columns, in any case. `time_zone`, `instants`: see `parse_partition_values`. Raises UnknownColumn
    for a partition column that the schema lacks.
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
            column = files.column("partition_values")
            strings = _looked_up(column, member.physical_name)
            if name != member.name and member.physical_name == member.name:
                # The list of partition columns may spell the name in another case, and writers have followed either.
                strings = pc.coalesce(strings, _looked_up(column, name))
            typed[member.name] = parse_partition_values(strings, member.type, time_zone=time_zone, instants=instants)
    return typed


def parse_partition_values(
    strings: pa.Array | pa.ChunkedArray,
    data_type: DataType,
    *,
    time_zone: str | None = None,
    instants: Instants | None = None,
) -> PartitionValues:
    """Return partition strings as values of `data_type`; null and "" are null, other text may not be known.

    A timestamp without a zone is read in `time_zone`, which `instants` converts unless it is a fixed offset.
    """
    encoded = strings.dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    texts = encoded.dictionary.to_pylist()
    zone = None if time_zone is None else fixed_zone(time_zone)
    codec = codec_of(arrow_type(data_type), zone)
    if isinstance(codec, Instant) and zone is None and instants is not None:
        plain = _by_instants(texts, codec, instants)
    else:
        plain = [codec.read(text) if text and codec is not None else None for text in texts]
    known = [not text or value is not None for text, value in zip(texts, plain, strict=True)]
    distinct = array_of(plain, data_type)
    indices = encoded.indices
    # A null string has no index: it is known to be null.
    return PartitionValues(distinct.take(indices), pc.fill_null(pa.array(known, pa.bool_()).take(indices), True))


def fixed_zone(name: str) -> datetime.timezone | None:
    """Return the offset from UTC that Spark means by `UTC`, `+08:00` or `UTC+8`; None for zones with rules."""
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    offset = _FIXED_OFFSET.fullmatch(name)
    if offset is None or int(offset[2]) > 18:
        return None
    size = datetime.timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    return datetime.timezone(-size if offset[1] == "-" else size)


def _looked_up(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the value of the key in every map, or null."""
    return pa.chunked_array([_looked_up_in(chunk, name) for chunk in column.chunks], pa.string())


def _looked_up_in(maps: pa.MapArray, name: str) -> pa.Array:
    # If every map holds only the key (one partition column), the items are the answer.
    if len(maps) and not maps.null_count:
        first, end = maps.offsets[0].as_py(), maps.offsets[len(maps)].as_py()
        keys = maps.keys.slice(first, end - first)
        one_each = pc.equal(pc.subtract(maps.offsets.slice(1), maps.offsets.slice(0, len(maps))), 1)
        if one_each.true_count == len(maps) and pc.equal(keys, name).true_count == len(maps):
            return maps.items.slice(first, end - first)
    return pc.map_lookup(maps, pa.scalar(name), "first")


def _by_instants(texts: Sequence[str | None], codec: Codec, instants: Instants) -> list[int | None]:
    """Return the instants of timestamps, those without a zone converted by `instants`."""
    plain = [codec.read(text) if text else None for text in texts]
    # Wall times of texts without an offset.
    walls = [WALL_TIME.read(text) if text and value is None else None for text, value in zip(texts, plain, strict=True)]
    distinct = list({wall for wall in walls if wall is not None})
    converted = dict(zip(distinct, instants(distinct), strict=True)) if distinct else {}
    return [value if wall is None else converted[wall] for value, wall in zip(plain, walls, strict=True)]
