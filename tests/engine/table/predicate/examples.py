"""One table with a column of every type and the values that trouble predicates, and files that hold its rows."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.datafiles.codecs import date_text, timestamp_text
from airflow_txlog.datafiles.partitioning import partition_string
from airflow_txlog.engine.log.actions import Add
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.schema.schema import array_of, to_arrow
from airflow_txlog.engine.table.schema.types import DecimalType, Primitive, StructField, StructType

NAN, INF = float("nan"), float("inf")


def days(year: int, month: int, day: int) -> int:
    return (dt.date(year, month, day) - dt.date(1970, 1, 1)).days


def micros(*parts: int) -> int:
    """Microseconds since 1970 of a UTC time."""
    return (dt.datetime(*parts) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # type: ignore[arg-type]


STRINGS = [
    "", "a", "ab", "abc", "abd", "b", "A", "O'Brien", "OBrien", "it's", "its", 'a"b', "a\\b", "5", "05", "10", "1.5",
    "true", "NaN", "2024-01-01", "2024-1-1", "2024-01-01 00:00:00", "é", "e\u0301", "😀", "\U0010ffff", "\uffff",
    "z" * 40, "%", "a%", "a_b", "a%b", " a", "a ", "\t", "a\nb", "~", "\x7f", "ΣΑΣ", "İ",
]  # fmt: skip
DATES = [
    days(1, 1, 1), days(1582, 10, 4), days(1582, 10, 15), days(1900, 1, 1), 0, -1, days(2024, 1, 1), days(2024, 2, 29),
    days(2024, 3, 10), days(2024, 11, 3), days(9999, 12, 31),
]  # fmt: skip
# Around New York's changes of the clock: 2024-03-10 07:00 and 2024-11-03 06:00 UTC; Kolkata's offset has half an hour.
TIMES = [
    micros(1, 1, 1), micros(1582, 10, 4), micros(1900, 1, 1, 12), 0, -1, 1, micros(2024, 1, 1), micros(2024, 1, 1, 5),
    micros(2023, 12, 31, 18, 30), micros(2024, 3, 10, 2, 30), micros(2024, 3, 10, 6, 59, 59, 999999),
    micros(2024, 3, 10, 7), micros(2024, 3, 10, 7, 30), micros(2024, 11, 3, 1, 30), micros(2024, 11, 3, 5, 30),
    micros(2024, 11, 3, 6, 30), micros(2024, 2, 29, 12, 34, 56, 123456), micros(2024, 2, 29, 12, 34, 56, 123999),
    micros(9999, 12, 31, 12), micros(9999, 12, 31, 23, 59, 59, 999999),
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 1.5, 5.0, 16777216.0, NAN, INF, -INF, 3.0e38, -3.0e38, 1.0e-45, 100.25]


def _integers(bits: int) -> list[int]:
    bound = 1 << (bits - 1)
    near = [0, 1, -1, 5, 10, 100, 127, -128, 128, 255, 32767, 2**24 + 1, 2**53, 2**53 + 1]
    return [value for value in [*near, bound - 1, -bound] if -bound <= value < bound]


def _decimals(precision: int, scale: int, *texts: str) -> list[Decimal]:
    greatest = Decimal((0, (9,) * precision, -scale))
    return [Decimal(text) for text in texts] + [greatest, greatest.copy_negate()]


COLUMNS: dict[str, tuple[Primitive | DecimalType, list[Any]]] = {
    "boo": (Primitive.BOOLEAN, [True, False]),
    "byt": (Primitive.BYTE, _integers(8)),
    "sho": (Primitive.SHORT, _integers(16)),
    "int": (Primitive.INTEGER, _integers(32)),
    "lng": (Primitive.LONG, _integers(64)),
    "flt": (Primitive.FLOAT, FLOATS),
    "dbl": (Primitive.DOUBLE, [*FLOATS, 9007199254740992.0, 0.1 + 0.2, 1.7976931348623157e308, 5e-324]),
    "dec": (DecimalType(5, 2), _decimals(5, 2, "0.00", "1.00", "-1.50", "5.00", "0.10", "123.45")),
    "whole": (DecimalType(38, 0), _decimals(38, 0, "0", "5", "-7", "12345678901234567890")),
    "wide": (DecimalType(38, 18), _decimals(38, 18, "0", "5", "0.1", "0.000000000000000001", "12345678901234567.89")),
    "str": (Primitive.STRING, STRINGS),
    "bin": (Primitive.BINARY, [b"", b"\x00", b"a", b"\xff\x00", b"abc"]),
    "dat": (Primitive.DATE, DATES),
    "tim": (Primitive.TIMESTAMP, TIMES),
    "ntz": (Primitive.TIMESTAMP_NTZ, TIMES),
}
SCHEMA = StructType(tuple(StructField(name, data_type) for name, (data_type, _) in COLUMNS.items()))
NAMES = list(COLUMNS)


def rows() -> pa.Table:
    """Every value of every column, and a null in each; columns are cycled at different speeds."""
    count = max(len(values) for _, values in COLUMNS.values()) + 1
    columns = []
    for data_type, values in COLUMNS.values():
        cycled = itertools.cycle([*values, None])
        columns.append(array_of([next(cycled) for _ in range(count)], data_type))
    return pa.Table.from_arrays(columns, schema=to_arrow(SCHEMA))


ROWS = rows()


def files_with_statistics(groups: Sequence[Sequence[int]]) -> pa.Table:
    """One file a group of row numbers, with the statistics that Delta's own writer gives them."""
    return adds_to_table(
        [
            Add(path=f"f{number}", partition_values={}, size=1, modification_time=0, data_change=True, stats=stats)
            for number, stats in enumerate(statistics(ROWS.take(list(group))) for group in groups)
        ]
    )


def files_of_partitions(columns: Sequence[str]) -> pa.Table:
    """One file a row, which is its partition: these columns are partition columns."""
    texts = {name: partition_string(ROWS.column(name)) for name in columns}
    return adds_to_table(
        [
            Add(
                path=f"f{number}",
                partition_values={name: texts[name][number] for name in columns},
                size=1,
                modification_time=0,
                data_change=True,
            )
            for number in range(ROWS.num_rows)
        ]
    )


def statistics(table: pa.Table) -> str:
    """The `stats` of a file of these rows, by the protocol: values in Spark's order, timestamps cut to milliseconds."""
    lowest: list[str] = []
    highest: list[str] = []
    nulls: dict[str, int] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        nulls[name] = column.null_count
        values = [value for value in plain(column) if value is not None]
        if not values or isinstance(values[0], bool | bytes):
            continue
        if isinstance(values[0], float):
            # NaN and the infinities are no JSON: Delta leaves them out.
            values = [] if any(not math.isfinite(value) for value in values) else values
        if values:
            kind = COLUMNS[name][0]
            lowest.append(f"{json.dumps(name)}:{_json(min(values), kind)}")
            highest.append(f"{json.dumps(name)}:{_json(max(values), kind)}")
    return (
        f'{{"numRecords":{table.num_rows},"minValues":{{{",".join(lowest)}}},"maxValues":{{{",".join(highest)}}},'
        f'"nullCount":{json.dumps(nulls)}}}'
    )


def plain(column: pa.Array) -> list[Any]:
    """Python values; dates and timestamps as integers, because `datetime` loses what Arrow holds."""
    if pa.types.is_date(column.type):
        return pc.cast(column, pa.int32()).to_pylist()
    return (pc.cast(column, pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def _json(value: Any, kind: Primitive | DecimalType) -> str:
    match kind:
        case Primitive.DATE:
            return f'"{date_text(value)}"'
        case Primitive.TIMESTAMP:
            return f'"{timestamp_text(value, fraction_digits=3)}Z"'
        case Primitive.TIMESTAMP_NTZ:
            return f'"{timestamp_text(value, fraction_digits=3)}"'
        case Primitive.FLOAT | Primitive.DOUBLE:
            return repr(value)
        case Primitive.STRING:
            return json.dumps(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
