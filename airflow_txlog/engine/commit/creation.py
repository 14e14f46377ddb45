"""A new table: its protocol and metadata, and the check for other files in its folder.

A VACUUM deletes every visible file of the folder that no commit names. So a table is not created in a folder with other
files, unless its creator allows it; then the property SHARED_FOLDER protects them from a VACUUM. The invariant: files
staged by an earlier try of the same creation do not count as other files, or no retry could succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa

from airflow_txlog.clock import Clock
from airflow_txlog.datafiles.staged_files import is_staged_name
from airflow_txlog.engine.commit.content.clustering import check_statistics, chosen_columns, clustering_domain
from airflow_txlog.engine.commit.content.metadata import check_reserved_names
from airflow_txlog.engine.commit.content.property_names import of_new_table
from airflow_txlog.engine.commit.content.row_tracking import materialized_columns
from airflow_txlog.engine.log.actions import DomainMetadata, Metadata, Protocol
from airflow_txlog.engine.log.paths import Visibility
from airflow_txlog.engine.table.schema.column_mapping import (
    MAX_ID_PROPERTY,
    MODE_PROPERTY,
    MODES,
    NO_MAPPING,
    assign,
    forbidden_names,
    without_mapping,
)
from airflow_txlog.engine.table.schema.features import (
    FEATURE_PREFIX,
    UNITY_ID,
    check_writable,
    protocol_for,
)
from airflow_txlog.engine.table.schema.properties import ORPHAN_RETENTION_MS, TableProperties
from airflow_txlog.engine.table.schema.schema import from_arrow, schema_to_json
from airflow_txlog.engine.table.schema.types import ArrayType, MapType, StructType
from airflow_txlog.errors import FolderNotEmpty, InvalidProperty, SchemaMismatch
from airflow_txlog.locations import PRIVATE_PREFIX, shown_path
from airflow_txlog.storage.base import Store

# A table that we create forgets the application transactions of tasks after a month: thirty mapped tasks an hour would
# otherwise leave a quarter of a million of them a year in every snapshot and checkpoint. Never set on a table of
# another creator: it could expire the id of a slow streaming sink.
CREATED_TABLE_PROPERTIES = {"delta.setTransactionRetentionDuration": "interval 30 days"}


def new_table(
    uri: str,
    schema: pa.Schema | StructType,
    partition_by: Sequence[str],
    properties: Mapping[str, str] | None,
    *,
    cluster_by: Sequence[str] = (),
    name: str | None,
    description: str | None,
    clock: Clock,
) -> tuple[Protocol, Metadata, list[DomainMetadata]]:
    """Return the lowest protocol that the table needs, its metadata and its domains.

    Raises SchemaMismatch for an empty schema or wrong columns to partition or cluster by, PartitionMismatch for both,
    InvalidProperty, UnsupportedFeature.
    """
    given = of_new_table({key: str(value) for key, value in (properties or {}).items()}, uri)
    # A catalog sets the retentions of its tables itself, and may refuse ours.
    asked = given if UNITY_ID in given else {**CREATED_TABLE_PROPERTIES, **given}
    if cluster_by:
        asked[f"{FEATURE_PREFIX}clustering"] = "supported"
    check_feature_properties(uri, asked)
    given_schema = schema if isinstance(schema, StructType) else from_arrow(schema)
    delta_schema, mapping = _mapped(uri, given_schema, asked, clock)
    configuration = {key: value for key, value in {**asked, **mapping}.items() if not key.startswith(FEATURE_PREFIX)}
    configuration |= materialized_columns(configuration, clock.unique_id)
    TableProperties(configuration, uri).validate()
    metadata = Metadata(
        id=clock.unique_id(),
        name=name,
        description=description,
        schema_string=schema_to_json(delta_schema),
        partition_columns=_partition_columns(uri, delta_schema, partition_by),
        configuration=configuration,
        created_time=clock.now_ms(),
    )
    protocol = protocol_for(delta_schema, asked)
    check_writable(protocol, metadata, delta_schema, uri)
    check_reserved_names(metadata, uri)
    if not cluster_by:
        return protocol, metadata, []
    clustering = chosen_columns(cluster_by, delta_schema, metadata.partition_columns, uri)
    check_statistics(clustering, delta_schema, TableProperties(configuration, uri))
    return protocol, metadata, [clustering_domain(clustering)]


def check_feature_properties(uri: str, properties: Mapping[str, str]) -> None:
    """Raise InvalidProperty for a property that requests a feature by another word than Delta's."""
    for name, value in properties.items():
        if name.startswith(FEATURE_PREFIX) and value.lower() not in ("supported", "enabled"):
            raise InvalidProperty(
                f"{uri}: the property {name} is {value!r}; it may be supported, or be left out.",
                table=uri,
                name=name,
                value=value,
            )


def _mapped(
    uri: str, schema: StructType, properties: Mapping[str, str], clock: Clock
) -> tuple[StructType, dict[str, str]]:
    """Return the schema, mapped if a property requires it, and the properties of the mapping.

    Raises InvalidProperty, SchemaMismatch.
    """
    mode = properties.get(MODE_PROPERTY, NO_MAPPING).lower()
    if mode not in MODES:
        raise InvalidProperty(
            f"{uri}: the property {MODE_PROPERTY} is {properties[MODE_PROPERTY]!r}; it may be {', '.join(MODES)}.",
            table=uri,
            name=MODE_PROPERTY,
            value=properties[MODE_PROPERTY],
        )
    if mode == NO_MAPPING:
        forbidden = forbidden_names(schema)
        if forbidden:
            raise SchemaMismatch(
                f"{uri}: the names {forbidden} hold a space, a tab, a line end or one of ,;{{}}()=, which only tables "
                f'with column mapping may have. Rename the columns, or set {MODE_PROPERTY} = "name".',
                table=uri,
                columns=forbidden,
            )
        return without_mapping(schema), {}
    mapped, last = assign(schema, lambda: f"col-{clock.unique_id()}")
    return mapped, {MODE_PROPERTY: mode, MAX_ID_PROPERTY: str(last)}


def _partition_columns(uri: str, schema: StructType, partition_by: Sequence[str]) -> list[str]:
    """Return the names in the schema's own case. Raises SchemaMismatch."""

    def refused(what: str, *columns: str) -> SchemaMismatch:
        return SchemaMismatch(f"{uri}{what}", table=uri, columns=list(columns))

    if not schema.fields:
        raise refused(": a table needs at least one column.")
    columns: list[str] = []
    for asked in partition_by:
        found = schema.find(asked)
        if found is None:
            raise refused(f" cannot be partitioned by {asked!r}: its columns are {schema.names}.", asked)
        if isinstance(found.type, StructType | ArrayType | MapType):
            what = f"a partition value must be a single value, and the column is {found.type}."
            raise refused(f" cannot be partitioned by {found.name!r}: {what}", asked)
        if found.name in columns:
            raise refused(f": {found.name!r} is named twice in partition_by.", asked)
        columns.append(found.name)
    if len(columns) == len(schema.fields):
        raise refused(" cannot be partitioned by every one of its columns: its files would hold none.", *columns)
    return columns


_EXAMPLES = 3


def holds_files_of_others(
    store: Store, partition_columns: Iterable[str], clock: Clock, *, allow_non_empty: bool
) -> bool:
    """Return whether the folder holds visible files that we have not staged. Raises FolderNotEmpty if it must not."""
    found = list(islice(_files_of_others(store, partition_columns, clock.now_ms()), _EXAMPLES + 1))
    if found and not allow_non_empty:
        more = ", …" if len(found) > _EXAMPLES else ""
        raise FolderNotEmpty(
            f"FolderNotEmpty: no table can be created at {store.root}: the folder holds files that belong to no table "
            f"({', '.join(found[:_EXAMPLES])}{more}), and a VACUUM of the new table would delete them. Nothing was "
            "staged. Choose an empty folder, or pass allow_non_empty=True to create the table next to them.",
            table=store.root,
            examples=found[:_EXAMPLES],
        )
    return bool(found)


def _files_of_others(store: Store, partition_columns: Iterable[str], now_ms: int) -> Iterator[str]:
    visibility = Visibility(partition_columns)
    unreadable: list[str] = []
    for info in store.walk(unreadable.append, lazily=True):
        # A try may stage files and die. Its retry follows within days; older files are orphans to any VACUUM, too.
        is_leftover = is_staged_name(info.path) and info.modified_ms > now_ms - ORPHAN_RETENTION_MS
        if visibility.is_visible(info.path) and not is_leftover and not info.path.startswith(PRIVATE_PREFIX):
            yield shown_path(info.path)
    yield from (f"{path}/" for path in unreadable if visibility.is_visible(path))
