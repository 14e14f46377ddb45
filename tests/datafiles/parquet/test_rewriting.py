"""Copies of data files: every row that stays has the value it had, and the file looks as its source did."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet import rewriting
from airflow_txlog.datafiles.parquet.decoded_sizes import OpenParquet
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.rewriting import (
    copy_key_values,
    copy_options,
    copy_schema,
    copy_without,
    dictionary_columns,
    open_for_copy,
)
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.storage import LocalStore
from tests.helpers.files import data_file


def copy(
    source: Path, positions: list[int], table_schema: pa.Schema | None = None, **options: Any
) -> tuple[Path | None, dict[str, Any]]:
    """The copy and its statistics; no path where nothing remained."""
    target = source.with_name("copy.parquet")
    target.unlink(missing_ok=True)
    file = data_file(source, size_bytes=source.stat().st_size)
    with open_for_copy(file) as parquet:
        schema = copy_schema(parquet, table_schema if table_schema is not None else parquet.schema_arrow)
        writer = RowGroupWriter(
            LocalStore(str(target.parent)),
            target.name,
            schema,
            options=copy_options(parquet),
            key_values=copy_key_values(parquet),
            statistics=StatisticsCollector(pa.schema([field.with_type(_plain(field.type)) for field in schema])),
            **options,
        )
        assert copy_without(file, parquet, pack(positions), writer) == len(positions)
    staged = writer.close({})
    if staged is None:
        return None, {}
    assert staged.size_bytes == target.stat().st_size
    return target, json.loads(staged.stats)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


# --- A7: timestamps -------------------------------------------------------------------------------------------------

FAR = [
    dt.datetime(1, 1, 1),
    dt.datetime(1582, 10, 4),
    dt.datetime(1900, 1, 1),
    dt.datetime(2262, 4, 12),
    dt.datetime(9999, 12, 31, 12),
]
MICROSECONDS = [-62135596800000000, -12220243200000000, -2208988800000000, 9223372800000000, 253402257600000000]


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("form", ["int96", "ms", "us"])
def test_a7_far_timestamps_survive_a_copy(tmp_path: Path, form: str, zone: str | None) -> None:
    unit = "ms" if form == "ms" else "us"
    source = tmp_path / "f.parquet"
    column = pa.array([*FAR, None, dt.datetime(2000, 1, 1)], pa.timestamp(unit))
    nested = pa.array([[value] for value in column.to_pylist()], pa.list_(pa.timestamp(unit)))
    pq.write_table(
        pa.table({"ts": column, "list": nested}),
        source,
        store_schema=False,
        use_deprecated_int96_timestamps=form == "int96",
    )
    table_schema = pa.schema([("TS", pa.timestamp("us", zone)), ("list", pa.list_(pa.timestamp("us", zone)))])
    target, _ = copy(source, [6], table_schema)
    assert target is not None
    found = pq.ParquetFile(target)
    assert found.schema.column(0).physical_type == "INT64"
    assert found.schema_arrow.field("ts").type == pa.timestamp("us", zone)
    assert found.schema_arrow.field("list").type.value_type == pa.timestamp("us", zone)
    rows = found.read()
    assert rows.column("ts").cast(pa.int64()).to_pylist() == [*MICROSECONDS, None]
    assert rows.column("list").combine_chunks().flatten().cast(pa.int64()).to_pylist() == [*MICROSECONDS, None]


@pytest.mark.spark
@pytest.mark.parametrize("form", ["INT96", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS"])
def test_a7_spark_reads_the_copy_of_its_own_file_as_the_file(tmp_path: Path, spark: Any, form: str) -> None:
    texts = ["0001-01-01", "1582-10-04", "1900-01-01", "2262-04-12", "9999-12-31 12:00:00", "2000-01-01"]
    rows = ", ".join(f"(TIMESTAMP '{text}', DATE '{text[:10]}')" for text in texts)
    spark.conf.set("spark.sql.parquet.outputTimestampType", form)
    try:
        spark.sql(f"SELECT * FROM VALUES {rows} AS v(ts, d)").coalesce(1).write.parquet(str(tmp_path / "s"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (source,) = (tmp_path / "s").glob("*.parquet")
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    target, _ = copy(source, [5], schema)
    assert target is not None
    moved = tmp_path / "copy.parquet"
    target.rename(moved)
    expected = spark.read.parquet(str(source)).where("ts != TIMESTAMP '2000-01-01'")
    found = spark.read.parquet(str(moved))
    assert found.schema == expected.schema
    casted = ("CAST(ts AS STRING)", "CAST(d AS STRING)")
    assert found.selectExpr(*casted).collect() == expected.selectExpr(*casted).collect()


# --- what a copy keeps ----------------------------------------------------------------------------------------------


def test_a19_a_copy_keeps_schema_field_ids_and_footer_metadata(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    element = pa.field("element", pa.int32(), metadata={"PARQUET:field_id": "3"})
    schema = pa.schema(
        [
            pa.field("A", pa.int16(), nullable=False, metadata={"PARQUET:field_id": "1"}),
            pa.field("l", pa.list_(element), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    with pq.ParquetWriter(source, schema) as writer:
        writer.write_table(pa.table({"A": [1, 2, 3], "l": [[1], None, []]}, schema=schema))
        writer.add_key_value_metadata({"org.apache.spark.version": "3.5.0", "mine": "x"})
    # The table has more columns and wider types by now; the copy stays what its source was.
    table_schema = pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64())), ("added", pa.string())])
    target, stats = copy(source, [1], table_schema)
    assert target is not None
    found = pq.ParquetFile(target)
    assert found.schema_arrow.equals(pq.ParquetFile(source).schema_arrow, check_metadata=False)
    for name in ("A", "l"):
        assert found.schema_arrow.field(name).metadata == schema.field(name).metadata
    assert found.schema_arrow.field("l").type.value_field.metadata == element.metadata
    assert found.metadata.metadata == {b"org.apache.spark.version": b"3.5.0", b"mine": b"x"}
    assert found.read().to_pylist() == [{"A": 1, "l": [1]}, {"A": 3, "l": []}]
    assert (stats["numRecords"], stats["minValues"], stats["maxValues"]) == (2, {"A": 1}, {"A": 3})


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "none", "lz4", "brotli"])
def test_a_copy_follows_codec_and_dictionaries(tmp_path: Path, codec: str) -> None:
    source = tmp_path / "f.parquet"
    rows = pa.table({"plain": range(100), "coded": ["a", "b"] * 50, "nested": [{"x": i % 3} for i in range(100)]})
    pq.write_table(rows, source, compression=codec, use_dictionary=["coded", "nested.x"])
    target, _ = copy(source, [0])
    assert target is not None
    before, after = pq.ParquetFile(source).metadata.row_group(0), pq.ParquetFile(target).metadata.row_group(0)
    for index in range(3):
        assert after.column(index).compression == before.column(index).compression
        assert after.column(index).has_dictionary_page == before.column(index).has_dictionary_page
    assert [after.column(index).has_dictionary_page for index in range(3)] == [False, True, True]


def test_a_dictionary_that_its_writer_gave_up_is_not_tried_again(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    count = 300_000
    rows = pa.table(
        {
            "unique": pa.array(range(count), pa.int64()),
            "text": [f"{k}-of-many-different-texts" for k in range(count)],
            "few": [f"country-{k % 50}" for k in range(count)],
            "many": pa.array([k % 100_000 for k in range(count)], pa.int64()),
        }
    )
    pq.write_table(rows, source)
    before = pq.ParquetFile(source).metadata.row_group(0)
    assert all(before.column(index).has_dictionary_page for index in range(4))
    target, _ = copy(source, [0])
    assert target is not None
    after = pq.ParquetFile(target).metadata.row_group(0)
    assert [after.column(index).has_dictionary_page for index in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(("count", "is_kept"), [(50_000, True), (62_500, False)])
def test_a_dictionary_is_told_from_one_that_was_given_up_at_its_end(tmp_path: Path, count: int, is_kept: bool) -> None:
    """Its limit is a mebibyte, that of 52,428 of these values."""
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"text": [f"{k % count:016d}" for k in range(3 * count)]}), source)
    parquet = OpenParquet(source)
    assert parquet.metadata.row_group(0).column(0).has_dictionary_page
    assert dictionary_columns(parquet) == (["text"] if is_kept else [])
    assert copy_options(parquet)["use_dictionary"] == (["text"] if is_kept else [])
    target, _ = copy(source, [0])
    assert target is not None
    assert pq.read_table(target).num_rows == 3 * count - 1


def test_a_dictionary_that_most_rows_do_without_is_not_made(tmp_path: Path) -> None:
    """The writer gave it up in the first row group, and not in the small one at the end."""
    source = tmp_path / "f.parquet"
    numbers = [n // 2 for n in range(400_000)]
    with pq.ParquetWriter(source, pa.schema({"id": pa.int64()})) as writer:
        for part in (numbers, numbers[:20_000]):
            writer.write_table(pa.table({"id": part}), row_group_size=len(part))
    with open_for_copy(data_file(source)) as parquet:
        assert copy_options(parquet)["use_dictionary"] == []
    copied, _ = copy(source, [0])
    assert copied is not None
    assert pq.read_table(copied).equals(pa.table({"id": [*numbers[1:], *numbers[:20_000]]}))


TEXTS = pa.table(
    {
        "who": ["ann", None, "bob", "ann", "cid", "bob", None, "dot"],
        "raw": pa.array([b"x", b"y", b"x", None, b"z", b"x", b"y", b"z"], pa.binary()),
        "k": range(8),
    }
)


def test_a_dictionary_of_values_that_do_not_repeat_is_not_made_again(tmp_path: Path) -> None:
    count = 50_000
    once, twenty = list(range(count)), [n % 20 for n in range(count)]
    price = pa.decimal128(23, 4)
    rows = pa.table(
        {
            "id": once,
            "ratio": pa.array(once, pa.float64()),
            "price": pa.array(once, pa.int64()).cast(pa.decimal128(19, 0)).cast(price),
            "name": [f"{n:x}" for n in once],
            # Few values, and one that is null in most rows.
            "kind": twenty,
            "rare": [n if n % 100 == 0 else None for n in range(count)],
            "few": pa.array(twenty, pa.int64()).cast(pa.decimal128(19, 0)).cast(price),
        }
    )
    source = tmp_path / "source.parquet"
    pq.write_table(rows, source, store_schema=False)
    before = pq.read_metadata(source).row_group(0)
    assert all(before.column(index).has_dictionary_page for index in range(7))
    written, _ = copy(source, [0])
    assert written is not None
    after = pq.read_metadata(written).row_group(0)
    assert [after.column(index).has_dictionary_page for index in range(7)] == [*[False] * 4, *[True] * 3]
    assert all(after.column(n).total_uncompressed_size < before.column(n).total_uncompressed_size for n in range(4))
    assert pq.ParquetFile(written).read().equals(rows.slice(1))


def test_text_is_copied_as_the_dictionary_that_it_is_and_nothing_deleted_stays_in_it(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(TEXTS, source, compression="none", row_group_size=5)
    file = data_file(source)
    with open_for_copy(file) as parquet:
        assert [field.type for field in parquet.schema_arrow][:2] == [
            pa.dictionary(pa.int32(), pa.string()),
            pa.dictionary(pa.int32(), pa.binary()),
        ]
    target, stats = copy(source, [2, 5, 7])
    assert target is not None
    assert pq.read_table(target) == TEXTS.take([0, 1, 3, 4, 6])
    assert b"bob" in source.read_bytes()
    # Dictionary pages and bounds included: what was deleted is forgotten.
    assert [name for name in (b"ann", b"bob", b"cid", b"dot") if name in target.read_bytes()] == [b"ann", b"cid"]
    assert (stats["minValues"], stats["maxValues"]) == ({"who": "ann", "k": 0}, {"who": "cid", "k": 6})
    assert stats["nullCount"] == {"who": 2, "raw": 1, "k": 0}


def test_a_dictionary_is_spelled_out_where_its_writer_is_not_known_to_keep_values_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(TEXTS, source)
    monkeypatch.setattr(rewriting, "_DISTINCT_WRITERS", ("another",))
    with open_for_copy(data_file(source)) as parquet:
        assert parquet.schema_arrow.field("who").type == pa.string()
    target, _ = copy(source, [2])
    assert target is not None
    assert pq.read_table(target) == TEXTS.take([0, 1, 3, 4, 5, 6, 7])


def test_mixed_codecs_are_followed_column_by_column(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": range(9), "b": range(9)}), source, compression={"a": "zstd", "b": "gzip"})
    target, _ = copy(source, [0])
    assert target is not None
    group = pq.ParquetFile(target).metadata.row_group(0)
    assert [group.column(index).compression for index in range(2)] == ["ZSTD", "GZIP"]


def test_arrow_types_of_the_writer_do_not_leak_into_the_copy(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    rows = pa.table(
        {"d": pa.array(["a", None, "b"]).dictionary_encode(), "l": pa.array(["x", "y", "z"], pa.large_string())}
    )
    pq.write_table(rows, source)
    target, _ = copy(source, [2])
    assert target is not None
    assert pq.read_table(target).to_pylist() == [{"d": "a", "l": "x"}, {"d": None, "l": "y"}]
    assert b"ARROW:schema" not in (pq.ParquetFile(target).metadata.metadata or {})


def test_decimals_kept_as_integers_stay_so(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    values = pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.25"), None], pa.decimal128(7, 2))
    pq.write_table(pa.table({"d": values}), source, store_decimal_as_integer=True)
    assert pq.ParquetFile(source).schema.column(0).physical_type == "INT32"
    target, _ = copy(source, [0])
    assert target is not None
    assert pq.ParquetFile(target).schema.column(0).physical_type == "INT32"
    assert pq.read_table(target).column(0).to_pylist() == [decimal.Decimal("2.25"), None]


# --- row groups and memory ------------------------------------------------------------------------------------------


def row_groups(path: Path) -> list[int]:
    metadata = pq.ParquetFile(path).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def test_a19_a_copy_has_the_row_groups_of_its_source(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"k": range(300_000)}), source, row_group_size=200_000)
    target, _ = copy(source, [5, 250_000])
    assert target is not None
    assert row_groups(target) == [199_999, 99_999]
    expected = [k for k in range(300_000) if k not in (5, 250_000)]
    assert pq.read_table(target).column("k").to_pylist() == expected


def test_a_row_group_without_rows_left_disappears(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"k": range(30)}), source, row_group_size=10)
    target, _ = copy(source, list(range(10, 20)))
    assert target is not None
    assert row_groups(target) == [10, 10]


def test_a_large_row_group_is_copied_in_bounded_pieces(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"k": range(600_000)}), source, row_group_size=600_000)
    target, _ = copy(source, [1], row_group_bytes=1024 * 1024)
    assert target is not None
    assert len(row_groups(target)) > 3
    assert pq.read_table(target).num_rows == 599_999


def test_nothing_left_is_no_file(tmp_path: Path) -> None:
    source = tmp_path / "f.parquet"
    pq.write_table(pa.table({"k": range(5)}), source)
    assert copy(source, [0, 1, 2, 3, 4]) == (None, {})
    assert not (tmp_path / "copy.parquet").exists()


ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "s": st.none() | st.text(max_size=5),
        "b": st.none() | st.binary(max_size=5),
        "t": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
        "n": st.none() | st.fixed_dictionaries({"x": st.none() | st.text(max_size=2)}),
    }
)
ROW_SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("t", pa.bool_()),
        ("l", pa.list_(pa.int32())),
        ("n", pa.struct([("x", pa.string())])),
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=30), data=st.data())
def test_a_copy_holds_exactly_the_rows_that_no_position_names(tmp_path: Path, rows: list[Any], data: Any) -> None:
    """Whatever the values, the row groups and the positions."""
    positions = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    source = tmp_path / "f.parquet"
    table = pa.Table.from_pylist(rows, ROW_SCHEMA)
    pq.write_table(table, source, row_group_size=data.draw(st.integers(1, 30)))
    target, stats = copy(source, positions)
    kept = [index for index in range(len(rows)) if index not in positions]
    if not kept:
        assert target is None
        return
    assert target is not None
    # As text, because NaN is not equal to itself.
    assert repr(pq.read_table(target).to_pylist()) == repr(table.take(kept).to_pylist())
    assert stats["numRecords"] == len(kept)
