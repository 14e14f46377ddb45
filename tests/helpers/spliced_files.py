"""Parquet files of rows of every kind, as several writers make them, and the bytes of their chunks."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

KINDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "small": pa.int16(),
    "text": pa.string(),
    "number": pa.float64(),
    "price": pa.decimal128(12, 2),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "flag": pa.bool_(),
    "list": pa.list_(pa.int64()),
    "pair": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "map": pa.map_(pa.string(), pa.int32()),
}
# Options of a writer that change the pages of a chunk, or what lies around the chunks.
WRITERS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "small groups": {"row_group_size": 37, "compression": "zstd"},
    "pages of version 2": {"data_page_version": "2.0", "data_page_size": 200, "compression": "gzip"},
    "page indexes": {"write_page_index": True, "row_group_size": 100},
    "order": {"sorting_columns": [pq.SortingColumn(0)], "row_group_size": 100},
    "checksums": {"write_page_checksum": True, "compression": {"id": "snappy", "text": "zstd", "pair.a": "gzip"}},
    "encodings": {
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "number": "BYTE_STREAM_SPLIT"},
    },
}


def rows(count: int, seed: int = 1) -> pa.Table:
    """Rows of every kind, a third of them null."""
    draw = random.Random(seed)

    def values(name: str) -> list[Any]:
        made: dict[str, Any] = {
            "id": lambda: draw.randrange(10**12),
            "small": lambda: draw.randrange(-100, 100),
            "text": lambda: draw.choice(["", "é", "repeated", "x" * draw.randrange(90)]),
            "number": lambda: draw.choice([0.0, -0.0, 1.5, float("inf"), draw.random()]),
            "price": lambda: Decimal(draw.randrange(10**9)).scaleb(-2),
            "day": lambda: draw.randrange(-40_000, 40_000),
            "at": lambda: draw.randrange(10**15),
            "flag": lambda: draw.random() < 0.5,
            "list": lambda: [draw.choice([None, 1, 2]) for _ in range(draw.randrange(3))],
            "pair": lambda: {"a": draw.randrange(9), "b": draw.choice([None, "b"])},
            "map": lambda: [(str(key), draw.choice([None, key])) for key in range(draw.randrange(3))],
        }
        return [made[name]() if draw.random() < 0.7 else None for _ in range(count)]

    return pa.table({name: pa.array(values(name), kind) for name, kind in KINDS.items()})


def start_of(chunk: pq.ColumnChunkMetaData) -> int:
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)


def chunks(path: Path, name: str) -> list[bytes]:
    """The bytes of all chunks of a column."""
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    found = []
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(leaf)
            if chunk.path_in_schema.split(".")[0] == name:
                start = start_of(chunk)
                found.append(data[start : start + chunk.total_compressed_size])
    return found
