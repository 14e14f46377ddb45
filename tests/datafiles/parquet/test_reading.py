"""Reading data files: order, positions, checks against the add action, conversion, legacy calendars."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog.datafiles.deletion_vectors.positions import MAX_POSITION, addresses, named_rows, pack, unpack
from airflow_txlog.datafiles.parquet.conversion import ColumnMismatch, convert_array, convert_columns, leaves
from airflow_txlog.datafiles.parquet.reading import DataFile, open_data_file, read_batches
from airflow_txlog.errors import CorruptDataFile, UnsupportedFeature
from airflow_txlog.storage import LocalStore
from tests.helpers.arrow import needs_arrow
from tests.helpers.files import data_file
from tests.helpers.paths import ROOT

UTC_US = pa.timestamp("us", tz="UTC")


def write(path: Path, table: pa.Table, **options: Any) -> DataFile:
    pq.write_table(table, path, **options)
    return data_file(path, size_bytes=path.stat().st_size, num_records=table.num_rows)


def read(file: DataFile, columns: list[str] | None = None, **options: Any) -> list[tuple[int, pa.RecordBatch]]:
    fields = None if columns is None else [pa.field(name, pa.int64()) for name in columns]
    with open_data_file(file) as parquet:
        return list(read_batches(file, parquet, fields, **options))


# --- order and positions --------------------------------------------------------------------------------------------


def test_a19_a_position_counts_rows_over_all_row_groups(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"k": range(1000)}), row_group_size=300)
    batches = read(file, batch_rows=128)
    for start, batch in batches:
        assert batch.column(0).to_pylist() == list(range(start, start + batch.num_rows))
    assert sum(batch.num_rows for _, batch in batches) == 1000


def test_a19_a_position_stays_when_only_some_row_groups_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"k": range(1000)}), row_group_size=300)
    ((start, batch),) = read(file, row_groups=[2])
    assert start == 600
    assert batch.column(0).to_pylist() == list(range(600, 900))


def test_rows_are_counted_even_when_no_column_of_the_file_is_wanted(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"k": range(10)}))
    ((start, batch),) = read(file, ["nothing_of_it"])
    assert (start, batch.num_rows, batch.num_columns) == (0, 10, 0)


def test_columns_are_found_without_regard_to_case(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"UserId": [1], "x": [2]}))
    ((_, batch),) = read(file, ["userid"])
    assert batch.schema.names == ["UserId"]


@needs_arrow(21, "views of texts are not written")
def test_views_of_texts_that_a_footer_notes_are_read_as_texts(tmp_path: Path) -> None:
    """As writers in Rust note them; Arrow neither filters nor compares views."""
    views, ends = pa.array(["a", "b"]).cast(pa.string_view()), pa.array([0, 1, 2], pa.int32())
    columns = {
        "s": views,
        "b": pa.array([b"a", None]).cast(pa.binary_view()),
        "struct": pa.StructArray.from_arrays([views], names=["member"]),
        "list": pa.ListArray.from_arrays(ends, views),
        "map": pa.MapArray.from_arrays(ends, views, views),
    }
    file = write(tmp_path / "f.parquet", pa.table(columns))
    assert pq.read_schema(tmp_path / "f.parquet").field("s").type == pa.string_view()
    [(_, batch)] = read(file)
    with open_data_file(file) as parquet:
        assert batch.schema == parquet.schema_arrow
    assert "view" not in str(batch.schema)
    assert batch.filter(pa.array([True, False])).to_pylist() == [
        {"s": "a", "b": b"a", "struct": {"member": "a"}, "list": ["a"], "map": [("a", "a")]}
    ]


@pytest.mark.parametrize("positions", [[], [0], [4], [0, 1, 2, 3, 4], [1, 3], [7, 9]])
def test_positions_split_batches_into_named_and_unnamed_rows(positions: list[int]) -> None:
    rows = list(range(10))
    packed = unpack(pack(positions))
    kept: list[int] = []
    named: list[int] = []
    for start in (0, 5):
        batch = pa.record_batch({"k": rows[start : start + 5]})
        keep = packed.keep(start, batch.num_rows)
        kept += (batch if keep is None else batch.filter(keep)).column(0).to_pylist()
        chosen, first, end = named_rows(packed, start, batch)
        assert [positions[index] for index in range(first, end)] == chosen.column(0).to_pylist()
        named += chosen.column(0).to_pylist()
    assert named == positions
    assert kept == [row for row in rows if row not in positions]


def test_packed_positions_keep_the_slice_of_a_larger_array() -> None:
    assert unpack(pack(pa.array([5, 6, 7, 8], pa.int64()).slice(1, 2))).positions().to_pylist() == [6, 7]


def test_a_position_beyond_32_bits_fails_instead_of_wrapping() -> None:
    assert unpack(pack(pa.array([MAX_POSITION], pa.int64()))).positions().to_pylist() == [MAX_POSITION]
    with pytest.raises(ValueError, match="32 bits"):
        pack(pa.array([MAX_POSITION + 1], pa.int64()))


def test_an_address_holds_the_file_and_the_position() -> None:
    found = addresses(3, 7, 2).to_pylist()
    assert [(address >> 40, address & ((1 << 40) - 1)) for address in found] == [(3, 7), (3, 8)]
    assert addresses(3, 7, 0).to_pylist() == []


# --- what is checked before a row is believed -----------------------------------------------------------------------


def test_a_missing_file_is_corrupt_and_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataFile, match="is not there") as caught:
        read(data_file(tmp_path / "gone.parquet"))
    assert caught.value.path == str(tmp_path / "gone.parquet")


def test_a19_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"k": [1]}))
    with pytest.raises(CorruptDataFile, match=r"says 1 bytes"):
        read(data_file(file.name, size_bytes=1))


def test_a19_a_file_of_another_row_count_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "f.parquet", pa.table({"k": [1]}))
    with pytest.raises(CorruptDataFile, match="say 2 rows"):
        read(data_file(file.name, num_records=2))


@pytest.mark.parametrize("content", [b"", b"abc", b"PAR1 no footer PAR1", b"\x00" * 100])
def test_what_is_not_parquet_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.parquet").write_bytes(content)
    with pytest.raises(CorruptDataFile, match="cannot be read as Parquet"):
        read(data_file(tmp_path / "f.parquet"))


def test_a_damaged_page_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    file = write(path, pa.table({"k": ["some text that is compressed"] * 1000}), use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[10:60] = b"\xff" * 50
    path.write_bytes(data)
    with pytest.raises(CorruptDataFile):
        read(file)


def test_a19_an_encrypted_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"PARE" + b"x" * 50 + b"PARE")
    with pytest.raises(UnsupportedFeature, match="encrypted") as caught:
        read(data_file(tmp_path / "f.parquet"))
    assert caught.value.feature == "modular encryption"


def test_a_column_of_a_type_of_later_parquet_is_refused_by_name(tmp_path: Path) -> None:
    """As an earlier pyarrow finds a VARIANT: the number of its type in the footer is one that is not known."""
    [variant] = (ROOT / "tests/interop/reference/variant/table").glob("*.parquet")
    data = variant.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert data[footer:].count(b"\x0c\x20") == 1
    (tmp_path / "later.parquet").write_bytes(data[:footer] + data[footer:].replace(b"\x0c\x20", b"\x0c\x28"))
    with pytest.raises(UnsupportedFeature, match=r"pyarrow [0-9.]+ does not know"):
        read(data_file(tmp_path / "later.parquet"))


def test_a_percent_sign_in_a_path_is_a_percent_sign(tmp_path: Path) -> None:
    (tmp_path / "a=x%3Ay").mkdir()
    write(tmp_path / "a=x%3Ay" / "f.parquet", pa.table({"k": [1]}))
    file = DataFile(store=LocalStore(str(tmp_path)), path="a=x%3Ay/f.parquet")
    assert read(file)[0][1].num_rows == 1
    assert file.name == f"{tmp_path}/a=x%3Ay/f.parquet"


# --- conversion -----------------------------------------------------------------------------------------------------

CASES = [
    (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
    (pa.array([1, None], pa.int32()), pa.float64(), [1.0, None]),
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (pa.array(["a", None], pa.large_string()), pa.string(), ["a", None]),
    (pa.array([b"a"], pa.binary()), pa.string(), ["a"]),
    (pa.array([None, None]), pa.int32(), [None, None]),
    (pa.array([dt.date(1, 1, 1)]), pa.timestamp("us"), [dt.datetime(1, 1, 1)]),
    (
        pa.array([decimal.Decimal("1.50")], pa.decimal128(5, 2)),
        pa.decimal128(10, 3),
        [decimal.Decimal("1.500")],
    ),
    (
        pa.array([[{"A": 1}], None, []], pa.list_(pa.struct([("A", pa.int16())]))),
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
        [[{"a": 1, "b": None}], None, []],
    ),
    (
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None, []],
    ),
    (pa.array([{"a": 1}, None], pa.struct([("a", pa.int8())])), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
]


@pytest.mark.parametrize(("array", "wanted", "expected"), CASES, ids=lambda value: str(getattr(value, "type", "")))
def test_a_column_is_taken_as_the_wanted_type(array: pa.Array, wanted: pa.DataType, expected: list[Any]) -> None:
    found = convert_array(array, wanted, "c")
    assert found.type == wanted
    assert found.to_pylist() == expected
    # A slice shares its parent's buffers, which a conversion must not mistake for its own.
    tail = convert_array(array.slice(1), wanted, "c")
    tail.validate(full=True)
    assert tail.to_pylist() == expected[1:]


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([300], pa.int32()), pa.int8()),
        (pa.array(["1"]), pa.int32()),
        (pa.array([1]), pa.string()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([1.5]), pa.int32()),
        (pa.array([[1]]), pa.struct([("a", pa.int64())])),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([decimal.Decimal("1.55")], pa.decimal128(5, 2)), pa.decimal128(5, 1)),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
    ],
    ids=str,
)
def test_a_conversion_never_rounds_cuts_or_wraps(array: pa.Array, wanted: pa.DataType) -> None:
    with pytest.raises(ColumnMismatch, match="'c'"):
        convert_array(array, wanted, "c")


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_a7_timestamps_keep_their_instant_whatever_the_unit_and_the_zone(unit: str, zone: str | None) -> None:
    values = pa.array([-62135596800, 253402300799, 0], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit))
    array = values.cast(pa.int64()).cast(pa.timestamp(unit, tz=zone))
    expected = [value * 1_000_000 for value in (-62135596800, 253402300799, 0)]
    for wanted in (UTC_US, pa.timestamp("us")):
        assert convert_array(array, wanted, "c").cast(pa.int64()).to_pylist() == expected


def test_missing_columns_are_null_and_partition_columns_are_constant() -> None:
    batch = pa.record_batch({"A": [1, 2], "day": ["wrong", "wrong"]})
    schema = pa.schema([("a", pa.int64()), ("day", pa.date32()), ("other", pa.string()), ("p", pa.int32())])
    constants = {"day": pa.scalar(dt.date(9999, 12, 31)), "p": pa.scalar(None, pa.int32())}
    columns = convert_columns(batch, schema, constants)
    assert [column.to_pylist() for column in columns] == [
        [1, 2],
        [dt.date(9999, 12, 31)] * 2,
        [None, None],
        [None, None],
    ]


def test_leaves_leave_out_what_a_null_above_hides() -> None:
    nested = pa.array([[{"a": 1}, None], None], pa.list_(pa.struct([("a", pa.int64())])))
    assert [leaf.to_pylist() for leaf in leaves(nested)] == [[1, None]]
    mapped = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))
    assert [leaf.to_pylist() for leaf in leaves(mapped)] == [["k"], [1]]


# --- legacy calendars -----------------------------------------------------------------------------------------------

OLD = dt.datetime(1500, 1, 1)
RECENT = dt.datetime(1900, 1, 1)
SPARK_4 = {"org.apache.spark.version": "4.0.0"}


def file_with_footer(path: Path, column: pa.Array, footer: dict[str, str], *, int96: bool = False) -> DataFile:
    table = pa.table({"c": column})
    with pq.ParquetWriter(path, table.schema, store_schema=False, use_deprecated_int96_timestamps=int96) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(footer)
    return data_file(path)


@pytest.mark.parametrize(
    ("footer", "int96", "refused"),
    [
        ({}, False, False),
        (SPARK_4, False, False),
        (SPARK_4 | {"org.apache.spark.legacyDateTime": ""}, False, True),
        (SPARK_4 | {"org.apache.spark.legacyDateTime": ""}, True, False),
        (SPARK_4 | {"org.apache.spark.legacyINT96": ""}, True, True),
        (SPARK_4 | {"org.apache.spark.legacyINT96": ""}, False, False),
        ({"org.apache.spark.version": "2.4.8"}, False, True),
        ({"org.apache.spark.version": "3.0.3"}, False, False),
        ({"org.apache.spark.version": "3.0.3"}, True, True),
        ({"org.apache.spark.version": "3.1.0"}, True, False),
    ],
)
def test_a8_old_values_in_a_legacy_calendar_are_refused_by_name(
    tmp_path: Path, footer: dict[str, str], int96: bool, refused: bool
) -> None:
    old = file_with_footer(tmp_path / "old.parquet", pa.array([OLD, None], pa.timestamp("us")), footer, int96=int96)
    recent = file_with_footer(tmp_path / "new.parquet", pa.array([RECENT], pa.timestamp("us")), footer, int96=int96)
    if refused:
        with pytest.raises(UnsupportedFeature, match="Julian") as caught:
            read(old)
        assert caught.value.feature == "legacy calendar"
    else:
        assert read(old)[0][1].column(0).to_pylist() == [OLD, None]
    # From 1900 on both calendars show the same: the file is as good as any.
    assert read(recent)[0][1].column(0).to_pylist() == [RECENT]


def test_a8_old_dates_are_refused_only_where_they_are_read(tmp_path: Path) -> None:
    footer = SPARK_4 | {"org.apache.spark.legacyDateTime": ""}
    column = pa.array([{"d": dt.date(1582, 10, 4)}, None], pa.struct([("d", pa.date32())]))
    file = file_with_footer(tmp_path / "f.parquet", column, footer)
    with pytest.raises(UnsupportedFeature, match="'c'"):
        read(file)
    assert read(file, [])[0][1].num_rows == 2
    safe = pa.array([{"d": dt.date(1582, 10, 15)}], pa.struct([("d", pa.date32())]))
    assert read(file_with_footer(tmp_path / "g.parquet", safe, footer))[0][1].num_rows == 1
