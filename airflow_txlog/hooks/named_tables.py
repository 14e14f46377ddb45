"""Tables by their names in a catalog: a name becomes a place once per task, and the catalog learns of new tables.

A text that is not absolute and has no slash is a name, if the hook has a catalog. Invariants: the catalog gets no
request before a name is used; a task whose commit is done never fails because of its catalog.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_txlog.contract.job import JobResult, JobSpec
from airflow_txlog.errors import InvalidJobSpec, TableNotFound, TableNotInCatalog
from airflow_txlog.locations import CatalogTable, canonical_place, is_absolute, shown

if TYPE_CHECKING:
    from airflow_txlog.catalogs.base import Catalog, Entry
    from airflow_txlog.hooks.followed_table import FollowedTable

NAME = "table"
"""The annotation of a job, and so the tag of its commit, with the name of the table."""

# The fields of records that hold sources, and those that hold another table's place.
_SOURCES, _TABLES = ("source", "keys", "subjects"), ("samples_to", "quarantine_uri")

REGISTERED, UPDATED, FAILED = "registered", "updated", "failed"
"""The outcomes of keeping a catalog up to date, as XCom has them."""


log = logging.getLogger(__name__)


class TablesByName:
    """The names that one task has resolved. Its copies begin empty."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.to_register: dict[str, str] = {}
        """Names that the catalog does not have yet, by the place of the new table."""
        self.catalog: Catalog | None = None

    @property
    def symlinks(self) -> dict[str, tuple[str, str]]:
        """The names of OpenLineage for the catalog's tables, by their places."""
        return {each.uri: (each.namespace, each.dataset) for each in self.entries.values()}

    def __deepcopy__(self, memo: Any) -> TablesByName:
        return TablesByName()


class NamedTablesHook:
    """The part of the hook that knows names. `names` is shared by the hooks of one task."""

    names: TablesByName
    writes_by_name = False
    """Whether this process itself changes the tables that it opens by name, and not only its jobs."""
    _catalog_conn_id: str | None

    if TYPE_CHECKING:

        @property
        def _extra(self) -> dict[str, Any]: ...
        def table_uri(self, table: str) -> str: ...
        def followed(self, table: str) -> FollowedTable: ...

    @property
    def catalog_conn_id(self) -> str | None:
        """The connection of the catalog; None without one."""
        return self._catalog_conn_id or self._extra.get("catalog_conn_id") or None

    @property
    def catalog(self) -> Catalog:
        """The catalog. Raises InvalidJobSpec without one, or for a connection that is none of a catalog."""
        if self.names.catalog is None:
            from airflow_txlog.hooks.catalog_connection import open_catalog

            if self.catalog_conn_id is None:
                raise no_catalog()
            self.names.catalog = open_catalog(self.catalog_conn_id)
        return self.names.catalog

    def is_name(self, text: str) -> bool:
        """Return whether a text is a name of the catalog, and not a path or a URI."""
        may_be = may_be_name(text)
        return may_be and self.catalog_conn_id is not None

    def entry(self, name: str) -> Entry:
        """Return the catalog's entry of a table, by one request for each task.

        Raises TableNotInCatalog, NotADeltaTable, UnusablePlace, CatalogRefused, CatalogUnavailable; InvalidInput for a
        text that is no name.
        """
        if name not in self.names.entries:
            self.names.entries[name] = found = self.catalog.find(name)
            log.info("table %s is at %s, by the catalog %s", found.name, shown(found.uri), self.catalog_conn_id)
        return self.names.entries[name]

    def place_of(self, name: str, given_uri: str | None = None, *, may_create: bool = False) -> str:
        """Return the URI of the table of this name. If `may_create`, also of one that the catalog does not have yet.

        A new table is at `given_uri`, or in the folder of its database. Raises the errors of `entry`; InvalidJobSpec if
        the catalog has the table at another place than the given one.
        """
        given = None if given_uri is None else self.table_uri(given_uri)
        try:
            entry = self.entry(name)
        except TableNotInCatalog:
            if not may_create:
                raise
            place = self.catalog.place_for(name) if given is None else given
            self.names.to_register[canonical_place(place)] = name
            log.info("table %s is not in the catalog %s yet: %s", name, self.catalog_conn_id, shown(place))
            return place
        if given is not None and canonical_place(given) != canonical_place(entry.uri):
            raise InvalidJobSpec(
                f"table_uri is {shown(given)!r}, and the catalog {self.catalog_conn_id!r} has {entry.name} at "
                f"{shown(entry.uri)!r}. Nothing was read. Leave table_uri out, or name another table.",
                argument="table_uri",
            )
        # In the author's spelling, which is part of the identity of the work.
        return entry.uri if given is None else given

    def kept_place(self, name: str | None, uri: str) -> str | None:
        """Return the place that all tries of one work must find by a name; None without a name.

        Also None for a table whose place the catalog chooses anew until it exists.
        """
        catalog = self.names.catalog
        is_new = catalog is not None and uri in catalog.new_tables
        return None if name is None or is_new else canonical_place(uri)

    def place_in_source(self, text: str) -> str:
        """Return the place of a name; any other text as it is, for the record to refuse. Raises as `entry`."""
        return self.place_of(text) if self.is_name(text) else text

    def entry_at(self, uri: str) -> Entry | None:
        """Return the entry of the table at a place, if this task has resolved its name."""
        place = canonical_place(uri)
        return next((each for each in self.names.entries.values() if canonical_place(each.uri) == place), None)

    def name_at(self, uri: str) -> str | None:
        """Return the name that this task has for the table at a place; None if it has none."""
        entry = self.entry_at(uri)
        return self.names.to_register.get(canonical_place(uri)) if entry is None else entry.name

    @property
    def catalog_tables(self) -> tuple[CatalogTable, ...]:
        """The resolved tables whose catalog has a part in opening their stores, and those that it will have."""
        found = [each.catalog_table for each in self.names.entries.values()]
        new = [] if self.names.catalog is None else self.names.catalog.new_tables.values()
        known = [each for each in (*found, *new) if each is not None]
        return tuple(dict.fromkeys(each.to_write() if self.writes_by_name else each for each in known))

    def with_name(self, spec: JobSpec) -> JobSpec:
        """Return the spec with the name of its table, if the task knows one."""
        name = self.name_at(spec.table_uri)
        return spec if name is None else spec.replace(annotations={**spec.annotations, NAME: name})

    # --- what the catalog records -----------------------------------------------------------------------------------

    def keep_in_catalog(self, result: JobResult) -> str | None:
        """Register a table that was created, or update the entry after a change of its schema or properties.

        Return REGISTERED, UPDATED or FAILED; None if there was nothing to do. Never raises: the commit is done.
        """
        if result.table_name is None or result.status in ("staged", "failed") or result.details.dry_run:
            return None
        return self.keep_entry(result.table_uri, lambda: self._changed_metadata(result))

    def keep_entry(self, uri: str, is_changed: Callable[[], bool] = lambda: True) -> str | None:
        """Do what `keep_in_catalog` does for the table at a place, if this task knows a name of it."""
        name = self.name_at(uri)
        if name is None:
            return None
        try:
            if canonical_place(uri) in self.names.to_register:
                # Also if there was nothing to do: an earlier task may have created the table, and not its entry.
                self.register(name, uri)
                return REGISTERED
            if is_changed() and self.sync(name, uri):
                return UPDATED
        except TableNotFound:
            # There was nothing to do, and so no table was created.
            return None
        except Exception as error:
            log.warning(
                "the commit is done, but the catalog %s does not show it: %s: %s. Run `airflow txlog catalog sync %s "
                "--catalog-conn-id %s`",
                self.catalog_conn_id,
                type(error).__name__,
                error,
                name,
                self.catalog_conn_id,
            )
            return FAILED
        return None

    def register(self, name: str, uri: str) -> None:
        """Create the catalog's entry of the table at a place. Raises as `Catalog.register`, and the table's errors."""
        from airflow_txlog.catalogs.describe import describe

        self.catalog.register(describe(name, self.followed(uri).table.snapshot()))
        log.info("table %s is registered in the catalog %s", name, self.catalog_conn_id)

    def sync(self, name: str, uri: str) -> bool:
        """Write the table's columns and properties into its entry; return False if they are there already.

        Raises as `Catalog.update`, and the table's errors.
        """
        from airflow_txlog.catalogs.describe import describe

        is_new = self.catalog.update(describe(name, self.followed(uri).table.snapshot()))
        if is_new:
            log.info("the entry of %s in the catalog %s is updated", name, self.catalog_conn_id)
        return is_new

    def _changed_metadata(self, result: JobResult) -> bool:
        """Return whether the commit of a result changed the table's metadata, by one read of the commit."""
        from airflow_txlog.engine.log.actions import decode_commit
        from airflow_txlog.engine.log.names import commit_name

        if result.version is None or result.status == "nothing_to_do":
            return result.status != "nothing_to_do"
        path = commit_name(result.version)
        try:
            data = self.followed(result.table_uri).table.store.read(path)
        except FileNotFoundError:
            # Cleaned since: whether the entry is right is then compared.
            return True
        commit = decode_commit(result.version, data, path)
        return commit.metadata is not None or commit.protocol is not None


def may_be_name(text: Any) -> TypeGuard[str]:
    """Return whether a text has the form of a name: it is not absolute, and has a dot and no slash."""
    return (
        isinstance(text, str) and "." in text and "/" not in text and not text.startswith("~") and not is_absolute(text)
    )


def check_name(text: Any) -> None:
    """Raise InvalidJobSpec for a `table` that has not the form of a name: it may be a path, or a column of a list."""
    if not may_be_name(text):
        raise InvalidJobSpec(
            f"table must be a name in a catalog, with a dot and without a slash, such as sales.orders; found {text!r}. "
            "Nothing was read. Give a path or a URI as table_uri.",
            argument="table",
        )


def no_catalog() -> InvalidJobSpec:
    """Return the error of a name without a catalog."""
    return InvalidJobSpec(
        "A table is given by its name in a catalog, and no connection of a catalog is given. Nothing was read. Name it "
        "in catalog_conn_id, or in the extra of the connection of type txlog.",
        argument="catalog_conn_id",
    )


def with_places(arguments: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """Return the fields of a record with `place(name)` for each name of a table: in sources, and where rows go to."""

    def view(given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        changed = dict(given)
        if may_be_name(given.get("table")):
            changed["table"] = place(given["table"])
        if isinstance(given.get("views"), Mapping):
            changed["views"] = {name: view(each) for name, each in given["views"].items()}
        if isinstance(given.get("source"), Mapping):
            changed["source"] = view(given["source"])
        return changed

    found = {name: view(value) if name in _SOURCES else value for name, value in arguments.items()}
    if isinstance(found.get("requests"), Mapping):
        found["requests"] = {request: view(subjects) for request, subjects in found["requests"].items()}
    return found | {name: place(found[name]) for name in _TABLES if may_be_name(found.get(name))}


def named(result: JobResult, spec: JobSpec) -> JobResult:
    """Return the result with the name of the table."""
    name = spec.annotations.get(NAME)
    return result if name is None else dataclasses.replace(result, table_name=name)
