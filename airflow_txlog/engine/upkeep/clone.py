"""CLONE: the content of a table's version, or of a staged state, becomes a separate table.

A shallow clone names the source's files by absolute URIs; a deep one has copies of them (`copied_files`). Either has
the source's schema, partitioning, properties, protocol and clustering columns, and a new identity: another table id,
row ids from zero on, other columns for the ids of moved rows. The invariant: a clone claims no work that it did not do.
The source's application transactions and domains of other owners, which note such work, stay with the source; and a
table that becomes a clone of another one loses its own domains with its rows. Watermarks of incremental consumers go
along: the rows that they describe do.
Source: delta-spark, CloneTableBase, DomainMetadataUtils.handleDomainMetadataForCloneTable; protocol, "Add File and
Remove File", "Deletion Vector Descriptor Schema".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.clock import Clock
from airflow_txlog.engine.commit.content.clustering import CLUSTERING_DOMAIN
from airflow_txlog.engine.commit.content.info import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION
from airflow_txlog.engine.commit.content.metadata import keep_furthest
from airflow_txlog.engine.commit.content.property_names import KEPT_BY_TABLE, of_new_table
from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS, materialized_columns
from airflow_txlog.engine.commit.content.watermarks import WATERMARKS
from airflow_txlog.engine.commit.creation import check_feature_properties
from airflow_txlog.engine.commit.transaction import Transaction
from airflow_txlog.engine.log.actions import Add, DomainMetadata, Metadata, Protocol
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.log.paths import absolute_path, canonical_path
from airflow_txlog.engine.log.vectors import absolute_vector, vector_file
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY, NO_MAPPING, table_schema
from airflow_txlog.engine.table.schema.features import (
    FEATURE_PREFIX,
    check_maintained_here,
    check_writable,
    missing_features,
    needed_features,
    reader_features,
    with_features,
    writer_features,
)
from airflow_txlog.engine.table.schema.properties import SHARED_FOLDER, TableProperties
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX
from airflow_txlog.engine.table.snapshot.files import action_keys, file_keys
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidProperty
from airflow_txlog.locations import Access, split
from airflow_txlog.storage.base import check_may_read

_IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
# Properties of a table's log, folder or catalog. A clone gets none of them from its source, and keeps those it has.
_OF_THE_TABLE = frozenset(
    {
        ENABLEMENT_VERSION,
        ENABLEMENT_TIMESTAMP,
        "delta.requireCheckpointProtectionBeforeVersion",
        SHARED_FOLDER,
        *MATERIALIZED_COLUMNS,
        "io.unitycatalog.tableId",
    }
)
_COORDINATED = "delta.coordinatedCommits."
# Domains of the protocol; all others note the work of their owners on a table.
_PROTOCOLS_DOMAINS = "delta."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloneable:
    """Everything that a clone takes from a table: of a version (`of`), or of a state that no commit has."""

    uri: str
    """The table's canonical URI, to which the files' paths are relative."""
    spelled: str
    """The same with the scheme by which readers of the clone are to find the files, such as `s3a:`."""
    protocol: Protocol
    metadata: Metadata
    files: pa.Table
    """The live files, with the schema FILES."""
    clustering: DomainMetadata | None = None
    watermarks: Mapping[str, DomainMetadata] = field(default_factory=dict)
    """The domains of incremental consumers, by name."""

    @classmethod
    def of(cls, snapshot: Snapshot, spelled: str | None = None) -> Cloneable:
        """Return the content of a version. `spelled` counts only if it has a scheme of another store than the disk.

        Raises UnsupportedFeature for a table that a catalog manages: only it knows how long the files stay.
        """
        check_maintained_here(snapshot.store, "CLONE")
        return cls(
            uri=snapshot.uri,
            spelled=spelled.rstrip("/") if spelled is not None and _is_remote(spelled) else snapshot.uri,
            protocol=snapshot.protocol,
            metadata=snapshot.metadata,
            files=snapshot.files(),
            clustering=snapshot.state.domains.get(CLUSTERING_DOMAIN),
            watermarks={name: each for name, each in snapshot.state.domains.items() if name.startswith(WATERMARKS)},
        )


def _is_remote(uri: str) -> bool:
    return split(uri).scheme not in (None, "file")


def definition_of_clone(
    source: Cloneable, target: Snapshot | None, properties: Mapping[str, str], uri: str, clock: Clock
) -> tuple[Protocol, Metadata]:
    """Return the protocol and the metadata of the clone at `uri`, which is a table already if there is a `target`.

    `properties` replace those of the source. A table that exists keeps its id, its name and its counters, and every
    feature that it has. Raises InvalidProperty for a property that its rows or files would not fit, UnsupportedFeature
    if this engine cannot write such a table.
    """
    given = source.metadata.configuration
    properties = _given_properties(properties, given, uri)
    kept = {} if target is None else _kept(target)
    inherited = {
        name: value for name, value in given.items() if name not in _OF_THE_TABLE and not name.startswith(_COORDINATED)
    }
    own = {name: value for name, value in properties.items() if not name.startswith(FEATURE_PREFIX)}
    configuration = {**inherited, **own, **kept}
    protocol = _protocol(source, target, {**properties, **configuration}, uri)
    if "rowTracking" in writer_features(protocol):
        configuration |= materialized_columns(configuration, clock.unique_id)
    before = None if target is None else target.metadata
    metadata = msgspec.structs.replace(
        source.metadata,
        id=clock.unique_id() if before is None else before.id,
        name=None if before is None else before.name,
        description=None if before is None else before.description,
        created_time=clock.now_ms() if before is None else before.created_time,
        configuration=configuration,
    )
    if before is not None:
        metadata = keep_furthest(before, metadata, uri)
        if metadata.configuration == before.configuration:
            # Order means nothing in a map, so an unchanged map must not look changed.
            metadata = msgspec.structs.replace(metadata, configuration=before.configuration)
    TableProperties(metadata.configuration, uri).validate()
    check_writable(protocol, metadata, table_schema(metadata, uri), uri)
    return protocol, metadata


def _kept(target: Snapshot) -> dict[str, str]:
    """Return the properties of a table that it keeps as a clone: its times, once in commits, stay there."""
    names = {*_OF_THE_TABLE}
    if target.table_properties.in_commit_timestamps:
        names.add(_IN_COMMIT_TIMESTAMPS)
    found = target.metadata.configuration
    return {name: value for name, value in found.items() if name in names or name.startswith(_COORDINATED)}


def _protocol(source: Cloneable, target: Snapshot | None, properties: Mapping[str, str], uri: str) -> Protocol:
    """Return the source's protocol with the features that these properties need; never fewer than the table has."""
    needed = needed_features(table_schema(source.metadata, uri), properties)
    if target is None:
        protocol = source.protocol
    else:
        protocol = target.protocol
        needed |= reader_features(source.protocol) | writer_features(source.protocol)
    missing = missing_features(protocol, needed)
    return with_features(protocol, missing) if missing else protocol


def _given_properties(given: Mapping[str, str], source: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the given properties as Delta spells them. Raises InvalidProperty for one that no clone may differ in."""
    properties = of_new_table(given, uri)
    check_feature_properties(uri, properties)
    for name, value in properties.items():
        if value == source.get(name, NO_MAPPING if name == MODE_PROPERTY else None):
            continue
        if name.lower().startswith(CONSTRAINT_PREFIX):
            why = "the source's rows were not compared with it. Add it to the clone afterwards"
        elif name == MODE_PROPERTY:
            why = "the files have the source's columns. Set it on the clone afterwards"
        elif name in KEPT_BY_TABLE:
            why = f"each table keeps it by itself. Leave it out; {KEPT_BY_TABLE[name]}"
        else:
            continue
        raise InvalidProperty(
            f"{uri} cannot be a clone with the property {name}: {why}. Nothing was committed.",
            table=uri,
            name=name,
            value=value,
        )
    return properties


def give_domains(tx: Transaction, source: Cloneable) -> list[str]:
    """Let the transaction set the source's clustering and watermarks, and drop all other domains of their owners.

    Return the names of the domains that go.
    """
    have = {} if tx.snapshot is None else tx.snapshot.state.domains
    clustered, wanted = have.get(CLUSTERING_DOMAIN), source.clustering
    if wanted is not None and (clustered is None or clustered.configuration != wanted.configuration):
        tx.set_domain(CLUSTERING_DOMAIN, wanted.configuration)
    elif wanted is None and clustered is not None:
        tx.set_domain(CLUSTERING_DOMAIN, clustered.configuration, removed=True)
    for name, mark in sorted(source.watermarks.items()):
        if name not in have or have[name].configuration != mark.configuration:
            tx.set_domain(name, mark.configuration)
    dropped = sorted(name for name in have if not name.startswith(_PROTOCOLS_DOMAINS) and name not in source.watermarks)
    for name in dropped:
        tx.set_domain(name, have[name].configuration, removed=True)
    return dropped


def shallow_adds(source: Cloneable, access: Access) -> list[Add]:
    """Return the files as a shallow clone names them, in order: by absolute URIs, their deletion vectors too.

    Raises OutsideTable for a file that a reader of the source may not open: a reader of the clone would open it.
    """
    return [_elsewhere(source, add, access) for add in map(as_new, table_to_adds(source.files, data_change=True))]


def _elsewhere(source: Cloneable, add: Add, access: Access) -> Add:
    # A file that is outside of the source, too, keeps its spelling.
    path, vector = add.path, add.deletion_vector
    canonical = canonical_path(path, source.uri)
    check_may_read(source.uri, canonical, access)
    if split(path).scheme is None:
        path = absolute_path(canonical, source.spelled)
    if vector is not None:
        place = vector_file(vector.storage_type, vector.path_or_inline_dv, source.uri)
        if place is not None:
            check_may_read(source.uri, place, access)
        if vector.storage_type != "p" or split(vector.path_or_inline_dv).scheme is None:
            vector = absolute_vector(vector, source.uri, source.spelled)
    return msgspec.structs.replace(add, path=path, deletion_vector=vector)


def as_new(add: Add) -> Add:
    """Return a file of another table as one that comes into this one: the commit numbers its rows."""
    return msgspec.structs.replace(add, base_row_id=None, default_row_commit_version=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The changes that make a table's files those of a clone. `renumbered`: files that stay and get row ids."""

    coming: Sequence[Add]
    going: pa.Table
    renumbered: Sequence[Add] = ()


def difference(wanted: Iterable[Add], live: pa.Table, protocol: Protocol, root: str) -> Difference:
    """Return which of the files come, and which live ones (rows of FILES) go; a file with another vector is another."""
    adds = list(wanted)
    if not live.num_rows:
        return Difference(coming=adds, going=live)
    live_keys, keys = file_keys(live, root), action_keys(adds, root)
    have = set(live_keys.to_pylist())
    is_kept = pc.is_in(live_keys, value_set=pa.array(keys, pa.string()))
    renumbered: Sequence[Add] = ()
    if "rowTracking" in writer_features(protocol):
        unnumbered = pc.and_(is_kept, pc.is_null(live.column("base_row_id").combine_chunks()))
        renumbered = table_to_adds(live.filter(unnumbered), data_change=False)
    return Difference(
        coming=[add for add, key in zip(adds, keys, strict=True) if key not in have],
        going=live.filter(pc.invert(is_kept)),
        renumbered=renumbered,
    )
