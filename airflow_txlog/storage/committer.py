"""The interface to a catalog that ratifies the commits of a table, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_txlog.locations import CatalogTable
from airflow_txlog.storage.base import LOG, FileInfo

STAGED = f"{LOG}/_staged_commits"


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


class VersionTaken(Exception):
    """The catalog has ratified another commit of this version."""


class TooManyUnpublished(Exception):
    """The catalog ratifies nothing before some commits are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratified:
    """A commit that the catalog has ratified, and whose publication was not reported to it."""

    version: int
    file_name: str
    size_bytes: int
    modified_ms: int
    timestamp_ms: int

    @property
    def path(self) -> str:
        """The path of the staged file."""
        return f"{STAGED}/{self.file_name}"

    @property
    def info(self) -> FileInfo:
        """The file of the version, as the log shows it."""
        return FileInfo(path=commit_path(self.version), size_bytes=self.size_bytes, modified_ms=self.modified_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogState:
    """The catalog's answer about a table: its latest version, and the commits that may be unpublished, ascending."""

    latest: int
    unpublished: tuple[Ratified, ...] = ()


class Committer(Protocol):
    """The part of a catalog that ratifies the commits of one table."""

    table: CatalogTable

    def load(self) -> CatalogState:
        """Return the state of now. Raises the errors of catalogs, WrongTableId included."""

    def ratify(self, commit: Ratified, data: bytes, published: int | None = None) -> CatalogState:
        """Make the staged commit the next version. The same commit again changes nothing.

        `published`: report with it that every version up to this one is published.
        Raises VersionTaken, TooManyUnpublished, CatalogRefused; after CatalogUnavailable the outcome is unknown.
        """

    def create(self, data: bytes, timestamp_ms: int) -> CatalogState:
        """Give a new table, whose first commit has these bytes, its name.

        Raises WrongTableId if another table has the name by now; after CatalogUnavailable the outcome is unknown.
        """

    def published(self, version: int) -> CatalogState:
        """Report to the catalog that every version up to this one is published."""
