"""A search for many byte strings at once, in the bytes of many texts.

Any occurrence of a long string contains one of its pieces of eight bytes at a position that is a multiple of eight. So
the bytes are read as whole numbers, each is looked up in one table, and only a hit is compared byte by byte. The cost
depends on the bytes that are searched, and hardly on the number of strings. Strings with escapes are searched only in
bytes with escapes. If pieces occur often in other texts, the
search takes others, closer together.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

# The bytes of a piece of a longer and of a shorter string, with the name of such a number in Python.
_LONG, _SHORT = 8, 4
_CODES: dict[int, Literal["Q", "I"]] = {_LONG: "Q", _SHORT: "I"}
_TYPES = {_LONG: pa.uint64(), _SHORT: pa.uint32()}
_SHORTEST_LONG = 11
# The bytes from the first piece on that hold all others, and those of a string among which pieces are chosen.
_WINDOW, _MOST_CHOSEN = 16, 32
# How many strings may share a piece, before pieces are chosen closer together.
_MOST_SHARED = 64
_MOST_FALSE = 10_000
_FEW_BYTES = 65_536
# What begins an escape of URLs and of JSON.
_MARKS = (b"%", b"\\")


class Needles:
    """Strings of at least five bytes each."""

    def __init__(self, strings: Collection[bytes]) -> None:
        escaped = {each for each in strings if has_escapes(each)}
        self._searches = _searches([each for each in strings if each not in escaped])
        self._escaped = escaped
        self._marks = [mark for mark in _MARKS if any(mark in each for each in escaped)]

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
        if self._marks and _have_one(data.to_pybytes(), self._marks):
            for search in self._of_escaped:
                yield from search.spans(data)


def has_escapes(data: bytes) -> bool:
    """Return whether bytes hold a character that begins an escape of JSON or of URLs."""
    return _have_one(data, _MARKS)


def _have_one(data: bytes, marks: Sequence[bytes]) -> bool:
    return any(mark in data for mark in marks)


def _searches(strings: Collection[bytes]) -> list[_Search]:
    by_length = (
        [each for each in strings if len(each) >= _SHORTEST_LONG],
        [each for each in strings if len(each) < _SHORTEST_LONG],
    )
    return [_Search(part, width) for part, width in zip(by_length, (_LONG, _SHORT), strict=True) if part]


class _Search:
    """The pieces of some strings: `width` bytes each, of which every occurrence has one at a multiple of `stride`."""

    def __init__(self, strings: Collection[bytes], width: int) -> None:
        self._strings, self._width = strings, width
        self._false: Counter[int] = Counter()
        self._num_false, self._most_false = 0, _MOST_FALSE
        room = min(map(len, strings)) - width + 1
        self._stride = next(stride for stride in (8, 4, 2, 1) if stride <= min(room, width))
        # The first pieces are good enough for most strings, and found in no time.
        self._take(dict.fromkeys(strings, 0))
        if max(map(len, self._pieces.values())) > _MOST_SHARED:
            self._choose()
        while self._stride > 1 and max(map(len, self._pieces.values())) > _MOST_SHARED:
            self._stride //= 2
            self._choose()

    def _choose(self) -> None:
        """Choose pieces of each string that few others have, and that few texts were found to have by chance."""
        width, stride = self._width, self._stride
        shared: Counter[int] = Counter()
        numbers = {each: _numbers(each[:_MOST_CHOSEN], width) for each in self._strings}
        for each in numbers.values():
            shared.update(set(each))
        weight = shared + self._false
        best = {}
        for string, own in numbers.items():
            weights = [weight[each] for each in own]
            best[string] = min(range(len(own) - stride + 1), key=lambda at: max(weights[at : at + stride]))
        self._take(best)

    def _take(self, starts: Mapping[bytes, int]) -> None:
        """Use the pieces from these positions on."""
        width = self._width
        self._pieces: dict[int, list[tuple[bytes, int]]] = {}
        windows = b"".join(string[start : start + _WINDOW].ljust(_WINDOW, b"\0") for string, start in starts.items())
        windows += bytes(_WINDOW)
        for shift in range(self._stride):
            numbers = memoryview(windows)[shift : shift + len(starts) * _WINDOW].cast(_CODES[width])
            for number, (string, start) in zip(numbers[:: _WINDOW // width].tolist(), starts.items(), strict=True):
                self._pieces.setdefault(number, []).append((string, start + shift))
        self._table = pa.array(list(self._pieces), _TYPES[self._width])

    def spans(self, data: pa.Buffer) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each occurrence, in no order."""
        width, view = self._width, memoryview(data).cast("B")
        pieces, stride = self._pieces, self._stride
        for shift in range(0, width, stride):
            count = (data.size - shift) // width
            for at, number in self._hits(data, view, shift, count) if count > 0 else ():
                is_false = True
                for string, offset in pieces[number]:
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
            if not self._pieces.keys().isdisjoint(numbers):
                yield from ((at, number) for at, number in enumerate(numbers) if number in self._pieces)
            return
        kind = _TYPES[width]
        found = pc.is_in(pa.Array.from_buffers(kind, count, [None, data.slice(shift)]), value_set=self._table)
        if found.true_count:
            yield from ((at, numbers[at]) for at in pc.indices_nonzero(found).to_pylist())


def _numbers(string: bytes, width: int) -> list[int]:
    """Return the piece at each position, as Arrow reads it on this machine."""
    read = struct.Struct(f"={_CODES[width]}").unpack_from
    return [read(string, at)[0] for at in range(len(string) - width + 1)]
