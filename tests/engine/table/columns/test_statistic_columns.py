"""Statistics parsed together are what each of them says by itself, or are not parsed together."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.columns import statistic_columns
from airflow_txlog.engine.table.columns.statistic_columns import AskedColumn, read_together
from airflow_txlog.engine.table.columns.statistic_values import bound_reader
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from tests.helpers.depth import depth

TYPES = {
    "b": Primitive.BYTE,
    "i": Primitive.INTEGER,
    "l": Primitive.LONG,
    "f": Primitive.FLOAT,
    "d": Primitive.DOUBLE,
    "s": Primitive.STRING,
    "t": Primitive.DATE,
    "z": Primitive.TIMESTAMP,
    "n": Primitive.TIMESTAMP_NTZ,
    "q": DecimalType(9, 2),
    "w": DecimalType(20, 0),
    "h": DecimalType(38, 20),
    "o": Primitive.BOOLEAN,
}
CHANGED = {"wl": (Primitive.LONG, "integer"), "wd": (Primitive.DOUBLE, "float"), "wq": (DecimalType(12, 2), "short")}
SCHEMA = StructType(
    (
        *(StructField(name, kind, True, {}) for name, kind in TYPES.items()),
        *(
            StructField(name, kind, True, {"delta.typeChanges": [{"fromType": before, "toType": str(kind)}]})
            for name, (kind, before) in CHANGED.items()
        ),
    )
)
NAMES = [field.name for field in SCHEMA]

NUMBERS = ["0", "-0", "7", "-128", "127", "128", "2147483648", "9223372036854775807", "9223372036854775808"]
NUMBERS += ["-9223372036854775808", "1.0", "1e3", "1E-2", "-0.0", "0.1", "0.10000000149011612", "1e999", "1e00001"]
NUMBERS += ["1.50", "-0.01", "0", "1.005", "9999999.99", "12345678.90", "1234567890123456", "0.12345678901234567890"]
NUMBERS += ["16777217", "9007199254740993", "340282350000000000000000000000000000000", "01", "1.", "+1", "NaN", "1e400"]
STRINGS = ['"a"', '""', '"a\\n"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"é"', f'"{chr(0x10FFFF)}"', '"NaN"']
STRINGS += [f'"z{chr(0x10FFFF)}"', f'"{chr(0xD7FF)}"', '"{"', '"}"', '"2024-02-29"', '"2023-02-29"', '"0001-01-01"']
STRINGS += ['"2024-01-01T10:00:00.123Z"', '"2024-01-01T10:00:00"', '"2024-01-01 10:00:00+02:00"', '"12"']
STRINGS += ['"1972-12-30T23:59:59.999Z"', '"1972-12-31T00:00:00.000Z"', '"9999-12-31T23:59:59.999999Z"', '"1.50"']
STRINGS += ['"2023-02-29T10:00:00.123Z"', '"2024-01-01T24:00:00.000Z"', '"2024-01-01T10:00:00.123456"', '"2024-01-01"']
STRINGS += ['"0000-01-01T00:00:00.000Z"', '"2024-01-01T10:00:00.123\\n"', '"2024-01-01T10:00:60.000"', '"é~"']
OTHERS = ["null", "true", "[]", "{}", '{"l":1}', "[1", "{", ""]
VALUE = st.sampled_from(NUMBERS + STRINGS + OTHERS)
COUNT = st.sampled_from(["0", "5", "9", "-1", "1.0", "null", '"5"', "1000000000000000000", "99999999999999999999"])
KEY = st.sampled_from([*NAMES, "x", "\\u006c"])

VALUES = st.lists(st.tuples(KEY, VALUE), max_size=3).map(lambda pairs: object_text(pairs))
COUNTS = st.lists(st.tuples(KEY, COUNT), max_size=3).map(lambda pairs: object_text(pairs))
MEMBERS = st.one_of(
    st.tuples(st.just("numRecords"), COUNT),
    st.tuples(st.sampled_from(["minValues", "maxValues"]), st.one_of(VALUES, VALUE)),
    st.tuples(st.just("nullCount"), st.one_of(COUNTS, COUNT)),
    st.tuples(st.just("tightBounds"), st.sampled_from(["true", "false", "null", "1"])),
    st.tuples(st.just("unknown"), VALUE),
)
WILD = st.lists(MEMBERS, max_size=5).map(lambda pairs: object_text(pairs))
ODD = st.sampled_from(
    ["", " ", "{}{}", "{} {}", "{}\n{}", '{"numRecords":5}\n', '{"minValues":{"l":1}', ',"a":1}', "null", "[]", "{}x"]
)
TAME_VALUES = {
    "b": st.integers(-128, 127).map(str),
    "i": st.integers(-(2**31), 2**31 - 1).map(str),
    "l": st.integers(-(2**63), 2**63 - 1).map(str),
    "f": st.floats(allow_nan=False, allow_infinity=False, width=32).map(json.dumps),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    "s": st.text(max_size=4).map(json.dumps),
    "t": st.dates().map(lambda day: f'"{day.isoformat()}"'),
    "z": st.datetimes().map(lambda moment: f'"{moment.isoformat(timespec="milliseconds")}Z"'),
    "n": st.datetimes().map(lambda moment: f'"{moment.isoformat(timespec="milliseconds")}"'),
    "q": st.decimals(-9_999_999, 9_999_999, places=2).map(str),
    "w": st.integers(-(10**20) + 1, 10**20 - 1).map(str),
    "h": st.decimals(-1, 1, places=20).map(lambda value: f"{value:f}"),
    "o": st.sampled_from(["true", "false"]),
    "wl": st.integers(-(2**63), 2**63 - 1).map(str),
    "wd": st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    "wq": st.decimals(-9_999_999, 9_999_999, places=2).map(str),
}


def object_text(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"


@st.composite
def tame(draw: Any) -> str:
    """Statistics as writers write them."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    lowest, highest = ([(name, draw(TAME_VALUES[name])) for name in names] for _ in range(2))
    nulls = [(name, str(draw(st.integers(0, 9)))) for name in names]
    members = [("numRecords", "9"), ("minValues", object_text(lowest)), ("maxValues", object_text(highest))]
    return object_text([*members, ("nullCount", object_text(nulls))])


def files_of(texts: list[str | None], masked: bool = False) -> pa.Table:
    vector = DeletionVector(storage_type="u", path_or_inline_dv="x", offset=1, size_in_bytes=1, cardinality=1)
    return adds_to_table(
        [
            Add(
                path=str(number),
                partition_values={},
                size=1,
                modification_time=1,
                data_change=True,
                stats=text,
                deletion_vector=vector if masked and number % 2 else None,
            )
            for number, text in enumerate(texts)
        ]
    )


def both_ways(files: pa.Table, names: list[str]) -> tuple[dict[Any, ColumnBounds], dict[Any, ColumnBounds]]:
    paths = [(name,) for name in names]
    together = bounds(files, SCHEMA, paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistic_columns, "read_together", lambda texts, asked: None)
        return together, bounds(files, SCHEMA, paths)


def assert_equal(found: ColumnBounds, expected: ColumnBounds) -> None:
    for field in dataclasses.fields(ColumnBounds):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        assert (a.equals(b) and a.type == b.type) if isinstance(a, pa.Array) else a == b, (field.name, a, b)


def check(texts: list[str | None], names: list[str], masked: bool = False) -> None:
    together, one_by_one = both_ways(files_of(texts, masked), names)
    for path, expected in one_by_one.items():
        assert_equal(together[path], expected)


@pytest.mark.seeded
@settings(max_examples=depth(80, 500), deadline=None)
@given(
    texts=st.lists(st.one_of(st.none(), WILD, tame(), ODD), max_size=4),
    names=st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3),
    masked=st.booleans(),
)
def test_wild_statistics_read_together_are_what_each_says_by_itself(
    texts: list[str | None], names: list[str], masked: bool
) -> None:
    check(texts, names, masked)


@pytest.mark.seeded
@settings(max_examples=depth(40, 200), deadline=None)
@given(texts=st.lists(st.one_of(st.none(), tame()), max_size=6), name=st.sampled_from(NAMES), masked=st.booleans())
def test_tame_statistics_read_together_are_what_each_says_by_itself(
    texts: list[str | None], name: str, masked: bool
) -> None:
    check(texts, [name], masked)


@pytest.mark.parametrize("name", NAMES)
def test_every_single_value_reads_the_same_both_ways(name: str) -> None:
    for value in NUMBERS + STRINGS + OTHERS:
        text = f'{{"numRecords":9,"minValues":{{"{name}":{value}}},"maxValues":{{"{name}":{value}}}}}'
        check([text], [name])
        check(['{"numRecords":1}', text, '{"minValues":{"l":1}}'], [name])


def parsed(texts: list[str | None], *names: str) -> Any:
    asked = []
    for name in names:
        reader = bound_reader(StructField(name, TYPES[name], True, {}))
        assert reader is not None
        asked.append(AskedColumn((name,), TYPES[name], reader))
    return read_together(pa.array(texts, pa.string()), asked)


def test_what_writers_write_is_read_together() -> None:
    """The property above would hold too if nothing ever were."""
    texts = [
        '{"numRecords":9,"minValues":{"l":1,"s":"ab"},"maxValues":{"l":9007199254740993,"s":"b"},"nullCount":{"l":2}}',
        None,
        "",
        '{"numRecords":3,"tightBounds":false,"minValues":{"l":null}}',
    ]
    found = parsed(texts, "l", "s")
    assert found.columns[("l",)].upper.to_pylist() == [9007199254740993, None, None, None]
    assert found.columns[("s",)].upper.to_pylist() == ["c", None, None, None]
    assert found.columns[("l",)].null_count.to_pylist() == [2, None, None, None]
    assert found.num_records.to_pylist() == [9, None, None, 3]
    assert found.is_loose.to_pylist() == [False, True, True, True]
    dates = parsed(['{"minValues":{"t":"2024-02-29"},"maxValues":{"t":"no"}}'], "t").columns[("t",)]
    assert (dates.lower[0].as_py().isoformat(), dates.is_bad[0].as_py()) == ("2024-02-29", True)


def test_timestamps_and_decimals_of_the_usual_form_are_read_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistic_columns, "_read_side", None)
    stated = '{"z":"2024-01-01T10:00:00.123Z","n":"2024-01-01T10:00:00.123456","q":-1.50}'
    found = parsed([f'{{"minValues":{stated},"maxValues":{stated}}}', None], "z", "n", "q").columns
    moment = dt.datetime(2024, 1, 1, 10, 0, 0, 123_000)
    assert found[("z",)].upper.cast(pa.timestamp("us")).to_pylist() == [moment + dt.timedelta(milliseconds=1), None]
    assert found[("n",)].lower.to_pylist() == [moment.replace(microsecond=123_456), None]
    assert found[("q",)].lower.to_pylist() == found[("q",)].upper.to_pylist() == [Decimal("-1.50"), None]


@pytest.mark.parametrize(
    "texts",
    [
        ["{}{}", "{}"],
        ["{}{}", "\x00{}"],
        ['{"minValues":{"l":1}', '{"a":1}}'],
        ['{"a":"x}', '{y"}', "{} {}"],
        ['{"a":[{}', "{}]}", "{} {}"],
        ['{"minValues":{"l":1.0}}'],
        ['{"minValues":{"l":9223372036854775808}}'],
        ['{"minValues":{"l":"1"}}'],
    ],
)
def test_the_least_oddity_ends_the_attempt(texts: list[str | None]) -> None:
    assert parsed(texts, "l") is None


@pytest.mark.parametrize(
    "text", ['{"minValues":{"l":1},"minValues":{"l":2}}', '{"minValues":{"l":1,"l":2}}', '{"minValues":\n{"l":2}}']
)
def test_a_key_that_occurs_twice_and_a_line_break_are_read_together(text: str) -> None:
    assert parsed([text], "l").columns[("l",)].lower.to_pylist() == [2]
    check([text], ["l"])


def test_text_that_is_not_utf8_ends_the_attempt() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\x08\0\0\0"), pa.py_buffer(b'{"a":"\xff"}'[:8])]
    )
    reader = bound_reader(StructField("l", Primitive.LONG, True, {}))
    assert reader is not None
    assert read_together(broken, [AskedColumn(("l",), Primitive.LONG, reader)]) is None
