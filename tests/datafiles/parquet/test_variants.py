"""Shredded variants are put together as they were written, and parts that make no variant are refused."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.parquet.conversion import FILE, ColumnMismatch, convert_array
from airflow_txlog.datafiles.parquet.physical import VARIANT
from tests.helpers.arrow import needs_arrow
from tests.helpers.depth import depth
from tests.helpers.variants import (
    MISSING,
    column_of,
    decoded,
    encoded,
    group_of,
    metadata_of,
    names_in,
    shredded,
)


def whole(*rows: dict[str, Any] | None, kind: pa.StructType) -> list[Any]:
    """The values of a column of this type, read as a table's variants."""
    return values_of(pa.array(list(rows), kind))


def values_of(parts: pa.Array) -> list[Any]:
    found = convert_array(parts, VARIANT, "v", FILE)
    assert found.type.equals(VARIANT, check_metadata=True)
    found.validate(full=True)
    return [decoded(each) for each in found.to_pylist()]


def shred(value: Any, kind: pa.DataType | None) -> dict[str, Any] | None:
    if value is MISSING:
        return None
    names = names_in(value)
    return {"metadata": metadata_of(*names), **shredded(value, kind, names)}


EVENT = pa.struct([("event_type", group_of(pa.string())), ("event_ts", group_of(pa.int64()))])
# The examples of the specification, and objects in arrays in objects.
CASES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "measurements": (pa.int64(), [34, None, "n/a", 100, MISSING]),
    "tags": (
        pa.list_(group_of(pa.string())),
        [["comedy", "drama"], ["horror", None], [], ["comedy", 1, {"a": []}], None, MISSING, {"a": 1}],
    ),
    "events": (
        EVENT,
        [
            {"event_type": "noop", "event_ts": 1729794114937},
            {"event_type": "login", "event_ts": 1729794146402, "email": "user@example.com"},
            {"error_msg": "malformed: ..."},
            "malformed: not an object",
            {"event_ts": 1729794240241, "click": "_button"},
            {"event_type": None, "event_ts": 1729794954163},
            {"event_type": "noop", "event_ts": "2024-10-24"},
            {},
            None,
            MISSING,
        ],
    ),
    "nested": (
        pa.struct([("list", group_of(pa.list_(group_of(EVENT)))), ("other", group_of(None))]),
        [
            {"list": [{"event_ts": 1}, {"z": {"event_type": "b"}}, 7], "other": [1.5, True], "more": {"ä": "ö" * 99}},
            {"list": "none"},
            {"other": None, "A": False},
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_are_put_together(case: str) -> None:
    kind, values = CASES[case]
    assert whole(*(shred(value, kind) for value in values), kind=column_of(kind)) == values


# A type of `typed_value`, its value, and the value that is read.
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)
PRIMITIVES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.bool_(), False, False),
    *((kind, value, value) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64()) for value in (0, -128, 127)),
    *((pa.int64(), value, value) for value in (128, -(2**15) - 1, 2**31 - 1, 2**31, -(2**63), 2**63 - 1)),
    (pa.float32(), 1.5, 1.5),
    (pa.float64(), -1e300, -1e300),
    (pa.decimal128(5, 2), decimal.Decimal("-1.50"), decimal.Decimal("-1.50")),
    (pa.decimal128(18, 0), decimal.Decimal(10**18 - 1), decimal.Decimal(10**18 - 1)),
    (pa.decimal128(38, 37), decimal.Decimal("9." + "9" * 37), decimal.Decimal("9." + "9" * 37)),
    (pa.date32(), dt.date(1969, 12, 31), dt.date(1969, 12, 31)),
    (pa.time64("us"), dt.time(23, 59, 59, 1), dt.time(23, 59, 59, 1)),
    (pa.timestamp("us"), MOMENT, MOMENT),
    (pa.timestamp("us", "UTC"), MOMENT, MOMENT.replace(tzinfo=dt.UTC)),
    (pa.timestamp("ns"), 1, (19, 1)),
    (pa.timestamp("ns", "UTC"), -1, (18, -1)),
    (pa.binary(), b"\x00\xff", b"\x00\xff"),
    (pa.string(), "x" * 63, "x" * 63),
    (pa.string(), "ü" * 32, "ü" * 32),
    (pa.large_string(), "", ""),
    (pa.binary(16), uuid.UUID(int=7).bytes, uuid.UUID(int=7)),
]


@pytest.mark.parametrize(("kind", "given", "value"), PRIMITIVES, ids=lambda each: str(each)[:20])
def test_every_type_of_a_shredded_value_is_read(kind: pa.DataType, given: Any, value: Any) -> None:
    rows = [{"metadata": metadata_of(), "value": None, "typed_value": each} for each in (given, None)]
    assert whole(*rows, kind=column_of(kind)) == [value, None]


def test_a_uuid_that_arrow_knows_is_read() -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=2**127).bytes], pa.binary(16)))
    binaries = [pa.array([each], pa.binary()) for each in (metadata_of(), None)]
    parts = pa.StructArray.from_arrays([*binaries, ids], names=["metadata", "value", "typed_value"])
    assert values_of(parts) == [uuid.UUID(int=2**127)]


def test_integers_and_sizes_take_the_bytes_that_they_need() -> None:
    value = {"a": list(range(300)), "b": "x"}
    kind = pa.struct([("a", group_of(pa.list_(group_of(pa.int64())))), ("b", group_of(pa.string()))])
    [found] = convert_array(pa.array([shred(value, kind)], column_of(kind)), VARIANT, "v", FILE).to_pylist()
    assert len(found["value"]) == 1 + 1 + 2 + 3 * 2 + (1 + 4 + 2 * 301 + 128 * 2 + 172 * 3) + 2
    assert decoded(found) == value


def test_a_value_without_a_type_may_be_missing() -> None:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    rows = [{"metadata": metadata_of(), "value": each} for each in (None, b"\x0c\x05")]
    assert whole(*rows, None, kind=kind) == [None, 5, MISSING]


def test_slices_and_lists_of_shredded_variants_are_read() -> None:
    kind, values = CASES["nested"]
    parts = pa.array([shred(value, kind) for value in values * 3], column_of(kind))
    assert values_of(parts.slice(4, 3)) == (values * 3)[4:7]
    lists = pa.ListArray.from_arrays([0, 2, 2, 3], parts.slice(1, 3), mask=pa.array([False, True, False]))
    found = convert_array(lists, pa.list_(VARIANT), "v", FILE).to_pylist()
    assert [each and [decoded(part) for part in each] for each in found] == [values[1:], None, values[:1]]


TEXT = encoded("a", [])
MALFORMED: dict[str, tuple[pa.DataType | None, dict[str, Any]]] = {
    "two values": (pa.int64(), {"value": TEXT, "typed_value": 1}),
    "a value beside a list": (pa.list_(group_of(None)), {"value": TEXT, "typed_value": []}),
    "a value beside an object": (EVENT, {"value": TEXT, "typed_value": {}}),
    "a name that the metadata lacks": (EVENT, {"typed_value": {"event_ts": {"typed_value": 1}}}),
    "an object that is cut off": (EVENT, {"value": encoded({"a": 1}, ["a"])[:-1], "typed_value": {}}),
    "a number of a name that is too large": (EVENT, {"value": b"\x02\x01\x05\x00\x02\x0c\x01", "typed_value": {}}),
    "a value of an unknown type": (EVENT, {"value": b"\x02\x01\x00\x00\x01\xfc", "typed_value": {}}),
    "an empty value": (EVENT, {"value": b"", "typed_value": {}}),
    "another version": (EVENT, {"metadata": b"\x02\x00\x00", "typed_value": {"event_ts": {"typed_value": 1}}}),
    "metadata that is cut off": (EVENT, {"metadata": b"\x01\x09\x00", "typed_value": {"event_ts": {"typed_value": 1}}}),
    "no metadata": (pa.int64(), {"metadata": None, "typed_value": 1}),
    "unsigned": (pa.uint8(), {"typed_value": 1}),
    "milliseconds": (pa.timestamp("ms"), {"typed_value": 1}),
    "a field that is no group": (pa.struct([("a", pa.int64())]), {"typed_value": {"a": 1}}),
    "a map": (pa.map_(pa.string(), pa.int64()), {"typed_value": []}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_parts_that_make_no_variant_are_refused(case: str) -> None:
    typed, given = MALFORMED[case]
    kind = pa.struct([("metadata", pa.binary()), *group_of(typed)])
    with pytest.raises(ColumnMismatch, match="'v'"):
        whole({"metadata": metadata_of("a"), **given}, kind=kind)


def test_a_value_that_is_no_binary_is_refused() -> None:
    for members in ([("metadata", pa.string())], [("metadata", pa.binary()), ("value", pa.string())]):
        kind = pa.struct([*members, ("typed_value", pa.int64())])
        with pytest.raises(ColumnMismatch):
            whole(dict.fromkeys(kind.names, None) | {"metadata": "x"}, kind=kind)


# --- random values under random types -------------------------------------------------------------------------------


def some_value(rng: random.Random, levels: int) -> Any:
    kinds: list[Any] = [
        *(None, True, False, rng.randrange(-300, 300), rng.randrange(-(2**63), 2**63), rng.random()),
        rng.choice("abcö") * rng.choice([1, 70]),
    ]
    if levels:
        kinds += 3 * [{rng.choice("abcdé"): some_value(rng, levels - 1) for _ in range(rng.randrange(5))}]
        kinds += 2 * [[some_value(rng, levels - 1) for _ in range(rng.randrange(4))]]
    return rng.choice(kinds)


def some_type(rng: random.Random, levels: int) -> pa.DataType | None:
    kinds: list[Any] = [None, pa.bool_(), pa.int64(), pa.float64(), pa.string()]
    if levels:
        names = rng.sample("abcdé", rng.randrange(1, 4))
        kinds += 4 * [pa.struct([(name, group_of(some_type(rng, levels - 1))) for name in names])]
        kinds += 2 * [pa.list_(group_of(some_type(rng, levels - 1)))]
    return rng.choice(kinds)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(depth(60, 1000)))
def test_random_values_under_random_types_are_read_as_they_were(seed: int) -> None:
    rng = random.Random(seed)
    kind, values = some_type(rng, 3), [some_value(rng, 3) for _ in range(20)]
    values[rng.randrange(20)] = MISSING
    assert whole(*(shred(value, kind) for value in values), kind=column_of(kind)) == values


@needs_arrow(22, "a footer with variants cannot be read")
def test_a_file_that_duckdb_has_shredded_is_read(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "a.parquet"
    variant = "{'a': i, 'b': 'text ' || i, 'c': [i, i + 1000], 'd': {'e': i % 2 = 0}}::VARIANT AS v"
    duckdb.sql(f"COPY (SELECT {variant} FROM range(300) t(i)) TO '{path}' (FORMAT parquet)")
    column = pq.read_table(path).column("v")
    assert "typed_value" in str(column.type)
    found = [value for chunk in column.chunks for value in values_of(chunk)]
    assert found == [{"a": i, "b": f"text {i}", "c": [i, i + 1000], "d": {"e": i % 2 == 0}} for i in range(300)]
