"""Alone in showing that a key becomes a value of the column's exact type, or is refused, and never shown."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.engine.table.schema.types import ArrayType, DataType, DecimalType, Primitive, StructField
from airflow_txlog.errors import SchemaMismatch, UnsupportedFeature
from airflow_txlog.jobs.operations.delete.key_values import convert_keys
from tests.helpers.exact_cases import KEPT, REFUSED


def field(kind: DataType, **metadata: str) -> StructField:
    return StructField("who", kind, metadata=metadata)


@pytest.mark.parametrize(("key", "kind", "value"), KEPT, ids=lambda case: str(case))
def test_b7_a_key_that_is_a_value_of_the_column_stays_it(key: Any, kind: DataType, value: Any) -> None:
    keys = convert_keys([key, key], field(kind), "/lake/t")
    assert keys.to_pylist() == [value]
    if not isinstance(key, str) or kind is Primitive.STRING:
        column = convert_keys(pa.chunked_array([[key], [key]]), field(kind), "/lake/t")
        assert column == keys


@pytest.mark.parametrize(("key", "kind"), REFUSED, ids=lambda case: str(case))
def test_b7_a_key_that_would_change_on_the_way_is_refused_without_telling_it(key: Any, kind: DataType) -> None:
    good = {Primitive.STRING: "good", Primitive.BINARY: b"good"}.get(kind) if isinstance(kind, Primitive) else None
    with pytest.raises(SchemaMismatch) as caught:
        convert_keys([*([good] if good else []), key], field(kind), "/lake/t")
    message = caught.value.message
    assert f"Key number {2 if good else 1} is a" in message
    assert str(kind) in message
    assert caught.value.facts == {"table": "/lake/t", "columns": ["who"]}
    if isinstance(key, str | float | Decimal) and len(str(key)) > 4:
        assert str(key) not in message


def test_b7_a_file_in_which_007_was_read_as_a_number_is_refused_by_both_types() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        convert_keys(pa.array([7, 8], pa.int64()), field(Primitive.STRING), "/lake/t")
    assert "Key number 1 is a int64, and the column 'who' of /lake/t is string" in caught.value.message


def test_the_first_bad_key_of_a_column_is_told_by_its_place() -> None:
    column = pa.chunked_array([["1", "2", "1"], ["2", "03", "03"]])
    with pytest.raises(SchemaMismatch, match="Key number 5 is a string"):
        convert_keys(column, field(Primitive.LONG), "/lake/t")
    with pytest.raises(SchemaMismatch, match="Key number 2 is a null"):
        convert_keys(pa.array(["1", None]), field(Primitive.STRING), "/lake/t")


def test_keys_of_one_value_are_one_key() -> None:
    keys = convert_keys(["7", 7, 7.0, Decimal(7), "8"], field(Primitive.LONG), "/lake/t")
    assert keys.to_pylist() == [7, 8]
    assert convert_keys([np.int64(7), np.int8(7), np.str_("8")], field(Primitive.LONG), "/lake/t") == keys
    zeros = convert_keys([-0.0, 0.0], field(Primitive.DOUBLE), "/lake/t").to_pylist()
    assert list(map(str, zeros)) == ["0.0"]
    assert convert_keys([], field(Primitive.LONG), "/lake/t") == pa.array([], pa.int64())
    assert len(convert_keys(pa.chunked_array([], pa.int32()), field(Primitive.LONG), "/lake/t")) == 0


def test_arrow_columns_of_a_like_type_are_taken_as_they_are() -> None:
    far = pa.array([10**7], pa.int32()).cast(pa.date32())
    assert convert_keys(far, field(Primitive.DATE), "/lake/t") == far
    large = pa.array(["a", "b"], pa.large_string())
    assert convert_keys(large, field(Primitive.STRING), "/lake/t") == pa.array(["a", "b"])
    coded = pa.array(["a", "b", "a"]).dictionary_encode()
    assert convert_keys(coded, field(Primitive.STRING), "/lake/t") == pa.array(["a", "b"])
    zoned = pa.array([5], pa.timestamp("us", "Europe/Zurich"))
    assert convert_keys(zoned, field(Primitive.TIMESTAMP), "/lake/t") == zoned.cast(pa.timestamp("us", "UTC"))
    with pytest.raises(SchemaMismatch):
        convert_keys(zoned, field(Primitive.TIMESTAMP_NTZ), "/lake/t")


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (field(ArrayType(Primitive.STRING)), "only single values"),
        (field(Primitive.STRING, __COLLATIONS="UTF8_LCASE"), "has a collation"),
        (field(Primitive.STRING, __CHAR_VARCHAR_TYPE_STRING="char(5)"), "stored padded"),
        (field(Primitive.VOID), "only single values"),
    ],
)
def test_a_column_whose_values_do_not_tell_rows_apart_is_refused(column: StructField, what: str) -> None:
    with pytest.raises(UnsupportedFeature, match=what):
        convert_keys(["a"], column, "/lake/t")


PLAIN = st.one_of(
    st.integers(-(2**64), 2**64),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.text(),
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
)
NUMBERS: list[DataType] = [Primitive.BYTE, Primitive.LONG, DecimalType(20, 3), Primitive.DOUBLE, Primitive.FLOAT]


@given(one=PLAIN, other=PLAIN, kind=st.sampled_from([*NUMBERS, Primitive.STRING]))
def test_b7_two_keys_become_one_value_only_where_they_say_the_same(one: Any, other: Any, kind: DataType) -> None:
    """Numbers as numbers, texts as texts: no conversion brings two different subjects together."""
    try:
        (first,) = convert_keys([one], field(kind), "t").to_pylist()
        (second,) = convert_keys([other], field(kind), "t").to_pylist()
    except SchemaMismatch:
        return
    as_said = [Decimal(repr(key)) if isinstance(key, float) else key for key in (one, other)]
    if kind is not Primitive.STRING:
        as_said = [Decimal(key) for key in as_said]
    assert (first == second) == (as_said[0] == as_said[1])
