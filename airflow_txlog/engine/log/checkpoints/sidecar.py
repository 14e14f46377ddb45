"""Sidecars: the files beside a V2 checkpoint that hold its adds and removes, and where they lie.

The invariant: a sidecar lies in `_delta_log/_sidecars/` of its own table. A name that leads elsewhere is corrupt, and
is neither read nor ever deleted on its account.
Source: protocol, "V2 Spec", "Sidecar File Information" and "Checkpoint Metadata".
"""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from airflow_txlog.engine.log.actions import Int64
from airflow_txlog.engine.log.names import LOG_DIRECTORY
from airflow_txlog.engine.log.paths import canonical_path

SIDECAR_DIRECTORY = f"{LOG_DIRECTORY}/_sidecars"


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which version a V2 checkpoint is of."""

    version: Int64


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One sidecar as the top level names it: `path` is URL-encoded, a name in the directory or an absolute URI."""

    path: str
    size_in_bytes: Int64
    modification_time: Int64


def sidecar_path(sidecar: Sidecar, root: str) -> str:
    """Where the sidecar lies, relative to the table. Raises ValueError where that is not among its sidecars."""
    name = unquote(sidecar.path)
    # Only a bare name is relative to the directory; `/x` and `<table>/x` would come out as bare once they are resolved.
    found = f"{SIDECAR_DIRECTORY}/{name}" if "/" not in name else canonical_path(sidecar.path, root)
    directory, _, base = found.rpartition("/")
    if directory != SIDECAR_DIRECTORY or base in ("", ".", ".."):
        raise ValueError(f"it names the sidecar {sidecar.path!r}, which is not in {SIDECAR_DIRECTORY}")
    return found
