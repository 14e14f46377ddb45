"""Values bound to SQL as JSON: the value of `:name` in a predicate, a condition or a source query.

Invariant: `decode_parameter(encode_parameter(v)) == v`, type included. Standard library only.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from airflow_txlog.errors import InvalidJobSpec

_DECIMAL_DIGITS = 38
_FINER = re.compile(r"[.,]\d{6}0*[1-9]")


def encode_parameter(value: Any, name: str = "parameters") -> Any:
    """Return a parameter as JSON: scalars and lists of scalars unchanged, others as a one-key object naming the type.

    `{"$date": "2013-01-31"}`, `{"$timestamp": "2013-01-31T10:00:00+00:00"}`, `{"$decimal": "1.50"}`,
    `{"$binary": base64}`. A naive datetime stays naive (Spark: TIMESTAMP_NTZ).

    Raises InvalidJobSpec, which calls the value `name`, for any other type.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidJobSpec(
            f"{name} is an integer of more than 64 bits, for which SQL has no literal. Pass a Decimal of up to "
            f"{_DECIMAL_DIGITS} digits. Nothing was read.",
            argument=name,
        )
    if isinstance(value, decimal.Decimal) and not _is_sql_decimal(value):
        raise InvalidJobSpec(
            f"{name} is a Decimal that is not finite, or has more than {_DECIMAL_DIGITS} digits. Nothing was read.",
            argument=name,
        )
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):  # JSON has no other floats
        return value
    if isinstance(value, dt.datetime):
        encoded = {"$timestamp": value.isoformat()}
        if is_parameter(encoded):
            return encoded
        raise InvalidJobSpec(
            f"{name} is a time finer than a microsecond, or NaT. SQL has no literal for it. Nothing was read.",
            argument=name,
        )
    if isinstance(value, dt.date):
        return {"$date": value.isoformat()}
    if isinstance(value, decimal.Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"$binary": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [encode_parameter(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict) and is_parameter(value):
        return dict(value)
    raise InvalidJobSpec(
        f"{name} must be a text, a boolean, a finite number, a date, a datetime, a Decimal, bytes or a list of these; "
        f"found {type(value).__name__}. Nothing was read.",
        argument=name,
    )


def encode_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return named parameters as JSON; see `encode_parameter`. None stays None."""
    if parameters is None:
        return None
    return {name: encode_parameter(value, f"parameters.{name}") for name, value in parameters.items()}


def _is_sql_decimal(value: decimal.Decimal) -> bool:
    digits, exponent = value.as_tuple().digits, value.as_tuple().exponent
    # Zeros before the point and after it are digits of the type.
    return isinstance(exponent, int) and max(len(digits), -exponent, len(digits) + exponent) <= _DECIMAL_DIGITS


def decode_parameter(value: Any) -> Any:
    """Return the Python value of a result of `encode_parameter`."""
    if isinstance(value, list):
        return [decode_parameter(item) for item in value]
    if isinstance(value, dict):
        ((tag, text),) = value.items()
        return _DECODERS[tag](text)
    return value


def _decode_time(text: str) -> dt.datetime:
    if _FINER.search(text):
        # Python would drop the digits.
        raise ValueError("a time has parts of a microsecond")
    return dt.datetime.fromisoformat(text)


_DECODERS: dict[str, Callable[[str], Any]] = {
    "$date": dt.date.fromisoformat,
    "$timestamp": _decode_time,
    "$decimal": decimal.Decimal,
    "$binary": base64.b64decode,
}


def is_parameter(value: Any) -> bool:
    """Return whether `encode_parameter` can return this value."""
    if isinstance(value, list):
        return all(is_parameter(item) for item in value)
    if not isinstance(value, dict):
        if isinstance(value, int):
            return -(2**63) <= value < 2**63
        return value is None or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))
    if len(value) != 1 or not set(value) <= set(_DECODERS):
        return False
    try:
        decoded = decode_parameter(value)
    except (ValueError, TypeError, ArithmeticError):
        return False
    return not isinstance(decoded, decimal.Decimal) or _is_sql_decimal(decoded)
