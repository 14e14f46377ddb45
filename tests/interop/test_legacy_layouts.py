"""Parquet as older writers laid it out, in tables: lists of two levels and in bags, old maps, decimals in every form.

`legacy-layouts` is a table of delta-spark 4.4.0 with `spark.sql.parquet.writeLegacyFormat` and INT96 timestamps.
`old-layouts.parquet` was written with parquet-java's example writer, a column a layout; the expected rows are what
Spark 4.2 selects from it.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_txlog import errors
from airflow_txlog.datafiles.deletion_vectors.positions import pack
from airflow_txlog.datafiles.parquet.output import RowGroupWriter
from airflow_txlog.datafiles.parquet.reading import open_data_file
from airflow_txlog.datafiles.parquet.rewriting import copy_options, copy_schema, copy_without
from airflow_txlog.datafiles.parquet.statistics import StatisticsCollector
from airflow_txlog.engine import Table
from airflow_txlog.storage import LocalStore
from tests.helpers.files import data_file

LEGACY = Path(__file__).parent / "legacy"
UTC = dt.UTC
INTS = pa.list_(pa.int32())
TO_INT = pa.map_(pa.string(), pa.int32())
WIDE = pa.decimal128(20, 4)
INSTANT = pa.timestamp("us", tz="UTC")
LAST_DAY = dt.datetime(9999, 12, 31, 12, 0, 0, 123456, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("two_level", INTS),
        ("two_level_structs", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.int32())]))),
        ("in_a_bag", INTS),
        ("three_level", INTS),
        ("bare", INTS),
        ("old_map", TO_INT),
        ("older_map", TO_INT),
        ("as_binary", WIDE),
        ("as_fixed", WIDE),
        ("as_int32", pa.decimal128(9, 2)),
        ("as_int64", pa.decimal128(18, 4)),
        ("millis", INSTANT),
        ("micros", INSTANT),
        ("int96", INSTANT),
        ("text", pa.string()),
    ]
)
# Column by column: the rows with the ids 1, 2 and 3.
EXPECTED: dict[str, list[Any]] = {
    "id": [1, 2, 3],
    "two_level": [[1, 2], [], None],
    "two_level_structs": [[{"a": 1, "b": 2}, {"a": 3, "b": None}], [], None],
    "in_a_bag": [[1, None], [], None],
    "three_level": [[5, None], [], None],
    # A repeated field without a list around it cannot be absent.
    "bare": [[7, 8], [], []],
    "old_map": [[("k", 1), ("n", None)], [], None],
    "older_map": [[("k", 2)], [], None],
    "as_binary": [Decimal("-1234567890123456.7890"), Decimal("0.0000"), None],
    "as_fixed": [Decimal("-1234567890123456.7890"), Decimal("0.0001"), None],
    "as_int32": [Decimal("-1234567.89"), Decimal("0.00"), None],
    "as_int64": [Decimal("-1234567890123.4567"), Decimal("9999999.9999"), None],
    "millis": [LAST_DAY.replace(microsecond=123000), dt.datetime(1966, 10, 31, 14, 13, 20, 1000, tzinfo=UTC), None],
    "micros": [LAST_DAY, dt.datetime(1969, 12, 30, 20, 13, 20, 1, tzinfo=UTC), None],
    "int96": [LAST_DAY, dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None],
    "text": ["zażółć", "", None],
}


def table_over(
    folder: Path, path: str, file: Path, schema: pa.Schema = SCHEMA, stats: str = '{"numRecords":3}'
) -> Table:
    """A table whose only file is this one, under the path as the log shall have it."""
    table = Table.create(folder, schema)
    tx = table.begin()
    tx.add(path=path, size=file.stat().st_size, stats=stats)
    tx.commit("WRITE")
    return Table.open(folder, allow_absolute_paths=True)


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_column_in_an_older_layout_reads_as_spark_reads_it(tmp_path: Path, column: str) -> None:
    file = Path(shutil.copy(LEGACY / "old-layouts.parquet", tmp_path / "t.parquet"))
    table = table_over(tmp_path / "t", file.as_uri(), file)
    assert table.to_arrow(columns=[column]).column(column).to_pylist() == EXPECTED[column]


def test_a_copy_of_older_layouts_loses_the_named_row_and_nothing_else(tmp_path: Path) -> None:
    file = data_file(LEGACY / "old-layouts.parquet")
    with open_data_file(file) as parquet:
        schema = copy_schema(parquet, SCHEMA)
        target = tmp_path / "copy.parquet"
        collector = StatisticsCollector(SCHEMA)
        writer = RowGroupWriter(
            LocalStore(str(tmp_path)), target.name, schema, options=copy_options(parquet), statistics=collector
        )
        assert copy_without(file, parquet, pack([1]), writer) == 1
        staged = writer.close({})
    assert staged is not None
    stats = json.loads(staged.stats)
    assert stats["numRecords"] == 2
    assert stats["minValues"]["as_binary"] == -1234567890123456.7890
    assert stats["nullCount"]["two_level"] == 1
    table = table_over(tmp_path / "t", target.as_uri(), target, stats=staged.stats)
    assert table.to_arrow().to_pydict() == {name: [values[0], values[2]] for name, values in EXPECTED.items()}


def test_a_table_with_legacy_lists_decimals_and_int96_reads_as_delta_spark_wrote_it() -> None:
    table = Table.open(LEGACY / "legacy-layouts")
    rows = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [
        {
            "id": 1,
            "l": [1, None, 3],
            "ls": [{"a": 1}, None],
            "m": [("k", [1])],
            "d9": Decimal("1234567.89"),
            "d18": Decimal("12345678901234.5678"),
            "d38": Decimal("1234567890123456789012345678.0123456789"),
            "ts": dt.datetime(9999, 12, 31, 12, tzinfo=UTC),
        },
        {
            "id": 2,
            "l": [],
            "ls": None,
            "m": [],
            "d9": Decimal("-0.01"),
            "d18": None,
            "d38": Decimal("-1.0000000000"),
            "ts": dt.datetime(1, 1, 1, tzinfo=UTC),
        },
        {"id": 3, "l": None, "ls": [], "m": None, "d9": None, "d18": Decimal("0.0000"), "d38": None, "ts": None},
    ]
    [path] = (LEGACY / "legacy-layouts").glob("*.parquet")
    kinds = {column.path: column.physical_type for column in map(pq.ParquetFile(path).schema.column, range(9))}
    assert "l.bag.array" in kinds
    assert kinds["d9"] == "FIXED_LEN_BYTE_ARRAY"


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.float64(), pa.float32()),
        (pa.int32(), pa.decimal128(9, 0)),
        (pa.int64(), pa.decimal128(19, 0)),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(10, 2), pa.decimal128(12, 1)),
        (pa.date32(), pa.timestamp("us", tz="UTC")),
        (pa.string(), pa.int32()),
        (pa.int32(), pa.string()),
        (pa.bool_(), pa.int32()),
    ],
)
def test_a_file_of_a_type_that_the_column_never_had_is_corrupt(
    tmp_path: Path, held: pa.DataType, wanted: pa.DataType
) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"c": pa.nulls(3, held)}), file, store_schema=False)
    table = table_over(tmp_path / "t", file.as_uri(), file, pa.schema([("c", wanted)]))
    with pytest.raises(errors.CorruptDataFile, match="column 'c'"):
        table.to_arrow()


@pytest.mark.parametrize(
    ("held", "wanted", "value"),
    [
        (pa.int8(), pa.int64(), -128),
        (pa.int32(), pa.int8(), 127),
        (pa.int16(), pa.float64(), -3),
        (pa.int32(), pa.decimal128(12, 2), -(2**31)),
        (pa.int64(), pa.decimal128(20, 0), 2**63 - 1),
        (pa.float32(), pa.float64(), 0.5),
        (pa.decimal128(5, 2), pa.decimal128(8, 4), Decimal("-999.99")),
        (pa.date32(), pa.timestamp("us"), dt.date(1, 1, 1)),
    ],
)
def test_a_file_of_a_narrower_type_reads_exactly(
    tmp_path: Path, held: pa.DataType, wanted: pa.DataType, value: Any
) -> None:
    file = tmp_path / "x.parquet"
    nested = pa.table({"c": pa.array([[value], None, [None]], pa.list_(held))})
    pq.write_table(nested, file, store_schema=False)
    table = table_over(tmp_path / "t", file.as_uri(), file, pa.schema([("c", pa.list_(wanted))]))
    expected = dt.datetime(1, 1, 1) if isinstance(value, dt.date) else value
    assert table.to_arrow().column("c").to_pylist() == [[expected], None, [None]]
