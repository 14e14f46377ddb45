"""`_last_checkpoint`: where a reader may start to look. A hint, and only ever a hint.

The file is replaced in place by each writer of a checkpoint, so it may be missing, stale, torn on a store without
atomic replacement, or wrong. Nothing that is read here may decide what a table holds; it decides where listing begins.
Source: protocol, "Last Checkpoint File".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from airflow_txlog.engine.log.names import LAST_CHECKPOINT, MAX_VERSION
from airflow_txlog.errors import LimitExceeded, OutsideTable
from airflow_txlog.storage.base import Store


class V2Hint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the hint says of a V2 checkpoint, as delta-spark writes it: others need not read the top level then.

    We never believe it: the checkpoint itself says the same.
    """

    path: str
    """The name of the top level, in the log."""
    size_in_bytes: int
    modification_time: int
    non_file_actions: Sequence[Mapping[str, Any]] | None = None
    """Every action of the top level but those that name sidecars, each under its name."""
    sidecar_files: Sequence[msgspec.Struct] | None = None


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What we write, and of what others write the part that is of use. Sizes are informative."""

    version: int
    size: int | None = None
    """Number of actions in the checkpoint."""
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    v2_checkpoint: V2Hint | None = None


# Of a hint only the version is used, so a wrong type anywhere else must not cost the hint.
class _VersionOnly(msgspec.Struct, frozen=True):
    version: int


_decoder = msgspec.json.Decoder(_VersionOnly)


def read_hint(store: Store) -> int | None:
    """The version that `_last_checkpoint` names, or None where no such file is, or it is a link or makes no sense."""
    try:
        version = _decoder.decode(store.read(LAST_CHECKPOINT)).version
    except (
        FileNotFoundError,
        LimitExceeded,
        OutsideTable,
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):
        return None
    return version if 0 <= version <= MAX_VERSION else None


def write_hint(store: Store, hint: LastCheckpoint) -> None:
    """Replace the hint, unless the one that is there names a later checkpoint.

    Two writers may still interleave and leave the older one: a stale hint costs a reader time, never an answer.
    """
    known = read_hint(store)
    if known is None or known <= hint.version:
        store.put(LAST_CHECKPOINT, msgspec.json.encode(hint))
