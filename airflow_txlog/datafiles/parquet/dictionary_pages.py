"""How long the longest text is that a column chunk of a Parquet file keeps in its dictionary.

A dictionary holds a text once for any number of rows, so its longest text bounds what a row of the chunk may take. Only
dictionary pages are read here: a megabyte of a chunk at most, as writers make them. The invariant: a number that is
returned holds for the page that Arrow reads, the first one of the chunk; what is unusual about it is not known.
Source: parquet.thrift, PageHeader and DictionaryPageHeader; Parquet, "Plain" encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.parquet.footers import Compact

# Without LZ4: pyarrow has one name for two forms of it.
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd"}
# Pages so near to each other are one read.
_NEAR_BYTES = 512 * 1024
# A page that is larger, or says that it will be, is not looked at; and no read goes far beyond it.
_MOST_BYTES = 16 * 1024 * 1024
# So many texts are looked at, of all pages: any number of chunks may say that the same page of empty texts is theirs.
_MOST_TEXTS = 4_000_000
# Numbers of fields and values in parquet.thrift, and of the 32-bit integer in the compact protocol.
_KIND, _SIZE, _COMPRESSED_SIZE, _DICTIONARY = 1, 2, 3, 7
_COUNT, _ENCODING = 1, 2
_DICTIONARY_PAGE = 2
_PLAIN = (0, 2)
_I32, _STRUCT = 5, 12
_LENGTH = struct.Struct("<i")


def longest_texts(source: Any, chunks: Sequence[Any]) -> list[int | None]:
    """Of each chunk (`ColumnChunkMetaData` of texts) the bytes of the longest text in its dictionary; None: not known.

    `source` is the seekable binary file object that holds the chunks. A footer may lack the place of a dictionary.
    """
    found: list[int | None] = [None] * len(chunks)
    places = sorted((chunk.dictionary_page_offset or 0, chunk.data_page_offset, i) for i, chunk in enumerate(chunks))
    left = _MOST_TEXTS
    for start, end, near in _together(places):
        source.seek(start)
        data = source.read(end - start)
        for page_start, page_end, index in near:
            page = memoryview(data)[page_start - start : page_end - start]
            found[index], count = _longest(page, chunks[index].compression, left)
            left -= count
    source.seek(0)
    return found


_Place = tuple[int, int, int]


def _together(places: Sequence[_Place]) -> Iterator[tuple[int, int, list[_Place]]]:
    """Where to read, and what pages lie there; those that cannot be where they are said to be are left out."""
    near: list[_Place] = []
    for place in places:
        if not 0 < place[0] < place[1] <= place[0] + _MOST_BYTES:
            continue
        if near and (place[0] > near[-1][1] + _NEAR_BYTES or place[1] > near[0][0] + _MOST_BYTES):
            yield near[0][0], max(end for _, end, _ in near), near
            near = []
        near.append(place)
    if near:
        yield near[0][0], max(end for _, end, _ in near), near


def _longest(page: memoryview, compression: str, most_texts: int) -> tuple[int | None, int]:
    """The longest text, if it can be known by looking at no more than so many, and how many were looked at."""
    count = 0
    try:
        header = _Header(page)
        is_usual = header.is_plain_dictionary and 0 <= header.size_bytes <= _MOST_BYTES
        # Each takes four bytes at least.
        if not is_usual or header.count > min(most_texts, header.size_bytes // 4):
            return None, 0
        count = header.count
        body = page[header.length : header.length + header.compressed_bytes]
        if compression == "UNCOMPRESSED":
            return _longest_of(body, count), count
        codec = pa.Codec(_CODECS[compression])
        return _longest_of(codec.decompress(pa.py_buffer(body), header.size_bytes, asbytes=True), count), count
    # Not what it says it is. What is wrong with it is found when it is decoded.
    except (ValueError, LookupError, struct.error, OSError, pa.ArrowException):
        return None, count


def _longest_of(texts: bytes | memoryview, count: int) -> int | None:
    """The longest of so many texts, each after its length in four bytes."""
    at = longest = 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(texts, at)
        if length < 0:
            return None
        if length > longest:
            longest = length
        at += 4 + length
    return longest if at <= len(texts) else None


class _Header:
    """The header of the first page of a chunk."""

    def __init__(self, page: memoryview) -> None:
        self.size_bytes = self.compressed_bytes = self.count = self._kind = self._encoding = -1
        # A header takes some twenty bytes; statistics could make it longer, which a dictionary page has none of.
        header = Compact(bytes(page[:1024]))
        for number, kind in header.fields():
            if kind == _I32 and number == _KIND:
                self._kind = header.signed()
            elif kind == _I32 and number == _SIZE:
                self.size_bytes = header.signed()
            elif kind == _I32 and number == _COMPRESSED_SIZE:
                self.compressed_bytes = header.signed()
            elif kind == _STRUCT and number == _DICTIONARY:
                self._read_dictionary(header)
            else:
                header.skip(kind)
        self.length = header.position
        if not 0 <= self.compressed_bytes <= len(page) - self.length:
            raise ValueError("the page is longer than the dictionary of its chunk")

    @property
    def is_plain_dictionary(self) -> bool:
        return self._kind == _DICTIONARY_PAGE and self._encoding in _PLAIN and self.count >= 0

    def _read_dictionary(self, header: Compact) -> None:
        for number, kind in header.fields():
            if kind == _I32 and number == _COUNT:
                self.count = header.signed()
            elif kind == _I32 and number == _ENCODING:
                self._encoding = header.signed()
            else:
                header.skip(kind)
