"""The values that become a value of a column, and those that are refused: of keys to delete and of subjects alike."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive

UTC = dt.UTC
DAY = dt.date(2024, 2, 29)
INSTANT = dt.datetime(2024, 2, 29, 10, 0, 0, 5, tzinfo=UTC)
IDENTIFIER = uuid.UUID(int=0xC0FFEE << 64 | 1)
WALL = dt.datetime(2024, 2, 29, 10)

KEPT: list[tuple[Any, DataType, Any]] = [
    ("007", Primitive.STRING, "007"),
    ("", Primitive.STRING, ""),
    ("O'Brien ", Primitive.STRING, "O'Brien "),
    (7, Primitive.LONG, 7),
    ("7", Primitive.LONG, 7),
    ("-7", Primitive.BYTE, -7),
    (7.0, Primitive.INTEGER, 7),
    (2.0**53 - 1, Primitive.LONG, 2**53 - 1),
    (999_999_999_999_999.0, DecimalType(38, 0), Decimal(999_999_999_999_999)),
    (Decimal("7.00"), Primitive.INTEGER, 7),
    (2**63 - 1, Primitive.LONG, 2**63 - 1),
    ("9223372036854775807", Primitive.LONG, 2**63 - 1),
    (1, DecimalType(10, 2), Decimal("1.00")),
    ("1.5", DecimalType(10, 2), Decimal("1.50")),
    (0.1, DecimalType(10, 2), Decimal("0.10")),
    (Decimal("99999999.99"), DecimalType(10, 2), Decimal("99999999.99")),
    ("9" * 38, DecimalType(38, 0), Decimal("9" * 38)),
    (0.5, Primitive.FLOAT, 0.5),
    (3, Primitive.DOUBLE, 3.0),
    ("0.1", Primitive.DOUBLE, 0.1),
    (-0.0, Primitive.DOUBLE, 0.0),
    (True, Primitive.BOOLEAN, True),
    ("false", Primitive.BOOLEAN, False),
    (b"\x00", Primitive.BINARY, b"\x00"),
    (IDENTIFIER, Primitive.BINARY, IDENTIFIER.bytes),
    (Decimal("-4711.00"), Primitive.LONG, -4711),
    (-99_999_999, DecimalType(10, 2), Decimal("-99999999.00")),
    (DAY, Primitive.DATE, DAY),
    ("2024-02-29", Primitive.DATE, DAY),
    (INSTANT, Primitive.TIMESTAMP, INSTANT),
    ("2024-02-29T11:00:00.000005+01:00", Primitive.TIMESTAMP, INSTANT),
    (WALL, Primitive.TIMESTAMP_NTZ, WALL),
    ("2024-02-29 10:00:00", Primitive.TIMESTAMP_NTZ, WALL),
]
REFUSED: list[tuple[Any, DataType]] = [
    (7, Primitive.STRING),
    (7.0, Primitive.STRING),
    (True, Primitive.STRING),
    (DAY, Primitive.STRING),
    (b"7", Primitive.STRING),
    (Decimal("7.10"), Primitive.STRING),
    (IDENTIFIER, Primitive.STRING),
    ("1", Primitive.BOOLEAN),
    (WALL, Primitive.DATE),
    (16_777_217.0, Primitive.FLOAT),
    (7.125, DecimalType(10, 2)),
    (True, DecimalType(10, 2)),
    ("007", Primitive.LONG),
    ("+7", Primitive.LONG),
    (" 7", Primitive.LONG),
    ("7.0", Primitive.LONG),
    ("٧", Primitive.LONG),
    ("", Primitive.LONG),
    (128, Primitive.BYTE),
    (2**63, Primitive.LONG),
    (7.5, Primitive.LONG),
    (2.0**53, Primitive.LONG),
    (2.0**53 + 2, Primitive.LONG),
    (float("inf"), Primitive.LONG),
    (True, Primitive.LONG),
    (Decimal("7.5"), Primitive.LONG),
    ("01.5", DecimalType(10, 2)),
    ("1e2", DecimalType(10, 2)),
    (Decimal("0.001"), DecimalType(10, 2)),
    (10**8, DecimalType(10, 2)),
    (0.1234567890123456, DecimalType(38, 20)),
    (1e19, DecimalType(38, 0)),
    (0.1, Primitive.FLOAT),
    (1e300, Primitive.FLOAT),
    (2**53 + 1, Primitive.DOUBLE),
    (float("nan"), Primitive.DOUBLE),
    (Decimal("0.10000000000000000001"), Primitive.DOUBLE),
    ("TRUE", Primitive.BOOLEAN),
    (1, Primitive.BOOLEAN),
    ("7", Primitive.BINARY),
    ("2024-2-29", Primitive.DATE),
    ("2024-02-30", Primitive.DATE),
    ("2024-02-29 00:00:00", Primitive.DATE),
    (INSTANT, Primitive.DATE),
    (20240229, Primitive.DATE),
    (WALL, Primitive.TIMESTAMP),
    (DAY, Primitive.TIMESTAMP),
    ("2024-02-29 10:00:00", Primitive.TIMESTAMP),
    (INSTANT, Primitive.TIMESTAMP_NTZ),
    (None, Primitive.STRING),
]
