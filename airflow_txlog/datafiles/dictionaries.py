"""Which columns of a new file get a dictionary, judged by its first rows.

A writer looks every value up in the dictionary, until it is full and given up. If nearly all values differ, that takes
half of the time, and the file gets larger by it. So such columns have none. The invariant: the choice changes the
encoding of a file, and never its values.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

# Of so many rows or more, samples are taken: an eighth of the rows, and no more than these. They lie all over the rows,
# which may be sorted. To judge fewer rows takes longer than to write their dictionaries.
_FEWEST_ROWS = 16_384
_SAMPLES, _SAMPLE_ROWS = 16, 1_024
# If fewer of 32 sampled values are repeated, a dictionary of 1 MiB does not hold the values.
_DISTINCT_OF_32 = 31
_REPEATED = 3


def repeated_columns(rows: pa.RecordBatch) -> list[str]:
    """Return the Parquet leaves whose values occur three times on average; nested ones always."""
    found: list[str] = []
    samples = rows if rows.num_rows < _FEWEST_ROWS else _samples(rows)
    for field, column, some in zip(rows.schema, rows.columns, samples.columns, strict=True):
        if pa.types.is_nested(field.type):
            found.extend(_leaf_paths(field.type, field.name))
        elif not pa.types.is_boolean(field.type) and _are_repeated(column, some):
            found.append(field.name)
    return found


def _are_repeated(values: pa.Array, samples: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether values occur three times on average; all of them are counted only if samples do not show it."""
    distinct = pc.count_distinct(samples).as_py()
    if len(samples) < len(values):
        if 32 * distinct >= _DISTINCT_OF_32 * len(samples):
            return False
        if distinct * _REPEATED > len(samples):
            distinct, samples = pc.count_distinct(values).as_py(), values
    return bool(distinct * _REPEATED <= len(samples))


def _samples(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    size = min(_SAMPLE_ROWS, rows.num_rows // (8 * _SAMPLES))
    step = (rows.num_rows - size) // (_SAMPLES - 1)
    parts = [rows.slice(number * step, size) for number in range(_SAMPLES)]
    tables = [part if isinstance(part, pa.Table) else pa.Table.from_batches([part]) for part in parts]
    return pa.concat_tables(tables).combine_chunks()


def without_unique_columns(rows: pa.Table) -> list[str] | bool:
    """Return the Parquet leaves of which not nearly all values differ, or may not; True for all of them.

    Lists, maps and views are not judged, nor are few rows.
    """
    if rows.num_rows < _FEWEST_ROWS:
        return True
    samples = _samples(rows)
    found: list[str] = []
    has_all = True
    for field, column in zip(samples.schema, samples.columns, strict=True):
        for path, values in _members(field.name, column):
            if _are_unique(values):
                has_all = False
            else:
                found.extend(_leaf_paths(values.type, path))
    return has_all or found


def _members(path: str, column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the column, or the members of a struct at any depth."""
    if not pa.types.is_struct(column.type):
        yield path, column
        return
    for field, values in zip(column.type, column.flatten(), strict=True):
        yield from _members(f"{path}.{field.name}", values)


def _are_unique(values: pa.ChunkedArray) -> bool:
    kind, types = values.type, pa.types
    if types.is_nested(kind) or types.is_boolean(kind) or types.is_null(kind) or types.is_dictionary(kind):
        return False
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Arrow does not count the values of views.
        return False
    valid = len(values) - values.null_count
    # Twice as fast as `count_distinct`. Null is one of them.
    distinct = len(values.unique()) - (valid < len(values))
    return bool(2 * valid > len(values) and 32 * distinct >= _DISTINCT_OF_32 * valid)


def _leaf_paths(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yield the paths of the Parquet leaves of a column, as Arrow names them."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaf_paths(field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        yield from _leaf_paths(kind.key_type, f"{path}.key_value.key")
        yield from _leaf_paths(kind.item_type, f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _leaf_paths(kind.value_type, f"{path}.list.element")
    else:
        yield path
