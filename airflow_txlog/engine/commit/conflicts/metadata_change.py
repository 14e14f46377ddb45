"""Winners that changed the table's protocol or metadata: adopt the change, or conflict.

A change is adopted only when nothing that we staged could have been written otherwise under it.
Source: delta-spark, ConflictChecker.checkProtocolCompatibility and checkNoMetadataUpdates (the reconcilable keys).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from airflow_txlog.engine.commit.content.attempt import Attempt
from airflow_txlog.engine.commit.content.messages import conflict
from airflow_txlog.engine.log.actions import Commit, Metadata, Protocol
from airflow_txlog.engine.table.schema.features import check_protocol_writable, reader_features, writer_features
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.errors import MetadataChanged, ProtocolChanged, TableReplaced

# Properties that a winner may set while we write: none of them changes what a correct data file or commit of ours is.
_HARMLESS_PROPERTIES = frozenset(
    {
        "delta.checkpointPolicy",
        "delta.enableDeletionVectors",
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementVersion",
        "delta.inCommitTimestampEnablementTimestamp",
    }
)

# Features that a winner may add while we write, for the same reason.
_HARMLESS_FEATURES = frozenset(
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

# Moves with every identity value that a winner hands out; ours never do.
_IDENTITY_MARK = "delta.identity.highWaterMark"


def reconcile_protocol(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt under the winner's protocol.

    Raises UnsupportedFeature where the engine cannot write that protocol, else ProtocolChanged where both change the
    protocol, or the winner took a feature away or added one that our staged files may not satisfy.
    """
    if winner.protocol is None:
        return attempt
    check_protocol_writable(winner.protocol, attempt.table)
    if attempt.new_protocol is not None:
        what = "created the table" if attempt.read_version < 0 else "changed the protocol, as this transaction does"
        raise conflict(ProtocolChanged, attempt, winner, what)
    if attempt.protocol is not None:
        removed = _features(attempt.protocol) - _features(winner.protocol)
        added = _features(winner.protocol) - _features(attempt.protocol) - _HARMLESS_FEATURES
        if removed:
            raise conflict(ProtocolChanged, attempt, winner, f"took the features {sorted(removed)} from the table")
        if added - _unused_legacy_features(winner.protocol):
            raise conflict(ProtocolChanged, attempt, winner, f"added the features {sorted(added)} to the table")
    return replace(attempt, protocol=winner.protocol)


def _features(protocol: Protocol) -> frozenset[str]:
    return reader_features(protocol) | writer_features(protocol)


def _unused_legacy_features(protocol: Protocol) -> frozenset[str]:
    """Features that only come along with a version number: what switches them on would be a metadata change."""
    return writer_features(protocol) if protocol.min_writer_version < 7 else frozenset()


def reconcile_metadata(attempt: Attempt, winner: Commit) -> Attempt:
    """The attempt under the winner's metadata.

    Raises TableReplaced where the winner belongs to another table, MetadataChanged where the change is not harmless.
    """
    metadata = winner.metadata
    if metadata is None:
        return attempt
    current = attempt.current_metadata
    if current is not None and metadata.id != current.id:
        raise TableReplaced(
            f"{attempt.table} was dropped and created again: version {winner.version} belongs to table {metadata.id}, "
            f"and this transaction read table {current.id}. Nothing was committed. Start from the new table.",
            table=attempt.table,
        )
    if attempt.new_metadata is not None or current is None:
        raise conflict(MetadataChanged, attempt, winner, "changed the metadata, as this transaction does")
    changed = _harmful_changes(current, metadata)
    if any(add.deletion_vector for add in attempt.adds) and _stops_deletion_vectors(current, metadata, attempt.table):
        changed.append("property delta.enableDeletionVectors")
    if changed:
        raise conflict(MetadataChanged, attempt, winner, f"changed the table's {', '.join(changed)}")
    return replace(attempt, current_metadata=metadata)


def _stops_deletion_vectors(before: Metadata, after: Metadata, table: str) -> bool:
    """Whether rows are not deleted by vectors any more: a commit that does so must then do it otherwise."""
    was, stays = (TableProperties(each.configuration, table).deletion_vectors for each in (before, after))
    return was and not stays


def _harmful_changes(before: Metadata, after: Metadata) -> list[str]:
    """What differs, in words, beyond the harmless properties; a property that was removed always counts."""
    found = []
    if before.schema_string != after.schema_string and _schema(before) != _schema(after):
        found.append("schema")
    if before.partition_columns != after.partition_columns:
        found.append("partitioning")
    if before.format != after.format:
        found.append("format")
    for name in sorted(before.configuration.keys() | after.configuration.keys()):
        if before.configuration.get(name) == after.configuration.get(name):
            continue
        if name in _HARMLESS_PROPERTIES and name in after.configuration:
            continue
        found.append(f"property {name}")
    return found


def _schema(metadata: Metadata) -> object:
    """The schema as plain values, without identity high-water marks."""
    text = metadata.schema_string or "null"
    try:
        return _without_identity_mark(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        # No schema at all: then it is the same only where its text is.
        return text


def _without_identity_mark(node: object) -> object:
    if isinstance(node, dict):
        return {name: _without_identity_mark(value) for name, value in node.items() if name != _IDENTITY_MARK}
    if isinstance(node, list):
        return [_without_identity_mark(value) for value in node]
    return node
