"""Whether two versions of a table have the same rules for rows: the question before anything staged is kept.

Rows were checked, computed and laid out under the rules of the version that they were staged on: its schema, its
constraints and generated columns, its partitioning and clustering, column mapping, change data feed and row tracking.
The invariant:
any difference that is not on the list below is a difference in the rules. Source: soundness A18.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.commit.content.clustering import clustering_columns
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.features import reader_features, writer_features

# Features that a winner may add to the protocol: none of them asks anything of rows that are staged already.
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

# Properties that say how commits, checkpoints and removals are written, and nothing about rows.
HARMLESS_PROPERTIES = frozenset(
    {
        "delta.checkpointPolicy",
        "delta.enableDeletionVectors",
        "delta.enableInCommitTimestamps",
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
    }
)

_HIGH_WATER_MARK = "delta.identity.highWaterMark"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """What of a version's protocol and metadata bears on rows. Two are compared by `still_holds`."""

    table_id: str
    reader_features: frozenset[str]
    writer_features: frozenset[str]
    schema: str
    """The schema's JSON with sorted keys, without the high-water marks of identity columns."""
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    """Those that are not harmless."""
    clustering: tuple[tuple[str, ...], ...] = ()
    """The clustering columns, as paths of physical names: new files need their statistics."""


def rules_at(snapshot: Snapshot) -> TableRules:
    """The rules of a version."""
    clustering = clustering_columns(snapshot.state.domains.values(), snapshot.uri)
    return replace(rules_of(snapshot.protocol, snapshot.metadata), clustering=clustering)


def rules_of(protocol: Protocol, metadata: Metadata) -> TableRules:
    """The rules that the protocol and the metadata of a version make; `rules_at` knows its domains too."""
    return TableRules(
        table_id=metadata.id,
        reader_features=reader_features(protocol),
        writer_features=writer_features(protocol),
        schema=json.dumps(_without_marks(json.loads(metadata.schema_string or "null")), sort_keys=True),
        partition_columns=tuple(metadata.partition_columns),
        properties={k: v for k, v in metadata.configuration.items() if k not in HARMLESS_PROPERTIES},
    )


def still_holds(before: TableRules, now: TableRules) -> bool:
    """Whether rows staged under the rules `before` may be committed under the rules `now`."""
    if (before.table_id, before.schema, before.partition_columns, before.properties, before.clustering) != (
        now.table_id,
        now.schema,
        now.partition_columns,
        now.properties,
        now.clustering,
    ):
        return False
    return _only_harmless(before.reader_features, now.reader_features) and _only_harmless(
        before.writer_features, now.writer_features
    )


def _only_harmless(before: frozenset[str], now: frozenset[str]) -> bool:
    return before <= now and now - before <= HARMLESS_FEATURES


def _without_marks(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_marks(value) for key, value in node.items() if key != _HIGH_WATER_MARK}
    if isinstance(node, list):
        return [_without_marks(value) for value in node]
    return node
