"""Positions of rows of a data file, such as those that its deletion vector deletes: a bitmap, read in containers.

The serialized bitmap is kept, magic number included, as the log or a vector file holds it. Rows are decoded when they
are needed, so memory is bounded by the rows that are read, whatever a bitmap claims. The invariant:
bytes that are not exactly in the format raise CorruptDeletionVector, and never add or lose a row.
Source: protocol, "Deletion Vector Format"; the RoaringBitmap format specification (32-bit portable, 64-bit extension).
"""

from __future__ import annotations

import array
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.errors import CorruptDeletionVector

PORTABLE_MAGIC = 1681511377
_PORTABLE = struct.pack("<I", PORTABLE_MAGIC)
# An earlier layout. Only the protocol's example of an inline vector uses it, in the other byte order.
_NATIVE_MAGIC = 1681511376
_NATIVE = {struct.pack("<I", _NATIVE_MAGIC): "<I", struct.pack(">I", _NATIVE_MAGIC): ">I"}

COOKIE_WITHOUT_RUNS = 12346
COOKIE_WITH_RUNS = 12347
FEWEST_WITH_OFFSETS = 4
ARRAY_MOST = 4096
_CONTAINER_BITS = 16
CONTAINER_ROWS = 1 << _CONTAINER_BITS
BITMAP_BYTES = CONTAINER_ROWS // 8
# These hold 17 billion rows. Each container costs time, and takes as little as ten bytes.
_MOST_CONTAINERS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Container:
    """65,536 positions from `base` on, of which `count` are set; its bytes are `start` to `end`."""

    base: int
    count: int
    kind: str
    start: int
    end: int


class RowPositions:
    """Positions of rows in one file, ascending and distinct: those of a deletion vector, or those that were found.

    `data` is the serialized bitmap; messages name it by `source`. The constructor reads only the headers. It raises
    CorruptDeletionVector, as does every method for the part that it decodes.
    """

    def __init__(self, data: bytes, source: str, num_records: int | None = None) -> None:
        """`num_records` is the number of rows of the data file, if it is known; containers beyond it are refused."""
        self.data = data
        self.source = source
        self._containers = list(_Headers(data, source, num_records).containers())
        self._bases = [container.base for container in self._containers]
        self._before: list[int] | None = None
        self._latest: tuple[_Container, pa.BooleanArray] | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows, by the headers."""
        return sum(container.count for container in self._containers)

    @property
    def bases(self) -> list[int]:
        """The first position of each part of 65,536 rows that has a row, ascending."""
        return self._bases

    def check(self, num_records: int | None = None) -> None:
        """Decode everything once, a container at a time; every position must lie in a file of `num_records` rows."""
        if num_records is not None:
            self.check_inside(num_records)
        for container in self._containers:
            self._check(container)

    def check_inside(self, num_records: int) -> None:
        """Raise CorruptDeletionVector if a position lies outside a file of `num_records` rows."""
        if self._containers:
            last = self._containers[-1].base + self._values(self._containers[-1])[-1].as_py()
            if last >= num_records:
                self._refuse(f"it deletes row {last} of a file that has {num_records} rows")

    def num_before(self, end: int) -> int:
        """Return how many positions lie before `end`."""
        if self._before is None:
            self._before = list(accumulate((container.count for container in self._containers), initial=0))
        number = bisect_left(self._bases, end)
        if not number or end >= self._bases[number - 1] + CONTAINER_ROWS:
            return self._before[number]
        container = self._containers[number - 1]
        return self._before[number - 1] + int(self._kept(container).slice(0, end - container.base).false_count)

    def part(self, base: int) -> tuple[str, int, bytes]:
        """Return the form (`array`, `bitmap` or `runs`), number of rows and checked bytes of the part at `base`."""
        container = self._containers[bisect_left(self._bases, base)]
        self._check(container)
        # The number of runs precedes them.
        start = container.start - 2 * (container.kind == "runs")
        return container.kind, container.count, self.data[start : container.end]

    def positions(self, start: int = 0, end: int | None = None) -> pa.Array:
        """Return the positions from `start` up to `end` (None: all the rest), ascending, as int64."""
        parts = [self._positions(container) for container in self._between(start, end)]
        found = pa.concat_arrays(parts) if parts else pa.array([], pa.int64())
        return between(found, start, end)

    def parts(self) -> Iterator[tuple[int, pa.Array]]:
        """Yield all positions (int64), at most 65,536 at once, each time with how many came before."""
        before = 0
        for container in self._containers:
            yield before, self._positions(container)
            before += container.count

    def keep(self, start: int, length: int) -> pa.BooleanArray | None:
        """Return which of the `length` rows from `start` on are not deleted, or None if all are kept."""
        parts = []
        at, end = start, start + length
        for container in self._between(start, end):
            low, high = max(container.base, at), min(container.base + CONTAINER_ROWS, end)
            if low < high:
                parts.append(_all_true(low - at))
                parts.append(self._kept(container).slice(low - container.base, high - low))
                at = high
        return pa.concat_arrays([*parts, _all_true(end - at)]) if parts else None

    def _between(self, start: int, end: int | None) -> list[_Container]:
        """Return the containers that may hold a position from `start` up to `end`."""
        first = max(bisect_left(self._bases, start + 1) - 1, 0)
        return self._containers[first : None if end is None else bisect_left(self._bases, end)]

    def _check(self, container: _Container) -> None:
        if container.kind == "array":
            self._values(container)
        elif container.kind == "bitmap":
            self._bits(container)
        else:
            self._runs(container)

    def _kept(self, container: _Container) -> pa.BooleanArray:
        """Return for each of the container's 65,536 rows whether it is not among them."""
        if self._latest is not None and self._latest[0] is container:
            return self._latest[1]
        if container.kind == "bitmap":
            kept = pc.invert(self._bits(container))
        else:
            flags = bytearray(b"\x01") * CONTAINER_ROWS
            if container.kind == "array":
                for position in self._values(container).to_pylist():
                    flags[position] = 0
            else:
                for first, more in self._runs(container):
                    flags[first : first + more + 1] = bytes(more + 1)
            kept = pa.Array.from_buffers(pa.uint8(), CONTAINER_ROWS, [None, pa.py_buffer(flags)]).cast(pa.bool_())
        # The next batch of rows usually begins in the same container.
        self._latest = container, kept
        return kept

    def _positions(self, container: _Container) -> pa.Array:
        return pc.add(self._values(container).cast(pa.int64()), pa.scalar(container.base, pa.int64()))

    def _values(self, container: _Container) -> pa.Array:
        """Return the container's positions, counted from its base."""
        if container.kind == "array":
            values = _uint16(self._bytes(container))
            if len(values) > 1 and not pc.all(pc.less(values[:-1], values[1:])).as_py():
                self._refuse("its positions do not ascend")
            return values
        if container.kind == "bitmap":
            return pc.indices_nonzero(self._bits(container))
        # The step from each position to the next is one, except from one run to the next.
        steps = array.array("q", [1]) * container.count
        at, previous = 0, 0
        for first, more in self._runs(container):
            steps[at] = first - previous
            at += more + 1
            previous = first + more
        return pc.cumulative_sum(pa.Array.from_buffers(pa.int64(), container.count, [None, pa.py_buffer(steps)]))

    def _bits(self, container: _Container) -> pa.BooleanArray:
        """Return the bits of a container that is a bitmap."""
        bits = pa.Array.from_buffers(pa.bool_(), CONTAINER_ROWS, [None, pa.py_buffer(self._bytes(container))])
        self._check_count(container, bits.true_count)
        return bits

    def _runs(self, container: _Container) -> list[tuple[int, int]]:
        """Return the first position and length - 1 of each run of a container of runs."""
        numbers = _uint16(self._bytes(container)).to_pylist()
        runs = list(zip(numbers[::2], numbers[1::2], strict=True))
        previous, total = -1, 0
        for first, more in runs:
            if first <= previous or first + more >= CONTAINER_ROWS:
                self._refuse("its runs do not ascend")
            previous = first + more
            total += more + 1
        self._check_count(container, total)
        return runs

    def _bytes(self, container: _Container) -> bytes:
        return self.data[container.start : container.end]

    def _check_count(self, container: _Container, found: int) -> None:
        if found != container.count:
            self._refuse(f"a part of it says that it has {container.count} positions, and has {found}")

    def _refuse(self, reason: str) -> NoReturn:
        raise corrupt_vector(self.source, reason)


def deleted_rows(data: bytes | None, location: str, num_records: int) -> RowPositions | None:
    """Return the deleted rows of a data file of `num_records` rows, from their serialized bitmap; None for None.

    Raises CorruptDeletionVector, also for a row that the file does not have.
    """
    if data is None:
        return None
    deleted = RowPositions(data, f"of {location}", num_records)
    deleted.check_inside(num_records)
    return deleted


def kept_by_both(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """Return the rows that both of two results of `keep` for the same rows keep."""
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


class _Headers:
    """Reads the headers of a serialized bitmap; every length is checked before it is used."""

    def __init__(self, data: bytes, source: str, num_records: int | None) -> None:
        self._data = data
        self._source = source
        self._num_records = num_records
        self._at = 0

    def containers(self) -> Iterator[_Container]:
        for number, container in enumerate(self._all(), start=1):
            if self._num_records is not None and container.base >= self._num_records:
                self._refuse(
                    f"it deletes row {container.base} or a later one of a file that has {self._num_records} rows"
                )
            if number > _MOST_CONTAINERS:
                self._refuse(f"it has more than {_MOST_CONTAINERS} parts, so more rows than a data file has")
            yield container

    def _all(self) -> Iterator[_Container]:
        start = self._take(4)
        if start == _PORTABLE:
            yield from self._portable()
        elif start in _NATIVE:
            yield from self._native(_NATIVE[start])
        else:
            magic = int.from_bytes(start, "little")
            self._refuse(f"its magic number is {magic}, and it should be {PORTABLE_MAGIC}")
        if self._at != len(self._data):
            self._refuse(f"{len(self._data) - self._at} bytes follow after its end")

    def _portable(self) -> Iterator[_Container]:
        """Read the number of bitmaps, and before each the upper half of its positions."""
        previous = -1
        for _ in range(self._number("<Q")):
            key = self._number("<I")
            if key <= previous:
                self._refuse("its bitmaps do not ascend")
            previous = key
            # The signed 64-bit numbers of rows end here.
            if key >= 1 << 31:
                self._refuse(f"it deletes rows beyond {1 << 63}")
            yield from self._bitmap(key << 32)

    def _native(self, number: str) -> Iterator[_Container]:
        """Read the number of bitmaps, and before each its length; its number is the upper half of its positions."""
        for key in range(self._number(number)):
            length = self._number(number)
            start = self._at
            yield from self._bitmap(key << 32)
            if self._at - start != length:
                self._refuse(f"a bitmap of it says that it has {length} bytes, and has {self._at - start}")

    def _bitmap(self, base: int) -> Iterator[_Container]:
        cookie = self._number("<I")
        flags = b""
        if cookie & 0xFFFF == COOKIE_WITH_RUNS:
            count = (cookie >> 16) + 1
            flags = self._take((count + 7) // 8)
        elif cookie == COOKIE_WITHOUT_RUNS:
            count = self._number("<I")
            if count > CONTAINER_ROWS:
                self._refuse(f"it says that it has {count} parts, and it may have {CONTAINER_ROWS}")
        else:
            self._refuse(f"it begins with {cookie}, which is no bitmap of the format")
        described = struct.unpack(f"<{2 * count}H", self._take(4 * count))
        if not flags or count >= FEWEST_WITH_OFFSETS:
            # The start of each part, for readers that seek; we read in order, and trust the parts themselves.
            self._take(4 * count)
        previous = -1
        for index, (key, more) in enumerate(zip(described[::2], described[1::2], strict=True)):
            if key <= previous:
                self._refuse("its parts do not ascend")
            previous = key
            has_runs = bool(flags) and bool(flags[index // 8] >> index % 8 & 1)
            yield self._container(base | key << _CONTAINER_BITS, more + 1, has_runs)

    def _container(self, base: int, count: int, has_runs: bool) -> _Container:
        if has_runs:
            # Every run has a row, so a part without one cannot have the rows that it claims.
            kind, length = "runs", 4 * (self._number("<H") or self._refuse("a part of it has no runs"))
        elif count <= ARRAY_MOST:
            kind, length = "array", 2 * count
        else:
            kind, length = "bitmap", BITMAP_BYTES
        start = self._at
        self._take(length)
        return _Container(base, count, kind, start, self._at)

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            self._refuse(f"it ends at byte {len(self._data)}, in the middle of a part")
        start, self._at = self._at, self._at + length
        return self._data[start : self._at]

    def _number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return number

    def _refuse(self, reason: str) -> NoReturn:
        raise corrupt_vector(self._source, reason)


def corrupt_vector(source: str, reason: str, **facts: Any) -> CorruptDeletionVector:
    """Return the error for a deletion vector that cannot be trusted: deleted rows would reappear."""
    return CorruptDeletionVector(
        f"Deletion vector {source}: {reason}. Nothing was changed. Restore its file, or repair the table with the "
        "engine that wrote it.",
        vector=source,
        **facts,
    )


def between(ascending: pa.Int64Array, low: int, high: int | None) -> pa.Int64Array:
    """Return the ascending numbers from `low` up to `high`, exclusive (None: all the rest)."""
    view = int64_view(ascending)
    first = bisect_left(view, low)
    return ascending[first : len(view) if high is None else bisect_left(view, high, first)]


def int64_view(numbers: pa.Int64Array) -> memoryview:
    """Return numbers without nulls as a view."""
    if not len(numbers):
        return memoryview(b"").cast("q")
    return memoryview(numbers.buffers()[1]).cast("q")[numbers.offset : numbers.offset + len(numbers)]


def _all_true(length: int) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(True), length) if length else pa.array([], pa.bool_())


def _uint16(data: bytes) -> pa.Array:
    if sys.byteorder == "big":
        swapped = array.array("H", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return pa.Array.from_buffers(pa.uint16(), len(data) // 2, [None, pa.py_buffer(data)])
