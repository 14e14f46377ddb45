"""Items that a second thread makes in advance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_txlog.datafiles.ahead import ahead


def test_reading_ahead_stops_with_its_reader() -> None:
    made: list[object] = []

    def numbers() -> Iterator[int]:
        try:
            for number in range(1000):
                made.append(number)
                yield number
        finally:
            made.append("closed")

    source = numbers()
    reader = ahead(source, 4)
    assert next(reader) == 0
    reader.close()
    source.close()
    assert made[-1] == "closed"
    assert len(made) < 20


@pytest.mark.parametrize("most", [1, 4])
def test_all_items_come_in_their_order(most: int) -> None:
    assert list(ahead(iter(range(20)), most)) == list(range(20))
    assert list(ahead(iter(()), most)) == []


def test_an_error_is_raised_after_the_items_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    reader = ahead(numbers(), 4)
    assert next(reader) == 1
    with pytest.raises(OSError, match="gone"):
        next(reader)
