"""`_last_checkpoint`: a hint of where the newest checkpoint is. Never more than a hint.

Source: protocol, "Last Checkpoint File".
"""

from __future__ import annotations

import msgspec

from airflow_txlog.engine.log.names import LAST_CHECKPOINT, MAX_VERSION
from airflow_txlog.engine.store.base import Store


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The hint, as far as we read and write it. `size` counts actions; `parts` only a multi-part checkpoint has."""

    version: int
    size: int
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None


def read_last_checkpoint(store: Store) -> int | None:
    """The version that the hint names, or None where there is no hint that can be read."""
    try:
        hint = msgspec.json.decode(store.read(LAST_CHECKPOINT), type=LastCheckpoint)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return hint.version if 0 <= hint.version <= MAX_VERSION else None


def write_last_checkpoint(store: Store, hint: LastCheckpoint) -> None:
    """Replace the hint."""
    store.put(LAST_CHECKPOINT, msgspec.json.encode(hint))
