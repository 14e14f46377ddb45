"""Values to partition strings, strings to directories, paths to `add.path`."""

from __future__ import annotations

import datetime as dt
import json
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.codecs import date_text, float_text, parse_date, parse_timestamp, timestamp_text
from airflow_txlog.datafiles.partitioning import decode_add_path, encode_add_path, hive_directory, partition_string
from airflow_txlog.errors import SchemaMismatch
from tests.helpers.arrow import needs_arrow

EVENING = dt.datetime(2021, 9, 8, 11, 11, 11)


@pytest.mark.parametrize(
    ("values", "arrow", "strings"),
    [
        ([True, False, None], pa.bool_(), ["true", "false", None]),
        ([-128, 127], pa.int8(), ["-128", "127"]),
        ([-(2**63), 2**63 - 1], pa.int64(), ["-9223372036854775808", "9223372036854775807"]),
        ([0.1, 1e10, float("nan")], pa.float32(), ["0.1", "1.0E10", "NaN"]),
        ([0.1, 1e7, 1e-4, float("-inf"), -0.0], pa.float64(), ["0.1", "1.0E7", "1.0E-4", "-Infinity", "-0.0"]),
        ([Decimal("1E-11"), Decimal("123")], pa.decimal128(20, 11), ["0.00000000001", "123.00000000000"]),
        (["x", "", None, "bar+%21"], pa.string(), ["x", None, None, "bar+%21"]),
        ([b"ab", b"", b"\x01\x02", "ä".encode()], pa.binary(), ["ab", None, "\x01\x02", "ä"]),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), ["0001-01-01", "9999-12-31"]),
        ([EVENING, None], pa.timestamp("us", tz="UTC"), ["2021-09-08T11:11:11.000000Z", None]),
        ([EVENING], pa.timestamp("ms", tz="Europe/Berlin"), ["2021-09-08T11:11:11.000000Z"]),
        (
            [EVENING, EVENING.replace(microsecond=500)],
            pa.timestamp("us"),
            ["2021-09-08 11:11:11", "2021-09-08 11:11:11.0005"],
        ),
        (["x", None], pa.large_string(), ["x", None]),
        (["x", None], pa.string_view(), ["x", None]),
        ([b"x", None], pa.binary(1), ["x", None]),
        pytest.param(
            [np.float16(1.5)],
            pa.float16(),
            ["1.5"],
            marks=needs_arrow(25, "half-precision floats have no dictionary"),
        ),
        ([None], pa.null(), [None]),
    ],
)
def test_values_become_the_protocol_s_strings(values, arrow, strings):
    assert partition_string(pa.array(values, arrow)) == strings
    assert partition_string(pa.chunked_array([pa.array(values, arrow), pa.array(values, arrow)])) == strings * 2


def test_dictionary_arrays_are_taken_by_value():
    assert partition_string(pa.array(["b", "a", None, "b"]).dictionary_encode()) == ["b", "a", None, "b"]


def test_years_outside_four_digits_have_a_sign():
    days = pa.array([2_932_897, -719_893], pa.int32())
    assert partition_string(days.cast(pa.date32())) == ["+10000-01-01", "-0001-01-01"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"\xff"], pa.binary()),
        pa.array([1], pa.timestamp("ns")),
        pa.array([[1]]),
        pa.array([dt.time(1)]),
    ],
)
def test_what_no_reader_would_give_back_is_refused(array):
    with pytest.raises(SchemaMismatch):
        partition_string(array)


def test_directories_are_escaped_as_spark_does():
    escaped = {char for char in map(chr, range(0x80)) if hive_directory(["c"], [char]) != f"c={char}"}
    assert escaped == set("\"#%'*/:=?\\{[]^\x7f") | set(map(chr, range(0x20)))
    assert hive_directory(["a", "b=c"], ["x y+z", "10:00:00"]) == "a=x y+z/b%3Dc=10%3A00%3A00"
    assert hive_directory(["a", "b"], [None, ""]) == "a=__HIVE_DEFAULT_PARTITION__/b=__HIVE_DEFAULT_PARTITION__"
    assert hive_directory(["a"], ["ä€"]) == "a=ä€"
    assert hive_directory([], []) == ""


@pytest.mark.parametrize(
    ("value", "directory", "path"),
    [
        ("bar+%21", "_2=bar+%2521", "_2=bar+%252521"),
        ("a b", "_2=a b", "_2=a%20b"),
        ("10:00:00", "_2=10%3A00%3A00", "_2=10%253A00%253A00"),
        ("ä", "_2=ä", "_2=ä"),
        ("a=b,c", "_2=a%3Db,c", "_2=a%253Db,c"),
        ("{x}", "_2=%7Bx}", "_2=%257Bx%7D"),
    ],
)
def test_a_path_is_percent_encoded_exactly_once(value, directory, path):
    assert hive_directory(["_2"], [value]) == directory
    assert encode_add_path(directory) == path
    assert decode_add_path(path) == directory


@given(st.text(st.characters(exclude_characters="\0")))
def test_decoding_a_path_gives_the_path_on_disk(path):
    if any(0xD800 <= ord(char) < 0xDC80 or 0xDCFF < ord(char) < 0xE000 for char in path):
        return  # no file system gives such a name
    raw = path.encode(errors="surrogateescape").decode(errors="surrogateescape")
    assert decode_add_path(encode_add_path(raw)) == raw


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_date_is_read_back_from_its_text(days):
    text = date_text(days)
    assert parse_date(text) == days
    if -719_162 <= days <= 2_932_896:
        assert text == (dt.date(1970, 1, 1) + dt.timedelta(days)).isoformat()


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([" ", "T"]), st.sampled_from([6, None]))
def test_every_timestamp_is_read_back_from_its_text(microseconds, separator, digits):
    text = timestamp_text(microseconds, separator, digits)
    assert parse_timestamp(text) == (microseconds, None)
    assert parse_timestamp(text + "Z") == (microseconds, 0)
    assert parse_timestamp(text + "+05:30") == (microseconds, 19_800)


@pytest.mark.parametrize(
    "text",
    [
        "2021-02-29",
        "2021-13-01",
        "2021-09-08 24:00:00",
        "2021-09-08T11:11:11.1234567Z",
        "21-09-08",
        "2021-09-08T11:11",
        "2021-09-08T11:11:11+19:00",
        "٢٠٢١-09-08",
        " 2021-09-08",
        "",
    ],
)
def test_what_is_no_timestamp_is_not_guessed(text):
    assert parse_timestamp(text) is None


@given(st.floats(width=64))
def test_a_double_s_text_is_read_back(value):
    assert struct.pack("<d", float(float_text(value))) == struct.pack("<d", value) or value != value


@given(st.floats(width=32))
def test_a_float_s_text_is_short_and_read_back(value):
    text = float_text(value, single=True)
    assert value != value or pa.scalar(text.replace("Infinity", "inf")).cast(pa.float32()).as_py() == value
    assert len(text) <= 16


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (123456.7, "123456.7"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1.5e300, "1.5E300"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (-1200.0, "-1200.0"),
        (0.0, "0.0"),
    ],
)
def test_floats_are_written_as_java_writes_them(value, text):
    assert float_text(value) == text


def test_deltalake_reads_the_partitions_we_write(tmp_path):
    from deltalake import DeltaTable, write_deltalake

    columns = {
        "b": pa.array([True]),
        "i": pa.array([-7], pa.int16()),
        "d": pa.array([1e10]),
        "dec": pa.array([Decimal("1E-11")], pa.decimal128(20, 11)),
        "s": pa.array(["bar+%21 {x}/ä"]),
        "bin": pa.array(["ä\x01".encode()], pa.binary()),
        "day": pa.array([dt.date(1500, 1, 1)]),
        "ts": pa.array([EVENING.replace(microsecond=1)], pa.timestamp("us", tz="UTC")),
        "ntz": pa.array([EVENING.replace(microsecond=500)], pa.timestamp("us")),
        "nothing": pa.array([None], pa.string()),
    }
    table = pa.table({**columns, "x": pa.array([1])})
    write_deltalake(tmp_path, table, partition_by=list(columns))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    [add] = [line["add"] for line in lines if "add" in line]
    values = {name: partition_string(column)[0] for name, column in columns.items()}
    relative = hive_directory(list(values), list(values.values())) + "/f.parquet"
    (tmp_path / relative).parent.mkdir(parents=True)
    (tmp_path / decode_add_path(add["path"])).rename(tmp_path / relative)
    add.update(path=encode_add_path(relative), partitionValues=values)
    commit.write_text("\n".join(map(json.dumps, lines)))
    read = DeltaTable(tmp_path).to_pyarrow_table()
    assert [read.column(name).to_pylist() for name in table.column_names] == [
        table.column(name).to_pylist() for name in table.column_names
    ]
