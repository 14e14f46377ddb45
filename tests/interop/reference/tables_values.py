"""Fixtures about values: partition values of every type, odd characters, old dates, old layouts of Parquet files."""

from __future__ import annotations

from tests.interop.reference.tables_log import EVERY_TYPE, EVERY_TYPE_VALUES
from tests.interop.reference.workbench import Workbench, fixture

PARTITIONS = {
    "bo": ("BOOLEAN", ["true", "false", None]),
    "by": ("TINYINT", ["-128", "127", None]),
    "sh": ("SMALLINT", ["-32768", "5", None]),
    "i": ("INT", ["-2147483648", "7", None]),
    "l": ("BIGINT", ["9223372036854775807", "0", None]),
    "f": ("FLOAT", ["0.1", "NaN", None]),
    "d": ("DOUBLE", ["1e300", "-Infinity", None]),
    "de": ("DECIMAL(10, 2)", ["1.50", "-0.01", None]),
    "s": ("STRING", ["a b", "01", None]),
    "da": ("DATE", ["0001-01-01", "9999-12-31", None]),
    "ts": ("TIMESTAMP", ["2024-11-03 01:30:00.123456", "1883-11-18 12:00:00", None]),
    "tn": ("TIMESTAMP_NTZ", ["2024-01-01 10:00:00.12", "1950-01-01 00:00:00", None]),
}

ODD = [
    "plain", " lead and trail ", "percent%25", "a:b", "a/b", "a=b", "it's", 'quo"te', "back\\slash", "star*",
    "quest?", "hash#", "bra[ck]et", "cur{l}y", "caret^", "bar|!", "plus+", "tab\tnew\nline", "Zoë 🚀", "a&b;c,d",
    "__HIVE_DEFAULT_PARTITION__x", "dot.", "~tilde`grave", "\u0001control\u007f",
]  # fmt: skip


def _literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _partitions(w: Workbench, **properties: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in PARTITIONS.items())
    w.create(f"id INT, {columns}", f"PARTITIONED BY ({', '.join(PARTITIONS)})", **properties)
    rows = [
        ", ".join(
            "NULL" if values[index] is None else f"cast('{values[index]}' AS {kind})"
            for kind, values in PARTITIONS.values()
        )
        for index in range(3)
    ]
    w.sql("INSERT INTO {t} " + " UNION ALL ".join(f"SELECT {index}, {row}" for index, row in enumerate(rows)))


@fixture
def partitions_of_every_type(w: Workbench) -> None:
    """Partition values of every type with their extremes and null, and a checkpoint with typed partition values."""
    _partitions(w, delta__checkpoint__writeStatsAsStruct="true")
    w.checkpoint()
    w.sql("DELETE FROM {t} WHERE id = 1")


@fixture
def partitions_with_local_times(w: Workbench) -> None:
    """Partition values of timestamps without a zone in them, as older writers write them, in UTC."""
    with w.settings(spark__databricks__delta__write__utcTimestampPartitionValues="false"):
        _partitions(w)


@fixture
def partitions_with_odd_characters(w: Workbench) -> None:
    """Partition values with anything in them, the empty string, which is null, and an odd name of the column."""
    w.create("id INT, `p+a:rt%20` STRING", "PARTITIONED BY (`p+a:rt%20`)", delta__columnMapping__mode="none")
    values = ", ".join(f"({index}, {_literal(value)})" for index, value in enumerate([*ODD, ""]))
    w.sql(f"INSERT INTO {{t}} VALUES {values}")
    w.checkpoint()
    w.sql("DELETE FROM {t} WHERE id < 3")


@fixture
def data_skipping(w: Workbench) -> None:
    """Values at the edges of statistics: long strings, NaN, infinities, long decimals, times within a millisecond."""
    w.create(
        "id INT, s STRING, d DOUBLE, f FLOAT, de DECIMAL(38, 10), ts TIMESTAMP, tn TIMESTAMP_NTZ, da DATE, b BOOLEAN"
    )
    rows = [
        "1, repeat('a', 40), 1.0D, 1.0F, 12345678901234567.89, TIMESTAMP'2024-01-01 00:00:00.123999', "
        "TIMESTAMP_NTZ'2024-01-01 00:00:00.123999', DATE'2024-01-01', true",
        "2, repeat('\U0001f680', 40), double('NaN'), float('NaN'), -0.0000000001, "
        "TIMESTAMP'1969-12-31 23:59:59.999999', TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', DATE'0001-01-01', false",
        "3, '', double('Infinity'), float('-Infinity'), 9999999999999999999999999999.9999999999, "
        "TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP_NTZ'0001-01-01 00:00:00', DATE'9999-12-31', NULL",
        "4, NULL, -0.0D, -0.0F, NULL, NULL, NULL, NULL, NULL",
        "5, concat(repeat('a', 31), '\U0010ffff', repeat('z', 9)), 0.1D, 0.1F, 0, "
        "TIMESTAMP'0001-01-01 00:00:00', NULL, NULL, NULL",
    ]
    for row in rows:
        w.sql(f"INSERT INTO {{t}} SELECT {row}")


OLD = "TIMESTAMP'1500-03-01 12:00:00', DATE'1500-03-01'"
EDGES = ("1582-10-15 00:00:00", "1900-01-01 00:00:00", "2262-04-12 00:00:00", "9999-12-31 12:00:00")


@fixture
def int96(w: Workbench) -> None:
    """INT96 timestamps at the edges of what nanoseconds can hold, in the calendar of today."""
    w.create("id INT, ts TIMESTAMP, nest STRUCT<ts: TIMESTAMP>, li ARRAY<TIMESTAMP>")
    options = {
        "spark__sql__parquet__outputTimestampType": "INT96",
        "spark__sql__parquet__int96RebaseModeInWrite": "CORRECTED",
    }
    for index, text in enumerate(("0001-01-01 00:00:00", *EDGES)):
        moment = f"TIMESTAMP'{text}'"
        w.sql(f"INSERT INTO {{t}} SELECT {index}, {moment}, named_struct('ts', {moment}), array({moment})", **options)


@fixture
def timestamps_in_milliseconds(w: Workbench) -> None:
    """Timestamps kept as milliseconds in the files."""
    w.create("id INT, ts TIMESTAMP")
    for index, text in enumerate(("0001-01-01 00:00:00.123", *EDGES)):
        w.sql(
            f"INSERT INTO {{t}} SELECT {index}, TIMESTAMP'{text}'",
            spark__sql__parquet__outputTimestampType="TIMESTAMP_MILLIS",
        )


@fixture
def legacy_calendar(w: Workbench) -> None:
    """Dates and timestamps written in the Julian calendar, with values that are old enough to differ."""
    w.create("id INT, ts TIMESTAMP, da DATE")
    w.sql("INSERT INTO {t} SELECT 1, TIMESTAMP'2024-01-01 00:00:00', DATE'2024-01-01'")
    w.sql(f"INSERT INTO {{t}} SELECT 2, {OLD}", spark__sql__parquet__datetimeRebaseModeInWrite="LEGACY")


@fixture
def legacy_calendar_int96(w: Workbench) -> None:
    """The same in INT96."""
    w.create("id INT, ts TIMESTAMP")
    options = {
        "spark__sql__parquet__outputTimestampType": "INT96",
        "spark__sql__parquet__int96RebaseModeInWrite": "LEGACY",
    }
    w.sql("INSERT INTO {t} SELECT 1, TIMESTAMP'2024-01-01 00:00:00'", **options)
    w.sql("INSERT INTO {t} SELECT 2, TIMESTAMP'1500-03-01 12:00:00'", **options)


@fixture
def legacy_calendar_of_new_dates(w: Workbench) -> None:
    """Files marked as written in the Julian calendar whose values are the same in both."""
    w.create("id INT, ts TIMESTAMP, da DATE")
    w.sql(
        "INSERT INTO {t} SELECT 1, TIMESTAMP'2024-01-01 00:00:00', DATE'2024-01-01'",
        spark__sql__parquet__datetimeRebaseModeInWrite="LEGACY",
    )


@fixture
def legacy_layout(w: Workbench) -> None:
    """Lists and maps of two levels and decimals as bytes: the layout of old Hive and Spark."""
    w.create(
        "id INT, small DECIMAL(5, 2), big DECIMAL(30, 5), li ARRAY<INT>, ls ARRAY<STRUCT<a: INT, b: STRING>>, "
        "ll ARRAY<ARRAY<STRING>>, ma MAP<STRING, ARRAY<INT>>"
    )
    w.sql(
        "INSERT INTO {t} VALUES "
        "(1, 123.45, -1234567890123456789012345.12345, array(1, NULL), array(named_struct('a', 1, 'b', 'x')), "
        "array(array('p', NULL), array()), map('k', array(7))), "
        "(2, NULL, NULL, array(), NULL, NULL, map()), "
        "(3, -0.01, 0.00001, NULL, array(NULL, named_struct('a', NULL, 'b', NULL)), array(NULL, array('q')), NULL)",
        spark__sql__parquet__writeLegacyFormat="true",
    )
    w.sql("INSERT INTO {t} VALUES (4, 1, 1, array(1), array(named_struct('a', 4, 'b', 'y')), NULL, NULL)")


@fixture
def nested_of_every_type(w: Workbench) -> None:
    """Every type inside a struct, an array and a map, columns added to a nested struct later, nulls at every level."""
    w.create(f"id BIGINT, all STRUCT<{_struct_of(EVERY_TYPE)}>, li ARRAY<STRUCT<a: INT>>")
    rows = f"SELECT {EVERY_TYPE_VALUES} FROM range(1, 3, 1, 1)"
    w.sql(f"INSERT INTO {{t}} SELECT id, struct(*) AS all, array(named_struct('a', 1)) AS li FROM ({rows})")
    w.sql("INSERT INTO {t} VALUES (9, NULL, array(NULL))")
    w.sql("ALTER TABLE {t} ADD COLUMNS (all.added STRING, li.element.b DATE)")
    w.sql("INSERT INTO {t} SELECT 10, NULL, array(named_struct('a', 1, 'b', DATE'2024-01-01'))")


def _struct_of(columns: str) -> str:
    """`a INT, b STRUCT<…>` as the fields of a struct: `a: INT, b: STRUCT<…>`."""
    fields, depth, start = [], 0, 0
    for at, character in enumerate(columns + ","):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            name, kind = columns[start:at].strip().split(" ", 1)
            fields.append(f"{name}: {kind}")
            start = at + 1
    return ", ".join(fields)


@fixture
def types_without_values(w: Workbench) -> None:
    """Columns that hold nothing: void, an empty struct's worth of nulls, zero rows, zero files."""
    w.create("id BIGINT, c CHAR(5), v VARCHAR(5), nothing STRING, bi BINARY")
    w.sql("INSERT INTO {t} VALUES (1, 'ab', 'ab', NULL, NULL), (2, NULL, 'abcde', NULL, X'00FF')")
    w.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id > 99")
    w.sql("DELETE FROM {t}")
