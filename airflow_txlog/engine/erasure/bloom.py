"""Bloom filters of Parquet: whether one may hold a value, and whether other values explain that.

Source: Parquet, "Bloom Filter" (split blocks, XXH64 of the plain bytes with seed 0); the xxHash specification.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

from airflow_txlog.datafiles.parquet.thrift import fields_and_length_of, integer_of

_NUM_BYTES = 1
_BLOCK_BYTES, _WORDS = 32, 8
_SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_BLOCK = struct.Struct("<8I")


@dataclass(frozen=True)
class BloomFilter:
    """The bits of a filter, as blocks of eight words."""

    bits: bytes

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the filter with whose header the bytes begin. Raises ValueError for bytes that are none."""
        header, start = fields_and_length_of(data)
        size = integer_of(header, _NUM_BYTES)
        if not size or size % _BLOCK_BYTES or start + size > len(data):
            raise ValueError("a Bloom filter has another size than its header states")
        return cls(data[start : start + size])

    def may_hold(self, value: bytes) -> bool:
        """Return whether the bits of a value are set."""
        block, bits = self._place(value)
        words = _BLOCK.unpack_from(self.bits, block * _BLOCK_BYTES)
        return all(word & bit for word, bit in zip(words, bits, strict=True))

    def is_explained(self, claimed: Collection[bytes], values: Iterable[bytes]) -> bool:
        """Return whether `values` without the claimed ones set all bits of each of these."""
        missing: dict[int, set[tuple[int, int]]] = {}
        for value in claimed:
            block, bits = self._place(value)
            missing.setdefault(block, set()).update(enumerate(bits))
        for value in values:
            if value in claimed:
                continue
            block, bits = self._place(value)
            if block in missing:
                missing[block] -= set(enumerate(bits))
        return not any(missing.values())

    def _place(self, value: bytes) -> tuple[int, list[int]]:
        """Return the number of a value's block and its bit in each word."""
        hashed = xxh64(value)
        block = ((hashed >> 32) * (len(self.bits) // _BLOCK_BYTES)) >> 32
        low = hashed & 0xFFFFFFFF
        return block, [1 << ((low * salt & 0xFFFFFFFF) >> 27) for salt in _SALTS]


_ALL_ONES = 0xFFFFFFFFFFFFFFFF
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _ALL_ONES


def _round(total: int, lane: int) -> int:
    return _rotated((total + lane * _P2) & _ALL_ONES, 31) * _P1 & _ALL_ONES


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of some bytes, with the seed 0."""
    at, length = 0, len(data)
    if length >= 32:
        lanes = [(_P1 + _P2) & _ALL_ONES, _P2, 0, -_P1 & _ALL_ONES]
        while at + 32 <= length:
            lanes = [_round(*pair) for pair in zip(lanes, struct.unpack_from("<4Q", data, at), strict=True)]
            at += 32
        total = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL_ONES
        for lane in lanes:
            total = ((total ^ _round(0, lane)) * _P1 + _P4) & _ALL_ONES
    else:
        total = _P5
    total = (total + length) & _ALL_ONES
    while at + 8 <= length:
        total ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        total = (_rotated(total, 27) * _P1 + _P4) & _ALL_ONES
        at += 8
    if at + 4 <= length:
        total ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _ALL_ONES
        total = (_rotated(total, 23) * _P2 + _P3) & _ALL_ONES
        at += 4
    for byte in data[at:]:
        total = _rotated(total ^ byte * _P5 & _ALL_ONES, 11) * _P1 & _ALL_ONES
    total = (total ^ total >> 33) * _P2 & _ALL_ONES
    total = (total ^ total >> 29) * _P3 & _ALL_ONES
    return total ^ total >> 32
