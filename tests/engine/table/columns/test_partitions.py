"""Partition strings to typed values: exact, or not known."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine.table.columns.partitions import fixed_zone, parse_partition_values, typed_partition_columns
from airflow_txlog.engine.table.schema.schema import arrow_type, delta_type, parse_schema
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType
from airflow_txlog.errors import CorruptTable, UnknownColumn
from airflow_txlog.jobs.sql.current_time import instants_of
from tests.helpers.paths import GOLDEN

UNKNOWN = object()


def parsed(strings, data_type, time_zone=None):
    column = parse_partition_values(pa.array(strings, pa.string()), data_type, time_zone=time_zone)
    assert column.values.type == arrow_type(data_type)
    assert column.known.null_count == 0
    known = column.known.to_pylist()
    return [value if told else UNKNOWN for value, told in zip(column.values.to_pylist(), known, strict=True)]


ints = st.sampled_from([(pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31), (pa.int64(), 63)]).flatmap(
    lambda kind: st.tuples(st.just(kind[0]), st.lists(st.none() | st.integers(-(2 ** kind[1]), 2 ** kind[1] - 1)))
)
decimals = st.tuples(st.integers(1, 38), st.integers(0, 38)).flatmap(
    lambda ps: st.tuples(
        st.just(pa.decimal128(max(ps), ps[1])),
        st.lists(st.none() | st.integers(1 - 10 ** max(ps), 10 ** max(ps) - 1).map(lambda n: scaled(n, ps[1]))),
    )
)


def scaled(unscaled: int, scale: int) -> Decimal:
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -scale))


def of(arrow, values):
    return st.tuples(st.just(arrow), st.lists(st.none() | values))


plain_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
columns = st.one_of(
    of(pa.bool_(), st.booleans()),
    ints,
    of(pa.float32(), st.floats(width=32, allow_nan=False)),
    of(pa.float64(), st.floats(allow_nan=False)),
    decimals,
    of(pa.string(), plain_text),
    of(pa.binary(), plain_text.map(str.encode)),
    of(pa.date32(), st.dates()),
    of(pa.timestamp("us"), st.datetimes()),
    of(pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
)


@settings(deadline=None)
@given(columns)
def test_every_value_is_read_back_from_its_partition_string(column):
    arrow, values = column
    array = pa.array(values, arrow)
    back = parse_partition_values(pa.array(partition_string(array), pa.string()), delta_type(arrow, "p"))
    assert back.known.to_pylist() == [True] * len(array)
    assert back.values.to_pylist() == array.to_pylist()


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_every_instant_is_read_back_also_outside_the_years_of_datetime(microseconds):
    array = pa.array(microseconds, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    back = parse_partition_values(pa.array(partition_string(array), pa.string()), Primitive.TIMESTAMP)
    assert back.values.cast(pa.int64()).to_pylist() == microseconds


def test_null_and_the_empty_string_are_null_in_every_type():
    for data_type in [primitive for primitive in Primitive if primitive is not Primitive.VOID] + [DecimalType(5, 2)]:
        assert parsed(["", None], data_type) == [None, None]


def test_nan_is_read_in_every_spelling():
    values = parsed(["NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"], Primitive.DOUBLE)
    assert [str(value) for value in values] == ["nan", "nan", "inf", "-inf", "inf", "-inf"]


@pytest.mark.parametrize(
    ("data_type", "texts"),
    [
        (Primitive.BOOLEAN, ["yes", "1", "truee"]),
        (Primitive.BYTE, ["128", "-129", "1.0", "0x1F", " 1", "١", "1e2"]),
        (Primitive.LONG, ["9223372036854775808", "99999999999999999999"]),
        (Primitive.FLOAT, ["1e40", "abc", "1_0", "--1", "1f"]),
        (Primitive.DOUBLE, ["1e400", "0x1p3", "nano"]),
        (DecimalType(5, 2), ["1.234", "1000", "NaN", "1e99999", "abc"]),
        (Primitive.DATE, ["2021-02-29", "2021", "2021-01-01 00:00:00", "soon", "+5881580-07-12"]),
        (Primitive.TIMESTAMP, ["2021-09-08T11:11:11.1234567Z", "noon"]),
        (Primitive.TIMESTAMP_NTZ, ["2021-09-08T11:11:11Z", "noon"]),
        (Primitive.VOID, ["x"]),
    ],
)
def test_text_that_is_no_such_value_is_not_known(data_type, texts):
    assert parsed([*texts, None], data_type) == [UNKNOWN] * len(texts) + [None]


def test_a21_a_partition_value_with_an_offset_is_the_instant_that_its_text_names():
    """A statistic only describes rows; a partition value is the row's value, as every reader takes it from its text."""
    [value] = parsed(["1880-01-01T00:00:00.000+09:18"], Primitive.TIMESTAMP)
    assert value == dt.datetime(1879, 12, 31, 14, 42, tzinfo=dt.UTC)
    # Spark reads an offset with seconds; here the value is not known, so its file is kept.
    assert parsed(["1880-01-01T00:00:00.000+09:18:59"], Primitive.TIMESTAMP) == [UNKNOWN]


def test_one_bad_string_makes_no_other_file_unknown():
    assert parsed(["1", "x", "2", "x", "1"], Primitive.INTEGER) == [1, UNKNOWN, 2, UNKNOWN, 1]


def test_other_writers_spellings_are_read():
    assert parsed(["+5", "007"], Primitive.INTEGER) == [5, 7]
    assert parsed(["TRUE", "False"], Primitive.BOOLEAN) == [True, False]
    assert parsed(["1", "10000000000", "1.0E-5", "+.5"], Primitive.DOUBLE) == [1.0, 1e10, 1e-5, 0.5]
    assert parsed(["1E-2", "7"], DecimalType(5, 2)) == [Decimal("0.01"), Decimal("7.00")]
    assert parsed(["2024-1-2"], Primitive.DATE) == [dt.date(2024, 1, 2)]
    assert parsed(["2024-09-09", "2021-01-01T00:00:01"], Primitive.TIMESTAMP_NTZ) == [
        dt.datetime(2024, 9, 9),
        dt.datetime(2021, 1, 1, 0, 0, 1),
    ]


def test_a_float_is_rounded_to_32_bits_once():
    # Through a double these digits round to the even neighbour below.
    assert parsed(["1.00000017881393432617187499"], Primitive.FLOAT) == [1.00000011920928955078125]
    assert parsed(["1.00000017881393432617187501"], Primitive.FLOAT) == [1.0000002384185791015625]


def test_a9_a_timestamp_without_a_zone_is_not_known_unless_a_zone_is_given():
    text = "2024-11-03 01:30:00"
    assert parsed([text, "2024-11-03T01:30:00.000000Z"], Primitive.TIMESTAMP) == [
        UNKNOWN,
        dt.datetime(2024, 11, 3, 1, 30, tzinfo=dt.UTC),
    ]
    assert parsed([text], Primitive.TIMESTAMP, "-05:00") == [dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC)]
    assert parsed([text], Primitive.TIMESTAMP, "America/New_York") == [UNKNOWN]
    assert parsed(["9999-12-31 23:59:59"], Primitive.TIMESTAMP, "UTC") == [
        dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    ]


def test_an_offset_in_the_value_wins_over_the_session():
    assert parsed(["2024-01-01 00:00:00+05:30", "2024-01-01T00:00:00-08"], Primitive.TIMESTAMP, "Asia/Tokyo") == [
        dt.datetime(2023, 12, 31, 18, 30, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, 8, tzinfo=dt.UTC),
    ]


def test_zones_are_named_as_spark_names_them():
    def hours(name):
        return fixed_zone(name).utcoffset(dt.datetime(2024, 1, 1)).total_seconds() / 3600

    assert [hours(name) for name in ["UTC", "Z", "+08:00", "-5", "UTC+05:30", "GMT-3"]] == [0, 0, 8, -5, 5.5, -3]
    assert [fixed_zone(name) for name in ["Asia/Kolkata", "EST", "Europe", "../etc", "", "+19:00"]] == [None] * 6


def files(*values):
    kind = pa.map_(pa.string(), pa.string())
    return pa.table({"partition_values": pa.array([list(value.items()) for value in values], kind)})


SCHEMA = StructType(
    (
        StructField("Day", Primitive.DATE),
        StructField("k", Primitive.INTEGER, True, {"delta.columnMapping.physicalName": "col-1"}),
        StructField("x", Primitive.LONG),
    )
)


def test_columns_are_typed_under_the_schema_s_spelling():
    table = files({"Day": "2024-01-01", "col-1": "3"}, {"day": "2024-01-02", "col-1": None}, {})
    typed = typed_partition_columns(table, SCHEMA, ["day", "k"])
    assert list(typed) == ["Day", "k"]
    assert typed["Day"].values.to_pylist() == [dt.date(2024, 1, 1), dt.date(2024, 1, 2), None]
    assert typed["k"].values.to_pylist() == [3, None, None]
    assert list(typed_partition_columns(table, SCHEMA, ["day", "k"], only=["K", "x"])) == ["k"]


def test_a_null_partition_value_of_a_mapped_column_is_not_sought_under_its_logical_name():
    # The names were exchanged: what stands under `k` belongs to another column.
    typed = typed_partition_columns(files({"Day": None, "col-1": None, "k": "7"}), SCHEMA, ["Day", "k"])
    assert typed["k"].values.to_pylist() == [None]


def test_a_partition_column_outside_the_schema_is_an_error():
    with pytest.raises(UnknownColumn):
        typed_partition_columns(files({}), SCHEMA, ["nope"])


def test_rows_are_not_built_from_a_value_that_is_not_known():
    typed = typed_partition_columns(files({"Day": "x"}), SCHEMA, ["Day"])
    with pytest.raises(CorruptTable, match="'Day'"):
        typed["Day"].for_rows("Day")
    assert parse_partition_values(pa.array([], pa.string()), Primitive.DATE).for_rows("Day").to_pylist() == []


def test_chunks_and_their_absence_make_no_difference():
    chunked = pa.chunked_array([pa.array(["1", None]), pa.array([], pa.string()), pa.array(["2", "1"])])
    assert parse_partition_values(chunked, Primitive.LONG).values.to_pylist() == [1, None, 2, 1]
    assert len(parse_partition_values(pa.chunked_array([], pa.string()), Primitive.LONG).values) == 0


def test_every_golden_partition_value_is_known_in_some_zone():
    seen = 0
    for commit in sorted(GOLDEN.glob("*/_delta_log/*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        [metadata, *_] = [a["metaData"] for a in actions if "schemaString" in a.get("metaData", {})] or [None]
        adds = [action["add"] for action in actions if "add" in action]
        if metadata is None or not metadata.get("partitionColumns") or not adds:
            continue
        schema = parse_schema(metadata["schemaString"])
        table = files(*(add["partitionValues"] for add in adds))
        typed = typed_partition_columns(table, schema, metadata["partitionColumns"], time_zone="UTC")
        for name, column in typed.items():
            column.for_rows(name)
            seen += len(column.values) - column.values.null_count
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden tables at {GOLDEN}")
    assert seen > 20


def test_a_hundred_thousand_files_are_typed_by_their_distinct_strings():
    days = [{"Day": f"2024-01-{day:02d}", "col-1": str(day)} for day in range(1, 29)]
    table = pa.concat_tables([files(*days)] * 4_000).combine_chunks()
    typed = typed_partition_columns(table, SCHEMA, ["Day", "k"])
    assert len(typed["Day"].values) == 112_000
    assert typed["k"].values[111_999].as_py() == 28


SPARK_CASES = {
    Primitive.BOOLEAN: ["true", "FALSE", "t", "1", "x"],
    Primitive.BYTE: ["-128", "127", "128", "+5", "007", "1.5", " 1", "0x1F", "1e1"],
    Primitive.LONG: ["9223372036854775807", "-9223372036854775808", "9223372036854775808", "1L"],
    Primitive.FLOAT: ["0.1", "1.00000017881393432617187501", "3.4028235E38", "1e39", "NaN", "-Infinity", "1e-46", "1f"],
    Primitive.DOUBLE: ["0.1", "inf", "nan", "1.0E10", "10000000000", "-0.0", "1e400", "1d", ".5", "5."],
    DecimalType(20, 11): ["0.00000000001", "1E-11", "123.00000000000", "1E-12", "1E9", "+7", "NaN"],
    Primitive.STRING: ["x", " x ", "null", "\\u0041"],
    Primitive.BINARY: ["ab", "\u0001\u0002", "ä", "\\u0001"],
    Primitive.DATE: [
        "2024-02-29",
        "2023-02-29",
        "2024-1-2",
        "0001-01-01",
        "+10000-01-01",
        "1582-10-10",
        "2024",
        "-0001-01-01",
    ],
    Primitive.TIMESTAMP: [
        "2021-09-08T11:11:11.000000Z",
        "2021-09-08 11:11:11",
        "2021-09-08 11:11:11.5",
        "2024-11-03 01:30:00",
        "2024-03-10 02:30:00",
        "1850-01-01 00:00:00",
        "0001-01-01T00:00:00.000000Z",
        "1500-01-01T00:00:00.000001Z",
        "2024-01-01 00:00:00+05:30",
        "2024-01-01T00:00:00-08",
        "2024-01-01",
        "2024-01-01 00:00",
    ],
    Primitive.TIMESTAMP_NTZ: ["2021-09-08 11:11:11", "2021-09-08T11:11:11.123456", "2024-03-10 02:30:00", "2024-01-01"],
}


# As integers: Python's own dates end at 9999, and its timestamps would be shown in the zone of this process.
AS_INTEGERS = {
    Primitive.DATE: ("unix_date({})", pa.int32()),
    Primitive.TIMESTAMP: ("unix_micros({})", pa.int64()),
    Primitive.TIMESTAMP_NTZ: ("timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {})", pa.int64()),
}


@pytest.mark.spark
@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.long("a second zone")), "America/New_York"])
def test_what_is_known_is_what_spark_casts_the_string_to(spark, zone):
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for data_type, texts in SPARK_CASES.items():
            if zone != "UTC" and data_type not in AS_INTEGERS:
                continue  # which no zone changes
            # timestampdiff counts by the session's zone; what has no zone must not be shifted by it.
            spark.conf.set("spark.sql.session.timeZone", zone if data_type is Primitive.TIMESTAMP else "UTC")
            wrap, arrow = AS_INTEGERS.get(data_type, ("{}", arrow_type(data_type)))
            frame = spark.createDataFrame(list(enumerate(texts)), "i int, s string")
            cast = wrap.format(f"try_cast(s AS {data_type})")
            expected = [row.v for row in frame.selectExpr("i", f"{cast} AS v").orderBy("i").collect()]
            ours = parse_partition_values(
                pa.array(texts), data_type, time_zone=zone, instants=lambda walls: instants_of(spark, walls)
            )
            assert pa.compute.sum(ours.known).as_py() >= 2
            for text, theirs, value, known in zip(texts, expected, ours.values.cast(arrow), ours.known, strict=True):
                if known.as_py():
                    plain, mine = bytes(theirs) if isinstance(theirs, bytearray) else theirs, value.as_py()
                    assert mine == plain or (mine != mine and plain != plain), (data_type, text)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
