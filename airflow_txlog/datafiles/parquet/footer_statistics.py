"""The statistics of a Parquet file's columns in its footer, and which of them prove bounds of the table's values.

The invariant: a bound is taken from a footer only if its writer is known to have compared the values as Spark does.
Source: parquet.thrift, Statistics; Arrow, ApplicationVersion::HasCorrectStatistics; soundness, A6.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import mul
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.footer_forms import ChunkStatistics, FormFooter
from airflow_txlog.datafiles.parquet.reading import calendar_of

ColumnPath: TypeAlias = tuple[str, ...]

_MICROSECONDS = {"ms": 1000, "us": 1}
_EXACT = decimal.Context(prec=80)
# Of these writers, and of versions that it cannot read, Arrow takes bounds of texts that are equal, and no others. The
# oldest of them did not count the header of a dictionary in the size of its chunk (PARQUET-816): Arrow reads further.
_OF_OLD_WRITER = re.compile(r"parquet-(?:mr|cpp)(?!-arrow)(?! version (?:1\.\d\d|[2-9]\.))", re.IGNORECASE)
_OLD_WRITER = re.compile(r"parquet-mr (?:version )?(?:0|1\.\d)(?!\d)")


class Leaf(NamedTuple):
    """A leaf of a file outside of lists and maps. `plain` converts a physical bound; None if no bound is proven."""

    number: int
    plain: Callable[[Any], Any] | None
    may_have_nan: bool


class FooterLeaves(NamedTuple):
    """The names of a file's columns, and its leaves by their path."""

    names: frozenset[str]
    found: Mapping[ColumnPath, Leaf]


Chunks: TypeAlias = Callable[[int], Sequence[ChunkStatistics]]
"""The statistics of a column's chunks in row groups with rows, by the number of the column."""
GroupChunks: TypeAlias = Callable[[str], Iterable[ChunkStatistics]]
"""The statistics of a column without members in a row group that Arrow has just written, by its name."""


def chunks_of(parquet: pq.ParquetFile, row_groups: Iterable[int] | None = None) -> Chunks:
    """Return the statistics of these row groups of an open file that `open_data_file` has checked; None for all."""
    numbers = range(parquet.metadata.num_row_groups) if row_groups is None else row_groups
    groups = [parquet.metadata.row_group(number) for number in numbers]
    groups = [group for group in groups if group.num_rows]
    return lambda number: [_of_chunk(group.column(number)) for group in groups]


def chunks_by_group(footer: pq.FileMetaData) -> list[GroupChunks]:
    """Return the statistics of the row groups of a file that Arrow has just written, by its footer."""
    columns = map(footer.schema.column, range(footer.num_columns))
    # Names may hold dots; but the path of a member is longer than its name.
    numbers = {column.name: number for number, column in enumerate(columns) if column.name == column.path}

    def of(group: pq.RowGroupMetaData) -> GroupChunks:
        return lambda name: [_of_chunk(group.column(numbers[name]))]

    return [of(footer.row_group(number)) for number in range(footer.num_row_groups)]


def _of_chunk(chunk: pq.ColumnChunkMetaData) -> ChunkStatistics:
    found = chunk.statistics if chunk.is_stats_set else None
    return ChunkStatistics(
        num_values=chunk.num_values,
        null_count=found.null_count if found is not None and found.has_null_count else None,
        bounds=(found.min_raw, found.max_raw) if found is not None and found.has_min_max else None,
    )


def chunks_of_form(footer: FormFooter) -> Chunks:
    """Return the statistics of a file whose form `are_plain` accepts."""
    return lambda number: [footer.statistics(number)] if footer.num_rows else []


def are_plain(parquet: pq.ParquetFile, footer: FormFooter, leaves: FooterLeaves) -> bool:
    """Return whether Arrow takes the statistics of an open file as they are in `footer`, and those of its form too.

    `leaves`: those of the file.
    """
    if not footer.num_rows or is_of_old_writer(parquet):
        return False
    taken, held = chunks_of(parquet), chunks_of_form(footer)
    pairs = [(leaf, taken(leaf.number)[0], held(leaf.number)[0]) for leaf in leaves.found.values()]
    return all(one == other if leaf.plain else one[:2] == other[:2] for leaf, one, other in pairs)


def is_of_old_writer(parquet: pq.ParquetFile) -> bool:
    """Return whether statistics and sizes in the file's footer may need care that only Arrow takes."""
    return _OF_OLD_WRITER.match(parquet.metadata.created_by or "") is not None


def leaves_of_footer(parquet: pq.ParquetFile) -> FooterLeaves:
    """Return what statistics need to know of an open file's columns."""
    schema, arrow = parquet.schema, parquet.schema_arrow
    types = dict(_leaf_types(arrow))
    paths: dict[str, ColumnPath | None] = {}
    for path in types:
        joined = ".".join(path)
        # Names may hold dots: a path that two leaves share belongs to neither.
        paths[joined] = None if joined in paths else path
    is_old = _OLD_WRITER.match(parquet.metadata.created_by or "") is not None
    legacy = calendar_of(parquet)
    found: dict[ColumnPath, Leaf] = {}
    for index in range(len(schema)):
        column = schema.column(index)
        place = paths.get(column.path)
        if place is not None and not column.max_repetition_level:
            kind = types[place]
            is_unsure = legacy.is_legacy and pa.types.is_temporal(kind)
            plain = None if is_unsure else _plain_bound(column, kind, is_old=is_old)
            found[place] = Leaf(index, plain, pa.types.is_floating(kind))
    return FooterLeaves(frozenset(arrow.names), found)


def _leaf_types(members: Iterable[pa.Field], path: ColumnPath = ()) -> Iterator[tuple[ColumnPath, pa.DataType]]:
    for member in members:
        if pa.types.is_struct(member.type):
            yield from _leaf_types(member.type, (*path, member.name))
        else:
            yield (*path, member.name), member.type


def _plain_bound(column: pq.ColumnSchema, kind: pa.DataType, *, is_old: bool) -> Callable[[Any], Any] | None:
    """Return how a bound of a column chunk becomes the plain value that `_Column` compares."""
    is_a = pa.types
    if is_a.is_dictionary(kind):
        kind = kind.value_type
    if is_a.is_signed_integer(kind) or is_a.is_date32(kind):
        return int
    if is_a.is_float32(kind) or is_a.is_float64(kind):
        return float
    if is_a.is_string(kind) or is_a.is_large_string(kind):
        return bytes
    if is_a.is_decimal(kind):
        # Early writers compared the bytes of decimals without a sign.
        if column.physical_type not in ("INT32", "INT64") and is_old:
            return None
        return partial(_decimal_bound, kind.scale)
    if is_a.is_timestamp(kind) and column.physical_type == "INT64" and kind.unit in _MICROSECONDS:
        return partial(mul, _MICROSECONDS[kind.unit])
    return None


def _decimal_bound(scale: int, raw: int | bytes) -> decimal.Decimal:
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return decimal.Decimal(unscaled).scaleb(-scale, _EXACT)
