"""The metadata of a table whose schema grows: what `table.schema.evolution` found, as one action to commit.

The invariant: ids and physical names of the columns that are there stay; new ones begin above the highest id that any
column ever had. Source: protocol, "Column Mapping", "Type Widening", "Table Features".
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.column_mapping import (
    MAX_ID_PROPERTY,
    NO_MAPPING,
    assign_new,
    forbidden_names,
    highest_id,
    mapping_mode,
)
from airflow_txlog.engine.table.schema.evolution import Evolution, evolved
from airflow_txlog.engine.table.schema.features import check_writable, reader_features
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import Primitive, StructType, walk_types
from airflow_txlog.errors import SchemaMismatch, UnsupportedFeature

WIDENING_PROPERTY = "delta.enableTypeWidening"
_WIDENING_FEATURES = frozenset({"typeWidening", "typeWidening-preview"})
# Columns of the change feed's own, which a table with the feed may not have. Source: protocol, "Change Data Files".
_FEED_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def evolve(
    metadata: Metadata,
    protocol: Protocol,
    rows: StructType,
    table: str,
    fixed: Collection[str],
    new_name: Callable[[int], str],
) -> tuple[Metadata, Evolution]:
    """The metadata under which the table takes rows of this schema, the same where it takes them already.

    Raises SchemaMismatch and UnsupportedFeature, naming the column or the feature, before anything is staged.
    """
    before = parse_schema(metadata.schema_string)
    may_widen = _may_widen(metadata, protocol)
    evolution = evolved(before, rows, may_widen=may_widen, fixed=[*fixed, *metadata.partition_columns])
    if evolution.changes_nothing:
        return metadata, evolution
    _check_names(metadata, evolution, table)
    schema, configuration = evolution.schema, dict(metadata.configuration)
    if Primitive.TIMESTAMP_NTZ in walk_types(schema) and "timestampNtz" not in reader_features(protocol):
        raise UnsupportedFeature(
            f"{table}: the new columns {list(evolution.added)} need the feature timestampNtz, which the table's "
            "protocol does not list. Cast them to TIMESTAMP, or add the feature to the table. Nothing was staged.",
            table=table,
            feature="timestampNtz",
            needed_to="write",
        )
    if mapping_mode(configuration, table) != NO_MAPPING:
        noted = configuration.get(MAX_ID_PROPERTY, "0")
        last = max(int(noted) if noted.isdecimal() else 0, highest_id(before))
        schema, last = assign_new(schema, last, new_name)
        configuration[MAX_ID_PROPERTY] = str(last)
    changed = msgspec.structs.replace(metadata, schema_string=schema_to_json(schema), configuration=configuration)
    check_writable(protocol, changed, schema, table)
    return changed, evolution


def _may_widen(metadata: Metadata, protocol: Protocol) -> bool:
    is_enabled = metadata.configuration.get(WIDENING_PROPERTY, "false").lower() == "true"
    return is_enabled and not _WIDENING_FEATURES.isdisjoint(reader_features(protocol))


def _check_names(metadata: Metadata, evolution: Evolution, table: str) -> None:
    wrong: list[str] = []
    if mapping_mode(metadata.configuration, table) == NO_MAPPING:
        wrong += forbidden_names(evolution.schema)
    if metadata.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true":
        wrong += [name for name in evolution.added if name.lower() in _FEED_COLUMNS]
    if wrong:
        raise SchemaMismatch(
            f"{table}: the table cannot have columns named {wrong}: a space, a tab, a line end, or one of ,;{{}}()= "
            "needs column mapping, and the names of the change feed are its own. Rename them in the source's SQL. "
            "Nothing was staged.",
            table=table,
            columns=wrong,
        )
