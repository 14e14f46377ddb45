"""Checkpoints: the state of one version in files of their own, read in every shape and written.

`reading` and `writing` do the work over the rows that `schema` states.
Source: protocol, "Checkpoints" and "Checkpoint Schema".
"""

from airflow_txlog.engine.log.checkpoints.content import CheckpointContent
from airflow_txlog.engine.log.checkpoints.reading import read_checkpoint, read_metadata, sidecars_of
from airflow_txlog.engine.log.checkpoints.writing import AddForm, CheckpointState, write_checkpoint, write_v2_checkpoint

__all__ = [
    "AddForm",
    "CheckpointContent",
    "CheckpointState",
    "read_checkpoint",
    "read_metadata",
    "sidecars_of",
    "write_checkpoint",
    "write_v2_checkpoint",
]
