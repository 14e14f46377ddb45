"""Changes of a table's metadata and protocol that leave every staged file and row valid.

Callers decide what else must be equal in two versions: `engine/commit/conflicts` for a commit that lost a race,
`jobs/resume/memory` for rows that an earlier attempt staged. The invariant: no change listed here decides which rows a
data file may hold or how it is laid out. Source: soundness A18.
"""

from __future__ import annotations

import msgspec

from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.identities import MARK_KEY

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


def moves_marks_only(before: Metadata, after: Metadata) -> bool:
    """Return whether two versions of a table's metadata differ in the marks of identity columns alone."""
    if before.schema_string == after.schema_string:
        return False
    if msgspec.structs.replace(after, schema_string=before.schema_string) != before:
        return False
    one, other = (msgspec.json.decode(each.schema_string or "null") for each in (before, after))
    return without_identity_marks(one) == without_identity_marks(other)
