"""Checks that make it safe to read the column chunks of a Parquet footer through Arrow.

Arrow checks a column chunk only on access (`RowGroupMetaData.column`, then `compression` or `statistics`). Nothing
catches the exceptions of that C++ call: a histogram of the wrong length or an unknown codec ends the process. A footer
is another writer's input, so these facts are checked here first. The invariant: after this check every access to every
chunk is safe. So this module must never read a footer differently from Arrow: Thrift trusts its own type for the items
of a list, and keeps 16 bits of a field's number. A footer for which that matters is refused.
Source: parquet.thrift; Arrow, ColumnChunkMetaData and SizeStatistics::Validate; Thrift, TCompactProtocol.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.thrift import BINARY, I32, I64, STRUCT, Compact, of_another_type

# Numbers of fields in parquet.thrift.
ROW_GROUPS, COLUMNS, META_DATA = 4, 1, 3
TYPE, _ENCODINGS, _CODEC, _SIZE_STATISTICS = 1, 2, 4, 16
# Every other list, by the number of its field, or of the struct around it, with the type of its items.
_Lists: TypeAlias = "Mapping[int, int | _Lists]"
_OF_FILE: _Lists = {2: STRUCT, 5: STRUCT, 7: STRUCT}
_OF_ROW_GROUP: _Lists = {4: STRUCT}
_OF_CHUNK: _Lists = {8: {2: {1: BINARY}}}
_OF_META_DATA: _Lists = {3: BINARY, 8: STRUCT, 13: STRUCT, 17: {2: I32}}
PHYSICAL_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_CODECS, _KNOWN_ENCODINGS = range(8), range(10)


def check_footer(source: Any, parquet: pq.ParquetFile) -> Mapping[tuple[int, int], int]:
    """Return the claimed bytes of the texts of each column chunk, by the numbers of its row group and column.

    Chunks without that claim are left out. `source` is the seekable binary file object of `parquet`. Raises ValueError,
    without a value of the file, if a column chunk is not safe to access.
    """
    data = footer_of(source)
    digest = hashlib.sha256(data).digest()
    known = _checked.get(digest)
    if known is None:
        schema = parquet.schema
        known = _check(Compact(data), [_Leaf.of(schema.column(index)) for index in range(len(schema))])
        with _lock:
            while len(_checked) >= _MOST_CHECKED:
                del _checked[next(iter(_checked))]
            if len(known) <= _MOST_TEXTS:
                _checked[digest] = known
    return known


# A job opens a file several times: to plan, to find rows and to copy the others. The facts follow from the bytes.
_checked: dict[bytes, dict[tuple[int, int], int]] = {}
_MOST_CHECKED, _MOST_TEXTS = 64, 4_096
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the schema. Arrow computes each fact anew whenever it is asked."""

    physical_type: str
    most_levels: dict[int, int]
    """The highest repetition and definition level, by the field of the histogram of these levels."""

    @staticmethod
    def of(column: Any) -> _Leaf:
        return _Leaf(column.physical_type, {2: column.max_repetition_level, 3: column.max_definition_level})


def _check(footer: Compact, leaves: list[_Leaf]) -> dict[tuple[int, int], int]:
    text_bytes: dict[tuple[int, int], int] = {}
    try:
        for number, kind in footer.fields():
            if number == ROW_GROUPS:
                for group, _ in enumerate(footer.items(kind, STRUCT)):
                    for column, size_bytes in _check_row_group(footer, leaves):
                        text_bytes[group, column] = size_bytes
            else:
                _skip(footer, kind, _OF_FILE.get(number))
    except IndexError as error:
        raise ValueError("its footer ends within a field") from error
    return text_bytes


def footer_of(source: Any) -> bytes:
    """Return the footer of the seekable binary file object `source`, a Parquet file."""
    end = source.seek(-8, io.SEEK_END)
    # As Arrow opened the file, its last eight bytes are the length of the footer and the magic number.
    start = end - int.from_bytes(source.read(4), "little")
    source.seek(start)
    footer: bytes = source.read(end - start)
    source.seek(0)
    return footer


def _check_row_group(footer: Compact, leaves: list[_Leaf]) -> Iterator[tuple[int, int]]:
    """Yield the number of each column whose texts the footer counts, and their bytes."""
    for number, kind in footer.fields():
        if number != COLUMNS:
            _skip(footer, kind, _OF_ROW_GROUP.get(number))
            continue
        count = 0
        for count, _ in enumerate(footer.items(kind, STRUCT), 1):
            if count > len(leaves):
                break
            text_bytes = _check_chunk(footer, leaves[count - 1])
            if text_bytes is not None:
                yield count - 1, text_bytes
        if count != len(leaves):
            raise ValueError(f"a row group has {count} or more column chunks, and its schema {len(leaves)} columns")


def _check_chunk(footer: Compact, leaf: _Leaf) -> int | None:
    has_metadata, text_bytes = False, None
    for number, kind in footer.fields():
        if number == META_DATA and kind == STRUCT:
            has_metadata = True
            text_bytes = _check_metadata(footer, leaf)
        else:
            _skip(footer, kind, _OF_CHUNK.get(number))
    if not has_metadata:
        raise ValueError("a column chunk has no metadata in the footer")
    return text_bytes


def _check_metadata(footer: Compact, leaf: _Leaf) -> int | None:
    text_bytes = None
    for number, kind in footer.fields():
        if number in (TYPE, _CODEC) and kind != I32:
            raise of_another_type()
        if number == TYPE:
            found = footer.signed()
            if not 0 <= found < len(PHYSICAL_TYPES) or PHYSICAL_TYPES[found] != leaf.physical_type:
                raise ValueError("a column chunk is of another physical type than its column")
        elif number == _ENCODINGS:
            if any(footer.signed() not in _KNOWN_ENCODINGS for _ in footer.items(kind, I32)):
                raise ValueError("a column chunk has an encoding that Parquet does not know")
        elif number == _CODEC:
            if footer.signed() not in _CODECS:
                raise ValueError("a column chunk has a codec that Parquet does not know")
        elif number == _SIZE_STATISTICS and kind == STRUCT:
            text_bytes = _check_size_statistics(footer, leaf)
        else:
            _skip(footer, kind, _OF_META_DATA.get(number))
    return text_bytes


def _check_size_statistics(footer: Compact, leaf: _Leaf) -> int | None:
    text_bytes = None
    for number, kind in footer.fields():
        if number in leaf.most_levels:
            if footer.skip_list(kind, I64) not in (0, leaf.most_levels[number] + 1):
                raise ValueError("a histogram of levels in the footer has another length than its column has levels")
        elif number == 1 and leaf.physical_type != "BYTE_ARRAY":
            raise ValueError("the footer counts bytes of a column that has none")
        elif number == 1 and kind == I64:
            text_bytes = max(0, footer.signed())
        else:
            footer.skip(kind)
    return text_bytes


def _skip(footer: Compact, kind: int, lists: int | _Lists | None) -> None:
    """Skip a field: a list of such items, or a struct with such lists."""
    if lists is None:
        footer.skip(kind)
    elif isinstance(lists, int):
        footer.skip_list(kind, lists)
    elif kind == STRUCT:
        for number, inner in footer.fields():
            _skip(footer, inner, lists.get(number))
    else:
        footer.skip(kind)
