"""One alteration of a table: its new metadata, protocol, domains and files, and the rules that its rows must keep.

All arguments apply in one commit, in the order of the fields of `Alteration`: a step finds the columns as the steps
before it leave them. Nothing is read or written here. The invariant: one commit holds the whole result, so a
table never has a feature without the actions that the protocol requires for it.
Source: protocol, "Table Features", "Column Mapping", "Row Tracking", "Clustered Table"; delta-spark,
alterDeltaTableCommands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow.compute as pc

from airflow_txlog.engine.alteration.column_changes import Columns, NewColumn, Uses, invariant_name
from airflow_txlog.engine.alteration.feature_changes import (
    PROTECTED_BEFORE,
    are_for_readers,
    check_readers_allowed,
    check_traces,
    dropped,
    feature_named,
    new_for_readers,
    switches_of,
    without_features,
    without_type_changes,
)
from airflow_txlog.engine.alteration.property_changes import changed_properties
from airflow_txlog.engine.commit.content.attempt import ROW_TRACKING_DOMAIN
from airflow_txlog.engine.commit.content.clustering import (
    check_statistics,
    chosen_columns,
    clustering_columns,
    clustering_domain,
)
from airflow_txlog.engine.commit.content.metadata import WIDENING_PROPERTY, completed
from airflow_txlog.engine.commit.content.row_tracking import materialized_columns
from airflow_txlog.engine.log.actions import Add, DomainMetadata, Metadata, Protocol
from airflow_txlog.engine.log.columns import table_to_adds
from airflow_txlog.engine.table.schema.column_mapping import (
    MAX_ID_PROPERTY,
    MODE_PROPERTY,
    NO_MAPPING,
    assign_existing,
    assign_new,
    forbidden_names,
    highest_id,
    mapping_mode,
    table_schema,
    without_mapping,
)
from airflow_txlog.engine.table.schema.features import FEATURE_PREFIX, features_in_use, needed_features
from airflow_txlog.engine.table.schema.identities import with_mark_past
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX, GENERATION_KEY, INVARIANTS_KEY, invariant_of
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import Path, StructType, is_below, path_text
from airflow_txlog.engine.table.snapshot.snapshot import Snapshot
from airflow_txlog.errors import InvalidProperty, SchemaMismatch, UnsupportedFeature

_STATS_COLUMNS = "delta.dataSkippingStatsColumns"
_SEVERAL = "ALTER TABLE"
# delta-spark's word for an alteration of one kind.
_WORDS = {
    "drop_constraints": "DROP CONSTRAINT",
    "unset_properties": "UNSET TBLPROPERTIES",
    "set_properties": "SET TBLPROPERTIES",
    "add_features": "ADD FEATURE",
    "drop_columns": "DROP COLUMNS",
    "rename_columns": "RENAME COLUMN",
    "add_columns": "ADD COLUMNS",
    "change_types": "CHANGE COLUMNS",
    "set_comments": "CHANGE COLUMNS",
    "drop_not_null": "CHANGE COLUMNS",
    "set_not_null": "CHANGE COLUMNS",
    "add_constraints": "ADD CONSTRAINT",
    "sync_identity": "CHANGE COLUMN",
    "cluster_by": "CLUSTER BY",
    "drop_features": "DROP FEATURE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """The changes, in the order in which they are made. Columns are named by their paths (`column_changes`).

    An empty `cluster_by` ends the clustering; None keeps it.
    """

    drop_constraints: Sequence[str] = ()
    unset_properties: Sequence[str] = ()
    set_properties: Mapping[str, str] = field(default_factory=dict)
    add_features: Sequence[str] = ()
    drop_columns: Sequence[str] = ()
    rename_columns: Mapping[str, str] = field(default_factory=dict)
    add_columns: Mapping[str, NewColumn] = field(default_factory=dict)
    change_types: Mapping[str, str] = field(default_factory=dict)
    set_comments: Mapping[str, str | None] = field(default_factory=dict)
    drop_not_null: Sequence[str] = ()
    set_not_null: Sequence[str] = ()
    add_constraints: Mapping[str, str] = field(default_factory=dict)
    sync_identity: Sequence[str] = ()
    cluster_by: Sequence[str] | None = None
    drop_features: Sequence[str] = ()
    allow_reader_upgrade: bool = False

    def given(self) -> dict[str, Any]:
        """Return the fields that change something, in order."""
        values = {name: getattr(self, name) for name in _WORDS}
        return {name: value for name, value in values.items() if value or (name == "cluster_by" and value is not None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The content of an alteration's commit, and the rules that the table's rows must keep before it.

    `adds` are live files again, with other row ids. `constraints` and `not_null` (paths) are new rules for rows, which
    are read under the metadata `of_rows`: without new NOT NULL. `to_sync`: identity columns whose marks must pass the
    values of all rows before the commit (`synced`). `new_for_readers`: features that readers must know from
    now on. `protects_history`: a classic checkpoint of the version before must exist, which shuts older readers out of
    the versions before it, and the commit must be the next version. `needs_present_types`: no live file may hold a
    former type of a column.
    """

    operation: str
    parameters: Mapping[str, Any]
    metadata: Metadata
    of_rows: Metadata
    protocol: Protocol
    domains: tuple[DomainMetadata, ...]
    adds: tuple[Add, ...]
    constraints: Mapping[str, str]
    not_null: tuple[Path, ...]
    to_sync: tuple[str, ...]
    new_for_readers: tuple[str, ...]
    protects_history: bool
    needs_present_types: bool
    changes_nothing: bool

    def synced(self, furthest: Mapping[str, int]) -> Altered:
        """Return the alteration with marks past these values, the furthest of the table's rows by column."""
        schema = parse_schema(self.metadata.schema_string)
        after = StructType(tuple(with_mark_past(member, furthest.get(member.name)) for member in schema))
        if after == schema:
            return self
        metadata = msgspec.structs.replace(self.metadata, schema_string=schema_to_json(after))
        return replace(self, metadata=metadata, changes_nothing=False)


def altered(snapshot: Snapshot, alteration: Alteration, unique_id: Callable[[], str]) -> Altered:
    """Return the table's state after the alteration. Nothing is written.

    Raises InvalidProperty, SchemaMismatch, PartitionMismatch or UnsupportedFeature for a change that the table does not
    allow, and InvalidJobSpec if readers would be shut out and `allow_reader_upgrade` is not set.
    """
    work = _Alteration(snapshot, alteration, unique_id)
    work.change_properties()
    work.change_columns()
    work.change_rules()
    work.change_clustering()
    return work.result()


class _Alteration:
    """One alteration, step after step."""

    def __init__(self, snapshot: Snapshot, asked: Alteration, unique_id: Callable[[], str]) -> None:
        self._snapshot, self._asked, self._unique_id = snapshot, asked, unique_id
        # A property that is removed counts as false.
        self._given = {name.lower(): "false" for name in asked.unset_properties}
        self._given |= {name.lower(): value.lower() for name, value in asked.set_properties.items()}
        self._table = snapshot.uri
        self._before = snapshot.metadata
        self._configuration = dict(self._before.configuration)
        self._schema = table_schema(self._before, self._table)
        self._partition_columns = list(self._before.partition_columns)
        self._comment = self._before.description
        self._live_domains = {d.domain: d for d in snapshot.state.domains.values() if not d.removed}
        self._domains: list[DomainMetadata] = []
        self._constraints: dict[str, str] = {}
        self._schema_of_rows = self._schema
        self._not_null: tuple[Path, ...] = ()
        self._to_sync: tuple[str, ...] = ()

    # --- steps ------------------------------------------------------------------------------------------------------

    def change_properties(self) -> None:
        """Drop constraints, set and unset properties, switch features on, and map columns by name if that is needed."""
        asked = self._asked
        for name in asked.drop_constraints:
            held = self._configuration.pop(self._constraint(name), None)
            if held is None:
                known = [key.removeprefix(CONSTRAINT_PREFIX) for key in self._configuration if _is_constraint(key)]
                raise self._error(InvalidProperty, f"there is no constraint {name!r}: the table has {known}", name=name)
        features = [feature_named(name, self._table) for name in asked.add_features]
        in_use = features_in_use(self._schema, self._configuration)
        switches = switches_of(feature for feature in features if feature not in in_use)
        for name, value in switches.items():
            self._check_agrees("add_features", name, value)
        to_set = {name: value for name, value in switches.items() if name.lower() not in self._given}
        changes = changed_properties(
            self._configuration, {**asked.set_properties, **to_set}, asked.unset_properties, self._table
        )
        self._configuration = changes.configuration
        if changes.comment is not None:
            self._comment = changes.comment or None
        for name in [*features, *(feature_named(name, self._table) for name in changes.features)]:
            self._need(name)
        if (asked.drop_columns or asked.rename_columns) and self._mode == NO_MAPPING:
            argument = "drop_columns" if asked.drop_columns else "rename_columns"
            self._check_agrees(argument, MODE_PROPERTY, "name")
            self._configuration[MODE_PROPERTY] = "name"
        if self._mode != NO_MAPPING and mapping_mode(self._before.configuration, self._table) == NO_MAPPING:
            self._schema, last = assign_existing(self._schema)
            # A mapping that was removed has left the highest id of its time.
            self._configuration[MAX_ID_PROPERTY] = str(max(last, self._highest_id))
        self._configuration |= materialized_columns(self._configuration, self._unique_id)

    def change_columns(self) -> None:
        """Drop, rename, add, widen and comment columns."""
        asked = self._asked
        columns = self._columns()
        gone = columns.drop(asked.drop_columns)
        moved = columns.rename(asked.rename_columns) if asked.rename_columns else {}
        self._rename_statistics(gone, moved)
        added = columns.add(asked.add_columns)
        if columns.change_types(asked.change_types):
            self._check_agrees("change_types", WIDENING_PROPERTY, "true")
            self._configuration[WIDENING_PROPERTY] = "true"
        columns.set_comments(asked.set_comments)
        if _STATS_COLUMNS.lower() in self._given:
            columns.check_there(TableProperties(self._configuration, self._table).stats_columns or ())
        self._take(columns)
        if self._mode != NO_MAPPING and added:
            last = max(self._highest_id, highest_id(self._schema))
            self._schema, last = assign_new(self._schema, last, lambda number: f"col-{self._unique_id()}")
            self._configuration[MAX_ID_PROPERTY] = str(last)
        forbidden = forbidden_names(self._schema) if added and self._mode == NO_MAPPING else []
        if forbidden:
            raise self._error(
                SchemaMismatch,
                f"the names {forbidden} hold a space, a tab, a line end or one of ,;{{}}()=, which only tables with "
                f'column mapping may have: set {MODE_PROPERTY} to "name" too, or choose others',
                columns=forbidden,
            )

    def change_rules(self) -> None:
        """Allow and forbid null, add constraints, and find the identity columns to synchronize."""
        columns = self._columns()
        columns.set_nullable(self._asked.drop_not_null, nullable=True)
        self._schema_of_rows = columns.schema
        not_null = columns.set_nullable(self._asked.set_not_null, nullable=False)
        self._take(columns)
        if not_null:
            self._need("invariants")
        self._not_null = tuple(not_null)
        self._to_sync = tuple(columns.check_identities(self._asked.sync_identity))
        for name, sql in self._asked.add_constraints.items():
            key = self._constraint(name)
            if key in self._configuration:
                raise self._error(
                    InvalidProperty, f"there is a constraint {name!r} already: drop it too, or choose a name", name=key
                )
            self._configuration[key] = self._constraints[key.removeprefix(CONSTRAINT_PREFIX)] = sql

    def change_clustering(self) -> None:
        """Cluster the table by other columns, or by none."""
        names = self._asked.cluster_by
        now = clustering_columns(self._live_domains.values(), self._table)
        if names is None:
            return
        wanted = chosen_columns(names, self._schema, self._partition_columns, self._table)
        if wanted == now:
            return
        self._need("clustering")
        self._domains.append(clustering_domain(wanted))

    def result(self) -> Altered:
        """Drop features, complete the protocol, and give live files the row ids that it requires."""
        snapshot, asked, before = self._snapshot, self._asked, self._before
        leaving, configuration = dropped(
            asked.drop_features, snapshot.protocol, self._configuration, self._live_domains.keys(), self._table
        )
        for name in self._configuration.keys() - configuration.keys():
            self._check_agrees("drop_features", name, "false")
        check_traces(leaving, snapshot, self._schema)
        if "columnMapping" in leaving:
            self._schema = without_mapping(self._schema)
        changed = self._schema
        if not {"typeWidening", "typeWidening-preview"}.isdisjoint(leaving):
            self._schema = without_type_changes(self._schema)
        protects_history = are_for_readers(leaving, snapshot.protocol)
        if protects_history:
            configuration[PROTECTED_BEFORE] = str(snapshot.version + 1)
        busy = needed_features(self._schema, configuration) & frozenset(leaving)
        if busy:
            raise self._error(
                UnsupportedFeature,
                f"the feature {min(busy)!r} cannot be dropped: this alteration, or a column, uses it",
                feature=min(busy),
                needed_to="drop",
            )
        schema_string = before.schema_string
        if self._schema != table_schema(before, self._table):
            schema_string = schema_to_json(self._schema)
        after = msgspec.structs.replace(
            before,
            configuration=configuration,
            schema_string=schema_string,
            partition_columns=self._partition_columns,
            description=self._comment,
        )
        after, protocol = completed(before, after, snapshot.protocol, self._table)
        if leaving:
            protocol = without_features(protocol, leaving, protects_history=protects_history)
        clustering = [*self._domains, *self._live_domains.values()]
        properties = TableProperties(after.configuration, self._table)
        check_statistics(clustering_columns(clustering, self._table), self._schema, properties)
        readers = new_for_readers(snapshot.protocol, protocol)
        check_readers_allowed(readers, self._table, is_allowed=asked.allow_reader_upgrade)
        adds, domains = self._files_again(after, leaving), tuple(self._domains)
        given = asked.given()
        words = {_WORDS[name] for name in given}
        return Altered(
            operation=words.pop() if len(words) == 1 else _SEVERAL,
            parameters=_parameters(given),
            metadata=after,
            of_rows=msgspec.structs.replace(after, schema_string=schema_to_json(self._schema_of_rows)),
            protocol=protocol,
            domains=domains,
            adds=adds,
            constraints=self._constraints,
            not_null=self._not_null,
            to_sync=self._to_sync,
            new_for_readers=tuple(readers),
            protects_history=protects_history,
            needs_present_types=self._schema != changed,
            changes_nothing=after == before and protocol == snapshot.protocol and not adds and not domains,
        )

    def _files_again(self, after: Metadata, leaving: Sequence[str]) -> tuple[Add, ...]:
        """Return the live files whose row ids the commit assigns or takes away."""
        files = self._snapshot.files()
        ids = files.column("base_row_id")
        if "rowTracking" in leaving:
            domain = self._live_domains.get(ROW_TRACKING_DOMAIN)
            if domain is not None:
                self._domains.append(msgspec.structs.replace(domain, removed=True))
            adds = table_to_adds(files.filter(pc.is_valid(ids)), data_change=False)
            gone = {"base_row_id": None, "default_row_commit_version": None}
            return tuple(msgspec.structs.replace(add, **gone) for add in adds)
        if TableProperties(after.configuration, self._table).row_tracking and ids.null_count:
            return tuple(table_to_adds(files.filter(pc.is_null(ids)), data_change=False))
        return ()

    # --- parts ------------------------------------------------------------------------------------------------------

    def _check_agrees(self, argument: str, name: str, value: str) -> None:
        """Raise InvalidProperty if the alteration gives a property another value than one of its arguments needs."""
        if self._given.get(name.lower(), value) != value:
            raise self._error(
                InvalidProperty,
                f"{argument} needs the property {name} to be {value}, and set_properties or unset_properties changes "
                "it otherwise",
                name=name,
            )

    @property
    def _mode(self) -> str:
        return mapping_mode(self._configuration, self._table)

    @property
    def _highest_id(self) -> int:
        noted = self._configuration.get(MAX_ID_PROPERTY, "0")
        return int(noted) if noted.isdecimal() else 0

    def _columns(self) -> Columns:
        rules = {
            f"the constraint {name.removeprefix(CONSTRAINT_PREFIX)!r}": sql
            for name, sql in self._configuration.items()
            if _is_constraint(name)
        }
        rules |= {
            f"the generated column {member.name!r}": str(member.metadata[GENERATION_KEY])
            for member in self._schema
            if GENERATION_KEY in member.metadata
        }
        rules |= {
            invariant_name(member.name): invariant_of(member, self._table)
            for member in self._schema
            if INVARIANTS_KEY in member.metadata
        }
        uses = Uses(
            partition_columns=self._partition_columns,
            clustering=clustering_columns(self._live_domains.values(), self._table),
            rules=rules,
        )
        return Columns(self._schema, uses, self._table)

    def _take(self, columns: Columns) -> None:
        self._schema, self._partition_columns = columns.schema, columns.partition_columns

    def _rename_statistics(self, gone: Sequence[Path], moved: Mapping[Path, Path]) -> None:
        """Rename and drop columns in the list of those that have statistics."""
        listed = TableProperties(self._configuration, self._table).stats_columns
        if listed is None:
            return
        kept: list[Path] = []
        for path in listed:
            if any(is_below(path, other) for other in gone):
                continue
            # The deepest one: its new path has the new names of the structs around it.
            above = max((other for other in moved if is_below(path, other)), key=len, default=())
            kept.append((*moved.get(above, ()), *path[len(above) :]))
        if kept != listed:
            self._configuration[_STATS_COLUMNS] = ",".join(map(path_text, kept))

    def _constraint(self, name: str) -> str:
        return f"{CONSTRAINT_PREFIX}{name.lower()}"

    def _need(self, feature: str) -> None:
        """Have the protocol list a feature (see `content.metadata.completed`)."""
        self._configuration[f"{FEATURE_PREFIX}{feature}"] = "supported"

    def _error(self, kind: Any, what: str, **facts: Any) -> Any:
        return kind(f"{self._table}: {what}. Nothing was changed.", table=self._table, **facts)


def _is_constraint(name: str) -> bool:
    return name.startswith(CONSTRAINT_PREFIX)


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operationParameters: properties as delta-spark has them, everything else by our own names."""
    names = {"set_properties": "properties"} if "unset_properties" not in given else {}
    names |= {"unset_properties": "properties"} if "set_properties" not in given else {}
    plain: dict[str, Any] = msgspec.to_builtins(given)
    return {names.get(name, name): value for name, value in plain.items()}
