"""The checkpoints that lie in a log, for tests that look at what was written."""

from __future__ import annotations

from airflow_txlog.engine.log.segment import CheckpointFiles, look
from airflow_txlog.storage import Store


def list_checkpoints(store: Store, start: int = 0) -> list[CheckpointFiles]:
    """Every checkpoint of version `start` or later that is complete by its names, by version ascending."""
    found = look(store, start).checkpoints
    return [checkpoint for version in sorted(found) for checkpoint in found[version]]
