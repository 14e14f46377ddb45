"""The table properties that this engine obeys, typed, with the protocol's defaults.

An unknown property is carried along untouched. A known one with a value that cannot be read raises
InvalidProperty when it is asked for, and on `validate` when a table is created.
Source: protocol, "Table Properties"; delta-spark's DeltaConfigs for the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from airflow_txlog.datafiles.parquet.physical import ParquetFormat
from airflow_txlog.errors import InvalidProperty

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"

SHARED_FOLDER = "txlog.sharedFolder"
"""Our own property: files of others were in the folder before the table was created there."""

_UNIT_MS = {
    "week": 7 * DAY_MS,
    "day": DAY_MS,
    "hour": HOUR_MS,
    "minute": 60_000,
    "second": 1000,
    "millisecond": 1,
}
_INTERVAL_PART = re.compile(r"(\d+)\s*([a-z]+)")

T = TypeVar("T")
D = TypeVar("D")


def parse_interval_ms(text: str) -> int:
    """Milliseconds of "interval 7 days" or "7 days 12 hours".

    Months and years have no fixed length and are refused, as the reference implementation does. Raises ValueError.
    """
    body = text.strip().lower().removeprefix("interval").strip()
    parts = _INTERVAL_PART.findall(body)
    if not parts or _INTERVAL_PART.sub("", body).strip():
        raise ValueError(f"not an interval: {text!r}")
    total = 0
    for number, unit in parts:
        factor = _UNIT_MS.get(unit.removesuffix("s"))
        if factor is None:
            raise ValueError(f"unknown unit {unit!r} in {text!r}; use {', '.join(_UNIT_MS)}")
        total += int(number) * factor
    return total


def _parse_bool(text: str) -> bool:
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise ValueError("expected true or false")


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("expected a whole number above 0")
    return number


def _parse_indexed_columns(text: str) -> int:
    number = int(text)
    if number < -1:
        raise ValueError("expected -1 (all) or a whole number from 0 on")
    return number


_SIZE = re.compile(r"(\d+)\s*(b|[kmgt]i?b?)?")
_SIZE_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def _parse_size(text: str) -> int:
    """Bytes of "134217728", "128mb" or "1g", counted in powers of 1024 as Spark counts them."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ValueError("expected a size such as 134217728 or 128mb")
    return int(found[1]) * int(1024 ** _SIZE_UNITS[(found[2] or "b")[0]])


def _parse_checkpoint_policy(text: str) -> str:
    if text.strip().lower() in ("classic", "v2"):
        return text.strip().lower()
    raise ValueError("expected classic or v2")


def _parse_isolation(text: str) -> str:
    for level in (SERIALIZABLE, WRITE_SERIALIZABLE):
        if text.strip().lower() == level.lower():
            return level
    raise ValueError(f"expected {SERIALIZABLE} or {WRITE_SERIALIZABLE}")


# How Arrow's writer calls the codecs that the protocol names. It cannot write `lz4`, which is LZ4 in Hadoop's frames.
_CODECS = {
    "uncompressed": "NONE",
    "none": "NONE",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "lz4_raw": "LZ4",
    "zstd": "ZSTD",
}


def _parse_codec(text: str) -> str:
    codec = _CODECS.get(text.strip().lower())
    if codec is None:
        raise ValueError(f"this engine writes {', '.join(_CODECS)}")
    return codec


def _parse_format_version(text: str) -> str:
    """The version of data pages that the version of the Parquet format stands for."""
    if text.strip() == "1.0.0":
        return "1.0"
    if re.fullmatch(r"2\.\d+\.\d+", text.strip(), re.ASCII):
        return "2.0"
    raise ValueError("expected 1.0.0 or 2.MINOR.PATCH, such as 2.12.0")


class TableProperties:
    """Typed view of one version's `configuration`."""

    def __init__(self, configuration: Mapping[str, str], table: str) -> None:
        self._configuration = configuration
        self._table = table

    @property
    def isolation_level(self) -> str:
        return self._get("delta.isolationLevel", _parse_isolation, SERIALIZABLE)

    @property
    def append_only(self) -> bool:
        return self._get("delta.appendOnly", _parse_bool, False)

    @property
    def change_data_feed(self) -> bool:
        """Whether a commit that changes rows must say which, in files of change rows."""
        return self._get("delta.enableChangeDataFeed", _parse_bool, False)

    @property
    def checkpoint_interval(self) -> int:
        """Commits between two automatic checkpoints."""
        return self._get("delta.checkpointInterval", _parse_positive, 10)

    @property
    def wants_v2_checkpoints(self) -> bool:
        """Whether delta.checkpointPolicy asks for V2 checkpoints, which the protocol has to allow as well."""
        return self._get("delta.checkpointPolicy", _parse_checkpoint_policy, "classic") == "v2"

    @property
    def checkpoint_statistics_as_json(self) -> bool:
        return self._get("delta.checkpoint.writeStatsAsJson", _parse_bool, True)

    @property
    def checkpoint_statistics_as_struct(self) -> bool:
        """Off unless asked for, as the protocol has it; on where there would otherwise be no statistics at all."""
        return self._get("delta.checkpoint.writeStatsAsStruct", _parse_bool, not self.checkpoint_statistics_as_json)

    @property
    def target_file_bytes(self) -> int | None:
        """The size that data files shall have; None where the table does not say."""
        return self._get("delta.targetFileSize", _parse_size, None)

    @property
    def parquet(self) -> ParquetFormat:
        """How new Parquet files, of data and of checkpoints, are written."""
        return ParquetFormat(
            codec=self._get("delta.parquet.compression.codec", _parse_codec, None),
            data_page_version=self._get("delta.parquet.format.version", _parse_format_version, "1.0"),
        )

    @property
    def deleted_file_retention_ms(self) -> int:
        return self._get("delta.deletedFileRetentionDuration", parse_interval_ms, 7 * DAY_MS)

    @property
    def log_retention_ms(self) -> int:
        """How long a version can be travelled to, at the least."""
        return self._get("delta.logRetentionDuration", parse_interval_ms, 30 * DAY_MS)

    @property
    def clean_expired_log(self) -> bool:
        """Whether a checkpoint is followed by a cleanup of the log."""
        return self._get("delta.enableExpiredLogCleanup", _parse_bool, True)

    @property
    def set_transaction_retention_ms(self) -> int | None:
        """None: application transactions never expire."""
        return self._get("delta.setTransactionRetentionDuration", parse_interval_ms, None)

    @property
    def deletion_vectors(self) -> bool:
        """Whether rows may be deleted by vectors; the protocol has to allow it as well."""
        return self._get("delta.enableDeletionVectors", _parse_bool, False)

    @property
    def vector_prefix_chars(self) -> int:
        """How long the random directories are that files of deletion vectors lie in; 0: the table's own folder."""
        if not self._get("delta.randomizeFilePrefixes", _parse_bool, False):
            return 0
        return self._get("delta.randomPrefixLength", _parse_positive, 2)

    @property
    def in_commit_timestamps(self) -> bool:
        return self._get("delta.enableInCommitTimestamps", _parse_bool, False)

    @property
    def in_commit_start(self) -> tuple[int, int] | None:
        """From which version, and from which moment (ms), in-commit timestamps hold; None where the table has none."""
        if not self.in_commit_timestamps:
            return None
        # A table that had them from its creation on need not say so.
        version = self._get("delta.inCommitTimestampEnablementVersion", int, 0)
        return version, self._get("delta.inCommitTimestampEnablementTimestamp", int, 0)

    @property
    def row_tracking(self) -> bool:
        """Whether rows keep stable ids; the feature may be supported without it."""
        return self._get("delta.enableRowTracking", _parse_bool, False) and not self.row_tracking_suspended

    @property
    def row_tracking_suspended(self) -> bool:
        """Whether no ids are handed out although the feature is there: a step on the way of dropping it."""
        return self._get("delta.rowTrackingSuspended", _parse_bool, False)

    @property
    def num_indexed_columns(self) -> int:
        """How many leading leaf columns get statistics; -1 is all."""
        return self._get("delta.dataSkippingNumIndexedCols", _parse_indexed_columns, 32)

    @property
    def stats_columns(self) -> list[str] | None:
        """The columns that get statistics by name, or None where the leading ones do."""
        text = self._configuration.get("delta.dataSkippingStatsColumns")
        if text is None:
            return None
        return [name.strip().strip("`") for name in text.split(",") if name.strip()]

    @property
    def trust_statistics(self) -> bool:
        """False: neither pruning nor the conflict check believes a statistic of this table (our own property)."""
        return self._get("txlog.trustStatistics", _parse_bool, True)

    @property
    def shares_folder(self) -> bool:
        """Whether files of others were in the folder before the table."""
        return self._get(SHARED_FOLDER, _parse_bool, False)

    def validate(self) -> None:
        """Read every property that is set. Raises InvalidProperty for the first that cannot be read."""
        for name, value in vars(TableProperties).items():
            if isinstance(value, property):
                getattr(self, name)

    def _get(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        text = self._configuration.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, AttributeError) as error:
            raise InvalidProperty(
                f"{self._table}: the table property {name} is {text!r}, which cannot be read: {error}.",
                table=self._table,
                name=name,
                value=text,
            ) from error
