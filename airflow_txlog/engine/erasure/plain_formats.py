"""Formats that hold no value: positions of rows, and Hadoop's sums of a local file's bytes.

A name alone makes no such file: the bytes must have the form of the format from the first to the last, because packed
bytes of another one may hide a value.
Source: protocol, "Deletion Vector File Storage Format"; Hadoop, ChecksumFileSystem.
"""

from __future__ import annotations

import re
import struct
import zlib

_VECTORS = re.compile(r"(^|/)deletion_vector_[0-9a-f-]{36}\.bin$")
_SUMS = re.compile(r"(^|/)\.[^/]+\.crc$")
_VERSION = b"\x01"
_SIZE, _SUM = struct.Struct(">i"), struct.Struct(">I")
_MAGICS = {struct.pack(order, magic) for magic in (1681511376, 1681511377) for order in ("<I", ">I")}
_SUMS_START, _SUMS_HEAD = b"crc\0", 8
_MOST_SUMMED_BYTES = 1024 * 1024


def holds_no_value(path: str, data: bytes) -> bool:
    """Return whether an object has the name and the form of a format that holds no value."""
    if _VECTORS.search(path):
        return _are_vectors(data)
    return bool(_SUMS.search(path)) and _are_sums(data)


def _are_vectors(data: bytes) -> bool:
    """Return whether bytes are vectors, each with its size before it and its checksum after it, and nothing else."""
    if not data.startswith(_VERSION):
        return False
    at = len(_VERSION)
    while at < len(data):
        start = at + _SIZE.size
        if start > len(data):
            return False
        end = start + _SIZE.unpack_from(data, at)[0]
        if not start + len(min(_MAGICS)) <= end <= len(data) - _SUM.size or data[start : start + 4] not in _MAGICS:
            return False
        if zlib.crc32(data[start:end]) != _SUM.unpack_from(data, end)[0]:
            return False
        at = end + _SUM.size
    return True


def _are_sums(data: bytes) -> bool:
    """Return whether bytes are the number of bytes that each sum is of, and sums of four bytes."""
    if not data.startswith(_SUMS_START) or len(data) < _SUMS_HEAD or len(data) % _SUM.size:
        return False
    summed: int = _SIZE.unpack_from(data, len(_SUMS_START))[0]
    return 0 < summed <= _MOST_SUMMED_BYTES
