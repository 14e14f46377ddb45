"""Which names the columns of a source may have, and which column an assignment names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_txlog.errors import SchemaMismatch

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
