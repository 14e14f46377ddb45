"""Which names the columns of a source may have, and which column an assignment names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_txlog.engine.table.predicate.suggestions import did_you_mean, shown_names
from airflow_txlog.errors import SchemaMismatch, UnknownColumn

Column = TypeVar("Column")


def check_names_are_free(names: Sequence[str], what: str) -> None:
    """Raises SchemaMismatch for a column that bears a name of ours."""
    taken = [name for name in names if name.lower().startswith("_txlog_")]
    if taken:
        raise SchemaMismatch(
            f"{what} has columns {taken}; names that begin with _txlog_ are used by the job itself. Rename them.",
            columns=taken,
        )


def check_distinct(names: Sequence[str], what: str) -> None:
    """Raises SchemaMismatch where two columns differ in nothing but case, or not at all."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise SchemaMismatch(
                f"{what} has two columns named {name!r} (case does not count). Give one another name. Nothing was "
                "staged.",
                columns=[name],
            )
        seen.add(name.lower())


def assigned_column(name: str, columns: Mapping[str, Column], alias: str) -> Column | None:
    """Return the column of a table that an assignment names, bare or behind the table's alias; None if it has none.

    `columns` are the table's by their names in lower case.
    """
    bare = name.strip().strip("`").lower()
    prefix = alias.lower() + "."
    if bare in columns:
        return columns[bare]
    return columns.get(bare[len(prefix) :].strip("`")) if bare.startswith(prefix) else None


def unassignable(name: str, columns: Sequence[str], table_uri: str) -> UnknownColumn:
    """The error for an assignment to a column that the table does not have."""
    return missing_column(
        f"A new value is assigned to {name!r}, a column that {table_uri} does not have", name, columns
    )


def missing_column(what: str, name: str, columns: Sequence[str], end: str = "Nothing was read.") -> UnknownColumn:
    """The error for a name of an argument that none of the columns has. `what`: who lacks it and which argument names
    it, as a sentence without its end."""
    return UnknownColumn(
        f"{what}.{did_you_mean(name, columns)} The columns are: {shown_names(columns)}. {end}",
        column=name,
        columns=list(columns),
    )
