"""Text columns that go from file to file as dictionaries, without being spelled out and looked up again.

A column comes as a dictionary where each of its chunks has one that its writer did not give up, and where the file is
by a writer known to put no value into a dictionary twice: Arrow numbers the values of a dictionary anew and takes the
indices as they are, so a value that stands in it twice would shift those behind it. The invariant: a dictionary that is
written holds only values that some row has, because what was deleted must be in no file, dictionary pages included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# A dictionary at its limit, with room for the headers of pages; an index of it, with room for what the coding adds.
_DICTIONARY_BYTES = 1_200_000
_INDEX_BYTES = 2.5
# Spark and everything else in Java, Arrow, and delta-rs: each looks a value up before it numbers it.
_DISTINCT_WRITERS = ("parquet-mr", "parquet-cpp", "parquet-rs")


def holds_dictionary(chunk: Any) -> bool:
    """Whether the column chunk has a dictionary that was not given up on the way.

    Every writer gives a dictionary up at 1 MiB and goes on plainly; to try again would cost a quarter of the copy's
    time for nothing. Such a dictionary has at most 2^18 entries, so a chunk that holds more than it and 18 bits a value
    has values outside of it.
    """
    # Some writers leave the offset of the dictionary page out; the encodings show it all the same.
    if not (chunk.has_dictionary_page or {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(chunk.encodings)):
        return False
    return bool(chunk.total_uncompressed_size <= _DICTIONARY_BYTES + chunk.num_values * _INDEX_BYTES)


def dictionary_columns(parquet: pq.ParquetFile) -> list[str]:
    """The top-level columns of an open file that may be read as dictionaries, in the file's order."""
    metadata = parquet.metadata
    if not (metadata.created_by or "").startswith(_DISTINCT_WRITERS):
        return []
    by_path = {parquet.schema.column(index).path: index for index in range(metadata.num_columns)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = []
    for field in parquet.schema_arrow:
        index = by_path.get(field.name)
        # A name with a dot in it may be the path of a member too.
        if index is None or "." in field.name or not is_held_as_dictionary(_dictionary_of(field.type)):
            continue
        if groups and all(holds_dictionary(group.column(index)) for group in groups):
            found.append(field.name)
    return found


def is_held_as_dictionary(kind: pa.DataType) -> bool:
    """Whether this is the type in which `dictionary_columns` are read."""
    return bool(kind in (_dictionary_of(pa.string()), _dictionary_of(pa.binary())))


def values_in_use(column: pa.ChunkedArray) -> list[pa.Array]:
    """The values that the rows of a dictionary column have, without their nulls; for each chunk those of its own."""
    return [chunk.dictionary.take(pc.unique(chunk.indices.drop_null())) for chunk in column.chunks]


def without_spare_values(table: pa.Table) -> pa.Table:
    """The table, each dictionary column in one chunk and its dictionary without values that no row has."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field, _compacted(table.column(number).unify_dictionaries().chunks))
    return table


def _compacted(chunks: Sequence[pa.DictionaryArray]) -> pa.DictionaryArray:
    indices = pa.concat_arrays([chunk.indices for chunk in chunks])
    dictionary = chunks[0].dictionary
    used = pc.unique(indices.drop_null())
    if len(used) < len(dictionary):
        used = used.sort()
        indices = pc.index_in(indices, value_set=used)
        dictionary = dictionary.take(used)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def _dictionary_of(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_dictionary(kind) else pa.dictionary(pa.int32(), kind)
