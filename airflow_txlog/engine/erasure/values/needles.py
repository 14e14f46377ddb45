"""A search for many byte strings at once, in the bytes of many texts.

Any occurrence of a long string contains one of its pieces of eight bytes at a position that is a multiple of eight. So
the bytes are read as whole numbers, each is looked up in one table, and only a hit is compared byte by byte. The cost
depends on the bytes that are searched, and hardly on the number of strings. Strings with escapes are searched only in
bytes with escapes. If pieces occur often in other texts, the
search takes others, closer together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

# The bytes of a piece of a longer and of a shorter string, with the name of such a number in Python.
_LONG, _SHORT = 8, 4
_CODES: dict[int, Literal["Q", "I"]] = {_LONG: "Q", _SHORT: "I"}
_TYPES = {_LONG: pa.uint64(), _SHORT: pa.uint32()}
_SHORTEST_LONG = 11
# The bytes of a string among which pieces are chosen.
_MOST_CHOSEN = 32
# How many strings may share a piece, before pieces are chosen closer together.
_MOST_SHARED = 64
_MOST_FALSE = 10_000
_FEW_BYTES = 65_536
_COPIED_BYTES = 262_144
# A piece is multiplied by odd numbers; the upper bits of each product are one of its places in a Bloom filter. Of other
# pieces, one in 16 passes the first place of a filter that is large enough, and one in 4,096 passes all.
_FACTORS = {
    _LONG: (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
    _SHORT: (0x9E3779B1, 0xC2B2AE3D, 0x165667B1),
}
_BITS_OF_PIECE = 48
# Up to half a megabyte, which fits into a processor's cache.
_LEAST_BITS, _MOST_BITS = 12, 22
# So many pieces are looked up at once that the numbers made of them stay in that cache.
_AT_ONCE = 131_072
# What begins an escape of URLs and of JSON.
_ESCAPES = (b"%", b"\\")


class Needles:
    """Strings of at least five bytes each."""

    def __init__(self, strings: Collection[bytes]) -> None:
        escaped = {each for each in strings if has_escapes(each)}
        self._searches = _searches([each for each in strings if each not in escaped])
        self._escaped = escaped
        self._begins = [mark for mark in _ESCAPES if any(mark in each for each in escaped)]

    @cached_property
    def _of_escaped(self) -> list[_Search]:
        return _searches(self._escaped)

    def occur_in(self, data: bytes | pa.Buffer) -> bool:
        """Return whether one of the strings is in the bytes."""
        return next(self._spans(data if isinstance(data, pa.Buffer) else pa.py_buffer(data)), None) is not None

    def num_holding(self, texts: pa.Array) -> int:
        """Return how many of some texts, or values of bytes, hold one of the strings."""
        return len(self.holding(texts))

    def holding(self, texts: pa.Array) -> set[int]:
        """Return the numbers of the texts that hold one of the strings."""
        return {row for row, _ in self._found_in(texts)}

    def counts_in(self, texts: pa.Array) -> Counter[bytes]:
        """Return the strings that some texts hold, each with the number of these texts."""
        return Counter(string for _, string in set(self._found_in(texts)))

    def strings_in(self, data: bytes) -> set[bytes]:
        """Return the strings that are in the bytes."""
        return {data[start:end] for start, end in self._spans(pa.py_buffer(data))}

    def _found_in(self, texts: pa.Array) -> Iterator[tuple[int, bytes]]:
        """Yield the number of a text and the string, for each occurrence within one text."""
        _, starts, data = texts.buffers()
        if data is None or not len(texts):
            return
        is_large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
        places = memoryview(starts).cast("B").cast("q" if is_large else "i")
        first, last = texts.offset, texts.offset + len(texts)
        # As a multiple of eight, so that numbers stay aligned.
        base = places[first] // _LONG * _LONG
        part = data.slice(base, places[last] - base)
        for start, end in self._spans(part):
            row = bisect_right(places, start + base, first, last + 1) - 1
            if first <= row < last and end + base <= places[row + 1]:
                yield row - first, part.slice(start, end - start).to_pybytes()

    def _spans(self, data: pa.Buffer) -> Iterator[tuple[int, int]]:
        for search in self._searches:
            yield from search.spans(data)
        # They cannot be in bytes without the character that begins an escape.
        if self._begins and _have_one(data, self._begins):
            for search in self._of_escaped:
                yield from search.spans(data)


def has_escapes(data: bytes | pa.Buffer) -> bool:
    """Return whether bytes hold a character that begins an escape of JSON or of URLs."""
    return _have_one(data, _ESCAPES)


def _have_one(data: bytes | pa.Buffer, marks: Sequence[bytes]) -> bool:
    view = memoryview(data)
    # A copy of all bytes at once would take longer than the search.
    parts = (bytes(view[start : start + _COPIED_BYTES]) for start in range(0, len(view), _COPIED_BYTES))
    return any(mark in part for part in parts for mark in marks)


def _searches(strings: Collection[bytes]) -> list[_Search]:
    by_length = (
        [each for each in strings if len(each) >= _SHORTEST_LONG],
        [each for each in strings if len(each) < _SHORTEST_LONG],
    )
    return [_Search(part, width) for part, width in zip(by_length, (_LONG, _SHORT), strict=True) if part]


class _Search:
    """The pieces of some strings: `width` bytes each, of which every occurrence has one at a multiple of `stride`."""

    def __init__(self, strings: Collection[bytes], width: int) -> None:
        self._strings, self._width = list(strings), width
        self._false: Counter[int] = Counter()
        self._num_false, self._most_false = 0, _MOST_FALSE
        room = min(map(len, strings)) - width + 1
        self._stride = next(stride for stride in (8, 4, 2, 1) if stride <= min(room, width))
        # The first pieces are good enough for most strings, and found in no time.
        first = _pieces_at(self._strings, width, range(self._stride))
        self._take(pa.repeat(0, len(self._strings)), first)
        if self._most_shared() > _MOST_SHARED:
            self._choose()
        while self._stride > 1 and self._most_shared() > _MOST_SHARED:
            self._stride //= 2
            self._choose()

    def _choose(self) -> None:
        """Choose pieces of each string that few others have, and that few texts were found to have by chance."""
        width, stride = self._width, self._stride
        longest = min(_MOST_CHOSEN, max(map(len, self._strings)))
        pieces = _pieces_at(self._strings, width, range(longest - width + 1))
        counted = pc.value_counts(pa.chunked_array(pieces).drop_null())
        known, weights = counted.field(0), counted.field(1)
        if self._false:
            false = pa.array(self._false.values(), pa.int64())
            places = pc.index_in(known, value_set=pa.array(self._false.keys(), _TYPES[width]))
            weights = pc.add(weights, pc.fill_null(false.take(places), 0))
        own = [weights.take(pc.index_in(each, value_set=known)) for each in pieces]
        best, starts = None, pa.repeat(0, len(self._strings))
        # A piece beyond the end of a string has no weight, and no window with it is lighter.
        for at in range(len(own) - stride + 1):
            heaviest = pc.max_element_wise(*own[at : at + stride], skip_nulls=False)
            if best is None:
                best = heaviest
                continue
            is_lighter = pc.fill_null(pc.less(heaviest, best), False)
            best, starts = pc.if_else(is_lighter, heaviest, best), pc.if_else(is_lighter, at, starts)
        self._take(starts, pieces)

    def _take(self, starts: pa.Array, pieces: Sequence[pa.Array]) -> None:
        """Use the pieces from these positions on."""
        taken = pa.concat_arrays([pc.choose(pc.add(starts, shift), *pieces) for shift in range(self._stride)])
        # The piece with number n is one of the string n % count, at its start + n // count.
        order = pc.array_sort_indices(taken)
        self._starts, self._order = starts, order
        self._sorted = taken.take(order)
        self._table = self._sorted.unique()
        for cached in ("_known", "_filter"):
            self.__dict__.pop(cached, None)

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self._table.to_pylist())

    @cached_property
    def _filter(self) -> pa.BooleanArray:
        """The Bloom filter of the pieces."""
        count = (len(self._table) * _BITS_OF_PIECE - 1).bit_length()
        count = min(max(count, _LEAST_BITS), _MOST_BITS)
        bits = bytearray(1 << count)
        for factor in _FACTORS[self._width]:
            for place in self._places(self._table, factor, count).to_pylist():
                bits[place] = 1
        return pa.Array.from_buffers(pa.uint8(), len(bits), [None, pa.py_buffer(bits)]).cast(pa.bool_())

    def _places(self, pieces: pa.Array, factor: int, count: int) -> pa.Array:
        kind = _TYPES[self._width]
        products = pc.multiply(pieces, pa.scalar(factor, kind))
        return pc.shift_right(products, pa.scalar(8 * self._width - count, kind))

    def _most_shared(self) -> int:
        """Return how many strings share a piece, at most."""
        most: int = pc.max(pc.value_counts(self._sorted).field(1)).as_py()
        return most

    def _holders(self, piece: int) -> Iterator[tuple[bytes, int]]:
        """Yield each string that has a piece, and the position of the piece in it."""
        pieces = memoryview(self._sorted.buffers()[1]).cast(_CODES[self._width])
        for at in range(bisect_left(pieces, piece), bisect_right(pieces, piece)):
            shift, number = divmod(self._order[at].as_py(), len(self._strings))
            yield self._strings[number], self._starts[number].as_py() + shift

    def spans(self, data: pa.Buffer) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each occurrence, in no order."""
        width, view = self._width, memoryview(data).cast("B")
        stride = self._stride
        for shift in range(0, width, stride):
            count = (data.size - shift) // width
            for at, number in self._hits(data, view, shift, count) if count > 0 else ():
                is_false = True
                for string, offset in self._holders(number):
                    start = shift + at * width - offset
                    if start >= 0 and view[start : start + len(string)] == string:
                        is_false = False
                        yield start, start + len(string)
                if is_false:
                    self._false[number] += 1
                    self._num_false += 1
        if self._num_false > self._most_false:
            # Half of the distance; where there is none left, other pieces, and not again so soon.
            self._num_false, self._most_false = 0, 2 * self._most_false
            self._stride = max(1, self._stride // 2)
            self._choose()

    def _hits(self, data: pa.Buffer, view: memoryview, shift: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the position and the number of each piece that is known, among `count` of them from `shift` on."""
        width = self._width
        numbers = view[shift : shift + count * width].cast(_CODES[width])
        if data.size <= _FEW_BYTES:
            # Arrow would take longer to read the table than to look the pieces up.
            if not self._known.isdisjoint(numbers):
                yield from ((at, number) for at, number in enumerate(numbers) if number in self._known)
            return
        # An array of a part of the bytes is made without a copy.
        pieces = pa.Array.from_buffers(_TYPES[width], count, [None, data.slice(shift)])
        for start in range(0, count, _AT_ONCE):
            for at in self._likely(pieces.slice(start, _AT_ONCE)):
                if numbers[start + at] in self._known:
                    yield start + at, numbers[start + at]

    def _likely(self, pieces: pa.Array) -> list[int]:
        """Return the positions of the pieces that are in the Bloom filter."""
        count = len(self._filter).bit_length() - 1
        likely: pa.Array = pa.array([], pa.uint64())
        for number, factor in enumerate(_FACTORS[self._width]):
            passes = pc.take(self._filter, self._places(pieces, factor, count), boundscheck=False)
            found = pc.indices_nonzero(passes)
            likely, pieces = found if not number else likely.take(found), pieces.take(found)
        positions: list[int] = likely.to_pylist()
        return positions


def _pieces_at(strings: Sequence[bytes], width: int, positions: range) -> list[pa.Array]:
    """Return the pieces of the strings at each position, as Arrow reads them; null beyond the end of a string."""
    end = positions[-1] + width
    lengths = pa.array(map(len, strings), pa.int64())
    padded = pa.array((each[:end].ljust(end, b"\0") for each in strings), pa.binary())
    found = []
    for at in positions:
        _, _, data = pc.binary_slice(padded, at, at + width).buffers()
        pieces = pa.Array.from_buffers(_TYPES[width], len(strings), [None, data])
        found.append(pc.if_else(pc.greater_equal(lengths, at + width), pieces, pa.scalar(None, _TYPES[width])))
    return found
