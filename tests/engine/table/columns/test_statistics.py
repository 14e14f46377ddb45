"""Statistics as read: bounds that no value of the file escapes, whoever wrote them; else not known."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.datafiles.partitioning import decode_add_path
from airflow_txlog.engine.table.columns.statistics import bounds
from airflow_txlog.engine.table.schema.schema import from_arrow, parse_schema
from airflow_txlog.engine.table.schema.types import ArrayType, DecimalType, MapType, Primitive, StructField, StructType
from airflow_txlog.errors import UnknownColumn
from tests.helpers.paths import GOLDEN

NAN, INFINITY = float("nan"), float("inf")
VECTOR = pa.struct([("storage_type", pa.string())])


def compact(value):
    """JSON as every writer but Python's writes it."""
    return json.dumps(value, separators=(",", ":"))


def files(*stats, masked=()):
    texts = [text if text is None or isinstance(text, str) else compact(text) for text in stats]
    vectors = [{"storage_type": "u"} if i in masked else None for i in range(len(stats))]
    return pa.table({"stats": pa.array(texts, pa.string()), "deletion_vector": pa.array(vectors, VECTOR)})


def found(data_type, *stats, metadata=None, masked=(), **options):
    schema = StructType((StructField("c", data_type, True, metadata or {}),))
    return bounds(files(*stats, masked=masked), schema, [("c",)], **options)[("c",)]


def sides(data_type, minimum, maximum, metadata=None):
    """The bounds made of two JSON texts."""
    text = f'{{"numRecords":3,"minValues":{{"c":{minimum}}},"maxValues":{{"c":{maximum}}}}}'
    one = found(data_type, text, metadata=metadata)
    return one.lower[0].as_py(), one.upper[0].as_py()


def holds(bound, column):
    """No value of the column lies outside the first file's bounds, as the docstring of ColumnBounds defines them."""
    lower, upper = bound.lower[0].as_py(), bound.upper[0].as_py()
    for value in column.to_pylist():
        if value is None:
            continue
        if value != value:
            assert bound.may_hold_nan
            continue
        assert lower is None or lower <= value
        if upper is not None:
            assert value < upper if bound.upper_is_exclusive else value <= upper
    nulls = bound.null_count[0].as_py()
    assert nulls is None or nulls == column.null_count
    return lower, upper


def written_by_deltalake(path, table):
    from deltalake import write_deltalake

    write_deltalake(path, table)
    lines = [json.loads(line) for line in (path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()]
    [schema] = [parse_schema(line["metaData"]["schemaString"]) for line in lines if "metaData" in line]
    return files(*(line["add"]["stats"] for line in lines if "add" in line)), schema


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A table that delta-rs wrote, whose statistics mislead a literal reader: its rows, and all its bounds."""
    rows = pa.table(
        {
            "nan": pa.array([1.0, 3.0, NAN]),
            "only_nan": pa.array([NAN, NAN, None]),
            "infinite": pa.array([-INFINITY, 0.0, INFINITY]),
            "single": pa.array([0.1, 0.1, 0.1], pa.float32()),
            "double": pa.array([0.1, -1e300, 5e-324]),
            "long_decimal": pa.array([Decimal("12345678901234567.89")] * 3, pa.decimal128(37, 2)),
            "tail": pa.array([Decimal("0.30000000000000001665")] * 3, pa.decimal128(38, 20)),
            "round": pa.array([Decimal("100000000000000000.01")] * 3, pa.decimal128(38, 2)),
            "seventeen": pa.array([Decimal("1234567890123456.7")] * 3, pa.decimal128(38, 1)),
            "short": pa.array([Decimal("-1.25"), Decimal("99.99"), None], pa.decimal128(10, 2)),
            "ts": pa.array([123_999, -500, 0], pa.timestamp("us", tz="UTC")),
            "ntz": pa.array([123_999, -500, 0], pa.timestamp("us")),
            "long_string": pa.array(["x" * 100, "é" * 50, ""]),
            "last_char": pa.array(["\U0010ffff" * 40, "a", None]),
            "big": pa.array([9_007_199_254_740_993, -(2**63), 0]),
            "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
            "flag": pa.array([True, False, None]),
            "bytes": pa.array([b"a", b"\xff", None]),
            "s": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None]),
            "list": pa.array([[1], None, [2]]),
        }
    )
    table, schema = written_by_deltalake(tmp_path_factory.mktemp("foreign") / "t", rows)
    return rows, {path[0]: bound for path, bound in bounds(table, schema, [(n,) for n in rows.column_names]).items()}


def test_a5_no_value_that_deltalake_wrote_lies_outside_our_bounds(foreign):
    rows, found_bounds = foreign
    for name, bound in found_bounds.items():
        if name not in ("s", "list", "flag", "bytes"):
            holds(bound, rows.column(name))


def test_a5_an_upper_bound_says_that_nan_may_lie_above_it(foreign):
    rows, found_bounds = foreign
    bound = found_bounds["nan"]
    assert holds(bound, rows.column("nan")) == (1.0, 3.0)
    assert bound.may_hold_nan
    assert holds(found_bounds["only_nan"], rows.column("only_nan")) == (None, None)
    assert holds(found_bounds["infinite"], rows.column("infinite")) == (None, None)


def test_a5_decimals_that_went_through_a_double_are_widened(foreign):
    rows, found_bounds = foreign
    for name in ("long_decimal", "tail", "round", "seventeen"):
        lower, upper = holds(found_bounds[name], rows.column(name))
        assert lower < upper
        # By no more than two units of the 15th digit.
        assert upper - lower <= abs(upper) * Decimal("2.1E-14")
    assert holds(found_bounds["short"], rows.column("short")) == (Decimal("-1.25"), Decimal("99.99"))


def test_a5_a_float_is_read_as_a_float(foreign):
    rows, found_bounds = foreign
    single = pa.scalar(0.1, pa.float32()).as_py()
    assert holds(found_bounds["single"], rows.column("single")) == (single, single)
    assert sides(Primitive.FLOAT, "0.1", "0.1") == (single, single)


def test_a5_cut_timestamps_are_padded(foreign):
    rows, found_bounds = foreign
    for name in ("ts", "ntz"):
        lower, upper = holds(found_bounds[name], rows.column(name))
        assert (lower.microsecond, upper.microsecond) == (999_000, 124_000)


def test_a5_a_string_s_maximum_is_a_beginning(foreign):
    rows, found_bounds = foreign
    assert found_bounds["long_string"].upper_is_exclusive
    lower, upper = holds(found_bounds["long_string"], rows.column("long_string"))
    assert lower == ""
    assert "é" * 50 < upper < "ê"
    holds(found_bounds["last_char"], rows.column("last_char"))


def test_a5_what_statistics_cannot_say_is_not_known(foreign):
    _, found_bounds = foreign
    for name in ("flag", "bytes", "s", "list"):
        assert found_bounds[name].lower.to_pylist() == found_bounds[name].upper.to_pylist() == [None]
        assert found_bounds[name].num_records.to_pylist() == [3]


@pytest.mark.parametrize("bad", ['"NaN"', '"Infinity"', '"-Infinity"', "1e400", "null", '"1.5"', "true", "{}", "[1]"])
def test_a5_a_float_beside_a_side_that_is_no_number_has_no_bound(bad):
    assert sides(Primitive.DOUBLE, "1.5", bad) == ((1.5, None) if bad == "null" else (None, None))
    assert sides(Primitive.DOUBLE, bad, "1.5") == (None, None)


@pytest.mark.parametrize(
    ("data_type", "minimum", "maximum", "expected"),
    [
        (Primitive.BYTE, "-128", "127", (-128, 127)),
        (Primitive.BYTE, "-129", "127", (None, None)),
        (Primitive.LONG, "9007199254740993", "9223372036854775807", (9_007_199_254_740_993, 2**63 - 1)),
        (Primitive.LONG, "1.0", "2", (None, None)),
        (Primitive.LONG, "1e3", "2e3", (None, None)),
        (Primitive.INTEGER, "5", "3", (None, None)),
        (Primitive.STRING, '"a"', '"b\\u0000"', ("a", "b\x01")),
        (Primitive.STRING, '""', '""', ("", None)),
        (Primitive.STRING, '"a"', '"z\\ud7ff"', ("a", "z\ue000")),
        (Primitive.STRING, '"a"', '"z\\udbff\\udfff"', ("a", "{")),
        (Primitive.STRING, '"\\ud800"', '"z"', (None, None)),
        (Primitive.STRING, "1", '"z"', (None, None)),
        (Primitive.DATE, '"2024-02-29"', '"2024-03-01"', (dt.date(2024, 2, 29), dt.date(2024, 3, 1))),
        (Primitive.DATE, '"2024-02-30"', '"2024-03-01"', (None, None)),
        # A day beyond 32 bits.
        (Primitive.DATE, '"-9999999-01-01"', '"2024-03-01"', (None, None)),
        (Primitive.DATE, '"2024-03-01"', '"+5881580-07-12"', (None, None)),
        (Primitive.DATE, '"2024-02-01 00:00:00"', '"2024-03-01"', (None, None)),
        (DecimalType(10, 2), "1.255", "1.5", (Decimal("1.25"), Decimal("1.50"))),
        (DecimalType(10, 2), "1.2", "1.255", (Decimal("1.20"), Decimal("1.26"))),
        (DecimalType(3, 0), "-1000", "5", (None, None)),
        (DecimalType(3, 0), "1E+1", "999", (Decimal(9), Decimal(999))),
        (DecimalType(38, 0), "1E+30", "99999999999999999999999999999999999999", (Decimal(10**30 - 10**16), None)),
        (DecimalType(5, 2), '"1.25"', "2", (None, None)),
        (DecimalType(5, 2), "1" * 90, "2", (None, None)),
        (DecimalType(20, 2), "0E+5", "0.00", (Decimal(0), Decimal(0))),
        (Primitive.BOOLEAN, "true", "true", (None, None)),
        (Primitive.BINARY, '"a"', '"b"', (None, None)),
        (Primitive.VOID, "1", "1", (None, None)),
    ],
)
def test_a_text_bounds_what_its_type_defends(data_type, minimum, maximum, expected):
    if isinstance(data_type, DecimalType) and expected[1] is None and expected[0] is not None:
        expected = (expected[0], Decimal(10**38 - 1))
    assert sides(data_type, minimum, maximum) == expected


def test_timestamps_are_read_on_their_own_clock():
    def at(*parts, tzinfo=dt.UTC):
        return dt.datetime(*parts, tzinfo=tzinfo)

    offset = '"2000-01-01T00:00:00.000-08:00"'
    # The offset was cut to minutes, perhaps.
    assert sides(Primitive.TIMESTAMP, offset, offset) == (at(2000, 1, 1, 7, 59), at(2000, 1, 1, 8, 1, 0, 1000))
    # Cut to seconds, perhaps.
    whole = '"2000-01-01T00:00:00Z"'
    assert sides(Primitive.TIMESTAMP, whole, whole) == (at(2000, 1, 1), at(2000, 1, 1, 0, 0, 1))
    zoneless = '"2000-01-01 00:00:00.000"'
    assert sides(Primitive.TIMESTAMP, zoneless, zoneless) == (None, None)
    assert sides(Primitive.TIMESTAMP_NTZ, offset, zoneless) == (None, None)
    assert sides(Primitive.TIMESTAMP_NTZ, zoneless, zoneless)[1] == at(2000, 1, 1, 0, 0, 0, 1000, tzinfo=None)


BROKEN = [
    None,
    "",
    "{",
    "null",
    "[]",
    '"text"',
    '{"numRecords":1,"minValues":{"c":1},"maxValues":{"c":}}',
    '{"numRecords":1,"minValues":7,"maxValues":{"c":1}}',
    '{"numRecords":1,"tightBounds":"no","minValues":{"c":1}}',
    '{"minValues":{"c":1' + "}" * 50,
    '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
]


def test_broken_statistics_are_unknown_for_their_file_alone():
    good = '{"numRecords":9,"minValues":{"c":1},"maxValues":{"c":2},"nullCount":{"c":0}}'
    texts = [text for broken in BROKEN for text in (good, broken)] + [good]
    one = found(Primitive.LONG, *texts)
    assert one.lower.to_pylist() == [1, None] * len(BROKEN) + [1]
    assert one.upper.to_pylist() == [2, None] * len(BROKEN) + [2]
    assert one.num_records.to_pylist() == [9, None] * len(BROKEN) + [9]
    assert one.null_count.to_pylist() == [0, None] * len(BROKEN) + [0]


def test_text_that_is_not_utf_8_is_unknown_for_its_file_alone():
    raw = [
        b'{"numRecords":1,"minValues":{"c":"\xff"},"maxValues":{"c":"b"}}',
        b'{"numRecords":1,"minValues":{"c":"a"}}',
    ]
    table = files(None, None).set_column(0, "stats", pa.array(raw, pa.binary()).view(pa.string()))
    one = bounds(table, StructType((StructField("c", Primitive.STRING),)), [("c",)])[("c",)]
    assert one.lower.to_pylist() == [None, "a"]


def test_unknown_keys_are_skipped_and_absent_ones_unknown():
    one = found(Primitive.LONG, {"numRecords": 3, "minValues": {"C": 1, "d": {"c": 2}}, "later": [1, {"c": 3}]})
    assert [one.lower[0].as_py(), one.upper[0].as_py(), one.null_count[0].as_py()] == [None, None, None]
    assert one.num_records[0].as_py() == 3


def counts(text, **arguments):
    return found(Primitive.LONG, text, **arguments).null_count.to_pylist()


def test_a5_null_counts_of_loose_statistics_are_known_only_at_the_ends():
    def stats(nulls, tight):
        return {"numRecords": 5, "nullCount": {"c": nulls}, "tightBounds": tight}

    assert [counts(stats(nulls, True)) for nulls in (0, 3, 5)] == [[0], [3], [5]]
    assert [counts(stats(nulls, False)) for nulls in (0, 3, 5)] == [[0], [None], [5]]
    # A deletion vector masks rows, whatever the statistics claim.
    # Some writers count in `numRecords` only the rows that it leaves: as many nulls do not make every row one.
    assert [counts(stats(nulls, True), masked=[0]) for nulls in (0, 3, 5)] == [[0], [None], [None]]


def test_impossible_counts_are_unknown():
    assert counts({"numRecords": 5, "nullCount": {"c": 6}}) == [None]
    assert counts({"numRecords": 5, "nullCount": {"c": -1}}) == [None]
    assert counts('{"numRecords":5,"nullCount":{"c":1.5}}') == [None]
    assert counts('{"nullCount":{"c":3}}') == [3]
    assert found(Primitive.LONG, '{"numRecords":99999999999999999999}').num_records.to_pylist() == [None]


@pytest.mark.parametrize(
    "metadata",
    [
        {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"},
        {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}},
        {"delta.typeChanges": [{"fromType": "geometry", "toType": "string"}]},
        {"delta.typeChanges": "?"},
    ],
)
def test_a5_a_column_that_does_not_compare_as_its_statistics_do_is_unknown(metadata):
    stats = {"numRecords": 1, "minValues": {"c": "a", "col-1": "a"}, "maxValues": {"c": "b", "col-1": "b"}}
    one = found(Primitive.STRING, stats, metadata=metadata)
    assert (one.lower.to_pylist(), one.upper.to_pylist()) == ([None], [None])


def test_statistics_of_a_mapped_column_stand_under_its_physical_name():
    stats = {"numRecords": 1, "minValues": {"c": "x", "col-1": "a"}, "maxValues": {"c": "y", "col-1": "b"}}
    one = found(Primitive.STRING, stats, metadata={"delta.columnMapping.physicalName": "col-1"})
    assert (one.lower.to_pylist(), one.upper.to_pylist()) == (["a"], ["c"])
    other = found(Primitive.STRING, stats, metadata={"delta.columnMapping.physicalName": "col-2"})
    assert (other.lower.to_pylist(), other.upper.to_pylist()) == ([None], [None])


def test_a5_a_widened_column_is_read_in_either_type():
    def widened(old, new, minimum, maximum):
        changes = {"delta.typeChanges": [{"fromType": old, "toType": str(new), "tableVersion": 1}]}
        return sides(new, minimum, maximum, changes)

    single = pa.scalar(3.4, pa.float32()).as_py()
    assert single != 3.4
    assert widened("float", Primitive.DOUBLE, "3.4", "3.4") == (min(3.4, single), max(3.4, single))
    assert widened("float", Primitive.DOUBLE, "1e300", "1e300") == (None, None)
    assert widened("byte", Primitive.LONG, "1", "9223372036854775807") == (1, 2**63 - 1)
    assert widened("integer", Primitive.DOUBLE, "7", "7.5") == (7.0, 7.5)
    assert widened("decimal(10,2)", DecimalType(18, 5), "67.89", "67.89") == (Decimal("67.89000"), Decimal("67.89000"))
    assert widened("integer", DecimalType(12, 2), "7", "7") == (Decimal(7), Decimal(7))
    day = widened("date", Primitive.TIMESTAMP_NTZ, '"2024-09-09"', '"2024-09-09"')
    assert day[0] == dt.datetime(2024, 9, 9) < day[1]


INNER = StructType((StructField("b.c", Primitive.STRING),))
NESTED = StructType(
    (
        StructField("s", StructType((StructField("A", Primitive.INTEGER), StructField("in", INNER)))),
        StructField("list", ArrayType(Primitive.INTEGER)),
        StructField("map", MapType(Primitive.STRING, Primitive.INTEGER)),
    )
)


def test_members_of_structs_are_bounded_and_their_nulls_not_believed():
    values = {"s": {"A": 1, "in": {"b.c": "x"}}}
    table = files(
        {"numRecords": 2, "minValues": values, "maxValues": values, "nullCount": {"s": {"A": 0}, "list": 1}}, {}
    )
    paths = [("S", "a"), ("s", "in", "b.c"), ("s",), ("list",), ("map",)]
    got = bounds(table, NESTED, paths)
    assert list(got) == paths
    assert got[("S", "a")].lower.to_pylist() == [1, None]
    assert got[("S", "a")].null_count.to_pylist() == [None, None]
    assert got[("s", "in", "b.c")].upper.to_pylist() == ["y", None]
    assert got[("s",)].lower.to_pylist() == [None, None]
    assert got[("list",)].null_count.to_pylist() == [1, None]
    assert got[("map",)].null_count.to_pylist() == [None, None]


def test_a_column_outside_the_schema_is_an_error():
    for path in (("nope",), ("list", "element"), ("s", "x"), ()):
        with pytest.raises(UnknownColumn):
            bounds(files({}), NESTED, [path])


def test_no_files_have_no_bounds_of_the_right_types():
    one = found(DecimalType(5, 2))
    assert (len(one.lower), one.lower.type, one.num_records.type) == (0, pa.decimal128(5, 2), pa.int64())
    assert bounds(files({}), NESTED, []) == {}


def test_many_files_are_read_in_parts_and_keep_their_order():
    texts = [None if i == 4 else {"numRecords": i, "minValues": {"c": i}, "maxValues": {"c": i}} for i in range(10)]
    one = found(Primitive.LONG, *texts, files_at_once=3)
    expected = [None if i == 4 else i for i in range(10)]
    assert one.lower.to_pylist() == one.upper.to_pylist() == one.num_records.to_pylist() == expected


# --- whoever wrote them ----------------------------------------------------------------------------------------------


def decimal_of(unscaled, scale):
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -scale))


columns = st.one_of(
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats())),
    st.tuples(st.just(pa.float32()), st.lists(st.none() | st.floats(width=32))),
    st.tuples(st.just(pa.int8()), st.lists(st.none() | st.integers(-128, 127))),
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(max_size=70))),
    st.tuples(
        st.just(pa.string()),
        st.lists(st.text(st.sampled_from("x\x7f\ud7ff\ue000\U0010ffff"), min_size=30, max_size=70), max_size=3),
    ),
    st.tuples(st.just(pa.date32()), st.lists(st.none() | st.dates())),
    st.tuples(st.just(pa.timestamp("us")), st.lists(st.none() | st.datetimes())),
    st.tuples(st.just(pa.timestamp("us", tz="UTC")), st.lists(st.none() | st.datetimes(timezones=st.just(dt.UTC)))),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.sampled_from([(5, 0), (10, 2), (18, 18), (20, 2), (38, 0), (38, 20), (38, 38)]).flatmap(
        lambda ps: st.tuples(
            st.just(pa.decimal128(*ps)),
            st.lists(st.none() | st.integers(1 - 10 ** ps[0], 10 ** ps[0] - 1).map(lambda n: decimal_of(n, ps[1]))),
        )
    ),
)


@given(columns)
def test_the_statistics_we_write_bound_the_values_under_our_own_reader(column):
    arrow, values = column
    table = pa.table({"c": pa.array(values, arrow)})
    bound = bounds(files(file_statistics(table)), from_arrow(table.schema), [("c",)])[("c",)]
    holds(bound, table.column("c"))
    assert bound.num_records.to_pylist() == [len(values)]
    assert bound.null_count.to_pylist() == [table.column("c").null_count]


doubled = st.sampled_from([(16, 0), (17, 2), (20, 5), (38, 20), (38, 38)]).flatmap(
    lambda ps: st.tuples(st.just(ps), st.integers(1 - 10 ** ps[0], 10 ** ps[0] - 1))
)


@given(doubled, st.sampled_from([repr, "{:.17g}".format, "{:.16e}".format]))
def test_a5_a_decimal_that_went_through_a_double_lies_within_its_bounds(column, spell):
    (precision, scale), unscaled = column
    value = decimal_of(unscaled, scale)
    text = spell(float(value))
    lower, upper = sides(DecimalType(precision, scale), text, text)
    if lower is None:
        # Whole numbers in a column of fractions are another writer's 1.25.
        assert scale
        assert "." not in text
    else:
        assert lower <= value <= upper


def test_golden_statistics_bound_the_rows_of_their_files():
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden tables at {GOLDEN}")
    checked = 0
    for log in sorted(GOLDEN.glob("*/_delta_log")):
        schema = None
        for commit in sorted(log.glob("*[0-9].json")):
            for action in map(json.loads, commit.read_text().splitlines()):
                if "schemaString" in action.get("metaData", {}):
                    schema = parse_schema(action["metaData"]["schemaString"])
                add = action.get("add", {})
                file = log.parent / decode_add_path(add.get("path", "no file"))
                if schema is None or not add.get("stats") or not file.is_file():
                    continue
                rows = pq.ParquetFile(file).read()
                names = [name for name in rows.column_names if (member := schema.find(name)) and member.name == name]
                for name, bound in bounds(files(add["stats"]), schema, [(name,) for name in names]).items():
                    stored = rows.column(name[0])
                    if pa.types.is_nested(stored.type):
                        continue
                    holds(bound, stored.cast(bound.lower.type))
                    checked += bound.lower.null_count == 0
    assert checked > 100
