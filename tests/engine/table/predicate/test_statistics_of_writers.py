"""Alone in showing that statistics of every known writer never hide a row: writers × types × files × operators.

A file is asked by its statistics, its rows by the evaluator of rows, which the differential tests hold against Spark.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_txlog.engine.log.actions import Add, DeletionVector
from airflow_txlog.engine.log.columns import adds_to_table
from airflow_txlog.engine.table.columns.statistics import ColumnBounds, bounds
from airflow_txlog.engine.table.predicate.pruning import may_be_true
from airflow_txlog.engine.table.predicate.tree import (
    Operand,
    Operator,
    compared,
    constants_of,
    member_of,
    null_test,
    prefixed,
)
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive, StructField, StructType
from airflow_txlog.sql.evaluation import passing
from airflow_txlog.sql.expression import Column, Expression
from tests.helpers.statistics_of_writers import SECOND, WRITERS, Groups, Writer, arrow_of, rows_of

NAN, INFINITY = math.nan, math.inf
FLOWER = "\U0001f33c"


def day(year: int, month: int = 1, of_month: int = 1) -> int:
    return dt.date(year, month, of_month).toordinal() - dt.date(1970, 1, 1).toordinal()


def moment(year: int, *rest: int, microsecond: int = 0, behind_s: int = 0) -> int:
    found = dt.datetime(year, *(rest or (1, 1)), tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return found // dt.timedelta(microseconds=1) + microsecond - behind_s * SECOND


def single(value: float) -> float:
    found: float = pa.scalar(value, pa.float32()).as_py()
    return found


def texts(*groups: list[str | bytes | None]) -> list[list[bytes | None]]:
    return [[each.encode() if isinstance(each, str) else each for each in group] for group in groups]


def decimals(*groups: list[str | None]) -> list[list[Decimal | None]]:
    return [[None if each is None else Decimal(each) for each in group] for group in groups]


MOMENTS: list[Groups] = [
    [[moment(1880, behind_s=9 * 3600 + 18 * 60 + 59)]],
    [[moment(1880, behind_s=-(7 * 3600 + 52 * 60 + 58))]],
    [[moment(1971, 6, 1, 12, 30, 30)], [moment(1900), None]],
    [[moment(1910, 1, 1, microsecond=999)]],
    [[moment(2024, 3, 1, 5, microsecond=123_999)], [moment(2024, 3, 1, 4, microsecond=1)]],
    [[moment(1), moment(9999, 12, 31, 23, 59, 59, microsecond=999_999)]],
    [[moment(1500, 3, 10), moment(1582, 10, 14)]],
    [[moment(2024, 6, 1)], [moment(2024, 6, 2)], [moment(2024, 5, 1)]],
]
FILES: dict[str, tuple[DataType, list[Groups]]] = {
    "long": (
        Primitive.LONG,
        [[[1, 5]], [[2**53 + 1]], [[-(2**63), 2**63 - 1]], [[7], [3], [9, None]], [[None, None]], [[None], [4]]],
    ),
    "double": (
        Primitive.DOUBLE,
        [
            [[1.0, 3.0]],
            [[1.0, 3.0, NAN]],
            [[NAN], [2.5, None]],
            [[-0.0, 0.0]],
            [[INFINITY, 1.0]],
            [[-INFINITY, 1.0]],
            [[1e300], [-1e300], [0.1]],
            [[1e7, 1e-5]],
        ],
    ),
    "float": (
        Primitive.FLOAT,
        [[[single(0.1)]], [[1.5, NAN]], [[single(3.4e38), -0.0]], [[2.5], [1.5], [single(0.3)]], [[None, 16777216.0]]],
    ),
    "decimal(10,2)": (
        DecimalType(10, 2),
        [
            decimals(["1.25", "99.99"]),
            decimals(["-5.00"], ["12345678.90", None]),
            decimals(["7.00"]),
            decimals(["3.00"], ["1.00"], ["2.50"]),
        ],
    ),
    "decimal(20,2)": (
        DecimalType(20, 2),
        [
            decimals(["12345678901234567.89"]),
            decimals(["1.01", "1.02"]),
            decimals(["-1.02", "-1.01"]),
            decimals(["0.01"], ["999999999999999999.99"]),
        ],
    ),
    "decimal(38,10)": (
        DecimalType(38, 10),
        [
            decimals(["0.3000000001"]),
            decimals(["12345678901234567.8900000001", None]),
            decimals(["-0.0000000001", "5.0000000000"]),
            decimals(["1234567.1234567891"], ["2.0000000000"]),
        ],
    ),
    "string": (
        Primitive.STRING,
        [
            texts(["a", "b"]),
            texts(["a" * 32 + FLOWER + " and more"]),
            texts(["a" * 31 + FLOWER + " and more"]),
            texts(["a" * 32 + "\uffff\uffff" + FLOWER]),
            texts(["b" * 15 + FLOWER * 60]),
            texts(["b"], ["x" * 5000, "a"], ["c", None]),
            texts(["é" * 50, "z?"]),
            texts(["\U0010ffff" * 70, "q\ufffdr"]),
            texts([b"a\xff", b"a\x80"]),
            texts([b"\x80", b"\xfez"]),
            texts(["", None]),
            texts(["?" * 40]),
        ],
    ),
    "date": (
        Primitive.DATE,
        [
            [[day(2024, 2, 29), day(1970)]],
            [[day(9999, 12, 31)]],
            [[day(2020), day(9999, 12, 31)]],
            [[day(1)], [day(1582, 10, 4)]],
            [[day(2023)], [day(2022)], [day(2021), None]],
        ],
    ),
    "timestamp": (Primitive.TIMESTAMP, MOMENTS),
    "timestamp_ntz": (Primitive.TIMESTAMP_NTZ, MOMENTS),
}
DECIMALS = [name for name in FILES if name.startswith("decimal")]
# Where no bound is believed: the text is of another kind than the column, or nothing tells a wrong one from a right.
UNKNOWN = {
    ("delta-rs", "timestamp_ntz"),
    ("delta-rs of 2022, delta-go", "date"),
    ("deltalake's pyarrow writer", "string"),
    ("XTable", "timestamp"),
    *(
        (writer, kind)
        for writer in ("delta-rs of 2022, delta-go", "deltalake's pyarrow writer", "Trino", "Trino's ANALYZE")
        for kind in DECIMALS
    ),
}


def constants(kind: DataType, groups: Groups) -> list[Any]:
    """The values of a file, their neighbours, and some far from all."""
    values = [value for value in rows_of(groups) if value is not None]
    match kind:
        case Primitive.STRING:
            readable = [value.decode("utf-8", "ignore") for value in values]
            near = [each + end for each in readable for end in ("", "\x00", "\uffff")]
            near += [each[:cut] for each in readable for cut in (1, 16, 31, 32)]
            found: list[Any] = [*near, "zz", FLOWER, "\ufffd"]
        case Primitive.DOUBLE | Primitive.FLOAT:
            near = [math.nextafter(each, end) for each in values for end in (INFINITY, -INFINITY)]
            found = [*values, *near, 1e9, -1e9, NAN]
        case DecimalType(precision, scale):
            unit, most = Decimal(1).scaleb(-scale), Decimal(10**precision - 1).scaleb(-scale)
            near = [each + step for each in values for step in (-unit, unit) if abs(each) < most]
            found = [*values, *near, unit * 10**6, -unit * 10**6]
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            found = [each + step for each in values for step in (-60 * SECOND, -1, 0, 1, 30 * SECOND, 86_400 * SECOND)]
        case _:
            most = 2**63 - 1 if kind is Primitive.LONG else 2_932_896
            least = -(2**63) if kind is Primitive.LONG else -719_162
            found = [each for value in values for each in (value - 1, value, value + 1) if least <= each <= most]
            found += [719_163, 0, most, least]
    return list({repr(each): each for each in found}.values())


def leaves(kind: DataType, groups: Groups) -> Iterator[Expression]:
    column = Operand(Column("c"), kind)
    given = constants(kind, groups)
    for value in given:
        for operator in Operator:
            yield compared(column, operator, value)
        if kind is Primitive.STRING:
            yield prefixed(column, value)
            yield prefixed(column, value, negated=True)
    listed = [each for each in given if each == each and each != 0]
    for values in (tuple(listed[:2]), tuple(listed), tuple(listed[1::2])):
        if values:
            yield member_of(column, values)
            yield member_of(column, values, negated=True)
    yield null_test(column, is_null=True)
    yield null_test(column, is_null=False)


def file_of(stats: str | None, deleted: int) -> Add:
    vector = DeletionVector(storage_type="u", path_or_inline_dv="x", offset=1, size_in_bytes=1, cardinality=deleted)
    return Add(
        path="f",
        partition_values={},
        size=1,
        modification_time=1,
        data_change=True,
        stats=stats,
        deletion_vector=vector if deleted else None,
    )


def bounds_of(kind: DataType, files: list[Add]) -> ColumnBounds:
    return bounds(adds_to_table(files), StructType((StructField("c", kind),)), [("c",)])[("c",)]


@pytest.mark.parametrize("name", FILES)
def test_a21_no_writer_s_statistics_hide_a_row(name: str) -> None:
    kind, files = FILES[name]
    cases, pruned = 0, Counter[str]()
    asked = set()
    for groups in files:
        given = [(writer, writer.stats(kind, groups)) for writer in WRITERS if writer.deleted < len(rows_of(groups))]
        known = [(writer, stats) for writer, stats in given if stats is not None]
        asked |= {writer.name for writer, _ in known}
        adds = [file_of(stats, writer.deleted) for writer, stats in known]
        together = bounds_of(kind, adds)
        # One bad text makes the reading of all slow: each alone may be read the fast way, and says the same.
        alone = ColumnBounds.joined([bounds_of(kind, [add]) for add in adds])
        assert (alone.lower, alone.upper, alone.null_count) == (together.lower, together.upper, together.null_count)
        rows = pa.table({"c": arrow_of(kind, rows_of(groups))})
        for leaf in leaves(kind, groups):
            matching = passing(leaf, rows)
            kept = may_be_true(leaf, together).to_pylist()
            for (writer, stats), is_kept in zip(known, kept, strict=True):
                cases += 1
                has_row = bool(matching[writer.deleted :].true_count)
                assert is_kept or not has_row, f"{writer.name} hides a row of {leaf} by {stats}"
                pruned[writer.name] += not is_kept and constants_of(leaf) is not None
    print(f"{cases:,} cases of {len(asked)} writers for {name}")
    assert {writer for writer in asked if not pruned[writer]} == {writer for writer, of in UNKNOWN if of == name}


def test_the_documents_have_every_writer_in_their_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "statistics.md").read_text()
    names = sorted({writer.name for writer in WRITERS})
    assert [name for name in names if f"| {name} |" not in page] == []


def test_every_writer_is_asked_about_some_type() -> None:
    def can_write(writer: Writer) -> int:
        return sum(writer.stats(kind, groups) is not None for kind, files in FILES.values() for groups in files)

    assert reduce(min, map(can_write, WRITERS)) > 20
