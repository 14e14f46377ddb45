"""The state of one version of a table, as values: what replaying the log up to that version gives.

Live files and tombstones are Arrow tables of the wire fields as they were written, so that a million files are a few
vectors and a Remove or a re-Add loses nothing; they share what they can with the version before. Everything else is
small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol, SetTransaction
from airflow_txlog.engine.table.snapshot.file_index import FileIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One version. If it exists, it has a protocol and metadata."""

    version: int
    protocol: Protocol
    metadata: Metadata
    transactions: Mapping[str, SetTransaction]
    """The latest application transaction of each application id, expired ones included."""
    domains: Mapping[str, DomainMetadata]
    """Domains that were not removed, by name."""
    files: FileIndex
    """The live files."""
    removed_files: FileIndex
    """The tombstones, expired ones included."""
    in_commit_ms: int | None
    """The in-commit timestamp of the version; None where the table has none."""

    @property
    def live(self) -> pa.Table:
        """Schema `FILES`, one row a live file, in no order. Put together when first asked for."""
        return self.files.table

    @property
    def tombstones(self) -> pa.Table:
        """Schema `TOMBSTONES`, one row a removed file, expired ones included. Put together when first asked for."""
        return self.removed_files.table
