"""How ON joins the two sides of a merge: its equalities, and the keys and row filters that follow from them.

Texts are read here, never evaluated. The invariant: an equality that is returned is one for Spark too, whatever the
precedences and names; an uncertain one is not returned. Source: soundness A3, A4, A14.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_txlog.contract.operations import Merge
from airflow_txlog.datafiles.tasks.found_rows import PAIRS_SCHEMA, pairs_packed
from airflow_txlog.datafiles.tasks.key_rows import Acting, SourceKeys, pairs_of_keys
from airflow_txlog.datafiles.tasks.row_values import of_source
from airflow_txlog.datafiles.tasks.scan_and_write import ROW_ID_COLUMN, Task
from airflow_txlog.engine.table.predicate.binding import ColumnBinder, NotPlain, columns_in
from airflow_txlog.engine.table.schema.types import (
    CHAR_VARCHAR_KEY,
    Primitive,
    StructField,
    StructType,
    bare_type,
    walk_fields,
)
from airflow_txlog.jobs.context import JobContext
from airflow_txlog.jobs.files.scan import FilePlan, addressed_scan
from airflow_txlog.jobs.rows.matches import Matches
from airflow_txlog.jobs.source.materialized import MaterializedSource, scan_of
from airflow_txlog.jobs.sql.gate import quoted
from airflow_txlog.jobs.sql.scope import is_exact
from airflow_txlog.sql.expression import (
    TRUE,
    Call,
    Cast,
    Column,
    Expression,
    Name,
    Opaque,
    Values,
    all_of,
    any_of,
    columns_of,
    operands_of,
)
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import sql_text

MATCHING = "match source and target"
NOT_AS_THEY_ARE = "the source's rows cannot be written as they are"
"""Why Spark makes the new rows of a merge that follows from columns; the part that is not plain comes after it."""
# The aliases of a merge that follows from columns. `check_names_are_free` ensures that no column has such a name: a
# column `s` would make `s.id` a member of it.
TARGET_ALIAS, SOURCE_ALIAS = "_txlog_t", "_txlog_s"


_INTERNAL = re.compile(r"(?<!\w)__?txlog_(?=\w)")


def for_people(text: str) -> str:
    """Return a text of such a merge with `t`, `s` and the other names of this package without their prefix."""
    return _INTERNAL.sub("", text)


def equal_columns(names: Iterable[str]) -> str:
    """Return the ON of rows that are equal in these columns."""
    return " AND ".join(f"{TARGET_ALIAS}.{quoted(name)} = {SOURCE_ALIAS}.{quoted(name)}" for name in names)


def source_values(names: Iterable[str]) -> dict[str, str]:
    """Return assignments of the source's columns to columns of the same names."""
    return {quoted(name): f"{SOURCE_ALIAS}.{quoted(name)}" for name in names}


# A bare column of one of these names cannot be distinguished from the ends of a CASE.
_ENDS_OF_CASE = {"case", "end"}


@dataclass(frozen=True, kw_only=True)
class PairColumns:
    """The names that the texts of a merge may use: the columns and the alias of each side."""

    target: StructType
    source: StructType
    target_alias: str
    source_alias: str

    def rows(self, when: str) -> StructType:
        """Return the columns that a clause of this kind sees; those of the source as `of_source` names them."""
        ours = () if when == "not_matched" else self.target.fields
        theirs = () if when == "not_matched_by_source" else self.source.fields
        return StructType((*ours, *(replace(field, name=of_source(field.name)) for field in theirs)))

    def resolved(self, tree: Expression, when: str) -> Expression:
        """Return the tree of a text of such a clause with each name as that of a column of `rows`. Raises NotPlain."""
        match tree:
            case Name():
                return self._column(tree, when)
            case Call(_, operands):
                return replace(tree, operands=tuple(self.resolved(operand, when) for operand in operands))
            case Cast(operand):
                return replace(tree, operand=self.resolved(operand, when))
            case Opaque(what):
                raise NotPlain(what)
        return tree

    def _column(self, name: Name, when: str) -> Name:
        ours = [] if when == "not_matched" else [(self.target_alias, self.target, "")]
        theirs = [] if when == "not_matched_by_source" else [(self.source_alias, self.source, of_source(""))]
        first, found = name.parts[0].text.lower(), list[tuple[str, int]]()
        for alias, columns, prefix in (*ours, *theirs):
            # With a struct column of the alias's name, `s.k` would be a member of it.
            is_clear = not any(each.find(alias) for _, each, _ in (*ours, *theirs))
            is_qualified = len(name.parts) > 1 and first == alias.lower() and is_clear
            field = columns.find(name.parts[is_qualified].text)
            found += [] if field is None else [(prefix + field.name, is_qualified + 1)]
        is_alias = any(first == alias.lower() and columns.find(alias) for alias, columns, _ in (*ours, *theirs))
        if not name.is_certain or len(found) != 1 or (is_alias and len(name.parts) > 1):
            raise NotPlain(f"the name {name}")
        column, members = found[0]
        return Name((Token("name", column), *name.parts[members:]), name.span)

    def is_of_one_type(self, name: str, held: str) -> bool:
        """Return whether the target's column `name` takes the values of the source's column `held` without a cast."""
        wanted, given = self.target.find(name), self.source.find(held)
        assert wanted is not None
        assert given is not None
        # A collation is metadata of the column or of a member, at any depth.
        members = [*walk_fields(StructType((wanted,))), *walk_fields(StructType((given,)))]
        # No file holds values of the type void.
        is_held = wanted.type is not Primitive.VOID
        is_of_one_type = bare_type(wanted.type) == bare_type(given.type)
        return is_held and is_of_one_type and not any(member.is_collated for member in members)


@dataclass(frozen=True, kw_only=True)
class Equality:
    """`column = sql` or, null-safe, `column <=> sql`: a column of the target, and the SQL on the other side."""

    column: str
    sql: str
    null_safe: bool


def equalities(on: str, pair: PairColumns, columns: Collection[str]) -> list[Equality | None]:
    """Return the conjuncts of ON in their order; None for one that does not compare one of the target's `columns`.

    The other side may be any SQL. The list is empty if the text, or a name in it, may have another meaning.
    """
    others = {name.lower() for name in pair.source.names}
    every = others | {name.lower() for name in pair.target.names}
    text, alias = sql_text(on), pair.target_alias.lower()
    # Spark accepts no text that ends in a backslash.
    if text.expression is None or on.endswith("\\") or (_ENDS_OF_CASE | {alias}) & every:
        return []
    named = {name.lower(): name for name in columns}

    def target_column(side: Expression) -> str | None:
        parts = [part.text.lower() for part in side.parts] if isinstance(side, Name) and side.is_certain else []
        if len(parts) == 2 and parts[0] == alias:
            return named.get(parts[1])
        return named.get(parts[0]) if len(parts) == 1 and parts[0] not in others else None

    def equality(conjunct: Expression) -> Equality | None:
        if not isinstance(conjunct, Call) or conjunct.operator not in ("=", "<=>"):
            return None
        for one, other in (conjunct.operands, conjunct.operands[::-1]):
            column = target_column(one)
            if column is not None:
                return Equality(column=column, sql=text.part(other.span), null_safe=conjunct.operator == "<=>")
        return None

    return [equality(conjunct) for conjunct in operands_of("and", text.expression)]


def source_column(sql: str, pair: PairColumns) -> str | None:
    """Return the source's column that the text names; None if the text is more, or could mean something else."""
    found = sql_text(sql).expression
    # Spark accepts no text that ends in a backslash.
    if not isinstance(found, Name) or not found.is_certain or sql.endswith("\\"):
        return None
    parts, alias = [part.text.lower() for part in found.parts], pair.source_alias.lower()
    named, ours = pair.source.by_name, pair.target.by_name
    column = None
    if len(parts) == 1 and parts[0] not in ours:
        column = named.get(parts[0])
    # With a struct column of the alias's name, `s.k` would be a member of it.
    elif len(parts) == 2 and parts[0] == alias and alias not in named and alias not in ours:
        column = named.get(parts[1])
    return None if column is None else column.name


@dataclass(frozen=True, kw_only=True)
class KeyJoin:
    """An ON that demands equal keys: the source's column by the target's, in the target's order. `only` is the plain
    condition on the target's row alone, if ON demands more.
    """

    columns: Mapping[str, str]
    only: Expression | None


def key_join(context: JobContext, merge: Merge, pair: PairColumns) -> KeyJoin | None:
    """Return the accepted ON of a merge as a join by keys; None if it is more, or if a clause acts on target rows that
    match no source row, and so also on those that fail `only`.
    """
    found: dict[str, str] = {}
    only: list[Expression] = []
    tree = sql_text(merge.on).expression
    for equality, conjunct in zip(
        equalities(merge.on, pair, plain_columns(pair)), operands_of("and", tree or TRUE), strict=False
    ):
        held = None if equality is None or equality.null_safe else source_column(equality.sql, pair)
        if equality is None or held is None or equality.column in found:
            condition = _target_condition(context, conjunct, pair)
            if condition is None:
                return None
            only.append(condition)
        elif not pair.is_of_one_type(equality.column, held):
            return None
        else:
            found[equality.column] = held
    if not found or (only and any(clause.when == "not_matched_by_source" for clause in merge.clauses)):
        return None
    columns = {name: found[name] for name in pair.target.names if name in found}
    return KeyJoin(columns=columns, only=all_of(only) if only else None)


def _target_condition(context: JobContext, conjunct: Expression, pair: PairColumns) -> Expression | None:
    """Return a plain condition on the target's row; None for any other."""
    rows, may_fail = columns_in(pair.rows("matched")), not context.leaves_values_to_spark
    binder = ColumnBinder(rows, context.parameters, may_fail, context.spec.time_zone)
    try:
        bound = binder.condition(pair.resolved(conjunct, "matched"))
    except NotPlain:
        return None
    return bound if columns_of(bound) <= frozenset(pair.target.names) else None


def key_columns(context: JobContext, merge: Merge, pair: PairColumns) -> Mapping[str, str]:
    """Return the columns of `key_join`; nothing if there is none."""
    join = key_join(context, merge, pair)
    return {} if join is None else join.columns


def find_by_keys(
    context: JobContext,
    plan: FilePlan,
    merge: Merge,
    pair: PairColumns,
    source: MaterializedSource,
    clauses: Acting,
    *,
    may_meet_many: bool,
    only: Expression | None = None,
) -> Matches | None:
    """Return the matches by the accepted ON in all rows of the planned files, and the other rows on which a
    clause acts; None if only Spark can join.

    `may_meet_many`: as of `pairs_of_keys`. `only`: a filter of the table's rows.
    """
    join = key_join(context, merge, pair)
    columns = {} if join is None else join.columns
    read = clauses.columns_read
    conditions_read = [name for name in source.names if of_source(name) in read]
    held = [*columns.values(), *conditions_read]
    if join is None or source.bytes_of([*held, ROW_ID_COLUMN]) > context.limits.merge_key_bytes:
        return None
    keys = SourceKeys(
        scan=scan_of(context, source, held),
        columns=tuple((held, plan.schema.field(name).type) for name, held in columns.items()),
        conditions_read=tuple(conditions_read),
    )
    filters = [each for each in (only, join.only) if each is not None]
    row_filter = all_of(filters) if filters else None
    filtered = frozenset[str]().union(*map(columns_of, filters))
    scan = addressed_scan(context, plan, read.union(columns, filtered), row_filter, first=tuple(columns))
    at_once = context.limits.looked_up_bytes
    pairs = partial(pairs_of_keys, keys, clauses, may_meet_many=may_meet_many, bytes_at_once=at_once)
    task = Task(source=scan, steps=(pairs, pairs_packed), more_weight=keys.scan.bins.weight)
    return Matches.of_packed(context.executor.run([task], PAIRS_SCHEMA, MATCHING))


def key_filter(on: str, arrow_schema: pa.Schema, pair: PairColumns, source: MaterializedSource) -> Expression | None:
    """Return a filter that passes each target row which `on` matches with some source row; None if that is uncertain.

    If a conjunct of the accepted condition `on` is `t.k = s.k`, no row matches whose `k` is not in the source, whatever
    the other conjuncts are. `arrow_schema` has the types in which the target's rows are read.
    """
    limits, parts = source.store.limits, list[Expression]()
    for equality in filter(None, equalities(on, pair, plain_columns(pair))):
        key = source_column(equality.sql, pair)
        if key is None or not pair.is_of_one_type(equality.column, key):
            continue
        if source.bytes_of([key]) <= limits.filter_key_bytes:
            values, are_all = source.distinct(key, limits.filter_keys)
            parts.append(_one_of(equality, values.cast(arrow_schema.field(equality.column).type), are_all))
    return all_of(parts) if parts else None


def _one_of(equality: Equality, values: pa.Array, are_all: bool) -> Expression:
    present = values.drop_null()
    column = Column(equality.column)
    if are_all:
        found: Expression = Call("in", (column, Values(present)))
    else:
        ends = pc.min_max(present)
        least, greatest = (pa.array([ends[end]], present.type) for end in ("min", "max"))
        found = all_of([Call(">=", (column, Values(least))), Call("<=", (column, Values(greatest)))])
    # By `<=>` a null equals a null.
    return any_of([found, Call("is null", (column,))]) if equality.null_safe and values.null_count else found


def join_hint(context: JobContext, size_bytes: int, alias: str) -> str:
    """Return the hint to join with the side `alias` (quoted), whose columns take `size_bytes` in a hash table."""
    return f"{'BROADCAST' if size_bytes < context.limits.broadcast_bytes else 'SHUFFLE_MERGE'}({alias})"


def plain_columns(pair: PairColumns) -> list[str]:
    return [field.name for field in pair.target if _is_plain(field)]


def _is_plain(field: StructField) -> bool:
    """Return whether two values of the column are equal to all engines exactly if they are the same; no key is a
    boolean.
    """
    is_key = is_exact(field.type) and field.type is not Primitive.BOOLEAN
    return is_key and not field.is_collated and CHAR_VARCHAR_KEY not in field.metadata
