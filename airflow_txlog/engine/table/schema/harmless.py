"""Changes of a table's metadata and protocol that leave every staged file and row valid.

Callers decide what else must be equal in two versions: `engine/commit/conflicts` for a commit that lost a race,
`jobs/resume/memory` for rows that an earlier attempt staged. The invariant: no change listed here decides which rows a
data file may hold or how it is laid out. Source: soundness A18.
"""

from __future__ import annotations

from airflow_txlog.engine.table.schema.rules import MARK_KEY

HARMLESS_PROPERTIES = frozenset(
    {
        "delta.checkpointPolicy",
        "delta.enableDeletionVectors",
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
    }
)
"""Properties of how commits, checkpoints and removals are written."""

HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that another writer may add to the protocol."""


def without_identity_marks(node: object) -> object:
    """Return a decoded schema without the marks of identity columns, which move with every value handed out."""
    if isinstance(node, dict):
        return {name: without_identity_marks(value) for name, value in node.items() if name != MARK_KEY}
    if isinstance(node, list):
        return [without_identity_marks(value) for value in node]
    return node
