"""Alone in showing that many byte strings are found together as each would be by itself."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from airflow_txlog.engine.erasure.values import needles
from airflow_txlog.engine.erasure.values.needles import Needles


def expected(strings: list[bytes], texts: list[bytes]) -> set[int]:
    return {number for number, text in enumerate(texts) if any(string in text for string in strings)}


@pytest.mark.parametrize("alphabet", [b"ab", b"abcdefgh", bytes(range(256))])
@pytest.mark.parametrize("most", [8, 15, 40])
@pytest.mark.parametrize("few_bytes", [0, 1 << 20])
def test_each_string_is_found_at_each_place(
    alphabet: bytes, most: int, few_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needles, "_FEW_BYTES", few_bytes)
    monkeypatch.setattr(needles, "_MOST_FALSE", 20)
    monkeypatch.setattr(needles, "_AT_ONCE", 100)
    rng = random.Random(f"{alphabet!r} {most} {few_bytes}")
    for _ in range(3):
        strings = [bytes(rng.choices(alphabet, k=rng.randint(5, most))) for _ in range(rng.randint(1, 40))]
        searched = Needles(strings)
        for _ in range(4):
            texts = [bytes(rng.choices(alphabet, k=rng.randint(0, 30))) for _ in range(300)]
            for _ in range(20):
                text = rng.randrange(len(texts))
                texts[text] = texts[text][: rng.randint(0, 9)] + rng.choice(strings) + texts[text]
            for kind in (pa.binary(), pa.large_binary()):
                start, end = rng.randint(0, 20), rng.randint(100, 300)
                part = pa.array(texts, kind)[start:end]
                assert searched.holding(part) == expected(strings, texts[start:end])
            whole = b"-".join(texts[:3])
            assert searched.occur_in(whole) == any(string in whole for string in strings)


def test_pieces_that_many_strings_or_many_texts_have_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    strings = [f"user{number}@example.org".encode() for number in range(1000)]
    searched = Needles(strings)
    assert searched._searches[0]._most_shared() <= 64
    texts = pa.array([f"person{number}@example.org" for number in range(20_000)])
    for _ in range(4):
        assert searched.num_holding(texts) == 0
    assert searched._searches[0]._num_false < 5_000
    assert searched.num_holding(pa.array(["to user7@example.org", "user7@example.com", None])) == 1


def test_no_text_holds_none() -> None:
    assert not Needles([]).occur_in(b"anything")
    assert Needles([b"canary"]).num_holding(pa.array([], pa.string())) == 0
    assert Needles([b"canary"]).num_holding(pa.array([None, None], pa.string())) == 0
    # Not across the end of a text.
    assert Needles([b"canary"]).num_holding(pa.array(["a can", "ary"])) == 0
