"""What of a MERGE needs no evaluation: keys that are columns of both sides, and clauses that take the source's values
and constants.

The tasks that read and write the files do that themselves, and no row goes through the JVM. The invariant: the texts
are read, never evaluated: whatever is more than a column's name or a plain constant, or of another type than the column
that it meets, is left to Spark. Source: soundness A3, A4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import NullType, StructField

from airflow_txlog.datafiles.tasks.key_rows import SourceKeys
from airflow_txlog.datafiles.tasks.row_values import ConstantValue, RowValues
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN
from airflow_txlog.engine import Snapshot
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.source import MaterializedSource, scan_of
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses, Sides
from airflow_txlog.jobs.operations.merge.source_scope import LITERAL_WORDS, conjuncts_as_equalities
from airflow_txlog.jobs.sql.plain_values import plain_values
from airflow_txlog.jobs.sql.schemas import is_same_type
from airflow_txlog.lexing import Token, Unreadable, lex
from airflow_txlog.records import AnyClause, InsertClause, Merge, UpdateClause

# What every task that looks for keys holds of the source's, and of their rows' numbers, uncompressed.
MOST_KEY_BYTES = 256 * 1024 * 1024
# What the tasks that write new rows read of the source, uncompressed. They hold less: see `source_rows`.
MOST_BYTES = 1024 * 1024 * 1024

# One order and one equality for everybody. A collated string has another name.
_PLAIN = frozenset(("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string"))
_OPEN, _CLOSE, _DOT = Token("symbol", "("), Token("symbol", ")"), Token("symbol", ".")


@dataclass(frozen=True, kw_only=True)
class PlainKeys:
    """ON is TRUE of two rows exactly where the target's `columns` equal the source's keys, and null equals nothing.

    `clause` acts on each target row that has a key; None: none does.
    """

    columns: tuple[str, ...]
    source: SourceKeys
    clause: int | None


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """What a clause assigns: `columns` by the target's and the source's name, and constants by the target's."""

    columns: tuple[tuple[str, str], ...]
    constants: RowValues

    @property
    def held(self) -> list[str]:
        """The source's columns."""
        return [held for _, held in self.columns]

    @property
    def names(self) -> set[str]:
        """The target's columns."""
        return {*(name for name, _ in self.columns), *self.constants.names}


@dataclass(frozen=True, kw_only=True)
class PlainClauses:
    """What the clauses assign: None where there is no such clause, or where only Spark can say what."""

    updated: Assigned | None
    inserted: Assigned | None


def plain_keys(
    context: JobContext,
    on: str,
    schema: delta.StructType,
    arrow_schema: pa.Schema,
    sides: Sides,
    clauses: Clauses,
    source: MaterializedSource,
) -> PlainKeys | None:
    """The keys by which the accepted condition `on` joins, where it does nothing else; None where Spark has to.

    `schema` is the target's, and `arrow_schema` the types in which its rows are read.
    """
    if clauses.not_matched_by_source or any(clause.condition is not None for clause in clauses.matched[:1]):
        return None
    columns = _key_columns(on, schema, sides, source)
    if not columns or source.bytes_of([*columns.values(), ROW_ID_COLUMN]) > MOST_KEY_BYTES:
        return None
    keys = SourceKeys(
        scan=scan_of(context, source, columns.values()),
        columns=tuple((held, arrow_schema.field(name).type) for name, held in columns.items()),
    )
    number = clauses.matched[0].number if clauses.matched else None
    return PlainKeys(columns=tuple(columns), source=keys, clause=number)


def _key_columns(on: str, schema: delta.StructType, sides: Sides, source: MaterializedSource) -> dict[str, str] | None:
    """The source's column for each of the target's that ON wants to be equal, in the target's order; None where ON says
    more."""
    able = [field.name for field in schema.fields if is_plain(field, sides)]
    equalities = conjuncts_as_equalities(
        on,
        target_alias=sides.target_alias,
        partition_columns=able,
        target_columns=schema.names,
        source_columns=source.schema.names,
    )
    found: dict[str, str] = {}
    for equality in equalities:
        held = None if equality is None or equality.null_safe else source_column(equality.sql, sides)
        if equality is None or held is None or equality.column in found:
            return None
        if not is_same_type(sides.source[held].dataType, sides.target[equality.column].dataType):
            return None
        found[equality.column] = held
    return {name: found[name] for name in schema.names if name in found}


def plain_clauses(
    merge: Merge,
    snapshot: Snapshot,
    parameters: Mapping[str, object],
    sides: Sides,
    clauses: Clauses,
    source: MaterializedSource,
) -> PlainClauses | None:
    """What the clauses assign, where each acts on all rows of its kind and takes values of the source as they are and
    constants, and nothing of the table has to look at these; None where Spark has to compute.

    `parameters` are what the texts may name. Of a large source, rows that may land in any partition are left to Spark
    too, which brings those of one together.
    """
    both = [*clauses.matched, *clauses.not_matched]
    table = sides.rules.table
    if clauses.not_matched_by_source or len(clauses.matched) > 1 or len(clauses.not_matched) > 1:
        return None
    if table.must_check or table.fills or any(clause.condition is not None for clause in both):
        return None
    schema = snapshot.delta_schema
    found: list[Assigned | None] = []
    for of_kind in (clauses.matched, clauses.not_matched):
        assigned = None
        for clause in of_kind:
            if clause.action != "delete":
                texts = _constants(merge.clauses[clause.number], schema, parameters, sides)
                assigned = _assigned(clause, texts, sides)
                if assigned is None:
                    return None
        found.append(assigned)
    updated, inserted = found
    if source.bytes_of({name for each in found if each is not None for name in each.held}) > MOST_BYTES:
        return None
    if source.num_buckets > 1 and snapshot.partition_columns:
        partition = {name.lower() for name in snapshot.partition_columns}
        moved = {name for name in (updated.names if updated is not None else ()) if name.lower() in partition}
        if moved - set(_key_columns(merge.on, schema, sides, source) or ()):
            return None
        inserted = None
    return PlainClauses(updated=updated, inserted=inserted)


def _constants(
    clause: AnyClause, schema: delta.StructType, parameters: Mapping[str, object], sides: Sides
) -> dict[str, ConstantValue]:
    """The plain constants among the values that the author's clause assigns, by the target's column."""
    given: str | Mapping[str, str] = {}
    if isinstance(clause, UpdateClause | InsertClause):
        given = clause.set if isinstance(clause, UpdateClause) else clause.values
    found = {}
    for name, text in {} if isinstance(given, str) else given.items():
        alias = sides.target_alias
        values = plain_values({name: text}, schema, parameters, alias=alias, is_ansi=sides.ansi)
        # A name alone may be a column of either side.
        for column, value in {} if isinstance(values, str) else values.values.items():
            if isinstance(value, ConstantValue):
                found[column] = value
    return found


def _assigned(clause: Clause, constants: Mapping[str, ConstantValue], sides: Sides) -> Assigned | None:
    columns = []
    for name, sql in clause.values.items():
        held = source_column(sql, sides)
        if held is None and name in constants:
            continue
        if held is None or not is_same_type(sides.source[held].dataType, sides.target[name].dataType):
            return None
        if isinstance(sides.target[name].dataType, NullType):
            # No file holds it.
            return None
        columns.append((name, held))
    taken = {name for name, _ in columns}
    rest = {name: value for name, value in constants.items() if name not in taken}
    # A batch of no column has no rows.
    return Assigned(columns=tuple(columns), constants=RowValues(values=rest)) if columns else None


def source_column(sql: str, sides: Sides) -> str | None:
    """The source's column that the text is; None where it is more, or may mean something else."""
    try:
        tokens = lex(sql).tokens
    except Unreadable:
        return None
    while len(tokens) > 2 and tokens[0] == _OPEN and tokens[-1] == _CLOSE:
        tokens = tokens[1:-1]
    named = {name.lower(): name for name in sides.source.names}
    ours = {name.lower() for name in sides.target.names}
    if any(token.kind not in ("word", "name") for token in tokens[::2]):
        return None
    if len(tokens) == 1:
        name = tokens[0].text.lower()
        may_be_literal = tokens[0].kind == "word" and name in LITERAL_WORDS
        return None if name in ours or may_be_literal else named.get(name)
    alias = sides.source_alias.lower()
    # A struct column of the alias's name would make `s.k` a member of it.
    if len(tokens) == 3 and tokens[1] == _DOT and tokens[0].text.lower() == alias:
        return None if alias in named or alias in ours else named.get(tokens[2].text.lower())
    return None


def is_plain(field: delta.StructField, sides: Sides) -> bool:
    """Whether values of the target's column are equal to all engines where they are the same, and only there."""
    if field.is_collated or field.is_char or "__CHAR_VARCHAR_TYPE_STRING" in field.metadata:
        return False
    found: StructField = sides.target[field.name]
    return found.dataType.simpleString() in _PLAIN
