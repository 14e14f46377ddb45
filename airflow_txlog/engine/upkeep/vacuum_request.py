"""What is asked of a vacuum, of which table, and the refusal of what cannot be meant or would delete too much."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from airflow_txlog.engine.table.schema.column_mapping import partition_keys
from airflow_txlog.engine.table.schema.features import features_in_use
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.engine.upkeep.deleting import PARALLELISM
from airflow_txlog.errors import FolderNotEmpty, InvalidInput, RetentionTooShort

HOUR_MS = 3_600_000
ORPHAN_RETENTION_MS = 7 * 24 * HOUR_MS
"""How long a file that no action names is kept where nothing else is asked."""
ORPHAN_RETENTION_FLOOR_MS = 24 * HOUR_MS
"""How long it is kept whatever is asked: a write must have committed by then."""
MAX_PARALLELISM = 256

VacuumMode = Literal["full", "lite"]
InventorySource: TypeAlias = pa.Table | str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumState:
    """Of a snapshot of the latest version, read before the vacuum begins, what the vacuum needs."""

    version: int
    live: pa.Table
    """Schema FILES."""
    tombstones: pa.Table
    """Schema TOMBSTONES."""
    partition_columns: Sequence[str]
    retention_ms: int
    """The table's own delta.deletedFileRetentionDuration."""
    shares_folder: bool = False
    """Whether files of others were in the folder before the table."""
    has_iceberg: bool = False
    """Whether other engines keep Iceberg's metadata in the folder."""

    @staticmethod
    def of(snapshot: Snapshot) -> VacuumState:
        """Return the state of this snapshot, with every name that a directory of a partition column may bear."""
        names = snapshot.partition_columns
        return VacuumState(
            version=snapshot.version,
            live=snapshot.state.live,
            tombstones=snapshot.state.tombstones,
            # Before a renaming it is the physical one.
            partition_columns=sorted({*names, *partition_keys(snapshot.delta_schema, names)}),
            retention_ms=snapshot.table_properties.deleted_file_retention_ms,
            shares_folder=snapshot.table_properties.shares_folder,
            has_iceberg=any(
                feature.startswith("icebergCompat")
                for feature in features_in_use(snapshot.delta_schema, snapshot.metadata.configuration)
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumRequest:
    """What is asked of a vacuum."""

    retention_ms: int | None = None
    """None is the table's own."""
    check_retention: bool = True
    orphan_retention_ms: int = ORPHAN_RETENTION_MS
    dry_run: bool = False
    mode: VacuumMode = "full"
    inventory: InventorySource | None = None
    parallelism: int = PARALLELISM
    include_foreign: bool = False
    """Whether files that were in the folder before the table may go too, where the table shares its folder."""


def check_request(table: str, request: VacuumRequest, state: VacuumState) -> None:
    """Raise InvalidInput for what cannot be meant, RetentionTooShort, or FolderNotEmpty."""
    asked_ms, required_ms = request.retention_ms, state.retention_ms
    for name, value in (("a retention", asked_ms), ("an orphan retention", request.orphan_retention_ms)):
        if value is not None and value < 0:
            raise InvalidInput(
                f"InvalidInput: vacuum of {table} was asked for {name} of {value} ms; it cannot be negative. "
                "Nothing was deleted."
            )
    if request.mode not in ("full", "lite"):
        raise InvalidInput(f"InvalidInput: a vacuum is full or lite, not {request.mode!r}. Nothing was deleted.")
    if request.mode == "lite" and request.inventory is not None:
        raise InvalidInput("InvalidInput: a lite vacuum goes by the log and takes no inventory. Nothing was deleted.")
    if not 1 <= request.parallelism <= MAX_PARALLELISM:
        raise InvalidInput(
            f"InvalidInput: a vacuum deletes 1 to {MAX_PARALLELISM} files at once, not {request.parallelism}. "
            "Nothing was deleted."
        )
    if request.check_retention and asked_ms is not None and asked_ms < required_ms:
        raise RetentionTooShort(
            f"RetentionTooShort: vacuum of {table} was asked to keep {asked_ms / HOUR_MS:g} hours of removed files, "
            f"and the table's delta.deletedFileRetentionDuration is {required_ms / HOUR_MS:g} hours: readers and time "
            "travel may still need them. Ask for more, change the property, or give check_retention=False "
            "(--no-check-retention on the command line). Nothing was deleted.",
            table=table,
            asked_ms=asked_ms,
            required_ms=required_ms,
        )
    if state.shares_folder and request.mode == "full" and not (request.dry_run or request.include_foreign):
        raise FolderNotEmpty(
            f"FolderNotEmpty: vacuum of {table} would delete files of others: they were in the folder before the table "
            f"was created there ({SHARED_FOLDER} is true), and no commit names them. Nothing was deleted. Use mode "
            '"lite", which deletes only files that the log removed; look at a dry run; or pass include_foreign=True '
            "to delete every file that no commit names.",
            table=table,
            examples=[],
        )
