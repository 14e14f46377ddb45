"""The table properties that this engine obeys, typed, with the protocol's defaults.

Unknown properties are carried along untouched. A known one whose value cannot be read raises InvalidProperty when it is
used, and on `validate` when a table is created.
Source: protocol, "Table Properties"; delta-spark's DeltaConfigs for the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from airflow_txlog.datafiles.parquet.physical import ParquetFormat
from airflow_txlog.engine.table.schema.types import Path, parse_paths
from airflow_txlog.errors import InvalidProperty

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

ORPHAN_RETENTION_MS = 7 * DAY_MS
"""How long a VACUUM keeps a file that no action names, by default."""
ORPHAN_RETENTION_FLOOR_MS = DAY_MS
"""The minimum for which it keeps such a file: a write must have committed by then."""

APPEND_ONLY = "delta.appendOnly"
SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"

SHARED_FOLDER = "txlog.sharedFolder"
"""Our own property: the folder held files of others before the table was created there."""

HARMLESS_PROPERTIES = frozenset(
    {
        "delta.checkpointPolicy",
        "delta.enableDeletionVectors",
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
    }
)
"""Properties of how commits, checkpoints and removals are written. A change of them leaves every staged file and row
valid: none decides which rows a data file may hold or how it is laid out. Source: soundness A18."""

_UNIT_MS = {"week": 7 * DAY_MS, "day": DAY_MS, "hour": HOUR_MS, "minute": 60_000, "second": 1000, "millisecond": 1}
_INTERVAL_PART = re.compile(r"(\d+)\s*([a-z]+)")
_SIZE = re.compile(r"(\d+)\s*(b|[kmgt]i?b?)?")
_SIZE_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Arrow's names of the protocol's codecs. Arrow cannot write `lz4`, which is LZ4 in Hadoop's frames.
_CODECS = {"uncompressed": "NONE", "none": "NONE", "snappy": "SNAPPY", "gzip": "GZIP", "lz4_raw": "LZ4", "zstd": "ZSTD"}

T = TypeVar("T")


def parse_interval_ms(text: str) -> int:
    """Return the milliseconds of "interval 7 days". Raises ValueError, also for months and years, which vary."""
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
    return _one_of({"true": True, "false": False}, "expected true or false")(text)


def _at_least(least: int, expected: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if int(text) < least:
            raise ValueError(expected)
        return int(text)

    return parse


def _one_of(values: Mapping[str, T], expected: str) -> Callable[[str], T]:
    """Return a parser of names in any case."""

    def parse(text: str) -> T:
        name = text.strip().lower()
        if name not in values:
            raise ValueError(expected)
        return values[name]

    return parse


def _parse_size(text: str) -> int:
    """Return the bytes of "134217728", "128mb" or "1g", in powers of 1024 as in Spark."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise ValueError("expected a size such as 134217728 or 128mb")
    return int(found[1]) * int(1024 ** _SIZE_UNITS[(found[2] or "b")[0]])


def _parse_format_version(text: str) -> str:
    """Return the version of data pages in a version of the Parquet format."""
    if text.strip() == "1.0.0":
        return "1.0"
    if re.fullmatch(r"2\.\d+\.\d+", text.strip(), re.ASCII):
        return "2.0"
    raise ValueError("expected 1.0.0 or 2.MINOR.PATCH, such as 2.12.0")


class _Setting(Generic[T]):
    """A property of the table, parsed when it is read."""

    def __init__(self, name: str, parse: Callable[[str], T], default: T) -> None:
        self._name = name
        self._parse = parse
        self._default = default

    def __get__(self, properties: TableProperties, owner: type) -> T:
        text = properties.configuration.get(self._name)
        if text is None:
            return self._default
        try:
            return self._parse(text)
        except (ValueError, AttributeError) as error:
            raise InvalidProperty(
                f"{properties.table}: the table property {self._name} is {text!r}, which cannot be read: {error}.",
                table=properties.table,
                name=self._name,
                value=text,
            ) from error


_POSITIVE = _at_least(1, "expected a whole number above 0")
_ISOLATION = _one_of(
    {level.lower(): level for level in (SERIALIZABLE, WRITE_SERIALIZABLE)},
    f"expected {SERIALIZABLE} or {WRITE_SERIALIZABLE}",
)


class TableProperties:
    """Typed view of one version's `configuration`."""

    def __init__(self, configuration: Mapping[str, str], table: str) -> None:
        self.configuration = configuration
        self.table = table

    isolation_level = _Setting("delta.isolationLevel", _ISOLATION, SERIALIZABLE)
    append_only = _Setting(APPEND_ONLY, _parse_bool, False)
    change_data_feed = _Setting("delta.enableChangeDataFeed", _parse_bool, False)
    """Whether a commit that changes rows must record them in files of change rows."""

    checkpoint_interval = _Setting("delta.checkpointInterval", _POSITIVE, 10)
    """Commits between two automatic checkpoints."""
    wants_v2_checkpoints = _Setting(
        "delta.checkpointPolicy", _one_of({"classic": False, "v2": True}, "expected classic or v2"), False
    )
    """Whether to write V2 checkpoints, if the protocol allows them."""
    checkpoint_statistics_as_json = _Setting("delta.checkpoint.writeStatsAsJson", _parse_bool, True)
    _statistics_as_struct = _Setting[bool | None]("delta.checkpoint.writeStatsAsStruct", _parse_bool, None)

    target_file_bytes = _Setting[int | None]("delta.targetFileSize", _parse_size, None)
    """The size of new data files, None if the table does not set it."""
    _codec = _Setting[str | None](
        "delta.parquet.compression.codec", _one_of(_CODECS, f"this engine writes {', '.join(_CODECS)}"), None
    )
    _format_version = _Setting("delta.parquet.format.version", _parse_format_version, "1.0")

    deleted_file_retention_ms = _Setting("delta.deletedFileRetentionDuration", parse_interval_ms, 7 * DAY_MS)
    log_retention_ms = _Setting("delta.logRetentionDuration", parse_interval_ms, 30 * DAY_MS)
    """How long a version can be travelled to, at least."""
    clean_expired_log = _Setting("delta.enableExpiredLogCleanup", _parse_bool, True)
    """Whether a checkpoint is followed by a cleanup of the log."""
    set_transaction_retention_ms = _Setting[int | None](
        "delta.setTransactionRetentionDuration", parse_interval_ms, None
    )
    """None: application transactions never expire."""

    deletion_vectors = _Setting("delta.enableDeletionVectors", _parse_bool, False)
    """Whether rows may be deleted by vectors, if the protocol allows it."""
    _randomizes_prefixes = _Setting("delta.randomizeFilePrefixes", _parse_bool, False)
    _prefix_chars = _Setting("delta.randomPrefixLength", _POSITIVE, 2)

    in_commit_timestamps = _Setting("delta.enableInCommitTimestamps", _parse_bool, False)
    _in_commit_version = _Setting("delta.inCommitTimestampEnablementVersion", int, 0)
    _in_commit_moment = _Setting("delta.inCommitTimestampEnablementTimestamp", int, 0)

    protected_before = _Setting("delta.requireCheckpointProtectionBeforeVersion", int, 0)
    """The version before which a cleanup of the log deletes all or nothing, with the feature checkpointProtection."""

    _tracks_rows = _Setting("delta.enableRowTracking", _parse_bool, False)
    row_tracking_suspended = _Setting("delta.rowTrackingSuspended", _parse_bool, False)
    """Whether no ids are assigned although the feature is supported: a step in dropping it."""

    num_indexed_columns = _Setting(
        "delta.dataSkippingNumIndexedCols", _at_least(-1, "expected -1 (all) or a whole number from 0 on"), 32
    )
    """How many leading leaf columns get statistics; -1 is all."""
    stats_columns = _Setting[list[Path] | None]("delta.dataSkippingStatsColumns", parse_paths, None)
    """The paths of columns that get statistics, None for the leading columns."""
    trust_statistics = _Setting("txlog.trustStatistics", _parse_bool, True)
    """Our own property: whether pruning and the conflict check trust the table's statistics."""
    shares_folder = _Setting(SHARED_FOLDER, _parse_bool, False)

    @property
    def checkpoint_statistics_as_struct(self) -> bool:
        """Whether checkpoints hold statistics as structs; by default only if there would be none otherwise."""
        wanted = self._statistics_as_struct
        return not self.checkpoint_statistics_as_json if wanted is None else wanted

    @property
    def parquet(self) -> ParquetFormat:
        """The format of new Parquet files, of data and of checkpoints."""
        return ParquetFormat(codec=self._codec, data_page_version=self._format_version)

    @property
    def vector_prefix_chars(self) -> int:
        """The length of the random directories of deletion vector files; 0: they lie in the table's own folder."""
        return self._prefix_chars if self._randomizes_prefixes else 0

    @property
    def in_commit_start(self) -> tuple[int, int] | None:
        """The version and the moment (ms) from which in-commit timestamps hold, 0 if they always did; None if off."""
        return (self._in_commit_version, self._in_commit_moment) if self.in_commit_timestamps else None

    @property
    def row_tracking(self) -> bool:
        """Whether rows keep stable ids; the feature may be supported without it."""
        return self._tracks_rows and not self.row_tracking_suspended

    def validate(self) -> None:
        """Read every property that is set. Raises InvalidProperty for the first that cannot be read."""
        for name, value in vars(TableProperties).items():
            if isinstance(value, _Setting | property) and not name.startswith("_"):
                getattr(self, name)

    def readable(self) -> tuple[TableProperties, list[InvalidProperty]]:
        """Return the properties with the defaults in place of those that cannot be read, and an error for each."""
        configuration, errors = dict(self.configuration), list[InvalidProperty]()
        for _ in self.configuration:
            try:
                TableProperties(configuration, self.table).validate()
            except InvalidProperty as error:
                errors.append(error)
                del configuration[error.name]
            else:
                break
        return TableProperties(configuration, self.table), errors
