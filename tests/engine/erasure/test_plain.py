"""Alone in showing which bounds may be a shortened value."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_txlog.engine.erasure.values.forms import Forms
from airflow_txlog.engine.erasure.values.plain import Beginnings, Plain


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
