"""Statistics as other writers make them of a column's values: rounded, cut, padded, mixed up, each in its own way.

Every function here was written from the writer's source, and gives the JSON of `add.stats` for a file whose one column
`c` holds the values, in row groups. None: the writer cannot write such a column, or fails on it. Values are integers
(also dates, in days, and timestamps, in microseconds), floats, decimals, and bytes for strings, UTF-8 or not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_txlog.datafiles.codecs import date_text, float_text, timestamp_text
from airflow_txlog.datafiles.parquet.statistics import file_statistics
from airflow_txlog.engine.log.checkpoints.rows import statistics_json
from airflow_txlog.engine.table.schema.schema import array_of
from airflow_txlog.engine.table.schema.types import DataType, DecimalType, Primitive

Values = Sequence[Any]
Groups = Sequence[Values]
Offset = Callable[[int], int]
"""Seconds that a zone's clock is ahead of UTC at an instant."""

SECOND = 1_000_000
DAYS_UNTIL_1970 = 719_163


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A writer by the name that docs/statistics.md gives it. `deleted`: rows that a vector deletes besides."""

    name: str
    stats: Callable[[DataType, Groups], str | None]
    deleted: int = 0


def document(num_records: int, lower: str | None, upper: str | None, nulls: int | None) -> str:
    members = [f'"numRecords":{num_records}']
    members += [f'"minValues":{{"c":{lower}}}' if lower is not None else '"minValues":{}']
    members += [f'"maxValues":{{"c":{upper}}}' if upper is not None else '"maxValues":{}']
    members += [f'"nullCount":{{"c":{nulls}}}' if nulls is not None else '"nullCount":{}']
    return "{" + ",".join(members) + "}"


def rows_of(groups: Groups) -> list[Any]:
    return [value for group in groups for value in group]


def known(values: Values, *, nan: bool) -> list[Any]:
    return [value for value in values if value is not None and (nan or value == value)]


def plain(groups: Groups, text: Callable[[Any, bool], str | None], *, nan: bool = False, nulls: bool = True) -> str:
    """Statistics of all values, each side by `text`, which is told whether it is the maximum."""
    rows = rows_of(groups)
    values = known(rows, nan=nan)
    # NaN is the greatest of all to those that count it.
    order = sorted(values, key=lambda value: (value != value, 0 if value != value else value))
    lower, upper = (text(order[0], False), text(order[-1], True)) if order else (None, None)
    return document(len(rows), lower, upper, rows.count(None) if nulls else None)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def java_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def exact(value: Decimal) -> str:
    return format(value, "f")


def units(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale))


def at(microseconds: int, zone: str, digits: int | None = 3) -> str:
    return quoted(timestamp_text(microseconds, fraction_digits=digits) + zone)


# --- delta-spark -----------------------------------------------------------------------------------------------------


def tokyo(instant: int) -> int:
    return 9 * 3600 + 18 * 60 + 59 if instant < -2_587_712_400 * SECOND else 9 * 3600


def los_angeles(instant: int) -> int:
    return -(7 * 3600 + 52 * 60 + 58) if instant < -2_717_640_000 * SECOND else -8 * 3600


def monrovia(instant: int) -> int:
    return -(44 * 60 + 30) if instant < 63_593_070 * SECOND else 0


def accra(instant: int) -> int:
    return -52 if instant < -1_640_995_148 * SECOND else 0


def by_hand(instant: int) -> int:
    return 5 * 3600 + 30 * 60 + 29


def utc(instant: int) -> int:
    return 0


def offset_text(seconds: int, *, with_seconds: bool) -> str:
    """Java's XXX, which drops the seconds, or XXXXX."""
    size = abs(seconds)
    if size < (1 if with_seconds else 60):
        return "Z"
    rest = f":{size % 60:02d}" if with_seconds and size % 60 else ""
    return f"{'-' if seconds < 0 else '+'}{size // 3600:02d}:{size // 60 % 60:02d}{rest}"


def cut_by_old_spark(value: bytes, is_maximum: bool) -> str:
    text = java_text(value)
    if not is_maximum:
        return text[:32]
    pairs = text.encode("utf-16-le")
    characters = [pairs[at : at + 2] for at in range(0, len(pairs), 2)]
    if len(characters) <= 32:
        return text
    kept, rest = characters[:32], characters[32:]
    while rest and int.from_bytes(rest[0], "little") >= 0xFFFD:
        kept.append(rest.pop(0))
    cut = b"".join(kept).decode("utf-16-le", "surrogatepass")
    # Java makes a question mark of half a pair.
    return "".join("?" if 0xD800 <= ord(each) < 0xE000 else each for each in cut) + "\ufffd"


def cut_by_new_spark(value: bytes, is_maximum: bool) -> str | None:
    text = java_text(value)
    if len(text) <= 32 or not is_maximum:
        return text[:32]
    for size in range(32, min(len(text), 64)):
        if text[size] < "\x7f":
            return text[:size] + "\x7f"
        if text[size] < "\U0010ffff":
            return text[:size] + "\U0010ffff"
    return None


def delta_spark(offset: Offset, *, is_old: bool) -> Callable[[DataType, Groups], str | None]:
    def text(kind: DataType, value: Any, is_maximum: bool) -> str | None:
        match kind:
            case Primitive.DOUBLE | Primitive.FLOAT:
                found = float_text(value, kind is Primitive.FLOAT)
                return found if math.isfinite(value) else quoted(found)
            case DecimalType():
                return exact(value)
            case Primitive.STRING:
                cut = (cut_by_old_spark if is_old else cut_by_new_spark)(value, is_maximum)
                return None if cut is None else quoted(cut)
            case Primitive.DATE:
                return quoted(date_text(value))
            case Primitive.TIMESTAMP:
                seconds = offset(value)
                return at(value + seconds * SECOND, offset_text(seconds, with_seconds=not is_old))
            case Primitive.TIMESTAMP_NTZ:
                return at(value, "")
        return str(value)

    return lambda kind, groups: plain(groups, lambda value, top: text(kind, value, top), nan=True)


# --- delta-rs and its Python writer ----------------------------------------------------------------------------------


def cut_by_rust(size: int) -> Callable[[bytes, bool], str | None]:
    """The first bytes up to a character; above, the last one that can becomes the next."""

    def cut(value: bytes, is_maximum: bool) -> str | None:
        if len(value) <= size:
            return value.decode()
        kept = value[:size].decode("utf-8", "ignore")
        return following(kept, value.decode()) if is_maximum else kept

    return cut


def following(kept: str, whole: str) -> str:
    for last in range(len(kept) - 1, -1, -1):
        after = ord(kept[last]) + 1
        if after <= 0x10FFFF and not 0xD800 <= after < 0xE000:
            return kept[:last] + chr(after)
    return whole


def is_utf_8(groups: Groups) -> bool:
    try:
        return all(value is None or isinstance(value.decode(), str) for value in rows_of(groups))
    except UnicodeDecodeError:
        return False


def delta_rs(kind: DataType, groups: Groups) -> str | None:
    cut = cut_by_rust(64)

    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case Primitive.DOUBLE | Primitive.FLOAT:
                return repr(value) if math.isfinite(value) else "null"
            case DecimalType(precision, scale):
                return repr(value_as_double(value, precision, scale))
            case Primitive.STRING:
                found = cut(value, is_maximum)
                return None if found is None else quoted(found)
            case Primitive.DATE:
                return quoted(date_text(value))
            case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
                # A column without a zone gets one too.
                return at(value, "Z", digits=None if value % SECOND == 0 else 6)
        return str(value)

    if kind is Primitive.STRING and not is_utf_8(groups):
        return None
    return plain(groups, text)


def value_as_double(value: Decimal, precision: int, scale: int) -> float:
    found = float(units(value, scale)) / 10.0**scale
    if len(str(abs(int(found)))) > precision - scale and found:
        found = math.nextafter(found, 0.0)
    return found


def delta_rs_of_2023(kind: DataType, groups: Groups) -> str | None:
    """Rust's writer with three faults: the maximum of a merge begins with the minimum, which is gone then; days count
    from the year 1; bytes of decimals are filled up behind."""

    def text(value: Any) -> str:
        match kind:
            case Primitive.DOUBLE | Primitive.FLOAT:
                return repr(value) if math.isfinite(value) else "null"
            case DecimalType(precision, scale):
                number = units(value, scale)
                if precision > 18:
                    number <<= 8 * (16 - math.ceil((precision * math.log2(10) + 1) / 8))
                return repr(float(number) / 10.0**scale)
            case Primitive.STRING:
                return quoted(value.decode())
            case Primitive.DATE:
                return quoted(date_text(value - DAYS_UNTIL_1970))
            case Primitive.TIMESTAMP:
                return at(value, "Z", digits=None if value % SECOND == 0 else 6)
        return str(value)

    if kind is Primitive.TIMESTAMP_NTZ or (kind is Primitive.STRING and not is_utf_8(groups)):
        return None
    ends = [(min(found), max(found)) if (found := known(group, nan=False)) else (None, None) for group in groups]
    lower, upper = ends[0]
    for least, greatest in ends[1:]:
        merged = min((each for each in (lower, least) if each is not None), default=None)
        lower, upper = None, max((each for each in (merged, greatest) if each is not None), default=None)
    rows = rows_of(groups)
    texts = [None if each is None else text(each) for each in (lower, upper)]
    return document(len(rows), texts[0], texts[1], rows.count(None))


def delta_rs_of_2022(kind: DataType, groups: Groups) -> str | None:
    """What Parquet holds: a day's number, a decimal without its point."""
    match kind:
        case Primitive.DATE:
            return plain(groups, lambda value, _: str(value))
        case DecimalType(precision, scale):
            return plain(groups, lambda value, _: str(units(value, scale)) if precision <= 18 else None)
        case Primitive.TIMESTAMP_NTZ:
            return None
    return delta_rs(kind, groups)


def deltalake_by_pyarrow(kind: DataType, groups: Groups) -> str | None:
    """Bounds of the footer's row groups, of those that have some; JSON with blanks."""
    if kind is Primitive.STRING and not is_utf_8(groups):
        return None
    kept = [group for group in groups if not any(isinstance(v, bytes) and len(v) > 4096 for v in group)]
    values = known(rows_of(kept), nan=False)
    rows = rows_of(groups)
    stats: dict[str, Any] = {"numRecords": len(rows), "minValues": {}, "maxValues": {}, "nullCount": {"c": 0}}
    stats["nullCount"]["c"] = rows.count(None)

    def plain_value(value: Any) -> Any:
        match kind:
            case DecimalType():
                return str(value)
            case Primitive.STRING:
                return value.decode()
            case Primitive.DATE:
                return date_text(value)
            case Primitive.TIMESTAMP:
                return timestamp_text(value, fraction_digits=None if value % SECOND == 0 else 6) + "+00:00"
            case Primitive.TIMESTAMP_NTZ:
                return timestamp_text(value, fraction_digits=None if value % SECOND == 0 else 6)
        return value

    if values and min(values) != -math.inf:
        stats["minValues"]["c"] = plain_value(min(values))
    if values and max(values) != math.inf:
        stats["maxValues"]["c"] = plain_value(max(values))
    return json.dumps(stats)


# --- others ----------------------------------------------------------------------------------------------------------


def kernel(kind: DataType, groups: Groups) -> str | None:
    """Kernel for Java, from Parquet's footer: none where a value is NaN, texts whole."""
    if kind in (Primitive.DOUBLE, Primitive.FLOAT) and any(value != value for value in rows_of(groups)):
        return document(len(rows_of(groups)), None, None, None)
    return of_java(kind, groups, at_zone="Z")


def of_java(kind: DataType, groups: Groups, at_zone: str) -> str | None:
    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case Primitive.DOUBLE | Primitive.FLOAT:
                found = float_text(value, kind is Primitive.FLOAT)
                return found if math.isfinite(value) else quoted(found)
            case DecimalType():
                # BigDecimal.toString of Java, and of Python's Decimal: an exponent where the number is small.
                return str(value)
            case Primitive.STRING:
                return quoted(java_text(value))
            case Primitive.DATE:
                return quoted(date_text(value))
            case Primitive.TIMESTAMP:
                return at(value, at_zone)
            case Primitive.TIMESTAMP_NTZ:
                return at(value, "")
        return str(value)

    return plain(groups, text)


def trino(kind: DataType, groups: Groups) -> str | None:
    """Decimals as texts, instants of milliseconds, whole seconds without a fraction."""

    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case DecimalType():
                return quoted(exact(value))
            case Primitive.TIMESTAMP:
                whole = value - value % 1000 + (1000 if is_maximum and value % 1000 else 0)
                return at(whole, "Z", digits=None if whole % SECOND == 0 else 3)
            case Primitive.DOUBLE | Primitive.FLOAT if value == 0 and not is_maximum:
                return "0.0"
        return of_java_value(kind, value)

    if kind is Primitive.TIMESTAMP_NTZ:
        return None
    if kind in (Primitive.DOUBLE, Primitive.FLOAT) and any(value != value for value in rows_of(groups)):
        return document(len(rows_of(groups)), None, None, None)
    return plain(groups, text)


def of_java_value(kind: DataType, value: Any) -> str:
    match kind:
        case Primitive.DOUBLE | Primitive.FLOAT:
            found = float_text(value, kind is Primitive.FLOAT)
            return found if math.isfinite(value) else quoted(found)
        case Primitive.STRING:
            return quoted(java_text(value))
        case Primitive.DATE:
            return quoted(date_text(value))
    return str(value)


def analyzed_by_trino(kind: DataType, groups: Groups) -> str | None:
    """ANALYZE of a file whose first row a vector deletes: everything is of the rows that are left."""
    left = rows_of(groups)[1:]
    return trino(kind, [left])


def physical_beside_a_vector(kind: DataType, groups: Groups) -> str | None:
    """The same file by delta-spark: everything is of all rows, and the bounds are wide."""
    found = delta_spark(utc, is_old=False)(kind, groups)
    return None if found is None else found[:-1] + ',"tightBounds":false}'


def duckdb(kind: DataType, groups: Groups) -> str | None:
    cut = cut_by_rust(256)

    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case DecimalType():
                return exact(value)
            case Primitive.STRING:
                found = cut(value, is_maximum)
                return None if found is None else quoted(found)
            case Primitive.TIMESTAMP:
                return at(value, "Z", digits=6)
            case Primitive.TIMESTAMP_NTZ:
                return at(value, "", digits=6)
        return of_java_value(kind, value)

    if kind is Primitive.STRING and not is_utf_8(groups):
        return None
    return plain(groups, text)


def converted_from_iceberg(kind: DataType, groups: Groups) -> str | None:
    """Iceberg's bounds: texts of 16 characters, the last one above the next; NaN is counted elsewhere."""

    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case DecimalType():
                return exact(value)
            case Primitive.STRING:
                whole = value.decode()
                kept = whole[:16]
                return quoted(kept if not is_maximum or kept == whole else following(kept, whole))
            case Primitive.TIMESTAMP:
                return at(value, "+00:00", digits=6)
            case Primitive.TIMESTAMP_NTZ:
                return at(value, "", digits=6)
        return of_java_value(kind, value)

    if kind is Primitive.STRING and not is_utf_8(groups):
        return None
    return plain(groups, text)


def xtable(kind: DataType, groups: Groups) -> str | None:
    """Times without a zone, in whole seconds, by Java's old calendar: Julian before 15 October 1582."""

    def text(value: Any, is_maximum: bool) -> str | None:
        match kind:
            case DecimalType():
                return exact(value)
            case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
                days, time = divmod(value, 86_400 * SECOND)
                day = date_text(days) if days >= -141_427 else julian_text(days)
                return quoted(f"{day} {timestamp_text(time, fraction_digits=0)[11:]}")
        return of_java_value(kind, value)

    return plain(groups, text)


def julian_text(days: int) -> str:
    """The date that the Julian calendar shows so many days after 1970-01-01. Source: Richards, 2013."""
    since_4800 = days + 2_440_588 + 32_082
    year = (4 * since_4800 + 3) // 1461
    of_year = since_4800 - 1461 * year // 4
    month = (5 * of_year + 2) // 153
    of_month = of_year - (153 * month + 2) // 5 + 1
    return f"{year - 4800 + month // 10:04d}-{month + 3 - 12 * (month // 10):02d}-{of_month:02d}"


def arrow_of(kind: DataType, values: Values) -> pa.Array:
    if kind is Primitive.STRING:
        return pa.array(values, pa.binary()).view(pa.string())
    return array_of(list(values), kind)


def ours(kind: DataType, groups: Groups) -> str | None:
    return file_statistics(pa.table({"c": arrow_of(kind, rows_of(groups))}))


def a_struct_in_a_checkpoint(kind: DataType, groups: Groups) -> str | None:
    """delta-spark's values as `stats_parsed` holds them, where a checkpoint has no other statistics."""
    rows = rows_of(groups)
    values = known(rows, nan=True)
    if kind is Primitive.STRING:
        if not is_utf_8(groups):
            return None
        ends = [cut_by_old_spark(each, top).encode() for each, top in ((min(values), False), (max(values), True))]
    else:
        order = sorted(values, key=lambda value: (value != value, 0 if value != value else value))
        ends = [order[0], order[-1]] if order else [None, None]
        if kind in (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ):
            ends = [None if each is None else each - each % 1000 for each in ends]
    lower, upper = (pa.StructArray.from_arrays([arrow_of(kind, [each])], ["c"]) for each in ends)
    nulls = pa.StructArray.from_arrays([pa.array([rows.count(None)], pa.int64())], ["c"])
    names = ["numRecords", "minValues", "maxValues", "nullCount"]
    parsed = pa.StructArray.from_arrays([pa.array([len(rows)], pa.int64()), lower, upper, nulls], names)
    found: str = statistics_json(parsed)[0].as_py()
    return found


WRITERS = [
    *(
        Writer(name="delta-spark before 3.3", stats=delta_spark(zone, is_old=True))
        for zone in (utc, tokyo, los_angeles, monrovia, accra, by_hand)
    ),
    *(Writer(name="delta-spark 4", stats=delta_spark(zone, is_old=False)) for zone in (utc, tokyo)),
    Writer(name="Kernel for Java", stats=kernel),
    Writer(name="delta-rs", stats=delta_rs),
    Writer(name="delta-rs of 2023", stats=delta_rs_of_2023),
    Writer(name="delta-rs of 2022, delta-go", stats=delta_rs_of_2022),
    Writer(name="deltalake's pyarrow writer", stats=deltalake_by_pyarrow),
    Writer(name="Trino", stats=trino),
    Writer(name="Trino's ANALYZE", stats=analyzed_by_trino, deleted=1),
    Writer(name="delta-spark, file with a vector", stats=physical_beside_a_vector, deleted=1),
    Writer(name="DuckDB", stats=duckdb),
    Writer(name="Iceberg, converted", stats=converted_from_iceberg),
    Writer(name="XTable", stats=xtable),
    Writer(name="a checkpoint of structs", stats=a_struct_in_a_checkpoint),
    Writer(name="this engine", stats=ours),
]
