"""Clauses checked against both schemas, and put into the SQL that decides and the SQL that computes.

An UPDATE is one clause over the target alone. The invariant: a condition is evaluated in one place only, and every
assigned value has passed the gate and has, or is cast to, the column's type. Source: delta-spark, MergeIntoCommand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql.types import DataType, StructField, StructType

from airflow_txlog.contract.operations import AnyClause, InsertClause, UpdateClause
from airflow_txlog.datafiles.tasks.scan_and_write import CLAUSE_COLUMN
from airflow_txlog.engine.table.schema import types as delta
from airflow_txlog.errors import ConstraintViolation, InvalidJobSpec
from airflow_txlog.jobs.operations.merge.clauses import Clause, Clauses
from airflow_txlog.jobs.source.handed_out import beside_source
from airflow_txlog.jobs.sql.columns import assigned_column, columns_named, unassignable
from airflow_txlog.jobs.sql.gate import SqlGate, quoted
from airflow_txlog.jobs.sql.schemas import Lacking, can_store, lacking_member, mismatch, stored_sql
from airflow_txlog.jobs.sql.table_rules import Rules


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The two sides of a merge: schemas, aliases, and the empty views on which texts are checked.

    `may_lack_columns`: the job evolves the schema, so `*` keeps columns and members that the source lacks.
    `keeps_members`: an update that names its columns keeps such members too. `named_column` returns the column that a
    text of a source row names; None if the text is more, or could mean something else.
    """

    target: StructType
    source: StructType
    target_alias: str
    source_alias: str
    target_shape: str
    source_shape: str
    ansi: bool
    table_uri: str
    rules: Rules
    may_lack_columns: bool = False
    keeps_members: bool = False
    named_column: Callable[[str], str | None] = lambda text: None

    def lacking(self, *, is_insert: bool, is_star: bool) -> Lacking:
        """Return the treatment of a struct's member that the table has and an assigned value lacks.

        An update without schema evolution must not replace a value that no clause assigns with NULL. An insert has no
        value to lose (delta-spark refuses it too).
        """
        if is_insert:
            return "null"
        if not self.may_lack_columns:
            return "refused"
        return "kept" if is_star or self.keeps_members else "null"

    def own_value(self, column: str) -> str:
        """Return SQL for the target row's value of a column."""
        return f"{quoted(self.target_alias)}.{quoted(column)}"

    def value_of_table(self, column: str) -> str:
        """Return SQL for the value that a new row gets if its clause assigns none.

        For a column that the table numbers it is the value that was added to the source's row.
        """
        if column in self.rules.table.identities:
            return f"{quoted(self.source_alias)}.{quoted(beside_source(column))}"
        return self.rules.default_sql(column)

    @cached_property
    def target_by_name(self) -> dict[str, StructField]:
        """The target's columns by their names in lower case."""
        return {field.name.lower(): field for field in self.target}

    @property
    def pair(self) -> str:
        """The FROM clause of a matched pair."""
        return (
            f"{quoted(self.target_shape)} AS {quoted(self.target_alias)} CROSS JOIN "
            f"{quoted(self.source_shape)} AS {quoted(self.source_alias)}"
        )

    @property
    def target_alone(self) -> str:
        """The FROM clause of a target row without a match."""
        return f"{quoted(self.target_shape)} AS {quoted(self.target_alias)}"

    @property
    def source_alone(self) -> str:
        """The FROM clause of a source row without a match."""
        return f"{quoted(self.source_shape)} AS {quoted(self.source_alias)}"


def check_clauses(gate: SqlGate, sides: Sides, described: Sequence[AnyClause]) -> Clauses:
    """Return the author's clauses after Spark has accepted every text.

    Raises InvalidJobSpec, InvalidPredicate, UnknownColumn, SchemaMismatch, ConstraintViolation.
    """
    relations = {"matched": sides.pair, "not_matched": sides.source_alone, "not_matched_by_source": sides.target_alone}
    assigned: list[Mapping[str, str]] = []
    for clause in described:
        relation = relations[clause.when]
        if clause.condition is not None:
            gate.condition(clause.condition, relation)
        values: dict[str, str] = {}
        if isinstance(clause, UpdateClause):
            values = assigned_values(gate, sides, relation, clause.set, is_insert=False)
        if isinstance(clause, InsertClause):
            values = assigned_values(gate, sides, relation, clause.values, is_insert=True)
            _check_not_null(sides, values)
        assigned.append(values)
    return Clauses.of(described, assigned)


def deciding_sql(clauses: Sequence[Clause]) -> str:
    """Return SQL for the number of the first clause that acts, NULL if none does."""
    branches = "\n".join(
        f"WHEN (\n{'TRUE' if clause.condition is None else clause.condition}\n) THEN {clause.number}"
        for clause in clauses
    )
    return f"CAST(CASE {branches} END AS INT)" if branches else "CAST(NULL AS INT)"


def image_sql(
    sides: Sides, clauses: Sequence[Clause], number_of_row: str, *, is_update: bool, names: frozenset[str] | None = None
) -> list[str]:
    """Return SQL for the columns `names` (None: all) of new rows, in the target's order.

    `number_of_row` is SQL for the acting clause. A column that it does not assign keeps its value in an update, and has
    its value of the table or NULL in an insert. Generated columns are computed afterwards: see `generated_by`.
    """
    columns = []
    for field in sides.target:
        if names is not None and field.name not in names:
            continue
        kept = sides.own_value(field.name) if is_update else sides.value_of_table(field.name)
        values = [clause.values.get(field.name, kept) for clause in clauses]
        if len(set(values)) == 1:
            sql = values[0]
        else:
            branches = "\n".join(
                f"WHEN {clause.number} THEN {value}" for clause, value in zip(clauses, values, strict=True)
            )
            sql = f"CASE {number_of_row} {branches} END"
        columns.append(f"{sql} AS {quoted(field.name)}")
    return columns


def generated_by(sides: Sides, clauses: Sequence[Clause]) -> dict[str, frozenset[int]]:
    """Return the numbers of the clauses that do not assign a generated column, for each such column."""
    lacking = {
        name: frozenset(clause.number for clause in clauses if name not in clause.values)
        for name in sides.rules.table.generated
    }
    return {name: numbers for name, numbers in lacking.items() if numbers}


def columns_for_images(
    clauses: Sequence[Clause], schema: delta.StructType, source_alias: str, names: frozenset[str]
) -> frozenset[str]:
    """Return the target's columns from which `names` of the updates' images are computed.

    A name after `source_alias` is the source's.
    """
    needed: frozenset[str] = frozenset()
    for clause in clauses:
        needed |= frozenset(name for name in names if name not in clause.values)
        needed |= needed.union(*(columns_named(text, schema, source_alias) for text in clause.values.values()))
    return needed


def clause_of_row(alias: str) -> str:
    """Return SQL for the acting clause of a row that carries its number."""
    return f"{quoted(alias)}.{quoted(CLAUSE_COLUMN)}"


def assigned_values(
    gate: SqlGate, sides: Sides, relation: str, assigned: str | Mapping[str, str], *, is_insert: bool
) -> dict[str, str]:
    """Return SQL for each column that a clause assigns, by the table's spelling and cast to its type; `*`: every
    column.

    Raises InvalidJobSpec, InvalidPredicate, UnknownColumn, SchemaMismatch; ConstraintViolation and UnsupportedFeature
    for a column that the table computes itself.
    """
    if isinstance(assigned, str):
        values = _all_columns(sides, is_insert=is_insert)
    else:
        values = _named_columns(gate, sides, relation, assigned, is_insert=is_insert)
    if is_insert:
        sides.rules.table.lacking(values, sides.table_uri)
    else:
        sides.rules.table.check_update(values, sides.table_uri)
    return values


def _named_columns(
    gate: SqlGate, sides: Sides, relation: str, assigned: Mapping[str, str], *, is_insert: bool
) -> dict[str, str]:
    lacking = sides.lacking(is_insert=is_insert, is_star=False)
    values: dict[str, str] = {}
    types: list[StructField] = []
    problems = []
    for name, text in assigned.items():
        field = _target_field(sides, name)
        if field.name in values:
            raise InvalidJobSpec(f"A clause assigns the column {field.name!r} twice.", argument="clauses")
        if text.strip().upper() == "DEFAULT":
            if not is_insert or field.name not in sides.rules.table.identities:
                values[field.name] = sides.rules.default_sql(field.name)
            continue
        named = None if relation == sides.target_alone else sides.named_column(text)
        # Most values of an insert are such columns, and Spark would analyse each text twice.
        found = gate.value(text, relation) if named is None else sides.source[named].dataType
        if not can_store(found, field.dataType, ansi=sides.ansi, lacking=lacking):
            problems.append(f"{_problem(field, found, lacking)} (in {text!r})")
        types.append(StructField(field.name, found))
        values[field.name] = _assigned(sides, field, f"(\n{text}\n)", found, lacking)
    if problems:
        raise mismatch(problems, StructType(types), sides.target, sides.table_uri)
    return values


def _all_columns(sides: Sides, *, is_insert: bool) -> dict[str, str]:
    """Return SQL for `*`: the source's column for each of the target's, except those that the table fills in itself."""
    lacking = sides.lacking(is_insert=is_insert, is_star=True)
    table = sides.rules.table
    filled = table.fills if is_insert else frozenset([*table.generated, *table.identities])
    have = {field.name.lower(): field for field in sides.source}
    values, problems = {}, []
    for field in sides.target:
        found = have.get(field.name.lower())
        if found is None:
            if field.name not in filled and not sides.may_lack_columns:
                problems.append(f"{field.name}: the source has no such column, and * needs one")
        elif not can_store(found.dataType, field.dataType, ansi=sides.ansi, lacking=lacking):
            problems.append(_problem(field, found.dataType, lacking))
        else:
            reference = f"{quoted(sides.source_alias)}.{quoted(found.name)}"
            values[field.name] = _assigned(sides, field, reference, found.dataType, lacking)
    if problems:
        raise mismatch(problems, sides.source, sides.target, sides.table_uri)
    return values


def _assigned(sides: Sides, field: StructField, sql: str, found: DataType, lacking: Lacking) -> str:
    """Return SQL for the value of `sql`, of the type `found`, as the target's column holds it."""
    kept = sides.own_value(field.name) if lacking == "kept" else None
    return stored_sql(sql, found, field.dataType, kept=kept)


def _problem(field: StructField, found: DataType, lacking: Lacking) -> str:
    """Return why a value of the type `found` cannot be assigned to the column."""
    problem = f"{field.name}: {found.simpleString()} is not {field.dataType.simpleString()}"
    member = lacking_member(found, field.dataType) if lacking == "refused" else None
    if member is None:
        return problem
    return f"{problem}: it lacks the member {field.name}.{member}, whose values an update would lose"


def _target_field(sides: Sides, name: str) -> StructField:
    """Return the target's column that an assignment names, bare or with the alias. Raises UnknownColumn."""
    found = assigned_column(name, sides.target_by_name, sides.target_alias)
    if found is None:
        raise unassignable(name, sides.target.names, sides.table_uri)
    return found


def _check_not_null(sides: Sides, values: Mapping[str, str]) -> None:
    for field in sides.target:
        if not field.nullable and field.name not in values and field.name not in sides.rules.fills:
            raise ConstraintViolation(
                f"{sides.table_uri}: column {field.name!r} is NOT NULL, and a WHEN NOT MATCHED clause gives it no "
                "value. Nothing was staged.",
                constraint="NOT NULL",
                column=field.name,
            )
