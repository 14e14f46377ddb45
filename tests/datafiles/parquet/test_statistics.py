"""The statistics that we write: bounds in Spark's order, exact, and left out where JSON cannot say them."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector, file_statistics

NAN, INFINITY = float("nan"), float("inf")


def statistics(values, arrow=None):
    """`(minimum, maximum, null count)` of one column, numbers as Decimal, absent as None."""
    array = values if isinstance(values, pa.Array) else pa.array(values, arrow)
    parsed = json.loads(file_statistics(pa.table({"c": array})), parse_float=Decimal)
    return parsed["minValues"].get("c"), parsed["maxValues"].get("c"), parsed["nullCount"].get("c")


def test_a6_a_column_that_holds_nan_has_no_max():
    assert statistics([1.0, 3.0, NAN, None]) == (Decimal("1.0"), None, 1)
    assert statistics([1.0, 3.0, NAN], pa.float32()) == (Decimal("1.0"), None, 0)


def test_a6_a_column_of_nan_alone_has_no_bounds():
    assert statistics([NAN, NAN, None]) == (None, None, 1)


def test_a6_nan_in_an_earlier_batch_is_remembered():
    schema = pa.schema([("c", pa.float64())])
    collector = StatisticsCollector(schema)
    for values in [[NAN], [2.0], [], [None], [1.0]]:
        collector.update(pa.record_batch([pa.array(values, pa.float64())], schema=schema))
    assert json.loads(collector.finish()) == {
        "numRecords": 4,
        "minValues": {"c": 1.0},
        "maxValues": {},
        "nullCount": {"c": 1},
    }


def test_a6_decimals_are_exact_json_numbers():
    low, high = Decimal("-12345678901234567.89"), Decimal("0.01")
    text = file_statistics(pa.table({"c": pa.array([low, high], pa.decimal128(20, 2))}))
    assert '"minValues":{"c":-12345678901234567.89},"maxValues":{"c":0.01}' in text
    tiny = pa.array([Decimal("1E-30")], pa.decimal128(38, 30))
    assert '"c":0.000000000000000000000000000001' in file_statistics(pa.table({"c": tiny}))


def test_a6_zeros_of_either_sign_lie_within_the_bounds_for_readers_that_tell_them_apart():
    for values in ([0.0], [-0.0], [0.0, -0.0], [-0.0, 0.0]):
        text = file_statistics(pa.table({"c": pa.array(values)}))
        assert '"minValues":{"c":-0.0},"maxValues":{"c":0.0}' in text


def test_an_infinite_bound_is_left_out_and_the_other_kept():
    assert statistics([INFINITY, 1.0]) == (Decimal("1.0"), None, 0)
    assert statistics([-INFINITY, 1.0]) == (None, Decimal("1.0"), 0)


def test_a_float_has_its_own_shortest_digits():
    text = file_statistics(pa.table({"c": pa.array([0.1, 3.4], pa.float32())}))
    assert '"minValues":{"c":0.1},"maxValues":{"c":3.4}' in text


@pytest.mark.parametrize(
    ("values", "arrow", "expected"),
    [
        ([-128, 127], pa.int8(), (-128, 127, 0)),
        ([2**63 - 1, -(2**63)], pa.int64(), (-(2**63), 2**63 - 1, 0)),
        ([True, None], pa.bool_(), (None, None, 1)),
        ([b"a", None], pa.binary(), (None, None, 1)),
        ([[1], None], pa.list_(pa.int8()), (None, None, 1)),
        ([[("a", 1)], None], pa.map_(pa.string(), pa.int8()), (None, None, 1)),
        ([None, None], pa.int32(), (None, None, 2)),
        ([None], pa.null(), (None, None, None)),
        ([dt.date(2024, 2, 29), dt.date(1, 1, 1)], pa.date32(), ("0001-01-01", "2024-02-29", 0)),
        (["b", "a", ""], pa.string(), ("", "b", 0)),
        (["b", "a"], pa.string_view(), ("a", "b", 0)),
        (["b", "a"], pa.dictionary(pa.int8(), pa.string()), ("a", "b", 0)),
        ([np.float16(1.5)], pa.float16(), (Decimal("1.5"), Decimal("1.5"), 0)),
        ([Decimal("1.5")], pa.decimal32(4, 2), (Decimal("1.50"), Decimal("1.50"), 0)),
        ([Decimal("1.5")], pa.decimal256(40, 2), (Decimal("1.50"), Decimal("1.50"), 0)),
        (["é\0\n\"\\'"], pa.string(), ("é\0\n\"\\'", "é\0\n\"\\'", 0)),
    ],
)
def test_each_type_has_the_statistics_that_the_protocol_gives_it(values, arrow, expected):
    assert statistics(pa.array(values, arrow)) == expected


def test_timestamps_are_in_milliseconds_and_bound_the_microseconds():
    values = pa.array([-1, 123_999], pa.timestamp("us", tz="UTC"))
    assert statistics(values) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.124Z", 0)
    values = pa.array([-1000, 123_000], pa.timestamp("us"))
    assert statistics(values) == ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.123", 0)
    values = pa.array([1], pa.timestamp("ms", tz="Europe/Berlin"))
    assert statistics(values) == ("1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.001Z", 0)


def test_years_that_readers_cannot_say_are_left_out():
    days = pa.array([-719_163, 2_932_897, 0], pa.int32()).cast(pa.date32())
    assert statistics(days) == (None, None, 0)
    open_end = pa.array([253_402_300_799_999_999, 0], pa.timestamp("us"))
    assert statistics(open_end) == ("1970-01-01T00:00:00.000", None, 0)


@pytest.mark.parametrize(
    ("text", "minimum", "maximum"),
    [
        ("x" * 32, "x" * 32, "x" * 32),
        ("x" * 33, "x" * 32, "x" * 32 + "\x7f"),
        ("x" * 32 + "\x7f", "x" * 32, "x" * 32 + "\U0010ffff"),
        ("x" * 32 + "é", "x" * 32, "x" * 32 + "\U0010ffff"),
        ("😀" * 40, "😀" * 32, "😀" * 32 + "\U0010ffff"),
        ("x" * 32 + "\U0010ffff" * 2 + "y", "x" * 32, "x" * 32 + "\U0010ffff" * 2 + "\x7f"),
        ("\U0010ffff" * 33, "\U0010ffff" * 32, None),
    ],
)
def test_strings_are_cut_to_32_characters_and_stay_bounds(text, minimum, maximum):
    assert statistics([text]) == (minimum, maximum, 0)


def test_bytes_that_are_no_text_cost_their_column_its_bounds_only():
    broken = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    parsed = json.loads(file_statistics(pa.table({"c": broken, "d": pa.array([1, 2])})))
    assert parsed["minValues"] == {"d": 1}
    assert parsed["nullCount"] == {"c": 0, "d": 0}


def test_members_of_structs_are_nested_and_null_where_their_struct_is():
    kind = pa.struct([("a", pa.int32()), ("in", pa.struct([("b", pa.string()), ("l", pa.list_(pa.int8()))]))])
    rows = [{"a": 1, "in": {"b": "x", "l": [1]}}, {"a": None, "in": None}, None]
    parsed = json.loads(file_statistics(pa.table({"s": pa.array(rows, kind)})))
    assert parsed == {
        "numRecords": 3,
        "minValues": {"s": {"a": 1, "in": {"b": "x"}}},
        "maxValues": {"s": {"a": 1, "in": {"b": "x"}}},
        "nullCount": {"s": {"a": 2, "in": {"b": 2, "l": 2}}},
    }


def indexed(table, **arguments):
    return json.loads(file_statistics(table, **arguments))["nullCount"]


def test_the_first_32_leaves_have_statistics():
    columns = {f"c{i}": pa.array([1]) for i in range(30)}
    columns["s"] = pa.array([{"a": 1, "b": 2, "c": 3}])
    columns["z"] = pa.array([1])
    table = pa.table(columns)
    found = indexed(table)
    assert list(found) == [*(f"c{i}" for i in range(30)), "s"]
    assert found["s"] == {"a": 0, "b": 0}
    assert list(indexed(table, num_indexed_columns=-1))[-1] == "z"
    assert indexed(table, num_indexed_columns=0) == {}


def test_named_columns_have_statistics_and_no_others():
    table = pa.table({"a": [1], "B": [2], "s": pa.array([{"x": 1, "y": {"z": 2}}]), "s.x": [3]})
    assert indexed(table, indexed_columns=[("b",), ("S", "y"), ("nope",)]) == {"B": 0, "s": {"y": {"z": 0}}}
    assert indexed(table, indexed_columns=[("s",)]) == {"s": {"x": 0, "y": {"z": 0}}}
    assert indexed(table, indexed_columns=[("s.x",)]) == {"s.x": 0}
    assert indexed(table, indexed_columns=[]) == {}


def test_no_rows_have_statistics_that_say_so():
    assert json.loads(file_statistics(pa.table({"c": pa.array([], pa.int8())}))) == {
        "numRecords": 0,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"c": 0},
    }


scalars = st.one_of(
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats())),
    st.tuples(st.just(pa.float32()), st.lists(st.none() | st.floats(width=32))),
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(max_size=40))),
    st.tuples(
        st.just(pa.decimal128(38, 10)),
        st.lists(st.none() | st.decimals(-(10**27), 10**27, allow_nan=False, places=10)),
    ),
    st.tuples(st.just(pa.timestamp("us")), st.lists(st.none() | st.datetimes())),
    st.tuples(st.just(pa.date32()), st.lists(st.none() | st.dates())),
)


@given(scalars, st.integers(1, 4))
def test_batches_make_no_difference(column, size):
    arrow, values = column
    table = pa.table({"c": pa.array(values, arrow)})
    collector = StatisticsCollector(table.schema)
    for batch in table.to_batches(max_chunksize=size):
        collector.update(batch)
    assert collector.finish() == file_statistics(table)


others = st.one_of(
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=3))),
    st.tuples(st.just(pa.list_(pa.int8())), st.lists(st.none() | st.lists(st.none() | st.just(1), max_size=2))),
)


@given(st.one_of(scalars, others), st.lists(st.integers(1, 4), min_size=1))
def test_many_files_get_their_statistics_together_as_each_would_alone(column, sizes):
    arrow, values = column
    held = pa.array(values, arrow)
    member = pa.StructArray.from_arrays(
        [held], names=["m"], mask=pa.array([n % 3 == 1 for n in range(len(held))], pa.bool_())
    )
    table = pa.table({"c": held, "s": member, "t": member})
    ends = [end for end in itertools.accumulate(sizes) if end < len(table)]
    parts = [
        table.slice(start, end - start) for start, end in itertools.pairwise([0, *ends, len(table)]) if end > start
    ]
    options = {"indexed_columns": [("c",), ("S",)]}
    found = list(StatisticsCollector(table.schema, **options).of_parts(parts))
    for collector, part in zip(found, parts, strict=True):
        collector.update(part)
        assert collector.finish() == file_statistics(part, **options)


def in_spark_s_order(value):
    """A key that sorts as Spark does: NaN after everything, the zeros equal."""
    return (1, 0) if value != value else (0, value)


@given(scalars)
def test_taken_literally_the_bounds_hold_in_spark_s_order(column):
    arrow, values = column
    minimum, maximum, nulls = statistics(pa.array(values, arrow))
    present = [value for value in values if value is not None]
    assert nulls == len(values) - len(present)
    read = {
        pa.float64(): float,
        pa.float32(): lambda digits: pa.scalar(str(digits)).cast(arrow).as_py(),
        pa.decimal128(38, 10): Decimal,
        pa.timestamp("us"): dt.datetime.fromisoformat,
        pa.date32(): dt.date.fromisoformat,
    }.get(arrow, lambda value: value)
    for value in present:
        assert minimum is None or in_spark_s_order(read(minimum)) <= in_spark_s_order(value)
        assert maximum is None or in_spark_s_order(value) <= in_spark_s_order(read(maximum))
    if present and pa.types.is_int64(arrow):
        assert (minimum, maximum) == (min(present), max(present))


def test_rows_may_have_their_columns_in_another_order_each_time():
    """The files of one writer share where the columns of their rows were."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    first = StatisticsCollector(schema)
    second = first.empty()
    rows = pa.table({"a": [1], "b": [2]}, schema=schema)
    for collector in (first, second):
        collector.update(rows)
        collector.update(rows.select(["b", "a"]))
        found = json.loads(collector.finish())
        assert found["minValues"] == {"a": 1, "b": 2}
        assert found["maxValues"] == {"a": 1, "b": 2}


def test_deltalake_reads_the_statistics_we_write(tmp_path):
    from deltalake import DeltaTable, write_deltalake

    table = pa.table(
        {
            "d": pa.array([1.0, 3.0, NAN]),
            "f": pa.array([0.1, 1e-10, INFINITY], pa.float32()),
            "dec": pa.array([Decimal("12345678901234567.89")] * 3, pa.decimal128(20, 2)),
            "s": pa.array(["x" * 100, "é" * 50, "a"]),
            "ts": pa.array([123_999, -1, 0], pa.timestamp("us", tz="UTC")),
            "ntz": pa.array([123_999, -1, 0], pa.timestamp("us")),
            "st": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
            "arr": pa.array([[1], None, [2]]),
            "day": pa.array([dt.date(1, 1, 1)] * 3),
        }
    )
    write_deltalake(tmp_path, table)
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["stats"] = file_statistics(table)
    commit.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    read = DeltaTable(tmp_path)
    [file] = pa.table(read.get_add_actions(flatten=True)).to_pylist()
    assert file["num_records"] == 3
    assert (file["min.d"], file["max.d"]) == (1.0, None)
    assert file["min.dec"] == file["max.dec"] == Decimal("12345678901234567.89")
    assert file["max.s"] == "é" * 32 + "\U0010ffff"
    assert file["min.ts"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
    assert file["max.ntz"] == dt.datetime(1970, 1, 1, 0, 0, 0, 124_000)
    assert (file["min.st.a"], file["null_count.st.a"], file["null_count.arr"]) == (1, 2, 1)
    assert file["min.day"] == dt.date(1, 1, 1)
    assert read.to_pyarrow_table().num_rows == 3


@pytest.mark.spark
def test_a6_no_value_lies_outside_our_bounds_when_spark_compares(spark):
    columns = {
        "double": [[1.0, 3.0, NAN], [NAN], [-INFINITY, INFINITY], [-0.0, 0.0], [0.1, 1e300, 5e-324]],
        "float": [[1.0, NAN], [0.1, 3.4], [-0.0]],
        "string": [["x" * 100, "é" * 50, ""], ["\U0010ffff" * 40, "a"], ["x" * 32 + "\x7f", "x" * 32 + "é"]],
        "decimal(38,20)": [[Decimal("0.30000000000000001665"), Decimal("-99999999999999999.5")]],
        "bigint": [[2**63 - 1, -(2**63), 9_007_199_254_740_993]],
    }
    for kind, groups in columns.items():
        rows = [(number, value) for number, values in enumerate(groups) for value in values]
        frame = spark.createDataFrame(rows, f"g int, c {kind}")
        written, escapes, args = frame.toArrow(), [], {}
        for number in range(len(groups)):
            table = written.filter(pc.field("g") == number).select(["c"])
            parsed = json.loads(file_statistics(table), parse_float=str, parse_int=str)
            for sign, found in (("<", parsed["minValues"]), (">", parsed["maxValues"])):
                if "c" in found:
                    name = f"bound{len(args)}"
                    escapes.append(f"g = {number} AND c {sign} cast(:{name} AS {kind})")
                    args[name] = found["c"]
        frame.createOrReplaceTempView("written_rows")
        # By name: Spark does not bind several question marks in their order.
        query = f"SELECT g, c FROM written_rows WHERE {' OR '.join(escapes)}"
        assert spark.sql(query, args=args).collect() == [], kind
