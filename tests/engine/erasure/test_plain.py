"""Alone in showing which bounds may be a shortened value, and which values of another type are those of a column."""

from __future__ import annotations

import random
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.erasure.values.plain import Beginnings, Plain, cast_exactly


@pytest.mark.parametrize("others", [[], ["annika00000000x"], ["annika00000000x", "annik" + "a" * 30]])
def test_a_longer_value_hides_no_shorter_one_with_the_same_bound(others: list[str]) -> None:
    values = ["annika1", *others]
    forms, plain = Forms(pa.array(values), ("email",)), Plain(frozenset(value.encode() for value in values))
    for bound in ("annik", "annil"):
        assert forms.may_be_shortened(bound)
        assert plain.in_bound(bound.encode())
    assert not forms.may_be_shortened("ann")
    assert not plain.in_bound(b"ann")


def test_a_beginning_is_long_or_more_than_half_of_some_value() -> None:
    chance = random.Random(7)
    for _ in range(300):
        values = sorted({"".join(chance.choices("ab", k=chance.randrange(1, 20))) for _ in range(6)})
        found = Beginnings(values)
        for size in range(12):
            start = "".join(chance.choices("ab", k=size))
            longer = [value for value in values if value.startswith(start) and value != start]
            assert found.have(start) == any(size >= 8 or 2 * size > len(value) for value in longer)


BIGINT, MONEY = pa.int64(), pa.decimal128(10, 2)
KEY = uuid.UUID(int=0xC0FFEE << 64 | 1)


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        (pa.array([Decimal("4711"), None]), BIGINT, [4711, None]),
        (pa.array([Decimal("-4711.00")]), BIGINT, [-4711]),
        (pa.array([Decimal(4711)], pa.decimal128(10, 0)), pa.int32(), [4711]),
        (pa.array([7, -99_999_999]), MONEY, [Decimal("7.00"), Decimal("-99999999.00")]),
        (pa.array([7, 8, 7]).dictionary_encode(), BIGINT, [7, 8, 7]),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string(), ["a", "b"]),
        (pa.array([KEY.bytes], pa.binary(16)).cast(pa.uuid()), pa.binary(), [KEY.bytes]),
    ],
    ids=str,
)
def test_a_value_of_another_type_that_is_exactly_one_of_the_column_is_taken(
    given: pa.Array, kind: pa.DataType, values: list[Any]
) -> None:
    found = cast_exactly(given, kind)
    assert (found.type, found.to_pylist()) == (kind, values)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array([Decimal("0.5")]), BIGINT),
        (pa.array([Decimal(2**63)]), BIGINT),
        (pa.array([Decimal(2**31)]), pa.int32()),
        (pa.array([100_000_000]), MONEY),
        (pa.array([Decimal("1.255")]), MONEY),
        (pa.array([0.125]), MONEY),
        (pa.array([300]).dictionary_encode(), pa.int8()),
        (pa.array([True]), MONEY),
        (pa.array([KEY.bytes], pa.binary(16)).cast(pa.uuid()), pa.string()),
    ],
    ids=str,
)
def test_a_value_that_would_change_is_refused(given: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowException):
        cast_exactly(given, kind)
