"""Table features that are added to a table and dropped from it, and the readers that a new one shuts out.

The invariant: a feature is dropped only if no trace of it can be met in the table or in its history by a reader that
does not know it. All others are refused by name.
Source: protocol, "Table Features", "Row Tracking", "In-Commit Timestamps"; delta-spark,
PreDowngradeTableFeatureCommand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN
from airflow_txlog.engine.commit.content.info import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION
from airflow_txlog.engine.commit.content.metadata import WIDENING_PROPERTY
from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY, has_own_names, with_fields
from airflow_txlog.engine.table.schema.features import (
    CATALOG_MANAGED,
    NEED_DOMAINS,
    SWITCHES,
    WRITABLE,
    protocol_with,
    reader_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX
from airflow_txlog.engine.table.schema.types import TYPE_CHANGES_KEY, StructField, StructType, walk_fields
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidJobSpec, UnsupportedFeature
from airflow_txlog.errors.names import did_you_mean

# The property that switches a feature on; the others need none, or a column or a constraint does it.
_SWITCHED_BY = {feature: switch for switch, feature in SWITCHES.items()} | {"columnMapping": (MODE_PROPERTY, "name")}
_ROW_TRACKING = ("delta.enableRowTracking", "delta.rowTrackingSuspended", *MATERIALIZED_COLUMNS)
_TIMESTAMPS = ("delta.enableInCommitTimestamps", ENABLEMENT_VERSION, ENABLEMENT_TIMESTAMP)
_PROTECTION = "checkpointProtection"
PROTECTED_BEFORE = "delta.requireCheckpointProtectionBeforeVersion"
# The features that can be dropped, and the properties that go with them.
_DROPPABLE: dict[str, tuple[str, ...]] = {
    "checkConstraints": (),
    "inCommitTimestamp": _TIMESTAMPS,
    "rowTracking": _ROW_TRACKING,
    "domainMetadata": (),
    "materializePartitionColumns": (),
    "columnMapping": (MODE_PROPERTY,),
    "deletionVectors": ("delta.enableDeletionVectors",),
    "typeWidening": (WIDENING_PROPERTY,),
    "v2Checkpoint": ("delta.checkpointPolicy",),
    "vacuumProtocolCheck": (),
}
_WHY_NOT = {
    _PROTECTION: "it guards the versions before a feature was dropped, as long as the log has them; when none is left, "
    "delta-spark drops it with TRUNCATE HISTORY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The first versions of engines that read tables with a feature; of `deltalake`, the tested version."""

    delta_lake: str
    databricks: str
    deltalake: str = "1.6"


_BY_QUERY = "1.6 (by QueryBuilder only)"
READERS = {
    "columnMapping": Readers(delta_lake="1.2", databricks="10.4 LTS"),
    "deletionVectors": Readers(delta_lake="2.3", databricks="12.2 LTS", deltalake=_BY_QUERY),
    "timestampNtz": Readers(delta_lake="2.4", databricks="13.3 LTS"),
    "typeWidening": Readers(delta_lake="4.0 (preview: 3.2)", databricks="15.4 LTS", deltalake=""),
    "v2Checkpoint": Readers(delta_lake="3.0", databricks="13.3 LTS", deltalake=_BY_QUERY),
    "vacuumProtocolCheck": Readers(delta_lake="3.2", databricks="13.3 LTS", deltalake=""),
    "variantShredding": Readers(delta_lake="4.1 (preview: 4.0)", databricks="17.3 LTS", deltalake=""),
    "variantType": Readers(delta_lake="4.0", databricks="15.4 LTS"),
}
"""The engines that docs/bring-your-tables.md lists, from the compatibility tables of Delta Lake and Databricks."""


def feature_named(name: str, table: str) -> str:
    """Return the feature's name as the protocol spells it. Raises UnsupportedFeature for one that we cannot write."""
    addable = WRITABLE - {CATALOG_MANAGED}
    known = {each.lower(): each for each in addable}
    found = known.get(name.lower())
    if found is None:
        raise UnsupportedFeature(
            f'{table}: the feature "{name}" cannot be added: this engine could not write the table afterwards.'
            f"{did_you_mean(name, addable)} It adds {sorted(addable)}. Nothing was changed.",
            table=table,
            feature=name,
            needed_to="write",
        )
    return found


def switches_of(features: Iterable[str]) -> dict[str, str]:
    """Return the properties that switch these features on."""
    return dict(_SWITCHED_BY[feature] for feature in features if feature in _SWITCHED_BY)


def dropped(
    names: Iterable[str], protocol: Protocol, configuration: Mapping[str, str], domains: Collection[str], table: str
) -> tuple[list[str], dict[str, str]]:
    """Return the features that leave, as the protocol spells them, and the properties without theirs.

    `domains`: those of the table. Raises UnsupportedFeature for a feature that the table does not have or still uses,
    or that cannot be dropped here.
    """
    listed = {name.lower(): name for name in reader_features(protocol) | writer_features(protocol)}
    leaving: list[str] = []
    for name in names:
        feature = listed.get(name.lower())
        if feature is None:
            what = f"is not a feature of the table: it has {sorted(listed.values())}"
            raise _not_dropped(table, name, what + did_you_mean(name, list(listed.values())))
        if _named(feature) not in _DROPPABLE:
            why = _WHY_NOT.get(feature, "the protocol has no steps for that")
            raise _not_dropped(table, feature, f"cannot be dropped here: {why}. Droppable: {sorted(_DROPPABLE)}")
        leaving.append(feature)
    for feature, users in (
        ("checkConstraints", {f"the constraint {name}" for name in _constraints(configuration)}),
        ("domainMetadata", {f"the domain {name}" for name in domains if name != _domain_of(leaving)}),
        ("domainMetadata", set(listed.values()) & NEED_DOMAINS - set(leaving)),
    ):
        if feature in leaving and users:
            raise _not_dropped(table, feature, f"is in use: {', '.join(sorted(users))}. Drop that too")
    gone = {name for feature in leaving for name in _DROPPABLE[_named(feature)]}
    return leaving, {name: value for name, value in configuration.items() if name not in gone}


def _named(feature: str) -> str:
    return feature.removesuffix("-preview")


def check_traces(leaving: Iterable[str], snapshot: Snapshot, schema: StructType) -> None:
    """Raise UnsupportedFeature if files or columns of the latest version use a feature that leaves.

    `schema`: the table's columns after the alteration.
    """
    for feature in leaving:
        trace = _TRACES.get(_named(feature))
        found = None if trace is None else trace(snapshot, schema)
        if found is not None:
            raise _not_dropped(snapshot.uri, feature, found)


def _vectors(snapshot: Snapshot, schema: StructType) -> str | None:
    files = snapshot.files()
    count = files.num_rows - files.column("deletion_vector").null_count
    if count:
        return (
            f"is in use: {count} of {files.num_rows} files have a deletion vector. Set "
            'delta.enableDeletionVectors to "false", purge them (DeltaOptimizeOperator with purge=True), and drop it '
            "then"
        )
    removed = snapshot.state.tombstones
    with_vector = removed.filter(pc.is_valid(removed.column("deletion_vector"))).column("path")
    if pc.any(pc.is_in(files.column("path"), value_set=with_vector.combine_chunks())).as_py():
        return (
            "is in use: a live file was removed with a deletion vector before, and readers that do not know vectors "
            "would take it for removed. Try again after the retention of removed files, or purge the table by a Z-order"
        )
    return None


def _renamed(snapshot: Snapshot, schema: StructType) -> str | None:
    if has_own_names(schema, snapshot.metadata.configuration):
        return None
    other = [field.name for field in walk_fields(schema) if field.physical_name != field.name]
    what = f"the columns {other} have other names in them" if other else "they hold columns that were dropped"
    return f"is in use: every file would have to be rewritten, because {what}. delta-spark does that"


def _v2_checkpoints(snapshot: Snapshot, schema: StructType) -> str | None:
    # Of two checkpoints of one version delta-spark reads the V2 one, so no writer may write one of the latest version.
    if snapshot.table_properties.wants_v2_checkpoints:
        return 'is in use: set delta.checkpointPolicy to "classic" by an alteration of its own, and drop it then'
    return None


_TRACES: dict[str, Callable[[Snapshot, StructType], str | None]] = {
    "columnMapping": _renamed,
    "deletionVectors": _vectors,
    "v2Checkpoint": _v2_checkpoints,
}


def without_type_changes(schema: StructType) -> StructType:
    """Return the schema without the notes on types that its columns had before."""

    def plain(field: StructField) -> StructField:
        kept = {key: value for key, value in field.metadata.items() if key != TYPE_CHANGES_KEY}
        return field if len(kept) == len(field.metadata) else replace(field, metadata=kept)

    return with_fields(schema, plain)


def are_for_readers(leaving: Iterable[str], protocol: Protocol) -> bool:
    """Return whether a feature leaves that readers of earlier versions must know."""
    return not reader_features(protocol).isdisjoint(leaving)


def _constraints(configuration: Mapping[str, str]) -> list[str]:
    return [name.removeprefix(CONSTRAINT_PREFIX) for name in configuration if name.startswith(CONSTRAINT_PREFIX)]


def _domain_of(leaving: Collection[str]) -> str | None:
    """Return the domain that leaves with its feature."""
    return ROW_TRACKING_DOMAIN if "rowTracking" in leaving else None


def without_features(protocol: Protocol, leaving: Iterable[str], *, protects_history: bool) -> Protocol:
    """Return the protocol without these features, in its lowest form. `protects_history`: as in `Altered`."""
    left = (reader_features(protocol) | writer_features(protocol)) - frozenset(leaving)
    return protocol_with(left | {_PROTECTION} if protects_history else left)


def new_for_readers(before: Protocol, after: Protocol) -> list[str]:
    """Return the features that readers must know from now on and did not have to know before."""
    return sorted(reader_features(after) - reader_features(before))


def check_readers_allowed(features: list[str], table: str, *, is_allowed: bool) -> None:
    """Raise InvalidJobSpec if engines that read the table today may not read it any more, and is_allowed is False."""
    if features and not is_allowed:
        raise InvalidJobSpec(
            f"{table}: the alteration adds {', '.join(features)}, and engines that do not know that could not read the "
            f"table any more. {readers_text(features)} Nothing was changed. If every reader is among them, write "
            "allow_reader_upgrade=True.",
            argument="arguments.allow_reader_upgrade",
        )


def readers_text(features: Iterable[str]) -> str:
    """Return, in a sentence for each feature, which engines read it."""
    known = [(feature, READERS.get(feature.removesuffix("-preview"))) for feature in features]
    return " ".join(f"{feature} is read by {_engines(readers)}, or later." for feature, readers in known if readers)


def _engines(readers: Readers) -> str:
    found = [f"Delta Lake {readers.delta_lake}", f"Databricks Runtime {readers.databricks}"]
    return ", ".join([*found, f"deltalake {readers.deltalake}"] if readers.deltalake else found)


def _not_dropped(table: str, feature: str, what: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f'{table}: the feature "{feature}" {what}. Nothing was changed.',
        table=table,
        feature=feature,
        needed_to="drop",
    )
