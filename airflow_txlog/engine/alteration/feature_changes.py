"""Table features that are added to a table and dropped from it, and the readers that a new one shuts out.

The invariant: a feature is dropped only if no trace of it can be met in the table or in its history by a reader that
does not know it. All others are refused by name.
Source: protocol, "Table Features", "Row Tracking", "In-Commit Timestamps"; delta-spark,
PreDowngradeTableFeatureCommand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN
from airflow_txlog.engine.commit.content.info import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION
from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS
from airflow_txlog.engine.log.actions import Protocol
from airflow_txlog.engine.table.predicate.names import did_you_mean
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY
from airflow_txlog.engine.table.schema.features import (
    NEED_DOMAINS,
    SWITCHES,
    WRITABLE,
    protocol_with,
    reader_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX
from airflow_txlog.errors import InvalidJobSpec, UnsupportedFeature

# The property that switches a feature on; the others need none, or a column or a constraint does it.
_SWITCHED_BY = {feature: switch for switch, feature in SWITCHES.items()} | {"columnMapping": (MODE_PROPERTY, "name")}
_ROW_TRACKING = ("delta.enableRowTracking", "delta.rowTrackingSuspended", *MATERIALIZED_COLUMNS)
_TIMESTAMPS = ("delta.enableInCommitTimestamps", ENABLEMENT_VERSION, ENABLEMENT_TIMESTAMP)
# The features that can be dropped, and the properties that go with them.
_DROPPABLE: dict[str, tuple[str, ...]] = {
    "checkConstraints": (),
    "inCommitTimestamp": _TIMESTAMPS,
    "rowTracking": _ROW_TRACKING,
    "domainMetadata": (),
    "materializePartitionColumns": (),
}
_WHY_NOT = {
    "columnMapping": "every file would have to be rewritten under the columns' names",
    "deletionVectors": "earlier versions keep their vectors, so checkpoints must protect them first; purge the vectors "
    "(DeltaOptimizeOperator with purge=True) and drop the feature with delta-spark",
    "typeWidening": "every file would have to be rewritten in the columns' present types",
    "vacuumProtocolCheck": "checkpoints must protect the versions that list it first; drop it with delta-spark",
    "v2Checkpoint": "a classic checkpoint must replace the present ones first; drop it with delta-spark",
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
    "vacuumProtocolCheck": Readers(delta_lake="3.0", databricks="13.3 LTS", deltalake=""),
}
"""The engines that docs/bring-your-tables.md lists, from the compatibility tables of Delta Lake and Databricks."""


def feature_named(name: str, table: str) -> str:
    """Return the feature's name as the protocol spells it. Raises UnsupportedFeature for one that we cannot write."""
    known = {each.lower(): each for each in WRITABLE}
    found = known.get(name.lower())
    if found is None:
        raise UnsupportedFeature(
            f'{table}: the feature "{name}" cannot be added: this engine could not write the table afterwards.'
            f"{did_you_mean(name, WRITABLE)} It adds {sorted(WRITABLE)}. Nothing was changed.",
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
        if feature not in _DROPPABLE:
            why = _WHY_NOT.get(feature.removesuffix("-preview"), "the protocol has no steps for that")
            raise _not_dropped(table, feature, f"cannot be dropped here: {why}. Droppable: {sorted(_DROPPABLE)}")
        leaving.append(feature)
    for feature, users in (
        ("checkConstraints", {f"the constraint {name}" for name in _constraints(configuration)}),
        ("domainMetadata", {f"the domain {name}" for name in domains if name != _domain_of(leaving)}),
        ("domainMetadata", set(listed.values()) & NEED_DOMAINS - set(leaving)),
    ):
        if feature in leaving and users:
            raise _not_dropped(table, feature, f"is in use: {', '.join(sorted(users))}. Drop that too")
    gone = {name for feature in leaving for name in _DROPPABLE[feature]}
    return leaving, {name: value for name, value in configuration.items() if name not in gone}


def _constraints(configuration: Mapping[str, str]) -> list[str]:
    return [name.removeprefix(CONSTRAINT_PREFIX) for name in configuration if name.startswith(CONSTRAINT_PREFIX)]


def _domain_of(leaving: Collection[str]) -> str | None:
    """Return the domain that leaves with its feature."""
    return ROW_TRACKING_DOMAIN if "rowTracking" in leaving else None


def without_features(protocol: Protocol, leaving: Iterable[str]) -> Protocol:
    """Return the protocol without these features, in its lowest form."""
    gone = frozenset(leaving)
    return protocol_with((reader_features(protocol) | writer_features(protocol)) - gone)


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
