"""Positions of rows of a data file, such as those that its deletion vector deletes: a bitmap, read in containers.

What is kept is the serialized bitmap itself, magic number included, as the log or a vector file holds it: a few bytes
for a run of a million rows. Rows are decoded only where they are asked for, so that memory is bounded by the rows that
are looked at, whatever a bitmap claims. The invariant: bytes that are not exactly what the format demands are a
CorruptDeletionVector, never a row more or less.
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
# An earlier layout, which only the protocol's example of an inline vector still has, and there in the other byte order.
_NATIVE_MAGIC = 1681511376
_NATIVE = {struct.pack("<I", _NATIVE_MAGIC): "<I", struct.pack(">I", _NATIVE_MAGIC): ">I"}

COOKIE_WITHOUT_RUNS = 12346
COOKIE_WITH_RUNS = 12347
FEWEST_WITH_OFFSETS = 4
ARRAY_MOST = 4096
_CONTAINER_BITS = 16
CONTAINER_ROWS = 1 << _CONTAINER_BITS
BITMAP_BYTES = CONTAINER_ROWS // 8
# Of 17 billion rows. Each costs time, and takes as little as ten bytes.
_MOST_CONTAINERS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Container:
    """65,536 neighbouring positions from `base` on, of which `count` are set; its bytes are `start` to `end`."""

    base: int
    count: int
    kind: str
    start: int
    end: int


class RowPositions:
    """Positions of rows in one file, ascending and distinct: a deletion vector's, or those that were found.

    `data` is the serialized bitmap; `source` says in messages whose it is. Making one reads the headers alone, so it
    costs a few bytes for each 65,536 rows. Raises CorruptDeletionVector; so does every method, for the part that it
    decodes.
    """

    def __init__(self, data: bytes, source: str, num_records: int | None = None) -> None:
        """`num_records`: the rows of the data file where they are known, so that what lies beyond ends the reading."""
        self.data = data
        self.source = source
        self._containers = list(_Headers(data, source, num_records).containers())
        self._bases = [container.base for container in self._containers]
        self._before: list[int] | None = None
        self._latest: tuple[_Container, pa.BooleanArray] | None = None

    @property
    def num_rows(self) -> int:
        """How many rows there are, by the headers."""
        return sum(container.count for container in self._containers)

    @property
    def bases(self) -> list[int]:
        """Where the parts of 65,536 rows begin in which there is a row, ascending."""
        return list(self._bases)

    def check(self, num_records: int | None = None) -> None:
        """Decodes everything once, a container at a time; every position must lie in a file of `num_records` rows."""
        if num_records is not None:
            self.check_inside(num_records)
        for container in self._containers:
            self._check(container)

    def check_inside(self, num_records: int) -> None:
        """Raises CorruptDeletionVector where a position lies outside of a file of so many rows."""
        if self._containers:
            last = self._containers[-1].base + self._values(self._containers[-1])[-1].as_py()
            if last >= num_records:
                self._refuse(f"it deletes row {last} of a file that has {num_records} rows")

    def num_before(self, end: int) -> int:
        """How many of the positions lie before `end`."""
        if self._before is None:
            self._before = list(accumulate((container.count for container in self._containers), initial=0))
        number = bisect_left(self._bases, end)
        if not number or end >= self._bases[number - 1] + CONTAINER_ROWS:
            return self._before[number]
        container = self._containers[number - 1]
        return self._before[number - 1] + int(self._kept(container).slice(0, end - container.base).false_count)

    def part(self, base: int) -> tuple[str, int, bytes]:
        """The form (`array`, `bitmap` or `runs`), the number of rows and the checked bytes of the part at `base`."""
        container = self._containers[bisect_left(self._bases, base)]
        self._check(container)
        # In front of the runs stands how many there are.
        start = container.start - 2 * (container.kind == "runs")
        return container.kind, container.count, self.data[start : container.end]

    def positions(self, start: int = 0, end: int | None = None) -> pa.Array:
        """The positions from `start` up to `end` (None: all the rest), ascending, as int64."""
        first = max(bisect_left(self._bases, start + 1) - 1, 0)
        parts = []
        for container in self._containers[first:]:
            if end is not None and container.base >= end:
                break
            parts.append(self._positions(container))
        found = pa.concat_arrays(parts) if parts else pa.array([], pa.int64())
        return between(found, start, end)

    def parts(self) -> Iterator[tuple[int, pa.Array]]:
        """All positions (int64), at most 65,536 at once, each time with how many came before."""
        before = 0
        for container in self._containers:
            yield before, self._positions(container)
            before += container.count

    def keep(self, start: int, length: int) -> pa.BooleanArray | None:
        """Which of the `length` rows from `start` on are not among them; None where all of them are kept."""
        parts = []
        at, end = start, start + length
        first = max(bisect_left(self._bases, start + 1) - 1, 0)
        for container in self._containers[first:]:
            low, high = max(container.base, at), min(container.base + CONTAINER_ROWS, end)
            if container.base >= end:
                break
            if low >= high:
                continue
            parts.append(_all_true(low - at))
            parts.append(self._kept(container).slice(low - container.base, high - low))
            at = high
        if not parts:
            return None
        return pa.concat_arrays([*parts, _all_true(end - at)])

    def _check(self, container: _Container) -> None:
        if container.kind == "array":
            self._values(container)
        elif container.kind == "bitmap":
            self._bits(container)
        else:
            self._runs(container)

    def _kept(self, container: _Container) -> pa.BooleanArray:
        """For each of the container's 65,536 rows: whether it is not among them."""
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
        # A batch of rows ends where it ends, and the next one begins in the same container.
        self._latest = container, kept
        return kept

    def _positions(self, container: _Container) -> pa.Array:
        return pc.add(self._values(container).cast(pa.int64()), pa.scalar(container.base, pa.int64()))

    def _values(self, container: _Container) -> pa.Array:
        """The container's positions, counted from its base."""
        if container.kind == "array":
            values = _uint16(self._bytes(container))
            if len(values) > 1 and not pc.all(pc.less(values[:-1], values[1:])).as_py():
                self._refuse("its positions do not ascend")
            return values
        if container.kind == "bitmap":
            return pc.indices_nonzero(self._bits(container))
        # A step of one from each position to the next, but for the step from one run to the next.
        steps = array.array("q", [1]) * container.count
        at, previous = 0, 0
        for first, more in self._runs(container):
            steps[at] = first - previous
            at += more + 1
            previous = first + more
        return pc.cumulative_sum(pa.Array.from_buffers(pa.int64(), container.count, [None, pa.py_buffer(steps)]))

    def _bits(self, container: _Container) -> pa.BooleanArray:
        """The bits of a container that is a bitmap."""
        bits = pa.Array.from_buffers(pa.bool_(), CONTAINER_ROWS, [None, pa.py_buffer(self._bytes(container))])
        self._check_count(container, bits.true_count)
        return bits

    def _runs(self, container: _Container) -> list[tuple[int, int]]:
        """First position and length - 1 of each run of a container of runs."""
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
    """The deleted rows of an open data file that has so many, from their serialized bitmap; None where there is none.

    Raises as RowPositions does, and CorruptDeletionVector for a row that the file does not have.
    """
    if data is None:
        return None
    deleted = RowPositions(data, f"of {location}", num_records)
    deleted.check_inside(num_records)
    return deleted


def kept_by_both(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> pa.BooleanArray | None:
    """What both of two answers of `keep` keep, for the same rows."""
    if one is None or other is None:
        return other if one is None else one
    return pc.and_(one, other)


class _Headers:
    """Walks the headers of a serialized bitmap; every length is checked before it is believed."""

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
        """How many bitmaps, and before each the upper half of its positions."""
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
        """How many bitmaps, and before each its length; the upper half of positions is the bitmap's number."""
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
            # Where each part begins: of use to those who jump. We walk, and believe the parts themselves.
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
    """What to raise when a deletion vector cannot be believed: rows that were deleted would come back."""
    return CorruptDeletionVector(
        f"Deletion vector {source}: {reason}. Nothing was changed. Restore its file, or repair the table with the "
        "engine that wrote it.",
        vector=source,
        **facts,
    )


def between(ascending: pa.Int64Array, low: int, high: int | None) -> pa.Int64Array:
    """Those of the ascending numbers from `low` up to `high` (None: all the rest), which is not among them."""
    view = int64_view(ascending)
    first = bisect_left(view, low)
    return ascending[first : len(view) if high is None else bisect_left(view, high, first)]


def int64_view(numbers: pa.Int64Array) -> memoryview:
    """The numbers, of which none is null, without a copy."""
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
