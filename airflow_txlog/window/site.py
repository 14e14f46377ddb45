"""The tables of a window and their readers: the interface of its two sites, and the stand-alone one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from airflow_txlog.engine import Table
from airflow_txlog.locations import Access, shown


class Refused(Exception):
    """The request gets this status and this message, and nothing else."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table that the site knows. Only these are ever opened."""

    uri: str
    """As links name it, without credentials."""
    dag_ids: tuple[str, ...] = ()
    """The DAGs that write or name it, as far as the user may see them."""
    conn_id: str | None = None
    """The connection that opens it."""
    is_certain: bool = True
    """False if only an asset names it, which may be no table."""
    place: str = ""
    """The URI by which it is opened, if that differs."""
    names: tuple[str, ...] = ()
    """Its names in catalogs, by which tasks have found it."""

    @property
    def key(self) -> tuple[str, str | None]:
        """What makes it one table for all users: its place, as `uri` may be the same for two of them."""
        return self.place or self.uri, self.conn_id


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The tables that one user may see."""

    tables: Mapping[str, KnownTable]
    sees: Callable[[str], bool] = field(default=lambda dag_id: True)
    """Whether the user may see a DAG."""
    user: Any = None


class Site(Protocol):
    """The tables of a window, and the permissions of its users."""

    is_airflow: bool

    async def user(self, request: Request) -> Any:
        """Return the user of a request. Raises Refused (401, 403)."""

    async def view(self, user: Any) -> View:
        """Return the tables that the user may see."""

    def open(self, known: KnownTable) -> Table:
        """Return the table, without reading it. May read connections; called on a thread."""


class StandAlone:
    """The tables that the command line names, for requests to this machine's own address."""

    is_airflow = False

    def __init__(self, uris: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._view = View(tables={shown(uri): KnownTable(uri=shown(uri), place=uri) for uri in uris})

    async def user(self, request: Request) -> Any:
        """Refuse a request that names another host: a page of another site could make a browser send it."""
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            raise Refused(403, "This window answers only at 127.0.0.1 and localhost.")
        return None

    async def view(self, user: Any) -> View:
        return self._view

    def open(self, known: KnownTable) -> Table:
        return Table.at(known.place or known.uri, Access(storage_options=self._options))
