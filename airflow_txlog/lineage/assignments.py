"""Which columns the columns of a table get their values from, where the SQL is plain.

Plain is a grammar of its own, and a closed one: a column, a literal or a parameter, alone; a query `SELECT … FROM view
[WHERE …]` of such items. The invariant: a column is either left out, or named with every column that its new values are
copied from; what the grammar does not cover leaves the column out, or all of them where it could give any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from airflow_txlog.contract.job import Lineage
from airflow_txlog.contract.operations import (
    DeleteClause,
    FileView,
    InsertClause,
    Merge,
    Operation,
    QuerySource,
    SourceOperation,
    TableView,
    Update,
    UpdateClause,
    Upsert,
    View,
    Write,
)
from airflow_txlog.lineage.datasets import folder_of_glob
from airflow_txlog.sql.lexer import Token
from airflow_txlog.sql.sql_text import sql_text

Field: TypeAlias = tuple[str, str]
"""The URI of a table or of files, and the name of a column there."""

Origins: TypeAlias = Mapping[str, frozenset[Field] | None]
"""A relation's columns by name, in small letters, and what each is a copy of; a constant of nothing; None: unknown."""

_LITERALS = frozenset(("null", "true", "false"))
_TAILS = frozenset(("where", "group", "order", "limit"))
# With one of these begins every query that could be united with another.
_QUERIES = frozenset(("select", "from", "values", "table"))


def copied_columns(operation: Operation, table_uri: str, lineage: Lineage) -> dict[str, frozenset[Field]]:
    """By the table's columns: those that their new values are copied from, of sources or of the table itself.

    A column that is computed, or about which it is not certain, is left out.
    """
    columns = list(lineage.columns)
    table, source = _copies_of(table_uri, columns), {}
    if isinstance(operation, SourceOperation):
        found = _of_source(operation.source, lineage.views)
        if found is None:
            return {}
        source = dict(found)
    match operation:
        case Write() | Upsert():
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
    """A relation that is a dataset itself."""
    return {column.lower(): frozenset({(uri, column)}) for column in columns}


def _of_source(source: QuerySource | View, views: Mapping[str, Sequence[str]]) -> Origins | None:
    """The columns that a source has; None where that is not known."""
    if isinstance(source, QuerySource):
        relations = {name: _of_view(view, views.get(name)) for name, view in source.views.items()}
        return _of_query(source.sql, relations)
    return _of_view(source, views.get(""))


def _of_view(view: View, columns: Sequence[str] | None) -> Origins | None:
    if columns is None or len({column.lower() for column in columns}) < len(columns):
        return None
    if isinstance(view, TableView):
        return _copies_of(view.table, columns)
    assert isinstance(view, FileView)
    # Of several places, one may lack the column.
    return _copies_of(folder_of_glob(view.paths[0]), columns) if len(view.paths) == 1 else None


# --- the clauses of a merge -------------------------------------------------------------------------------------------


def _of_clauses(merge: Merge, table: Origins, source: Origins) -> list[Origins] | None:
    """What each clause assigns; None where one could assign any column."""
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
    """What a mapping of columns to SQL assigns; None where a key is not just the name of a column of the table.

    `seen`: the relations that the SQL may name, by alias.
    """
    found: dict[str, frozenset[Field] | None] = {}
    for key, text in texts.items():
        name = _tokens(key)
        if len(name) != 1 or name[0].text.lower() not in table:
            return None
        found[name[0].text.lower()] = _of_value(_tokens(text), seen)
    return found


# --- plain SQL --------------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Sequence[Token]:
    """None of a text that could be read in another way; a session may take double quotes for those of a name."""
    return () if '"' in text else sql_text(text).tokens


def _is_name(token: Token) -> bool:
    return token.kind in ("word", "name")


def _is_word(token: Token, *words: str) -> bool:
    return token.kind == "word" and token.text.lower() in words


def _of_value(tokens: Sequence[Token], seen: Mapping[str, Origins]) -> frozenset[Field] | None:
    """What a value is a copy of; None for one that is computed, or could be another column's."""
    unsigned = tokens[1:] if tokens[:1] == [Token("symbol", "-")] else tokens
    if len(unsigned) == 1 and unsigned[0].kind == "number":
        return frozenset()
    if len(tokens) == 1 and (tokens[0].kind in ("string", "parameter") or _is_word(tokens[0], *_LITERALS)):
        return frozenset()
    if len(tokens) == 1 and _is_name(tokens[0]) and len(seen) == 1:
        (relation,) = seen.values()
        return relation.get(tokens[0].text.lower())
    if len(tokens) == 3 and _is_name(tokens[0]) and _is_name(tokens[2]) and tokens[1].text == ".":
        return seen.get(tokens[0].text.lower(), {}).get(tokens[2].text.lower())
    return None


def _of_query(sql: str, views: Mapping[str, Origins | None]) -> Origins | None:
    """The columns of a query over views; None where it has one that cannot be named."""
    tokens = _tokens(sql)
    if not tokens or not _is_word(tokens[0], "select"):
        return None
    items, rest = _select_list(tokens[1:])
    relation = _from(rest, views)
    if relation is None:
        return None
    found: dict[str, frozenset[Field] | None] = {}
    for item in items:
        for name, origins in _of_item(item, relation):
            if name is None or name in found:
                return None
            found[name] = origins
    return found


def _select_list(tokens: Sequence[Token]) -> tuple[list[list[Token]], Sequence[Token]]:
    """The items of a SELECT, and what stands behind its FROM."""
    items: list[list[Token]] = [[]]
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind == "symbol":
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.text, 0)
        if depth == 0 and _is_word(token, "from"):
            return items, tokens[place + 1 :]
        if depth == 0 and token == Token("symbol", ","):
            items.append([])
        else:
            items[-1].append(token)
    return items, ()


def _from(tokens: Sequence[Token], views: Mapping[str, Origins | None]) -> dict[str, Origins] | None:
    """The one relation of a query, by the name that its columns have; None where it may have another."""
    if not tokens or not _is_name(tokens[0]):
        return None
    name = alias = tokens[0].text.lower()
    rest = tokens[1:]
    if rest[:1] and _is_word(rest[0], "as"):
        rest = rest[1:]
        if not rest or not _is_name(rest[0]):
            return None
    if rest[:1] and _is_name(rest[0]) and not _is_word(rest[0], *_TAILS):
        alias, rest = rest[0].text.lower(), rest[1:]
    if rest and not _is_word(rest[0], *_TAILS):
        return None
    # A pipe, |>, may change every column.
    if any(_is_word(token, *_QUERIES) or token.text == "|" for token in rest):
        return None
    found = [origins for view, origins in views.items() if view.lower() == name]
    return {alias: found[0]} if len(found) == 1 and found[0] is not None else None


def _of_item(
    item: Sequence[Token], relation: Mapping[str, Origins]
) -> Iterator[tuple[str | None, frozenset[Field] | None]]:
    """The columns that one item of a SELECT gives, each with what it is a copy of; None for one without a name."""
    ((alias, columns),) = relation.items()
    is_qualified = len(item) == 3 and _is_name(item[0]) and item[0].text.lower() == alias and item[1].text == "."
    if item and item[-1] == Token("symbol", "*") and (len(item) == 1 or is_qualified):
        yield from columns.items()
        return
    name, value = None, item
    if len(item) > 2 and _is_word(item[-2], "as") and _is_name(item[-1]):
        name, value = item[-1].text.lower(), item[:-2]
    origins = _of_value(value, relation)
    if name is None and origins and _is_name(value[-1]):
        name = value[-1].text.lower()
    yield name, origins
