"""The columns from which the columns of a table are copied.

An assigned value is a copy if it is a column, a literal or a parameter, alone; sqlglot reads a query. The invariant: a
column is named with every column that its new values are copied from, or left out. Columns that may be computed, and a
query with an ambiguous part, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from sqlglot import exp, parse_one
from sqlglot.lineage import Node
from sqlglot.lineage import lineage as lineage_of_column
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from airflow_txlog.contract.job import Lineage
from airflow_txlog.contract.operations import (
    AnySource,
    DeleteClause,
    FileView,
    InsertClause,
    KeyedOperation,
    Merge,
    Operation,
    QuerySource,
    RowsInProcess,
    SourceOperation,
    TableView,
    Update,
    UpdateClause,
    View,
    Write,
)
from airflow_txlog.locations import before_glob
from airflow_txlog.sql.expression import Literal, Name, Parameter
from airflow_txlog.sql.sql_text import sql_text

Field: TypeAlias = tuple[str, str]
"""The URI of a table or of files, and the name of a column there."""

Origins: TypeAlias = Mapping[str, frozenset[Field] | None]
"""A relation's columns by name, in lower case, and the columns that each copies (a constant: none; None: unknown)."""


def copied_columns(operation: Operation, table_uri: str, lineage: Lineage) -> dict[str, frozenset[Field]]:
    """Return, by the table's columns, the columns that their new values are certainly copied from."""
    columns = list(lineage.columns)
    table, source = _copies_of(table_uri, columns), {}
    if isinstance(operation, SourceOperation):
        found = _of_source(operation.source, lineage.views)
        if found is None:
            return {}
        source = dict(found)
    match operation:
        case Write() | KeyedOperation():
            given: list[Origins] | None = [source]
        case Merge():
            given = _of_clauses(operation, table, source)
        case Update():
            assigned = _assigned(operation.set, table, {operation.target_alias.lower(): table})
            given = None if assigned is None else [assigned]
        case _:
            given = None
    result = {}
    for column in columns:
        parts = [origins[column.lower()] for origins in given or () if column.lower() in origins]
        known = [part for part in parts if part is not None]
        if parts and len(known) == len(parts):
            result[column] = frozenset().union(*known)
    return result


def _copies_of(uri: str, columns: Sequence[str]) -> dict[str, frozenset[Field] | None]:
    return {column.lower(): frozenset({(uri, column)}) for column in columns}


def _of_source(source: AnySource, views: Mapping[str, Sequence[str]]) -> Origins | None:
    if isinstance(source, QuerySource):
        relations = {name: _of_view(view, views.get(name)) for name, view in source.views.items()}
        return _of_query(source.sql, relations)
    return _of_view(source, views.get(""))


def _of_view(view: View | RowsInProcess, columns: Sequence[str] | None) -> Origins | None:
    if columns is None or isinstance(view, RowsInProcess) or len({column.lower() for column in columns}) < len(columns):
        return None
    if isinstance(view, TableView):
        return _copies_of(view.table, columns)
    assert isinstance(view, FileView)
    # One of several sources may lack the column.
    return _copies_of(before_glob(view.paths[0]), columns) if len(view.paths) == 1 else None


# --- the clauses of a merge -------------------------------------------------------------------------------------------


def _of_clauses(merge: Merge, table: Origins, source: Origins) -> list[Origins] | None:
    """Return the assignments of each clause; None if one could assign any column."""
    target_alias, source_alias = merge.target_alias.lower(), merge.source_alias.lower()
    seen = {
        "matched": {target_alias: table, source_alias: source},
        "not_matched": {source_alias: source},
        "not_matched_by_source": {target_alias: table},
    }
    found: list[Origins] = []
    for clause in merge.clauses:
        if isinstance(clause, DeleteClause):
            continue
        texts = clause.values if isinstance(clause, InsertClause) else clause.set
        assert isinstance(clause, InsertClause | UpdateClause)
        assigned = source if isinstance(texts, str) else _assigned(texts, table, seen[clause.when])
        if assigned is None:
            return None
        found.append(assigned)
    return found


def _assigned(texts: Mapping[str, str], table: Origins, seen: Mapping[str, Origins]) -> Origins | None:
    """Return the assignments of columns to SQL over the relations `seen`; None if a key is no plain column."""
    found: dict[str, frozenset[Field] | None] = {}
    for key, text in texts.items():
        name = sql_text(key).expression
        if not isinstance(name, Name) or len(name.parts) != 1 or str(name).lower() not in table:
            return None
        found[str(name).lower()] = _of_value(text, seen)
    return found


# --- SQL --------------------------------------------------------------------------------------------------------------


def _of_value(text: str, seen: Mapping[str, Origins]) -> frozenset[Field] | None:
    """Return the columns that a value is a copy of; None for one that is computed, or could be another column's."""
    match sql_text(text).expression:
        # A session may read double quotes as those of a name.
        case Literal() | Parameter() if '"' not in text:
            return frozenset()
        case Name((column,)) if len(seen) == 1:
            (relation,) = seen.values()
            return relation.get(column.text.lower())
        case Name((alias, column)):
            return seen.get(alias.text.lower(), {}).get(column.text.lower())
    return None


def _of_query(sql: str, views: Mapping[str, Origins | None]) -> Origins | None:
    """Return the columns of a query over views; None if one has no name, or the query can be read in two ways."""
    text = sql_text(sql)
    if text.problem is not None or any(token.doubt is not None for token in text.tokens):
        return None
    # Types do not matter here, only which names there are.
    schema: dict[str, object] = {view: dict.fromkeys(origins, "string") for view, origins in views.items() if origins}
    try:
        query = qualify(parse_one(sql, dialect="spark"), schema=schema, dialect="spark")
        scope = build_scope(query)
        names = [name.lower() for name in query.named_selects] if isinstance(query, exp.Query) else []
        if scope is None or len(set(names)) < len(names) or any(map(_hides_columns, query.walk())):
            return None
        return {
            name: _copied(lineage_of_column(name, query, schema, dialect="spark", scope=scope), views) for name in names
        }
    except Exception:
        # A query that it cannot read has no lineage. Releases before 30 raise a TypeError for some texts.
        return None


def _hides_columns(node: exp.Expr) -> bool:
    """Return whether a part of a query may give a relation other columns than those that are found here."""
    match node:
        case exp.Join():
            return node.method == "NATURAL" or node.kind in ("SEMI", "ANTI")
        case exp.With():
            return node.recursive
        case exp.Table():
            return bool(node.alias_column_names or node.db)
    return isinstance(node, exp.Pivot | exp.Lateral | exp.Except)


def _copied(node: Node, views: Mapping[str, Origins | None], column: str = "") -> frozenset[Field] | None:
    """Return the columns of which a column of a query, or `column` of one of its relations, is a copy."""
    here = node.expression.unalias()
    match here:
        case exp.Table():
            found = [origins for view, origins in views.items() if view.lower() == here.name.lower()]
            return (found[0] or {}).get(column.lower()) if len(found) == 1 else None
        case exp.Literal() | exp.Null() | exp.Boolean() | exp.Placeholder() | exp.Neg(this=exp.Literal()):
            return frozenset()
        case exp.Column():
            column = here.name
        case _ if node.name not in ("UNION", "INTERSECT"):
            return None
    parts = [_copied(each, views, column) for each in node.downstream]
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if parts and len(known) == len(parts) else None
