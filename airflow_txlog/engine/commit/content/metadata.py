"""New metadata of an existing table: added columns, properties with their features, new rules for rows.

Three invariants. Columns keep their ids and physical names, and new ones begin above the highest id that any column
ever had. A commit that sets a property also adds the feature that it needs. Marks that may only grow never move back,
so no id or number is assigned twice (soundness A24). This module reads no row, so a rule for existing rows is refused
unless the caller has verified it.
Source: protocol, "Column Mapping", "Type Widening", "Table Features", "CHECK Constraints", "Identity Columns",
"Checkpoint Protection", "Change Data Files"; delta-spark, ALTER TABLE SET TBLPROPERTIES and
IdentityColumn.copySchemaWithMergedHighWaterMarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from airflow_txlog.engine.commit.content.row_tracking import MATERIALIZED_COLUMNS
from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.column_mapping import (
    MAX_ID_PROPERTY,
    NO_MAPPING,
    assign_new,
    forbidden_names,
    highest_id,
    mapping_mode,
    table_schema,
)
from airflow_txlog.engine.table.schema.evolution import Evolution, evolved, is_widening
from airflow_txlog.engine.table.schema.features import (
    FEATURE_PREFIX,
    check_writable,
    features_in_use,
    missing_features,
    needed_features,
    reader_features,
    with_features,
)
from airflow_txlog.engine.table.schema.identities import MARK_KEY, number_of, with_mark_past
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX, RULE_KEYS
from airflow_txlog.engine.table.schema.schema import parse_schema, schema_to_json
from airflow_txlog.engine.table.schema.types import (
    ArrayType,
    DataType,
    MapType,
    Primitive,
    StructType,
)
from airflow_txlog.errors import InvalidCommit, SchemaMismatch, UnsupportedFeature

Path = tuple[str, ...]
Rules = Mapping[str, object]

WIDENING_PROPERTY = "delta.enableTypeWidening"
_WIDENING_FEATURES = frozenset({"typeWidening", "typeWidening-preview"})
# Features that come with a type, and the type that needs none.
_OF_TYPES = {"timestampNtz": "TIMESTAMP", "variantType": "STRING"}
# The columns that the change feed adds, which a table with the feed may not have.
RESERVED_NAMES = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def evolve(
    metadata: Metadata,
    protocol: Protocol,
    rows: StructType,
    table: str,
    fixed: Collection[str],
    new_name: Callable[[int], str],
) -> tuple[Metadata, Evolution]:
    """Return the metadata with which the table accepts such rows. Raises SchemaMismatch, UnsupportedFeature."""
    before = parse_schema(metadata.schema_string)
    may_widen = _is_on(metadata, WIDENING_PROPERTY) and not _WIDENING_FEATURES.isdisjoint(reader_features(protocol))
    evolution = evolved(before, rows, may_widen=may_widen, fixed=[*fixed, *metadata.partition_columns])
    if evolution.changes_nothing:
        return metadata, evolution
    _check_names(metadata, evolution, table)
    schema, configuration = evolution.schema, dict(metadata.configuration)
    lacking = missing_features(protocol, features_in_use(schema, {}) & _OF_TYPES.keys())
    if lacking:
        raise UnsupportedFeature(
            f"{table}: the new columns {list(evolution.added)} need the feature {lacking[0]}, which the table's "
            f"protocol does not list. Cast them to {_OF_TYPES[lacking[0]]}, or add the feature to the table. Nothing "
            "was staged.",
            table=table,
            feature=lacking[0],
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


def _is_on(metadata: Metadata, name: str) -> bool:
    return metadata.configuration.get(name, "false").lower() == "true"


def _check_names(metadata: Metadata, evolution: Evolution, table: str) -> None:
    wrong: list[str] = []
    if mapping_mode(metadata.configuration, table) == NO_MAPPING:
        wrong += forbidden_names(evolution.schema)
    if _is_on(metadata, "delta.enableChangeDataFeed"):
        wrong += [name for name in evolution.added if name.lower() in RESERVED_NAMES]
    if wrong:
        raise SchemaMismatch(
            f"{table}: the table cannot have columns named {wrong}: a space, a tab, a line end, or one of ,;{{}}()= "
            "needs column mapping, and the names of the change feed are its own. Rename them in the source's SQL. "
            "Nothing was staged.",
            table=table,
            columns=wrong,
        )


def completed(before: Metadata, after: Metadata, protocol: Protocol, table: str) -> tuple[Metadata, Protocol]:
    """Return the new metadata as it is kept, and the protocol with every feature that it switches on.

    A property that another writer left without its feature stays as it is. Raises InvalidProperty, UnsupportedFeature.
    """
    changed = dict(after.configuration.items() - before.configuration.items())
    TableProperties(changed, table).validate()
    schema = parse_schema(after.schema_string)
    in_use = needed_features(parse_schema(before.schema_string), before.configuration)
    missing = missing_features(protocol, needed_features(schema, after.configuration) - in_use)
    kept = {name: value for name, value in after.configuration.items() if not name.startswith(FEATURE_PREFIX)}
    if len(kept) < len(after.configuration):
        after = msgspec.structs.replace(after, configuration=kept)
    if missing:
        protocol = with_features(protocol, missing)
    if missing or changed:
        check_writable(protocol, after, schema, table)
    return after, protocol


def new_rules(before: Metadata, after: Metadata) -> list[str]:
    """Return, in words, the new rules for rows: constraints, rules of columns, and types that hold fewer values."""
    found = [
        f"the constraint {name.removeprefix(CONSTRAINT_PREFIX)!r}"
        for name, sql in sorted(after.configuration.items())
        if name.startswith(CONSTRAINT_PREFIX) and before.configuration.get(name) != sql
    ]
    old = {path: (kind, rules) for path, kind, rules in _parts(parse_schema(before.schema_string))}
    new = list(_parts(parse_schema(after.schema_string)))
    found += [rule for path, kind, _ in new if path in old for rule in _stricter(old[path][0], kind, path)]
    for path, _, rules in new:
        known = old[path][1] if path in old else {}
        found += [f"{rule} of column {'.'.join(path)!r}" for rule, text in rules.items() if known.get(rule) != text]
    return found


def check_rows_are_none(rules: Sequence[str], num_files: int, table: str) -> None:
    """Raise InvalidCommit if files stay live whose rows nothing has compared with the new rules."""
    if num_files > 0:
        raise InvalidCommit(
            f"{table}: the new metadata adds {', '.join(rules)}, and rows of the table may break it: nothing has "
            f"compared them (live files: {num_files}). Nothing was committed. Set it on an empty table, or read the "
            "whole table, verify its rows and pass is_checked=True.",
            table=table,
        )


def _parts(kind: DataType, path: Path = (), rules: Rules | None = None) -> Iterator[tuple[Path, DataType, Rules]]:
    """Yield the types at every depth by the physical names of their paths; members with NOT NULL and `RULE_KEYS`."""
    yield path, kind, rules or {}
    if isinstance(kind, StructType):
        for member in kind:
            own = {key: member.metadata[key] for key in RULE_KEYS if key in member.metadata}
            rules = own if member.nullable else {"NOT NULL": True, **own}
            yield from _parts(member.type, (*path, member.physical_name), rules)
    elif isinstance(kind, ArrayType):
        yield from _parts(kind.element, (*path, "element"))
    elif isinstance(kind, MapType):
        yield from _parts(kind.key, (*path, "key"))
        yield from _parts(kind.value, (*path, "value"))


def _stricter(old: DataType, new: DataType, path: Path) -> Iterator[str]:
    """Yield, in words, the rules of a type, without the types inside, that values of the old type may break."""
    match old, new:
        case (StructType(), StructType()):
            pass
        case (ArrayType(contains_null=had_null), ArrayType(contains_null=has_null)):
            if had_null and not has_null:
                yield f"NOT NULL of column {'.'.join((*path, 'element'))!r}"
        case (MapType(value_contains_null=had_null), MapType(value_contains_null=has_null)):
            if had_null and not has_null:
                yield f"NOT NULL of column {'.'.join((*path, 'value'))!r}"
        case _:
            if old not in (new, Primitive.VOID) and not is_widening(old, new):
                yield f"the type {new} of column {'.'.join(path)!r}"


def check_reserved_names(metadata: Metadata | None, table: str) -> None:
    """Raise SchemaMismatch if new metadata has a column with a name of the change feed or of row tracking, if on."""
    if metadata is None:
        return
    properties, names = TableProperties(metadata.configuration, table), parse_schema(metadata.schema_string or "").names
    # Files in which rows keep their ids have these columns.
    of_ids = {metadata.configuration.get(name, "").lower() for name in MATERIALIZED_COLUMNS}
    taken = [name for name in names if name.lower() in of_ids] if properties.row_tracking else []
    if taken:
        raise SchemaMismatch(
            f"{table}: the columns {taken} have names under which files of this table keep the ids of row tracking. "
            "Rename the columns. Nothing was committed.",
            table=table,
            columns=taken,
        )
    taken = [name for name in names if name.lower() in RESERVED_NAMES] if properties.change_data_feed else []
    if taken:
        raise SchemaMismatch(
            f"{table}: the columns {taken} bear names of the change data feed ({sorted(RESERVED_NAMES)}), "
            "which delta.enableChangeDataFeed = true would switch on. Rename them, or leave the feed off.",
            table=table,
            columns=taken,
        )


# --- facts that may only grow ---------------------------------------------------------------------------------------

# The highest column id; the version before which no checkpoint may be deleted.
GROWING_PROPERTIES = (MAX_ID_PROPERTY, "delta.requireCheckpointProtectionBeforeVersion")


def keep_furthest(now: Metadata, coming: Metadata, table: str) -> Metadata:
    """Return `coming` with every growing fact at the furthest value of both, or `coming` itself if it has them."""
    configuration = dict(coming.configuration)
    for name in GROWING_PROPERTIES:
        before, after = _number(now.configuration.get(name)), _number(configuration.get(name))
        if before is not None and (after is None or after < before):
            configuration[name] = now.configuration[name]
    schema = coming.schema_string
    if MARK_KEY in (now.schema_string or ""):
        schema = _with_furthest_marks(now, coming, table)
    if configuration == coming.configuration and schema == coming.schema_string:
        return coming
    return msgspec.structs.replace(coming, configuration=configuration, schema_string=schema)


def lowered_facts(now: Metadata, coming: Metadata, table: str) -> list[str]:
    """Return the properties, and the columns with an identity mark, that `coming` would lower."""
    kept = keep_furthest(now, coming, table)
    if kept is coming:
        return []
    found = [name for name in GROWING_PROPERTIES if kept.configuration.get(name) != coming.configuration.get(name)]
    schemas = zip(table_schema(kept, table), table_schema(coming, table), strict=True)
    return found + [f"{MARK_KEY} of column {one.name!r}" for one, other in schemas if one.metadata != other.metadata]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and text.isascii() else None


def _with_furthest_marks(now: Metadata, coming: Metadata, table: str) -> str | None:
    """Return the coming schema; columns with the same physical name are the same column."""
    marks = {member.physical_name.lower(): number_of(member, "highWaterMark") for member in table_schema(now, table)}
    schema = parse_schema(coming.schema_string)
    names = [member.physical_name.lower() for member in table_schema(coming, table)]
    fields = tuple(with_mark_past(member, marks.get(name)) for member, name in zip(schema, names, strict=True))
    return coming.schema_string if fields == tuple(schema) else schema_to_json(StructType(fields))
