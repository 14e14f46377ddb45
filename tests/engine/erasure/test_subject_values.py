"""Alone in showing that a subject is exactly a value of the key, by the rule of the keys that are deleted."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from airflow_txlog.engine.erasure.values.subject_values import subject_values, values_of_type
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructField
from airflow_txlog.errors import InvalidInput
from tests.helpers.exact_cases import KEPT, REFUSED

KEY = uuid.UUID(int=0xC0FFEE << 64 | 1)
# Null and an empty text are no subjects, and a text for a column of bytes is its UTF-8.
TAKEN = ((None, Primitive.STRING), ("7", Primitive.BINARY))


def values_of(given: Sequence[Any] | pa.Array, kind: DataType) -> pa.Array:
    return subject_values(given, StructField("who", kind), "/lake/t", "who")


def shapes(value: Any) -> list[Sequence[Any] | pa.Array]:
    column = pa.array([value], pa.uint64() if value == 2**63 else None)
    return [[value, None, value], column, pa.chunked_array([column, column])]


@pytest.mark.parametrize(("given", "kind", "value"), [case for case in KEPT if case[0] != ""], ids=str)
def test_a_subject_that_is_a_value_of_the_key_stays_it(given: Any, kind: DataType, value: Any) -> None:
    for shape in shapes(given):
        assert values_of(shape, kind).to_pylist() == [value]


@pytest.mark.parametrize(("given", "kind"), [case for case in REFUSED if case not in TAKEN], ids=str)
def test_a_subject_that_would_change_on_the_way_is_refused_without_telling_it(given: Any, kind: DataType) -> None:
    for shape in shapes(given):
        with pytest.raises(InvalidInput, match="not exactly a") as caught:
            values_of(shape, kind)
        assert len(str(given)) < 5 or str(given) not in caught.value.message


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        (pa.array([Decimal(4711), None]), Primitive.LONG, [4711]),
        (pa.array([Decimal(4711)], pa.decimal128(10, 0)), Primitive.INTEGER, [4711]),
        (pa.array([7, 8, 7]).dictionary_encode(), Primitive.LONG, [7, 8]),
        (pa.array(["a", "b"]).dictionary_encode(), Primitive.STRING, ["a", "b"]),
        (pa.array([KEY.bytes], pa.binary(16)).cast(pa.uuid()), Primitive.BINARY, [KEY.bytes]),
        (pa.array([str(KEY), None]).dictionary_encode(), Primitive.BINARY, [str(KEY).encode()]),
        (pa.array(["a"], pa.string_view()), Primitive.BINARY, [b"a"]),
        (pa.array(["a", None, "b"], pa.string_view()), Primitive.STRING, ["a", "b"]),
        (pa.array([b"a", None], pa.binary_view()), Primitive.BINARY, [b"a"]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], [7, None]), Primitive.LONG, [7]),
        (["ab", b"ab", KEY], Primitive.BINARY, [b"ab", KEY.bytes]),
        (pa.array([2.0**24 - 1], pa.float32()), Primitive.LONG, [2**24 - 1]),
        (pa.array([7.25], pa.float32()), DecimalType(10, 2), [Decimal("7.25")]),
        (pa.array([5], pa.timestamp("s")), Primitive.TIMESTAMP_NTZ, [dt.datetime(1970, 1, 1, 0, 0, 5)]),
        (pa.array([86_400_000], pa.date64()), Primitive.DATE, [dt.date(1970, 1, 2)]),
    ],
    ids=str,
)
def test_columns_of_other_layouts_hold_the_same_subjects(given: Any, kind: DataType, values: list[Any]) -> None:
    assert values_of(given, kind).to_pylist() == values


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array([Decimal(2**63)]), Primitive.LONG),
        (pa.array([300]).dictionary_encode(), Primitive.BYTE),
        (pa.array([2.0**24], pa.float32()), Primitive.LONG),
        (pa.array([1_048_576.5], pa.float32()), DecimalType(10, 2)),
        (pa.array([2048.0], pa.float32()).cast(pa.float16()), Primitive.SHORT),
        (pa.array([KEY.bytes], pa.binary(16)).cast(pa.uuid()), Primitive.STRING),
        (pa.array([1], pa.timestamp("ns")), Primitive.TIMESTAMP_NTZ),
        (pa.array([1 << 60], pa.timestamp("s")), Primitive.TIMESTAMP_NTZ),
        (pa.array([1], pa.int64()).cast(pa.date64()), Primitive.DATE),
        (["canary\ud800"], Primitive.STRING),
        (["canary\ud800"], Primitive.BINARY),
        ([[7]], Primitive.LONG),
        (pa.array([[7]]), Primitive.LONG),
        (pa.array([{"who": "canary"}]), Primitive.STRING),
        (pa.array([7], pa.duration("us")), Primitive.LONG),
        ([7], Primitive.VOID),
        ([f"7.{'0' * 120}1"], DecimalType(10, 2)),
        ([Decimal("1e999999")], DecimalType(10, 2)),
        ([pd.Timestamp(1)], Primitive.TIMESTAMP_NTZ),
    ],
    ids=lambda each: str(each.type if isinstance(each, pa.Array) else each),
)
def test_columns_that_hold_more_than_the_key_are_refused(given: Any, kind: DataType) -> None:
    with pytest.raises(InvalidInput, match="not exactly a") as caught:
        values_of(given, kind)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"canary\xff"]).buffers()[1:]]), Primitive.STRING),
        (pa.array([1 << 60], pa.timestamp("us", "UTC")), Primitive.TIMESTAMP),
        (pa.array([1 << 30], pa.int32()).cast(pa.date32()), Primitive.DATE),
        ([dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))], Primitive.TIMESTAMP),
    ],
    ids=["no UTF-8", "far instant", "far day", "before the year 1 in UTC"],
)
def test_a_subject_that_no_search_can_spell_is_refused_before_anything_is_searched(given: Any, kind: DataType) -> None:
    with pytest.raises(InvalidInput, match=r"not UTF-8, or a time.*Nothing was searched") as caught:
        values_of(given, kind)
    assert "canary" not in str(caught.value)


def test_an_infinite_subject_is_refused_before_a_delete_of_it_fails() -> None:
    with pytest.raises(InvalidInput, match="a subject is infinite"):
        values_of(pa.array([1.5, float("-inf")]), Primitive.DOUBLE)


def test_the_first_subject_that_does_not_fit_is_told_by_its_place() -> None:
    for given in (["1", None, "2", "03"], pa.array(["1", None, "2", "03", "03"])):
        with pytest.raises(InvalidInput, match="subject number 4 is a"):
            values_of(given, Primitive.LONG)


def test_a_file_of_before_a_column_of_dates_was_widened_holds_only_midnights() -> None:
    times = pa.array([dt.datetime(2020, 1, 1, 5), dt.datetime(2020, 1, 2)], pa.timestamp("us"))
    assert values_of_type(times, pa.date32()).to_pylist() == [dt.date(2020, 1, 2)]
