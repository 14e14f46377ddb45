"""Reads a predicate: from Spark SQL text to a `Predicate` of the closed grammar.

The tree of the text (`sql`) is read leaf by leaf (`leaves`); what is outside the grammar is unknown. The invariant: SQL
is never made from a tree; Spark always gets the author's text. It holds for Spark with ANSI mode on or off, and with
the defaults of what else changes the meaning of a text (`spark.sql.timestampType`, `spark.sql.caseSensitive`, legacy
flags). Source: soundness A3, A4, B6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from airflow_txlog.engine.table.predicate.constants import OutsideGrammar
from airflow_txlog.engine.table.predicate.leaves import LeafReader
from airflow_txlog.engine.table.predicate.names import Names, unknown_column
from airflow_txlog.engine.table.predicate.tree import Predicate
from airflow_txlog.engine.table.schema.types import StructType
from airflow_txlog.errors import InvalidPredicate
from airflow_txlog.sql import confinement
from airflow_txlog.sql.expression import Call, Expression, Opaque, Parameter, all_of, any_of, parts_of
from airflow_txlog.sql.lexer import has_half_of_a_character
from airflow_txlog.sql.sql_text import quoted_hint, sql_text


def read_predicate(
    sql: str,
    schema: StructType,
    *,
    parameters: Mapping[str, object] | None = None,
    time_zone: str = "UTC",
    alias: str | None = None,
    unknown_columns: Literal["error", "unknown"] = "error",
    lenient: bool = False,
) -> Predicate:
    """The predicate that `sql` (one boolean expression of Spark SQL) states about rows of a table.

    `parameters` are the values of `:name`; texts among them convert to the column's type by Spark's rules, in
    `time_zone` where a zone is needed. `alias` may qualify columns. Whatever is outside the closed grammar of soundness
    A4 becomes an unknown leaf, which prunes nothing. With `unknown_columns="unknown"` that includes columns that the
    schema does not have. `lenient` is for text that Spark's own parser has accepted: what cannot be parsed here is then
    unknown as a whole.

    Raises InvalidPredicate when the text is not one boolean expression, or a parameter is missing or unused;
    UnknownColumn, naming the nearest column; UnsupportedPredicate for a subquery, a non-deterministic, aggregate,
    window or generator function, or a call of Java code.
    """
    bound = dict(parameters or {})
    _check_whole(sql, bound)
    text = sql_text(sql)
    if text.problem is not None:
        return _unreadable(sql, text.problem, lenient)
    confinement.check_tokens(text)
    parsed = text.expression
    if parsed is None:
        # What looks like a parameter may be something else here (`v:path`); Spark has seen that none is missing.
        predicate = _unreadable(sql, confinement.guess_what_failed(text), lenient)
        _check_none_spare(sql, text.parameters, bound)
        return predicate
    _check_none_missing(sql, parsed, bound)
    _check_none_spare(sql, text.parameters, bound)
    names = Names(schema, text, alias)
    missing = names.unknown(parsed)
    if missing is not None and unknown_columns == "error":
        raise unknown_column(sql, missing, schema)
    outside: list[str] = []
    tree = _read(parsed, LeafReader(names, bound, time_zone, sql), outside)
    # Where every leaf was read, the parser's columns are the columns; else whatever in the text looks like one.
    columns = names.columns_named() if outside else names.columns_in(parsed)
    return Predicate(sql, tree, columns)


def target_conjuncts(
    on_sql: str,
    schema: StructType,
    *,
    target_alias: str,
    source_alias: str,
    parameters: Mapping[str, object] | None = None,
    time_zone: str = "UTC",
    source_columns: Iterable[str] | None = None,
    lenient: bool = False,
) -> Predicate:
    """What a MERGE's ON condition says of target rows alone: where it is false, no source row matches.

    Conditions on the source are unknown. A name without an alias is the target's only if `source_columns`
    (every column of the source) shows that it is not the source's. `columns` are the target's that the text names.
    Parameters may be unused, as the merge's clauses share them. Raises as `read_predicate` does.
    """
    bound = dict(parameters or {})
    _check_whole(on_sql, bound)
    text = sql_text(on_sql)
    if text.problem is not None:
        return _unreadable(on_sql, text.problem, lenient)
    confinement.check_tokens(text)
    parsed = text.expression
    if parsed is None:
        return _unreadable(on_sql, confinement.guess_what_failed(text), lenient)
    _check_none_missing(on_sql, parsed, bound)
    others = None if source_columns is None else frozenset(name.lower() for name in source_columns)
    # An alias of one name with the other's, or with a column of the source, would make every name ambiguous.
    clear = target_alias.lower() != source_alias.lower() and target_alias.lower() not in (others or ())
    names = Names(schema, text, target_alias if clear else None, only_qualified=True, other_columns=others)
    missing = names.unknown(parsed)
    if missing is not None:
        raise unknown_column(on_sql, missing, schema)
    tree = _read(parsed, LeafReader(names, bound, time_zone, on_sql), [])
    return Predicate(on_sql, tree, names.columns_named())


def _unreadable(sql: str, what: str, lenient: bool) -> Predicate:
    if not lenient:
        raise confinement.invalid(sql, what)
    return Predicate(sql, Opaque(what), None)


def _check_none_missing(sql: str, parsed: Expression, bound: Mapping[str, object]) -> None:
    for part in parts_of(parsed):
        if isinstance(part, Parameter) and part.name not in bound:
            raise InvalidPredicate(
                f"The predicate {sql!r} needs a value for its parameter :{part.name}, and none was given. "
                f"Given: {', '.join(sorted(bound)) or 'none'}. Nothing was read.",
                predicate=sql,
            )


def _check_whole(sql: str, bound: Mapping[str, object]) -> None:
    for name, value in bound.items():
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and has_half_of_a_character(text) for text in texts):
            raise InvalidPredicate(
                f"The parameter :{name} of the predicate {sql!r} has half of a character in it, a lone surrogate, "
                "so no row can hold it. Nothing was read.",
                predicate=sql,
            )


def _check_none_spare(sql: str, used: Iterable[str], bound: Mapping[str, object]) -> None:
    spare = sorted(set(bound) - set(used))
    if spare:
        raise InvalidPredicate(
            f"The predicate {sql!r} has no parameter :{spare[0]}, for which a value was given."
            f"{quoted_hint([sql], spare[0])} "
            "A misspelt parameter is refused rather than ignored. Nothing was read.",
            predicate=sql,
        )


def _read(node: Expression, reader: LeafReader, outside: list[str], negated: bool = False) -> Expression:
    """The node with NOT pushed down to its leaves; three-valued logic is exact there.

    What is outside the grammar is noted in `outside`: a tree may lose unknown leaves (`FALSE AND …`), its text not.
    """
    operator = node.operator if isinstance(node, Call) else ""
    if isinstance(node, Call) and operator == "not":
        return _read(node.operands[0], reader, outside, not negated)
    if isinstance(node, Call) and operator in ("and", "or"):
        children = [_read(child, reader, outside, negated) for child in node.operands]
        return all_of(children) if (operator == "and") != negated else any_of(children)
    try:
        return reader.read(node, negated)
    except OutsideGrammar as found:
        outside.append(str(found))
        return Opaque(str(found))
