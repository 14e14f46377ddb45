"""The table features that this engine honours, and the refusal of every other one by name.

The invariant: a table is readable or writable only if every feature that it *uses* is honoured. A feature that is only
listed, or implied by a legacy version number, and that nothing uses is accepted.
Source: protocol, "Table Features" and "Valid Feature Names in Table Features".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.column_mapping import MODE_PROPERTY, NO_MAPPING
from airflow_txlog.engine.table.schema.evolution import check_type_changes
from airflow_txlog.engine.table.schema.identities import is_identity
from airflow_txlog.engine.table.schema.rules import (
    CONSTRAINT_PREFIX,
    DEFAULT_KEY,
    GENERATION_KEY,
    INVARIANTS_KEY,
)
from airflow_txlog.engine.table.schema.types import (
    TYPE_CHANGES_KEY,
    DataType,
    Primitive,
    StructField,
    StructType,
    VariantType,
    parts_of,
    walk_fields,
    walk_types,
)
from airflow_txlog.errors import CorruptTable, UnsupportedFeature, WrongTableId
from airflow_txlog.storage.base import Store


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CATALOG_MANAGED = "catalogManaged"
READABLE = _names(
    "catalogManaged columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview v2Checkpoint "
    "vacuumProtocolCheck variantShredding variantShredding-preview variantType variantType-preview"
)

# Deletion vectors and V2 checkpoints are optional for a writer even if the table allows them. The jobs enforce the
# rules for rows (`rules`), because a commit handles files and reads no row.
WRITABLE = _names(
    "allowColumnDefaults appendOnly catalogManaged changeDataFeed checkConstraints checkpointProtection clustering "
    "columnMapping deletionVectors domainMetadata generatedColumns identityColumns inCommitTimestamp invariants "
    "materializePartitionColumns rowTracking timestampNtz typeWidening typeWidening-preview v2Checkpoint "
    "vacuumProtocolCheck variantShredding variantShredding-preview variantType variantType-preview"
)

# Writer features that bind a writer only if the metadata switches them on: see `features_in_use`.
WRITABLE_WHILE_UNUSED = _names("icebergCompatV1 icebergCompatV2")

HARMLESS_FEATURES = _names(
    "appendOnly columnMapping deletionVectors domainMetadata inCommitTimestamp timestampNtz v2Checkpoint "
    "vacuumProtocolCheck"
)
"""Features that another writer may add to the protocol while files and rows are staged: all of them stay valid, as
with `HARMLESS_PROPERTIES`. Source: soundness A18."""

# The features that legacy version numbers imply.
_LEGACY_READER = {2: ("columnMapping",)}
_LEGACY_WRITER = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
MAX_READER_VERSION = 3
UNITY_ID = "io.unitycatalog.tableId"
"""The property in which Unity Catalog records its id of a table that it manages."""
MAX_WRITER_VERSION = 7


def reader_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that a reader must honour, including those of legacy numbers."""
    if protocol.min_reader_version >= 3:
        return frozenset(protocol.reader_features or ())
    return _legacy(_LEGACY_READER, protocol.min_reader_version)


def writer_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that a writer must honour, including those of legacy numbers."""
    if protocol.min_writer_version >= 7:
        return frozenset(protocol.writer_features or ())
    # A feature of readers too is implied only if both numbers imply it: tables with identity columns have 1 and 6.
    # Source: delta-spark, Protocol.implicitlySupportedFeatures.
    implied = _legacy(_LEGACY_WRITER, protocol.min_writer_version)
    return implied - (READABLE - reader_features(protocol))


def _legacy(table: Mapping[int, tuple[str, ...]], version: int) -> frozenset[str]:
    return frozenset(name for number, names in table.items() if number <= version for name in names)


def check_readable(protocol: Protocol, metadata: Metadata, schema: StructType, table: str) -> None:
    """Raise UnsupportedFeature, naming the feature, if rows of this table could be read wrongly; or CorruptTable."""
    _check_readable(protocol, metadata, schema, table, features_in_use(schema, metadata.configuration))


def _check_readable(
    protocol: Protocol, metadata: Metadata, schema: StructType, table: str, active: frozenset[str]
) -> None:
    """Check as `check_readable` does; `active` are the features in use."""
    if protocol.min_reader_version > MAX_READER_VERSION:
        raise _refusal(table, f"reader version {protocol.min_reader_version}", "read")
    if metadata.format.provider.lower() != "parquet":
        raise _refusal(table, f"data format {metadata.format.provider}", "read")
    # A field or property that switches a reader feature on binds even if the protocol does not list it.
    for name in sorted(reader_features(protocol) | (active & _READ_ACTIVE)):
        if name in READABLE:
            continue
        raise _refusal(table, name, "read")
    if "columnMapping" in active and "columnMapping" not in reader_features(protocol):
        raise CorruptTable(
            f"{table}: {MODE_PROPERTY} is set, and the protocol does not list columnMapping. Some readers obey such a "
            "property and others do not, so nothing was read. Upgrade the protocol, or unset the property.",
            table=table,
        )
    check_type_changes(schema, table)


def check_writable(protocol: Protocol, metadata: Metadata, schema: StructType, table: str) -> None:
    """Raise UnsupportedFeature, naming the feature, if our commits could break a rule; not of data files."""
    active = features_in_use(schema, metadata.configuration)
    _check_readable(protocol, metadata, schema, table, active)
    if protocol.min_writer_version > MAX_WRITER_VERSION:
        raise _refusal(table, f"writer version {protocol.min_writer_version}", "write")
    for name in sorted(writer_features(protocol) | active):
        if name in WRITABLE or (name in WRITABLE_WHILE_UNUSED and name not in active):
            continue
        raise _refusal(table, name, "write")
    # The property alone makes no writer number rows; the protocol does.
    if "rowTracking" in active and "rowTracking" not in writer_features(protocol):
        raise _refusal(table, "rowTracking", "write")


def check_committer(protocol: Protocol, configuration: Mapping[str, str], store: Store) -> None:
    """Raise UnsupportedFeature unless the store asks the catalog exactly if the table is managed by one.

    Raises WrongTableId for a table of another id than the catalog's.
    """
    table = store.catalog_table
    is_managed = CATALOG_MANAGED in reader_features(protocol) | writer_features(protocol)
    if is_managed and table is None:
        raise UnsupportedFeature(
            f'{store.root} is managed by a catalog (feature "{CATALOG_MANAGED}"): its path alone shows neither its '
            'latest version nor where to commit. Nothing was read or staged. Name the table, as table="catalog.schema.'
            'table" with a catalog_conn_id (docs/tables-by-name.md).',
            table=store.root,
            feature=CATALOG_MANAGED,
            needed_to="read",
        )
    if table is None:
        return
    if not is_managed:
        raise UnsupportedFeature(
            f'{store.root}: the catalog manages {table.name}, and the log does not list the feature "{CATALOG_MANAGED}"'
            ": other writers would not ask the catalog. Nothing was read or staged.",
            table=store.root,
            feature=CATALOG_MANAGED,
            needed_to="read",
        )
    found = configuration.get(UNITY_ID)
    if found != table.table_id:
        raise WrongTableId(
            f"The catalog has {table.name} at {store.root} with the id {table.table_id}, and the log there is of a "
            f"table with the id {found}. Nothing was read or written.",
            connection=table.catalog_conn_id,
            name=table.name,
            expected=table.table_id,
            found=found,
        )


def check_maintained_here(store: Store, what: str) -> None:
    """Raise UnsupportedFeature for maintenance of a table that a catalog manages: it alone may allow that.

    Source: protocol, "Maintenance Operations on Catalog-managed Tables".
    """
    if store.catalog_table is not None:
        raise UnsupportedFeature(
            f'{what} of {store.root} is refused: the table is managed by a catalog (feature "{CATALOG_MANAGED}"), '
            "which alone may allow that, and does the maintenance itself. Nothing was read or changed.",
            table=store.root,
            feature=CATALOG_MANAGED,
            needed_to=what,
        )


def check_rows_have_place(schema: StructType, partition_columns: Iterable[str], table: str) -> None:
    """Raise UnsupportedFeature for a column that files cannot hold: with void alone inside, its nulls are lost."""
    partitions = {name.lower() for name in partition_columns}
    in_files = [field for field in schema if field.name.lower() not in partitions]
    # A primitive type has nothing inside.
    nested = [field for field in in_files if not isinstance(field.type, Primitive)]
    found = next((path for field in nested if (path := _without_place(field.type, field.name))), None)
    if found is None and in_files and all(field.type is Primitive.VOID for field in in_files):
        found = in_files[0].name
    if found is not None:
        raise UnsupportedFeature(
            f"{table}: column {found!r} holds nothing but void, which no data file can store, so rows cannot be "
            "written to this table. Nothing was staged. Give the column a type, or drop it.",
            table=table,
            feature="materializedVoidType",
            needed_to="write",
        )


def _without_place(data_type: DataType, column: str) -> str | None:
    """Return the path of the first array, map or struct with void where something must be stored, or None."""
    parts = parts_of(data_type)
    voids = [kind is Primitive.VOID for _, kind in parts]
    if all(voids) if isinstance(data_type, StructType) else any(voids):
        return column
    return next((found for name, kind in parts if (found := _without_place(kind, f"{column}.{name}"))), None)


def check_protocol_writable(protocol: Protocol, table: str) -> None:
    """Raise UnsupportedFeature if the protocol alone demands more than this engine knows, whatever the metadata."""
    if protocol.min_reader_version > MAX_READER_VERSION:
        raise _refusal(table, f"reader version {protocol.min_reader_version}", "read")
    if protocol.min_writer_version > MAX_WRITER_VERSION:
        raise _refusal(table, f"writer version {protocol.min_writer_version}", "write")
    for name in sorted(reader_features(protocol) - READABLE):
        raise _refusal(table, name, "read")
    for name in sorted(writer_features(protocol) - WRITABLE - WRITABLE_WHILE_UNUSED):
        raise _refusal(table, name, "write")


def protocol_for(schema: StructType, properties: Mapping[str, str]) -> Protocol:
    """Return the lowest protocol that a new table needs: legacy numbers if they suffice, as every reader knows them."""
    needed = needed_features(schema, properties) - _OF_EVERY_TABLE
    both = needed & READABLE
    if needed <= {"columnMapping"}:
        return (
            Protocol(min_reader_version=2, min_writer_version=5)
            if both
            else Protocol(min_reader_version=1, min_writer_version=2)
        )
    return Protocol(
        min_reader_version=3 if both else 1,
        min_writer_version=7,
        reader_features=sorted(both) if both else None,
        writer_features=sorted(_OF_EVERY_TABLE | needed),
    )


def needed_features(schema: StructType, properties: Mapping[str, str]) -> frozenset[str]:
    """Return the features in use, those that `delta.feature.<name>` requests, and those that these depend on."""
    needed = features_in_use(schema, properties)
    needed |= {name.removeprefix(FEATURE_PREFIX) for name in properties if name.startswith(FEATURE_PREFIX)}
    needed |= {"domainMetadata"} if needed & NEED_DOMAINS else frozenset()
    return needed | {"variantType"} if "variantShredding" in needed else needed


def features_in_use(schema: StructType, properties: Mapping[str, str]) -> frozenset[str]:
    """Return the features that the schema or a property switches on, even if no protocol lists them."""
    found = {feature for (name, value), feature in SWITCHES.items() if properties.get(name, "").lower() == value}
    if any(name.startswith(CONSTRAINT_PREFIX) for name in properties):
        found.add("checkConstraints")
    if properties.get(MODE_PROPERTY, NO_MAPPING).lower() != NO_MAPPING:
        found.add("columnMapping")
    for field in walk_fields(schema):
        if field.metadata:
            found.update(_active_in_field(field))
    for kind in walk_types(schema):
        if kind is Primitive.TIMESTAMP_NTZ:
            found.add("timestampNtz")
        elif isinstance(kind, VariantType):
            found.add("variantType")
    # Without a variant column there is nothing to shred, and delta-spark lists no feature.
    return frozenset(found if "variantType" in found else found - {"variantShredding"})


def missing_features(protocol: Protocol, needed: Iterable[str]) -> list[str]:
    """Return the features, sorted, of which the protocol lists neither the name nor the preview."""
    has = reader_features(protocol) | writer_features(protocol)
    return sorted(name for name in needed if name not in has and f"{name}-preview" not in has)


def with_features(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """Return the protocol with these features added, in its lowest form."""
    return protocol_with(reader_features(protocol) | writer_features(protocol) | frozenset(features))


def protocol_with(features: frozenset[str]) -> Protocol:
    """Return the lowest protocol with exactly these features: legacy numbers if they imply no other ones.

    Source: delta-spark, Protocol.normalized.
    """
    both = features & READABLE
    reader_version = 3 if both - {"columnMapping"} else 1 + len(both)
    if reader_version < MAX_READER_VERSION:
        for number in range(1, MAX_WRITER_VERSION):
            legacy = Protocol(min_reader_version=reader_version, min_writer_version=number)
            if writer_features(legacy) == features:
                return legacy
    return Protocol(
        min_reader_version=reader_version,
        min_writer_version=MAX_WRITER_VERSION,
        reader_features=sorted(both) if reader_version == MAX_READER_VERSION else None,
        writer_features=sorted(features),
    )


# A property `delta.feature.<name>` requests a feature; it is not kept.
FEATURE_PREFIX = "delta.feature."
SHREDDING_PROPERTY = "delta.enableVariantShredding"
# The properties that switch features on, with their values.
SWITCHES = {
    ("delta.appendOnly", "true"): "appendOnly",
    ("delta.checkpointPolicy", "v2"): "v2Checkpoint",
    ("delta.enableChangeDataFeed", "true"): "changeDataFeed",
    ("delta.enableDeletionVectors", "true"): "deletionVectors",
    ("delta.enableIcebergCompatV1", "true"): "icebergCompatV1",
    ("delta.enableIcebergCompatV2", "true"): "icebergCompatV2",
    ("delta.enableIcebergCompatV3", "true"): "icebergCompatV3",
    ("delta.enableInCommitTimestamps", "true"): "inCommitTimestamp",
    ("delta.enableRowTracking", "true"): "rowTracking",
    ("delta.enableTypeWidening", "true"): "typeWidening",
    (SHREDDING_PROPERTY, "true"): "variantShredding",
}
NEED_DOMAINS = frozenset({"rowTracking", "clustering"})
# The lowest writer version of new tables implies these.
_OF_EVERY_TABLE = frozenset({"appendOnly", "invariants"})
# The features in use that bind readers.
_READ_ACTIVE = frozenset({"columnMapping", "typeWidening"})


def _active_in_field(field: StructField) -> Iterator[str]:
    names = field.metadata.keys()
    if INVARIANTS_KEY in names:
        yield "invariants"
    if GENERATION_KEY in names:
        yield "generatedColumns"
    if TYPE_CHANGES_KEY in names:
        yield "typeWidening"
    if is_identity(field):
        yield "identityColumns"
    if DEFAULT_KEY in names:
        yield "allowColumnDefaults"


def _refusal(table: str, feature: str, needed_to: str) -> UnsupportedFeature:
    honoured = sorted(READABLE if needed_to == "read" else WRITABLE)
    doing = {"read": "reading it", "write": "writing to it"}[needed_to]
    return UnsupportedFeature(
        f'{table} uses the feature "{feature}", which {doing} would have to honour; this engine honours {honoured}. '
        "Nothing was read or staged. Use an engine that knows the feature, or have one drop it from the table.",
        table=table,
        feature=feature,
        needed_to=needed_to,
    )
