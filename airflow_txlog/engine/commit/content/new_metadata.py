"""New metadata of a table that exists: what it switches on is switched on, and no row is left that breaks its rules.

A property that needs a table feature does nothing without it, so the feature joins the protocol in the same commit. A
rule for rows that are there already cannot be verified here, where no row is read, so it is refused unless the caller
has verified it. Source: protocol, "Table Features", "CHECK Constraints"; delta-spark, ALTER TABLE SET TBLPROPERTIES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from airflow_txlog.engine.log.actions import Metadata, Protocol
from airflow_txlog.engine.table.schema.evolution import is_widening
from airflow_txlog.engine.table.schema.features import (
    FEATURE_PREFIX,
    check_files_writable,
    check_writable,
    missing_features,
    needed_features,
    with_features,
)
from airflow_txlog.engine.table.schema.properties import TableProperties
from airflow_txlog.engine.table.schema.rules import CONSTRAINT_PREFIX, RULE_KEYS
from airflow_txlog.engine.table.schema.schema import parse_schema
from airflow_txlog.engine.table.schema.types import ArrayType, DataType, MapType, Primitive, StructField, StructType
from airflow_txlog.errors import InvalidCommit


def completed(before: Metadata, after: Metadata, protocol: Protocol, table: str) -> tuple[Metadata, Protocol]:
    """Return the new metadata as it is kept, and the protocol with every feature that it newly switches on.

    A property that another writer has left without its feature stays as it is. Raises InvalidProperty for a new value
    that cannot be read, UnsupportedFeature if this engine could not write to the table any more.
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
        if after.schema_string != before.schema_string or missing:
            check_files_writable(protocol, schema, after.partition_columns, table)
    return after, protocol


def new_rules(before: Metadata, after: Metadata) -> list[str]:
    """Return, in words, the rules for rows that the new metadata adds: constraints, and rules of single columns.

    A type that does not hold what the column's files may hold is such a rule.
    """
    found = [
        f"the constraint {name.removeprefix(CONSTRAINT_PREFIX)!r}"
        for name, sql in sorted(after.configuration.items())
        if name.startswith(CONSTRAINT_PREFIX) and before.configuration.get(name) != sql
    ]
    old, new = parse_schema(before.schema_string), parse_schema(after.schema_string)
    old_rules, old_types = dict(_rules_of(old)), dict(_types_of(old))
    found += [
        rule for path, kind in _types_of(new) if path in old_types for rule in _stricter(old_types[path], kind, path)
    ]
    for path, rules in _rules_of(new):
        known = old_rules.get(path, {})
        found += [f"{rule} of column {'.'.join(path)!r}" for rule, text in rules.items() if known.get(rule) != text]
    return found


def check_rows_are_none(rules: Sequence[str], num_files: int, table: str) -> None:
    """Raise InvalidCommit, naming the new rules, if files stay live whose rows nothing has compared with them."""
    if num_files > 0:
        raise InvalidCommit(
            f"{table}: the new metadata adds {', '.join(rules)}, and rows of the table may break it: nothing has "
            f"compared them (live files: {num_files}). Nothing was committed. Set it on an empty table, or read the "
            "whole table, verify its rows and pass is_checked=True.",
            table=table,
        )


def _rules_of(kind: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, object]]]:
    """Yield each member at any depth by the physical names of its path, with its rules: NOT NULL and `RULE_KEYS`."""
    if isinstance(kind, StructType):
        for member in kind:
            inside = (*path, member.physical_name)
            yield inside, _rules(member)
            yield from _rules_of(member.type, inside)
    elif isinstance(kind, ArrayType):
        yield from _rules_of(kind.element, (*path, "element"))
    elif isinstance(kind, MapType):
        yield from _rules_of(kind.key, (*path, "key"))
        yield from _rules_of(kind.value, (*path, "value"))


def _types_of(kind: DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Yield the type at every depth, by the physical names of its path."""
    yield path, kind
    if isinstance(kind, StructType):
        for member in kind:
            yield from _types_of(member.type, (*path, member.physical_name))
    elif isinstance(kind, ArrayType):
        yield from _types_of(kind.element, (*path, "element"))
    elif isinstance(kind, MapType):
        yield from _types_of(kind.key, (*path, "key"))
        yield from _types_of(kind.value, (*path, "value"))


def _stricter(old: DataType, new: DataType, path: tuple[str, ...]) -> Iterator[str]:
    """Yield, in words, what of a type values of the old one may break, the types inside of it left out."""
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


def _rules(member: StructField) -> dict[str, object]:
    rules: dict[str, object] = {key: member.metadata[key] for key in RULE_KEYS if key in member.metadata}
    return rules if member.nullable else {"NOT NULL": True, **rules}
