"""The rules that a table imposes on every new row, as its metadata states them.

`jobs/sql/table_rules` evaluates their SQL; NOT NULL is part of the schema. The invariant: every rule in the metadata is
either in the value made here or refused by name. Source: protocol, "Column Invariants", "CHECK Constraints", "Generated
Columns", "Identity Columns", "Default Columns"; Spark, CharVarcharUtils.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from airflow_txlog.engine.log.actions import Metadata
from airflow_txlog.engine.table.schema.identities import IdentityColumn, is_identity, read_identities
from airflow_txlog.engine.table.schema.types import CHAR_VARCHAR_KEY, StructField, StructType, bare_columns, walk_fields
from airflow_txlog.errors import ConstraintViolation, CorruptTable, UnsupportedFeature

CONSTRAINT_PREFIX = "delta.constraints."
INVARIANTS_KEY = "delta.invariants"
GENERATION_KEY = "delta.generationExpression"
DEFAULT_KEY = "CURRENT_DEFAULT"

_LENGTH = re.compile(r"\s*(char|character|varchar)\s*\(\s*(\d+)\s*\)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """SQL that must be true of every new row; null counts as false. `kind`: "CHECK" or "INVARIANT"."""

    kind: str
    name: str
    sql: str

    @property
    def what(self) -> str:
        """The rule, as an error calls it."""
        kind = "the CHECK constraint" if self.kind == "CHECK" else "the invariant of column"
        return f"{kind} {self.name!r} ({self.sql})"

    @property
    def constraint(self) -> str:
        return self.name if self.kind == "CHECK" else self.kind

    @property
    def column(self) -> str | None:
        """The column of an invariant."""
        return None if self.kind == "CHECK" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """A text column of at most `limit` characters; `is_padded` (char): with spaces up to it."""

    limit: int
    is_padded: bool

    def __str__(self) -> str:
        return f"{'char' if self.is_padded else 'varchar'}({self.limit})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The rules of one table except NOT NULL, by top-level column."""

    checks: tuple[Check, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)
    identities: Mapping[str, IdentityColumn] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, Length] = field(default_factory=dict)

    @property
    def must_check(self) -> bool:
        """Whether a row can break a rule, so that it must be checked before it is written."""
        return bool(self.has_texts or self.identities)

    @property
    def has_texts(self) -> bool:
        """Whether a row can break a rule that only Spark evaluates. Defaults break none."""
        return bool(self.checks or self.generated or self.lengths)

    @property
    def fills(self) -> frozenset[str]:
        """The columns that a row may lack because the table gives them a value."""
        return frozenset(self.generated) | frozenset(self.defaults) | frozenset(self.identities)

    def lacking(self, given: Collection[str], table: str) -> tuple[IdentityColumn, ...]:
        """Return the identity columns that new rows with the columns `given` lack, so that the table numbers them.

        Raises ConstraintViolation for a given column whose values only the table may choose.
        """
        names = {name.lower() for name in given}
        for column, identity in self.identities.items():
            if column.lower() in names and not identity.takes_values:
                raise ConstraintViolation(
                    f"{table}: column {column!r} is GENERATED ALWAYS AS IDENTITY, so a row may not bring a value for "
                    "it. Nothing was staged. Leave the column out: the table numbers the rows.",
                    table=table,
                    constraint="GENERATED ALWAYS AS IDENTITY",
                    column=column,
                )
        return tuple(identity for column, identity in self.identities.items() if column.lower() not in names)

    def numbered(self, identities: Collection[IdentityColumn]) -> RowRules:
        """Return the rules for rows that have been given values of these identity columns."""
        names = {identity.name for identity in identities}
        return replace(self, identities={name: each for name, each in self.identities.items() if name not in names})

    def check_update(self, assigned: Collection[str], table: str) -> None:
        """Raise UnsupportedFeature if an update assigns an identity column, as the reference implementation does."""
        for column in self.identities:
            if column in assigned:
                raise UnsupportedFeature(
                    f"{table}: an update may not assign the identity column {column!r}. Nothing was staged.",
                    table=table,
                    feature="identityColumns",
                    needed_to="write",
                )


def read_rules(metadata: Metadata, schema: StructType, table: str) -> RowRules:
    """Return the rules in the metadata of a table with this schema.

    Raises CorruptTable for a malformed invariant, UnsupportedFeature for a rule inside a struct, an array or a map.
    """
    _check_top_level(schema, table)
    checks = constraints_of(metadata)
    checks += [
        Check(kind="INVARIANT", name=member.name, sql=invariant_of(member, table))
        for member in walk_fields(schema)
        if INVARIANTS_KEY in member.metadata
    ]
    return RowRules(
        checks=tuple(checks),
        generated=dict(_texts(schema, GENERATION_KEY)),
        defaults=dict(_texts(schema, DEFAULT_KEY)),
        identities=read_identities(schema, table),
        lengths={member.name: _length(member, table) for member in schema if CHAR_VARCHAR_KEY in member.metadata},
    )


def constraints_of(metadata: Metadata) -> list[Check]:
    """Return the CHECK constraints in the metadata."""
    return [
        Check(kind="CHECK", name=name.removeprefix(CONSTRAINT_PREFIX), sql=sql)
        for name, sql in sorted(metadata.configuration.items())
        if name.startswith(CONSTRAINT_PREFIX)
    ]


def may_break_rules(metadata: Metadata, schema: StructType) -> bool:
    """Return whether a new row can break some rule of the table, even one that this engine refuses by name."""
    return any(name.startswith(CONSTRAINT_PREFIX) for name in metadata.configuration) or any(
        member.metadata and (is_identity(member) or not member.metadata.keys().isdisjoint(RULE_KEYS))
        for member in walk_fields(schema)
    )


RULE_KEYS = frozenset({INVARIANTS_KEY, GENERATION_KEY, CHAR_VARCHAR_KEY})
"""The keys of a column's metadata with rules that a row can break."""


def _texts(schema: StructType, key: str) -> Iterator[tuple[str, str]]:
    for member in schema:
        if key in member.metadata:
            yield member.name, str(member.metadata[key])


def invariant_of(member: StructField, table: str) -> str:
    """Return the expression in `{"expression":{"expression":"x > 3"}}`. Raises CorruptTable."""
    text: Any = member.metadata[INVARIANTS_KEY]
    try:
        sql = msgspec.json.decode(text)["expression"]["expression"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise CorruptTable(
            f"{table}: {INVARIANTS_KEY} of column {member.name!r} is not the JSON that the protocol has for it. "
            "Nothing was staged. Repair or drop the invariant.",
            table=table,
        ) from error
    return str(sql)


def _length(member: StructField, table: str) -> Length:
    text = str(member.metadata[CHAR_VARCHAR_KEY])
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise UnsupportedFeature(
            f"Table {table}: column {member.name!r} is {text}, and this engine keeps the length of char(n) and "
            "varchar(n) only where the whole column is one. Rows can be deleted. Nothing was staged.",
            table=table,
            feature="char and varchar columns",
            needed_to="write",
        )
    return Length(limit=int(found[2]), is_padded=found[1].lower() != "varchar")


def keeps_as_they_are(rules: RowRules, schema: StructType, given: StructType) -> bool:
    """Return whether rows with the columns `given` need no check and no change. Columns that they lack are null."""
    wanted, held = bare_columns(schema), bare_columns(given)
    pairs = [(field, held.find(field.name)) for field in wanted]
    return not (
        rules.must_check
        or any(given.find(name) is None for name in rules.fills)
        or any(field.is_collated for field in walk_fields(wanted))
        or any(other is not None and other.type != field.type for field, other in pairs)
    )


# Rules that delta-spark gives to whole columns only, and the features that have them.
_OF_WHOLE_COLUMNS = {
    GENERATION_KEY: "generatedColumns",
    DEFAULT_KEY: "allowColumnDefaults",
    CHAR_VARCHAR_KEY: "char and varchar columns",
}


def _check_top_level(schema: StructType, table: str) -> None:
    for column in schema:
        for member in walk_fields(column.type):
            found = [feature for key, feature in _OF_WHOLE_COLUMNS.items() if key in member.metadata]
            found += ["identityColumns"] if is_identity(member) else []
            if found:
                raise UnsupportedFeature(
                    f'Table {table}: the member {member.name!r} inside column {column.name!r} uses "{found[0]}", which '
                    "this engine keeps for whole columns only. Rows can be deleted. Nothing was staged.",
                    table=table,
                    feature=found[0],
                    needed_to="write",
                )
