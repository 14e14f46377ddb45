"""The interface of all catalogs: what a name resolves to, and what a catalog records of a table.

A catalog has one implementation for each service (`glue`, `hive`, `unity`). It knows neither Airflow nor Spark. Its
answers are input: `places.table_uri` alone decides which place an entry may name. Invariant: `find` sends one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_txlog.errors import CatalogUnavailable, InvalidInput, TableNotInCatalog
from airflow_txlog.locations import CatalogTable

TABLE_ID = "txlog.table_id"
"""The property in which we record the id of a table's metadata, for a catalog without table ids."""

VERSION = "delta.lastUpdateVersion"
"""The property with the version that the columns and properties were written from, as delta-spark has it too."""
_VERSION_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogColumn:
    """A column as a catalog lists it: `type_text` is Hive's, such as `struct<a:int>`.

    `is_odd`: no parser of Hive's types reads the text, because of the name of a field in it.
    """

    name: str
    type_text: str
    comment: str | None = None
    is_odd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A Delta table in a catalog.

    `name`: as the catalog spells it (`db.table`, or `catalog.schema.table`). `uri`: its place, normalised. `table_id`:
    the id that the log must have, if the catalog records one. `is_managed`: the catalog owns the files, and deletes
    them with the table. `namespace` and `dataset`: the table in OpenLineage's naming of this catalog.
    `catalog_table`: the part that the catalog has in opening the table's store (temporary credentials, commits); None:
    none, and `storage_conn_id` or the process's own identity opens it.
    """

    name: str
    uri: str
    namespace: str
    dataset: str
    table_id: str | None = None
    is_managed: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[CatalogColumn, ...] = ()
    partition_columns: tuple[str, ...] = ()
    catalog_table: CatalogTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The facts of one version of a Delta table that a catalog records.

    `columns` are all columns, in the table's order. `properties` are the table's own, without those of a catalog.
    `schema_json`: the schema as the log has it, for a catalog that keeps Delta's own types.
    """

    name: str
    uri: str
    table_id: str
    version: int
    columns: tuple[CatalogColumn, ...]
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    schema_json: str
    comment: str | None = None


class Catalog(Protocol):
    """One catalog, through one connection. A method may be called from any thread, one at a time."""

    connection: str
    """The id of the connection, for messages."""

    @property
    def new_tables(self) -> Mapping[str, CatalogTable]:
        """The tables that `place_for` has placed and whose catalog has a part in creating them, by their places."""

    def find(self, name: str) -> Entry:
        """Return the Delta table of this name, by one request.

        Raises TableNotInCatalog, NotADeltaTable, UnusablePlace, CatalogRefused, CatalogUnavailable; InvalidInput for a
        text that is no name.
        """

    def place_for(self, name: str) -> str:
        """Return the URI where the catalog would put a new table of this name.

        Raises TableNotInCatalog if the database does not exist, and the errors of `find`.
        """

    def register(self, table: Description) -> None:
        """Create the entry of a table whose files exist. An entry of the same place is updated instead.

        Raises InvalidInput if the name belongs to another place, and the errors of `find`.
        """

    def update(self, table: Description) -> bool:
        """Write the columns and properties into the entry, and keep what others have put there.

        Return False if the entry had them already. Raises the errors of `find`.
        """


def name_parts(name: str, *counts: int) -> tuple[str, ...]:
    """Return the parts of a name: `db.table` has two. A part in backticks may contain any character but a slash.

    Raises InvalidInput for another number of parts than `counts`, and for an empty part.
    """
    parts, rest = [], name
    while True:
        if rest.startswith("`"):
            part, closed, rest = rest[1:].partition("`")
        else:
            part, dot, rest = rest.partition(".")
            closed, rest = "`", dot + rest
        if not closed or not part or "/" in part or (rest and not rest.startswith(".")):
            break
        parts.append(part)
        if not rest:
            if len(parts) in counts:
                return tuple(parts)
            break
        rest = rest[1:]
    forms = " or ".join('"catalog.schema.table"' if count == 3 else '"database.table"' for count in counts)
    raise InvalidInput(f"A table's name in this catalog is {forms}; found {name!r}. Nothing was read.")


def is_newer(given: Mapping[str, str], table: Description, mark: str = VERSION) -> bool:
    """Return whether an entry is of a later version of the same table than the description. `mark`: the version's."""
    version = given.get(mark, "")
    # No table has more commits, and anybody may have written the property.
    is_version = version.isascii() and version.isdigit() and len(version) <= _VERSION_DIGITS
    return given.get(TABLE_ID) == table.table_id and is_version and int(version) > table.version


def spelled(*parts: str) -> str:
    """Return the name with these parts, which `name_parts` reads again."""
    return ".".join(f"`{part}`" if "." in part or part.startswith("`") else part for part in parts)


@contextmanager
def well_formed(connection: str, name: str) -> Iterator[None]:
    """Raise CatalogUnavailable for an answer that is not of the form in which the body reads it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        raise CatalogUnavailable(
            f"The catalog {connection!r} answers about {name} in a form that is none of a table. Nothing was read or "
            "written.",
            connection=connection,
            name=name,
        ) from None


def of_service(message: Any) -> str:
    """Return the text of a service for our own message: in one line, and no longer than people read."""
    text = "".join(each if each.isprintable() else " " for each in str(message or ""))
    return text[:500]


def not_found(connection: str, name: str) -> TableNotInCatalog:
    """Return the error of a table that a catalog does not have."""
    return TableNotInCatalog(
        f"The catalog {connection!r} has no table {name}, or does not show it to this identity. Nothing was read.",
        connection=connection,
        name=name,
    )


def check_place(entry: Entry, table: Description) -> None:
    """Raise InvalidInput if the name belongs to a table at another place."""
    if entry.uri != table.uri:
        raise InvalidInput(
            f"The name {table.name} belongs to the table at {entry.uri}, and not to the one at {table.uri}. The entry "
            "of the catalog was not changed."
        )
