"""Keyed digests of values: only the holder of the key can identify a subject by them.

A digest is an HMAC-SHA256 of a value in its canonical form. Two values have one form if a table that keeps the value
may store the one as the other: an integer in a wider column, a decimal with more zeros, a date as its midnight, a text
in another normal form of Unicode. A text, a number and bytes never share a form. The invariant: digests of one value
under one key never change, because reports and ledgers keep them for years.

Keys are given oldest first. A digest by several keys is the digest of a digest, so a ledger gets a new key without the
values. Once the keys are destroyed, no one can find out whose digest it is.
Source: RFC 2104; Unicode Standard Annex 15.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cached_property
from typing import Any, NoReturn, Self

import pyarrow as pa

from airflow_txlog.datafiles.codecs import DAY_S, SECOND_US
from airflow_txlog.engine.erasure.values.equivalents import normal_texts
from airflow_txlog.engine.erasure.values.plain import is_bytes, plain_array
from airflow_txlog.engine.table.schema.exact_values import NotExact, exact_number, exact_values
from airflow_txlog.engine.table.schema.types import Primitive
from airflow_txlog.errors import InvalidInput

SHORTEST_KEY = 32
"""The fewest characters of a key: as many hexadecimal digits have 128 bits."""

_BLOCK_BYTES = 64
_ID_DIGITS = 16
# Every exact value of a 64-bit float has fewer digits.
_EXACT = Context(prec=1100)


@dataclass(frozen=True)
class DigestKey:
    """A secret key. `id` names it in reports and ledgers, and does not help to find the key."""

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str | None, place: str) -> Self:
        """Return the key that a text is, such as the password of a connection. `place`: of the text, for the error.

        Raises InvalidInput for a text that is too short to be a key.
        """
        secret = (text or "").strip().encode()
        if len(secret) < SHORTEST_KEY:
            found = "none" if not secret else "a shorter one"
            raise InvalidInput(
                f"{place} must be a key of {SHORTEST_KEY} characters or more for digests of subjects; found {found}. "
                "Nothing was read. Make a key with `openssl rand -hex 32`."
            )
        return cls(secret)

    @cached_property
    def id(self) -> str:
        """The name of the key: a digest that no value has."""
        return self.sign(b"key").hex()[:_ID_DIGITS]

    def sign(self, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message."""
        # The hash of the key is copied: a call of `hmac` would take twice as long.
        inner, outer = self._started[0].copy(), self._started[1].copy()
        inner.update(message)
        outer.update(inner.digest())
        found: bytes = outer.digest()
        return found

    @cached_property
    def _started(self) -> tuple[Any, Any]:
        key = hashlib.sha256(self.secret).digest() if len(self.secret) > _BLOCK_BYTES else self.secret
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        return tuple(hashlib.sha256(bytes(byte ^ pad for byte in padded)) for pad in (0x36, 0x5C))  # type: ignore[return-value]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not pickled: read it again from its connection")


def signed(message: bytes, keys: Sequence[DigestKey]) -> bytes:
    """Return the digest of a message by a chain of keys, the oldest first."""
    for key in keys:
        message = key.sign(message)
    return message


def digests_of(values: pa.Array, keys: Sequence[DigestKey]) -> pa.StringArray:
    """Return the digest of each value as 64 hexadecimal digits; null for null.

    Raises InvalidInput for nested values.
    """
    found = [None if form is None else signed(form, keys).hex() for form in canonical_forms(values)]
    return pa.array(found, pa.string())


def digests_of_texts(texts: Sequence[str], kind: str, keys: Sequence[DigestKey]) -> list[str]:
    """Return the digest of each value that a text is. `kind`: "text", "number" or "date".

    Raises InvalidInput for a text that is no such value.
    """
    try:
        if kind == "number":
            values = pa.array([exact_number(text) for text in texts])
        else:
            values = pa.array(texts, pa.string())
            if kind == "date":
                exact_values(values, Primitive.DATE)
                values = values.cast(pa.date32())
    except (pa.ArrowInvalid, NotExact):
        # Arrow's message has the value in it.
        raise InvalidInput(f"a line of the given values is no {kind}. Nothing was compared.") from None
    return digests_of(values, keys).to_pylist()  # type: ignore[no-any-return]


def canonical_forms(values: pa.Array) -> list[bytes | None]:
    """Return the form of each value that its digest covers; None for null.

    A letter names the kind of the value: `s` a text in the normal form NFC, `b` bytes, `n` a number without needless
    zeros, `o` true or false, `w` microseconds since 1970 on a clock without a zone, `i` since 1970 in UTC. Raises
    InvalidInput for nested values.
    """
    values = plain_array(values)
    kind, types = values.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _tagged(b"s:", normal_texts(values).to_pylist())
    if is_bytes(kind) or types.is_binary_view(kind):
        return _tagged(b"b:", values.to_pylist())
    if types.is_integer(kind):
        return _tagged(b"n:", values.cast(pa.string()).cast(pa.binary()).to_pylist())
    if types.is_floating(kind) or types.is_decimal(kind):
        return _tagged(b"n:", _each(_number, values.to_pylist()))
    if types.is_boolean(kind):
        return _tagged(b"o:", _each(lambda value: b"true" if value else b"false", values.to_pylist()))
    if types.is_date(kind):
        days = values.cast(pa.date32()).cast(pa.int32()).to_pylist()
        return _tagged(b"w:", _each(lambda day: b"%d" % (day * DAY_S * SECOND_US), days))
    if types.is_timestamp(kind):
        # Finer parts than Delta's are of no table.
        micros = values.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64()).to_pylist()
        return _tagged(b"w:" if kind.tz is None else b"i:", _each(lambda each: b"%d" % each, micros))
    if types.is_null(kind):
        return [None] * len(values)
    raise InvalidInput(f"values of the type {kind} have no digest. Name a column of single values.")


def _tagged(tag: bytes, forms: Iterable[bytes | None]) -> list[bytes | None]:
    return [None if form is None else tag + form for form in forms]


def _each(form: Callable[[Any], bytes], values: Iterable[Any]) -> list[bytes | None]:
    return [None if value is None else form(value) for value in values]


def _number(value: Any) -> bytes:
    number = value if isinstance(value, Decimal) else Decimal(value)
    if not number.is_finite():
        return str(number).lstrip("+").encode()
    # Minus zero is zero.
    return format(number.normalize(_EXACT), "f").encode() if number else b"0"
