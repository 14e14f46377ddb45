"""Traces in a Parquet file: in its rows, and in the parts of rows that a writer repeats elsewhere in the file.

Of every leaf column that may hold a value, the rows are decoded and the column chunks are searched (`column_chunks`).
The footer is searched as a whole. The invariant: what cannot be decoded raises, and is never taken for a file without
traces. Source: parquet.thrift.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.parquet.conversion import leaves
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.footers import footer_of
from airflow_txlog.datafiles.parquet.physical import PARQUET_ID_KEY
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches
from airflow_txlog.datafiles.parquet.rewriting import dictionary_columns
from airflow_txlog.datafiles.parquet.thrift import Fields, fields_of, integer_of, structs_of
from airflow_txlog.engine.commit.content.remembered_deletions import FOLDER as TOMBSTONES
from airflow_txlog.engine.commit.content.remembered_deletions import paths_of
from airflow_txlog.engine.erasure.column_chunks import (
    BLOOM_OFFSET,
    INDEX_LENGTH,
    INDEX_OFFSET,
    META_DATA,
    STATISTICS,
    SearchedLeaf,
    bloom_filter_bytes,
    bounds_in,
    bytes_of_chunk_hold,
    leaf_numbers,
    leaf_types,
    range_of_chunk,
    read_bytes,
    top_level,
    traces_in_chunk,
)
from airflow_txlog.engine.erasure.text_traces import kinds_of_texts, text_of
from airflow_txlog.engine.erasure.traces import Kind, Trace
from airflow_txlog.engine.erasure.values.forms import Forms, is_of_statistics
from airflow_txlog.engine.erasure.values.plain import is_text, plain_array, plain_type
from airflow_txlog.engine.log.names import LOG_DIRECTORY

# Numbers of fields in parquet.thrift: of the file, and of a row group.
_ROW_GROUPS, _COLUMNS = 4, 1
_INDEXES = ((4, 5), (INDEX_OFFSET, INDEX_LENGTH))
_MAGIC_BYTES, _ENDING_BYTES = 4, 8
# The rows of a batch are searched while they are in a processor's cache.
_ROWS = 32_768
_SCHEMA = "metaData.schemaString"


def traces_in_parquet(file: DataFile, forms: Forms) -> Iterator[Trace]:
    """Yield the traces in a Parquet file.

    Raises CorruptDataFile, UnsupportedFeature, ValueError, LookupError and the errors of pyarrow for a file of which
    not all can be decoded.
    """
    with open_data_file(file, dictionaries=dictionary_columns, reads_all=True) as parquet:
        forms = _forms_in(file, parquet, forms)
        searched = list(_searched(file, parquet, forms))
        yield from _in_rows(file, parquet, searched, forms)
        raw = footer_of(parquet.source)
        groups = structs_of(fields_of(raw), _ROW_GROUPS)
        chunks = [[fields_of(chunk) for chunk in structs_of(fields_of(group), _COLUMNS)] for group in groups]
        yield from _in_footer(raw, parquet, forms, _compared_bounds(file, searched, chunks, forms))
        by_number = {leaf.number: leaf for leaf in searched if leaf.plain.values or _needs_texts(parquet, leaf, forms)}
        for group, of_group in enumerate(chunks):
            for number, chunk in enumerate(of_group):
                leaf = by_number.get(number)
                if leaf is not None:
                    yield from traces_in_chunk(parquet, group, leaf, chunk, forms)
                elif bytes_of_chunk_hold(parquet, group, number, forms):
                    path = parquet.schema.column(number).path
                    yield Trace(f"bytes of column {forms.without_values(path)!r}, row group {group}", "value")
        for start, end in _unnamed(parquet, chunks, len(raw)):
            data = read_bytes(parquet.source, start, end - start)
            if forms.in_bytes(data):
                yield Trace("bytes that the footer does not name", "value")
            elif data.strip(b"\0") and "\0" in text_of(data):
                raise ValueError("bytes that the footer does not name are packed")


def has_key(file: DataFile, forms: Forms) -> bool:
    """Return whether a column of a file is the key. Raises the errors of `traces_in_parquet`."""
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        return any(forms.is_key(parquet.schema.column(number).path) for number in range(len(parquet.schema)))


def values_in_rows(file: DataFile, forms: Forms) -> Iterator[tuple[str, bool, pa.Array]]:
    """Yield the rows of each leaf column that may hold a value, batch by batch: its path, whether it is the key, and
    its values. Raises the errors of `traces_in_parquet`.
    """
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        by_number = {leaf.number: leaf for leaf in _searched(file, parquet, forms)}
        wanted = top_level(parquet, (leaf.path for leaf in by_number.values()))
        numbers = leaf_numbers(parquet)
        for _, batch in read_batches(file, parquet, [parquet.schema_arrow.field(name) for name in wanted]):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                for number, values in zip(numbers[name], leaves(plain_array(column)), strict=True):
                    if number in by_number:
                        path = by_number[number].path
                        yield path, forms.is_key(path), plain_array(values)


def batches_without_values(file: DataFile, forms: Forms) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file without those that hold a value, and how many these were in each batch.

    Raises as `traces_in_parquet` does.
    """
    with open_data_file(file) as parquet:
        forms = _forms_in(file, parquet, forms)
        columns = _Searched(parquet, list(_searched(file, parquet, forms)), forms, _is_of_log(file))

        def holds(batch: pa.RecordBatch) -> bool:
            return any(columns.counts([batch]).values())

        for _, batch in read_batches(file, parquet):
            rest = batch.filter(pc.invert(_holds_in_key(batch, forms)))
            rows = set(_rows_that(holds, rest, 0))
            rest = rest.take(pa.array([row for row in range(rest.num_rows) if row not in rows], pa.int64()))
            yield rest, batch.num_rows - rest.num_rows


def _holds_in_key(batch: pa.RecordBatch, forms: Forms) -> pa.Array:
    """Return for each row whether a top-level column that is the key has one of the values."""
    held = pa.array([False] * batch.num_rows, pa.bool_())
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if forms.is_key(name) and not pa.types.is_nested(column.type):
            held = pc.or_(held, forms.are_values(column))
    return held


def _rows_that(holds: Callable[[pa.RecordBatch], bool], batch: pa.RecordBatch, start: int) -> Iterator[int]:
    """Yield the numbers of the rows that hold a value, halving the batch."""
    if not batch.num_rows or not holds(batch):
        return
    if batch.num_rows == 1:
        yield start
        return
    half = batch.num_rows // 2
    # A copy: a slice has the bytes of all rows.
    for begin, end in ((0, half), (half, batch.num_rows)):
        yield from _rows_that(holds, batch.take(pa.array(range(begin, end), pa.int64())), start + begin)


def _forms_in(file: DataFile, parquet: OpenParquet, forms: Forms) -> Forms:
    """Return the forms with the paths that the column has in this file."""
    own = set(_paths_of_id(parquet.schema_arrow, forms.field_id))
    if file.path.startswith(f"{TOMBSTONES}/"):
        own.update(paths_of(parquet.schema_arrow.names, parquet.metadata.metadata or {}, forms.paths))
    others = frozenset(forms.others).difference(path.lower() for path in own)
    if own <= set(forms.paths) and len(others) == len(forms.others):
        return forms
    return replace(forms, paths=(*forms.paths, *own), others=others)


def _paths_of_id(fields: Iterable[pa.Field], field_id: int | None, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of the columns and members of structs with this id."""
    for field in fields:
        path = (*above, field.name)
        if field_id is not None and (field.metadata or {}).get(PARQUET_ID_KEY) == b"%d" % field_id:
            yield ".".join(path)
        if pa.types.is_struct(field.type):
            yield from _paths_of_id(field.type, field_id, path)


def _searched(file: DataFile, parquet: OpenParquet, forms: Forms) -> Iterator[SearchedLeaf]:
    kinds = [kind for field in parquet.schema_arrow for kind in leaf_types(field.type)]
    if len(kinds) != len(parquet.schema):
        raise ValueError("the columns of the file and of its Arrow schema differ")
    whole = frozenset(dictionary_columns(parquet))
    for number, kind in enumerate(kinds):
        column = parquet.schema.column(number)
        if forms.searches(kind, column.path):
            is_compared = forms.is_key(column.path) or _is_log_json(file, kind, column.path)
            plain = forms.plain(column, kind)
            yield SearchedLeaf(number, column.path, kind, plain, column.path in whole, is_compared)


# --- rows -----------------------------------------------------------------------------------------------------------


def _in_rows(file: DataFile, parquet: OpenParquet, searched: Sequence[SearchedLeaf], forms: Forms) -> Iterator[Trace]:
    wanted = top_level(parquet, (leaf.path for leaf in searched))
    if not wanted:
        return
    columns = _Searched(parquet, searched, forms, _is_of_log(file))
    found = rows = columns.counts(_distinct(file, parquet, wanted))
    if found.total() and any(map(pa.types.is_dictionary, parquet.schema_arrow.types)):
        # A dictionary may hold a value of no row.
        with open_data_file(file, reads_all=True) as plain:
            rows = replace(columns, parquet=plain).counts(_rows(file, plain, wanted))
    for path, kind in {**found, **rows}:
        where = f"column {forms.without_values(path)!r}"
        if count := rows[path, kind]:
            yield Trace(f"rows, {where}", kind, count)
        elif found[path, kind]:
            yield Trace(f"dictionary of {where}", kind)


def _needs_texts(parquet: OpenParquet, leaf: SearchedLeaf, forms: Forms) -> bool:
    """Return whether a column's dictionaries may hold a value that counts only in a text with the column's name."""
    if leaf.is_read_whole or not (forms.need_names and is_text(leaf.kind)):
        return False
    groups = map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups))
    return any(group.column(leaf.number).has_dictionary_page for group in groups)


def _is_of_log(file: DataFile) -> bool:
    return file.path.startswith(f"{LOG_DIRECTORY}/")


def _rows(
    file: DataFile, parquet: OpenParquet, names: Iterable[str], *, keeps_dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Return the rows of some columns."""
    fields = [parquet.schema_arrow.field(name) for name in names]
    batches = read_batches(file, parquet, fields, batch_rows=_ROWS, keeps_dictionaries=keeps_dictionaries)
    return (batch for _, batch in batches)


def _distinct(file: DataFile, parquet: OpenParquet, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some columns; of a column that is read as a dictionary, the values of the dictionary."""
    known: dict[str, pa.Array] = {}
    for batch in _rows(file, parquet, names, keeps_dictionaries=True):
        plain = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_dictionary(column.type):
                plain.append(name)
                continue
            # Arrow does not compare the numbers of values that it reads with the dictionary.
            column.validate(full=True)
            if name not in known or not known[name].equals(column.dictionary):
                known[name] = column.dictionary
                yield pa.RecordBatch.from_arrays([column.dictionary], [name])
        if plain:
            yield batch.select(plain)


@dataclass(frozen=True)
class _Searched:
    """The leaf columns of an open file that may hold a value."""

    parquet: OpenParquet
    leaves: Sequence[SearchedLeaf]
    forms: Forms
    is_log: bool

    @cached_property
    def _by_number(self) -> Mapping[int, SearchedLeaf]:
        return {leaf.number: leaf for leaf in self.leaves}

    @cached_property
    def _numbers(self) -> Mapping[str, Sequence[int]]:
        return leaf_numbers(self.parquet)

    def counts(self, batches: Iterable[pa.RecordBatch]) -> Counter[tuple[str, Kind]]:
        """Return how many rows hold a value, by the path of the column and the kind of the trace."""
        found = Counter[tuple[str, Kind]]()
        for batch in batches:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                self._count(self._numbers[name], leaves(plain_array(column)), found)
        return found

    def _count(self, numbers: Sequence[int], columns: Sequence[pa.Array], found: Counter[tuple[str, Kind]]) -> None:
        for at, (number, values) in enumerate(zip(numbers, columns, strict=True)):
            if number not in self._by_number:
                continue
            path = self._by_number[number].path
            for kind, count in _in_values(values, path, self.forms, is_log=self.is_log):
                found[path, kind] += count
            if at and _is_value_of(self.parquet.schema.column(number - 1).path, path):
                found[path, "value"] += self.forms.in_entries(columns[at - 1], values)


def _is_value_of(name: str, path: str) -> bool:
    """Return whether a leaf column has the values of a map, and the one before it their names."""
    (above, _, last), (above_name, _, last_name) = path.rpartition("."), name.rpartition(".")
    return above == above_name and (last_name, last) == ("key", "value")


def _in_values(values: pa.Array, path: str, forms: Forms, *, is_log: bool) -> Iterator[tuple[Kind, int]]:
    # The schema names the column, and has numbers that are no values, such as the ids of columns.
    is_json = is_log and (_is_statistics_in_json(path) or path == _SCHEMA)
    if not is_json and (count := forms.in_column(values, path)):
        yield "statistic" if is_log and is_of_statistics(path) else "value", count
    # The texts of a checkpoint are JSON, paths and bounds, which hold a value as a part.
    elif is_log and pa.types.is_string(plain_type(values.type)):
        for kind in kinds_of_texts(pc.unique(plain_array(values).drop_null()).to_pylist(), path, forms):
            yield kind, 1


def _is_statistics_in_json(path: str) -> bool:
    """Return whether a column of a checkpoint has statistics as JSON, of which the bounds of the key are compared."""
    return path.rpartition(".")[2] == "stats"


# --- beside the rows --------------------------------------------------------------------------------------------------


def _compared_bounds(
    file: DataFile, searched: Sequence[SearchedLeaf], chunks: Sequence[Sequence[Fields]], forms: Forms
) -> Iterator[bytes]:
    """Yield the statistics in the footer that are compared as bounds: the key of another person may hold a value.

    They are those of the key, whose chunks are searched, and of JSON in a checkpoint, unless a bound is a value.
    """
    for leaf in searched:
        is_json = _is_log_json(file, leaf.kind, leaf.path)
        if not leaf.is_compared or not (is_json or leaf.plain.values):
            continue
        for of_group in chunks:
            metadata = fields_of(of_group[leaf.number][META_DATA][1])
            if STATISTICS not in metadata:
                continue
            raw = metadata[STATISTICS][1]
            bounds = bounds_in(raw)
            texts = (bound.decode(errors="replace") for bound in bounds)
            if not any(kinds_of_texts(texts, leaf.path, forms) if is_json else map(leaf.plain.in_bound, bounds)):
                yield raw


def _is_log_json(file: DataFile, kind: pa.DataType, path: str) -> bool:
    return _is_of_log(file) and is_text(kind) and _is_statistics_in_json(path)


def _in_footer(raw: bytes, parquet: OpenParquet, forms: Forms, compared: Iterator[bytes]) -> Iterator[Trace]:
    """Search the footer's texts: names, and key-values, in base 64 too. `compared`: the parts that are not searched."""
    key_values = parquet.metadata.metadata or {}
    if forms.in_bytes(raw):
        for part in compared:
            if forms.in_bytes(part):
                raw = raw.replace(part, bytes(len(part)), 1)
    packed = [raw]
    for value in key_values.values():
        with suppress(ValueError):
            packed.append(base64.b64decode(value, validate=True))
    texts = (value.decode(errors="replace") for value in key_values.values())
    if any(map(forms.in_bytes, packed)) or any(kinds_of_texts(texts, "", forms)):
        yield Trace("footer", "value")


def _unnamed(parquet: OpenParquet, chunks: Sequence[Sequence[Fields]], footer_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each range of bytes that the footer does not name."""
    end = parquet.source.size() - _ENDING_BYTES - footer_bytes
    named = [(0, _MAGIC_BYTES), (end, end)]
    for group, of_group in enumerate(chunks):
        for leaf, chunk in enumerate(of_group):
            start, length = range_of_chunk(parquet.metadata.row_group(group).column(leaf))
            named.append((start, start + length))
            if start := integer_of(fields_of(chunk[META_DATA][1]), BLOOM_OFFSET) or 0:
                named.append((start, start + bloom_filter_bytes(parquet.source, start)))
            for offset, length in _INDEXES:
                if start := integer_of(chunk, offset) or 0:
                    named.append((start, start + (integer_of(chunk, length) or 0)))
    at = 0
    for start, stop in sorted(named):
        if at < start:
            yield at, start
        at = max(at, stop)
