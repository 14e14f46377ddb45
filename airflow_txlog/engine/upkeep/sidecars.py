"""Which sidecars of V2 checkpoints no checkpoint names any more.

Several checkpoints may share a sidecar, and a checkpoint's sidecars are written before the checkpoint that names them.
The invariant: in doubt it stays. One checkpoint whose sidecars cannot be known keeps all of them.
Source: protocol, "Metadata Cleanup" and "Sidecar File Information".
"""

from __future__ import annotations

from airflow_txlog.engine.log.checkpoints import sidecars_of
from airflow_txlog.engine.log.checkpoints.sidecar import SIDECAR_DIRECTORY
from airflow_txlog.engine.log.listing import CheckpointFiles
from airflow_txlog.engine.log.names import LOG_DIRECTORY, LogKind, parse_name
from airflow_txlog.storage.base import FileInfo, Store


def unreferenced_sidecars(store: Store, before_ms: int) -> list[FileInfo]:
    """The sidecars written before the moment that no checkpoint of the log names.

    Raises CorruptCheckpoint where a checkpoint does not show what it names: then nothing may go.
    """
    # Before the checkpoints: one that is published while we look then still shows what it names.
    sidecars = [info for info in store.list(SIDECAR_DIRECTORY) if info.modified_ms < before_ms]
    if not sidecars:
        return []
    named: set[str] = set()
    for info in store.list(LOG_DIRECTORY):
        name = parse_name(info.path)
        # Each file by itself: which of them a reader would choose is another question.
        if name is not None and info.size_bytes and name.kind in (LogKind.CLASSIC_CHECKPOINT, LogKind.V2_CHECKPOINT):
            named.update(sidecars_of(store, CheckpointFiles(version=name.version, files=(info,))))
    return [info for info in sidecars if info.path not in named]
