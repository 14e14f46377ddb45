"""Files whose dates or timestamps were written in the hybrid Julian calendar: found by their footer, refused by value.

Spark before 3.0, and Spark since with `datetimeRebaseModeInWrite=LEGACY`, stored old dates as another day count, and
shows them rebased; Arrow shows them as they are stored, days apart. From 1582-10-15 on (dates) and 1900-01-01 on
(timestamps, where the zones of old cities end) both agree, and such files are read like any other.
Source: soundness A8; Spark's DataSourceUtils.datetimeRebaseSpec and int96RebaseSpec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_txlog.datafiles.parquet.conversion import leaves
from airflow_txlog.datafiles.parquet.physical import columns_of_leaf
from airflow_txlog.errors import UnsupportedFeature

FIRST_SAFE_DAY = -141_427  # 1582-10-15, in days since the epoch
FIRST_SAFE_MICROSECOND = -2_208_988_800_000_000  # 1900-01-01T00:00:00Z

_VERSION = b"org.apache.spark.version"
_LEGACY_DATETIME = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """What a file's footer says of its calendar: which of its values may be counted in the old way."""

    legacy_dates: bool
    legacy_int96: bool
    int96_columns: frozenset[str]
    """Top-level columns with an INT96 leaf."""

    @property
    def is_legacy(self) -> bool:
        return self.legacy_dates or self.legacy_int96

    def check(self, batch: pa.RecordBatch, location: str) -> None:
        """Refuses a batch of the file that holds a value which the two calendars would show differently.

        Raises UnsupportedFeature naming the column and the file.
        """
        if not self.is_legacy:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            is_legacy = self.legacy_int96 if name in self.int96_columns else self.legacy_dates
            for leaf in leaves(column):
                # A struct may mix INT96 with other timestamps: then either flag counts.
                nested = leaf is not column
                if (is_legacy or nested) and _has_old_value(leaf):
                    raise UnsupportedFeature(
                        f"{location}: column {name!r} holds dates before 1582-10-15 or timestamps before 1900-01-01 "
                        "in the Julian calendar of old Spark versions, which this engine does not convert. Rewrite "
                        "the file with a Spark since 3.0 (datetimeRebaseModeInWrite=CORRECTED). Nothing was changed.",
                        feature="legacy calendar",
                        needed_to="read",
                        path=location,
                    )


def calendar_of(file: pq.ParquetFile) -> Calendar:
    """The calendar of an open file."""
    footer: Mapping[bytes, bytes] = file.metadata.metadata or {}
    version = _spark_version(footer.get(_VERSION))
    columns = [file.schema.column(index) for index in range(len(file.schema))]
    int96 = {name for leaf in columns if leaf.physical_type == "INT96" for name in columns_of_leaf(leaf.path)}
    # A file without Spark's version is another writer's, and those have always used the calendar of today.
    return Calendar(
        legacy_dates=version is not None and (version < (3, 0) or _LEGACY_DATETIME in footer),
        legacy_int96=version is not None and (version < (3, 1) or _LEGACY_INT96 in footer),
        int96_columns=frozenset(file.schema_arrow.names) & int96,
    )


def _spark_version(text: bytes | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.match(rb"(\d+)\.(\d+)", text)
    # A version that cannot be read may be any: the values decide.
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _has_old_value(leaf: pa.Array) -> bool:
    if pa.types.is_date(leaf.type):
        limit, values = FIRST_SAFE_DAY, leaf.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_timestamp(leaf.type):
        values = leaf.cast(pa.timestamp("us", tz=leaf.type.tz), safe=False).cast(pa.int64())
        limit = FIRST_SAFE_MICROSECOND
    else:
        return False
    least = pc.min(values).as_py()
    return least is not None and least < limit
