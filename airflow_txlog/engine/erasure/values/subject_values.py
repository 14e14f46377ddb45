"""Convert the given subjects to values of the key column, and these to the types of other columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.engine.erasure.values.plain import is_bytes, is_text, plain_array
from airflow_txlog.engine.table.schema.exact_values import NotExact, exact_values
from airflow_txlog.engine.table.schema.types import Primitive, StructField
from airflow_txlog.errors import InvalidInput


def subject_values(given: Sequence[Any] | pa.ChunkedArray, field: StructField, uri: str, column: str) -> pa.Array:
    """Return the given subjects as distinct values of the key `field`; null is left out.

    A text for a column of bytes stands for its UTF-8. Raises InvalidInput if there is no value, and for a value that
    identifies no subject or is not exactly a value of the column.
    """
    try:
        known = exact_values(
            _as_bytes(given) if field.type is Primitive.BINARY else given, field.type, skips_nulls=True
        )
    except NotExact as problem:
        which = "a subject" if problem.place is None else f"subject number {problem.place + 1}"
        raise InvalidInput(
            f"{uri}: {which} is a {problem.found}, and not exactly a {field.type}, the type of the column {column!r}: "
            f"{problem.reason}. Converted, it could be another subject. Nothing was searched. Give values of that type."
        ) from None
    try:
        known.to_pylist()
    except (ValueError, OverflowError):
        # Python's message has a part of the value in it.
        raise InvalidInput(
            f"{uri}: a subject for the column {column!r} is not UTF-8, or a time outside of the years 1 to 9999 in "
            "UTC. Nothing was searched. Leave it out."
        ) from None
    if not len(known):
        raise InvalidInput(f"{uri}: no subject was given. Give one value of {column!r} or more.")
    if (is_text(known.type) or is_bytes(known.type)) and not pc.min(pc.binary_length(known)).as_py():
        raise InvalidInput(
            f"{uri}: a subject is an empty value of {column!r}, which identifies no subject. Nothing was searched. "
            "Leave it out."
        )
    if pa.types.is_floating(known.type) and not pc.all(pc.is_finite(known)).as_py():
        raise InvalidInput(
            f"{uri}: a subject is infinite, which identifies no subject, in {column!r}. Nothing was searched. Leave it "
            "out."
        )
    return known


def _as_bytes(given: Sequence[Any] | pa.ChunkedArray) -> Sequence[Any] | pa.Array:
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        return list(map(_utf8, given))
    values = plain_array(given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given)
    return values.cast(pa.binary()) if is_text(values.type) or pa.types.is_string_view(values.type) else values


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        with suppress(UnicodeEncodeError):
            return value.encode()
    return value


def values_of_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values that a column of this type can hold exactly. Both zeros are one value."""
    return _with_both_zeros(_cast_each(values, kind))


def fitting(values: Iterable[bytes], kind: pa.DataType) -> pa.Array:
    """Return the values of bytes that have the length of the type."""
    if pa.types.is_fixed_size_binary(kind):
        values = [value for value in values if len(value) == kind.byte_width]
    return pa.array(values, kind)


def _cast_each(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values that the type holds exactly."""
    if pa.types.is_timestamp(values.type) and pa.types.is_date(kind):
        # Arrow takes the day of each time. Files of before a column was widened have dates.
        values = values.filter(pc.equal(pc.floor_temporal(values, unit="day"), values))
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        found = []
        for value in values:
            try:
                # Of an integer's type Arrow looks at the width, not at the value.
                exact = pa.scalar(Decimal(value.as_py())) if pa.types.is_integer(value.type) else value
                found.append(exact.cast(kind).as_py())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue
        return pa.array(found, kind)


def _with_both_zeros(values: pa.Array) -> pa.Array:
    """Return values with both floats that are zero if one is: they are one value, though Arrow distinguishes them."""
    kind = values.type
    if pa.types.is_floating(kind) and pc.any(pc.equal(values, pa.scalar(0.0, kind))).as_py():
        return pa.concat_arrays([values, pa.array([0.0, -0.0], kind)])
    return values
