"""A search of a folder for the bytes of a value that shares no code with the package's own search.

Every file counts with its name, its bytes, and for Parquet also its rows, its footer, and each page that its column
chunks have, decompressed: dictionaries too, whose values no row needs to have.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import unicodedata
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3


def holding(folder: Path, value: Any) -> list[str]:
    """Return the files and folders in whose name, bytes or decoded content a value stands."""
    needles = set(_needles(value))
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        data = [name.encode("utf-8", "surrogateescape")]
        if path.is_file():
            data.append(path.read_bytes())
            if data[1].startswith(b"PAR1"):
                data += _decoded(path)
        if any(needle in each for needle in needles for each in data):
            found.append(name)
    return found


def _needles(value: Any) -> Iterator[bytes]:
    texts = [str(value)]
    if isinstance(value, bytes):
        yield from (value, base64.b64encode(value))
        texts = [str(uuid.UUID(bytes=value)), value.hex()]
    elif isinstance(value, int):
        yield value.to_bytes(8 if value.bit_length() > 31 else 4, "little")
    elif isinstance(value, Decimal):
        unscaled = int(value.scaleb(2))
        yield from (unscaled.to_bytes(9, "big"), unscaled.to_bytes(16, "little"))
    elif isinstance(value, dt.date):
        days = (value - dt.date(1970, 1, 1)).days
        yield days.to_bytes(4, "little", signed=True)
    for text in texts:
        for form in (text, unicodedata.normalize("NFD", text), text.upper()):
            escaped = [json.dumps(form, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True)]
            for spelled in (form, quote(form), quote(form, safe=""), *escaped):
                yield from (spelled.encode(way) for way in ("utf-8", "utf-16-le", "utf-16-be"))
            yield base64.b64encode(form.encode())


def _decoded(path: Path) -> Iterator[bytes]:
    whole = pq.ParquetFile(path).read()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    yield sink.getvalue().to_pybytes()
    footer = pq.read_metadata(path)
    yield repr(footer.to_dict()).encode()
    data = path.read_bytes()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            starts = (chunk.dictionary_page_offset, chunk.data_page_offset)
            start = min(each for each in starts if each is not None)
            yield from _pages(data[start : start + chunk.total_compressed_size], chunk.compression)


def _pages(data: bytes, compression: str) -> Iterator[bytes]:
    codec = None if compression == "UNCOMPRESSED" else {"LZ4": "lz4_raw"}.get(compression, compression.lower())
    at = 0
    while at < len(data):
        header, at = _struct(data, at)
        size, packed = header[2], header[3]
        page, at = data[at : at + packed], at + packed
        assert header[1] in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2)
        levels = 0
        if header[1] == _DATA_PAGE_V2:
            levels = header[8].get(5, 0) + header[8].get(6, 0)
        if codec is None or (header[1] == _DATA_PAGE_V2 and header[8].get(7) is False):
            yield page
        elif size > levels:
            yield pa.Codec(codec).decompress(page[levels:], size - levels).to_pybytes()


# --- Thrift's compact protocol, as far as page headers need it -------------------------------------------------------


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while kind := data[at]:
        at += 1
        if kind >> 4:
            number += kind >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, kind & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 8:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    assert kind == 12, kind
    return _struct(data, at)


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
