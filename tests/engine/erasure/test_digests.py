"""Digests of subjects: which values share one, and which facts a key reveals."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import pickle
import unicodedata
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.erasure.digests import DigestKey, canonical_forms, digests_of, digests_of_texts
from airflow_txlog.errors import InvalidInput

KEY = DigestKey.of("0123456789abcdef" * 4, "the key")
OTHER = DigestKey.of("fedcba9876543210" * 4, "the key")


def digest(value: Any, kind: pa.DataType | None = None, *keys: DigestKey) -> str:
    found: str = digests_of(pa.array([value], kind), keys or (KEY,))[0].as_py()
    return found


def test_a_digest_is_an_hmac_of_the_canonical_form() -> None:
    expected = hmac.new(KEY.secret, b"s:anna@example.com", hashlib.sha256).hexdigest()
    assert digest("anna@example.com") == expected


@pytest.mark.parametrize("length", [32, 63, 64, 65, 200])
def test_a_key_of_any_length_signs_as_hmac_does(length: int) -> None:
    key = DigestKey.of("k" * length, "the key")
    assert key.sign(b"message") == hmac.new(b"k" * length, b"message", hashlib.sha256).digest()


MOMENT = dt.datetime(2026, 3, 1, 12, 0, 0, 5)
SAME = {
    "integers of every width": [(7, pa.int8()), (7, pa.int64()), (7, pa.uint16())],
    "numbers that a wider column keeps": [
        (7, pa.int32()),
        (7.0, pa.float64()),
        (Decimal("7.00"), pa.decimal128(9, 2)),
        (Decimal("7"), pa.decimal256(50, 0)),
    ],
    "zeros": [(0, pa.int32()), (-0.0, pa.float64()), (0.0, pa.float32()), (Decimal("0.00"), pa.decimal128(5, 2))],
    "floats of both widths": [(1.5, pa.float32()), (1.5, pa.float64()), (Decimal("1.50"), pa.decimal128(5, 2))],
    "not a number": [(float("nan"), pa.float32()), (float("nan"), pa.float64())],
    "a text in both normal forms": [(unicodedata.normalize(form, "Zoë"), pa.string()) for form in ("NFC", "NFD")],
    "texts of every layout": [
        ("é", pa.string()),
        ("é", pa.large_string()),
        ("é", pa.dictionary(pa.int8(), pa.string())),
    ],
    "bytes of every layout": [(b"ab", pa.binary()), (b"ab", pa.large_binary()), (b"ab", pa.binary(2))],
    "a date and its midnight": [
        (MOMENT.date(), pa.date32()),
        (dt.datetime.combine(MOMENT.date(), dt.time()), pa.timestamp("us")),
    ],
    "a time in every unit": [(MOMENT, pa.timestamp("us")), (MOMENT, pa.timestamp("ns"))],
    "an instant in every zone": [
        (MOMENT.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (MOMENT.replace(tzinfo=dt.UTC), pa.timestamp("us", "Europe/Berlin")),
    ],
}


@pytest.mark.parametrize("case", SAME)
def test_one_value_has_one_digest_in_every_type_that_may_hold_it(case: str) -> None:
    assert len({digest(value, kind) for value, kind in SAME[case]}) == 1


def test_values_of_different_kinds_share_no_digest() -> None:
    values = [
        (1, pa.int64()),
        ("1", pa.string()),
        (b"1", pa.binary()),
        (True, pa.bool_()),
        ("true", pa.string()),
        (MOMENT, pa.timestamp("us")),
        (MOMENT.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (0.1, pa.float64()),
        (Decimal("0.1"), pa.decimal128(3, 1)),
        ("Anna", pa.string()),
        ("anna", pa.string()),
        ("anna ", pa.string()),
        ("", pa.string()),
        (b"", pa.binary()),
        (100, pa.int64()),
        (float("inf"), pa.float64()),
        (float("-inf"), pa.float64()),
    ]
    assert len({digest(*each) for each in values}) == len(values)


def test_values_beyond_the_years_of_python_have_digests() -> None:
    days = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    assert canonical_forms(days) == [b"w:%d" % (day * 86_400_000_000) for day in (2**31 - 1, -(2**31))]
    micros = pa.array([2**63 - 1, None], pa.int64()).cast(pa.timestamp("us"))
    assert canonical_forms(micros) == [b"w:9223372036854775807", None]


def test_every_exact_digit_of_a_number_counts() -> None:
    wide = Decimal("1" * 37 + ".5")
    assert canonical_forms(pa.array([wide], pa.decimal128(38, 1))) == [b"n:" + str(wide).encode()]
    assert canonical_forms(pa.array([Decimal("1E-7")], pa.decimal128(10, 8))) == [b"n:0.0000001"]
    assert canonical_forms(pa.array([1e22], pa.float64())) == [b"n:10000000000000000000000"]
    tiny = 5e-324
    assert canonical_forms(pa.array([tiny], pa.float64())) == [b"n:" + format(Decimal(tiny), "f").encode()]


def test_a_null_has_no_digest() -> None:
    assert digests_of(pa.array([None, "a"]), (KEY,)).null_count == 1
    assert digests_of(pa.nulls(2), (KEY,)).to_pylist() == [None, None]


def test_a_text_that_is_not_utf_8_has_a_digest_and_spoils_no_other() -> None:
    broken = pa.array([b"\xff", "Zoe\u0308".encode()]).view(pa.string())
    assert canonical_forms(broken) == [b"s:\xff", b"s:" + "Zoë".encode()]


def test_a_nested_value_has_no_digest() -> None:
    with pytest.raises(InvalidInput, match="single values"):
        digests_of(pa.array([[1]]), (KEY,))


@pytest.mark.parametrize(
    ("text", "kind"), [("007", "number"), (" 7", "number"), ("1e1", "number"), ("NaN", "number"), ("7", "date")]
)
def test_a_text_that_may_be_another_key_has_no_digest_as_a_number_or_a_date(text: str, kind: str) -> None:
    with pytest.raises(InvalidInput, match=f"no {kind}"):
        digests_of_texts([text], kind, (KEY,))


def test_a_digest_by_two_keys_is_the_digest_of_a_digest() -> None:
    once = bytes.fromhex(digest("anna"))
    assert digest("anna", None, KEY, OTHER) == OTHER.sign(once).hex()
    assert digest("anna", None, KEY, OTHER) != digest("anna", None, OTHER, KEY)


def test_a_key_is_named_by_an_id_that_is_no_digest_of_a_value() -> None:
    assert KEY.id == DigestKey.of("0123456789abcdef" * 4 + "\n", "the key").id
    assert KEY.id != OTHER.id
    assert not any(digest(value).startswith(KEY.id) for value in ("key", b"key"))


def test_a_key_is_in_no_repr_and_in_no_pickle() -> None:
    assert "0123" not in repr(KEY)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(KEY)


@pytest.mark.parametrize("text", [None, "", "   ", "x" * 31])
def test_a_text_that_is_too_short_is_no_key_and_is_not_shown(text: str | None) -> None:
    with pytest.raises(InvalidInput, match="password of the connection") as caught:
        DigestKey.of(text, "the password of the connection 'ledger'")
    assert "xxx" not in str(caught.value)
