"""Encode the columns of a new Parquet file in two threads.

Arrow encodes the columns of a file one after the other. A column chunk does not depend on its position in the file.
Therefore each thread encodes half of the columns as a file in memory, and the chunks of both files are joined. The
invariant: the result has the same bytes as a file that Arrow has written. Source: parquet.thrift; `splicing`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.footer_statistics import GroupChunks, chunks_by_group
from airflow_txlog.datafiles.parquet.footers import footer_of
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.splicing import (
    ROW_GROUPS,
    JoiningWriter,
    chunks_of_group,
    row_group,
    with_groups,
)
from airflow_txlog.datafiles.parquet.thrift import Fields, fields_of, struct, structs_of

# To encode fewer rows takes about as long as the second thread.
FEWEST_ROWS = 16 * 1024
# Arrow would make two row groups of more.
_MOST_ROWS = 64 * 1024 * 1024
_MAGIC_BYTES, _ENDING_BYTES = 4, 8


# The columns of the parts that were encoded alone, and the statistics of each.
_Parts: TypeAlias = list[tuple[list[str], GroupChunks]]


class HalvesWriter(JoiningWriter):
    """Writes a file of new rows, in two threads if its first row group has FEWEST_ROWS rows or more.

    The schema has at least two columns, and the file is not encrypted. A whole encoded row group is held in memory.
    """

    def __init__(self, *of_file: Any, **options: Any) -> None:
        super().__init__(*of_file, **options)
        self._groups: list[Fields] | None = None
        self._parts: list[_Parts] = []
        """The parts of each table that was encoded in two threads."""

    def _encode_group(self, table: pa.Table) -> None:
        if self._writer is None:
            self._groups, self._parts = [] if table.num_rows >= FEWEST_ROWS else None, []
        super()._encode_group(table)

    def _stream(self, sink: Any) -> Any:
        return sink if self._groups is None else super()._stream(sink)

    def _write_group(self, writer: pq.ParquetWriter, table: pa.Table) -> None:
        if self._groups is None:
            super()._write_group(writer, table)
            return
        self._parts.append([])
        for start in range(0, table.num_rows, _MOST_ROWS):
            self._groups.append(self._written(table.slice(start, _MOST_ROWS)))

    def _written(self, table: pa.Table) -> Fields:
        """Write the rows, and return their row group."""
        middle = _middle([column.nbytes for column in table.columns])
        with ThreadPoolExecutor(1, thread_name_prefix="txlog-half") as beside:
            second = beside.submit(self._encoded_alone, table.select(range(middle, table.num_columns)))
            halves = [self._encoded_alone(table.select(range(middle))), second.result()]
        chunks = []
        for data, names, written in halves:
            self._parts[-1] += [(names, chunks) for chunks in chunks_by_group(written)]
            footer = footer_of(pa.BufferReader(data))
            (group,) = structs_of(fields_of(footer), ROW_GROUPS)
            chunks += chunks_of_group(fields_of(group), self._chunks.tell() - _MAGIC_BYTES)
            self._chunks.write(data[_MAGIC_BYTES : len(data) - _ENDING_BYTES - len(footer)])
        return row_group(fields_of(group), chunks, len(self._groups or ()))

    def _encoded_alone(self, table: pa.Table) -> tuple[pa.Buffer, list[str], pq.FileMetaData]:
        """Return a file of these columns alone, their names, and its footer."""
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema, store_schema=False, **self._options) as writer:
            writer.write_table(table, row_group_size=table.num_rows)
        return sink.getvalue(), table.column_names, writer.writer.metadata

    def _group_chunks(self, written: pq.FileMetaData) -> list[GroupChunks]:
        return super()._group_chunks(written) if self._groups is None else list(map(_together, self._parts))

    def _end(self, writer: pq.ParquetWriter) -> None:
        if self._groups is None:
            RowGroupWriter._end(self, writer)
        else:
            super()._end(writer)

    def _footer(self, written: bytes) -> bytes:
        assert self._groups is not None
        return struct(with_groups(fields_of(written), self._groups))


def _together(parts: _Parts) -> GroupChunks:
    return lambda name: [chunk for names, chunks in parts if name in names for chunk in chunks(name)]


def _middle(sizes: Sequence[int]) -> int:
    """Return the number of columns in the first half, so that both halves have about the same number of bytes."""
    before = list(itertools.accumulate(sizes))
    return min(range(1, len(sizes)), key=lambda number: abs(2 * before[number - 1] - before[-1]))
